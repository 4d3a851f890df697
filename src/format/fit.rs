//! What C-Blosc2 needs of a chunk in its place in a frame. Every way by which chunks enter a frame asks here.
//!
//! C-Blosc2 opens a frame by a look at its first chunk, and reads items from the header of a chunk and single blocks. So a chunk that
//! decodes may still be one that it does not read in a frame, or reads wrongly:
//!
//! | chunk | in a frame |
//! | --- | --- |
//! | zeros, NaN, uninitialised: a header alone | refused, unless the index has a special entry instead; where chunks vary in size an entry is no way out, as nothing gives its size |
//! | of Blosc1, with a header of 16 bytes | its block starts are looked for behind 32 bytes |
//! | of a codec that no number stands for | not read |
//! | no bytes | refused: it has no block |
//! | one value, repeated | the value must have the size of the frame's items |
//! | blocks of another size than the array's blockshape | whole chunks are read, slices are refused |
//! | items that are larger than the frame's, or no part of them | chunks are read, single items are refused |
//! | VL-blocks among other chunks, or the other way round | refused |
//!
//! An array whose metalayer does not parse, or whose shape is too large, is not opened. One whose chunks have another size than the
//! frame's is opened, and no item of it is read. One of fewer chunks than its shape takes is read as far as they go: the library has such
//! frames for a moment when it makes an array larger, so they are no reason to refuse a change.

use super::array::Array;
use super::chunk::{Form, Traits};
use super::header::FrameHeader;
use super::tiling::{self, Tiling};
use super::{Error, IndexEntry, Result, Special};

/// Larger items are items of one byte to a chunk's header.
const MAX_CHUNK_TYPESIZE: u32 = 255;

/// What all chunks of a frame have to be, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// 0 where chunks vary in size.
    chunksize: u32,
    typesize: u32,
    /// `None` where the first chunk is to say.
    vl_blocks: Option<bool>,
    /// Bytes of a block of the array, in a frame that is one.
    array_block: Option<u64>,
    /// Bytes of a block of special chunks.
    special_block: u64,
}

impl Rules {
    /// The rules of a frame.
    pub fn of(header: &FrameHeader) -> Rules {
        let fields = header.fields();
        let typesize = header.typesize();
        let array = Array::find(header.metalayers()).and_then(Result::ok).filter(|array| !array.shape.is_empty());
        let items = |array: Array| array.blockshape.iter().try_fold(1u64, |items, along| items.checked_mul(u64::from(*along)));
        let array_block = array.and_then(items).and_then(|items| items.checked_mul(u64::from(typesize))).filter(|size| *size > 0);
        Rules {
            chunksize: header.chunksize(),
            typesize,
            vl_blocks: Some(fields.vl_blocks),
            array_block,
            special_block: u64::try_from(fields.blocksize).unwrap_or(0),
        }
    }

    /// The same of a frame whose chunks have another size.
    #[must_use]
    pub fn with_chunksize(self, chunksize: u32) -> Rules {
        Rules { chunksize, ..self }
    }

    /// Whether chunks that fit where `other` holds fit here as well.
    pub fn allow_all_of(&self, other: &Rules) -> bool {
        let Rules { chunksize, typesize, vl_blocks, array_block, special_block } = *self;
        (chunksize == 0 || chunksize == other.chunksize)
            && (typesize, vl_blocks) == (other.typesize, other.vl_blocks)
            && (array_block.is_none() || (array_block, special_block) == (other.array_block, other.special_block))
    }

    /// What fits at `position` of a frame of `count` chunks.
    pub fn at(self, position: u64, count: u64) -> Fit {
        let vl_blocks = self.vl_blocks.filter(|_| count > 1);
        Rules { vl_blocks, ..self }.fit(position.saturating_add(1) >= count)
    }

    /// What is at `position` of a frame of `count` chunks that have `nbytes` in all.
    pub fn of_whole(self, position: u64, count: u64, nbytes: u64) -> Fit {
        let fit = self.at(position, count);
        let before = u64::from(self.chunksize).saturating_mul(count.saturating_sub(1));
        let last = nbytes.checked_sub(before).and_then(|last| u32::try_from(last).ok());
        match (fit.size, last) {
            (Size::AtMost(size), Some(last)) if last <= size => Fit { size: Size::Exactly(last), ..fit },
            _ => fit,
        }
    }

