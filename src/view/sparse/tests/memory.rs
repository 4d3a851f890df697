use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::format::chunk::ChunkHeader;
use crate::format::{IndexEntry, Layout};
use crate::store::*;

#[derive(Default, Clone)]
pub struct OpenOptions {
    pub read_only: bool,
}

#[derive(Default)]
struct Disk {
    image: Option<Arc<FrameImage>>,
    chunks: HashMap<u64, Vec<u8>>,
    staged: HashSet<u64>,
    pins: HashMap<u64, u32>,
    next: u64,
}

static DISKS: LazyLock<Mutex<HashMap<PathBuf, Arc<Mutex<Disk>>>>> = LazyLock::new(Default::default);

pub struct CframeStore {
    path: PathBuf,
    disk: Arc<Mutex<Disk>>,
    drafts: Arc<DraftPool>,
}

impl CframeStore {
    pub fn create(path: &Path, _: OpenOptions) -> Result<Self> {
        let disk = DISKS.lock().entry(path.into()).or_default().clone();
        let backend = backend::FileBackend::open(path.parent().unwrap()).unwrap();
        Ok(CframeStore { path: path.into(), disk, drafts: DraftPool::new(Arc::new(backend), 1 << 20) })
    }
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        let this = Self::create(path, options)?;
        let file = std::fs::read(path).unwrap();
        let mut disk = this.disk.lock();
        if disk.image.is_none() {
            let header = crate::format::header::FrameHeader::parse(&file).unwrap();
            let n = crate::format::trailer::Trailer::announced_len(&file[file.len() - 25..], header.header_len(), header.frame_len()).unwrap() as usize;
            let s = header.sections(n as u32).unwrap();
            let trailer = crate::format::trailer::Trailer::parse(&file[file.len() - n..]).unwrap();
            let entries = crate::format::index::decode::<crate::format::ChunkOffset>(&file[s.index.start as usize..s.index.end as usize], header.nchunks()).unwrap();
            let base = header.header_len() as u64;
            let entries: Vec<_> = entries
                .into_iter()
                .map(|e| match e {
                    IndexEntry::Stored(o) => {
                        let at = (base + o.0) as usize;
                        let h = ChunkHeader::parse(&file[at..at + 32]).unwrap();
                        disk.chunks.insert(at as u64, file[at..at + h.cbytes as usize].to_vec());
                        IndexEntry::Stored(ChunkKey(at as u64))
                    }
                    IndexEntry::Special(s) => IndexEntry::Special(s),
                })
                .collect();
            disk.next = 1 << 30;
            disk.image = Some(Arc::new(FrameImage { header, trailer, entries: Arc::new(entries) }));
        }
        drop(disk);
        Ok(this)
    }
}

impl Disk {
    fn free(&mut self) {
        let live: HashSet<u64> = self.image.iter().flat_map(|i| i.entries.iter()).filter_map(|e| if let IndexEntry::Stored(k) = e { Some(k.0) } else { None }).collect();
        let (staged, pins) = (&self.staged, &self.pins);
        self.chunks.retain(|k, _| live.contains(k) || staged.contains(k) || pins.contains_key(k));
    }
}

impl FrameStore for CframeStore {
    fn path(&self) -> &Path {
        &self.path
    }
    fn committed(&self) -> Option<Arc<FrameImage>> {
        self.disk.lock().image.clone()
    }
    fn enter(&self) -> ReadGuard<'_> {
        Box::leak(Box::new(crate::store::epochs::Epochs::default())).enter()
    }
    fn read_chunk(&self, _: &ReadGuard<'_>, key: ChunkKey, len: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let disk = self.disk.lock();
        let bytes = &disk.chunks[&key.0];
        assert_eq!(bytes.len(), len as usize);
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn chunk_header(&self, _: &ReadGuard<'_>, key: ChunkKey) -> Result<ChunkHeader> {
        Ok(ChunkHeader::parse(&self.disk.lock().chunks[&key.0]).unwrap())
    }
    fn stage(&self, chunk: &dyn ReadAt) -> Result<ChunkKey> {
        let mut bytes = vec![0; chunk.len() as usize];
        chunk.read_exact_at(&mut bytes, 0).unwrap();
        let mut disk = self.disk.lock();
        disk.next += 1;
        let key = disk.next;
        disk.chunks.insert(key, bytes);
        disk.staged.insert(key);
        Ok(ChunkKey(key))
    }
    fn discard(&self, key: ChunkKey) {
        let mut disk = self.disk.lock();
        disk.staged.remove(&key.0);
        disk.free();
    }
    fn pin(&self, key: ChunkKey) {
        *self.disk.lock().pins.entry(key.0).or_default() += 1;
    }
    fn unpin(&self, key: ChunkKey) {
        let mut disk = self.disk.lock();
        let n = disk.pins.get_mut(&key.0).unwrap();
        *n -= 1;
        if *n == 0 {
            disk.pins.remove(&key.0);
        }
        disk.free();
    }
    fn commit(&self, mut image: FrameImage) -> Result<()> {
        let mut disk = self.disk.lock();
        image.header.set_layout(Layout::Contiguous);
        if let Some(n) = image.header.nchunks() {
            assert_eq!(n, image.entries.len() as u64);
        }
        for e in image.entries.iter() {
            if let IndexEntry::Stored(k) = e {
                assert!(disk.chunks.contains_key(&k.0), "{k:?} is not there");
                disk.staged.remove(&k.0);
            }
        }
        disk.image = Some(Arc::new(image));
        disk.free();
        std::fs::write(self.path.with_extension("touched"), "").ok();
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn changed_outside(&self) -> Result<bool> {
        Ok(false)
    }
    fn reload(&self) -> Result<Arc<FrameImage>> {
        Ok(self.committed().unwrap())
    }
    fn save_lost(&self, name: &str, content: &dyn ReadAt) -> Result<PathBuf> {
        let mut bytes = vec![0; content.len() as usize];
        content.read_exact_at(&mut bytes, 0).unwrap();
        let dir = PathBuf::from(format!("{}.lost", self.path.display()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(name), bytes).unwrap();
        Ok(dir.join(name))
    }
    fn source_stat(&self) -> Result<SourceStat> {
        let t = SystemTime::now();
        Ok(SourceStat { mode: 0o644, uid: 0, gid: 0, atime: t, mtime: t, ctime: t, allocated: 0 })
    }
    fn statvfs(&self) -> Result<libc::statvfs> {
        unimplemented!()
    }
    fn drafts(&self) -> &Arc<DraftPool> {
        &self.drafts
    }
    fn cache_stats(&self) -> CacheStats {
        CacheStats::default()
    }
    fn close(&self) -> Result<()> {
        self.disk.lock().staged.clear();
        Ok(())
    }
}
