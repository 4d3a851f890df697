//! Mounting and unmounting: mount(2) and umount2(2) where we may, fusermount3 where we may not, and what
//! /proc/self/mountinfo says.
//!
//! fuser could mount by itself, but it unmounts a second time after someone else has unmounted, and takes away what
//! lies below; and it lets a comma in the file system's name become an option. So it gets a device that is mounted already.
//!
//! Nothing here touches a path below a mount of ours.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::io::retry_on_intr;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{geteuid, getgid, getuid};

use crate::store::in_words;
use crate::store::local::descriptors;
pub use crate::store::local::mountinfo::{FLAGS, FS_TYPE, MountInfo, is_alive, mount_with, mounted_at, mounts};
use crate::store::local::{self, mounts, system};

/// The device of FUSE.
pub(super) const DEVICE: &str = "/dev/fuse";
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

impl MountRequest {
    /// Options that the kernel and fusermount3 have the same words for.
    fn words(&self) -> impl Iterator<Item = &'static str> {
        let permissions = self.default_permissions.then_some("default_permissions");
        permissions.into_iter().chain((self.access != Access::Owner).then_some("allow_other"))
    }
}

/// Has other flags hold for a mount point, of those in [`REMOUNTED`]. What serves the mount hears nothing of it.
///
/// # Errors
/// EBUSY if it is to be read-only and files are open for writing; EPERM to an ordinary user.
pub fn remount(mount: &MountInfo, flags: libc::c_ulong) -> io::Result<()> {
    let flags = flags & REMOUNTED | mount.flags & !REMOUNTED;
    // Else the kernel takes this for no change.
    let accessed = if flags & (libc::MS_RELATIME | libc::MS_NOATIME) == 0 { libc::MS_STRICTATIME } else { 0 };
    let place = mounts::MountPlace::open(&mount.point)?;
    place.mount(OsStr::new("none"), "none", libc::MS_REMOUNT | libc::MS_BIND | accessed | flags, "")
}

/// The real path of a mount point. The mount itself, which may not answer, is not looked at.
///
/// # Errors
/// What the system refuses; no directory that could be looked at.
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
    auto_unmount: Option<UnixStream>,
}

