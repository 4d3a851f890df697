//! The `-o` of mount(8) and fstab.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use log::LevelFilter;
use rustix::process::geteuid;

#[cfg(feature = "remote")]
use super::remote_args;
use super::users::{group_number, user_number};
use super::values::{parts, seconds, split};
use super::{hints, wait};
use crate::format::npy::ItemType;
use crate::fs::kernel::{Access, FLAGS, REMOUNTED};
use crate::fs::session::Overrides;
#[cfg(feature = "remote")]
use crate::store::remote;
use crate::view::Show;

impl ValueEnum for Show {
    fn value_variants<'a>() -> &'a [Self] {
        &[Show::Other, Show::Sparse, Show::Contiguous, Show::Npy, Show::Raw]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Show::Other => ("other", "The layout that SOURCE does not have"),
            Show::Sparse => ("sparse", "A directory with a file for each chunk"),
            Show::Contiguous => ("contiguous", "One file"),
            Show::Npy => ("npy", "An array decompressed, as a file of NumPy's"),
            Show::Raw => ("raw", "The data of any frame decompressed"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// Where decoded blocks are kept that find no room in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SpillTo {
    /// Nowhere.
    Nothing,
    /// In a file without a name, in a directory.
    Dir(PathBuf),
}

impl From<&OsStr> for SpillTo {
    fn from(value: &OsStr) -> Self {
        if value == "none" { SpillTo::Nothing } else { SpillTo::Dir(value.into()) }
    }
}

/// What is said of a mount of a whole directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TreeOptions {
    /// What names of frames end in.
    pub(super) suffixes: Option<Vec<String>>,
    /// Patterns of paths that are frames.
    pub(super) frames: Vec<String>,
    /// Patterns of paths that are none.
    pub(super) noframes: Vec<String>,
    /// Other file systems in it are shown.
    pub(super) cross: bool,
    /// Archives of Python-Blosc2 are shown as directories.
    pub(super) archives: bool,
    pub(super) entry_timeout: Option<Duration>,
    pub(super) attr_timeout: Option<Duration>,
}

/// What `-o` says, the last word on each thing counting. Long options of the command line have the same effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) flags: libc::c_ulong,
    pub(super) access: Access,
    pub(super) auto_unmount: bool,
    pub(super) default_permissions: bool,
    pub(super) fsname: Option<OsString>,
    overrides: Overrides,
    pub(super) create: bool,
    pub(super) locking: bool,
    pub(super) follow_links: bool,
    pub(super) xattrs: bool,
    pub(super) low_latency: bool,
    pub(super) cache_size: Option<u64>,
    pub(super) threads: Option<usize>,
    pub(super) log_file: Option<PathBuf>,
    /// How long a daemon that is ending is waited for.
    pub(super) wait: Duration,
    pub(super) log_level: Option<LevelFilter>,
    pub(super) show: Option<Show>,
    /// What the items of arrays are that do not say it.
    pub(super) dtype: Option<ItemType>,
    /// Where decoded blocks go that find no room in memory.
    pub(super) spill: Option<SpillTo>,
    /// For a directory of frames.
    pub(super) tree: TreeOptions,
    /// For a frame at a URL.
    #[cfg(feature = "remote")]
    pub(super) remote: remote::Access,
    /// Where chunks of remote frames are kept, as `DIR[:SIZE]`.
    pub(super) disk_cache: Option<OsString>,
    /// The names of the words that are only for a frame at a URL.
    pub(super) for_urls: Vec<String>,
    /// `rw` was said, and `ro` not after it.
    pub(super) read_write: bool,
    /// Change what is mounted already.
    pub(super) remount: bool,
    /// Permission bits that nothing has, where neither of [`Overrides`] says anything else.
    umask: Option<u32>,
    /// What [`Options::remount`] cannot change.
    pub(super) of_daemon: Vec<String>,
    /// A word of the kernel's, which mount(8) finds in its list of mounts.
    of_kernel: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            flags: libc::MS_NOSUID | libc::MS_NODEV,
            access: Access::Owner,
            auto_unmount: false,
            default_permissions: true,
            fsname: None,
            overrides: Overrides::default(),
            create: false,
            locking: false,
            follow_links: false,
            xattrs: true,
            low_latency: false,
            cache_size: None,
            threads: None,
            log_file: None,
            wait: wait::PATIENCE,
            log_level: None,
            show: None,
            dtype: None,
            spill: None,
            tree: TreeOptions::default(),
            #[cfg(feature = "remote")]
            remote: remote::Access::default(),
            disk_cache: None,
            for_urls: Vec::new(),
            read_write: false,
            remount: false,
            umask: None,
            of_daemon: Vec::new(),
            of_kernel: None,
        }
    }
}

