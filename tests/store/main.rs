//! The store, on real files and on simulated disks.

mod ahead;
mod anew;
mod broken;
mod changes;
mod crash;
mod disk;
mod disk_cache;
mod driver;
mod folders;
mod frames;
mod history;
mod hostile;
mod model;
mod mounts;
mod native;
mod others;
mod parsed;
mod real;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "remote")]
mod remote_web;
mod rest;
mod room;
mod shared;
#[cfg(feature = "remote")]
mod signals;
mod soak;
mod sparse;
mod speed;
mod stuck;
mod threads;
#[cfg(feature = "remote")]
mod upload;