impl Mountpoint {
    /// Mounts, and returns the device on which the kernel asks its questions. The first of them, INIT, is there already.
    ///
    /// # Errors
    /// Why it cannot be mounted, in words for the user.
    pub fn mount(request: &MountRequest) -> Result<(Mountpoint, OwnedFd), MountError> {
        let root = geteuid().is_root();
        if request.auto_unmount && !root && request.access == Access::Owner {
            let reason = format!("auto_unmount needs allow_other or allow_root: otherwise {HELPER} has no access to the mount");
            return Err(MountError::new(&request.point, reason));
        }
        let (device, socket) =
            if root && !request.auto_unmount { (mount_directly(request)?, None) } else { mount_by_helper(request)? };
        let info = mounted_at(&request.point).ok().flatten().filter(|info| info.fs_type == FS_TYPE);
        let unique = mounts::number(&request.point);
        Ok((Mountpoint { point: request.point.clone(), info, unique, auto_unmount: socket }, device))
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
    ///
    /// # Errors
    /// What the system refuses.
    pub fn set_read_ahead(&self, bytes: u32) -> io::Result<()> {
        let device = &self.info.as_ref().ok_or(io::ErrorKind::NotFound)?.device;
        system::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), &(bytes / 1024).to_string())
    }

    /// What has fusermount3 unmount, if it does, when all copies are closed.
    pub(super) fn auto_unmount(&self) -> Option<OwnedFd> {
        self.auto_unmount.as_ref()?.as_fd().try_clone_to_owned().ok()
    }

    /// The file that ends the mount's connection when it is written to, if the kernel shows it and we may write to it. While it is open
    /// it stays this mount's: another mount may get the number, and not this file.
    pub(super) fn open_abort(&self) -> Option<File> {
        let number = self.device_number()?;
        let minor = number & 0xF_FFFF;
        system::open_to_write(format!("/sys/fs/fuse/connections/{minor}/abort")).ok()
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
        let mut from = all.iter().skip_while(|mount| !is_ours(mount));
        let Some(MountInfo { point, .. }) = from.next() else { return Ok(()) };
        if from.any(|mount| mount.point == *point) {
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
    let place = mounts::MountPlace::open(&request.point).map_err(failed)?;
    let mode = place.stat().map_err(failed)?.mode & libc::S_IFMT;
    let (uid, gid) = (getuid().as_raw(), getgid().as_raw());
    let mut data = format!("fd={},rootmode={mode:o},user_id={uid},group_id={gid}", device.as_raw_fd());
    request.words().for_each(|word| data.extend([",", word]));
    place.mount(&request.fsname, FS_TYPE, request.flags, &data).map_err(failed)?;
    Ok(device)
}

fn open_device() -> Result<OwnedFd, MountError> {
    system::open_device(DEVICE).map(OwnedFd::from).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::new(
            DEVICE,
            "is not there; FUSE is needed (modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN)",
        ),
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
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(helper_options(request)).arg("--").arg(&request.point);
    // Its standard input, which it does not read otherwise: a descriptor that no other program inherits.
    command.env(HELPER_SOCKET, "0").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    descriptors::lower_for(&mut command);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => failed(format!("{HELPER} is not installed (package fuse3); only root can mount without it")),
        _ => failed(format!("cannot run {HELPER}: {}", in_words(&error))),
    })?;
    // It holds the socket.
    drop(command);
    let device = receive_fd(&ours);
    if request.auto_unmount
        && let Ok(Some(device)) = device
    {
        // A helper that stays must not stay as a zombie.
        let _ = std::thread::Builder::new().name("b2fuse-helper".into()).spawn(|| last_words(child));
        return Ok((device, Some(ours)));
    }
    if device.is_err() {
        let _ = child.kill();
    }
    let said = last_words(child);
    match device {
        Ok(Some(device)) => Ok((device, None)),
        Ok(None) => Err(failed(one_line(&said))),
        Err(error) => Err(failed(format!("{HELPER} returned no FUSE device: {}", in_words(&error)))),
    }
}

/// Waits for a helper to end, and returns what it printed.
fn last_words(mut child: Child) -> Vec<u8> {
    let mut said = Vec::new();
    let _ = child.stderr.take().map(|mut stderr| stderr.read_to_end(&mut said));
    let _ = child.wait();
    said
}

/// The `-o` of fusermount3. It takes a backslash before what would end an option, in `fsname` only.
fn helper_options(request: &MountRequest) -> OsString {
    let mut options = Vec::from(b"subtype=b2fuse,fsname=");
    for byte in request.fsname.as_bytes() {
        options.extend(matches!(byte, b',' | b'\\').then_some(b'\\'));
        options.push(*byte);
    }
    let flags = FLAGS.iter().filter(|(_, flag)| request.flags & flag != 0).map(|(name, _)| *name);
    for word in flags.chain(request.words()).chain(request.auto_unmount.then_some("auto_unmount")) {
        options.push(b',');
        options.extend_from_slice(word.as_bytes());
    }
    OsString::from_vec(options)
}

/// Waits for a file descriptor; `None` if the other side closes without sending one.
fn receive_fd(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut byte, mut control) = ([0], RecvAncillaryBuffer::new(&mut space));
    let mut receive = || recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let received = retry_on_intr(&mut receive)?.bytes;
    let device = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut devices) => devices.next(),
        _ => None,
    });
    if device.is_none() && received > 0 { Err(io::Error::other("its reply holds no descriptor")) } else { Ok(device) }
}

/// What a helper said, fit to end a line of ours.
fn one_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    if line.is_empty() { format!("{HELPER} failed without an error message") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

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
