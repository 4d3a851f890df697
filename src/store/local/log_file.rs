//! Opening a log file that the user of a command names.

#![expect(unsafe_code, reason = "/dev/fd/N names a descriptor by its number")]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fcntl_setfl, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

/// How many links may lead to it.
const MOST_LINKS: usize = 40;

/// Opens a log file for appending, and makes it if there is none: a regular file, or a device such as a terminal or `/dev/null`. A pipe
/// is none, unless it is a standard file of this process (`/dev/stdout`): opening one may wait for a reader. What others could put
/// in its place is not followed.
///
/// # Errors
/// What the system refuses; what cannot be a log.
pub fn open_log_file(path: &Path) -> io::Result<File> {
    match found(path)? {
        LogTarget::File(file) => Ok(file),
        // SAFETY: if no file has that number, the copy fails; and it is not used otherwise.
        LogTarget::Own(number) => unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().map(File::from),
    }
}

/// The same, later, as the file may have got another name meanwhile and another one its own; `None` for a standard file, which this
/// process may no longer have.
///
/// # Errors
/// As with [`open_log_file`].
pub fn reopen_log_file(path: &Path) -> io::Result<Option<File>> {
    Ok(match found(path)? {
        LogTarget::File(file) => Some(file),
        LogTarget::Own(_) => None,
    })
}

enum LogTarget {
    File(File),
    /// The number of a file that this process was started with.
    Own(i32),
}

fn found(path: &Path) -> io::Result<LogTarget> {
    let mut path = path.to_owned();
    let mut from: Option<OwnedFd> = None;
    for _ in 0..MOST_LINKS {
        if let Some(number) = own_descriptor(&path) {
            return Ok(LogTarget::Own(number));
        }
        let Some(name) = path.file_name() else { return Err(Errno::ISDIR.into()) };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let at = from.as_ref().map_or(CWD, |dir| dir.as_fd());
        let dir = openat(at, dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let ours = only_ours(&fstat(&dir)?);
        match statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink => {
                if !ours {
                    return Err(io::Error::other("it is a link in a directory that others may write to, and is not followed"));
                }
                path = OsStr::from_bytes(readlinkat(&dir, name, Vec::new())?.as_bytes()).into();
                from = Some(dir);
                continue;
            }
            // What is looked at before it is opened may be another file when it is opened.
            Ok(stat) => check(&stat, ours)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(&dir, name, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::from_raw_mode(0o666))?;
        check(&fstat(&file)?, ours)?;
        fcntl_setfl(&file, OFlags::APPEND)?;
        return Ok(LogTarget::File(file.into()));
    }
    Err(Errno::LOOP.into())
}

/// The number of a file that this process was started with, by the names that it has in `/dev`.
fn own_descriptor(path: &Path) -> Option<i32> {
    match path.to_str()? {
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        path => path.strip_prefix("/dev/fd/").or(path.strip_prefix("/proc/self/fd/"))?.parse().ok().filter(|number| *number >= 0),
    }
}

/// Whether nobody but the user of this process, and root, can change the names in a directory.
fn only_ours(dir: &Stat) -> bool {
    let owner = dir.st_uid == 0 || dir.st_uid == rustix::process::geteuid().as_raw();
    owner && dir.st_mode & 0o022 == 0
}

/// Whether a file can be a log. One that has another name as well is none in a directory where others may have given it this one.
fn check(file: &Stat, ours: bool) -> io::Result<()> {
    let refused = |why| Err(io::Error::other(why));
    match FileType::from_raw_mode(file.st_mode) {
        FileType::RegularFile if !ours && file.st_nlink > 1 => {
            refused("it has several names, and is in a directory that others may write to")
        }
        FileType::RegularFile | FileType::CharacterDevice => Ok(()),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => refused("it is neither a regular file nor a character device"),
    }
}
