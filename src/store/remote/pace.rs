//! How long the body of an answer may take: a server that sends a byte at a time must not hold a request for ever.

use std::time::{Duration, Instant};

/// Bytes per second of one body, at least. Many requests share a slow link, so the rate is low.
pub const LEAST_RATE: u64 = 256;

/// The time left for a body that began at `began` and of which `count` bytes arrived. The server may be silent for `silence`, and each byte
/// extends the time by its share of a second.
pub fn time_left(silence: Duration, began: Instant, count: usize) -> Duration {
    let earned = Duration::from_secs(count as u64 / LEAST_RATE);
    silence.saturating_add(earned).saturating_sub(began.elapsed()).min(silence)
}
