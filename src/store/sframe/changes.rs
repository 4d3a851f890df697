//! What others do to chunk files, and to the name of the index file. They are held to what the library itself notices; who only writes a
//! chunk file is noticed when that is read, and where the system tells of it. The rest is in [`crate::store::disk_store::changes`].

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::files::{Known, name_of};
use super::{Directory, INDEX, SframeStore, has_header, index_name};
use crate::format::ChunkId;
use crate::store::backend::{Backend, FileStat};
use crate::store::disk_store::changes::Detector;
use crate::store::{ChunkKey, FrameStore};

/// What stands for the index file by its name.
fn index_at(dir: &dyn Backend) -> io::Result<FileStat> {
    match dir.stat(index_name())? {
        // Where it is followed, it is the file that counts.
        stat if stat.is_link() => dir.open(index_name(), false)?.stat(),
        stat => Ok(stat),
    }
}

/// Looks at the index file, and whether others have put another one in its place; whether there is one.
pub(super) fn look_at_index(dir: &dyn Backend, seen: &mut Detector) -> io::Result<bool> {
    let Some(before) = seen.header_stat() else { return Ok(true) };
    match index_at(dir) {
        Ok(now) if !now.same_file(&before) => seen.replaced(|| format!("another {INDEX} is in its place")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    seen.look_at_header().map(|()| true)
}

impl SframeStore {
    /// Whether the index file says something else than what was committed, whatever its times say.
    pub(super) fn is_another_index(&self) -> bool {
        let (index, image) = (self.detector.lock().header(), self.committed());
        match (index, image) {
            (Some(file), Some(image)) => !has_header(&*file, image.header.as_bytes()),
            (None, None) => false,
            _ => true,
        }
    }
}

/// What reading has found out about a chunk file that others have changed.
pub(super) type Suspicion = Option<(Known, String)>;

impl Directory {
    /// Looks at the chunk files that somebody has written, as the system tells.
    pub(super) fn look_at_chunks(&self) {
        let dir = self.folder.read().clone();
        for name in self.common.watch.names() {
            let Some(id) = ChunkId::from_file_name(OsStr::new(&name).as_bytes()) else { continue };
            let Some(key) = self.files.lock().key_in_image(id) else { continue };
            match dir.stat(&name) {
                // Where it is followed, reading it tells.
                Ok(stat) if stat.is_link() => {}
                Ok(stat) => drop(self.check_chunk(key, &stat)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.suspect_missing(key),
                Err(_) => {}
            }
        }
    }

    /// Whether a file is the one that a key stands for.
    ///
    /// # Errors
    /// ESTALE if it is another, or another by now.
    pub(super) fn check_chunk(&self, key: ChunkKey, now: &FileStat) -> io::Result<()> {
        let known = self.files.lock().check(key, now);
        match known {
            Some(Known::Same) => return Ok(()),
            Some(Known::Touched) => self.suspect(key, Known::Touched, "has other attributes, or is another file"),
            Some(Known::Written) => self.suspect(key, Known::Written, "was written to"),
            None => {}
        }
        Err(io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// A file of the frame is not there.
    pub(super) fn suspect_missing(&self, key: ChunkKey) {
        self.suspect(key, Known::Written, "was removed");
    }

    pub(super) fn suspect(&self, key: ChunkKey, known: Known, what: &str) {
        let mut suspicion = self.suspicion.lock();
        if !matches!(&*suspicion, Some((Known::Written, _))) {
            *suspicion = Some((known, format!("its {} {what}", name_of(key).display())));
        }
        drop(suspicion);
        self.common.watch.ring();
    }
}
