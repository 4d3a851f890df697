//! Making a frame of an array in a file of NumPy's: chunks are cut out of it and encoded by all cores, and staged in order. As with
//! [`super::copy`], one commit makes a frame of them; until then the target has no name, and nothing is left of it if the copy fails.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;

use super::npy_file::NpyFile;
use super::{CframeStore, FrameImage, FrameStore, Location, NewFrame, OpenOptions, Result, SframeStore};
use crate::format::array::{Array, ArrayKind, Dtype, VERSION};
use crate::format::chunk::{ChunkHeader, Decoder, Encoder, Params, Split};
use crate::format::cutting::{Cutting, Rows};
use crate::format::header::{FrameHeader, HeaderFields};
use crate::format::metalayer::Metalayer;
use crate::format::partition::{Caches, Partition};
use crate::format::registry::{CodecId, FilterId};
use crate::format::trailer::Trailer;
use crate::format::{self, IndexEntry, Layout, Position};

/// Chunks in work, for each thread: the one that it makes, and one that waits to be written.
const IN_WORK: usize = 2;

/// How the chunks of a new array are to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewArray {
    /// Items of a chunk in each dimension, if they are not for [`Partition`] to choose.
    pub chunks: Option<Vec<u32>>,
    /// Items of a block, likewise.
    pub blocks: Option<Vec<u32>>,
    /// The codec.
    pub codec: CodecId,
    /// Its level, 0 to 9.
    pub level: u8,
    /// The filters in the order in which they are applied, each with its metadata.
    pub filters: [(FilterId, u8); 6],
}

impl Default for NewArray {
    /// What python-blosc2 4.14 takes: Zstandard at level 5, after shuffle.
    fn default() -> Self {
        let mut filters = [(FilterId::NONE, 0); 6];
        let [.., last] = &mut filters;
        last.0 = FilterId(1);
        NewArray { chunks: None, blocks: None, codec: CodecId(5), level: 5, filters }
    }
}

/// An array to be copied, and how.
pub struct ArrayCopy {
    file: NpyFile,
    cutting: Cutting,
    params: Params,
    header: FrameHeader,
}

impl ArrayCopy {
    /// Decides how the array in a file is cut and encoded.
    ///
    /// # Errors
    /// What a frame cannot hold, or the encoder not make.
    pub fn of(file: NpyFile, new: &NewArray, caches: Caches) -> Result<Self> {
        let made = plan(&file, new, caches);
        match made {
            Ok((cutting, params, header)) => Ok(ArrayCopy { file, cutting, params, header }),
            // Nothing of it has a place in a file yet.
            Err(format::Error { field, got, expected, .. }) => {
                Err(file.failed(format!("cannot become an array: {field}: found {got}, expected {expected}")))
            }
        }
    }

    /// Bytes of the array.
    pub fn bytes(&self) -> u64 {
        self.file.header().data_len().unwrap_or(0)
    }

    /// Chunks of the array.
    pub fn count(&self) -> u64 {
        self.cutting.nchunks()
    }

    /// The file's permission bits.
    pub fn mode(&self) -> u32 {
        self.file.mode()
    }

