//! Signals that come while a frame is being opened, which lasts as long as a server is silent: whoever sends one waits for no answer.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::Signals;

use super::super::Failure;
use super::Hangup;
use crate::store::interrupts;

/// Between two looks for signals.
const PAUSE: Duration = Duration::from_millis(50);

/// Opens, unless a signal comes that ends the mount.
///
/// # Errors
/// Those of `open`; that there was such a signal.
pub(super) fn unless_ended<T: Send>(
    signals: &mut Signals,
    hangup: Hangup,
    source: &Path,
    open: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (done, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let listen = || {
        while !done.load(SeqCst) {
            for signal in signals.pending() {
                match signal {
                    SIGUSR1 => {}
                    SIGHUP if hangup == Hangup::Reopens => super::super::log::reopen(),
                    _ => {
                        ended.store(true, SeqCst);
                        interrupts::end_all();
                    }
                }
            }
            thread::park_timeout(PAUSE);
        }
    };
    let opened = thread::scope(|scope| {
        let listener = thread::Builder::new().name("b2fuse-signals".into()).spawn_scoped(scope, listen);
        let opened = open();
        done.store(true, SeqCst);
        if let Ok(listener) = listener {
            listener.thread().unpark();
        }
        opened
    });
    match ended.into_inner() {
        true => Err(Failure::new(source, "is not mounted: a signal interrupted the command")),
        false => opened,
    }
}
