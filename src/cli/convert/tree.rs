//! A copy of a directory, with each frame in one layout.

use rustix::fs::Mode;
use rustix::process::umask;

use super::{Args, is_interrupted, listen_for_signals, make};
use crate::cli::{Failure, Outcome, frames, memory};
use crate::format::Layout;
use crate::store::copy::{FrameCopy, FrameToCopy, TreeCopy};
use crate::store::walk::Walk;
use crate::store::{NewFrame, in_words};

pub(super) fn run(args: &Args, walk: Walk, layout: Layout) -> Outcome {
    if args.force {
        return Outcome::Usage("--force is for the copy of one frame; SRC is a directory of frames".into());
    }
    convert(args, walk, layout).unwrap_or_else(Outcome::Failed)
}

fn convert(args: &Args, walk: Walk, layout: Layout) -> Result<Outcome, Failure> {
    // What is made lets others in when it is whole.
    umask(Mode::from_raw_mode(0o077));
    listen_for_signals().map_err(|error| Failure::new(&args.dst, format_args!("cannot handle signals: {}", in_words(&error))))?;
    let going = || !is_interrupted();
    // Says why there is none.
    frames::to_be(&args.dst)?;
    let mut tree = TreeCopy::new(walk, &args.dst, layout, &going)?;
    let mut failed = false;
    while let Some(step) = tree.next() {
        if is_interrupted() {
            return Err(Failure::new(&args.dst, "interrupted; it holds a part of the copy"));
        }
        let copied = match step {
            Ok(None) => Ok(()),
            Ok(Some(frame)) => one(&mut tree, &frame),
            Err(error) => Err(error.into()),
        };
        if let Err(Failure(line)) = copied
            && !is_interrupted()
        {
            eprintln!("{line}");
            failed = true;
        }
    }
    tree.finish()?;
    Ok(Outcome::Code(u8::from(failed)))
}

/// Copies a frame into its other layout; as it is where that cannot be done, and says so.
fn one(tree: &mut TreeCopy<'_>, frame: &FrameToCopy) -> Result<(), Failure> {
    let FrameToCopy { from, has, wants, to } = frame;
    memory::end_with(from.location.path());
    let copied = FrameCopy::of(&from.location).map_err(frames::damaged).and_then(|copy| {
        let made = make(&copy, *wants, to, NewFrame::default(), None)?;
        Ok((copy, made))
    });
    match copied {
        Ok((copy, Some(made))) => Ok(tree.dress(frame, &copy, &made)?),
        Ok((_, None)) => Ok(()),
        Err(failure) if is_interrupted() => Err(failure),
        Err(Failure(line)) => {
            tree.copy_as_it_is(from, *has)?;
            Err(Failure(format!("{line}; copied as it is")))
        }
    }
}
