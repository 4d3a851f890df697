//! What the kernel must forget, and the replies that wait until it has.
//!
//! A client that sees its close fail, or its fsync return, may look at another file at once, and must not find what was true
//! before. So a handler that made something untrue does not reply: it hands the reply over, to be sent behind the
//! notifications. It never notifies by itself, because the kernel does part of a notification under locks that clients hold
//! while they wait for *us*:
//!
//! | notification | waits for | who holds that, and until which reply |
//! | --- | --- | --- |
//! | store pages | the page's lock | a reader until READ, a writer until WRITE; no reply to those is ever handed over |
//! | invalidate pages | the same; pages of READs under way are left out, see [`reads`](super::reads) | a writer until WRITE |
//! | invalidate pages | pages changed through a mapping, to be written back | SETATTR of a size: until its reply, nothing is written back |
//! | invalidate a name, or have it looked up again | the directory's inode lock | CREATE, MKNOD, UNLINK, RENAME and FSYNCDIR until their own reply; LOOKUP and READDIR too |
//!
//! Hence two threads. The *pages* thread only ever waits for READ and WRITE, which the event loops answer. The *names* thread
//! also waits for those that hold the directory, so nothing that holds the directory may wait for the names thread: such a
//! reply ([`KernelLock::Directory`]) goes to the pages thread at once, while its names are forgotten on their own, soon after. A SETATTR
//! of a size waits for neither: what it made untrue is forgotten soon after its reply. All other replies go through both,
//! names first. Neither thread takes a lock of the view while it notifies. What may wait for a client's lock they have done
//! [apart](super::apart): a daemon that is killed meanwhile leaves a thread in the kernel, which must not keep the mount alive.
//!
//! Both threads start when there is work, and end when there has been none for [`IDLE`].
//!
//! The pages thread also pushes (see [`page_cache_push`]): one file at a time, whenever no one waits for it. Pushed bytes
//! are read when their turn comes, so invalidations may overtake them; only a push under way needs waiting for, and
//! only by those who are about to write the file it is pushing.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::Duration;

use fuser::INodeNo;
use log::{debug, warn};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::apart::{Apart, IDLE};
use super::inodes::Inodes;
use super::page_cache_push;
use super::reads::{Origin, Reads};
use crate::store::in_words;
use crate::view::prefetch::PAGE;
use crate::view::{FileSystem, Ino, Invalidation, Invalidations, Push};

/// How long READs under way are waited for, before pages are forgotten for a client.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the reply to a WRITE waits for the pages thread to be free.
pub(super) const TURN: Duration = Duration::from_millis(250);

/// How long it waits then for pages to be forgotten.
const MOMENT: Duration = Duration::from_millis(20);

/// A reply, to be sent when the kernel has forgotten.
type Answer = Box<dyn FnOnce() + Send>;

/// What the kernel holds locked for a client until its reply comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelLock {
    /// Nothing that an invalidation waits for.
    Nothing,
    /// The inode lock of the directory.
    Directory,
    /// This file, of which nothing is written back until then, and which the client may write to as soon as it has the reply.
    File(Ino),
}

/// Work for the pages thread. An answer alone waits for the push under way.
#[derive(Default)]
struct Pages {
    /// Attributes and pages of these inodes: from a byte on, so many; all that follow, for 0; none, from -1 on.
    data: Vec<(Ino, i64, i64)>,
    /// Listings of these directories. Their pages are locked for a client that copies names, and for no reply.
    listings: Vec<Ino>,
    /// Of every inode, everything.
    all: bool,
    /// Of every inode from one to another, everything from this byte on.
    within: Vec<(Ino, Ino, i64)>,
    answer: Option<Answer>,
}

/// Work for the names thread.
#[derive(Default)]
struct Names {
    entries: Vec<(Ino, OsString)>,
    /// To be looked up again.
    expired: Vec<(Ino, OsString)>,
    /// Every name.
    all: bool,
    /// Goes to the pages thread afterwards.
    then: Option<Pages>,
}

/// State of the pages thread. No lock is taken under this one.
#[derive(Default)]
struct PagesQueue {
    items: VecDeque<Pages>,
    pushes: VecDeque<Push>,
    /// What is to be pushed and the view has not been told of.
    expected: Vec<Ino>,
    /// The inode that is being pushed just now.
    pushing: Option<Ino>,
    /// Inodes open for writing, with the number of handles: never pushed.
    writers: HashMap<Ino, u32>,
    stopped: bool,
    /// The thread runs.
    runs: bool,
}

