//! Extended attributes: the frame's on what stands for it, each chunk's on its file, and SOURCE's access list on both.

use super::{Place, Single};
use crate::format::chunk::ChunkHeader;
use crate::store::{Draft, ReadAt};
use crate::view::access::{AccessList, Rights, as_directory, as_file};
use crate::view::content::Content;
use crate::view::frame_file::FrameFile;
use crate::view::frame_view::FrameView;
use crate::view::nodes::Number;
use crate::view::xattr::{self, Attribute};
use crate::view::{Attr, Ino, Invalidations, Result, SetMode, ViewError};

/// What a file's attributes are about.
enum Subject {
    /// The frame, for which this file or the directory stands.
    Frame(Option<Number>),
    /// A frame that was.
    Former(FrameFile),
    Chunk(ChunkHeader, Option<u32>),
    Nothing,
}

impl<V: FrameView> Single<V> {
    fn subject(&self, ino: Ino) -> Result<Subject> {
        self.of_one_version(|guard| {
            let (content, position) = {
                let state = self.state.read();
                let file = match state.place(ino)? {
                    Place::Root => None,
                    Place::Frame(file) => Some(file),
                    Place::LockFile | Place::Delayed => return Ok(Subject::Nothing),
                    Place::Own => {
                        return Ok(match state.settled(ino)? {
                            Content::Frame(file) => Subject::Former(file),
                            _ => Subject::Nothing,
                        });
                    }
                };
                let about = state.frame.about(file);
                match (about.frame, file) {
                    (Some(_), _) => return Ok(Subject::Frame(file)),
                    (None, None) => return Ok(Subject::Nothing),
                    (None, Some(_)) => (state.content(ino)?, about.position),
                }
            };
            let header = match content {
                Content::Chunk(key, _) => Some(self.store.chunk_header(guard, key)?),
                Content::Draft(writing) => header_of(&writing.inner.read_recursive().bytes),
                Content::Empty | Content::Bytes(_) | Content::Frame(_) | Content::Data(_) => None,
            };
            Ok(header.map_or(Subject::Nothing, |header| Subject::Chunk(header, position)))
        })
    }

    /// Calls `ask` with the attributes of a file.
    pub(super) fn attributes<T>(&self, ino: Ino, ask: impl FnOnce(&mut dyn Iterator<Item = Attribute<'_>>) -> T) -> Result<T> {
        Ok(match self.subject(ino)? {
            Subject::Frame(file) => match self.state.read().frame.about(file).frame {
                Some((header, trailer)) => ask(&mut xattr::of_frame(header, trailer)),
                None => ask(&mut std::iter::empty()),
            },
            Subject::Former(file) => ask(&mut xattr::of_frame(file.layout.header(), file.layout.trailer())),
            Subject::Chunk(header, position) => ask(&mut xattr::of_chunk(&header, position)),
            Subject::Nothing => ask(&mut std::iter::empty()),
        })
    }

    /// Who may do what with a file, if SOURCE has an access list. It is that of temporary files as well: they may hold a part of SOURCE.
    pub(super) fn rights(&self, attr: &Attr) -> Result<Option<Rights>> {
        let convert = match self.state.read().place(attr.ino)? {
            Place::Root | Place::Delayed => as_directory,
            Place::Frame(_) | Place::Own => as_file,
            Place::LockFile => return Ok(None),
        };
        let Some(list) = self.store.access_list()? else { return Ok(None) };
        Ok(Some(Rights::of_meta(&attr.meta, Some(list)).shown(convert, attr.meta.mode)))
    }

    /// The access list of a file as it is shown.
    pub(super) fn access_list(&self, ino: Ino) -> Result<Option<Vec<u8>>> {
        if !self.lists {
            return Ok(None);
        }
        let rights = self.rights(&self.attr_with_mask(ino)?)?;
        Ok(rights.as_ref().and_then(Rights::list).map(AccessList::encode))
    }

    /// Sets or removes an attribute. It is our turn.
    pub(super) fn set_attribute(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        mode: SetMode,
        invalidations: &mut Invalidations,
    ) -> Result<()> {
        self.check_writable()?;
        let writing = self.writing.lock();
        let (place, content, writers) = {
            let state = self.state.read();
            let place = state.place(ino)?;
            let content = if matches!(place, Place::Frame(_)) { state.content(ino)? } else { Content::Empty };
            (place, content, state.nodes.writers(ino))
        };
        let keeps_none = match place {
            Place::LockFile => return Err(ViewError::NotSettable),
            Place::Own | Place::Delayed => true,
            Place::Root => self.store.committed().is_none(),
            Place::Frame(_) => content.is_begun(writers),
        };
        if keeps_none {
            return xattr::not_kept(value, mode);
        }
        let Subject::Frame(file) = self.subject(ino)? else {
            let now = self.attributes(ino, |attributes| xattr::find(attributes, name))?;
            return if xattr::is_news(&now, value, mode)? { Err(ViewError::NotSettable) } else { Ok(()) };
        };
        {
            let mut state = self.state.write();
            let (header, trailer) = state.frame.about(file).frame.ok_or(ViewError::InUse)?;
            let now = xattr::find(xattr::of_frame(header, trailer), name);
            if !xattr::is_news(&now, value, mode)? {
                return Ok(());
            }
            let trailer = xattr::changed(trailer, name, value)?;
            V::annotate(&mut state, trailer, invalidations)?;
        }
        drop(writing);
        self.publish_soon()
    }
}

/// The header of a draft that has the length of a whole chunk.
fn header_of(bytes: &Draft) -> Option<ChunkHeader> {
    let mut head = vec![0; bytes.len().min(ChunkHeader::LEN as u64) as usize];
    bytes.read_exact_at(&mut head, 0).ok()?;
    ChunkHeader::parse(&head).ok().filter(|header| u64::from(header.cbytes) == bytes.len())
}
