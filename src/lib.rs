//! b2fuse shows a Blosc2 frame in its other layout, live, for reading and writing.
//!
//! The crate is five layers, and each may import only those above it in this list:
//!
//! | layer | what it knows | what it never does |
//! | --- | --- | --- |
//! | [`mod@format`] | the bytes of a frame and of a chunk, both ways | input or output, `unsafe`, panics on bytes from disk |
//! | [`store`] | frames on disk: reading, staging, free space, commit | names that a mount shows |
//! | [`view`] | names and bytes that a mount shows, and what a write to them means | FUSE |
//! | [`fs`] | FUSE: inodes, replies, sessions, signals | decisions about frames |
//! | [`cli`] | arguments, messages, exit codes | anything else |
//!
//! `scripts/check-layers` holds that order in CI.

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