/// Words for mount(8) or the boot, which a mount itself need not know; and what is the case anyway.
const IGNORED: &[&str] = &[
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "defaults",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "async",
    "loud",
];
/// Words that take a flag back.
const POSITIVE: &[(&str, libc::c_ulong)] = &[
    ("rw", libc::MS_RDONLY),
    ("suid", libc::MS_NOSUID),
    ("dev", libc::MS_NODEV),
    ("exec", libc::MS_NOEXEC),
    ("async", libc::MS_SYNCHRONOUS),
    ("atime", libc::MS_NOATIME),
    ("diratime", libc::MS_NODIRATIME),
];

impl Options {
    /// Adds the words of one `-o`.
    ///
    /// # Errors
    /// What is wrong with a word, naming it.
    pub(super) fn add(&mut self, list: &OsStr) -> Result<(), String> {
        for word in split(list.as_bytes()) {
            self.word(&word)?;
        }
        Ok(())
    }

    /// The same words, on top of flags that hold already.
    pub(super) fn on_top_of(&self, flags: libc::c_ulong, lists: &[OsString]) -> Self {
        let mut options = Options { flags, ..Options::default() };
        // They were right before.
        let _ = lists.iter().try_for_each(|list| options.add(list));
        options
    }

    /// What is shown instead of SOURCE's own attributes.
    pub(super) fn overrides(&self) -> Overrides {
        let Overrides { dmask, fmask, .. } = self.overrides;
        Overrides { dmask: dmask.or(self.umask), fmask: fmask.or(self.umask), ..self.overrides }
    }

    /// Whether access lists are shown, which the kernel then enforces with the modes. They need extended attributes, and name users who
    /// are others if the files' owner or mode is not SOURCE's.
    pub(super) fn shows_lists(&self) -> bool {
        let own = self.overrides() == Overrides::default() && self.access != Access::Root;
        own && self.default_permissions && self.xattrs
    }

    /// What is wrong with the words taken together.
    pub(super) fn conflict(&self) -> Result<(), String> {
        if let (Some(word), false) = (&self.of_kernel, self.remount) {
            return Err(format!("mount option '{word}' is set by the kernel, not by users"));
        }
        let others = match self.access {
            Access::Owner => return Ok(()),
            Access::Root => "allow_root",
            Access::All => "allow_other",
        };
        if !self.default_permissions {
            return Err(format!("mount option 'nodefault_permissions' cannot be used with '{others}'"));
        }
        if self.access == Access::Root && self.overrides.uid.is_some_and(|uid| uid != geteuid().as_raw()) {
            return Err(
                "mount option 'uid' cannot be used with 'allow_root', which makes all files belong to the user who mounts".into(),
            );
        }
        Ok(())
    }