    /// What may fit somewhere in a frame of `count` chunks, by its size and form.
    pub fn somewhere(self, count: u64) -> Fit {
        self.at(count, count)
    }

    /// What sizes chunks may have in a frame of older libraries, which left short chunks before others.
    pub fn of_any_position(self) -> Fit {
        Fit { size: if self.chunksize == 0 { Size::Any } else { Size::AtMost(self.chunksize) }, rules: None }
    }

    /// The last chunk may be short, but in an array, where chunks are padded.
    fn fit(self, last: bool) -> Fit {
        let size = match (self.chunksize, last && self.array_block.is_none()) {
            (0, _) => Size::Any,
            (size, true) => Size::AtMost(size),
            (size, false) => Size::Exactly(size),
        };
        Fit { size, rules: Some(self) }
    }

    /// Checks that C-Blosc2 opens a frame, and reads it but for single chunks. A fault that the `old` frame in its place has too is no
    /// error, so that programs can change such a frame. (The library writes NaN for items of any size, and does not read them:
    /// `check_entry` finds those.)
    ///
    /// # Errors
    /// An array that the frame cannot be; special entries that the frame cannot have.
    pub fn check_frame<P, Q>(
        header: &FrameHeader,
        entries: &[IndexEntry<P>],
        old: Option<(&FrameHeader, &[IndexEntry<Q>])>,
    ) -> Result<()> {
        let is_new =
            |was: fn(&FrameHeader, &[IndexEntry<Q>]) -> Result<()>| old.is_none_or(|(header, old)| was(header, old).is_ok());
        check_array(header).or_else(|error| if is_new(|old, _| check_array(old)) { Err(error) } else { Ok(()) })?;
        let checked = Rules::of(header).check_entries(entries);
        checked.or_else(|error| if is_new(|old, entries| Rules::of(old).check_entries(entries)) { Err(error) } else { Ok(()) })
    }

    fn check_entries<P>(&self, entries: &[IndexEntry<P>]) -> Result<()> {
        // No value is better than another, so there is nothing to look for in most frames.
        if self.check_any_entry(Special::Zeros).is_ok() {
            return Ok(());
        }
        let special = entries.iter().find_map(|entry| match entry {
            IndexEntry::Special(special) => Some(*special),
            IndexEntry::Stored(_) => None,
        });
        special.map_or(Ok(()), |special| self.check_any_entry(special))
    }

    /// Checks that a special entry of the index is read.
    ///
    /// # Errors
    /// A frame that can have none.
    pub fn check_entry(&self, special: Special) -> Result<()> {
        self.check_any_entry(special)?;
        if special == Special::Nan && !matches!(self.typesize, 4 | 8) {
            let expected = format_args!("another, as the frame's items have {} bytes", self.typesize);
            return Err(Error::new("index: special value", 0, special.name(), expected));
        }
        Ok(())
    }

    fn check_any_entry(&self, special: Special) -> Result<()> {
        let expected = |what: String| Err(Error::new("index: special value", 0, special.name(), what));
        match self.array_block {
            _ if self.chunksize == 0 => expected("a chunk with data, as chunks of this frame vary in size".to_owned()),
            Some(size) if size != self.special_block => {
                let given = self.special_block;
                expected(format!("a chunk with data, as the header gives blocks of {given} bytes and the array blocks of {size}"))
            }
            _ => Ok(()),
        }
    }

    fn check_special(&self, chunk: &Traits, special: Special) -> Result<()> {
        self.check_entry(special)?;
        if !chunk.nbytes.is_multiple_of(self.typesize.max(1)) {
            return Err(Error::new("chunk: nbytes", 4, chunk.nbytes, format_args!("whole items of {} bytes", self.typesize)));
        }
        if special == Special::Nan && u32::from(chunk.typesize) != self.typesize {
            return self.another_typesize(chunk);
        }
        Ok(())
    }

