//! Arrays: the multidimensional metalayers on top of a frame, **b2nd** and its forerunner **Caterva**.
//!
//! ```text
//! 97 version ndim | 9n { d3 shape } | 9n { d2 chunkshape } | 9n { d2 blockshape } | dtype_format | db len dtype
//!  1    1     1      1   1 + 8         1   1 + 4              1   1 + 4              1             1 + 4 + len
//! ```
//!
//! A Caterva metalayer begins with 95 and ends behind the blockshape, as some b2nd ones do. As C-Blosc2 does, reading asks for
//! no markers but the dtype's. Items of an array go to chunks of chunkshape, in C order, and each chunk's to blocks; what hangs over
//! an edge is padded.

use super::metalayer::Metalayer;
use super::msgpack::Reader;
use super::{Error, Position, Result};

/// The version of both metalayers. C-Blosc2 asks for none, and reads all as if they were of this one.
pub const VERSION: u8 = 0;
/// The most dimensions that C-Blosc2 takes.
pub const MAX_DIM: u8 = 16;
/// Bytes in front of the shape: array, version, ndim.
const NDIM: u64 = 2;
const STR32: u8 = 0xdb;

/// Which metalayer describes an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArrayKind {
    /// Blosc2's own.
    B2nd,
    /// What came before it.
    Caterva,
}

impl ArrayKind {
    /// The metalayer's name.
    pub const fn name(self) -> &'static str {
        match self {
            ArrayKind::B2nd => "b2nd",
            ArrayKind::Caterva => "caterva",
        }
    }
}

/// The type of an array's items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dtype {
    /// 0 for NumPy's way of naming types; nothing else is defined.
    pub format: u8,
    /// Such as `<i4`, or a list of fields. Not always UTF-8 on disk; what is not is replaced.
    pub text: String,
}

/// An array's shape and type. The three shapes have one length, ndim, which is 0 for a single item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// Which metalayer it is from.
    pub kind: ArrayKind,
    /// The metalayer's own version.
    pub version: u8,
    /// Items in each dimension.
    pub shape: Vec<u64>,
    /// Items of a chunk in each dimension; 0 only where shape is 0.
    pub chunkshape: Vec<u32>,
    /// Items of a block in each dimension; 0 only where shape is 0.
    pub blockshape: Vec<u32>,
    /// Only where the metalayer has one.
    pub dtype: Option<Dtype>,
}