    fn word(&mut self, word: &[u8]) -> Result<(), String> {
        let shown = String::from_utf8_lossy(word);
        let (name, value) = parts(word);
        let unknown = || format!("unknown mount option '{shown}'{}", hints::of(&shown));
        let name = str::from_utf8(name).map_err(|_| unknown())?;
        let flag = |list: &[(&str, libc::c_ulong)]| list.iter().find(|(known, _)| *known == name).map(|(_, flag)| *flag);
        #[cfg(feature = "remote")]
        if let Some(taken) = remote_args::take(&mut self.remote, name, value) {
            self.of_daemon.push(name.to_owned());
            self.for_urls.push(name.to_owned());
            return taken;
        }
        match (flag(POSITIVE), flag(FLAGS)) {
            (None, None) => {}
            _ if value.is_some() => return Err(format!("mount option '{shown}': '{name}' takes no value")),
            (Some(flag), _) => {
                self.flags &= !flag;
                self.read_write |= name == "rw";
                return Ok(());
            }
            (None, Some(flag)) => {
                self.flags |= flag;
                self.read_write &= name != "ro";
                if flag & !REMOUNTED != 0 {
                    self.of_daemon.push(shown.into());
                }
                return Ok(());
            }
        }
        let text = || {
            let value = value.filter(|value| !value.is_empty()).ok_or(format!("mount option '{name}' needs a value"))?;
            str::from_utf8(value).map_err(|_| format!("mount option '{shown}': the value is not UTF-8 text"))
        };
        let wrong = |expected: &str| format!("mount option '{shown}': {expected}");
        let mask = || {
            let mask = u32::from_str_radix(text()?, 8).ok().filter(|mask| *mask <= 0o777);
            mask.ok_or_else(|| wrong("expected an octal number up to 777"))
        };
        match (name, value) {
            ("allow_other", None) => self.access = Access::All,
            ("default_permissions", None) => self.default_permissions = true,
            ("subtype", _) if text()? == "b2fuse" => {}
            ("fsname", Some(value)) => self.fsname = Some(OsString::from_vec(value.to_vec())),
            ("remount", None) => self.remount = true,
            ("user_id" | "group_id" | "rootmode" | "max_read" | "blksize", Some(_)) => self.of_kernel = Some(shown.into()),
            ("wait", _) => {
                let seconds: u32 = text()?.parse().map_err(|_| wrong("expected a number of seconds"))?;
                self.wait = Duration::from_secs(seconds.into());
            }
            (name, None) if name.is_empty() || IGNORED.contains(&name) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") || name == "comment" => {}
            _ => {
                match (name, value) {
                    ("allow_root", None) => self.access = Access::Root,
                    ("auto_unmount", None) => self.auto_unmount = true,
                    ("nodefault_permissions", None) => self.default_permissions = false,
                    ("create", None) => self.create = true,
                    ("locking", None) => self.locking = true,
                    ("follow_links", None) => self.follow_links = true,
                    ("user_xattr", None) => self.xattrs = true,
                    ("nouser_xattr", None) => self.xattrs = false,
                    ("suffixes", _) => {
                        let suffixes: Vec<String> = text()?.split(':').map(str::to_owned).collect();
                        if suffixes.iter().any(|suffix| suffix.is_empty() || suffix.contains('/')) {
                            return Err(wrong("expected suffixes of names, separated by colons"));
                        }
                        self.tree.suffixes = Some(suffixes);
                    }
                    ("frames", _) => self.tree.frames.push(text()?.to_owned()),
                    ("noframes", _) => self.tree.noframes.push(text()?.to_owned()),
                    ("b2z", _) => {
                        self.tree.archives = match text()? {
                            "dir" => true,
                            "file" => false,
                            _ => return Err(wrong("expected dir or file")),
                        }
                    }
                    ("cross", None) => self.tree.cross = true,
                    ("entry_timeout", _) => {
                        self.tree.entry_timeout = Some(seconds(text()?).map_err(|expected| wrong(&expected))?)
                    }
                    ("attr_timeout", _) => self.tree.attr_timeout = Some(seconds(text()?).map_err(|expected| wrong(&expected))?),
                    ("low_latency", None) => self.low_latency = true,
                    ("uid", _) => {
                        let uid = user_number(text()?).ok_or_else(|| wrong("expected a user's name or number"))?;
                        self.overrides.uid = Some(uid);
                    }
                    ("gid", _) => {
                        let gid = group_number(text()?).ok_or_else(|| wrong("expected a group's name or number"))?;
                        self.overrides.gid = Some(gid);
                    }
                    ("umask", _) => self.umask = Some(mask()?),
                    ("dmask", _) => self.overrides.dmask = Some(mask()?),
                    ("fmask", _) => self.overrides.fmask = Some(mask()?),
                    ("cache_size", _) => self.cache_size = Some(size(text()?).map_err(|expected| wrong(&expected))?),
                    ("threads", _) => self.threads = Some(threads(text()?).map_err(|expected| wrong(&expected))?),
                    ("log_file", Some(value)) if !value.is_empty() => self.log_file = Some(OsStr::from_bytes(value).into()),
                    ("show", _) => {
                        let show =
                            Show::from_str(text()?, true).map_err(|_| wrong("expected other, sparse, contiguous, npy or raw"))?;
                        self.show = Some(show);
                    }
                    ("dtype", _) => {
                        let dtype = ItemType::parse(text()?);
                        self.dtype = Some(dtype.map_err(|_| wrong("expected an item type of NumPy's, such as <f4"))?);
                    }
                    ("spill", Some(value)) if !value.is_empty() => self.spill = Some(OsStr::from_bytes(value).into()),
                    ("disk_cache", Some(value)) if !value.is_empty() => {
                        self.disk_cache = Some(OsStr::from_bytes(value).to_owned());
                        self.for_urls.push(name.to_owned());
                    }
                    ("spill" | "disk_cache", _) => return Err(format!("mount option '{name}' needs a value")),
                    ("log_level", _) => {
                        let level = text()?.parse().map_err(|_| wrong("expected error, warn, info, debug or trace"))?;
                        self.log_level = Some(level);
                    }
                    _ => return Err(unknown()),
                }
                self.of_daemon.push(shown.into());
            }
        }
        Ok(())
    }
}

