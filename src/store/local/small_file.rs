//! Reading small files that a user names: settings, and secrets.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat};

/// All bytes of a regular file, links followed.
///
/// # Errors
/// What the system refuses; what is no regular file, and what has more than `most` bytes.
pub fn read_small(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(path, most, false)
}

/// The same of a file with secrets, which must belong to the user of this process, or to root, and be hidden from all others.
///
/// # Errors
/// As with [`read_small`]; a file that others could have written or read.
pub fn read_secret(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read(path, most, true)
}

fn read(path: &Path, most: u64, secret: bool) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let stat = fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(rustix::io::Errno::ISDIR.into()),
        _ => return Err(io::Error::other("it is no regular file")),
    }
    if secret {
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user && stat.st_uid != 0 {
            return Err(io::Error::other("it holds secrets and belongs to another user; expected a file of your own"));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other(format!(
                "it holds secrets and has mode {:o}; expected one that is hidden from others (chmod 600)",
                stat.st_mode & 0o7777
            )));
        }
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn small_files_and_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert_eq!(read_small(&path, 5).unwrap(), b"12345");
        assert!(read_small(&path, 4).unwrap_err().to_string().contains("more than 4 bytes"));
        for shown in [0o644, 0o640, 0o604, 0o602, 0o610] {
            mode(shown);
            let error = read_secret(&path, 5).unwrap_err().to_string();
            assert!(error.contains(&format!("mode {shown:o}")), "{error}");
        }
        mode(0o600);
        assert_eq!(read_secret(&path, 5).unwrap(), b"12345");
        assert_eq!(read_small(dir.path(), 5).unwrap_err().raw_os_error(), Some(libc::EISDIR));
        assert!(read_small(Path::new("/dev/null"), 5).unwrap_err().to_string().contains("no regular file"));
        assert_eq!(read_small(&dir.path().join("none"), 5).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
