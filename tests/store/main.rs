//! The store, on real files and on simulated disks.

mod frames;
mod real;
