//! Which replies are being made, so that what is not true any more is forgotten behind those that may still say it.

use parking_lot::Mutex;

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

#[cfg(test)]
mod tests {
    use super::*;

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