    fn another_typesize(&self, chunk: &Traits) -> Result<()> {
        Err(Error::new("chunk: typesize", 3, chunk.typesize, format_args!("{}, the frame's", self.chunk_typesize())))
    }

    /// The size of items that the headers of chunks have.
    fn chunk_typesize(&self) -> u32 {
        if self.typesize > MAX_CHUNK_TYPESIZE { 1 } else { self.typesize }
    }

    fn check_stored(&self, chunk: &Traits) -> Result<()> {
        if let Form::Value(size) = chunk.form
            && size != self.typesize
        {
            let expected = format_args!("a value of {} bytes, as the frame's items have", self.typesize);
            return Err(Error::new("chunk: repeated value", 12, format_args!("{size} bytes"), expected));
        }
        if let Some(vl_blocks) = self.vl_blocks.filter(|vl_blocks| *vl_blocks != (chunk.form == Form::VlBlocks)) {
            let (found, expected) =
                if vl_blocks { ("blocks of one size", "VL-blocks") } else { ("VL-blocks", "blocks of one size") };
            return Err(Error::new("chunk: flags2", 30, found, format_args!("{expected}, as the frame has")));
        }
        if let Some(size) = self.array_block.filter(|size| *size != u64::from(chunk.blocksize)) {
            return Err(Error::new("chunk: blocksize", 8, chunk.blocksize, format_args!("{size}, the array's")));
        }
        let (typesize, ours) = (u32::from(chunk.typesize), self.chunk_typesize());
        // Items are counted in bytes where the library reads them, so parts of items are no harm.
        let is_read = if self.array_block.is_some() { typesize == ours } else { ours.is_multiple_of(typesize.max(1)) };
        // The size of a value is the item's.
        if is_read || matches!(chunk.form, Form::Value(_)) { Ok(()) } else { self.another_typesize(chunk) }
    }
}

/// Checks that chunks of the frame's size can be those of the array that its header describes.
fn check_array(header: &FrameHeader) -> Result<()> {
    let Some(array) = Array::find(header.metalayers()).transpose()? else { return Ok(()) };
    match header.nbytes() {
        // The first chunk sets the size of all.
        0 => tiling::len_of(&array, header.typesize()).map(drop),
        _ => Tiling::new(&array, header.typesize(), header.chunksize()).map(drop),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    /// Chunks vary in size, or nothing is known yet.
    Any,
    /// The last chunk, which may be shorter.
    AtMost(u32),
    /// Every other one.
    Exactly(u32),
}

/// How a frame has a chunk that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// As it is.
    Stored,
    /// As a special entry of the index.
    Entry(Special),
}

/// What chunks fit a place in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    size: Size,
    /// `None` where the frame is not known yet.
    rules: Option<Rules>,
}

impl Fit {
    /// What fits a frame of which nothing is known.
    pub const ANY: Fit = Fit { size: Size::Any, rules: None };

