//! Standard output, and readers that have had enough of it.

use std::io;

use super::Failure;

/// What writing to standard output came to: whoever closes the other end, as head(1) does, has all that was wanted.
pub(super) fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::from_text(format_args!("standard output: cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}
