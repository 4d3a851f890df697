//! The store, on real files and on simulated disks.

mod ahead;
mod broken;
mod changes;
mod crash;
mod disk;
mod driver;
mod frames;
mod history;
mod hostile;
mod model;
mod mounts;
mod native;
mod others;
mod real;
mod room;
mod shared;
mod soak;
mod sparse;
mod speed;
mod stuck;
mod threads;
