//! Clients that have a signal to handle while a thread waits for what they want.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use b2fuse::store::interrupts;
use parking_lot::Mutex;

/// Those who have one.
static SIGNALLED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A client that this thread serves, until the end of this.
pub struct Served(u32);

/// Its signal.
#[derive(Clone, Copy)]
pub struct Signal(u32);

/// From now on this thread serves a client.
pub fn serve() -> Served {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // The first is heard, and all say the same.
    interrupts::look_by(|client| SIGNALLED.lock().contains(&client));
    let client = NEXT.fetch_add(1, SeqCst);
    interrupts::serve(client);
    Served(client)
}

impl Served {
    pub fn signal(&self) -> Signal {
        Signal(self.0)
    }
}

impl Signal {
    pub fn send(self) {
        SIGNALLED.lock().insert(self.0);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        interrupts::serve(0);
    }
}