    /// Checks a chunk that is to be stored as it is.
    ///
    /// # Errors
    /// A chunk that does not fit.
    pub fn check(&self, chunk: &Traits) -> Result<()> {
        match self.keep(chunk)? {
            Kept::Entry(special) if self.rules.is_some() => {
                Err(Error::new("chunk: special value", 31, special.name(), "a chunk with data, or a special entry of the index"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a chunk, and returns how the frame is to have it.
    ///
    /// # Errors
    /// A chunk that does not fit in either way.
    pub fn keep(&self, chunk: &Traits) -> Result<Kept> {
        self.check_size(chunk.nbytes)?;
        if chunk.nbytes == 0 {
            return Err(Error::new("chunk: nbytes", 4, 0, "1 at least"));
        }
        if chunk.form == Form::Blosc1 {
            return Err(Error::new("chunk: flags", 2, "a chunk of Blosc1", "a chunk of Blosc2"));
        }
        if chunk.form == Form::UnknownCodec {
            return Err(Error::new("chunk: flags", 2, "a codec that is none", "BloscLZ, LZ4, Zlib, Zstd or a registered one"));
        }
        match (chunk.special(), &self.rules) {
            (Some(special), Some(rules)) => rules.check_special(chunk, special)?,
            (None, Some(rules)) => rules.check_stored(chunk)?,
            (_, None) => {}
        }
        Ok(chunk.special().map_or(Kept::Stored, Kept::Entry))
    }

    /// Checks the size alone.
    ///
    /// # Errors
    /// A size that does not fit.
    pub fn check_size(&self, nbytes: u32) -> Result<()> {
        let err = |expected: String| Err(Error::new("chunk: nbytes", 4, nbytes, expected));
        match self.size {
            Size::AtMost(size) if nbytes == 0 || nbytes > size => err(format!("1 to {size}, the frame's chunksize")),
            Size::Exactly(size) if nbytes != size => err(match self.rules {
                Some(rules) if rules.chunksize != size => format!("{size}, what the frame's nbytes leave for the last chunk"),
                _ => format!("{size}, the frame's chunksize"),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ChunkId;
    use crate::format::header::HeaderFields;
    use crate::format::metalayer::Metalayer;

    const RULES: Rules = Rules { chunksize: 4096, typesize: 8, vl_blocks: Some(false), array_block: None, special_block: 512 };
    const ARRAY: Rules = Rules { array_block: Some(512), ..RULES };
    const CHUNK: Traits = Traits { nbytes: 4096, blocksize: 512, typesize: 8, form: Form::Blocks };

    fn special(special: Special) -> Traits {
        Traits { blocksize: 4096, form: Form::Special(special), ..CHUNK }
    }

    #[test]
    fn special_chunks_are_entries_where_the_index_can_have_them() {
        for value in [Special::Zeros, Special::Nan, Special::Uninit] {
            for rules in [RULES, ARRAY] {
                assert_eq!(rules.at(0, 3).keep(&special(value)), Ok(Kept::Entry(value)));
                assert!(rules.at(0, 3).check(&special(value)).is_err(), "it is not stored");
            }
            assert!(RULES.with_chunksize(0).at(0, 3).keep(&special(value)).is_err());
            assert!(Rules { special_block: 64, ..ARRAY }.at(0, 3).keep(&special(value)).is_err());
            assert_eq!(Fit::ANY.keep(&special(value)), Ok(Kept::Entry(value)));
        }
        let narrow = |value| Traits { typesize: 4, ..special(value) };
        assert!(RULES.at(0, 3).keep(&narrow(Special::Nan)).is_err());
        assert!(RULES.at(0, 3).keep(&narrow(Special::Zeros)).is_ok());
        assert!(Rules { typesize: 3, ..RULES }.at(0, 3).keep(&special(Special::Zeros)).is_err());
    }

    #[test]
    fn a_frame_whose_chunks_vary_in_size_has_no_special_entries() {
        let entries = [IndexEntry::Stored(0), IndexEntry::Special(Special::Zeros)];
        assert!(RULES.check_entries(&entries).is_ok());
        let varying = RULES.with_chunksize(0);
        assert!(varying.check_entries(&entries).is_err() && varying.check_entries(&entries[..1]).is_ok());
    }

    /// A frame of chunks of 4096 bytes, in blocks of 512, that is to be an array of these items along each dimension.
    fn array(nbytes: u64, dims: &[(u64, u32, u32)]) -> FrameHeader {
        let real = include_bytes!("../../tests/data/cframe/stored.b2frame");
        let real = FrameHeader::parse(real).unwrap().fields();
        let fields = HeaderFields { nbytes, chunksize: 4096, typesize: 8, blocksize: 512, ..real };
        let content = Array::cut(dims).encode().unwrap();
        FrameHeader::encode(&fields, &[Metalayer { name: b"b2nd", content: &content }]).unwrap()
    }

    #[test]
    fn an_array_is_what_the_chunks_of_its_frame_hold() {
        const STORED: &[IndexEntry<ChunkId>] = &[IndexEntry::Stored(ChunkId(0)), IndexEntry::Stored(ChunkId(1))];
        let check =
            |new: &FrameHeader, old: Option<&FrameHeader>| Rules::check_frame(new, STORED, old.map(|old| (old, STORED))).is_ok();
        let sound = array(8192, &[(1024, 512, 64)]);
        assert!(check(&sound, None) && check(&sound, Some(&sound)));
        for growing in [array(8192, &[(2048, 512, 64)]), array(0, &[(2048, 16, 16)])] {
            assert!(check(&growing, Some(&sound)), "the library makes such for a moment");
        }
        let huge = u64::MAX / 2;
        for wrong in [&[(1024, 256, 64)][..], &[(1024, 512, 1024)], &[(1024, 511, 60)], &[(huge, 512, 64)], &[]] {
            let wrong = array(8192, wrong);
            assert!(!check(&wrong, None) && !check(&wrong, Some(&sound)));
            assert!(check(&wrong, Some(&wrong)), "a frame may keep the fault that it has");
        }
        assert!(!check(&array(0, &[(huge, 512, 64)]), Some(&sound)));
    }

    #[test]
    fn an_array_without_data_has_the_blocks_of_its_frame() {
        let check = |new: &FrameHeader, special| {
            let entries: [IndexEntry<ChunkId>; 1] = [IndexEntry::Special(special)];
            Rules::check_frame(new, &entries, None::<(_, &[IndexEntry<ChunkId>])>).is_ok()
        };
        let (sound, other) = (array(4096, &[(512, 512, 64)]), array(4096, &[(512, 512, 32)]));
        for special in [Special::Zeros, Special::Nan, Special::Uninit] {
            assert!(check(&sound, special) && !check(&other, special));
        }
        let other = Rules { special_block: 256, ..ARRAY };
        assert!(!other.allow_all_of(&ARRAY) && ARRAY.allow_all_of(&ARRAY));
        assert!(Rules { special_block: 256, ..RULES }.allow_all_of(&RULES));
    }

    #[test]
    fn blocks_of_an_array_have_its_size() {
        let other = Traits { blocksize: 1024, ..CHUNK };
        assert!(ARRAY.at(1, 3).check(&CHUNK).is_ok() && ARRAY.at(1, 3).check(&other).is_err());
        assert!(RULES.at(1, 3).check(&other).is_ok());
        let short = Traits { nbytes: 1024, ..CHUNK };
        assert!(RULES.at(2, 3).check(&short).is_ok() && ARRAY.at(2, 3).check(&short).is_err());
        let value = Traits { blocksize: 4096, form: Form::Value(8), ..CHUNK };
        assert!(RULES.at(1, 3).check(&value).is_ok() && ARRAY.at(1, 3).check(&value).is_err());
    }

    #[test]
    fn items_are_those_of_the_frame() {
        let of = |typesize| Traits { typesize, ..CHUNK };
        let fits = |rules: Rules, typesize| rules.at(0, 3).check(&of(typesize)).is_ok();
        assert_eq!([1, 4, 8, 16, 3].map(|size| fits(RULES, size)), [true, true, true, false, false]);
        assert_eq!([1, 4, 8, 16].map(|size| fits(ARRAY, size)), [false, false, true, false]);
        let wide = Rules { typesize: 512, ..RULES };
        assert!(fits(wide, 1) && !fits(wide, 8));
        let value = |size| Traits { form: Form::Value(size), ..CHUNK };
        assert!(RULES.at(0, 3).check(&value(8)).is_ok() && RULES.at(0, 3).check(&value(4)).is_err());
        assert!(wide.at(0, 3).check(&value(512)).is_ok());
    }

    #[test]
    fn what_no_frame_has_is_refused() {
        assert!(Fit::ANY.keep(&Traits { form: Form::Blosc1, ..CHUNK }).is_err());
        assert!(Fit::ANY.keep(&Traits { form: Form::UnknownCodec, ..CHUNK }).is_err());
        assert!(Fit::ANY.keep(&Traits { nbytes: 0, ..CHUNK }).is_err());
        assert!(RULES.at(0, 3).keep(&Traits { form: Form::VlBlocks, ..CHUNK }).is_err());
        assert!(Rules { vl_blocks: Some(true), ..RULES }.at(0, 3).keep(&CHUNK).is_err());
    }
}
