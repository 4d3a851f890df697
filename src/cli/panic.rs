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
        if SERVING.load(Ordering::SeqCst) && !is_of_request() {
            // The way out that commits all there is.
            let _ = kill_process(getpid(), Signal::TERM);
        }
    }));
}

/// Whether it is one of a request to a store, perhaps by what a server has answered: that request fails, and no more.
fn is_of_request() -> bool {
    #[cfg(feature = "remote")]
    return std::thread::current().name() == Some(crate::store::remote::REQUESTS);
    #[cfg(not(feature = "remote"))]
    false
}

/// From now on SIGTERM is handled, and a panic ends the mount by it.
pub(super) fn serving() {
    SERVING.store(true, Ordering::SeqCst);
}

/// What the first panic of this process said.
pub(super) fn happened() -> Option<String> {
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use object_store::memory::InMemory;

    use super::is_of_request;
    use crate::store::remote::Client;

    #[test]
    fn a_panic_of_a_request_is_known_by_its_thread_and_is_an_error() {
        let client = Client::new(Arc::new(InMemory::new()), "a".into(), 1, Duration::from_secs(9)).unwrap();
        assert!(client.wait(async { Ok(is_of_request()) }).unwrap() && !is_of_request());
        let blocking = async { Ok(tokio::task::spawn_blocking(is_of_request).await.unwrap()) };
        assert!(client.wait(blocking).unwrap());
        let error = client.wait::<()>(async { panic!("as a bug does") }).unwrap_err();
        assert_eq!(error.raw_os_error(), None, "to clients it is EIO: {error}");
    }
}