/// State of the names thread. No lock is taken under this one.
#[derive(Default)]
struct NamesQueue {
    items: VecDeque<Names>,
    stopped: bool,
    /// The thread runs.
    runs: bool,
}

/// Which of the two threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Names,
    Pages,
}

/// Starts a thread, which is to call [`Notify::run`]. Returns whether it runs.
type Start = Box<dyn Fn(Role) -> bool + Send + Sync>;

/// The two queues.
#[derive(Default)]
pub(super) struct Notify {
    start: OnceLock<Start>,
    pages: Mutex<PagesQueue>,
    pages_wake: Condvar,
    names: Mutex<NamesQueue>,
    names_wake: Condvar,
    /// A thread has ended.
    ended: Condvar,
    /// READs without a reply.
    pub(super) reads: Reads,
    /// Files pushed, whole or their beginnings.
    pub(super) pushed: AtomicU64,
}

impl Notify {
    /// By which threads are started from now on.
    pub(super) fn start_by(&self, start: impl Fn(Role) -> bool + Send + Sync + 'static) {
        let _ = self.start.set(Box::new(start));
    }

    fn start(&self, role: Role) -> bool {
        self.start.get().is_some_and(|start| start(role))
    }

    /// Sends `answer` when the kernel has forgotten `invalidations`, as far as `held` lets it be awaited: at once if there are none.
    pub(super) fn answer(&self, invalidations: Invalidations, held: KernelLock, answer: impl FnOnce() + Send + 'static) {
        match held {
            KernelLock::File(ino) => {
                self.answer_writer(ino, answer);
                self.forget(invalidations);
            }
            _ if invalidations.is_empty() => answer(),
            _ => self.enqueue(invalidations, held, Some(Box::new(answer))),
        }
    }

    /// Has the kernel forget `invalidations`, soon.
    pub(super) fn forget(&self, invalidations: Invalidations) {
        if !invalidations.is_empty() {
            self.enqueue(invalidations, KernelLock::Nothing, None);
        }
    }

    fn enqueue(&self, invalidations: Invalidations, held: KernelLock, answer: Option<Answer>) {
        let mut names = Names::default();
        let mut pages = Pages { answer, ..Pages::default() };
        for inval in invalidations {
            match inval {
                Invalidation::Data(ino) => pages.data.push((ino, 0, 0)),
                Invalidation::Range(_, _, 0) => {}
                Invalidation::Range(ino, start, len) => pages.data.push((ino, signed(start), signed(len))),
                Invalidation::Attr(ino) => pages.data.push((ino, -1, 0)),
                Invalidation::Entry(parent, name) => {
                    // The kernel's cached listing is only dropped with the name if it knew the name.
                    if names.entries.last().is_none_or(|(last, _)| *last != parent) {
                        pages.listings.push(parent);
                    }
                    names.entries.push((parent, name));
                }
                Invalidation::Expired(parent, name) => names.expired.push((parent, name)),
                Invalidation::Within(first, last) => pages.within.push((first, last, 0)),
                Invalidation::AttrWithin(first, last) => pages.within.push((first, last, -1)),
                Invalidation::Names => names.all = true,
                Invalidation::All => (pages.all, names.all) = (true, true),
            }
        }
        if names.entries.is_empty() && names.expired.is_empty() && !names.all {
            return self.enqueue_pages(pages);
        }
        // What is only looked up again need not come first: others wait for locks of the directory.
        let only_expires = names.entries.is_empty() && !names.all && pages.answer.is_none();
        if held == KernelLock::Directory || only_expires {
            self.enqueue_pages(pages);
        } else {
            names.then = Some(pages);
        }
        let mut queue = self.names.lock();
        if queue.stopped {
            drop(queue);
            return self.enqueue_pages(names.then.unwrap_or_default());
        }
        queue.items.push_back(names);
        if queue.runs {
            self.names_wake.notify_one();
            return;
        }
        queue.runs = self.start(Role::Names);
        if !queue.runs {
            // The names wait for the next try. Clients do not.
            let then: Vec<_> = queue.items.iter_mut().filter_map(|item| item.then.take()).collect();
            drop(queue);
            then.into_iter().for_each(|pages| self.enqueue_pages(pages));
        }
    }

