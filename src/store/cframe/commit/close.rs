//! The end of a store: what is free goes back to the file system.
//!
//! | step | does | a crash here leaves |
//! | --- | --- | --- |
//! | 1 | fdatasync: P is on disk, so D is P | D or P, after it P |
//! | 2 | where chunks are to move, or the tail: P once more at other places, by the steps of a commit, and fdatasync | P |
//! | 3 | holes are punched, and the file is cut to the frame's length: of which P needs nothing | P |
//!
//! What this store has not changed costs nothing here.

use log::{debug, info};

use super::{CommitState, SECTOR, settle_while};
use crate::store::cframe::CframeStore;
use crate::store::cframe::extents::ExtentMap;
use crate::store::disk_store::commit::{self, Change, sync_published};
use crate::store::error::Complain;
use crate::store::{FrameStore, Result};

/// See [`Medium::finish`](crate::store::disk_store::Medium::finish): after step 1.
pub(in crate::store::cframe) fn finish(store: &CframeStore, commits: &mut CommitState) -> Result<()> {
    // What others have written since is not ours to cut; all that was committed is on disk.
    if !(commits.changed || store.has_map()) || store.seen_outside(commits)?.is_some() {
        return Ok(());
    }
    // Step 2. What is staged now no state will ever have.
    {
        let _staged_whole = store.gate.write();
        store.with_map(|map, _| map.chunks_mut().discard_staged(store.common.epochs.now()));
    }
    if commits.changed {
        store.sweep_rest();
        shorten(store, commits)?;
    }
    lower_tail(store, commits)?;
    // Step 3. Moving took its time.
    if store.seen_outside(commits)?.is_some() {
        return Ok(());
    }
    punch(store, commits);
    if store.seen_outside(commits)?.is_some() {
        return Ok(());
    }
    let frame_len = store.committed().map_or(0, |image| image.header.frame_len());
    let file = store.file();
    let trimmed = store.writing(&*file, || match file.stat()?.len > frame_len {
        true => file.set_len(frame_len),
        false => Ok(()),
    });
    trimmed.map_err(store.io("cut the file to the frame's length"))?;
    report(store, frame_len);
    Ok(())
}

/// Moves chunks down where the file is longer than it should be: what was written pays for it, and where that does not do, a part of
/// what lives is moved nevertheless.
fn shorten(store: &CframeStore, commits: &mut CommitState) -> Result<()> {
    let long = store.with_free_map(|map| {
        let long = map.is_long() && map.next_unknown().is_none();
        if long {
            map.grant_moves();
        }
        long
    });
    if long {
        settle_while(store, commits, ExtentMap::is_long);
    }
    // What failed on the way may have ended all writing.
    store.source.check_writable()
}

/// Room that was left for appending goes.
fn lower_tail(store: &CframeStore, commits: &mut CommitState) -> Result<()> {
    // Without chunks there is no room to give back, and cbytes means nothing.
    let Some(image) = store.committed().filter(|_| !commits.own.empty) else { return Ok(()) };
    let slack = store.with_free_map(|map| map.tail_slack());
    let tail_len = image.header.frame_len() - u64::from(image.header.header_len()) - image.header.cbytes();
    if slack >= tail_len.max(SECTOR) {
        commit::write(store, commits, (*image).clone(), &Change::default())?;
        sync_published(store, commits)?;
    }
    Ok(())
}

/// Gives the blocks of holes back, which neither the state on disk nor any read needs.
fn punch(store: &CframeStore, commits: &CommitState) {
    debug_assert!(commits.is_durable(), "a crash may bring an older state back");
    let _nothing_staged_meanwhile = store.gate.write();
    let holes = store.with_free_map(|map| map.blocks_to_give_back());
    let file = store.file();
    let punch = || holes.iter().try_for_each(|(start, len)| file.punch_hole(*start, *len));
    if !holes.is_empty()
        && let Err(error) = store.writing(&*file, punch)
    {
        debug!("{}: the space of its holes cannot be released: {error}", store.source.called().display());
    }
}

/// Says so where much of the file is unused all the same.
fn report(store: &CframeStore, frame_len: u64) {
    let unused = store.with_map(|map, _| map.is_long().then(|| map.holes()));
    if let Some(unused) = unused {
        info!(
            "{}: {unused} of its {frame_len} bytes are unused; `b2fuse compact` gives them back",
            store.source.called().display()
        );
    }
}
