//! NumPy's types of items, and its file format.
//!
//! A b2nd metalayer names the type of an array's items by a text that Python evaluates; a .npy file has one like it in its header.
//! [`ItemType`] is such a type, parsed by a grammar of its own, and [`header()`] what NumPy 2 writes in front of the items.

mod dtype;
mod header;
mod literal;
mod scalar;
mod write;

pub use dtype::{ItemType, MAX_TEXT};
pub use header::{ALIGNMENT, MAX_HEADER, NpyHeader, Parsed, header};

#[cfg(test)]
mod tests;
