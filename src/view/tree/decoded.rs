//! Frames whose data is shown (`--show npy`, `--show raw`): each as a file that has the frame's name and a suffix.
//!
//! Nodes have the names that they have below. A name is translated where it comes from the kernel, and where it goes there. A frame whose
//! name with the suffix is taken, or too long, is shown as what it is on disk, under its own name. So is one that cannot be shown.
//!
//! All other files are passed through. Clients cannot change the shown file of a frame, nor any name that would make or hide one.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use log::warn;
use lru::LruCache;
use parking_lot::Mutex;

use super::frame::{Sized, TreeFrame};
use super::{Rules, Show, Tree};
use crate::format::header::FrameHeader;
use crate::format::{INDEX_NAME, Layout};
use crate::store::FrameStore;
use crate::store::local::beneath::{self, FileId, Found};
use crate::view::decoded::{Refusal, look};
use crate::view::{ArrayView, Blocks, Decoded, FrameFileSystem, Ino, Invalidation, Invalidations, Result, ViewError};

/// Of so many frames it is remembered what they are shown as.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 16).expect("not zero");
/// A header that is longer describes no array that can be shown.
pub const LONGEST_HEADER: usize = 4 << 20;
/// What is read of a header at first.
pub const FIRST_READ: usize = 4096;
/// The longest name.
const LONGEST_NAME: usize = 255;

/// What frames are shown as.
pub struct DecodedNames {
    blocks: Arc<Blocks>,
    /// What the data of files is, or was.
    kinds: Mutex<LruCache<FileId, (Sized, DataKind)>>,
    /// Of which frames the log says why they are shown as what they are.
    told: Mutex<LruCache<FileId, ()>>,
}

/// What the data of a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataKind {
    /// An array.
    Array,
    /// One chunk after the other.
    Chunks,
    /// Nothing that can be shown.
    Broken,
}

impl DataKind {
    /// Of a frame with this header.
    ///
    /// # Errors
    /// What keeps its data from being shown.
    pub fn of(header: &FrameHeader, rules: &Rules) -> std::result::Result<Self, String> {
        let decoded = match rules.show {
            Show::Npy => Decoded::Npy(rules.dtype.clone()),
            _ => Decoded::Raw,
        };
        let found = look(header, &decoded).map_err(|refusal| match refusal {
            Refusal::Object(_) => format!("it is {refusal}"),
            Refusal::Format(error) => error.to_string(),
        })?;
        Ok(if found.is_some() { DataKind::Array } else { DataKind::Chunks })
    }

    /// What such data is shown as.
    pub fn shown(self, rules: &Rules) -> Option<Decoded> {
        match self {
            DataKind::Array if rules.show == Show::Npy => Some(Decoded::Npy(rules.dtype.clone())),
            DataKind::Array | DataKind::Chunks => Some(Decoded::Raw),
            DataKind::Broken => None,
        }
    }
}

impl DecodedNames {
    /// Blocks are decoded here.
    pub fn new(blocks: Arc<Blocks>) -> Self {
        DecodedNames { blocks, kinds: Mutex::new(LruCache::new(REMEMBERED)), told: Mutex::new(LruCache::new(REMEMBERED)) }
    }

    /// Where blocks are decoded.
    pub fn blocks(&self) -> Arc<Blocks> {
        Arc::clone(&self.blocks)
    }

    /// One line for the log.
    pub fn report(&self) -> String {
        self.blocks.report()
    }
}

impl Tree {
    /// Whether the data of frames is shown.
    pub(super) fn shows_data(&self) -> bool {
        self.rules.show.is_decoded()
    }

    /// What a frame that was found is shown as, if that is its data.
    pub(super) fn decoded_at(&self, name: &OsStr, dir: BorrowedFd<'_>, found: &Found, layout: Layout) -> Option<Decoded> {
        let decoded = self.kind_at(name, dir, found, layout).shown(&self.rules)?;
        let shown = decoded.name(name);
        let reason = match beneath::look(dir, &shown) {
            _ if shown.len() > LONGEST_NAME => "would be too long a name",
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(decoded),
            _ => "is there already",
        };
        if self.decoded.as_ref().is_some_and(|names| names.told.lock().put(found.id, ()).is_none()) {
            let (name, shown) = (name.display(), shown.display());
            warn!("{}: {name} is shown as it is on disk, because {shown} {reason}", self.path.display());
        }
        None
    }