    fn enqueue_pages(&self, pages: Pages) {
        let mut queue = self.pages.lock();
        if queue.stopped {
            drop(queue);
            if let Some(answer) = pages.answer {
                answer();
            }
            return;
        }
        queue.items.push_back(pages);
        self.wake_pages(queue);
    }

    fn wake_pages(&self, mut queue: MutexGuard<'_, PagesQueue>) {
        if queue.runs {
            self.pages_wake.notify_one();
            return;
        }
        queue.runs = self.start(Role::Pages);
        if !queue.runs {
            // The pages wait for the next try. Clients do not.
            let answers: Vec<_> = queue.items.iter_mut().filter_map(|item| item.answer.take()).collect();
            drop(queue);
            answers.into_iter().for_each(|answer| answer());
        }
    }

    /// The inode is about to be opened for writing: no push of it begins until [`Notify::writer_gone`].
    pub(super) fn writer_came(&self, ino: Ino) {
        self.reads.writer_came(ino);
        *self.pages.lock().writers.entry(ino).or_default() += 1;
    }

    /// Whether any file is open for writing.
    pub(super) fn has_writers(&self) -> bool {
        !self.pages.lock().writers.is_empty()
    }

    /// A handle that was open for writing is gone.
    pub(super) fn writer_gone(&self, ino: Ino) {
        self.reads.writer_gone(ino);
        let mut queue = self.pages.lock();
        if let Some(count) = queue.writers.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                queue.writers.remove(&ino);
            }
        }
    }

    /// Answers a client that may write to `ino` as soon as it has the answer: a push of it that is under
    /// way ends first, or its old bytes would land on the new ones. (What is pushed has no writer, so no page of it waits to be
    /// written back, and a SETATTR may wait here.)
    fn answer_writer(&self, ino: Ino, answer: impl FnOnce() + Send + 'static) {
        if self.pages.lock().pushing == Some(ino) {
            return self.enqueue_pages(Pages { answer: Some(Box::new(answer)), ..Pages::default() });
        }
        answer();
    }

    /// A WRITE has changed a range of a file, and has no reply yet. Has the kernel forget what READs have brought back too early: before
    /// the reply, unless that takes longer than a [`MOMENT`], because the kernel may hold one of the pages until the reply. Such a page it
    /// reads anew.
    pub(super) fn written(&self, ino: Ino, (offset, len): (u64, u64), write: Origin, from_mapping: bool) {
        if let Some((start, len)) = self.reads.overtake(ino, offset, offset.saturating_add(len), write, from_mapping) {
            self.wait_for_pages(Pages::default(), TURN);
            self.wait_for_pages(Pages { data: vec![(ino, signed(start), signed(len))], ..Pages::default() }, MOMENT);
        }
    }

    /// Has the pages thread do something, and waits until it is done, but no longer than `patience`.
    fn wait_for_pages(&self, pages: Pages, patience: Duration) {
        let (done, is_done) = channel::<()>();
        self.enqueue_pages(Pages { answer: Some(Box::new(move || drop(done))), ..pages });
        let _ = is_done.recv_timeout(patience);
    }

    /// Asks for files to be pushed after those asked for before. The reader has got to `reached` (and waits for its bytes, if
    /// `reading`), so that what comes before is of no more use. If the push comes too late for it, the file after it is left to
    /// the reader as well: or both would go on reading the same file.
    pub(super) fn push(&self, reached: Ino, reading: bool, hints: Vec<Push>) {
        let mut queue = self.pages.lock();
        let place = queue.pushes.iter().position(|hint| hint.ino == reached);
        if let Some(place) = place {
            queue.pushes.drain(..=place);
        }
        if place.is_some() || reading && queue.pushing == Some(reached) {
            queue.pushes.pop_front();
        }
        if !queue.stopped && !hints.is_empty() {
            queue.expected.extend(hints.iter().filter(|hint| hint.len > PAGE).map(|hint| hint.ino));
            queue.pushes.extend(hints);
            let excess = queue.pushes.len().saturating_sub(page_cache_push::LONGEST_QUEUE);
            queue.pushes.drain(..excess);
            self.wake_pages(queue);
        }
    }

    /// Has the kernel forget attributes and pages of a file. With `wait`, a client resumes behind it, who must find nothing of before.
    fn forget_pages(&self, apart: &mut Apart, (ino, start, len): (Ino, i64, i64), wait: bool) {
        let attributes = |apart: &Apart| told("attributes", Ok(vec![apart.teller().notifier.inval_inode(INodeNo(ino.0), -1, 0)]));
        let Ok(from) = u64::try_from(start) else { return attributes(apart) };
        if wait && !self.reads.wait(ino, PATIENCE) {
            debug!("a READ of inode {} takes long", ino.0);
        }
        let end = u64::try_from(len).ok().filter(|len| *len > 0).map_or(u64::MAX, |len| from.saturating_add(len));
        let gaps = self.reads.gaps(ino, from, end);
        if gaps.is_empty() {
            return attributes(apart);
        }
        let outcomes = apart.run(move |teller| {
            let len = |start, end| if end == u64::MAX { 0 } else { signed(end - start) };
            let forget = |(start, end)| teller.notifier.inval_inode(INodeNo(ino.0), signed(start), len(start, end));
            gaps.into_iter().map(forget).collect()
        });
        told("pages", outcomes);
    }

    /// Ends both threads, with every reply sent, and waits for that.
    pub(super) fn stop(&self) {
        let mut names = self.names.lock();
        names.stopped = true;
        self.names_wake.notify_one();
        while names.runs {
            self.ended.wait(&mut names);
        }
        drop(names);
        let mut pages = self.pages.lock();
        pages.stopped = true;
        pages.pushes.clear();
        self.pages_wake.notify_one();
        while pages.runs {
            self.ended.wait(&mut pages);
        }
    }

    /// A thread's body.
    pub(super) fn run(&self, role: Role, apart: Apart, view: &dyn FileSystem, inodes: &Inodes) {
        let ended = catch_unwind(AssertUnwindSafe(|| match role {
            Role::Names => self.run_names(apart, view, inodes),
            Role::Pages => self.run_pages(apart, view, inodes),
        }));
        if ended.is_err() {
            match role {
                Role::Names => self.names.lock().runs = false,
                Role::Pages => self.pages.lock().runs = false,
            }
        }
        self.ended.notify_all();
    }

    fn run_names(&self, mut apart: Apart, view: &dyn FileSystem, inodes: &Inodes) {
        loop {
            let mut queue = self.names.lock();
            while queue.items.is_empty() && !queue.stopped && !self.names_wake.wait_for(&mut queue, IDLE).timed_out() {}
            let Some(mut item) = queue.items.pop_front() else {
                queue.runs = false;
                return;
            };
            drop(queue);
            if item.all && forget_names(&apart.teller().device).is_err() {
                item.entries.extend(inodes.all().into_iter().filter_map(|ino| view.last_name(ino)));
            }
            if !(item.entries.is_empty() && item.expired.is_empty()) {
                let (entries, expired) = (item.entries, item.expired);
                let outcomes = apart.run(move |teller| {
                    let forgotten = entries.iter().map(|(parent, name)| teller.notifier.inval_entry(INodeNo(parent.0), name));
                    let expired = expired.iter().map(|(parent, name)| expire_name(&teller.device, *parent, name));
                    forgotten.chain(expired).filter(io::Result::is_err).collect::<Vec<_>>()
                });
                told("a name", outcomes);
            }
            if let Some(pages) = item.then {
                self.enqueue_pages(pages);
            }
        }
    }

    fn run_pages(&self, mut apart: Apart, view: &dyn FileSystem, inodes: &Inodes) {
        let mut buf = Vec::new();
        loop {
            let mut queue = self.pages.lock();
            queue.pushing = None;
            while queue.items.is_empty()
                && queue.pushes.is_empty()
                && !queue.stopped
                && !self.pages_wake.wait_for(&mut queue, IDLE).timed_out()
            {}
            if let Some(item) = queue.items.pop_front() {
                drop(queue);
                let mut data = item.data;
                if item.all || !item.within.is_empty() {
                    for ino in inodes.all() {
                        let within = item.within.iter().filter(|(first, last, _)| (first..=last).contains(&&ino));
                        let from = within.map(|(.., from)| *from).chain(item.all.then_some(0)).max();
                        data.extend(from.map(|from| (ino, from, 0)));
                    }
                }
                let listings = item.listings.iter().map(|ino| apart.teller().notifier.inval_inode(INodeNo(ino.0), 0, 0));
                told("listings", Ok(listings.collect()));
                for (ino, start, len) in data {
                    self.forget_pages(&mut apart, (ino, start, len), item.answer.is_some());
                }
                if let Some(answer) = item.answer {
                    answer();
                }
            } else if !queue.expected.is_empty() && !queue.stopped {
                let expected = std::mem::take(&mut queue.expected);
                drop(queue);
                view.prefetch(&expected);
            } else if let Some(hint) = queue.pushes.pop_front() {
                if queue.writers.contains_key(&hint.ino) || !inodes.knows(hint.ino) {
                    continue;
                }
                queue.pushing = Some(hint.ino);
                drop(queue);
                page_cache_push::store(&mut apart, view, hint, &mut buf);
                self.pushed.fetch_add(1, Relaxed);
            } else {
                queue.runs = false;
                return;
            }
        }
    }
}

