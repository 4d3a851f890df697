//! The only code that names fuser: a [`View`](crate::view::View) shown through the kernel.
//!
//! | module | what it is for |
//! | --- | --- |
//! | `adapter` | one handler a request: unpack, call the view, reply |
//! | `shared` | what all threads of a mount share, and what answers are made of |
//! | `notify` | what the kernel must forget, and the replies that wait for it |
//! | `push` | the next files of a sequential reader, into the page cache ahead of it |
//! | `spin` | one event loop that waits awake for its only client |
//! | `awake` | on request, no core sleeps while requests come in quick succession |
//! | `inodes` | which inodes the kernel knows |
//! | `housekeeping` | calls the view when it wants to be called |
//! | `waiting` | requests that may have to wait for other processes |
//! | `workers` | who does what may wait for the disk |
//! | `waiters` | clients that wait for a lock and get a signal meanwhile |
//! | `listing` | listings, with attributes or of names alone |
//! | `xattr` | extended attributes |
//! | [`descriptors`] | how many files the daemon may have open |
//! | [`unmount`] | what `b2fuse umount` and the daemon say to each other |
//! | [`kernel`] | mount(2), fusermount3, umount2(2), /proc/self/mountinfo |
//! | [`session`] | a mount from its first request to its last commit |
//!
//! The daemon never touches a path below its own mount point: no thread could answer it.

mod adapter;
mod awake;
pub mod descriptors;
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