/// A number of bytes: `1048576`, `1024K`, `1M`, `1G`, `1T`.
///
/// # Errors
/// What was expected.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        Some(b't' | b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number.and_then(|number| number.checked_mul(1 << shift)).ok_or_else(|| "expected a size such as 256M".into())
}

/// The least that a cache on disk is good for, in bytes.
#[cfg(any(test, feature = "remote"))]
const LEAST_ON_DISK: u64 = 1 << 20;

/// Where what is read from afar is kept, and how much of it: `DIR` or `DIR:SIZE`. What follows the last colon is a size unless it has a
/// slash, so a directory with a colon in its last name is written with a slash behind it.
///
/// # Errors
/// What was expected.
#[cfg(any(test, feature = "remote"))]
pub(super) fn parse_disk_cache(text: &OsStr) -> Result<(PathBuf, Option<u64>), String> {
    let bytes = text.as_bytes();
    let mut parts = bytes.rsplitn(2, |byte| *byte == b':');
    let (dir, most) = match (parts.next(), parts.next()) {
        (Some(last), Some(dir)) if !last.contains(&b'/') => (dir, Some(size(&String::from_utf8_lossy(last))?)),
        _ => (bytes, None),
    };
    if dir.is_empty() {
        return Err("expected a directory, as in DIR or DIR:20G".into());
    }
    if most.is_some_and(|most| most < LEAST_ON_DISK) {
        return Err("expected a size of at least 1M".into());
    }
    Ok((OsStr::from_bytes(dir).into(), most))
}

/// Levels of messages.
pub(super) fn levels() -> impl TypedValueParser<Value = LevelFilter> {
    let levels = ["error", "warn", "info", "debug", "trace"].map(PossibleValue::new);
    let levels = levels.into_iter().chain([PossibleValue::new("off").hide(true)]);
    PossibleValuesParser::new(levels).try_map(|level| level.parse::<LevelFilter>())
}

