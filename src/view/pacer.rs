//! When to commit in a burst of changes.

use std::time::{Duration, Instant};

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
