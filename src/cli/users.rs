//! Names of users and groups, as the system knows them.

use nix::unistd::{Group, User};

/// The number of a user, named or given as a number.
pub(super) fn user_number(text: &str) -> Option<u32> {
    number(text).or_else(|| Some(User::from_name(text).ok()??.uid.as_raw()))
}

/// The number of a group, named or given as a number.
pub(super) fn group_number(text: &str) -> Option<u32> {
    number(text).or_else(|| Some(Group::from_name(text).ok()??.gid.as_raw()))
}

/// The largest of all stands for no user and no group.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number != u32::MAX)
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
