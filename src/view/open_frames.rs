//! The frames of a directory that are open: each is opened once, however many come for it at a time, and closed when others need its
//! place.
//!
//! A frame is open while its [`FrameSlot`] holds an [`OpenFrame`], which changes only under the slot's `changing`; but for the end of the
//! mount. It is closed only while nobody uses what is open. Who comes then opens it again, and finds the same files, by the same inodes
//! and in the same handles, if what lies below is what it was when it was closed; otherwise its inodes are others (see
//! [`Regions::leave`]), and its `lineage` tells handles that they are of something else.
//!
//! Lock order: a frame's `changing`, then any one of the others, which are leaves. Input and output is made under `changing` alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use log::error;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::frame_file::layout::Outline;
use super::regions::{Numbered, Regions};
use super::{FileSystem, FrameFileSystem, Ino, Push, Rest, Result};

/// A frame that can be opened and closed.
pub trait Openable: Numbered + Sized {
    /// What is known of it while it is open.
    type Part;
    /// What lies below, to be compared.
    type State: PartialEq;

    /// Where it is while it is open.
    fn slot(&self) -> &FrameSlot<Self::Part, Self::State>;
}

/// A frame that is open.
pub struct OpenFrame<P> {
    /// Its files.
    pub view: Box<dyn FrameFileSystem>,
    /// Which of the frame's openings it is.
    pub opening: u64,
    /// Bytes of memory that count for [`Most::weight`].
    weight: u64,
    /// When it was last used, by a count of all uses.
    used: AtomicU64,
    /// What else is known of it.
    pub part: P,
}

impl<P> OpenFrame<P> {
    /// Its files, for the kernel's requests.
    pub fn fs(&self) -> &dyn FileSystem {
        &*self.view
    }

    /// When it was last used, by a count of all uses.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }
}

/// What is known of a frame that is closed.
pub struct Closed<S> {
    /// What lay below when it was closed, if its files can keep their inodes.
    pub left: Option<S>,
    /// How often it was opened.
    pub openings: u64,
}

/// What of a frame changes as it is opened and closed.
pub struct FrameSlot<P, S> {
    /// Held while it is opened, closed, moved or replaced: who opens it waits. Taken before any lock of the directory.
    pub changing: Mutex<Closed<S>>,
    /// Set and taken under `changing`; at the end without. A leaf lock.
    current: RwLock<Option<Arc<OpenFrame<P>>>>,
    /// How often its files were not the same any more when it was opened again.
    pub lineage: AtomicU64,
}

impl<P, S> Default for FrameSlot<P, S> {
    fn default() -> Self {
        let closed = Closed { left: None, openings: 0 };
        FrameSlot { changing: Mutex::new(closed), current: RwLock::default(), lineage: AtomicU64::new(0) }
    }
}

impl<P, S> FrameSlot<P, S> {
    /// The frame, if it is open.
    pub fn opened(&self) -> Option<Arc<OpenFrame<P>>> {
        self.current.read().clone()
    }

    /// Takes it away, whoever uses it: they go on with what they have. The caller has `changing`.
    pub fn detach(&self) -> Option<Arc<OpenFrame<P>>> {
        self.current.write().take()
    }

    /// Takes it away from those who come, if `may` and nobody uses it just now.
    fn take(&self, may: impl FnOnce(&OpenFrame<P>) -> bool) -> Option<OpenFrame<P>> {
        let mut current = self.current.write();
        let open = current.take_if(|open| Arc::strong_count(open) == 1 && may(open))?;
        Arc::try_unwrap(open).map_err(|open| *current = Some(open)).ok()
    }
}

/// How much may be open at a time, as long as some of it is not in use.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    /// Frames.
    pub count: usize,
    /// Bytes of memory that they take together.
    pub weight: u64,
}

/// Those that are open.
pub struct OpenFrames<F> {
    most: Most,
    /// Each once, but for those that are about to lose their name. A leaf lock.
    listed: Mutex<Vec<Arc<F>>>,
    /// Counts uses.
    uses: AtomicU64,
}

/// A frame, and what it is while it is open.
type Pair<F> = (Arc<F>, Arc<OpenFrame<<F as Openable>::Part>>);

impl<F: Openable> OpenFrames<F> {
    /// None yet.
    pub fn new(most: Most) -> Self {
        OpenFrames { most, listed: Mutex::default(), uses: AtomicU64::new(0) }
    }