impl Array {
    /// The array that some metalayers describe, if one does: b2nd goes before Caterva, as in C-Blosc2.
    pub fn find<'a>(metalayers: impl Iterator<Item = Metalayer<'a>>) -> Option<Result<Self>> {
        let mut found = None;
        for layer in metalayers {
            if layer.name == ArrayKind::B2nd.name().as_bytes() {
                return Some(Array::parse(ArrayKind::B2nd, layer.content));
            }
            if layer.name == ArrayKind::Caterva.name().as_bytes() {
                found = Some(layer);
            }
        }
        found.map(|layer| Array::parse(ArrayKind::Caterva, layer.content))
    }

    /// Parses a metalayer's content. What lies behind it is not looked at.
    ///
    /// # Errors
    /// A content that ends too early, more than [`MAX_DIM`] dimensions, negative sizes, chunks or blocks without items in a
    /// dimension that has some, or a dtype that is no string.
    pub fn parse(kind: ArrayKind, content: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(content, 0);
        let [_array, version, ndim] = reader.array("array: header")?;
        if ndim > MAX_DIM {
            return Err(Error::new("array: ndim", NDIM, ndim, format_args!("at most {MAX_DIM}")));
        }
        let shape = sizes::<8>(&mut reader, ndim, "array: shape", |bytes| u64::try_from(i64::from_be_bytes(bytes)).ok())?;
        let chunkshape = shape_of_parts(&mut reader, &shape, "array: chunkshape")?;
        let blockshape = shape_of_parts(&mut reader, &shape, "array: blockshape")?;
        let dtype = if reader.is_empty() || kind == ArrayKind::Caterva { None } else { Some(dtype(&mut reader)?) };
        Ok(Array { kind, version, shape, chunkshape, blockshape, dtype })
    }

    /// The content of its metalayer, which [`Array::parse`] takes back, as C-Blosc2 writes it: of b2nd with a dtype, empty if there is
    /// none; of Caterva without.
    ///
    /// # Errors
    /// More than [`MAX_DIM`] dimensions, sizes that are too large for their fields, shapes of different lengths.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let ndim = u8::try_from(self.shape.len()).ok().filter(|ndim| *ndim <= MAX_DIM);
        let Some(ndim) = ndim else {
            return Err(Error::new("array: ndim", NDIM, self.shape.len(), format_args!("at most {MAX_DIM}")));
        };
        let mut out = vec![if self.kind == ArrayKind::B2nd { 0x97 } else { 0x95 }, self.version, ndim];
        put_sizes(&mut out, ndim, &self.shape, 0xd3, "array: shape", |size| i64::try_from(*size).ok().map(i64::to_be_bytes))?;
        for (parts, field) in [(&self.chunkshape, "array: chunkshape"), (&self.blockshape, "array: blockshape")] {
            put_sizes(&mut out, ndim, parts, 0xd2, field, |size| i32::try_from(*size).ok().map(i32::to_be_bytes))?;
        }
        if self.kind == ArrayKind::B2nd {
            let (format, text) = self.dtype.as_ref().map_or((0, ""), |dtype| (dtype.format, &dtype.text));
            let len = i32::try_from(text.len())
                .map_err(|_| Error::new("array: dtype", out.len() as u64, text.len(), format_args!("at most {}", i32::MAX)))?;
            out.extend([format, STR32]);
            out.extend(len.to_be_bytes());
            out.extend(text.bytes());
        }
        Ok(out)
    }

    /// Items of the whole array, `None` where that is more than can be counted.
    pub fn items(&self) -> Option<u64> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(1u64, |items, &size| items.checked_mul(size))
    }

    /// Chunks in each dimension.
    pub fn grid(&self) -> Vec<u64> {
        let along = |(&size, &chunk): (&u64, &u32)| size.div_ceil(u64::from(chunk.max(1)));
        self.shape.iter().zip(&self.chunkshape).map(along).collect()
    }

    /// The chunks that the array must have, `None` where that is more than can be counted.
    pub fn nchunks(&self) -> Option<u64> {
        let grid = self.grid();
        if grid.contains(&0) {
            return Some(0);
        }
        grid.iter().try_fold(1u64, |count, &along| count.checked_mul(along))
    }

    /// Whether chunks, one after the other, hold the items in C order, and padding at the end at most.
    pub fn is_in_c_order(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let chunks: Vec<u64> = self.chunkshape.iter().copied().map(u64::from).collect();
        parts_are_in_order(&self.shape, &self.chunkshape, true)
            && parts_are_in_order(&chunks, &self.blockshape, self.nchunks() == Some(1))
    }

    /// Where in the [grid](Array::grid) a chunk is, in C order; `None` for one behind it.
    pub fn place(&self, position: Position) -> Option<Vec<u64>> {
        let mut rest = position.0;
        let mut place = self.grid();
        for along in place.iter_mut().rev() {
            let size = *along;
            *along = rest.checked_rem(size)?;
            rest = rest.checked_div(size)?;
        }
        (rest == 0).then_some(place)
    }
}

/// Whether parts of a shape, one after the other, are whole rows of it. The last one of all may hang over the edge, if the `end` is free.
fn parts_are_in_order(whole: &[u64], part: &[u32], end: bool) -> bool {
    let dims: Vec<(u64, u64)> = whole.iter().copied().zip(part.iter().copied().map(u64::from)).collect();
    let Some(cut) = dims.iter().position(|(_, part)| *part > 1) else { return true };
    let (before, from) = dims.split_at(cut);
    let Some(((size, part), behind)) = from.split_first() else { return true };
    let once = end && before.iter().all(|(size, _)| *size == 1);
    behind.iter().all(|(size, part)| size == part) && (once || size.checked_rem(*part) == Some(0))
}

/// The sizes of one shape, each behind a marker that is not checked.
fn sizes<const N: usize>(
    reader: &mut Reader<'_>,
    ndim: u8,
    field: &'static str,
    size: impl Fn([u8; N]) -> Option<u64>,
) -> Result<Vec<u64>> {
    reader.take(1, field)?;
    (0..ndim)
        .map(|_| {
            reader.take(1, field)?;
            let at = reader.position() as u64;
            let bytes = reader.array(field)?;
            size(bytes).ok_or_else(|| Error::new(field, at, "a negative size", "0 or more"))
        })
        .collect()
}

