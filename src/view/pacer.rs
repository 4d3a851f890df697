//! When a view's states go to its store: at once, or gathered in a burst of changes, and never in others' turn.

use std::time::{Duration, Instant};

use log::error;
use parking_lot::Mutex;

use super::Result;
use crate::store::sidecar::PATIENCE;
use crate::store::{FrameStore, Sidecar};

/// Between commits of a burst passes this many times what the last commit took, so that committing takes a tenth of the time.
const REST: u32 = 9;
/// What waits for a gathered commit waits no longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Until a commit is tried again that found others at work.
const NEXT_TRY: Duration = Duration::from_millis(20);

/// Says when to commit in a burst of changes.
#[derive(Debug)]
pub struct Pacer {
    commits: u64,
    /// Not before this, unless asked for.
    rested: Instant,
    /// Not after this, once something waits.
    due: Option<Instant>,
}

impl Pacer {
    pub fn new() -> Self {
        Pacer { commits: 0, rested: Instant::now(), due: None }
    }

    /// Commits since the mount began.
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// When what waits is due, if something does.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Nothing waits any more.
    pub fn settle(&mut self) {
        self.due = None;
    }

    /// Others have their turn: what waits is tried again soon.
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

    /// Whether to commit now what became ready now; if not, it is due later.
    pub fn now_or_later(&mut self, now: Instant) -> bool {
        if now >= self.rested {
            return true;
        }
        self.due.get_or_insert(self.rested.min(now + LONGEST_WAIT));
        false
    }
}

/// A view whose changes go to a store as whole states.
pub trait Publish {
    /// Where they go.
    fn store(&self) -> &dyn FrameStore;

    /// One commit at a time.
    fn pacer(&self) -> &Mutex<Pacer>;

    /// Whether there is a state that the store does not have.
    fn has_news(&self) -> bool;

    /// Hands the state to the store, if there is still one that it does not have. It is our turn.
    fn commit(&self, pacer: &mut Pacer) -> Result<()>;

    /// After a change: commits, or sees to it that a gathered commit follows.
    fn publish_soon(&self) -> Result<()> {
        if !self.has_news() {
            return Ok(());
        }
        let mut pacer = self.pacer().lock();
        if pacer.now_or_later(Instant::now()) { self.commit_in_turn(&mut pacer) } else { Ok(()) }
    }

    /// Commits what can be committed, now.
    fn publish(&self) -> Result<()> {
        if !self.has_news() {
            self.pacer().lock().settle();
            return Ok(());
        }
        let _turn = self.store().wait_for_turn(PATIENCE)?;
        self.commit(&mut self.pacer().lock())
    }

    /// Commits what has waited long enough; answers when to look again.
    fn publish_due(&self, now: Instant) -> Option<Instant> {
        let mut pacer = self.pacer().lock();
        if pacer.due().is_some_and(|due| due <= now)
            && let Err(error) = self.commit_in_turn(&mut pacer)
        {
            error!("{error}");
            pacer.settle();
        }
        pacer.due()
    }

    /// Commits, unless others have their turn: then soon.
    fn commit_in_turn(&self, pacer: &mut Pacer) -> Result<()> {
        match self.store().sidecar().map(Sidecar::to_write).transpose()? {
            Some(None) => {
                pacer.not_our_turn();
                Ok(())
            }
            _turn => self.commit(pacer),
        }
    }
}
