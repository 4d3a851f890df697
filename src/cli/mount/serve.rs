//! Opens what is to be shown, mounts it, and serves it until it is unmounted.

use log::{error, info};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::pipe::register_raw as register;

use super::super::background::Starter;
use super::super::{Failure, frames, hangup_ignored, memory, panic, wait};
use super::Hangup;
use super::open::open;
#[cfg(feature = "remote")]
use super::opening;
use super::plan::Plan;
#[cfg(feature = "remote")]
use super::plan::SourceKind;
use crate::fs::session::{Mounted, Signal};
use crate::store::local::descriptors;
use crate::store::{StoreError, in_words};
use crate::view::ViewError;

/// What is possible where a frame cannot be written to.
const READ_ONLY: &str = " (-r mounts it read-only)";

/// Whether SOURCE may not be written to.
fn is_refused(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { action: "open for writing", .. })
        && matches!(error.errno(), libc::EACCES | libc::EROFS | libc::EPERM)
}

/// Opens, mounts, leaves who waits for that when the mount answers, and returns when all is over. Ends at once if nobody waits any more.
pub(super) fn serve(plan: &Plan, hangup: Hangup, starter: &mut Option<Starter>) -> Result<(), Failure> {
    descriptors::reserve();
    let wanted: &[i32] = match hangup {
        Hangup::Ends if hangup_ignored() => &[SIGTERM, SIGINT, SIGUSR1],
        _ => &[SIGTERM, SIGINT, SIGHUP, SIGUSR1],
    };
    let mut signals = Signals::new(wanted)
        .map_err(|error| Failure::new(&plan.shown_point, format_args!("cannot handle signals: {}", in_words(&error))))?;
    let failed = |error: ViewError| match error {
        ViewError::Store(error) if !plan.read_only && is_refused(&error) => {
            Failure::from_text(format_args!("{error}{READ_ONLY}"))
        }
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
    let open = || wait::until_released(plan.wait, READ_ONLY, say, failed, || open(plan));
    #[cfg(feature = "remote")]
    let view = match &plan.kind {
        SourceKind::Remote(_) => opening::unless_ended(&mut signals, hangup, &plan.source, open)?,
        _ => open()?,
    };
    #[cfg(not(feature = "remote"))]
    let view = open()?;
    let mut mounted = match Mounted::start(view.clone(), &plan.config) {
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
    let bells = wanted.iter().try_for_each(|signal| register(*signal, control.bell()?).map(drop));
    if let Err(error) = bells {
        error!("signals are not handled: {}", in_words(&error));
    }
    mounted.listen(move |control| {
        for signal in signals.pending() {
            match signal {
                SIGUSR1 => control.send(Signal::Report),
                SIGHUP if hangup == Hangup::Reopens => super::super::log::reopen(),
                _ => control.send(Signal::End),
            }
        }
    });
    if let Some(starter) = starter {
        // Else the mount is taken away again.
        starter.leave().map_err(|error| {
            Failure::new(&plan.shown_point, format_args!("cannot go to the background: {}", in_words(&error)))
        })?;
        super::super::log::leave();
    }
    if plan.asked_to_write && plan.read_only {
        info!("{}: is shown read-only, so -o rw is ignored", plan.source.display());
    }
    info!("{}: mounted on {}", plan.source.display(), plan.config.mount.point.display());
    memory::serving();
    if starter.take().is_some_and(|starter| !starter.ready()) {
        control.send(Signal::End);
    }
    mounted.run().map_err(failed)
}
