//! Whether a client still needs what a thread waits for.
//!
//! What is far away may not come for a long time, and whoever waits may be told to end meanwhile. Whoever serves clients says which one
//! a thread is serving, and how to see whether that one has a signal to handle; whoever waits asks now and then.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::{io, time::Duration};

use parking_lot::{Mutex, MutexGuard};

/// Between two looks at a client.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

thread_local! {
    /// The client that this thread serves, by the id of its thread; 0 for nobody.
    static CLIENT: Cell<u32> = const { Cell::new(0) };
}

/// Nobody wants anything any more.
static ALL: AtomicBool = AtomicBool::new(false);

static LOOK: OnceLock<fn(u32) -> bool> = OnceLock::new();

/// This thread serves that client from now on.
pub fn serve(client: u32) {
    CLIENT.set(client);
}

/// How to see whether a client has a signal to handle. The first who says it is heard.
pub fn look_by(look: fn(u32) -> bool) {
    let _ = LOOK.set(look);
}

/// This process is ending: no thread waits any longer for what is far away.
pub fn end_all() {
    ALL.store(true, Relaxed);
}

/// Whether that was so: who has much to do ends it then.
pub fn is_ending() -> bool {
    ALL.load(Relaxed)
}

/// Whether the client that this thread serves has a signal to handle, or is gone.
pub(super) fn is_unwanted() -> bool {
    let client = CLIENT.get();
    ALL.load(Relaxed) || client != 0 && LOOK.get().is_some_and(|look| look(client))
}

/// A lock that others hold while they wait for what is far away.
///
/// # Errors
/// EINTR if nobody wants it any more.
pub fn lock<T>(mutex: &Mutex<T>) -> io::Result<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock_for(PAUSE) {
            Some(guard) => return Ok(guard),
            None if is_unwanted() => return Err(io::Error::from_raw_os_error(libc::EINTR)),
            None => {}
        }
    }
}
