//! What is mounted where, as the kernel lists it in /proc/self/mountinfo.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::system;

/// File system type of our mounts, as the kernel lists it.
pub const FS_TYPE: &str = "fuse.b2fuse";

/// A flag of mount(2) with the name that mount(8) has for it.
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

/// More of them, which a remount leaves as they are.
const POINT_FLAGS: &[(&str, libc::c_ulong)] = &[("relatime", libc::MS_RELATIME), ("nosymfollow", libc::MS_NOSYMFOLLOW)];

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
                rest = tail.get(3..).unwrap_or_default();
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
///
/// # Errors
/// The list cannot be read.
pub fn mounts() -> io::Result<Vec<MountInfo>> {
    let text = system::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(MountInfo::parse).collect())
}

/// What is mounted, on top of anything else, exactly at `point`.
///
/// # Errors
/// The list cannot be read.
pub fn mounted_at(point: &Path) -> io::Result<Option<MountInfo>> {
    Ok(mounts()?.into_iter().rev().find(|mount| mount.point == point))
}

/// The mount of ours that a file with this device number is in, if there is one.
///
/// # Errors
/// The list cannot be read.
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
}
