//! When a view commits: at once, or once for many changes in a burst, and never while other processes have the frame's lock.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};

use log::{debug, error};
use parking_lot::{Mutex, MutexGuard};

use super::Result;
use super::frame_view::{FrameView, Standing};
use super::single::Single;
use crate::store::Sidecar;
use crate::store::sidecar::PATIENCE;

/// In a burst, the pause before the next commit is this many times as long as the last commit took: commits take a tenth of the time.
const REST: u32 = 9;
/// A change in a burst is committed after this time at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The pause before a commit is tried again that found the frame locked by others.
const NEXT_TRY: Duration = Duration::from_millis(20);

/// Says when to commit in a burst of changes.
#[derive(Debug)]
pub struct CommitThrottle {
    commits: u64,
    /// The earliest time of the next commit, unless a client asks for one.
    rested: Instant,
    /// The latest time, if a change waits.
    due: Option<Instant>,
    /// The mtime of the frame as of the last commit.
    written: Option<SystemTime>,
}

impl CommitThrottle {
    pub fn new() -> Self {
        CommitThrottle { commits: 0, rested: Instant::now(), due: None, written: None }
    }

    /// Commits since the mount began.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// When the changes that wait are due, if any do.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// No change waits any more.
    pub fn settle(&mut self) {
        self.due = None;
    }

    /// Others have the frame's lock: the commit is tried again soon.
    pub fn not_our_turn(&mut self) {
        self.due = Some(Instant::now() + NEXT_TRY);
    }

    /// A commit, successful or not, that began at `began` has ended.
    pub fn committed(&mut self, began: Instant) {
        let ended = Instant::now();
        self.commits += 1;
        self.rested = ended + (ended - began).saturating_mul(REST).min(LONGEST_WAIT);
        self.due = None;
    }

    /// Whether to commit a change now, or later. If changes wait already, this one waits for the tick as well, so that no client waits for
    /// a commit in a burst.
    pub fn now_or_later(&mut self, now: Instant) -> bool {
        if now >= self.rested && self.due.is_none() {
            return true;
        }
        self.later(now);
        false
    }

    fn later(&mut self, now: Instant) {
        self.due.get_or_insert(self.rested.min(now + LONGEST_WAIT));
    }
}

/// A [`CommitThrottle`] by turns: one commit at a time.
pub struct Pacing {
    commit_throttle: Mutex<CommitThrottle>,
    /// Held during a commit.
    committing: AtomicBool,
    /// A change was made during a commit that may not contain it.
    left: AtomicBool,
}

impl Pacing {
    pub fn new() -> Self {
        Pacing {
            commit_throttle: Mutex::new(CommitThrottle::new()),
            committing: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Waits for the commit under way.
    pub fn lock(&self) -> MutexGuard<'_, CommitThrottle> {
        self.commit_throttle.lock()
    }

    /// Does not wait.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, CommitThrottle>> {
        self.commit_throttle.try_lock()
    }

    /// As during a commit, until it is dropped.
    #[cfg(test)]
    pub fn committing(&self) -> impl Drop {
        struct Committing<'a>(&'a Pacing, Option<MutexGuard<'a, CommitThrottle>>);
        impl Drop for Committing<'_> {
            fn drop(&mut self) {
                self.0.committing.store(false, SeqCst);
                self.1.take();
            }
        }
        let commit_throttle = self.commit_throttle.lock();
        self.committing.store(true, SeqCst);
        Committing(self, Some(commit_throttle))
    }

    /// Does not wait for the commit under way: then what is new is left to the tick.
    fn lock_or_leave(&self) -> Option<MutexGuard<'_, CommitThrottle>> {
        match self.commit_throttle.try_lock() {
            None if self.committing.load(SeqCst) => {
                self.left.store(true, SeqCst);
                None
            }
            None => Some(self.commit_throttle.lock()),
            commit_throttle => commit_throttle,
        }
    }
}

