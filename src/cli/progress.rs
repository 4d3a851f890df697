//! Progress bars for commands that take long.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on a terminal, and nothing elsewhere.
fn bar(total: u64, template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style.progress_chars("=> "))
}

/// Counts bytes.
pub(super) fn of_bytes(total: u64) -> ProgressBar {
    bar(total, "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
}

/// Counts chunks, of a number that will be known later.
pub(super) fn of_chunks() -> ProgressBar {
    bar(0, "{wide_bar} {human_pos} of {human_len} chunks, {eta} left")
}

/// Counts bytes, and says as its message how many chunks.
#[cfg(feature = "remote")]
pub(super) fn of_chunks_and_bytes(total: u64) -> ProgressBar {
    bar(total, "{wide_bar} {msg} chunks, {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
}
