//! Extended attributes in the contiguous view: the frame's on its file.

use std::sync::Arc;
use std::time::SystemTime;

use super::ContiguousView;
use super::layout::Layout;
use super::overlay::Overlaid;
use super::state::{Content, State};
use crate::format::header::FrameHeader;
use crate::store::{FrameImage, ReadAt};
use crate::view::pacer::Publish;
use crate::view::xattr::{self, Attribute};
use crate::view::{Ino, Inval, Invals, Result, SetMode, ViewError};

impl ContiguousView {
    /// Calls `ask` with the attributes of a file.
    pub(super) fn attributes<T>(&self, ino: Ino, ask: impl FnOnce(&mut dyn Iterator<Item = Attribute<'_>>) -> T) -> Result<T> {
        let layout = {
            let state = self.state.read();
            match state.frame == Some(ino) {
                true => Arc::clone(&state.layout),
                false if self.is_directory(&state, ino) => return Ok(ask(&mut std::iter::empty())),
                false => match &state.node(ino)?.content {
                    Content::Former(layout) => Arc::clone(layout),
                    Content::Frame | Content::Draft(_) => return Ok(ask(&mut std::iter::empty())),
                },
            }
        };
        Ok(ask(&mut xattr::of_frame(layout.header(), layout.trailer())))
    }

    pub(super) fn set_attribute(
        &self,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        mode: SetMode,
        invals: &mut Invals,
    ) -> Result<()> {
        self.writable()?;
        let _writing = self.writing.lock();
        let is_frame = {
            let state = self.state.read();
            if !self.is_directory(&state, ino) && state.frame != Some(ino) || state.is_begun() {
                return xattr::not_kept(value, mode);
            }
            state.frame == Some(ino)
        };
        let now = self.attributes(ino, |attributes| xattr::find(attributes, name))?;
        if !xattr::is_news(&now, value, mode)? {
            return Ok(());
        }
        if !is_frame {
            return Err(ViewError::NotSettable);
        }
        self.state.write().annotate(ino, name, value, invals)?;
        drop(_writing);
        self.publish_soon()
    }

    /// Sets right what a client has written that does not know yet that an attribute has changed the file's length: see
    /// [`xattr::FormerLens`]. The caller has `writing`.
    pub(super) fn mend_len(&self, file: &Overlaid<'_>, invals: &mut Invals) -> Result<()> {
        let (head, len) = (file.layout.head().len() as u64, file.layout.len());
        {
            let inner = file.overlay.inner.read();
            if inner.below() != len || inner.len() != len || inner.written().touches(head..len) {
                return Ok(());
            }
        }
        let at = (FrameHeader::PREFIX_LEN - 8) as u64;
        let mut frame_len = [0; 8];
        file.read_exact_at(&mut frame_len, at).map_err(|error| self.held_error("read back what was written", error))?;
        let state = self.state.read();
        if state.former_lens.mend(&mut frame_len, len) {
            let written = file.overlay.inner.write().write_at(&frame_len, at, file);
            written.map_err(|error| self.held_error("hold what was written", error))?;
            invals.extend(state.frame.map(|ino| Inval::Range(ino, 0, head)));
        }
        Ok(())
    }
}

impl State {
    /// Whether somebody is writing the frame from nothing, or has just made its file. The caller has the view's `writing`.
    fn is_begun(&self) -> bool {
        self.seen_overlay().is_some_and(|overlay| {
            let inner = overlay.inner.read();
            inner.below() == 0 && (self.frame_writers() > 0 || inner.len() == 0)
        })
    }

    /// Sets or removes a vlmetalayer: the file is as if a client had written another trailer, and the header's part in it.
    ///
    /// In the middle of a client's rounds of writing nothing may change under it, so there must be no overlay.
    fn annotate(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>, invals: &mut Invals) -> Result<()> {
        let old = Arc::clone(&self.layout);
        let trailer = xattr::changed(old.trailer(), name, value)?;
        if self.overlay.is_some() {
            return Err(ViewError::InUse);
        }
        let index = old.tail.len().saturating_sub(old.trailer().as_bytes().len());
        let tail = [old.tail.get(..index).unwrap_or_default(), trailer.as_bytes()].concat();
        let mut header = old.header().clone();
        header.set_has_vlmetalayers(trailer.vlmetalayers().len() > 0);
        header.set_frame_len(old.tail_start.saturating_add(tail.len() as u64));
        let image = FrameImage { header, trailer, entries: Arc::clone(&old.image.entries) };
        let layout = Layout { image, extents: old.extents.clone(), tail_start: old.tail_start, tail };
        let longest = old.len().max(layout.len());
        self.former_lens.push(old.len());
        self.layout = Arc::new(layout);
        self.version += 1;
        self.frame_changed(SystemTime::now());
        invals.push(Inval::Range(ino, 0, old.head().len() as u64));
        invals.push(Inval::Range(ino, old.tail_start, longest - old.tail_start));
        invals.push(Inval::Attr(ino));
        Ok(())
    }
}
