//! The store, on real files and on simulated disks.

mod crash;
mod disk;
mod driver;
mod frames;
mod model;
mod real;
mod room;
mod speed;
