//! `b2fuse repair`: says what can be mended in a damaged frame, and does it when told to.

use std::path::PathBuf;

use super::{End, Failure};
use crate::format::plain::plain;
use crate::store::check::{Depth, Severity, check};
use crate::store::repair::{Outlook, plan};

/// Mend a frame that was damaged when a writer was killed
///
/// Says what is wrong and what would be done about it, and changes nothing; with --yes, does it. Every byte that is changed is copied
/// to FRAME.before-repair first. Data is never guessed: a chunk that is gone becomes an uninitialised one, and is named. Exits with
/// 0 if the frame is sound or was mended, 1 if it is damaged still.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  # What would be done
  b2fuse repair pressure.b2frame
  b2fuse repair --yes pressure.b2frame")]
pub(super) struct Args {
    /// Do it
    #[arg(long)]
    yes: bool,
    /// The frame, of either layout
    frame: PathBuf,
}

pub(super) fn run(args: &Args) -> End {
    let frame = plain(&args.frame);
    let plan = match plan(&args.frame) {
        Ok(plan) => plan,
        Err(error) => return End::Failed(Failure::from_text(error)),
    };
    for what in &plan.found {
        println!("{frame}: {}", plain(what));
    }
    for what in &plan.lost {
        println!("{frame}: lost: {}", plain(what));
    }
    match plan.outlook() {
        Outlook::Sound => {
            println!("{frame}: nothing to mend");
            return End::Done;
        }
        Outlook::Hopeless => {
            return End::Failed(Failure::new(&args.frame, "cannot be mended without guessing; nothing was changed"));
        }
        Outlook::Mendable => {}
    }
    for step in &plan.steps {
        println!("{frame}: {}: {}", if args.yes { "doing" } else { "to do" }, plain(step));
    }
    if !args.yes {
        println!("{frame}: nothing was changed; with --yes, it is");
        return End::Code(1);
    }
    match plan.carry_out() {
        Ok(saved) => {
            if let Some(saved) = saved {
                println!("{frame}: what was there before is in {}", plain(&saved));
            }
        }
        Err(error) => return End::Failed(Failure::from_text(error)),
    }
    let mut damage = Vec::new();
    let depth = Depth { deep: false, threads: 1 };
    let seen = check(
        &args.frame,
        depth,
        &mut |finding| damage.extend((finding.severity == Severity::Damage).then_some(finding)),
        &mut |_, _| true,
    );
    match (seen, damage.first()) {
        (Err(error), _) => End::Failed(Failure::from_text(error)),
        (Ok(_), Some(first)) => End::Failed(Failure::new(&args.frame, format_args!("is damaged still: {}", first.what))),
        (Ok(_), None) => {
            println!("{frame}: mended");
            End::Done
        }
    }
}
