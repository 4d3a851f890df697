//! Files that are named, not found beneath a directory of somebody's: those of the kernel, and those that the user of a command names
//! for its output.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use super::FileBackend;
use crate::format::partition::Caches;
use crate::store::backend::{Backend, FileStat};

/// Bytes that most files of the kernel do not have.
const KERNEL_FILE: usize = 4096;

/// Reads a file of the kernel, below `/proc` or `/sys`.
///
/// # Errors
/// What the system refuses.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    // Their length is not known before, and what has a limit (`take`) is read without asking for it. A buffer that is too short costs
    // another call each time it is grown.
    let mut bytes = Vec::with_capacity(KERNEL_FILE);
    File::open(path)?.take(u64::MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The caches of the first processor, as far as the kernel knows them.
pub fn caches() -> Caches {
    let size = |index: u8| {
        let text = String::from_utf8(read(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?).ok()?;
        let text = text.trim_end();
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let shift = match unit {
            "K" => 10,
            "M" => 20,
            "G" => 30,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift)
    };
    let unknown = Caches::default();
    // The second one is the first level's for instructions.
    Caches { l1: size(0).unwrap_or(unknown.l1), l2: size(2).unwrap_or(unknown.l2), l3: size(3).unwrap_or(unknown.l3) }
}

/// Whether files have labels of SELinux that count.
pub fn has_labels() -> bool {
    Path::new("/sys/fs/selinux/enforce").exists()
}

/// How many descriptors this process has open. Linux tells since 6.2; before, all are listed.
///
/// # Errors
/// What the system refuses.
pub fn open_descriptors() -> io::Result<usize> {
    const OPEN: &str = "/proc/self/fd";
    match std::fs::metadata(OPEN)?.len() {
        0 => Ok(std::fs::read_dir(OPEN)?.count()),
        open => Ok(usize::try_from(open).unwrap_or(usize::MAX)),
    }
}

/// Has this thread run on every core that the process may use, wherever the thread that started it is kept. That is what the first
/// thread may use.
pub fn run_on_any_core() {
    if let Ok(cores) = sched_getaffinity(Some(getpid())) {
        let _ = sched_setaffinity(None, &cores);
    }
}

/// Whether the kernel shows something at a path, as far as this process can see.
pub fn exists(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok()
}

/// Writes to a file of the kernel.
///
/// # Errors
/// What the system refuses.
pub fn write(path: impl AsRef<Path>, text: &str) -> io::Result<()> {
    open_to_write(path)?.write_all(text.as_bytes())
}

/// Opens a file of the kernel for writing.
///
/// # Errors
/// What the system refuses.
pub fn open_to_write(path: impl AsRef<Path>) -> io::Result<File> {
    Ok(rustix::fs::open(path.as_ref(), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Where a link of the kernel leads.
///
/// # Errors
/// What the system refuses.
pub fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    std::fs::read_link(path)
}

/// Sends a datagram to a socket that the system names, its log for one.
///
/// # Errors
/// What the system refuses.
pub fn send_to(socket: &UnixDatagram, bytes: &[u8], to: &Path) -> io::Result<usize> {
    socket.send_to(bytes, to)
}

/// Processes that are stopped by a signal, of those that can be seen.
pub fn stopped_processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_stopped = |process: &u32| {
        let stat = read(format!("/proc/{process}/stat")).unwrap_or_default();
        let state = stat.rsplit(|byte| *byte == b')').next().unwrap_or_default();
        state.starts_with(b" T")
    };
    processes.filter(is_stopped).collect()
}

/// Whether a process has the device of a FUSE connection open, which is known by its number where the kernel says it.
pub fn serves(process: u32, connection: u32) -> bool {
    let files = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().filter_map(Result::ok);
    let number = |info: &str| info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse::<u32>().ok();
    files.into_iter().any(|file| std::fs::read_to_string(file.path()).is_ok_and(|info| number(&info) == Some(connection)))
}

/// What is at a path, found and not opened: nobody is asked, and only the way there has to be open to the user of this process.
#[derive(Debug)]
pub struct FoundPath(OwnedFd);

impl FoundPath {
    /// Finds what is at a path.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(FoundPath(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// What the system refuses to the user that this process is now.
    pub fn open(&self) -> io::Result<File> {
        // This link leads to what was found, whatever has become of its name.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
    }
}

/// Opens for reading what has a path, if it is the file or directory of that device and inode number. Nothing else is opened.
///
/// # Errors
/// What the system refuses; that it is another file.
pub fn open_known(path: &Path, (dev, ino): (u64, u64)) -> io::Result<File> {
    let found = FoundPath::at(path)?;
    let stat = FileStat::from(rustix::fs::fstat(&found.0)?);
    if (stat.dev, stat.ino) != (dev, ino) || !(stat.is_file() || stat.is_dir()) {
        return Err(io::Error::other("another file is there now"));
    }
    found.open()
}

/// Opens a device for reading and writing.
///
/// # Errors
/// What the system refuses.
pub fn open_device(path: &str) -> io::Result<File> {
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// Writes a file that the user of a command asked for, in a directory that the user named and that is made if there is none. What has the
/// file's name is replaced if it is a regular file.
///
/// # Errors
/// What the system refuses; something else of that name, a link for one.
pub fn write_output(dir: &Path, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let dir = FileBackend::open(dir)?;
    let file = match dir.create(name, 0o666) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => dir.open(name, true)?,
        made => made?,
    };
    file.set_len(0)?;
    file.write_at(bytes, 0)
}

/// Where root's programs keep what outlives them, and what they could make again.
const ROOT_STATE: &str = "/var/lib";
const ROOT_CACHE: &str = "/var/cache";

/// A directory of the user of this process for what outlives it, made if there is none, and its path: `$XDG_STATE_HOME/b2fuse/NAME`, or
/// `~/.local/state/b2fuse/NAME`; for root `/var/lib/b2fuse/NAME`.
///
/// # Errors
/// What the system refuses; a directory on the way that belongs to somebody else.
pub fn state_dir(name: &str) -> io::Result<(Box<dyn Backend>, PathBuf)> {
    let base = home_of(ROOT_STATE, "XDG_STATE_HOME", ".local/state")?;
    std::fs::create_dir_all(&base)?;
    let dir = inside(&base, name, true, |_| true)?;
    Ok((dir, base.join("b2fuse").join(name)))
}

/// Where programs of the user of this process keep what they could make again: `$XDG_CACHE_HOME`, or `~/.cache`; for root `/var/cache`.
///
/// # Errors
/// None of these is known.
pub fn cache_home() -> io::Result<PathBuf> {
    home_of(ROOT_CACHE, "XDG_CACHE_HOME", ".cache")
}

/// The directory `b2fuse/NAME` in one that [`cache_home`] gave, which nobody but the user of this process can write; made if there is
/// none, if so wanted.
///
/// # Errors
/// What the system refuses; a directory on the way that somebody else owns or may write.
pub fn cache_dir(home: &Path, name: &str, make: bool) -> io::Result<Box<dyn Backend>> {
    if make {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(home)?;
    }
    inside(home, name, make, |stat| stat.mode & 0o022 == 0)
}

/// Opens a directory that the user names for what nobody else may change; made if there is none, with its parents, so that only its owner
/// can use it. Links are followed on the way to it, as in any path, but it is none itself.
///
/// # Errors
/// What the system refuses; a link; that it belongs to somebody else, or that others may write in it.
pub fn private_dir(path: &Path) -> io::Result<Box<dyn Backend>> {
    let (above, name) = match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) if above.as_os_str().is_empty() => (Path::new("."), Some(name)),
        (Some(above), Some(name)) => (above, Some(name)),
        // `/`, `.` or `..`, which no link can be.
        _ => (path, None),
    };
    let dir: Box<dyn Backend> = match name {
        None => Box::new(FileBackend::open(above)?),
        Some(name) => {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
            let above = FileBackend::open(above)?;
            match above.create_dir(name, 0o700) {
                // Another process may have made it just now, and be using it.
                Err(_) if above.stat(name).is_ok() => above.open_dir(name)?,
                made => made?,
            }
        }
    };
    let (stat, me) = (dir.itself()?.stat()?, rustix::process::geteuid().as_raw());
    if stat.uid != me {
        return Err(io::Error::other(format!("it belongs to user {}; expected user {me}", stat.uid)));
    }
    if stat.mode & 0o022 != 0 {
        let mode = stat.mode & 0o7777;
        return Err(io::Error::other(format!("its mode is {mode:04o}; expected that nobody but its owner may write")));
    }
    Ok(dir)
}

fn home_of(root: &str, variable: &str, in_home: &str) -> io::Result<PathBuf> {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    match (rustix::process::geteuid().is_root(), absolute(variable), absolute("HOME")) {
        (true, _, _) => Ok(PathBuf::from(root)),
        (false, Some(named), _) => Ok(named),
        (false, None, Some(home)) => Ok(home.join(in_home)),
        (false, None, None) => Err(io::Error::other(format!("neither {variable} nor HOME is set"))),
    }
}

/// The directory `b2fuse/NAME` below a path, both of which belong to the user of this process.
fn inside(base: &Path, name: &str, make: bool, is_good: fn(&FileStat) -> bool) -> io::Result<Box<dyn Backend>> {
    let me = rustix::process::geteuid().as_raw();
    let mut dir: Box<dyn Backend> = Box::new(FileBackend::open(base)?);
    for part in ["b2fuse", name] {
        let part = OsStr::new(part);
        let made = if make { dir.create_dir(part, 0o700) } else { Err(io::ErrorKind::AlreadyExists.into()) };
        dir = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => dir.open_dir(part)?,
            made => made?,
        };
        let stat = dir.itself()?.stat()?;
        if stat.uid != me {
            return Err(io::Error::other(format!("{} belongs to somebody else", part.display())));
        }
        if !is_good(&stat) {
            return Err(io::Error::other(format!("others may write {}", part.display())));
        }
    }
    Ok(dir)
}