/// Writes the sizes of one shape, each behind its marker.
fn put_sizes<S, const N: usize>(
    out: &mut Vec<u8>,
    ndim: u8,
    sizes: &[S],
    marker: u8,
    field: &'static str,
    bytes: impl Fn(&S) -> Option<[u8; N]>,
) -> Result<()> {
    let at = out.len() as u64;
    if sizes.len() != usize::from(ndim) {
        return Err(Error::new(field, at, format_args!("{} sizes", sizes.len()), format_args!("{ndim}, as the shape has")));
    }
    // With 16 dimensions this is another marker than MessagePack's, which the library writes all the same.
    out.push(0x90_u8.saturating_add(ndim));
    for size in sizes {
        let Some(bytes) = bytes(size) else {
            return Err(Error::new(
                field,
                at,
                "a size too large for its field",
                format_args!("at most {} bits", N.saturating_mul(8).saturating_sub(1)),
            ));
        };
        out.push(marker);
        out.extend(bytes);
    }
    Ok(())
}

/// The shape of chunks or blocks, which must be able to hold something of a dimension that has something.
fn shape_of_parts(reader: &mut Reader<'_>, shape: &[u64], field: &'static str) -> Result<Vec<u32>> {
    let at = reader.position() as u64;
    let ndim = u8::try_from(shape.len()).unwrap_or(MAX_DIM);
    let parts = sizes::<4>(reader, ndim, field, |bytes| i32::from_be_bytes(bytes).try_into().ok())?;
    if let Some((size, _)) = shape.iter().zip(&parts).find(|(size, part)| **size > 0 && **part == 0) {
        return Err(Error::new(field, at, 0, format_args!("at least 1 in a dimension of {size} items")));
    }
    Ok(parts.into_iter().filter_map(|part| u32::try_from(part).ok()).collect())
}

fn dtype(reader: &mut Reader<'_>) -> Result<Dtype> {
    const FIELD: &str = "array: dtype";
    let [format, marker] = reader.array(FIELD)?;
    if marker != STR32 {
        let at = reader.position().saturating_sub(1) as u64;
        return Err(Error::new(FIELD, at, format_args!("{marker:#04x}"), "a string (0xdb)"));
    }
    let at = reader.position() as u64;
    let len = i32::from_be_bytes(reader.array(FIELD)?);
    let len = usize::try_from(len).map_err(|_| Error::new(FIELD, at, len, "a length that is not negative"))?;
    let text = String::from_utf8_lossy(reader.take(len, FIELD)?).into_owned();
    Ok(Dtype { format, text })
}