    /// What the data of a frame is, by its header.
    fn kind_at(&self, name: &OsStr, dir: BorrowedFd<'_>, found: &Found, layout: Layout) -> DataKind {
        let Some(names) = &self.decoded else { return DataKind::Broken };
        let look = |dir: BorrowedFd<'_>, file: &OsStr, found: &Found| {
            let stamp = Sized::from(found);
            if let Some((_, kind)) = names.kinds.lock().get(&found.id).filter(|(of, _)| *of == stamp) {
                return *kind;
            }
            let kind = self.kind_of_file(dir, file).unwrap_or_else(|reason| {
                warn!("{}: {} is shown as it is on disk: {reason}", self.path.display(), name.display());
                DataKind::Broken
            });
            names.kinds.lock().put(found.id, (stamp, kind));
            kind
        };
        match layout {
            Layout::Contiguous => look(dir, name, found),
            Layout::Sparse => {
                let index = OsStr::new(INDEX_NAME);
                let Ok(inside) = beneath::hold(dir, name) else { return DataKind::Broken };
                let found = beneath::look(inside.as_fd(), index);
                found.map_or(DataKind::Broken, |found| look(inside.as_fd(), index, &found))
            }
        }
    }

    fn kind_of_file(&self, dir: BorrowedFd<'_>, name: &OsStr) -> std::result::Result<DataKind, String> {
        let header = header(dir, name).ok_or("it has no frame header, or one longer than that of any array")?;
        DataKind::of(&header, &self.rules)
    }

    /// The view of a frame's data.
    pub(super) fn data_view(&self, decoded: &Decoded, store: Arc<dyn FrameStore>) -> Result<Box<dyn FrameFileSystem>> {
        let names = self.decoded.as_ref().ok_or(ViewError::Gone)?;
        let takes_turns = store.sidecar().is_some();
        let view = ArrayView::new(store, crate::view::Shown::OnFile, decoded.clone(), Arc::clone(&names.blocks))?
            .with_lists(self.rules.lists)
            .opened_anew();
        // Whoever opens it in a turn of his may be faster than what tells the kernel.
        let settles = self.rules.timeouts.attr;
        Ok(if takes_turns { Box::new(view.settling(settles).taking_turns(None)?) } else { Box::new(view) })
    }

    /// The name below of what a client calls so.
    ///
    /// # Errors
    /// [`ViewError::NotFound`] for the name of a frame that is shown under another.
    pub(super) fn name_below(&self, parent: Ino, name: &OsStr) -> Result<OsString> {
        if !self.shows_data() {
            return Ok(name.to_owned());
        }
        let dir = self.dir(parent)?;
        match beneath::look(dir.as_fd(), name) {
            Ok(found) if self.shown_as(parent, name, dir.as_fd(), &found).is_some() => Err(ViewError::NotFound),
            Ok(_) => Ok(name.to_owned()),
            Err(_) => self.stem_of(parent, name, dir.as_fd()).ok_or(ViewError::NotFound),
        }
    }

    /// The frame below that has a client's name for its data.
    fn stem_of(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>) -> Option<OsString> {
        Decoded::SUFFIXES.iter().find_map(|suffix| {
            let stem = OsStr::from_bytes(name.as_bytes().strip_suffix(suffix.as_bytes())?);
            let found = beneath::look(dir, stem).ok()?;
            let decoded = self.shown_as(parent, stem, dir, &found)?;
            (decoded.suffix() == *suffix).then(|| stem.to_owned())
        })
    }

    /// What is found below is shown as, if that is a frame whose data is shown.
    fn shown_as(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>, found: &Found) -> Option<Decoded> {
        if self.is_covering(found) {
            return None;
        }
        let known = self.table.lock().find(found);
        match known.and_then(|ino| self.frame_of(Some(ino))) {
            Some(frame) => frame.decoded.clone(),
            None => {
                let layout = self.frame_at(parent, name, dir, found)?;
                self.decoded_at(name, dir, found, layout)
            }
        }
    }

    /// What clients call a name below, if that is another name.
    pub(super) fn name_shown(&self, parent: Ino, name: &OsStr, dir: BorrowedFd<'_>) -> Option<OsString> {
        if !self.shows_data() {
            return None;
        }
        let found = beneath::look(dir, name).ok()?;
        let decoded = self.shown_as(parent, name, dir, &found)?;
        Some(decoded.name(name))
    }

    /// That a client may change a name.
    ///
    /// # Errors
    /// [`ViewError::NotPermitted`] for the name of a frame's data, and for one that would be a frame's.
    pub(super) fn check_name(&self, parent: Ino, name: &OsStr) -> Result<()> {
        if !self.shows_data() {
            return Ok(());
        }
        let stem = Decoded::SUFFIXES.iter().find_map(|suffix| name.as_bytes().strip_suffix(suffix.as_bytes()));
        let is_ours = name == INDEX_NAME
            || self.rules.is_name(name)
            || stem.is_some_and(|stem| self.rules.is_name(OsStr::from_bytes(stem)))
            || self.name_below(parent, name).is_ok_and(|below| below != *name)
            || self.dir(parent).is_ok_and(|dir| self.name_shown(parent, name, dir.as_fd()).is_some());
        if is_ours { Err(ViewError::NotPermitted) } else { Ok(()) }
    }

    /// Names of frames are known to the kernel as what their data is shown as.
    pub(super) fn in_shown_names(&self, invalidations: &mut Invalidations) {
        if !self.shows_data() {
            return;
        }
        let shown = |inval: &Invalidation| match inval {
            Invalidation::Entry(parent, name) => {
                let with =
                    |suffix: &str| Invalidation::Entry(*parent, [name.as_os_str(), OsStr::new(suffix)].into_iter().collect());
                Decoded::SUFFIXES.map(with).to_vec()
            }
            _ => Vec::new(),
        };
        let more: Vec<Invalidation> = invalidations.iter().flat_map(shown).collect();
        invalidations.extend(more);
    }
}

impl TreeFrame {
    /// The name that clients know, of a frame with this name below.
    pub fn name_shown(&self, name: &OsStr) -> OsString {
        self.decoded.as_ref().map_or_else(|| name.to_owned(), |decoded| decoded.name(name))
    }
}

/// The header of a frame's file.
fn header(dir: BorrowedFd<'_>, name: &OsStr) -> Option<FrameHeader> {
    let mut buf = vec![0; FIRST_READ];
    let len = FrameHeader::announced_len(beneath::beginning(dir, name, &mut buf)?).ok()? as usize;
    if len > LONGEST_HEADER {
        return None;
    }
    if len > buf.len() {
        buf.resize(len, 0);
    }
    FrameHeader::parse(beneath::beginning(dir, name, &mut buf)?.get(..len)?).ok()
}