    /// Makes a store for the copy, with no more room for the header than it needs.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn create(&self, at: &Location, layout: Layout, new: NewFrame) -> Result<Arc<dyn FrameStore>> {
        let header_room = self.header.as_bytes().len() as u64;
        let options = OpenOptions { replace: new.replaced.is_some(), header_room, ..OpenOptions::default() };
        Ok(match layout {
            Layout::Contiguous => Arc::new(CframeStore::create_at(at, options, new)?),
            Layout::Sparse => Arc::new(SframeStore::create_at(at, options, new)?),
        })
    }

    /// Copies into a store that holds no frame yet, with so many threads. `progress` is told how many bytes of the array each chunk held,
    /// and answers whether to go on. `true` if the copy is on disk; `false` if it was stopped, and `target` holds nothing.
    ///
    /// # Errors
    /// What the system and the store refuse; another process has changed the file meanwhile.
    pub fn run(&self, target: &dyn FrameStore, threads: usize, progress: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let count = usize::try_from(self.cutting.nchunks()).unwrap_or(usize::MAX);
        let threads = threads.clamp(1, count.max(1));
        let mut entries = Vec::with_capacity(count.min(1 << 20));
        let (spare, spares) = channel();
        for _ in 0..threads * IN_WORK {
            // Nobody has gone yet.
            let _ = spare.send(Vec::new());
        }
        let claims = Claims { spares: Mutex::new((spares, 0)), count: count as u64, stopped: AtomicBool::new(false) };
        let done = thread::scope(|scope| {
            // Dropped at the end of this closure, whichever it is: then all threads end.
            let (spare, (made, arriving)) = (spare, channel());
            for _ in 0..threads {
                let (claims, made) = (&claims, made.clone());
                scope.spawn(move || self.work(claims, &made));
            }
            drop(made);
            let done = stage_in_order(target, &arriving, &spare, count as u64, |entry, n| {
                entries.push(entry);
                progress(self.cutting.visible(Position(n)))
            });
            claims.stopped.store(true, Relaxed);
            done
        })?;
        if !done {
            return Ok(false);
        }
        self.file.check_unchanged()?;
        let trailer = Trailer::encode(&[]).map_err(|error| self.file.failed(error.to_string()))?;
        target.commit(target.enter(), FrameImage { header: self.header.clone(), trailer, entries: Arc::new(entries) })?;
        target.sync()?;
        Ok(true)
    }

    /// Makes one chunk after the other, until there are no more.
    fn work(&self, claims: &Claims, made: &Sender<Made>) {
        let (mut encoder, mut rows, mut plain) = (Encoder::default(), Rows::default(), Vec::new());
        let (mut decoder, mut again) = (Decoder::default(), Vec::new());
        let is_exact = self.params.filters.iter().all(|(id, _)| *id != FilterId::TRUNC_PREC);
        while let Some((n, mut chunk)) = claims.next() {
            let chunk = catch_unwind(AssertUnwindSafe(|| {
                let read = |offset, buf: &mut [u8]| self.file.read(offset, buf);
                self.cutting.fill(Position(n), read, &mut rows, &mut plain)?;
                let encoded = encoder.encode(&plain, &self.params, &mut chunk);
                // The file may be removed when it is converted: that nothing is lost is seen here.
                let decoded = encoded.and_then(|()| decoder.decode_into(&chunk, plain.len(), &mut again));
                decoded.map_err(|error| self.file.failed(format!("chunk {n}: {error}")))?;
                if is_exact && again != plain {
                    return Err(self.file.failed(format!("chunk {n}: does not decode to what was compressed")));
                }
                Ok(chunk)
            }));
            if made.send((n, chunk)).is_err() {
                return;
            }
        }
    }
}

/// A chunk, or what kept from it: an error or a panic.
type Made = (u64, std::result::Result<Result<Vec<u8>>, Box<dyn Any + Send>>);

/// What the threads take their work from.
struct Claims {
    /// Buffers for chunks, and which chunk is next. Who has a buffer has the next chunk, so that what is waited for is always in work.
    spares: Mutex<(Receiver<Vec<u8>>, u64)>,
    count: u64,
    stopped: AtomicBool,
}

impl Claims {
    fn next(&self) -> Option<(u64, Vec<u8>)> {
        let mut spares = self.spares.lock();
        if spares.1 >= self.count || self.stopped.load(Relaxed) {
            return None;
        }
        let spare = spares.0.recv().ok()?;
        let n = spares.1;
        spares.1 += 1;
        Some((n, spare))
    }
}