#[cfg(test)]
impl Array {
    /// One with these items, items of a chunk and items of a block along each dimension.
    pub fn cut(dims: &[(u64, u32, u32)]) -> Self {
        Array {
            kind: ArrayKind::B2nd,
            version: VERSION,
            shape: dims.iter().map(|dim| dim.0).collect(),
            chunkshape: dims.iter().map(|dim| dim.1).collect(),
            blockshape: dims.iter().map(|dim| dim.2).collect(),
            dtype: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(head: [u8; 3], shape: &[i64], parts: [&[i32]; 2]) -> Vec<u8> {
        let mut out = head.to_vec();
        out.push(0x90 + shape.len() as u8);
        shape.iter().for_each(|size| out.extend([&[0xd3][..], &size.to_be_bytes()].concat()));
        for part in parts {
            out.push(0x90 + part.len() as u8);
            part.iter().for_each(|size| out.extend([&[0xd2][..], &size.to_be_bytes()].concat()));
        }
        out
    }

    fn b2nd() -> Vec<u8> {
        let mut out = content([0x97, 0, 2], &[5, 7], [&[2, 3], &[1, 2]]);
        out.extend(b"\0\xdb\0\0\0\x03<i4");
        out
    }

    #[test]
    fn a_b2nd_metalayer() {
        let array = Array::parse(ArrayKind::B2nd, &b2nd()).unwrap();
        assert_eq!((array.shape.as_slice(), array.chunkshape.as_slice()), (&[5, 7][..], &[2, 3][..]));
        assert_eq!(array.blockshape, [1, 2]);
        assert_eq!(array.dtype, Some(Dtype { format: 0, text: "<i4".into() }));
        assert_eq!((array.items(), array.grid(), array.nchunks()), (Some(35), vec![3, 3], Some(9)));
        assert_eq!(array.place(Position(5)), Some(vec![1, 2]));
        assert_eq!(array.place(Position(9)), None);
    }

    #[test]
    fn chunks_that_are_whole_rows_are_in_order() {
        let in_order = |shape: &[i64], chunks: &[i32], blocks: &[i32]| {
            Array::parse(ArrayKind::B2nd, &content([0x97, 0, shape.len() as u8], shape, [chunks, blocks]))
                .unwrap()
                .is_in_c_order()
        };
        for (shape, chunks, blocks) in [
            (&[100, 100][..], &[10, 100][..], &[2, 100][..]),
            (&[100, 100], &[1, 100], &[1, 10]),
            (&[95, 100], &[10, 100], &[5, 100]),
            (&[3, 4, 5], &[1, 2, 5], &[1, 1, 5]),
            (&[1, 7, 5], &[1, 2, 5], &[1, 1, 5]),
            (&[100], &[100], &[30]),
            (&[100], &[30], &[10]),
            (&[0, 100], &[1, 30], &[1, 7]),
            (&[], &[], &[]),
        ] {
            assert!(in_order(shape, chunks, blocks), "{shape:?} {chunks:?} {blocks:?}");
        }
        for (shape, chunks, blocks) in [
            (&[100, 100][..], &[30, 40][..], &[10, 10][..]),
            (&[100, 100], &[10, 100], &[10, 50]),
            (&[100, 100], &[10, 50], &[1, 50]),
            (&[100, 100], &[10, 100], &[3, 100]),
            (&[3, 7, 5], &[1, 2, 5], &[1, 1, 5]),
            (&[100, 99], &[1, 50], &[1, 50]),
            (&[100], &[30], &[8]),
        ] {
            assert!(!in_order(shape, chunks, blocks), "{shape:?} {chunks:?} {blocks:?}");
        }
    }

    #[test]
    fn a_caterva_metalayer_has_no_dtype_and_b2nd_goes_before_it() {
        let caterva = content([0x95, 0, 1], &[4], [&[4], &[2]]);
        let layers = [Metalayer { name: b"caterva", content: &caterva }, Metalayer { name: b"b2nd", content: &b2nd() }];
        let found = |layers: &[Metalayer<'_>]| Array::find(layers.iter().copied()).map(|array| array.unwrap());
        let array = found(&layers[..1]).unwrap();
        assert_eq!((array.kind, array.dtype.clone()), (ArrayKind::Caterva, None));
        assert_eq!(found(&layers).unwrap().kind, ArrayKind::B2nd);
        assert_eq!(found(&[]), None);
    }

    #[test]
    fn no_items_and_a_single_one() {
        let empty = Array::parse(ArrayKind::B2nd, &content([0x97, 0, 2], &[0, 7], [&[0, 3], &[0, 2]])).unwrap();
        assert_eq!((empty.items(), empty.nchunks(), empty.place(Position(0))), (Some(0), Some(0), None));
        let single = Array::parse(ArrayKind::B2nd, &content([0x97, 0, 0], &[], [&[], &[]])).unwrap();
        assert_eq!((single.items(), single.nchunks()), (Some(1), Some(1)));
        assert_eq!((single.place(Position(0)), single.place(Position(1))), (Some(vec![]), None));
    }

    #[test]
    fn what_is_refused() {
        let whole = b2nd();
        let without_dtype = whole.len() - 9;
        for len in (0..whole.len()).filter(|len| *len != without_dtype) {
            assert!(Array::parse(ArrayKind::B2nd, &whole[..len]).is_err(), "{len} bytes");
        }
        assert_eq!(Array::parse(ArrayKind::B2nd, &whole[..without_dtype]).unwrap().dtype, None);
        let refused = |shape: &[i64], parts| Array::parse(ArrayKind::B2nd, &content([0x97, 0, shape.len() as u8], shape, parts));
        assert_eq!(refused(&[-1], [&[1], &[1]]).unwrap_err().field, "array: shape");
        assert_eq!(refused(&[1], [&[0], &[1]]).unwrap_err().field, "array: chunkshape");
        assert_eq!(refused(&[1], [&[1], &[-1]]).unwrap_err().field, "array: blockshape");
        assert_eq!(refused(&[1; 17], [&[1; 17], &[1; 17]]).unwrap_err().field, "array: ndim");
        let huge = refused(&[i64::MAX, i64::MAX], [&[1, 1], &[1, 1]]).unwrap();
        assert_eq!((huge.items(), huge.nchunks()), (None, None));
    }
}
