//! Mounting and unmounting: mount(2) and umount2(2) where we may, fusermount3 where we may not, and what
//! /proc/self/mountinfo says.
//!
//! fuser could mount by itself, but it unmounts a second time after someone else has unmounted, and takes away what
//! lies below; and it lets a comma in the file system's name become an option. So it gets a device that is mounted already.
//!
//! Nothing here touches a path below a mount of ours.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::descriptors;
use crate::store::in_words;
use crate::store::local::{self, mounts, system};

/// File system type of our mounts, as the kernel lists it.
pub const FS_TYPE: &str = "fuse.b2fuse";

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// The helper finds its end of a socket pair in this variable, and sends the device through it.
const HELPER_SOCKET: &str = "_FUSE_COMMFD";

/// Why something could not be mounted or unmounted, beginning with the path.
#[derive(Debug)]
pub struct MountError {
    path: PathBuf,
    reason: String,
}

impl MountError {
    /// `reason` says what was found and what was expected.
    pub fn new(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        MountError { path: path.into(), reason: reason.into() }
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for MountError {}

/// Who may use a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// The user who mounts.
    #[default]
    Owner,
    /// The user who mounts, and root.
    Root,
    /// Everyone.
    All,
}

/// A flag of mount(2) with the name that mount(8) and fusermount3 have for it.
pub const FLAGS: &[(&str, libc::c_ulong)] = &[
    ("ro", libc::MS_RDONLY),
    ("nosuid", libc::MS_NOSUID),
    ("nodev", libc::MS_NODEV),
    ("noexec", libc::MS_NOEXEC),
    ("sync", libc::MS_SYNCHRONOUS),
    ("dirsync", libc::MS_DIRSYNC),
    ("noatime", libc::MS_NOATIME),
    ("nodiratime", libc::MS_NODIRATIME),
];

/// More of them, for what [`remount`] leaves as it is.
const POINT_FLAGS: &[(&str, libc::c_ulong)] = &[("relatime", libc::MS_RELATIME), ("nosymfollow", libc::MS_NOSYMFOLLOW)];
/// Those of [`FLAGS`] that may differ from one mount point of a file system to another.
pub const REMOUNTED: libc::c_ulong =
    libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_NOATIME | libc::MS_NODIRATIME;

/// What mount(2) needs to know.
#[derive(Debug, Clone)]
pub struct MountRequest {
    /// Where, with no symbolic link in it.
    pub point: PathBuf,
    /// What `df` and `mount` show as the device.
    pub fsname: OsString,
    /// Bits of [`FLAGS`].
    pub flags: libc::c_ulong,
    /// Who may use it.
    pub access: Access,
    /// Unmount even if this process is killed. Done by fusermount3, which then stays.
    pub auto_unmount: bool,
    /// Have the kernel hold everybody to the modes of files. May be off for [`Access::Owner`] alone.
    pub default_permissions: bool,
}

/// A line of /proc/self/mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountInfo {
    /// Given again after an unmount.
    pub id: u64,
    /// Device number as `major:minor`. Given again as well.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// File system type.
    pub fs_type: String,
    /// What is mounted.
    pub source: OsString,
    /// User and group who mounted it, if it is a FUSE mount.
    pub owner: Option<(u32, u32)>,
    /// Bits of mount(2) that hold for this mount point.
    pub flags: libc::c_ulong,
    /// The file system itself takes no writes, whatever holds for this mount point.
    pub read_only: bool,
}

impl MountInfo {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut text = || fields.next();
        let id = std::str::from_utf8(text()?).ok()?.parse().ok()?;
        let _parent = text()?;
        let device = String::from_utf8(text()?.to_vec()).ok()?;
        let _root = text()?;
        let point = PathBuf::from(unescape(text()?));
        let flags = POINT_FLAGS.iter().chain(FLAGS);
        let words: Vec<_> = text()?.split(|byte| *byte == b',').collect();
        let flags = flags.filter(|(name, _)| words.contains(&name.as_bytes())).fold(0, |flags, (_, flag)| flags | flag);
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let fs_type = String::from_utf8(rest.next()?.to_vec()).ok()?;
        let source = unescape(rest.next()?);
        let options = rest.next().unwrap_or_default();
        let number = |name: &[u8]| {
            let value = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(name))?;
            std::str::from_utf8(value).ok()?.parse().ok()
        };
        let owner = number(b"user_id=").zip(number(b"group_id="));
        let read_only = options.split(|byte| *byte == b',').any(|option| option == b"ro");
        Some(MountInfo { id, device, point, fs_type, source, owner, flags, read_only })
    }

    /// The device number, as the kernel has it inside.
    pub fn device_number(&self) -> Option<u32> {
        let (major, minor) = self.device.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        (major < 1 << 12 && minor < 1 << 20).then_some(major << 20 | minor)
    }
}

