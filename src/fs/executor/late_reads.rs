//! READs that wait for the end of another program's change ([`ViewError::Unsettled`]): they occupy no event loop.
//!
//! One thread tries them again, while there are any: the first of each file, and the others of that file in a thread of their own once
//! the first one has its reply. So a file that keeps its readers waiting delays no other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyData};
use log::debug;
use parking_lot::Mutex;

use crate::fs::reads::Origin;
use crate::fs::shared::Shared;
use crate::fs::spawn;
use crate::store::interrupts;
use crate::view::{Handle, Ino, Invalidation, ViewError};

/// Pauses between two tries, at first and later.
const PAUSE: Duration = Duration::from_millis(3);
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// When the pauses become longer.
const LATER: Duration = Duration::from_secs(1);

/// A READ under way, until it is dropped.
pub(in crate::fs) struct Reading {
    shared: Arc<Shared>,
    ino: Ino,
    id: u64,
}

impl Reading {
    /// Whether a WRITE has changed what it reads since this was last asked.
    pub(in crate::fs) fn is_overtaken(&self) -> bool {
        self.shared.notify.reads.is_overtaken(self.ino, self.id)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some((start, len)) = self.shared.notify.reads.end(self.ino, self.id) {
            self.shared.notify.forget(vec![Invalidation::Range(self.ino, start, len)]);
        }
    }
}

/// A READ that waits.
pub(in crate::fs) struct LateRead {
    pub(in crate::fs) client: u32,
    pub(in crate::fs) handle: Option<Handle>,
    pub(in crate::fs) offset: u64,
    pub(in crate::fs) len: usize,
    pub(in crate::fs) reply: ReplyData,
    pub(in crate::fs) reading: Reading,
}

/// All that wait. A leaf lock.
#[derive(Default)]
pub(in crate::fs) struct LateReads(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: Vec<LateRead>,
    /// There is a thread that tries them.
    runs: bool,
    /// When the last one came that waits.
    since: Option<Instant>,
}

impl Shared {
    /// A READ is under way.
    pub(in crate::fs) fn reading(self: &Arc<Self>, ino: Ino, offset: u64, len: u64, origin: Origin) -> Reading {
        Reading { shared: Arc::clone(self), ino, id: self.notify.reads.begin(ino, offset, len, origin) }
    }

    /// Replies to a READ when the other program has ended its change, or after the time that the file system gives it.
    pub(in crate::fs) fn read_later(self: &Arc<Self>, read: LateRead) {
        self.notify.reads.waits(read.reading.ino, read.reading.id);
        let mut late = self.late.0.lock();
        late.waiting.push(read);
        late.since = Some(Instant::now());
        if late.runs {
            return;
        }
        let shared = Arc::clone(self);
        late.runs = spawn("b2fuse-late", "reads that wait for another program, which fail", move || shared.read_late());
        if !late.runs {
            std::mem::take(&mut late.waiting).into_iter().for_each(|read| read.reply.error(Errno::EIO));
        }
    }

    /// The thread's body: until no READ waits.
    fn read_late(self: &Arc<Self>) {
        loop {
            let is_long = self.late.0.lock().since.is_some_and(|since| since.elapsed() > LATER);
            std::thread::sleep(if is_long { LONG_PAUSE } else { PAUSE });
            let mut files: HashMap<Ino, Vec<LateRead>> = HashMap::new();
            {
                let mut late = self.late.0.lock();
                if late.waiting.is_empty() {
                    late.runs = false;
                    return;
                }
                for read in late.waiting.drain(..) {
                    files.entry(read.reading.ino).or_default().push(read);
                }
            }
            // After the end of the mount, the kernel waits for no reply.
            let Some(_entered) = self.enter() else { continue };
            for mut reads in files.into_values() {
                let first = reads.swap_remove(0);
                if let Some(first) = self.try_late(first) {
                    reads.push(first);
                    self.late.0.lock().waiting.append(&mut reads);
                } else if !reads.is_empty() {
                    self.read_others(reads);
                }
            }
        }
    }

    /// Tries the other READs of a file whose first one has its reply.
    fn read_others(self: &Arc<Self>, reads: Vec<LateRead>) {
        let (shared, reads) = (Arc::clone(self), Arc::new(Mutex::new(reads)));
        let theirs = Arc::clone(&reads);
        let is_begun = spawn("b2fuse-late", "reads that waited for another program", move || {
            let Some(_entered) = shared.enter() else { return };
            for read in std::mem::take(&mut *theirs.lock()) {
                let left = shared.try_late(read);
                shared.late.0.lock().waiting.extend(left);
            }
            shared.run_late();
        });
        if !is_begun {
            self.late.0.lock().waiting.append(&mut reads.lock());
        }
    }

    /// Starts the thread, if READs wait and there is none.
    fn run_late(self: &Arc<Self>) {
        let read = self.late.0.lock();
        let last = if read.runs { None } else { Some(read) }.and_then(|mut late| late.waiting.pop());
        if let Some(read) = last {
            self.read_later(read);
        }
    }

    /// Tries a READ. Returns it if it has to wait on.
    fn try_late(&self, read: LateRead) -> Option<LateRead> {
        interrupts::serve(read.client);
        let LateRead { handle, offset, len, .. } = read;
        let ino = read.reading.ino;
        let mut buffer = self.buffers.take(len);
        let outcome = self.view.read(ino, handle, offset, buffer.get_mut(..len).unwrap_or_default());
        let left = match outcome {
            Err(ViewError::Unsettled) => Some(read),
            Ok(n) => {
                read.reply.data(buffer.get(..n).unwrap_or_default());
                None
            }
            Err(refusal) => {
                debug!("read of inode {}: {refusal}", ino.0);
                read.reply.error(Errno::from_i32(refusal.errno()));
                None
            }
        };
        self.buffers.give_back(buffer);
        left
    }
}