    /// How many may be open.
    pub fn most(&self) -> usize {
        self.most.count
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        self.listed.lock().len()
    }

    /// Those that are open just now.
    pub fn listed(&self) -> Vec<Arc<F>> {
        self.listed.lock().clone()
    }

    /// The same, one after the other, as each is then. One that was handed out cannot be closed while that is kept.
    pub fn all(&self) -> impl Iterator<Item = Pair<F>> {
        self.listed().into_iter().filter_map(|frame| frame.slot().opened().map(|open| (frame, open)))
    }

    /// A frame as it is open, if that `is_good`, or else as it `opens`. Only one of those who come at a time opens it; the others wait,
    /// by `lock`.
    ///
    /// # Errors
    /// Of `lock` and `opens`.
    pub fn enter<'a, E>(
        &self,
        frame: &'a F,
        lock: impl FnOnce(&'a Mutex<Closed<F::State>>) -> std::result::Result<MutexGuard<'a, Closed<F::State>>, E>,
        is_good: impl Fn(&OpenFrame<F::Part>) -> bool,
        opens: impl FnOnce(&mut Closed<F::State>) -> std::result::Result<Arc<OpenFrame<F::Part>>, E>,
    ) -> std::result::Result<Arc<OpenFrame<F::Part>>, E> {
        let find = || {
            let open = frame.slot().opened().filter(|open| is_good(open))?;
            open.used.store(self.next_use(), Relaxed);
            Some(open)
        };
        if let Some(open) = find() {
            return Ok(open);
        }
        let mut closed = lock(&frame.slot().changing)?;
        match find() {
            Some(open) => Ok(open),
            None => opens(&mut closed),
        }
    }

    /// A frame is open from now on. `closed` is what is held of it.
    pub fn begin(
        &self,
        frame: &Arc<F>,
        closed: &mut Closed<F::State>,
        view: Box<dyn FrameFileSystem>,
        weight: u64,
        part: F::Part,
    ) -> Arc<OpenFrame<F::Part>> {
        closed.openings += 1;
        let used = AtomicU64::new(self.next_use());
        let open = Arc::new(OpenFrame { view, opening: closed.openings, weight, used, part });
        *frame.slot().current.write() = Some(Arc::clone(&open));
        self.list(frame);
        open
    }

    fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Relaxed)
    }

    /// A frame is one of those that are open.
    pub fn list(&self, frame: &Arc<F>) {
        self.listed.lock().push(Arc::clone(frame));
    }

    /// A frame is not, or is about to go. Whether another with its inode is.
    pub fn unlist(&self, frame: &Arc<F>) -> bool {
        let mut listed = self.listed.lock();
        listed.retain(|other| !Arc::ptr_eq(other, frame));
        listed.iter().any(|other| other.ino() == frame.ino())
    }

    /// Closes a frame, if nobody uses it and its files can be found again, and if it `may` be. What lies below then, `ended` tells; that
    /// counts only with [`Rest::Stable`].
    pub fn close(
        &self,
        regions: &Regions<F>,
        frame: &Arc<F>,
        may: impl FnOnce() -> bool,
        ended: impl FnOnce(F::Part, Rest, Option<Outline>) -> Option<F::State>,
    ) -> bool {
        let slot = frame.slot();
        let Some(mut closed) = slot.changing.try_lock() else { return false };
        if !may() {
            return false;
        }
        let mut rest = Rest::Busy;
        let taken = slot.take(|open| {
            rest = open.view.rest();
            rest != Rest::Busy
        });
        let Some(OpenFrame { view, part, .. }) = taken else { return false };
        let outline = view.outline();
        if let Err(error) = view.end() {
            error!("{error}");
        }
        drop(view);
        self.unlist(frame);
        closed.left = ended(part, rest, outline).filter(|_| rest == Rest::Stable);
        if closed.left.is_none() {
            regions.renumber(&**frame);
        }
        true
    }

    /// Closes frames, those that were not used for longest first, until there is room for so many more.
    pub fn make_room(&self, more: usize, close: impl Fn(&Arc<F>) -> bool) {
        let Most { count: most, weight: heaviest } = self.most;
        if heaviest == u64::MAX && self.count() + more <= most {
            return;
        }
        let known = |frame: Arc<F>| frame.slot().opened().map(|open| (open.used(), open.weight, frame));
        let mut open: Vec<_> = self.listed().into_iter().filter_map(known).collect();
        let (mut count, mut weight) = (open.len(), open.iter().map(|(_, weight, _)| weight).sum::<u64>());
        if count + more <= most && weight < heaviest {
            return;
        }
        open.sort_by_key(|(used, ..)| *used);
        for (_, freed, frame) in open {
            // A few at once, so that not each that comes has to look for one.
            if count + more + most / 16 <= most && weight < heaviest {
                return;
            }
            if close(&frame) {
                (count, weight) = (count - 1, weight.saturating_sub(freed));
            }
        }
    }

    /// Does something with each; the earliest of the times that it answers.
    pub fn each(&self, mut work: impl FnMut(&Arc<F>, &dyn FileSystem) -> Option<Instant>) -> Option<Instant> {
        self.all().filter_map(|(frame, open)| work(&frame, open.fs())).min()
    }

    /// Ends all of them, with the mount.
    ///
    /// # Errors
    /// The first one's; the log has the others'.
    pub fn shut(&self) -> Result<()> {
        let mut result = Ok(());
        for (frame, open) in self.all() {
            let ended = open.view.end();
            frame.slot().detach();
            match ended {
                Err(error) if result.is_err() => error!("{error}"),
                ended => result = result.and(ended),
            }
        }
        result
    }
}

