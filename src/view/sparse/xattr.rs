//! vlmetalayers that are set as extended attributes.

use std::sync::Arc;
use std::time::SystemTime;

use super::state::{HeldIndex, Sparse};
use crate::format::header::FrameHeader;
use crate::format::trailer::Trailer;
use crate::view::single::State;
use crate::view::{Invalidation, Invalidations, Result, ViewError};

impl State<Sparse> {
    /// Gives the applied frame another trailer, and makes the index file say so.
    ///
    /// The index file must be the applied one: in the middle of a client's rounds of writing nothing may change under it. Nor
    /// while chunk files have come or gone that the index knows nothing of: its next round is about to follow.
    pub(super) fn set_trailer(&mut self, trailer: Trailer, invalidations: &mut Invalidations) -> Result<()> {
        let ino = self.index_ino().ok_or(ViewError::InUse)?;
        let frame = &mut self.frame;
        let (Some(index), Some(bytes)) = (&frame.applied, &frame.index_bytes) else { return Err(ViewError::InUse) };
        let is_waiting = frame.unsettled && !(frame.removed.is_empty() && frame.unnamed.is_empty());
        if !matches!(frame.held, HeldIndex::No) || is_waiting {
            return Err(ViewError::InUse);
        }
        let mut index = index.clone();
        let former = index.header.frame_len();
        index.header.set_has_vlmetalayers(trailer.vlmetalayers().len() > 0);
        let file = if frame.index_stale {
            index.trailer = trailer;
            index.make_file().map_err(ViewError::Rejected)?
        } else {
            // The index's own bytes stay: a client that has the file open knows where they end.
            let head = index.header.header_len() as usize;
            let chunk = bytes.get(head..bytes.len().saturating_sub(index.trailer.as_bytes().len())).unwrap_or_default();
            index.header.set_frame_len((head + chunk.len() + trailer.as_bytes().len()) as u64);
            let file = [index.header.as_bytes(), chunk, trailer.as_bytes()].concat();
            index.trailer = trailer;
            file
        };
        frame.former_lens.push(former);
        frame.applied = Some(index);
        frame.index_bytes = Some(Arc::new(file));
        frame.index_stale = false;
        frame.changed_frame();
        if let Ok(node) = self.node(ino) {
            node.meta.written(SystemTime::now());
        }
        invalidations.push(Invalidation::Data(ino));
        Ok(())
    }
}

impl Sparse {
    /// Sets right what a client has written that does not know yet that an attribute has changed the file's length: see
    /// `FormerLens`. Answers whether it did.
    pub(super) fn mend_len(&mut self, file: &mut [u8]) -> bool {
        let len = file.len() as u64;
        let same = match (&self.applied, &self.index_bytes) {
            (Some(index), Some(bytes)) => {
                let head = index.header.header_len() as usize;
                file.get(head..).is_some_and(|rest| bytes.get(head..) == Some(rest))
            }
            _ => false,
        };
        if !same {
            return false;
        }
        let frame_len = file.get_mut(..FrameHeader::PREFIX_LEN).and_then(|prefix| prefix.last_chunk_mut());
        frame_len.is_some_and(|frame_len| self.former_lens.mend(frame_len, len))
    }
}
