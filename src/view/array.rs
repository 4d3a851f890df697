//! A frame decompressed, as one file that every program reads: NumPy's format, or the data alone.
//!
//! What is shown is only read. A state that others commit makes a new [`Data`]. The file keeps its inode as long as its items keep their
//! places ([`super::follow`]), so that maps and open files show the new state.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Instant;

use super::content::Content;
use super::decoded::data::Data;
use super::decoded::{Blocks, Decoded, open};
use super::frame_view::{About, Committed, Files, FrameView, Standing, Take, Why};
use super::nodes::{Name, Number, Root};
use super::single::{Single, State};
use super::state_lock::Changing;
use super::writing::Change;
use super::{Handle, Ino, Invalidations, Lost, Result, Shown, ViewError};
use crate::format::array::Array;
use crate::format::trailer::Trailer;
use crate::store::{ChunkKey, FrameImage, FrameStore};

/// The number of the one file.
const FRAME: Number = Number(0);

/// How far the kernel reads ahead in decompressed data, in bytes. It reads as much around a page fault of a map, and each block there is
/// decoded. Blocks that a sequential reader needs are decoded ahead in any case.
pub const READ_AHEAD: u32 = 128 << 10;

/// A view of a frame's data.
pub type ArrayView = Single<Decompressed>;

/// A frame as one file of its data.
#[derive(Debug)]
pub struct Decompressed {
    name: OsString,
    image: Arc<FrameImage>,
    data: Arc<Data>,
}

impl Single<Decompressed> {
    /// Shows the data of a store's frame.
    ///
    /// # Errors
    /// What the store cannot read; a frame that is no array; an array whose items nobody can name, or whose shape its chunks do not have.
    pub fn new(store: Arc<dyn FrameStore>, shown: Shown, decoded: Decoded, blocks: Arc<Blocks>) -> Result<Self> {
        let (root, name) = match shown {
            Shown::As(name) => (Root::Directory, name),
            Shown::OnFile => (Root::File(FRAME), store.path().file_name().unwrap_or_default().to_owned()),
        };
        let load = move |store: &dyn FrameStore| {
            let (image, data) = open(store, &decoded, &blocks)?;
            Ok(Decompressed { name: name.clone(), image, data: Arc::new(data) })
        };
        Self::over(store, root, true, Box::new(load))
    }
}

/// What would change something is refused.
impl FrameView for Decompressed {
    const READ_AHEAD: u32 = READ_AHEAD;
    const HAS_HOLES: bool = true;
    const TAKES_MTIME: bool = true;
    const KEEPS_INODE: bool = true;

    fn keeps_inode(&self, before: &Self) -> bool {
        let layout = |frame: &Self| {
            let header = &frame.image.header;
            let array = Array::find(header.metalayers()).and_then(|array| array.ok());
            let items =
                array.map(|array| (array.kind, array.dtype, array.shape.len(), array.shape.get(1..).map(<[u64]>::to_vec)));
            (header.typesize(), frame.data.head().len(), items)
        };
        layout(self) == layout(before)
    }

    fn parse(&self, name: &OsStr) -> Option<Name> {
        (*name == *self.name).then_some(Name::Frame(FRAME))
    }

    fn name(&self, _file: Number) -> OsString {
        self.name.clone()
    }

    fn files(&self, which: Files, _most: usize) -> Vec<Number> {
        if let Files::From(FRAME) = which { vec![FRAME] } else { Vec::new() }
    }

    fn content(&self, file: Number) -> Option<Content> {
        (file == FRAME).then(|| Content::Data(Arc::clone(&self.data)))
    }

    fn about(&self, file: Option<Number>) -> About<'_> {
        About { frame: file.map(|_| (&self.image.header, &self.image.trailer)), ..About::default() }
    }

    fn learn(&self, _file: Number, _key: ChunkKey, _len: u32) {}

    fn begun(&mut self, _file: Number) {}

    fn forget(&self) {
        self.data.forget();
    }

    fn report(&self) -> Option<String> {
        Some(self.data.report())
    }

    fn write(_this: &Single<Self>, _handle: Handle, _file: Option<Number>, _change: Change<'_>) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    fn put(_this: &Single<Self>, _from: &Name, _ino: Ino, _file: Number, _invals: &mut Invalidations) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    fn change_to_take<'a>(this: &'a Single<Self>, _names: &[&Name]) -> Changing<'a, State<Self>> {
        this.state.write()
    }

    fn take(_state: &mut State<Self>, _file: Number, _how: Take) -> Result<Content> {
        Err(ViewError::ReadOnly)
    }

    fn annotate(_state: &mut State<Self>, _trailer: Trailer, _invals: &mut Invalidations) -> Result<()> {
        Err(ViewError::ReadOnly)
    }

    fn settle(_this: &Single<Self>, _why: Why, _invals: &mut Invalidations) -> Result<Option<Instant>> {
        Ok(None)
    }

    fn is(_state: &State<Self>, _what: Standing) -> bool {
        false
    }

    fn image(_state: &State<Self>) -> Option<(FrameImage, Committed<Self>)> {
        None
    }

    fn save_lost(_this: &Single<Self>, _all: bool) -> Vec<Lost> {
        Vec::new()
    }
}
