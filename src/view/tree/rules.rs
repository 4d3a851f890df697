//! What in a tree is a frame, and how it is shown and stored.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use super::Show;
use super::frame::Stored;
use crate::format::header::FrameHeader;
use crate::format::npy::ItemType;
use crate::format::{INDEX_NAME, Layout};
use crate::store::local::beneath::{self, Found};
use crate::store::walk::{self, ARCHIVE_SUFFIX, STORE_MARK};
use crate::view::{Kind, Timeouts};

/// What the user has chosen for a whole mount.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The layout that is shown.
    pub show: Show,
    /// What a frame's file name ends in.
    pub suffixes: Vec<String>,
    /// Patterns of paths beneath DIR that are frames: without any, all are.
    pub frames: Vec<String>,
    /// Patterns of paths that are none.
    pub noframes: Vec<String>,
    /// Directories on which other file systems are mounted are shown with what is in them.
    pub cross: bool,
    /// Archives of python-blosc2 are shown as directories.
    pub archives: bool,
    /// Nothing is written.
    pub read_only: bool,
    /// Programs take turns by the frames' lock files.
    pub locking: bool,
    /// What the items of arrays are that do not say it.
    pub dtype: Option<ItemType>,
    /// Access lists are shown. Without, permission bits grant no more than the lists.
    pub lists: bool,
    /// How long names and attributes are good.
    pub timeouts: Timeouts,
    /// Directories of frames are watched, so that the kernel may believe for longer what it is told of frames.
    pub watches: bool,
}

impl Rules {
    /// Whether a file of this name may be a frame.
    pub fn is_name(&self, name: &OsStr) -> bool {
        self.suffixes.iter().any(|suffix| walk::ends_with(name, suffix))
    }

    /// Whether a file of this name is, or may become, a frame: its bytes go through this process. Tools write to `NAME.SUFFIX`.
    pub fn may_become(&self, name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        let is_temporary = || {
            let dots = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at);
            dots.filter_map(|at| bytes.get(..at)).any(|stem| self.is_name(OsStr::from_bytes(stem)))
        };
        self.is_name(name) || bytes.first() == Some(&b'.') || bytes.ends_with(b".tmp") || is_temporary()
    }

    /// Whether a file of this name is to be shown as a directory, if it is an archive.
    pub fn is_archive_name(&self, name: &OsStr) -> bool {
        self.archives && walk::ends_with(name, ARCHIVE_SUFFIX)
    }

    /// What a frame of a layout is shown as: in a store of python-blosc2 as what it is. An archive is a directory.
    pub fn shown(&self, stored: Stored, in_store: bool) -> Kind {
        let Stored::Frame(layout) = stored else { return Kind::Directory };
        match (self.show, layout) {
            _ if in_store => Kind::File,
            (Show::Npy | Show::Raw, _) => Kind::File,
            (Show::Sparse, _) | (Show::Other, Layout::Contiguous) => Kind::Directory,
            (Show::Contiguous, _) | (Show::Other, Layout::Sparse) => Kind::File,
        }
    }

    /// What all frames are shown as, whatever their layouts: then a frame that is made is stored as it was made.
    pub fn kind_shown(&self) -> Option<Kind> {
        match self.show {
            Show::Sparse => Some(Kind::Directory),
            Show::Contiguous => Some(Kind::File),
            Show::Other | Show::Npy | Show::Raw => None,
        }
    }

    /// How a frame that a client makes is stored: `None` where what the client makes is left as it is.
    pub fn stored(&self, made: Kind, in_store: bool) -> Option<Layout> {
        match (self.show, made) {
            (Show::Npy | Show::Raw, _) => None,
            (_, Kind::File) if in_store => None,
            (_, Kind::Directory) if in_store => Some(Layout::Contiguous),
            (Show::Other, Kind::Directory) => Some(Layout::Contiguous),
            // Each of its changes is then a whole one.
            (Show::Sparse, Kind::Directory) => Some(Layout::Sparse),
            (Show::Other, Kind::File) => Some(Layout::Sparse),
            _ => None,
        }
    }

    /// Whether a path beneath DIR is chosen.
    pub fn is_chosen(&self, path: &[u8]) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern.as_bytes(), path));
        (self.frames.is_empty() || any(&self.frames)) && !any(&self.noframes)
    }

    /// The layout of the frame that a name stands for, if it is one. Costs one open and one small read at most.
    pub fn look(&self, dir: BorrowedFd<'_>, name: &OsStr, found: &Found) -> Option<Layout> {
        match found.stat.mode & libc::S_IFMT {
            libc::S_IFREG if self.is_name(name) && found.stat.links == 1 => {
                is_cframe(dir, name, found.stat.len).then_some(Layout::Contiguous)
            }
            libc::S_IFDIR => {
                let inside = beneath::hold(dir, name).ok()?;
                is_sframe(std::os::fd::AsFd::as_fd(&inside)).then_some(Layout::Sparse)
            }
            _ => None,
        }
    }
}

/// Whether a file begins as a cframe does, and is as long as its header says at least.
pub fn is_cframe(dir: BorrowedFd<'_>, name: &OsStr, len: u64) -> bool {
    let mut buf = [0; FrameHeader::KIND_LEN];
    let Some(bytes) = beneath::beginning(dir, name, &mut buf) else { return false };
    FrameHeader::announced_frame(bytes).is_some_and(|(layout, frame_len)| layout == Layout::Contiguous && frame_len <= len)
}

/// Whether a directory has the index file of an sframe.
fn is_sframe(dir: BorrowedFd<'_>) -> bool {
    let mut buf = [0; FrameHeader::KIND_LEN];
    let Some(bytes) = beneath::beginning(dir, OsStr::new(INDEX_NAME), &mut buf) else { return false };
    FrameHeader::announced_frame(bytes).is_some_and(|(layout, _)| layout == Layout::Sparse)
}

/// Whether a directory is a store of python-blosc2, by what is in it.
pub fn is_store(dir: BorrowedFd<'_>) -> bool {
    beneath::look(dir, OsStr::new(STORE_MARK)).is_ok_and(|found| found.stat.is_file())
}

/// Whether a path matches a pattern: `*` is any part of one name, `**` of a path, `?` one byte but a slash.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    // Where the last star stood, and from where the path is tried behind it.
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize, bool)> = None;
    loop {
        match (pattern.get(p), path.get(t)) {
            (Some(b'*'), _) => {
                let deep = pattern.get(p + 1) == Some(&b'*');
                p += if deep { 2 } else { 1 };
                star = Some((p, t, deep));
                continue;
            }
            (Some(b'?'), Some(byte)) if *byte != b'/' => (p, t) = (p + 1, t + 1),
            (Some(wanted), Some(byte)) if wanted == byte && *wanted != b'?' => (p, t) = (p + 1, t + 1),
            (None, None) => return true,
            _ => match star {
                Some((behind, at, deep)) if path.get(at).is_some_and(|byte| deep || *byte != b'/') => {
                    (p, t) = (behind, at + 1);
                    star = Some((behind, at + 1, deep));
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths() {
        for (pattern, path, expected) in [
            ("a/*.b2nd", "a/x.b2nd", true),
            ("a/*.b2nd", "a/b/x.b2nd", false),
            ("a/**.b2nd", "a/b/x.b2nd", true),
            ("*", "a", true),
            ("*", "a/b", false),
            ("**", "a/b", true),
            ("?.b2", "a.b2", true),
            ("?.b2", "ab.b2", false),
            ("", "a", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyyd", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), path.as_bytes()), expected, "{pattern} {path}");
        }
    }
}
