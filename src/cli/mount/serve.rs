//! Opens what is to be shown, mounts it, and serves it until it is unmounted.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use log::{debug, error, info, warn};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::super::background::Starter;
use super::super::options::Show;
use super::super::{Failure, frames, hangup_ignored, memory, panic, wait};
use super::plan::{Plan, SourceKind};
use super::tree;
#[cfg(feature = "remote")]
use super::{opening, remote};
use crate::format::Layout;
use crate::fs::session::{Mounted, Signal};
use crate::store::times::Records;
use crate::store::{Budgets, CframeStore, FrameStore, NewFrame, OpenOptions, Resources, SframeStore, in_words, sidecar};
use crate::view::{ArrayView, BandFiles, Blocks, ContiguousView, FileSystem, FrameView, Shown, Single, SparseView, ViewError};

/// What SIGHUP does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hangup {
    /// The terminal is gone that messages go to, and so is whoever sat there.
    Ends,
    /// The log file has got another name, if there is one.
    Reopens,
}

/// Opens, mounts, leaves who waits for that when the mount answers, and returns when all is over. Ends at once if nobody waits any more.
pub(super) fn serve(plan: &Plan, hangup: Hangup, starter: &mut Option<Starter>) -> Result<(), Failure> {
    let wanted: &[i32] = match hangup {
        Hangup::Ends if hangup_ignored() => &[SIGTERM, SIGINT, SIGUSR1],
        _ => &[SIGTERM, SIGINT, SIGHUP, SIGUSR1],
    };
    let mut signals = Signals::new(wanted)
        .map_err(|error| Failure::new(&plan.shown_point, format_args!("cannot handle signals: {}", in_words(&error))))?;
    let failed = |error: ViewError| match error {
        ViewError::Store(error) => frames::damaged(error),
        error => Failure::new(&plan.source, error),
    };
    let say = |text: &str| {
        let heard = super::super::log::announce(text);
        let Failure(text) = plan.as_given(Failure(text.to_owned()));
        match starter {
            Some(starter) => starter.say(&text),
            None if heard => {}
            None => eprintln!("{text}"),
        }
    };
    let open = || wait::until_released(plan.wait, say, failed, || open(plan));
    #[cfg(feature = "remote")]
    let view = match &plan.kind {
        SourceKind::Remote(_) => opening::unless_ended(&mut signals, hangup, &plan.source, open)?,
        _ => open()?,
    };
    #[cfg(not(feature = "remote"))]
    let view = open()?;
    let mounted = match Mounted::start(view.clone(), &plan.config) {
        Ok(mounted) => mounted,
        Err(error) => {
            if let Err(error) = view.shutdown() {
                error!("{error}");
            }
            return Err(Failure::from_text(error));
        }
    };
    panic::serving();
    let control = mounted.control();
    let stop = signals.handle();
    let thread = std::thread::Builder::new().name("b2fuse-signals".into()).spawn({
        let control = control.clone();
        move || {
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => control.send(Signal::Report),
                    SIGHUP if hangup == Hangup::Reopens => super::super::log::reopen(),
                    _ => control.send(Signal::End),
                }
            }
        }
    });
    if let Err(error) = thread {
        error!("signals are not handled: {}", in_words(&error));
    }
    if let Some(starter) = starter {
        // Else the mount is taken away again.
        starter.leave().map_err(|error| {
            Failure::new(&plan.shown_point, format_args!("cannot go to the background: {}", in_words(&error)))
        })?;
        super::super::log::leave();
    }
    info!("{}: mounted on {}", plan.source.display(), plan.config.mount.point.display());
    memory::serving();
    if starter.take().is_some_and(|starter| !starter.ready()) {
        control.send(Signal::End);
    }
    let outcome = mounted.run().map_err(failed);
    stop.close();
    outcome
}

fn open(plan: &Plan) -> Result<Arc<dyn FileSystem>, ViewError> {
    let frame = match &plan.kind {
        SourceKind::Tree(rules) => return tree::open(plan, rules),
        #[cfg(feature = "remote")]
        SourceKind::Remote(remote) => return remote::open(plan, remote),
        SourceKind::Frame(frame) => frame,
    };
    let (read_only, locking) = (plan.read_only, frame.locking);
    // Chunks are kept decoded, or as they are.
    let cache_bytes = if frame.decoded.is_some() { 0 } else { plan.cache_size };
    let resources = Resources::new(Budgets { cache_bytes, ..Budgets::default() });
    let skip_damaged = frame.decoded.is_some();
    let options = OpenOptions { read_only, locking, resources, skip_damaged, hold_staged: !read_only, ..OpenOptions::default() };
    let store: Arc<dyn FrameStore> = match frame.layout {
        _ if frame.new => Arc::new(CframeStore::create_at(&frame.location, options, NewFrame::default())?),
        Layout::Contiguous => Arc::new(CframeStore::open_at(&frame.location, options)?),
        Layout::Sparse => Arc::new(SframeStore::open_at(&frame.location, options)?),
    };
    if let Some(decoded) = &frame.decoded {
        let view = ArrayView::new(store, frame.shown.clone(), decoded.clone(), blocks(plan))?;
        return Ok(if locking { Arc::new(view.taking_turns(None)?) } else { Arc::new(view) });
    }
    match frame.show {
        Show::Contiguous => {
            let lock_file = match &frame.shown {
                Shown::As(name) => Some([name, OsStr::new(sidecar::SUFFIX)].into_iter().collect()),
                Shown::OnFile => None,
            };
            shared(plan, locking, ContiguousView::new(store, frame.shown.clone(), read_only)?, lock_file)
        }
        _ => {
            let view = SparseView::new(store, read_only)?;
            let records =
                Records::of_user().inspect_err(|error| debug!("times of chunk files are not kept: {}", in_words(error)));
            let view = if let Ok(records) = records { view.keeping_times(records) } else { view };
            shared(plan, locking, view, Some(sidecar::SUFFIX.into()))
        }
    }
}

/// With turns, if these are asked for. `lock_file` is what the lock file is called in the mount.
fn shared<V: FrameView>(
    plan: &Plan,
    locking: bool,
    view: Single<V>,
    lock_file: Option<OsString>,
) -> Result<Arc<dyn FileSystem>, ViewError> {
    if !locking {
        return Ok(Arc::new(view));
    }
    if lock_file.is_none() {
        let point = plan.shown_point.display();
        warn!("{point}: its lock file lies outside of the mount: clients of the mount take no turns with SOURCE's");
    }
    Ok(Arc::new(view.taking_turns(lock_file)?))
}

/// Blocks of arrays in memory, and in files where there is no room.
pub(super) fn blocks(plan: &Plan) -> Arc<Blocks> {
    Blocks::on_all_cores(plan.cache_size, plan.spill.clone().map(BandFiles::new))
}
