//! `b2fuse repair`: says what can be repaired in a damaged frame, and does it when told to.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Failure, Outcome, frames, memory, output};
use crate::format::plain::plain;
use crate::store::StoreError;
use crate::store::check::{Depth, Finding, Severity, check};
use crate::store::repair::{Outlook, plan};

/// Repair a frame that was damaged when a writer was killed
///
/// Repairs a lost trailer, counts and lengths that disagree with the data, an overwritten index, chunks that an unfinished update has
/// moved, and missing chunk files. Without --yes, prints what is wrong and what would be done, and changes nothing. Every byte that is
/// changed is first copied to FRAME.before-repair. Data is never guessed: a lost chunk becomes an uninitialised one and is named. Exits
/// with 0 if the frame is sound or was repaired, 1 if it is still damaged.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  # Print what would be done, then do it
  b2fuse repair pressure.b2frame
  b2fuse repair --yes pressure.b2frame")]
pub(super) struct Args {
    /// Repair the frame; without it, only print what would be done
    #[arg(long)]
    yes: bool,
    /// The frame, of either layout
    frame: PathBuf,
}

pub(super) fn run(args: &Args) -> Outcome {
    let mut output = Ok(());
    let outcome = repair(args, &mut |what| {
        let line = writeln!(io::stdout(), "{}: {what}", plain(&args.frame));
        if output.is_ok() {
            output = line;
        }
    });
    match (outcome, output::written(output)) {
        (Outcome::Done | Outcome::Code(_), Err(failure)) => Outcome::Failed(failure),
        (outcome, _) => outcome,
    }
}

const HOPELESS: &str = "cannot be repaired without guessing; nothing was changed; b2fuse check shows all damage";

/// Of what cannot be planned for: that it is no frame, or what keeps from it, or that so much of the frame is lost.
fn hopeless(frame: &Path, error: StoreError) -> Failure {
    let is_damage = matches!(&error, StoreError::Format { source, .. } if source.field != "header: magic");
    match frames::existing(frame) {
        Ok(_) if is_damage => Failure::from_text(format_args!("{error}; it cannot be repaired, and nothing was changed")),
        _ => frames::explained(frame, error),
    }
}

/// Goes on when `say` cannot write: what is to be done is done all the same.
fn repair(args: &Args, say: &mut dyn FnMut(fmt::Arguments<'_>)) -> Outcome {
    if let Err(failure) = frames::local_only(&args.frame) {
        return Outcome::Failed(failure);
    }
    memory::end_with(&args.frame);
    let plan = match plan(&args.frame) {
        Ok(plan) => plan,
        Err(error) => return Outcome::Failed(hopeless(&args.frame, error)),
    };
    for (before, told) in [("", &plan.found), ("lost: ", &plan.lost)] {
        told.first().iter().for_each(|what| say(format_args!("{before}{}", plain(what))));
        if told.more() > 0 {
            say(format_args!("{before}and {} more", told.more()));
        }
    }
    match plan.outlook() {
        Outlook::Sound => {
            say(format_args!("nothing to repair"));
            return Outcome::Done;
        }
        Outlook::Hopeless => {
            return Outcome::Failed(Failure::new(&args.frame, HOPELESS));
        }
        Outlook::Mendable => {}
    }
    for step in &plan.steps {
        say(format_args!("{}: {}", if args.yes { "doing" } else { "to do" }, plain(step)));
    }
    if !args.yes {
        say(format_args!("nothing was changed; --yes repairs it"));
        return Outcome::Code(1);
    }
    match plan.carry_out() {
        Ok(Some(saved)) => say(format_args!("the bytes that were changed are saved in {}", plain(&saved))),
        Ok(None) => {}
        Err(error) => return Outcome::Failed(Failure::from_text(error)),
    }
    let mut damage = None;
    let depth = Depth { deep: false, threads: 1 };
    let mut found = |finding: Finding| {
        if finding.severity == Severity::Damage {
            damage.get_or_insert(finding);
        }
    };
    match (check(&args.frame, depth, &mut found, &mut |_, _| true), damage) {
        (Err(error), _) => Outcome::Failed(Failure::from_text(error)),
        (Ok(_), Some(first)) => Outcome::Failed(Failure::new(&args.frame, format_args!("is still damaged: {}", first.what))),
        (Ok(_), None) => {
            say(format_args!("repaired"));
            Outcome::Done
        }
    }
}
