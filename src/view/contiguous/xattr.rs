//! vlmetalayers that are set as extended attributes.

use std::sync::Arc;
use std::time::SystemTime;

use super::state::{Contiguous, FRAME};
use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::store::{FrameImage, ReadAt};
use crate::view::frame_file::layout::FileLayout;
use crate::view::frame_file::overlay::Overlaid;
use crate::view::single::{Single, State};
use crate::view::{Invalidation, Invalidations, Result, ViewError};

impl Single<Contiguous> {
    /// Sets right what a client has written that does not know yet that an attribute has changed the file's length: see
    /// `FormerLens`. The caller has `writing`.
    pub(super) fn mend_len(&self, file: &Overlaid<'_>, invalidations: &mut Invalidations) -> Result<()> {
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
        if state.frame.former_lens.mend(&mut frame_len, len) {
            let written = file.overlay.inner.write().write_at(&frame_len, at, file);
            written.map_err(|error| self.held_error("hold what was written", error))?;
            invalidations.extend(state.ino(FRAME).map(|ino| Invalidation::Range(ino, 0, head)));
        }
        Ok(())
    }
}

impl State<Contiguous> {
    /// Gives the frame another trailer: the file is as if a client had written it, and the header's part in it.
    ///
    /// In the middle of a client's rounds of writing nothing may change under it, so there must be no overlay.
    pub(super) fn set_trailer(&mut self, trailer: Trailer, invalidations: &mut Invalidations) -> Result<()> {
        if self.frame.overlay.is_some() {
            return Err(ViewError::InUse);
        }
        self.frame.leave_source();
        let old = Arc::clone(&self.frame.layout);
        let index = old.tail.len().saturating_sub(old.trailer().as_bytes().len());
        let tail = [old.tail.get(..index).unwrap_or_default(), trailer.as_bytes()].concat();
        let mut header = old.header().clone();
        header.set_has_vlmetalayers(trailer.vlmetalayers().len() > 0);
        header.set_frame_len(old.tail_start.saturating_add(tail.len() as u64));
        let image = FrameImage { header, trailer, entries: Arc::clone(&old.image.entries) };
        let layout = FileLayout { image, extents: old.extents.clone(), tail_start: old.tail_start, tail, gaps: old.gaps };
        let longest = old.len().max(layout.len());
        self.frame.former_lens.push(old.len());
        self.frame.layout = Arc::new(layout);
        self.frame.version += 1;
        self.frame_changed(SystemTime::now());
        if let Some(ino) = self.ino(FRAME) {
            invalidations.push(Invalidation::Range(ino, 0, old.head().len() as u64));
            invalidations.push(Invalidation::Range(ino, old.tail_start, longest - old.tail_start));
            invalidations.push(Invalidation::Attr(ino));
        }
        Ok(())
    }
}
