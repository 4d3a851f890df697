//! What `b2fuse umount` and the daemon say to each other, so that a mount goes only when it is known what is not in SOURCE.
//!
//! After an unmount nothing can be asked of a daemon any more, so everything is said before, in ioctl(2) on the mount's root:
//!
//! 1. [`Question::Begin`]: the daemon begins to commit, and answers with a ticket. It waits until no file is open for writing.
//!    From then on whatever would change something waits, so that its report is the last word. It commits, syncs,
//!    and saves beside SOURCE what finds no place there.
//! 2. [`Question::HowFar`], with the ticket, until the answer is not [`Answer::Working`], with which it takes its time:
//!    [`Answer::Ready`] with what is not in SOURCE and where it is saved; [`Answer::Refused`] where something could be neither
//!    committed nor saved, or a later commit may succeed; [`Answer::Busy`] where files are open for writing.
//! 3. After `Ready` the mount is taken away. [`Question::Resume`] says that this did not succeed: then all goes on, and the
//!    answer is [`Answer::Working`] if somebody waited, which the kernel takes for a busy mount. So it goes on
//!    after [`SEALED`] at any rate, as who asked may have been killed: a mount that went later than that was changed
//!    perhaps after the report.
//! 4. The daemon's mark on SOURCE ([`Mark`]), which `Ready` says how to find, is gone when the
//!    daemon has released everything.
//!
//! With [`Begin`](Question::Begin) of a mount that is to go although files are open in it, nothing waits, and nothing is refused:
//! the name is taken away first, and the report asked for through a file that is still open.
//!
//! A second `Begin` takes the place of the first, whose ticket means nothing any more. Only the user who mounted, and root, are
//! answered. No process id is part of this: it would say nothing in another namespace.

#![expect(unsafe_code, reason = "ioctl(2) with a request of our own")]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyIoctl};
use log::{debug, warn};
use parking_lot::{Condvar, Mutex};

use super::shared::Shared;
use super::spawn;
use crate::store::in_words;
use crate::store::mark::{Life, Mark};
use crate::view::{Invalidations, Left, ROOT};

/// Length of a question, and of an answer. The kernel passes up to 16 KiB.
pub const LEN: usize = 8192;
/// The ioctl: `_IOWR(0xB2, 2, char[LEN])`.
pub(super) const IOCTL: u32 = 3 << 30 | (LEN as u32) << 16 | 0xB2 << 8 | 2;
/// How long nothing changes after [`Answer::Ready`].
pub const SEALED: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };
/// How long files that are open for writing are waited for: the kernel tells of a close after it has returned.
const QUIET: Duration = Duration::from_secs(1);
/// Pause between two looks at them.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long the daemon takes before it says that it is still working.
const STILL_WORKING: Duration = Duration::from_secs(1);

/// What the daemon is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// To make the mount ready to be taken away; although files are open in it, if so.
    Begin(bool),
    /// How far that is.
    HowFar(u32),
    /// To go on as before.
    Resume(u32),
}

/// What the daemon answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Answer {
    /// It is at it.
    Working,
    /// Files are open for writing, or another one unmounts.
    #[default]
    Busy,
    /// The mount can be taken away.
    Ready {
        /// What is not in SOURCE, in words; empty if there is nothing.
        left: String,
        /// Where SOURCE is, and which file it is, if the daemon has marked it.
        source: Option<(PathBuf, (u64, u64))>,
    },
    /// Not everything could be kept, for which reason; nothing is lost yet.
    Refused(String),
}

// Offsets of the fields; numbers are in the machine's order. A question has the first three.
const KIND: usize = 0;
const TICKET: usize = 4;
const REGARDLESS: usize = 8;
const PATH_LEN: usize = 8;
const TEXT_LEN: usize = 12;
const FILE: usize = 16;
const BYTES: usize = 32;

impl Question {
    /// As the daemon is asked.
    pub fn encode(self) -> [u8; LEN] {
        let (kind, ticket, regardless) = match self {
            Question::Begin(regardless) => (1, 0, regardless),
            Question::HowFar(ticket) => (2, ticket, false),
            Question::Resume(ticket) => (3, ticket, false),
        };
        message([(KIND, kind), (TICKET, ticket), (REGARDLESS, u32::from(regardless))])
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let ticket = get(bytes, TICKET)?;
        match get(bytes, KIND)? {
            1 => Some(Question::Begin(get(bytes, REGARDLESS)? != 0)),
            2 => Some(Question::HowFar(ticket)),
            3 => Some(Question::Resume(ticket)),
            _ => None,
        }
    }
}

