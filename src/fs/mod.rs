//! The only code that names fuser: a [`FileSystem`](crate::view::FileSystem) shown through the kernel.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `adapter` | one handler a request: unpack, call the file system, reply |
//! | `answers` | from what the file system says to a reply |
//! | `shared` | what all threads of a mount share |
//! | `notify` | what the kernel must forget, and the replies that wait for it |
//! | `apart` | notifications that may wait for a client, by threads that keep nothing open |
//! | [`guard`] | a process that frees clients when the daemon has been killed |
//! | `page_cache_push` | the next files of a sequential reader, into the page cache ahead of it |
//! | `replies` | which replies are being made, so that what is not true any more is forgotten behind them |
//! | `backings` | files that the kernel reads and writes by itself |
//! | `events` | signals and the end of the device, for the first thread |
//! | `executor` | which thread does what, and what has to wait for a turn or for another program |
//! | `lock_waits` | locks, and reads that found others at work |
//! | `reads` | READs without a reply, of which no pages are invalidated |
//! | `placement` | a client that asks alone is served on its own core |
//! | `pm_qos` | with `low_latency`: no core sleeps while requests come in quick succession |
//! | `inodes` | which inodes the kernel knows |
//! | `ticker` | calls the file system when one of its frames wants to be called |
//! | `waiters` | clients that wait for a lock and get a signal meanwhile |
//! | `listing` | listings, with attributes or of names alone |
//! | `xattr` | extended attributes |
//! | [`unmount`] | what `b2fuse umount` and the daemon say to each other |
//! | [`kernel`] | mount(2), fusermount3, umount2(2), /proc/self/mountinfo |
//! | [`session`] | a mount from its first request to its last commit |
//!
//! The daemon never touches a path below its own mount point: no thread could answer it.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

mod adapter;
mod answers;
mod apart;
mod backings;
mod events;
mod executor;
pub mod guard;
mod inodes;
pub mod kernel;
mod listing;
mod lock_waits;
mod notify;
mod page_cache_push;
mod placement;
mod pm_qos;
mod reads;
mod replies;
pub mod session;
mod shared;
#[cfg(test)]
mod tests;
mod ticker;
pub mod unmount;
mod waiters;
mod xattr;

/// The name under which the FUSE library logs.
pub const LIBRARY: &str = "fuser";

/// Starts a thread that nobody waits for. Without one, says what it was to be for.
fn spawn(name: &str, purpose: &str, body: impl FnOnce() + Send + 'static) -> bool {
    let anywhere = move || {
        // Where the event loop that starts it is kept is no place for it.
        crate::store::local::system::run_on_any_core();
        body();
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(anywhere);
    thread.inspect_err(|error| log::error!("no thread for {purpose}: {}", crate::store::in_words(error))).is_ok()
}
