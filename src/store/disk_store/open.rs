//! Opens a store on disk, or makes a new one.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use log::debug;
use parking_lot::{Mutex, RwLock};

use super::changes::Detector;
use super::commit::CommitState;
use super::{Common, DiskStore, LockPlace, Medium, ReadFrame};
use crate::store::backend::Backend;
use crate::store::cache::FrameCache;
use crate::store::create::PendingFrame;
use crate::store::local::watch::Watch;
use crate::store::location::Location;
use crate::store::sidecar::{PATIENCE, Sidecar};
use crate::store::source::{Handle, NewFrame, Source, Unfinished};
use crate::store::staged_copies::StagedCopies;
use crate::store::{DraftPool, Epochs, FrameImage, FrameStore as _, OpenOptions, Resources, Result, in_words};

impl<M: Medium> DiskStore<M> {
    /// Opens a frame.
    ///
    /// # Errors
    /// What the system refuses; what is no frame of this layout, in the format's words; chunk files that are missing or damaged, all of
    /// them by name up to a readable number; another mount that writes to it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::open_source(Source::existing(path, &options)?, &options)
    }

    /// Opens the frame at a location.
    ///
    /// # Errors
    /// As [`DiskStore::open`].
    pub fn open_at(location: &Location, options: OpenOptions) -> Result<Self> {
        Self::open_source(Source::new(location, &options, NewFrame::default()), &options)
    }

    /// Opens a frame in any backend; `path` is how messages call it, `dir` the path of the backend's directory, in which it has the
    /// name `name`.
    ///
    /// # Errors
    /// As [`DiskStore::open`].
    pub fn open_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::open_at(&Location::in_backend(backend, path, dir, name), options)
    }

    fn open_source(source: Source, options: &OpenOptions) -> Result<Self> {
        let mut handle = M::open(&source, !source.read_only)?;
        let sidecar = options.locking.then(|| Self::lock_file(&source, &handle, options, false)).transpose()?;
        let turn = sidecar.as_ref().map(|sidecar| sidecar.wait_to_read(PATIENCE)).transpose()?;
        // Others may have replaced the file while they had their turn.
        if turn.is_some() && !source.stat()?.is_some_and(|now| now.same_file(&handle.stat)) {
            handle = M::open(&source, !source.read_only)?;
        }
        let ReadFrame { image, header_file, commits, parts } = M::read(&source, &handle, 0, false)?;
        if let Some(sidecar) = &sidecar {
            sidecar.in_step(sidecar.count()?);
        }
        drop(turn);
        let commits = CommitState::opened(&image.header, commits);
        let detector = Detector::new(handle.stat, Some(header_file), M::KEPT_OPEN);
        Ok(Self::assemble(source, sidecar, options, &handle, Some(parts), Some(Arc::new(image)), commits, detector))
    }

    /// A store for a frame that does not exist yet: it comes into being, whole, with the first commit.
    ///
    /// # Errors
    /// What the system refuses; a name that exists.
    pub fn create(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::create_source(Source::to_be(path, &options)?, &options)
    }

    /// As [`DiskStore::create`], at a location.
    ///
    /// # Errors
    /// As [`DiskStore::create`].
    pub fn create_at(location: &Location, options: OpenOptions, new: NewFrame) -> Result<Self> {
        Self::create_source(Source::new(location, &options, new), &options)
    }

    /// As [`DiskStore::create`], in any backend.
    ///
    /// # Errors
    /// As [`DiskStore::create`].
    pub fn create_in(backend: Arc<dyn Backend>, path: &Path, dir: &Path, name: &OsStr, options: OpenOptions) -> Result<Self> {
        Self::create_at(&Location::in_backend(backend, path, dir, name), options, NewFrame::default())
    }

    fn create_source(source: Source, options: &OpenOptions) -> Result<Self> {
        let found = source.new.resumed.clone().and_then(|unfinished| Self::resume(&source, &unfinished, options));
        let (pending, handle) = PendingFrame::create(&source, found, |name| M::create(&source, name))?;
        let sidecar = match &handle.dir {
            None if options.locking => Some(Self::lock_file(&source, &handle, options, true)?),
            _ => None,
        };
        let header_file = handle.dir.is_none().then(|| (Arc::clone(&handle.file), handle.stat));
        let detector = Detector::new(handle.stat, header_file, M::KEPT_OPEN);
        let store = Self::assemble(source, sidecar, options, &handle, None, None, CommitState::created(pending), detector);
        store.grounded.store(true, Relaxed);
        Ok(store)
    }

    /// What there is of a frame that was begun before, or its beginning under the same name. Nothing, if somebody else may have it.
    fn resume(source: &Source, unfinished: &Unfinished, options: &OpenOptions) -> Option<(OsString, Handle)> {
        let name = &unfinished.name;
        let resumed = match M::resume(source, unfinished, options) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => M::create(source, name),
            resumed => resumed,
        };
        match resumed {
            Ok(handle) => Some((name.clone(), handle)),
            Err(error) => {
                debug!("{}: nothing that is left of it is used: {}", source.place().location.path().display(), in_words(&error));
                None
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a store")]
    fn assemble(
        source: Source,
        sidecar: Option<Sidecar>,
        options: &OpenOptions,
        handle: &Handle,
        parts: Option<M::Parts>,
        image: Option<Arc<FrameImage>>,
        commits: CommitState<M>,
        detector: Detector,
    ) -> Self {
        let resources: &Resources = &options.resources;
        let common = Arc::new(Common {
            epochs: Epochs::default(),
            watch: Watch::new(resources.watcher(), source.place().location.path()),
        });
        let spill = handle.dir.clone().unwrap_or_else(|| source.backend());
        let store = DiskStore {
            sidecar,
            cache: FrameCache::new(&resources.cache),
            drafts: DraftPool::sharing(spill, &resources.drafts),
            image: RwLock::new(image),
            commits: Mutex::new(commits),
            gate: RwLock::new(()),
            grounded: AtomicBool::new(false),
            detector: Mutex::new(detector),
            copies: StagedCopies::new(options.hold_staged, &resources.held),
            lost: Mutex::default(),
            written: Mutex::default(),
            at_close: Mutex::default(),
            medium: M::new(&source, handle, parts, Arc::clone(&common), options),
            common,
            source,
        };
        // In a new directory there are our own files only, until it is SOURCE.
        if handle.dir.is_none() || store.committed().is_some() {
            store.watch_files();
        }
        store
    }

    /// The lock file of SOURCE.
    fn lock_file(source: &Source, handle: &Handle, options: &OpenOptions, new: bool) -> Result<Sidecar> {
        let LockPlace { dir, name, path, owner } = M::lock_place(source, handle, new)?;
        Sidecar::new(dir, &name, path, options, owner.as_ref())
    }

    /// Spills drafts to another directory from now on.
    pub(in crate::store) fn move_drafts(&self, dir: &Arc<dyn Backend>) {
        self.drafts.move_to(Arc::clone(dir));
    }
}