impl<F: Openable> Regions<F> {
    /// The files of a frame are others from now on: they get other inodes, and nobody's handle is for one of them.
    pub fn renumber(&self, frame: &F) {
        self.leave(frame);
        frame.slot().lineage.fetch_add(1, Relaxed);
    }

    /// Hands inodes to the frames that they belong to, those that are open.
    pub fn hand(&self, inos: &[Ino], hand: impl Fn(&dyn FileSystem, &[Ino])) {
        for (frame, inner) in self.by_frame(inos) {
            if let Some(open) = frame.slot().opened() {
                hand(open.fs(), &inner);
            }
        }
    }

    /// See [`FileSystem::touched`], of a file of a frame.
    pub fn touched(&self, pid: u32, (frame, inner): (Arc<F>, Ino), read: Option<(u64, u32)>) -> Vec<Push> {
        let Some(open) = frame.slot().opened() else { return Vec::new() };
        let pushes = open.fs().touched(pid, inner, read);
        pushes.into_iter().map(|push| Push { ino: self.outer(&frame, push.ino), ..push }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ffi::OsStr;
    use std::sync::Barrier;

    use super::*;
    use crate::store::{FsSpace, Location};
    use crate::view::{Attr, DirEntry, Features, Handle, Invalidations, OpenMode, Opened, ROOT, ViewError, Wait};

    /// A frame whose files have no business here.
    struct Stub;

    impl FrameFileSystem for Stub {
        fn rest(&self) -> Rest {
            Rest::Stable
        }
        fn drop_all(&self) {}
        fn relocate(&self, _to: &Location, _work: &mut dyn FnMut() -> bool) -> Result<()> {
            Err(ViewError::Unsupported)
        }
        fn leave_name(&self, _left: bool) {}
        fn set_attributes(&self, _work: &mut dyn FnMut()) {}
        fn is_untouched(&self) -> bool {
            true
        }
        fn is_made(&self) -> bool {
            true
        }
        fn is_empty(&self) -> bool {
            true
        }
    }

    impl FileSystem for Stub {
        fn features(&self) -> Features {
            unreachable!()
        }
        fn lookup(&self, _parent: Ino, _name: &OsStr) -> Result<Attr> {
            Err(ViewError::NotFound)
        }
        fn forget(&self, _ino: Ino, _count: u64, _altogether: bool) {}
        fn getattr(&self, _ino: Ino) -> Result<Attr> {
            Err(ViewError::Gone)
        }
        fn open(&self, _ino: Ino, _mode: OpenMode) -> Result<Opened> {
            Err(ViewError::Gone)
        }
        fn read(&self, _ino: Ino, _handle: Option<Handle>, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
            Err(ViewError::Gone)
        }
        fn release(&self, _handle: Handle, _invalidations: &mut Invalidations) {}
        fn xattrs(&self, _ino: Ino) -> Result<Vec<u8>> {
            Ok(Vec::new())
        }
        fn xattr(&self, _ino: Ino, _name: &OsStr) -> Result<Vec<u8>> {
            Err(ViewError::NoAttribute)
        }
        fn readdir(&self, _ino: Ino, _cookie: u64, _emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
            Ok(())
        }
        fn may_wait(&self, _ino: Ino) -> Wait {
            Wait::Never
        }
        fn statfs(&self) -> Result<FsSpace> {
            Err(ViewError::Unsupported)
        }
        fn shutdown(&self) -> Result<()> {
            Ok(())
        }
        fn report(&self) -> String {
            String::new()
        }
    }

    struct Frame {
        ino: Ino,
        regions: Mutex<HashMap<u64, u64>>,
        slot: FrameSlot<u64, u64>,
        /// What lies below.
        below: AtomicU64,
    }

    impl Numbered for Frame {
        fn ino(&self) -> Ino {
            self.ino
        }
        fn regions(&self) -> &Mutex<HashMap<u64, u64>> {
            &self.regions
        }
    }

    impl Openable for Frame {
        type Part = u64;
        type State = u64;
        fn slot(&self) -> &FrameSlot<u64, u64> {
            &self.slot
        }
    }

    struct Directory {
        frames: OpenFrames<Frame>,
        regions: Regions<Frame>,
        weight: u64,
    }

    impl Directory {
        fn new(count: usize, weight: u64, each: u64) -> Self {
            Directory { frames: OpenFrames::new(Most { count, weight }), regions: Regions::default(), weight: each }
        }

        fn enter(&self, frame: &Arc<Frame>) -> Arc<OpenFrame<u64>> {
            let lock = |changing| Ok::<_, ViewError>(Mutex::lock(changing));
            let opens = |closed: &mut Closed<u64>| {
                self.frames.make_room(1, |frame| self.close(frame));
                let below = frame.below.load(Relaxed);
                if closed.left.take() != Some(below) {
                    self.regions.renumber(frame);
                }
                Ok(self.frames.begin(frame, closed, Box::new(Stub), self.weight, below))
            };
            self.frames.enter(&**frame, lock, |_| true, opens).unwrap()
        }

        fn close(&self, frame: &Arc<Frame>) -> bool {
            self.frames.close(&self.regions, frame, || true, |below, _, _| Some(below))
        }

        fn open(&self) -> Vec<u64> {
            self.frames.listed().iter().map(|frame| frame.ino.0).collect()
        }
    }

    fn frames(count: u64) -> Vec<Arc<Frame>> {
        let frame = |number| Frame {
            ino: Ino(ROOT.0 + number),
            regions: Mutex::default(),
            slot: FrameSlot::default(),
            below: AtomicU64::new(0),
        };
        (1..=count).map(|number| Arc::new(frame(number))).collect()
    }

    #[test]
    fn of_many_who_come_at_once_one_opens_it() {
        let (dir, frame) = (Directory::new(4, u64::MAX, 0), &frames(1)[0]);
        let begin = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    begin.wait();
                    assert_eq!(dir.enter(frame).opening, 1);
                });
            }
        });
        assert_eq!((dir.frames.count(), frame.slot.changing.lock().openings), (1, 1));
    }

    #[test]
    fn those_that_were_not_used_for_longest_are_closed_first_and_none_that_is_in_use() {
        for (count, weight, each) in [(3, u64::MAX, 0), (100, 30, 10)] {
            let (dir, frames) = (Directory::new(count, weight, each), frames(5));
            let used = dir.enter(&frames[0]);
            dir.enter(&frames[1]);
            dir.enter(&frames[2]);
            dir.enter(&frames[1]);
            dir.enter(&frames[3]);
            assert_eq!(dir.open(), [2, 3, 5]);
            dir.enter(&frames[4]);
            assert_eq!(dir.open(), [2, 5, 6]);
            // Whoever is at work keeps it.
            assert!(!dir.close(&frames[0]));
            drop(used);
            assert!(dir.close(&frames[0]));
        }
    }

    #[test]
    fn files_keep_their_inodes_if_what_lies_below_is_the_same() {
        let (dir, frame) = (Directory::new(4, u64::MAX, 0), &frames(1)[0]);
        let ino = || dir.regions.outer(frame, Ino(7));
        dir.enter(frame);
        let (first, lineage) = (ino(), frame.slot.lineage.load(Relaxed));
        assert!(dir.close(frame));
        assert_eq!(dir.enter(frame).opening, 2);
        assert_eq!((ino(), frame.slot.lineage.load(Relaxed)), (first, lineage));
        assert!(dir.close(frame));
        frame.below.store(1, Relaxed);
        dir.enter(frame);
        assert_ne!(ino(), first);
        assert_eq!(frame.slot.lineage.load(Relaxed), lineage + 1);
    }
}