/// Takes the kernel's octal escapes out of a field of mountinfo.
fn unescape(field: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

/// Everything mounted in this namespace, in order of mounting.
pub fn mounts() -> io::Result<Vec<MountInfo>> {
    let text = system::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(MountInfo::parse).collect())
}

/// What is mounted, on top of anything else, exactly at `point`.
pub fn mounted_at(point: &Path) -> io::Result<Option<MountInfo>> {
    Ok(mounts()?.into_iter().rev().find(|mount| mount.point == point))
}

/// The mount of ours that a file with this device number is in, if there is one.
pub fn mount_with(device: u64) -> io::Result<Option<MountInfo>> {
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    Ok(mounts()?.into_iter().find(|mount| mount.fs_type == FS_TYPE && mount.device == device))
}

/// Whether the kernel keeps a file system of that device number, mounted anywhere or just still used; nothing if it does not say.
pub fn is_alive(device: u32) -> Option<bool> {
    let devices = Path::new("/sys/class/bdi");
    let known = system::exists(&devices.join(format!("{}:{}", device >> 20, device & 0xF_FFFF)));
    (known || system::exists(devices)).then_some(known)
}

/// Has other flags hold for a mount point, of those in [`REMOUNTED`]. What serves the mount hears nothing of it.
///
/// # Errors
/// EBUSY if it is to be read-only and files are open for writing; EPERM to an ordinary user.
pub fn remount(mount: &MountInfo, flags: libc::c_ulong) -> io::Result<()> {
    let flags = flags & REMOUNTED | mount.flags & !REMOUNTED;
    // Else the kernel takes this for no change.
    let accessed = if flags & (libc::MS_RELATIME | libc::MS_NOATIME) == 0 { libc::MS_STRICTATIME } else { 0 };
    let place = mounts::Place::open(&mount.point)?;
    place.mount(OsStr::new("none"), "none", libc::MS_REMOUNT | libc::MS_BIND | accessed | flags, "")
}

/// The real path of a mount point. The mount itself, which may not answer, is not looked at.
pub fn resolve_point(point: &Path) -> io::Result<PathBuf> {
    if let (Some(parent), Some(name)) = (point.parent(), point.file_name()) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let resolved = local::resolve(parent)?.join(name);
        if mounted_at(&resolved)?.is_some() {
            return Ok(resolved);
        }
    }
    // Behind a link, or nothing.
    local::resolve(point)
}

/// A mount that we made. Dropping it does not unmount.
pub struct Mountpoint {
    point: PathBuf,
    /// Which of the mounts of this namespace is ours; `None` if it could not be found out.
    info: Option<MountInfo>,
    /// Its number that is never given again, where the kernel has such (6.8 and later).
    unique: Option<u64>,
    /// fusermount3 unmounts when this is closed.
    _auto_unmount: Option<UnixStream>,
}