impl<V: FrameView> Single<V> {
    /// Called after a change: commits now, or has the tick commit later.
    pub(super) fn publish_soon(&self) -> Result<()> {
        if !self.is(Standing::News) {
            return Ok(());
        }
        let Some(mut commit_throttle) = self.commit_throttle.lock_or_leave() else { return Ok(()) };
        if commit_throttle.now_or_later(Instant::now()) { self.commit_in_turn(&mut commit_throttle) } else { Ok(()) }
    }

    /// Commits what can be committed, now.
    pub(super) fn publish(&self) -> Result<()> {
        if !self.is(Standing::News) {
            self.commit_throttle.lock().settle();
            return Ok(());
        }
        let _turn = self.store.wait_for_turn(PATIENCE)?;
        self.commit_now(&mut self.commit_throttle.lock())
    }

    /// Commits what can be committed, now, unless others have their turn.
    pub(super) fn publish_in_turn(&self) -> Result<()> {
        let mut commit_throttle = self.commit_throttle.lock();
        if self.is(Standing::News) { self.commit_in_turn(&mut commit_throttle) } else { Ok(()) }
    }

    /// Commits the changes that have waited long enough; returns when to call again.
    pub(super) fn publish_due(&self, now: Instant) -> Option<Instant> {
        let mut commit_throttle = self.commit_throttle.lock();
        if commit_throttle.due().is_some_and(|due| due <= now)
            && let Err(error) = self.commit_in_turn(&mut commit_throttle)
        {
            error!("{error}");
            commit_throttle.settle();
        }
        if self.commit_throttle.left.swap(false, SeqCst) && self.is(Standing::News) {
            commit_throttle.later(now);
        }
        commit_throttle.due()
    }

    /// Sets whether SOURCE has lost its name by what the mount does. Until it has it back nothing is committed, as a commit makes a file beside
    /// SOURCE and could give it the name. Waits for the commit under way.
    pub(super) fn lose_name(&self, left: bool) {
        let mut commit_throttle = self.commit_throttle.lock();
        self.following.leave(left);
        if !left && self.is(Standing::News) {
            commit_throttle.later(Instant::now());
        }
    }

    /// Commits now, or soon if others have the frame's lock.
    fn commit_in_turn(&self, commit_throttle: &mut CommitThrottle) -> Result<()> {
        match self.store.sidecar().map(Sidecar::to_write).transpose()? {
            Some(None) => {
                commit_throttle.not_our_turn();
                Ok(())
            }
            _turn => self.commit_now(commit_throttle),
        }
    }

    /// Commits; the caller has the frame's lock.
    fn commit_now(&self, commit_throttle: &mut CommitThrottle) -> Result<()> {
        self.commit_throttle.committing.store(true, SeqCst);
        let committed = self.commit(commit_throttle);
        self.commit_throttle.committing.store(false, SeqCst);
        committed
    }

    /// Commits the frame if it differs from the store's. The caller has the frame's lock.
    fn commit(&self, commit_throttle: &mut CommitThrottle) -> Result<()> {
        let began = Instant::now();
        let guard = self.store.enter(); // what is discarded from here on stays good until the store knows the image
        let (image, written, found, directory) = {
            let state = self.state.read();
            (V::image(&state), V::written(&state), state.nodes.source.mtime, state.nodes.directory.mtime)
        };
        let image = image.filter(|_| !self.following.is_left());
        let Some((image, committed)) = image else {
            commit_throttle.settle();
            return Ok(());
        };
        if let Some(hindrance) = self.following.hindrance(&*self.store) {
            return Err(hindrance.into());
        }
        if let Some(local) = self.store.local() {
            // A change that left the time alone gets one: no two states of SOURCE are to have the same.
            let before = commit_throttle.written.unwrap_or(found);
            local.set_written(if written == before { SystemTime::now() } else { written }, Some(directory));
            commit_throttle.written = Some(written);
        }
        let result = self.store.commit(guard, image);
        commit_throttle.committed(began);
        result?;
        committed(&mut self.state.write());
        debug!("{}: committed", self.store.path().display());
        Ok(())
    }
}