/// As before Linux 6.16.
#[cfg(test)]
pub(super) static ONE_BY_ONE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Has the kernel forget every name: look each up again before it is used. In one stroke, since Linux 6.16.
///
/// fuser does not know it, so this writes to the device by itself: `struct fuse_out_header` with its length, the notification's number, and
/// the request's, which is 0.
fn forget_names(mut device: &File) -> io::Result<()> {
    const INC_EPOCH: i32 = 8;
    #[cfg(test)]
    if ONE_BY_ONE.load(Relaxed) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&16u32.to_ne_bytes());
    bytes[4..8].copy_from_slice(&INC_EPOCH.to_ne_bytes());
    device.write_all(&bytes)
}

/// Has the kernel look a name up again before it is used. As long as that finds the same, it stays what it is to those who are in it.
///
/// fuser does not know it either: behind the header `struct fuse_notify_inval_entry_out`, and the name with a NUL.
fn expire_name(mut device: &File, parent: Ino, name: &OsStr) -> io::Result<()> {
    const INVAL_ENTRY: i32 = 3;
    const EXPIRE_ONLY: u32 = 1;
    let (name, mut bytes) = (name.as_bytes(), Vec::new());
    let len = u32::try_from(16 + 16 + name.len() + 1).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&len.to_ne_bytes());
    bytes.extend_from_slice(&INVAL_ENTRY.to_ne_bytes());
    bytes.extend_from_slice(&0u64.to_ne_bytes());
    bytes.extend_from_slice(&parent.0.to_ne_bytes());
    bytes.extend_from_slice(&(name.len() as u32).to_ne_bytes());
    bytes.extend_from_slice(&EXPIRE_ONLY.to_ne_bytes());
    bytes.extend_from_slice(name);
    bytes.push(0);
    match device.write_all(&bytes) {
        // It does not know the name.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// As the kernel takes a place in a file: none is behind the largest.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Failures of notifications: what the kernel does not know it need not forget.
fn told(what: &str, outcomes: io::Result<Vec<io::Result<()>>>) {
    let errors = outcomes.unwrap_or_else(|error| vec![Err(error)]).into_iter().filter_map(Result::err);
    for error in errors {
        match error.raw_os_error() {
            // The connection is gone, and everything with it.
            Some(libc::ENOTCONN | libc::ENODEV | libc::EPERM) => {
                debug!("kernel not told to forget {what}: {}", in_words(&error));
            }
            _ => warn!("the kernel did not forget {what}: {}", in_words(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_threads_clients_get_their_replies() {
        let notify = Notify::default();
        let (sender, replies) = std::sync::mpsc::channel();
        for (n, held) in [KernelLock::Nothing, KernelLock::Directory, KernelLock::File(Ino(1))].into_iter().enumerate() {
            let sender = sender.clone();
            let invalidations = vec![Invalidation::Entry(Ino(1), "name".into()), Invalidation::Data(Ino(2))];
            notify.answer(invalidations, held, move || sender.send(n).unwrap());
        }
        assert_eq!(replies.try_iter().collect::<Vec<_>>(), [0, 1, 2]);
        // What is to be forgotten is not lost.
        let names: usize = notify.names.lock().items.iter().map(|item| item.entries.len()).sum();
        let data: usize = notify.pages.lock().items.iter().map(|item| item.data.len()).sum();
        assert_eq!((names, data), (3, 3));
        notify.stop();
    }
}
