//! `b2fuse cat --npy`: an array, or a slice of it, as a file of NumPy's.

use std::io::Write;
use std::path::Path;

use super::super::{Failure, frames, memory, output};
use super::Args;
use crate::store::StoreError;
use crate::view::{Decoded, Reader, ViewError};

fn open(frame: &Path, failed: impl Fn(ViewError) -> Failure) -> Result<Reader, Failure> {
    let decoded = Decoded::Npy(None);
    #[cfg(feature = "remote")]
    if let Some(store) = super::super::remote::open(frame, frames::damaged)? {
        return Reader::over(store, &decoded).map_err(failed);
    }
    let (location, layout) = frames::existing(frame)?;
    Reader::open(&location, layout, &decoded).map_err(failed)
}

pub(super) fn run(args: &Args, slice: Option<&String>) -> Result<(), Failure> {
    memory::end_with(&args.frame);
    let Some(mut out) = super::stdout(args)? else { return Ok(()) };
    let failed = |error: ViewError| match error {
        // What is wrong is in the words of who called.
        ViewError::Store(StoreError::Format { source, .. }) if source.field == "slice" => {
            Failure::new(&args.frame, format_args!("slice: found {}, expected {}", source.got, source.expected))
        }
        ViewError::Store(error) => frames::damaged(error),
        error => Failure::new(&args.frame, error),
    };
    let reader = open(&args.frame, failed)?;
    let sliced = reader.slice(slice.map(String::as_str)).map_err(failed)?;
    let mut written = out.write_all(sliced.head());
    if written.is_ok() {
        let read = sliced.read(|piece| {
            written = out.write_all(piece);
            written.is_ok()
        });
        read.map_err(failed)?;
    }
    output::written(written)
}