impl Mountpoint {
    /// Mounts, and returns the device on which the kernel asks its questions. The first of them, INIT, is there already.
    pub fn mount(request: &MountRequest) -> Result<(Mountpoint, OwnedFd), MountError> {
        // SAFETY: cannot fail, and touches no memory.
        let root = unsafe { libc::geteuid() } == 0;
        if request.auto_unmount && !root && request.access == Access::Owner {
            let reason = format!("auto_unmount needs allow_other or allow_root: {HELPER} may not look into the mount otherwise");
            return Err(MountError::new(&request.point, reason));
        }
        let (device, socket) =
            if root && !request.auto_unmount { (mount_directly(request)?, None) } else { mount_by_helper(request)? };
        let info = mounted_at(&request.point).ok().flatten().filter(|info| info.fs_type == FS_TYPE);
        let unique = mounts::number(&request.point);
        Ok((Mountpoint { point: request.point.clone(), info, unique, _auto_unmount: socket }, device))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The mount's device number, if it could be found out.
    pub fn device_number(&self) -> Option<u32> {
        self.info.as_ref()?.device_number()
    }

    /// Has the kernel read ahead by as much as `bytes` in files of the mount, if we may say so: root may. To be called after INIT,
    /// whose answer can only make less of what the kernel offers.
    pub fn set_read_ahead(&self, bytes: u32) -> io::Result<()> {
        let device = &self.info.as_ref().ok_or(io::ErrorKind::NotFound)?.device;
        system::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), &(bytes / 1024).to_string())
    }

    /// Unmounts. Of a mount that someone else has taken away already nothing is taken, nor of what is mounted there now.
    ///
    /// # Errors
    /// EBUSY if files are open in it, unless `lazy`.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        let Some(ours) = &self.info else { return unmount(&self.point, lazy) };
        let all = mounts()?;
        // It may have been moved, so it is found by what it is and not by where it was.
        // Both numbers are given again at once to the next mount, which another daemon may have made since ours was taken away.
        // It may even be one of the same SOURCE, so what counts is the number that is not given again.
        let is_ours = |mount: &MountInfo| mount.id == ours.id && mount.device == ours.device && mount.source == ours.source;
        let Some(place) = all.iter().position(is_ours) else {
            return Ok(());
        };
        let point = &all[place].point;
        if all[place + 1..].iter().any(|mount| mount.point == *point) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        if self.unique.is_some() && mounts::number(point) != self.unique {
            return Ok(());
        }
        unmount(point, lazy)
    }
}

/// Unmounts what is on top at `point`.
///
/// # Errors
/// EBUSY if files are open in it, unless `lazy`; what fusermount3 says, for an ordinary user.
pub fn unmount(point: &Path, lazy: bool) -> io::Result<()> {
    match mounts::unmount(point, lazy) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
        done => return done,
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(point).stdin(Stdio::null());
    descriptors::lower_for(&mut command);
    let output =
        command.output().map_err(|error| io::Error::new(error.kind(), format!("cannot run {HELPER}: {}", in_words(&error))))?;
    if output.status.success() {
        return Ok(());
    }
    let said = one_line(&output.stderr);
    if said.contains("busy") { Err(io::Error::from_raw_os_error(libc::EBUSY)) } else { Err(io::Error::other(said)) }
}

fn mount_directly(request: &MountRequest) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::EPERM) => MountError::new(&request.point, "cannot mount: not permitted (CAP_SYS_ADMIN is needed)"),
        Some(libc::ENODEV) => MountError::new(&request.point, "cannot mount: the kernel has no FUSE (try modprobe fuse)"),
        _ => MountError::new(&request.point, format!("cannot mount: {}", in_words(&error))),
    };
    let device = open_device()?;
    let place = mounts::Place::open(&request.point).map_err(failed)?;
    let mode = place.stat().map_err(failed)?.mode & libc::S_IFMT;
    // SAFETY: neither call can fail or touches memory.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut data = format!("fd={},rootmode={mode:o},user_id={uid},group_id={gid}", device.as_raw_fd());
    if request.access != Access::Owner {
        data.push_str(",allow_other");
    }
    if request.default_permissions {
        data.push_str(",default_permissions");
    }
    place.mount(&request.fsname, FS_TYPE, request.flags, &data).map_err(failed)?;
    Ok(device)
}

fn open_device() -> Result<OwnedFd, MountError> {
    system::open_device(DEVICE).map(OwnedFd::from).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            MountError::new(DEVICE, "not there: the kernel's FUSE module is needed (try modprobe fuse)")
        }
        _ => MountError::new(DEVICE, format!("cannot open: {}", in_words(&error))),
    })
}

/// Has fusermount3 mount. It answers with the device, sent over a socket; with `auto_unmount` it stays until that is closed.
fn mount_by_helper(request: &MountRequest) -> Result<(OwnedFd, Option<UnixStream>), MountError> {
    let failed = |reason: String| MountError::new(&request.point, format!("cannot mount: {reason}"));
    if !matches!(local::stat(Path::new(DEVICE)), Ok(Some(_))) {
        open_device()?;
    }
    let (ours, theirs) = UnixStream::pair().map_err(|error| failed(in_words(&error)))?;
    let socket = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(helper_options(request)).arg("--").arg(&request.point);
    command.env(HELPER_SOCKET, socket.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    descriptors::lower_for(&mut command);
    // SAFETY: fcntl(2) may be called between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::fcntl(socket, libc::F_SETFD, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        })
    };
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failed(format!("{HELPER} is not installed (package fuse3), and only root can do without")),
        _ => failed(format!("cannot run {HELPER}: {}", in_words(&error))),
    })?;
    drop(theirs);
    match receive_fd(&ours) {
        Ok(Some(device)) if request.auto_unmount => {
            reap_later(child);
            Ok((device, Some(ours)))
        }
        Ok(Some(device)) => {
            let _ = child.wait();
            Ok((device, None))
        }
        Ok(None) => {
            let mut said = Vec::new();
            let _ = child.stderr.take().map(|mut stderr| stderr.read_to_end(&mut said));
            let _ = child.wait();
            Err(failed(one_line(&said)))
        }
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(failed(format!("no device from {HELPER}: {}", in_words(&error))))
        }
    }
}

