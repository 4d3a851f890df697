//! Names of users and groups, as the system knows them.

use std::ffi::{CStr, CString};

/// Bytes that an entry may take, at the most.
const MOST: usize = 1 << 20;

/// The number of a user, named or given as a number.
pub(super) fn user_number(text: &str) -> Option<u32> {
    number(text).or_else(|| {
        looked_up(text, |name, entry, buf, found| {
            // SAFETY: see `looked_up`.
            unsafe { libc::getpwnam_r(name.as_ptr(), entry, buf.as_mut_ptr(), buf.len(), found) }
        })
        .map(|entry: libc::passwd| entry.pw_uid)
    })
}

/// The number of a group, named or given as a number.
pub(super) fn group_number(text: &str) -> Option<u32> {
    number(text).or_else(|| {
        looked_up(text, |name, entry, buf, found| {
            // SAFETY: see `looked_up`.
            unsafe { libc::getgrnam_r(name.as_ptr(), entry, buf.as_mut_ptr(), buf.len(), found) }
        })
        .map(|entry: libc::group| entry.gr_gid)
    })
}

/// The largest of all stands for no user and no group.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number != u32::MAX)
}

/// What `ask` fills in, which is given a name, an entry, a buffer for what that points to, and a place to say that it was found.
/// Pointers in the entry lead nowhere afterwards.
fn looked_up<T>(text: &str, ask: impl Fn(&CStr, *mut T, &mut [libc::c_char], *mut *mut T) -> libc::c_int) -> Option<T> {
    let name = CString::new(text).ok().filter(|name| !name.is_empty())?;
    let mut buf: Vec<libc::c_char> = vec![0; 1 << 10];
    loop {
        let mut entry = std::mem::MaybeUninit::<T>::uninit();
        let mut found = std::ptr::null_mut();
        match ask(&name, entry.as_mut_ptr(), &mut buf, &raw mut found) {
            // SAFETY: it says that it has filled the entry.
            0 if !found.is_null() => return Some(unsafe { entry.assume_init() }),
            libc::ERANGE if buf.len() < MOST => buf.resize(buf.len() * 2, 0),
            libc::EINTR => {}
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!((user_number("root"), group_number("root")), (Some(0), Some(0)));
        assert_eq!((user_number("1234"), group_number("00")), (Some(1234), Some(0)));
        for text in ["", "-1", "+1", "4294967295", "4294967296", "no such name", "a\0b"] {
            assert_eq!((user_number(text), group_number(text)), (None, None), "{text}");
        }
    }
}
