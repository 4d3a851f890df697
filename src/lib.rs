//! b2fuse shows a Blosc2 frame in its other layout, live, for reading and writing; or what it holds, decompressed, for reading.
//!
//! The crate has five layers. Each imports only layers above it in this table, which `scripts/check-layers` checks in CI:
//!
//! | layer | knows | has no |
//! | --- | --- | --- |
//! | [`mod@format`] | the bytes of frames and chunks: parsing and writing them | input or output, `unsafe`, panic on bytes from disk |
//! | [`store`] | frames on disk and in object stores: reading, staging, free space, commits | names in a mount |
//! | [`view`] | names and bytes in a mount, and what a write to them means; its page is the contract with users | FUSE |
//! | [`fs`] | FUSE: inodes, replies, sessions, signals | decisions about frames |
//! | [`cli`] | arguments, messages, exit codes | anything else |
//!
//! # The life of a chunk
//!
//! A client writes a chunk; it becomes part of the frame; later it is replaced. Both layouts and both views share these steps:
//!
//! ```text
//!   client: write       view: close            view: commit            view: commit              store
//!                       store: stage           store: commit           of an image without it
//!
//!   draft ------------> staged --------------> in an image ----------> dropped ----------------> gone ------> free
//!     |                   |                    published,               until the image           until no      its place
//!     | not a chunk       | discard            then durable by          without it is durable     read or pin   is used
//!     v                   v                    the next sync                                      needs it      again
//!   refused: EINVAL     gone
//! ```
//!
//! | state | where the bytes are | if the daemon is killed | if power fails |
//! | --- | --- | --- | --- |
//! | draft | in the view: memory, or a file without a name on SOURCE's file system | lost; the old chunk stays | the same |
//! | staged | in SOURCE, where no state has anything: free space of a file, a new chunk file | not in the frame; the space is free, the next mount that writes removes the file | the same, but the file may stay |
//! | in an image, published | in SOURCE; the header or index names them | in the frame | in the frame, or the state before the commit is there |
//! | in an image, durable | the same | in the frame | in the frame |
//! | dropped | in SOURCE, unchanged: the last durable state may name them | not in the frame | in the frame, if the state before the commit is there |
//! | gone | in SOURCE, unchanged: an open file or a read may need them | not in the frame | not in the frame |
//!
//! No step writes to bytes that the last durable state needs. The module `store::chunks` has the states. The modules named `commit`
//! have the steps of a commit and, for each layout, the order of its writes and syncs.

#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]
// A module that needs it says why.
#![cfg_attr(not(test), deny(unsafe_code))]
// Only store::local opens paths (.clippy.toml); tests open what they like.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod cli;
pub mod format;
pub mod fs;
pub mod store;
pub mod view;