impl Answer {
    #[expect(clippy::indexing_slicing, reason = "the text is cut to what path and numbers leave of a message")]
    fn encode(&self, ticket: u32) -> [u8; LEN] {
        let (kind, text, source) = match self {
            Answer::Working => (1, "", None),
            Answer::Busy => (2, "", None),
            Answer::Ready { left, source } => (3, left.as_str(), source.as_ref()),
            Answer::Refused(why) => (4, why.as_str(), None),
        };
        // A path that finds no room is as good as none.
        let source = source.filter(|(path, _)| path.as_os_str().len() <= LEN / 2);
        let (path, (device, inode)) = source.map_or((&[][..], (0, 0)), |(path, file)| (path.as_os_str().as_bytes(), *file));
        let mut len = text.len().min(LEN - BYTES - path.len());
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        let rest = [&device.to_ne_bytes()[..], &inode.to_ne_bytes(), path, &text.as_bytes()[..len]].concat();
        let mut bytes = message([(KIND, kind), (TICKET, ticket), (PATH_LEN, path.len() as u32), (TEXT_LEN, len as u32)]);
        bytes[FILE..FILE + rest.len()].copy_from_slice(&rest);
        bytes
    }

    /// With the ticket. Whoever answers may be anybody.
    pub fn decode(bytes: &[u8; LEN]) -> Option<(u32, Self)> {
        let (path_len, text_len) = (get(bytes, PATH_LEN)? as usize, get(bytes, TEXT_LEN)? as usize);
        let (path, rest) = bytes.get(BYTES..)?.split_at_checked(path_len)?;
        let text = || Some(String::from_utf8_lossy(rest.get(..text_len)?).into_owned());
        let number = |at: usize| bytes.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let source = || Some((OsStr::from_bytes(path).to_owned().into(), (number(FILE)?, number(FILE + 8)?)));
        let answer = match get(bytes, KIND)? {
            1 => Answer::Working,
            2 => Answer::Busy,
            3 => Answer::Ready { left: text()?, source: if path.is_empty() { None } else { source() } },
            4 => Answer::Refused(text()?),
            _ => return None,
        };
        Some((get(bytes, TICKET)?, answer))
    }
}

fn message<const N: usize>(fields: [(usize, u32); N]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    fields.into_iter().for_each(|(at, value)| put(&mut bytes, at, value));
    bytes
}

