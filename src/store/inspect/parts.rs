//! Header, index and trailer, as much of them as can be read.

use std::path::Path;

use super::{Finding, Kind};
use crate::format::chunk::ChunkHeader;
use crate::format::header::FrameHeader;
use crate::format::index::{self, Place};
use crate::format::trailer::Trailer;
use crate::format::{self, IndexEntry, Layout};
use crate::store::backend::BackendFile;
use crate::store::frame::{FileBytes, Frame, FramePart, Unread};
use crate::store::{Result, StoreError};

/// What there is of a frame.
pub(in crate::store) struct FrameParts<P> {
    pub(in crate::store) header: FrameHeader,
    pub(in crate::store) trailer: Option<Trailer>,
    pub(in crate::store) entries: Option<Vec<IndexEntry<P>>>,
    /// Where a cframe's chunks section ends.
    pub(in crate::store) chunks_end: u64,
}

impl<P: Place> FrameParts<P> {
    /// Reads the parts of a frame from its file (of an sframe: the index file), telling what is wrong with them.
    ///
    /// # Errors
    /// A file without a frame header of this layout, or that cannot be read.
    pub(in crate::store) fn read(path: &Path, file: &dyn BackendFile, len: u64, found: &mut dyn FnMut(Finding)) -> Result<Self> {
        match Frame::<P>::read(&FileBytes { file, len }) {
            Ok(Frame { header, trailer, entries, sections }) => {
                let behind = len.saturating_sub(header.frame_len());
                if behind > 0 {
                    found(Finding::note(
                        Kind::FrameLen,
                        format!("{behind} bytes behind the frame, which ends at {}", header.frame_len()),
                    ));
                }
                Ok(FrameParts { header, trailer: Some(trailer), entries: Some(entries), chunks_end: sections.chunks.end })
            }
            Err(Unread::Format(error)) => Self::salvage(path, file, len, error, found),
            Err(other) => Err(other.at(path, P::LAYOUT)),
        }
    }

    /// After `first`, the error that ended reading the frame as a whole.
    fn salvage(
        path: &Path,
        file: &dyn BackendFile,
        len: u64,
        first: format::Error,
        found: &mut dyn FnMut(Finding),
    ) -> Result<Self> {
        let bytes = FileBytes { file, len };
        let no_header = |source| StoreError::Format { path: path.to_owned(), source };
        let unread = |unread: Unread| unread.at(path, P::LAYOUT);
        let prefix = FramePart::Header.read(&bytes, 0..len.min(FrameHeader::PREFIX_LEN as u64)).map_err(unread)?;
        let header_len = u64::from(FrameHeader::announced_len(&prefix).map_err(no_header)?);
        if header_len > len {
            return Err(no_header(first));
        }
        let header = FrameHeader::parse_vec(FramePart::Header.read(&bytes, 0..header_len).map_err(unread)?).map_err(no_header)?;
        let frame_len = header.frame_len();
        if frame_len != len {
            let what = format!("header: frame_len at byte 16: found {frame_len}, expected the file's length, {len}");
            found(Finding::damage(Kind::FrameLen, what));
        }
        let trailer = trailer_of(&header, &bytes).map_err(unread)?;
        if let Err(error) = &trailer {
            found(Finding::damage(Kind::Trailer, error.to_string()));
        }
        // Where the index is, the header says; how long it is, it says itself.
        let chunks_len = if P::LAYOUT == Layout::Contiguous && header.nbytes() > 0 { header.cbytes() } else { 0 };
        let chunks_end = header_len.saturating_add(chunks_len);
        let entries =
            if header.nbytes() == 0 { Ok(Vec::new()) } else { index_of::<P>(&header, chunks_end, &bytes).map_err(unread)? };
        if let Err(error) = &entries {
            found(Finding::damage(Kind::Index, error.to_string()));
        }
        if frame_len == len && trailer.is_ok() && entries.is_ok() {
            // Each by itself reads, but not together; places in the index are looked at one by one later.
            let together = first.field != "index: entry";
            if together {
                found(Finding::damage(Kind::Header, first.to_string()));
            }
        }
        Ok(FrameParts { header, trailer: trailer.ok(), entries: entries.ok(), chunks_end: chunks_end.min(len) })
    }
}

/// The trailer at the end of the file, which must be the end of the frame.
fn trailer_of(header: &FrameHeader, bytes: &FileBytes<'_>) -> std::result::Result<format::Result<Trailer>, Unread> {
    let len = bytes.len;
    let tail = FramePart::Trailer.read(bytes, len - len.min(Trailer::TAIL_LEN as u64)..len)?;
    told(
        Trailer::announced_len(&tail, header.header_len(), len)
            .map_err(Unread::Format)
            .and_then(|trailer_len| Ok(Trailer::parse_vec(FramePart::Trailer.read(bytes, len - u64::from(trailer_len)..len)?)?)),
    )
}

/// What is wrong with bytes is to be told; what cannot be read is an end.
fn told<T>(read: std::result::Result<T, Unread>) -> std::result::Result<format::Result<T>, Unread> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(Unread::Format(error)) => Ok(Err(error)),
        Err(other) => Err(other),
    }
}

fn index_of<P: Place>(
    header: &FrameHeader,
    at: u64,
    bytes: &FileBytes<'_>,
) -> std::result::Result<format::Result<Vec<IndexEntry<P>>>, Unread> {
    let room = bytes.len.saturating_sub(at);
    let start = at.min(bytes.len);
    let head = FramePart::Index.read(bytes, start..start + room.min(ChunkHeader::LEN as u64))?;
    let cbytes = match ChunkHeader::parse(&head) {
        Ok(chunk) => u64::from(chunk.cbytes),
        Err(error) => {
            let offset = at.saturating_add(error.offset);
            return Ok(Err(format::Error { field: "index: header", offset, ..error }));
        }
    };
    if cbytes > room {
        let expected = format!("at most {room}, what the file has from byte {at} on");
        return Ok(Err(format::Error::new("index: cbytes", at.saturating_add(12), cbytes, expected)));
    }
    told(FramePart::Index.read(bytes, at..at + cbytes).and_then(|raw| Ok(index::decode(&raw, header.nchunks())?)))
}
