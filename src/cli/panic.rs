//! What a bug looks like to a user: one line that asks for a report, and a mount that ends as cleanly as it can.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Signal, getpid, kill_process};

use crate::format::plain::plain;

/// What the first panic said.
static FIRST: Mutex<Option<String>> = Mutex::new(None);
/// There is a mount to be ended.
static SERVING: AtomicBool = AtomicBool::new(false);

/// Has every panic written to the log, or to stderr as long as there is no log.
pub(super) fn install_hook() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        let payload = info.payload();
        let said = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let said = said.unwrap_or("no message");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let line = format!("internal error, please report: {place}: {}", plain(&said.replace('\n', "; ")));
        if log::max_level() == log::LevelFilter::Off {
            eprintln!("b2fuse: {line}");
        } else {
            log::error!("{line}");
        }
        FIRST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(line);
        if SERVING.load(Ordering::SeqCst) {
            // The way out that commits all there is.
            let _ = kill_process(getpid(), Signal::TERM);
        }
    }));
}

/// From now on SIGTERM is handled, and a panic ends the mount by it.
pub(super) fn serving() {
    SERVING.store(true, Ordering::SeqCst);
}

/// What the first panic of this process said.
pub(super) fn happened() -> Option<String> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