#[expect(clippy::indexing_slicing, reason = "where the numbers of a message are, it has bytes")]
fn put(bytes: &mut [u8; LEN], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn get(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Asks the daemon of the mount that `file` lies in a question, which the answer takes the place of.
///
/// # Errors
/// ENOTTY, ENOSYS or EINVAL from what is no b2fuse mount of this version; EPERM where it is another user's; ENOTCONN or ECONNABORTED
/// if the daemon is gone.
pub fn pass_on(file: &File, bytes: &mut [u8; LEN]) -> io::Result<()> {
    // SAFETY: the request's number says that so many bytes are read and written, and `bytes` has them.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(IOCTL), bytes.as_mut_ptr()) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The daemon's side of an unmount.
#[derive(Default)]
pub(super) struct Unmounting {
    /// One report is made at a time.
    working: Mutex<()>,
    state: Mutex<State>,
    /// Told of everything that changes in it, but for `changing`.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Of the last [`Question::Begin`].
    ticket: u32,
    answer: Answer,
    /// Changes wait.
    sealed: bool,
    /// Changes under way.
    changing: u32,
    /// Changes that wait.
    waiting: Vec<Waiting>,
    /// The mount is gone: nothing waits any more.
    ended: bool,
}

type Waiting = Box<dyn FnOnce(&Arc<Shared>, Option<Change>) + Send>;

/// Held while something is changed that an unmount's report is to have.
pub(super) struct Change(Arc<Shared>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.unmounting.state.lock().changing -= 1;
    }
}

impl Unmounting {
    /// The mount is gone.
    pub(super) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.notify_all();
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Keeps changes waiting from now on, if none is under way and no file is open for writing: soon, or never.
    fn seal(&self, writing: impl Fn() -> bool) -> bool {
        let until = Instant::now() + QUIET;
        loop {
            {
                let mut state = self.state.lock();
                // Whoever opens a file for writing does it as a change, and counts as a writer before that ends.
                if state.changing == 0 && !writing() {
                    state.sealed = true;
                    return true;
                }
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Shared {
    /// Runs `work`: at once, or what `changes` what the mount shows while an unmount is being tried when it has failed.
    pub(super) fn unless_sealed(self: &Arc<Self>, changes: bool, work: impl FnOnce(&Arc<Self>, Option<Change>) + Send + 'static) {
        if !changes {
            return work(self, None);
        }
        let change = {
            let mut state = self.unmounting.state.lock();
            if state.sealed && !state.ended {
                return state.waiting.push(Box::new(work));
            }
            self.changing(&mut state)
        };
        work(self, Some(change));
    }

    fn changing(self: &Arc<Self>, state: &mut State) -> Change {
        state.changing += 1;
        Change(Arc::clone(self))
    }

    /// Runs the changes that have waited, if they need not any more.
    fn go_on(self: &Arc<Self>) {
        let waiting: Vec<_> = {
            let mut state = self.unmounting.state.lock();
            if state.sealed && !state.ended {
                return;
            }
            std::mem::take(&mut state.waiting).into_iter().map(|work| (work, self.changing(&mut state))).collect()
        };
        for (work, change) in waiting {
            if let Some(_entered) = self.enter() {
                work(self, Some(change));
            }
        }
    }

    /// Answers a question of `b2fuse umount`, of a user who may ask.
    pub(super) fn asked(self: &Arc<Self>, question: &[u8], reply: ReplyIoctl) {
        let Some(question) = Question::decode(question) else { return reply.error(Errno::EINVAL) };
        let mut state = self.unmounting.state.lock();
        match question {
            Question::Begin(regardless) => {
                state.ticket = state.ticket.wrapping_add(1);
                state.answer = Answer::Working;
                self.unmounting.changed.notify_all();
                let (shared, ticket) = (Arc::clone(self), state.ticket);
                let body = move || {
                    shared.make_ready(ticket, regardless);
                    shared.go_on();
                };
                if !spawn("b2fuse-umount", "an unmount", body) {
                    state.answer = Answer::Refused("the daemon has no thread for it".into());
                }
            }
            Question::HowFar(ticket) | Question::Resume(ticket) if ticket != state.ticket => {
                return reply.ioctl(0, &Answer::Busy.encode(ticket));
            }
            Question::HowFar(_) if state.answer == Answer::Working => {
                let shared = Arc::clone(self);
                // Without a thread, who asked hears of an error.
                spawn("b2fuse-how-far", "an unmount", move || shared.say_how_far(reply));
                return;
            }
            Question::HowFar(_) => {}
            Question::Resume(ticket) => {
                let answer = if !state.waiting.is_empty() { Answer::Working } else { Answer::Busy };
                state.answer = Answer::Busy;
                state.sealed = false;
                self.unmounting.changed.notify_all();
                return reply.ioctl(0, &answer.encode(ticket));
            }
        }
        reply.ioctl(0, &state.answer.encode(state.ticket));
    }

    /// Answers when there is something new, or after a while.
    fn say_how_far(&self, reply: ReplyIoctl) {
        let Some(_entered) = self.enter() else { return };
        let mut state = self.unmounting.state.lock();
        let ticket = state.ticket;
        let working = |state: &mut State| state.ticket == ticket && state.answer == Answer::Working && !state.ended;
        self.unmounting.changed.wait_while_for(&mut state, working, STILL_WORKING);
        let answer = if state.ticket == ticket { &state.answer } else { &Answer::Busy };
        reply.ioctl(0, &answer.encode(ticket));
    }

    /// Makes the mount ready to be taken away, and sees to it that it goes on if it is not.
    fn make_ready(self: &Arc<Self>, ticket: u32, regardless: bool) {
        let one_at_a_time = self.unmounting.working.lock();
        if self.unmounting.state.lock().ticket != ticket {
            return;
        }
        let mut invalidations = Invalidations::new();
        // While clients go on, so that they have less to wait for. What fails now will be said below.
        if let Err(error) = self.view.fsync(ROOT, &mut invalidations) {
            debug!("before unmounting: {error}");
        }
        let answer = if regardless || self.unmounting.seal(|| self.notify.has_writers()) {
            self.answer_with(self.view.leave(regardless, &mut invalidations), regardless)
        } else {
            Answer::Busy
        };
        self.notify.forget(invalidations);
        drop(one_at_a_time);
        let goes = !regardless && matches!(answer, Answer::Ready { .. });
        let mut state = self.unmounting.state.lock();
        if state.ticket != ticket {
            return;
        }
        state.answer = answer;
        self.unmounting.changed.notify_all();
        if goes {
            let until = Instant::now() + SEALED;
            while state.ticket == ticket && state.sealed && !state.ended {
                if self.unmounting.changed.wait_until(&mut state, until).timed_out() {
                    break;
                }
            }
            if state.ended || state.ticket != ticket {
                return;
            }
            state.answer = Answer::Busy;
        }
        state.sealed = false;
        self.unmounting.changed.notify_all();
        self.say(Life::Serving);
    }

    fn answer_with(&self, left: Left, regardless: bool) -> Answer {
        if !(regardless || left.is_safe()) {
            warn!("not unmounted: {left}");
            return Answer::Refused(left.to_string());
        }
        self.say(if regardless { Life::Serving } else { Life::Ending });
        let file = self.mark.lock().as_ref().and_then(|mark| mark.file().ok());
        let source = file.and_then(|file| Some((self.view.source()?.1, file)));
        Answer::Ready { left: if left.is_nothing() { String::new() } else { left.to_string() }, source }
    }

    /// Says on SOURCE how far this daemon is with its mount, as far as that can be said.
    pub(super) fn say(&self, life: Life) {
        let mut mark = self.mark.lock();
        self.ending.store(life == Life::Ending, SeqCst);
        self.mark_source(&mut mark, life);
    }

    /// Says it of what is SOURCE now, if that is another file than it was.
    pub(super) fn say_again(&self) {
        let mut mark = self.mark.lock();
        let now = self.view.source().and_then(|(source, _)| rustix::fs::fstat(source).ok());
        if now.map(|now| (now.st_dev, now.st_ino)) == mark.as_ref().and_then(|mark| mark.file().ok()) {
            return;
        }
        // What is open of the one before goes with this, and its lock.
        *mark = None;
        self.mark_source(&mut mark, if self.ending.load(SeqCst) { Life::Ending } else { Life::Serving });
    }

    fn mark_source(&self, mark: &mut Option<Mark>, life: Life) {
        let (Some(device), Some((source, path))) = (self.device.get(), self.view.source()) else { return };
        // SOURCE may be another file than it was.
        match Mark::new(source, *device, !self.features.read_only, life) {
            Ok(new) => *mark = Some(new),
            Err(error) => debug!("{}: cannot be marked: {}", path.display(), in_words(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_come_through() {
        for question in [Question::Begin(true), Question::Begin(false), Question::HowFar(7), Question::Resume(u32::MAX)] {
            assert_eq!(Question::decode(&question.encode()), Some(question));
        }
        let source = Some((PathBuf::from("/a/é.b2frame"), (1 << 40, 2)));
        for answer in [
            Answer::Working,
            Answer::Busy,
            Answer::Ready { left: String::new(), source: None },
            Answer::Ready { left: "ü".into(), source },
            Answer::Refused("no room".into()),
        ] {
            assert_eq!(Answer::decode(&answer.encode(9)), Some((9, answer)));
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_cut() {
        let source = Some((PathBuf::from("x".repeat(LEN / 2)), (1, 2)));
        let answer = Answer::Ready { left: "é".repeat(LEN), source: source.clone() };
        let Some((_, Answer::Ready { left, source: found })) = Answer::decode(&answer.encode(1)) else { panic!() };
        assert!(found == source && left == "é".repeat((LEN / 2 - BYTES) / 2));
    }

    #[test]
    fn nothing_is_believed() {
        assert_eq!(Question::decode(&[]), None);
        assert_eq!(Question::decode(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Answer::decode(&[0; LEN]), None);
        for kind in 3..=4 {
            for (at, len) in
                [(PATH_LEN, u32::MAX), (TEXT_LEN, u32::MAX), (PATH_LEN, LEN as u32), (TEXT_LEN, (LEN - BYTES) as u32 + 1)]
            {
                let mut bytes = Answer::Refused("no".into()).encode(1);
                put(&mut bytes, KIND, kind);
                put(&mut bytes, at, len);
                assert_eq!(Answer::decode(&bytes), None, "{kind} {at} {len}");
            }
        }
    }
}
