//! The view against a store on disk.
