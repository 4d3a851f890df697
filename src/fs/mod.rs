//! The only code that names fuser: a [`FileSystem`](crate::view::FileSystem) shown through the kernel.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `adapter` | one handler a request: unpack, call the file system, reply |
//! | `answers` | from what the file system says to a reply |
//! | `shared` | what all threads of a mount share |
//! | `notify` | what the kernel must forget, and the replies that wait for it |
//! | `push` | the next files of a sequential reader, into the page cache ahead of it |
//! | `spin` | one event loop that waits awake for its only client |
//! | `awake` | on request, no core sleeps while requests come in quick succession |
//! | `inodes` | which inodes the kernel knows |
//! | `housekeeping` | calls the file system when one of its frames wants to be called |
//! | `waiting` | requests that may have to wait for other processes |
//! | `workers` | who does what may have to wait |
//! | `waiters` | clients that wait for a lock and get a signal meanwhile |
//! | `listing` | listings, with attributes or of names alone |
//! | `xattr` | extended attributes |
//! | [`unmount`] | what `b2fuse umount` and the daemon say to each other |
//! | [`kernel`] | mount(2), fusermount3, umount2(2), /proc/self/mountinfo |
//! | [`session`] | a mount from its first request to its last commit |
//!
//! The daemon never touches a path below its own mount point: no thread could answer it.

mod adapter;
mod answers;
mod awake;
mod housekeeping;
mod inodes;
pub mod kernel;
mod listing;
mod notify;
mod push;
pub mod session;
mod shared;
mod spin;
#[cfg(test)]
mod tests;
pub mod unmount;
mod waiters;
mod waiting;
mod workers;
mod xattr;

/// The name under which the FUSE library logs.
pub const LIBRARY: &str = "fuser";

/// Starts a thread that nobody waits for. Without one, says what it was to be for.
fn spawn(name: &str, purpose: &str, body: impl FnOnce() + Send + 'static) -> bool {
    let thread = std::thread::Builder::new().name(name.into()).spawn(body);
    thread.inspect_err(|error| log::error!("no thread for {purpose}: {}", crate::store::in_words(error))).is_ok()
}
