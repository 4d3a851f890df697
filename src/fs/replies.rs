//! Which replies are being made, so that what is not true any more is forgotten behind those that may still say it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::view::{Invalidation, Invalidations};

/// How long a reply may keep waiting what is outdated.
const PATIENCE: Duration = Duration::from_millis(200);
/// When to look again whether replies are sent.
const LATER: Duration = Duration::from_millis(10);
/// So much is remembered for a reply that takes long.
const MOST: usize = 1 << 14;

/// Counts replies that say something of names and attributes. A leaf lock.
#[derive(Default)]
pub(super) struct Replies(Mutex<State>);

#[derive(Default)]
struct State {
    /// Replies that are being made, and have begun since the last turn.
    since: u64,
    /// Those that had begun before it.
    before: u64,
    turns: u64,
}

/// A reply that is being made; dropped when it is sent.
pub(super) struct Making<'a> {
    replies: &'a Replies,
    turn: u64,
}

impl Replies {
    /// A reply is being made.
    pub(super) fn begin(&self) -> Making<'_> {
        let mut state = self.0.lock();
        state.since += 1;
        Making { replies: self, turn: state.turns }
    }

    /// Those that are being made now are waited for: see [`Replies::are_sent`], which must say so of those of the turn before.
    pub(super) fn turn(&self) {
        let mut state = self.0.lock();
        state.turns += 1;
        state.before += std::mem::take(&mut state.since);
    }

    /// Whether all are sent that were being made at the last turn.
    pub(super) fn are_sent(&self) -> bool {
        self.0.lock().before == 0
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = self.replies.0.lock();
        if self.turn == state.turns { state.since -= 1 } else { state.before -= 1 }
    }
}

/// What the kernel must forget once replies are sent that may still say it.
#[derive(Default)]
pub(super) struct Outdated {
    /// What waits for the replies of the last turn, and since when.
    waiting: Invalidations,
    since: Option<Instant>,
    /// What has come since the last turn.
    next: Invalidations,
}

impl Outdated {
    /// Takes what is outdated now. Answers what is to be forgotten now, and when to ask again.
    ///
    /// A reply may take long: what it keeps waiting is forgotten after a moment as well, and then once more behind the reply.
    pub(super) fn next(&mut self, outdated: Invalidations, replies: &Replies) -> (Invalidations, Option<Instant>) {
        self.next.extend(outdated);
        let mut forgotten = Invalidations::new();
        if !self.waiting.is_empty() && replies.are_sent() {
            forgotten.append(&mut self.waiting);
            self.since = None;
        }
        if self.waiting.is_empty() && !self.next.is_empty() {
            self.waiting.append(&mut self.next);
            replies.turn();
            if replies.are_sent() {
                forgotten.append(&mut self.waiting);
            } else {
                self.since = Some(Instant::now());
            }
        }
        if self.waiting.is_empty() {
            return (forgotten, None);
        }
        if self.since.is_some_and(|since| since.elapsed() >= PATIENCE) {
            self.since = None;
            forgotten.extend(self.waiting.iter().cloned());
        }
        if self.since.is_none() && !self.next.is_empty() {
            forgotten.extend(self.next.iter().cloned());
            self.waiting.append(&mut self.next);
            if self.waiting.len() > MOST {
                self.waiting = vec![Invalidation::All];
            }
        }
        (forgotten, Some(Instant::now() + LATER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Ino;

    fn one(ino: u64) -> Invalidations {
        vec![Invalidation::Attr(Ino(ino))]
    }

    #[test]
    fn what_is_outdated_is_forgotten_behind_replies() {
        let (replies, mut outdated) = (Replies::default(), Outdated::default());
        assert_eq!(outdated.next(one(2), &replies), (one(2), None), "no reply is being made");
        let making = replies.begin();
        let (forgotten, soon) = outdated.next(one(3), &replies);
        assert!(forgotten.is_empty() && soon.is_some());
        let later = replies.begin();
        let (forgotten, soon) = outdated.next(one(4), &replies);
        assert!(forgotten.is_empty() && soon.is_some());
        drop(making);
        let (forgotten, soon) = outdated.next(Invalidations::new(), &replies);
        assert_eq!(forgotten, one(3));
        assert!(soon.is_some(), "the second waits for a reply of its own, which nobody rings for");
        drop(later);
        assert_eq!(outdated.next(Invalidations::new(), &replies), (one(4), None));
    }

    #[test]
    fn a_reply_that_never_ends_keeps_nothing_waiting() {
        let (replies, mut outdated) = (Replies::default(), Outdated::default());
        let making = replies.begin();
        assert!(outdated.next(one(2), &replies).0.is_empty());
        let began = Instant::now();
        let forgotten = loop {
            let (forgotten, soon) = outdated.next(Invalidations::new(), &replies);
            if !forgotten.is_empty() {
                break forgotten;
            }
            assert!(began.elapsed() < Duration::from_secs(20) && soon.is_some());
            std::thread::sleep(LATER);
        };
        assert_eq!(forgotten, one(2));
        assert_eq!(outdated.next(one(3), &replies).0, one(3), "what comes later waits no more");
        assert!(outdated.next(Invalidations::new(), &replies).0.is_empty());
        drop(making);
        let both: Invalidations = [one(2), one(3)].concat();
        assert_eq!(outdated.next(Invalidations::new(), &replies), (both, None));
    }

    #[test]
    fn only_replies_of_before_are_waited_for() {
        let replies = Replies::default();
        assert!(replies.are_sent());
        let (first, second) = (replies.begin(), replies.begin());
        replies.turn();
        assert!(!replies.are_sent());
        let later = replies.begin();
        drop(first);
        assert!(!replies.are_sent());
        drop(second);
        assert!(replies.are_sent(), "one that has begun since is not waited for");
        replies.turn();
        assert!(!replies.are_sent());
        drop(later);
        assert!(replies.are_sent());
    }
}