/// A helper that stays must not stay as a zombie.
fn reap_later(mut child: Child) {
    let _ = std::thread::Builder::new().name("b2fuse-helper".into()).spawn(move || {
        let mut said = Vec::new();
        let _ = child.stderr.take().map(|mut stderr| stderr.read_to_end(&mut said));
        let _ = child.wait();
    });
}

/// The `-o` of fusermount3. It takes a backslash before what would end an option, in `fsname` only.
fn helper_options(request: &MountRequest) -> OsString {
    let mut options = Vec::from(b"subtype=b2fuse,fsname=");
    for byte in request.fsname.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            options.push(b'\\');
        }
        options.push(*byte);
    }
    let mut word = |word: &str| {
        options.push(b',');
        options.extend_from_slice(word.as_bytes());
    };
    for (name, _) in FLAGS.iter().filter(|(_, flag)| request.flags & flag != 0) {
        word(name);
    }
    if request.default_permissions {
        word("default_permissions");
    }
    if request.access != Access::Owner {
        word("allow_other");
    }
    if request.auto_unmount {
        word("auto_unmount");
    }
    OsString::from_vec(options)
}

/// Waits for a file descriptor; `None` if the other side closes without sending one.
fn receive_fd(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0_u8; 1];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let mut control = [0_u64; 8];
    // SAFETY: a msghdr of zeros is a valid one, and is made to point at buffers that outlive the calls.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let received = loop {
            let received = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
            if received >= 0 {
                break received;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if received == 0 {
            return Ok(None);
        }
        if header.is_null() || (*header).cmsg_level != libc::SOL_SOCKET || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::Error::other("its answer holds none"));
        }
        let fd = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
        Ok(Some(OwnedFd::from_raw_fd(fd)))
    }
}

/// What a helper said, fit to end a line of ours.
fn one_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    if line.is_empty() { format!("{HELPER} failed without a word") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_line() {
        let line = b"36 35 98:1 /mnt1 /mnt/a\\040b\\134 rw,noatime master:1 shared:2 - fuse.b2fuse /data/x,y\\040z.b2frame rw,user_id=7,group_id=8";
        let info = MountInfo::parse(line).unwrap();
        assert_eq!((info.id, info.device.as_str(), info.fs_type.as_str()), (36, "98:1", FS_TYPE));
        assert_eq!(info.point, Path::new("/mnt/a b\\"));
        assert_eq!(info.source, "/data/x,y z.b2frame");
        assert_eq!((info.flags, info.read_only), (libc::MS_NOATIME, false));
        assert_eq!((info.owner, info.device_number()), (Some((7, 8)), Some(98 << 20 | 1)));
        assert_eq!(MountInfo::parse(b"36 35 98:0 / /mnt rw"), None);
        assert_eq!(MountInfo::parse(b""), None);
    }

    #[test]
    fn this_namespace_has_a_root() {
        assert!(mounted_at(Path::new("/")).unwrap().is_some());
    }

    #[test]
    fn a_comma_in_the_name_is_no_option() {
        let request = MountRequest {
            point: "/mnt".into(),
            fsname: "/a,suid\\b".into(),
            flags: libc::MS_RDONLY | libc::MS_NODEV,
            access: Access::Root,
            auto_unmount: true,
            default_permissions: true,
        };
        let options = helper_options(&request);
        let expected = r"subtype=b2fuse,fsname=/a\,suid\\b,ro,nodev,default_permissions,allow_other,auto_unmount";
        assert_eq!(options, expected);
    }

    #[test]
    fn a_descriptor_comes_through_or_does_not() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_fd(&ours).unwrap().is_none());
    }
}