/// A number of event loops.
///
/// # Errors
/// What was expected.
pub(super) fn threads(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|threads| (1..=64).contains(threads)).ok_or_else(|| "expected a number from 1 to 64".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &str) -> Result<Options, String> {
        let mut options = Options::default();
        options.add(list.as_ref())?;
        Ok(options)
    }

    #[test]
    fn words_of_fstab() {
        assert_eq!(parse("defaults,noauto,user,nofail,_netdev,x-systemd.automount,x-a=b,").unwrap(), Options::default());
        assert_eq!(parse("ro").unwrap().flags, libc::MS_NOSUID | libc::MS_NODEV | libc::MS_RDONLY);
        assert_eq!(parse("ro,noatime,rw").unwrap().flags, libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOATIME);
        assert_eq!(parse("dev,suid,noexec").unwrap().flags, libc::MS_NOEXEC);
        assert!(!parse("").unwrap().tree.archives && parse("b2z=dir").unwrap().tree.archives);
        assert!(!parse("b2z=dir,b2z=file").unwrap().tree.archives);
        for word in ["b2z", "b2z=", "b2z=Dir", "b2z=yes", "nob2z"] {
            assert!(parse(word).unwrap_err().contains(word.trim_end_matches('=')), "{word}");
        }
        assert_eq!(parse("allow_root").unwrap().access, Access::Root);
        let options = parse("uid=1000,gid=100,umask=022,allow_other,auto_unmount,cache_size=1G,threads=3,create").unwrap();
        let overrides = Overrides { uid: Some(1000), gid: Some(100), dmask: Some(0o022), fmask: Some(0o022) };
        assert_eq!(options.overrides(), overrides);
        let masks = |list: &str| parse(list).map(|options| (options.overrides().dmask, options.overrides().fmask)).unwrap();
        assert_eq!(masks("fmask=177,umask=27"), (Some(0o27), Some(0o177)));
        assert_eq!(masks("umask=27,dmask=0"), (Some(0), Some(0o27)));
        assert_eq!(masks("dmask=0"), (Some(0), None));
        assert_eq!(parse("lazytime,nolazytime,strictatime").unwrap(), Options::default());
        assert_eq!(
            parse("uid=root,gid=root").unwrap().overrides(),
            Overrides { uid: Some(0), gid: Some(0), ..Overrides::default() }
        );
        assert_eq!(parse("log_level=debug").unwrap().log_level, Some(LevelFilter::Debug));
        assert_eq!((options.access, options.auto_unmount, options.create), (Access::All, true, true));
        assert_eq!((options.cache_size, options.threads), (Some(1 << 30), Some(3)));
        assert!(parse("rw").unwrap().default_permissions);
        assert!(!parse("default_permissions,nodefault_permissions").unwrap().default_permissions);
        assert!(parse("nodefault_permissions,default_permissions").unwrap().default_permissions);
        assert!(parse("low_latency").unwrap().low_latency && !parse("").unwrap().low_latency);
        assert_eq!((parse("wait=5").unwrap().wait, parse("").unwrap().wait), (Duration::from_secs(5), wait::PATIENCE));
        assert!(!parse("nouser_xattr").unwrap().xattrs && parse("nouser_xattr,user_xattr").unwrap().xattrs);
    }

    #[test]
    fn a_comma_may_be_part_of_a_name() {
        let options = parse(r"fsname=/a\,suid\\b,ro").unwrap();
        assert_eq!(options.fsname.unwrap(), r"/a,suid\b");
        assert_eq!(options.flags & libc::MS_RDONLY, libc::MS_RDONLY);
        assert_ne!(options.flags & libc::MS_NOSUID, 0);
    }

    #[test]
    fn words_of_a_remount() {
        // As mount(8) finds them in its list of mounts.
        let list = "ro,nosuid,nodev,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other";
        let options = parse(list).unwrap();
        assert!(options.remount && options.of_daemon.is_empty() && options.conflict().is_ok());
        assert!(parse("user_id=0").unwrap().conflict().unwrap_err().contains("user_id=0"));
        let lists = ["remount,ro,exec,cache_size=1G".into(), "uid=7".into()];
        let mut options = Options::default();
        lists.iter().for_each(|list: &OsString| options.add(list).unwrap());
        assert_eq!(options.of_daemon, ["cache_size=1G", "uid=7"]);
        let flags = options.on_top_of(libc::MS_NOEXEC | libc::MS_NOATIME, &lists).flags;
        assert_eq!(flags, libc::MS_RDONLY | libc::MS_NOATIME, "what is not named stays");
    }

    #[test]
    fn wrong_words_are_named() {
        for (word, expected) in [
            ("nonsense", "unknown mount option 'nonsense'"),
            ("readonly", "unknown mount option 'readonly'; did you mean 'ro'?"),
            ("allow-other", "unknown mount option 'allow-other'; did you mean 'allow_other'?"),
            ("ro=1", "mount option 'ro=1': 'ro' takes no value"),
            ("uid", "mount option 'uid' needs a value"),
            ("uid=no one", "mount option 'uid=no one': expected a user's name or number"),
            ("gid=-1", "mount option 'gid=-1': expected a group's name or number"),
            ("uid=4294967295", "mount option 'uid=4294967295': expected a user's name or number"),
            ("log_level=loud", "mount option 'log_level=loud': expected error, warn, info, debug or trace"),
            ("umask=8", "mount option 'umask=8': expected an octal number up to 777"),
            ("umask=7777", "mount option 'umask=7777': expected an octal number up to 777"),
            ("subtype=ext4", "unknown mount option 'subtype=ext4'"),
            ("cache_size=-1", "mount option 'cache_size=-1': expected a size such as 256M"),
            ("wait=soon", "mount option 'wait=soon': expected a number of seconds"),
            ("threads=0", "mount option 'threads=0': expected a number from 1 to 64"),
        ] {
            assert_eq!(parse(&format!("ro,{word},rw")).unwrap_err(), expected);
        }
    }

    #[test]
    fn words_that_cannot_stand_together() {
        let conflict = |list: &str| parse(list).unwrap().conflict();
        for others in ["allow_other", "allow_root"] {
            assert!(conflict(&format!("{others},nodefault_permissions")).unwrap_err().contains(others));
            assert!(conflict(&format!("nodefault_permissions,{others}")).is_err());
            assert_eq!(conflict(&format!("nodefault_permissions,{others},default_permissions")), Ok(()));
        }
        assert_eq!(conflict("nodefault_permissions"), Ok(()));
        let own = geteuid().as_raw();
        assert!(conflict(&format!("allow_root,uid={}", own + 1)).is_err());
        assert!(conflict(&format!("uid={},allow_root", own + 1)).is_err());
        assert_eq!(conflict(&format!("allow_root,uid={own},gid={},umask=0", own + 1)), Ok(()));
        assert_eq!(conflict(&format!("allow_other,uid={}", own + 1)), Ok(()));
    }

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("256M", 256 << 20), ("1k", 1024), ("2G", 2 << 30), ("3t", 3 << 40), ("1T", 1 << 40)]
        {
            assert_eq!(size(text), Ok(bytes));
        }
        for text in ["", "M", "1P", "+1", "-1", "1 M", "99999999999G", "99999999999T", "é"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_cache_on_disk_and_its_size() {
        let parsed = |text: &str| parse_disk_cache(text.as_ref());
        for (text, dir, most) in [
            ("/var/cache/x", "/var/cache/x", None),
            ("x", "x", None),
            ("/x:20G", "/x", Some(20 << 30)),
            ("x:1t", "x", Some(1 << 40)),
            ("/x:1048576", "/x", Some(1 << 20)),
            ("/a:b/c", "/a:b/c", None),
            ("/a:b/c:5M", "/a:b/c", Some(5 << 20)),
            ("/a:5M/", "/a:5M/", None),
            ("/a:5M:6M", "/a:5M", Some(6 << 20)),
        ] {
            assert_eq!(parsed(text), Ok((dir.into(), most)), "{text}");
        }
        for text in ["/x:", "/x:10GB", "/x:-1", "/a:b", "/x:é"] {
            assert_eq!(parsed(text).unwrap_err(), "expected a size such as 256M", "{text}");
        }
        for text in ["/x:0", "/x:1023K"] {
            assert_eq!(parsed(text).unwrap_err(), "expected a size of at least 1M", "{text}");
        }
        for text in ["", ":5M"] {
            assert_eq!(parsed(text).unwrap_err(), "expected a directory, as in DIR or DIR:20G", "{text}");
        }
        let odd = OsStr::from_bytes(b"/\xff:2M");
        assert_eq!(parse_disk_cache(odd), Ok((OsStr::from_bytes(b"/\xff").into(), Some(2 << 20))));
        assert!(parse_disk_cache(OsStr::from_bytes(b"/x:\xff")).is_err());
    }
}