/// Stages chunks in their order, in whichever they arrive, and gives their buffers back. `false` if `each` wants no more.
fn stage_in_order(
    target: &dyn FrameStore,
    arriving: &Receiver<Made>,
    spare: &Sender<Vec<u8>>,
    count: u64,
    mut each: impl FnMut(IndexEntry<super::ChunkKey>, u64) -> bool,
) -> Result<bool> {
    let mut early = BTreeMap::new();
    for n in 0..count {
        let chunk = loop {
            if let Some(chunk) = early.remove(&n) {
                break chunk;
            }
            // The threads end with their work, and not before.
            let Ok((n, chunk)) = arriving.recv() else { return Ok(false) };
            early.insert(n, chunk.unwrap_or_else(|panic| resume_unwind(panic))?);
        };
        let special = ChunkHeader::parse(&chunk).ok().and_then(|header| header.special);
        let entry = match special {
            Some(special) => IndexEntry::Special(special),
            None => IndexEntry::Stored(target.stage(&chunk.as_slice())?),
        };
        if !each(entry, n) {
            return Ok(false);
        }
        // The last ones are needed no more.
        let _ = spare.send(chunk);
    }
    Ok(true)
}

/// How an array is cut and encoded, and the header that says so.
fn plan(file: &NpyFile, new: &NewArray, caches: Caches) -> format::Result<(Cutting, Params, FrameHeader)> {
    let npy = file.header();
    let itemsize = u32::try_from(npy.item.size()).ok().filter(|size| *size > 0 && i32::try_from(*size).is_ok());
    let Some(itemsize) = itemsize else {
        return Err(format::Error::new("npy: descr", 0, format_args!("items of {} bytes", npy.item.size()), "1 to 2^31 - 1"));
    };
    let Partition { chunks, blocks } =
        Partition::new(&npy.shape, itemsize.into(), new.chunks.as_deref(), new.blocks.as_deref(), caches)?;
    let array = Array {
        kind: ArrayKind::B2nd,
        version: VERSION,
        shape: npy.shape.clone(),
        chunkshape: chunks,
        blockshape: blocks,
        dtype: Some(Dtype { format: 0, text: npy.item.b2nd_text() }),
    };
    let cutting = Cutting::new(&array, itemsize, npy.fortran_order)?;
    let blocksize = cutting.block_len() as u32;
    let params = Params {
        codec: new.codec,
        level: new.level,
        filters: new.filters,
        typesize: itemsize,
        blocksize: blocksize.max(1),
        split: Split::Auto,
    };
    // What is wrong with them shows with any chunk.
    Encoder::default().encode(&[], &params, &mut Vec::new())?;
    let nbytes = cutting.nchunks().checked_mul(cutting.chunk_len() as u64).filter(|nbytes| i64::try_from(*nbytes).is_ok());
    let Some(nbytes) = nbytes else {
        let got = format_args!("{:?} in chunks of {:?}", array.shape, array.chunkshape);
        return Err(format::Error::new("array: shape", 0, got, "less than 2^63 bytes, padding included"));
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(i16::MAX as usize) as i16;
    let fields = HeaderFields {
        // For the store to set.
        frame_len: i64::MAX as u64,
        version: 2,
        varying_chunks: false,
        vl_blocks: false,
        layout: Layout::Contiguous,
        codec: new.codec.0,
        clevel: new.level,
        split_mode: 3,
        nbytes,
        cbytes: 0,
        typesize: itemsize,
        blocksize: blocksize as i32,
        chunksize: cutting.chunk_len() as i32,
        nthreads_compress: threads,
        nthreads_decompress: threads,
        has_vlmetalayers: false,
        filters: new.filters.map(|(id, _)| id.0),
        filters_meta: new.filters.map(|(_, meta)| meta),
        user_codec: 0,
        codec_meta: 0,
        use_dict: false,
    };
    let content = array.encode()?;
    let header = FrameHeader::encode(&fields, &[Metalayer { name: ArrayKind::B2nd.name().as_bytes(), content: &content }])?;
    Ok((cutting, params, header))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::chunk::Decoder;
    use crate::format::npy::{ItemType, header};
    use crate::store::copy::FrameCopy;

    /// Makes a file of numbers of 4 bytes, most of which are zeros.
    fn numbers(path: &Path, shape: &[u64]) -> Vec<u8> {
        let count = shape.iter().product::<u64>() as u32;
        let items: Vec<u8> = (0..count).flat_map(|n| if n / 1000 % 3 == 0 { n.to_le_bytes() } else { [0; 4] }).collect();
        std::fs::write(path, [header(&ItemType::parse("<i4").unwrap(), shape).unwrap(), items.clone()].concat()).unwrap();
        items
    }

    fn copy(path: &Path, new: &NewArray) -> ArrayCopy {
        let file = NpyFile::open(&Location::existing(path).unwrap()).unwrap().unwrap();
        ArrayCopy::of(file, new, Caches::default()).unwrap()
    }

    #[test]
    fn chunks_are_in_order_whoever_makes_them() {
        let dir = tempfile::tempdir().unwrap();
        let items = numbers(&dir.path().join("x.npy"), &[100, 100]);
        let new = NewArray { chunks: Some(vec![3, 100]), blocks: Some(vec![1, 100]), ..NewArray::default() };
        let mut files = Vec::new();
        for (threads, layout) in [(1, Layout::Contiguous), (7, Layout::Contiguous), (64, Layout::Sparse)] {
            let at = Location::to_be(&dir.path().join(format!("{threads}.b2nd"))).unwrap();
            let copy = copy(&dir.path().join("x.npy"), &new);
            let target = copy.create(&at, layout, NewFrame::default()).unwrap();
            let mut told = Vec::new();
            let done = copy.run(&*target, threads, &mut |bytes| {
                told.push(bytes);
                true
            });
            assert!(done.unwrap());
            target.close().unwrap();
            assert_eq!((told.len(), told.iter().sum::<u64>(), told.last()), (34, copy.bytes(), Some(&400)));
            let made = FrameCopy::of(&at).unwrap();
            let (mut decoder, mut again) = (Decoder::default(), Vec::new());
            let mut zeros = 0;
            for entry in made.image.entries.iter() {
                let IndexEntry::Stored(key) = *entry else {
                    again.resize(again.len() + 1200, 0);
                    zeros += 1;
                    continue;
                };
                let guard = made.source.enter();
                let [len] = made.source.chunk_lens(&guard, &[*entry]).unwrap()[..] else { unreachable!() };
                let mut chunk = vec![0; len as usize];
                made.source.read_chunk(&guard, key, len, 0, &mut chunk).unwrap();
                again.extend(decoder.decode(&chunk, 1200).unwrap());
            }
            assert!(again[..items.len()] == items && again[items.len()..].iter().all(|byte| *byte == 0), "{threads}");
            assert!(zeros > 15, "{zeros} chunks of zeros");
            if layout == Layout::Contiguous {
                files.push(std::fs::read(dir.path().join(format!("{threads}.b2nd"))).unwrap());
            }
        }
        assert!(files[0] == files[1], "another file by other threads");
    }

    #[test]
    fn nothing_is_left_of_a_copy_that_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.npy");
        let items = numbers(&path, &[100, 100]);
        let new = NewArray { chunks: Some(vec![3, 100]), ..NewArray::default() };
        let at = Location::to_be(&dir.path().join("x.b2nd")).unwrap();
        // Stopped; cut while it is being read; changed.
        let faults: [(&dyn Fn(), usize, &str); 3] = [
            (&|| {}, 3, "stopped"),
            (&|| std::fs::File::options().write(true).open(&path).unwrap().set_len(8000).unwrap(), 99, "cannot be read"),
            (&|| drop(numbers(&path, &[100, 101])), 99, "changed by another process"),
        ];
        for (fault, chunks, said) in faults {
            assert_eq!(numbers(&path, &[100, 100]), items);
            let copy = copy(&path, &new);
            let target = copy.create(&at, Layout::Contiguous, NewFrame::default()).unwrap();
            fault();
            let mut count = 0;
            let done = copy.run(&*target, 4, &mut |_| {
                count += 1;
                count < chunks
            });
            match done {
                Ok(done) => assert_eq!((done, count, said), (false, 3, "stopped")),
                Err(error) => assert!(error.to_string().contains(said), "{error}, expected {said}"),
            }
            drop(target);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "{said}");
        }
    }
}
