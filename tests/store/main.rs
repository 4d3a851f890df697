//! The store, on real files and on simulated disks.

mod crash;
mod disk;
mod driver;
mod frames;
mod hostile;
mod model;
mod native;
mod real;
mod room;
mod sparse;
mod speed;
mod threads;
