//! The end of a store: what is free goes back to the file system.
//!
//! | step | does | a crash here leaves |
//! | --- | --- | --- |
//! | 1 | fdatasync: P is on disk, so D is P | D or P, after it P |
//! | 2 | where chunks are to move, or the tail: P once more at other places, by the steps of a commit, and fdatasync | P |
//! | 3 | holes are punched, and the file is cut to the frame's length: of which P needs nothing | P |
//!
//! What this store has not changed costs nothing here.

use std::sync::Arc;

use log::{debug, info};

use super::{Change, Disk, SECTOR, settle_while, sync_published, write};
use crate::store::cframe::CframeStore;
use crate::store::cframe::extents::ExtentMap;
use crate::store::{FrameStore, Result};

/// See [`FrameStore::close`]. Where others have their turn, nothing is written any more.
pub(in crate::store) fn close(store: &CframeStore, our_turn: bool) -> Result<()> {
    let mut disk = store.disk.lock();
    if std::mem::replace(&mut disk.closed, true) {
        return Ok(());
    }
    // Where another mount has the lock, all is its own.
    let result = if our_turn && !store.source.is_denied() { finish(store, &mut disk) } else { Ok(()) };
    store.source.seal();
    remove_unborn(store, &mut disk);
    store.part(&disk, our_turn && result.is_ok());
    let file = Arc::clone(&store.place.read().file);
    let unlocked = file.unlock().map_err(store.io("unlock"));
    result.and(unlocked)
}

/// The store goes without having been closed: a file that never became SOURCE goes with it.
pub(in crate::store) fn abandon(store: &CframeStore) {
    let mut disk = store.disk.lock();
    if !std::mem::replace(&mut disk.closed, true) {
        remove_unborn(store, &mut disk);
    }
}

pub(super) fn remove_unborn(store: &CframeStore, disk: &mut Disk) {
    if let Some(unborn) = disk.unborn.take() {
        unborn.remove(&store.source);
    }
}

fn finish(store: &CframeStore, disk: &mut Disk) -> Result<()> {
    let written = disk.durable.is_some() || disk.changed || disk.written;
    if !disk.linked() || !written {
        return Ok(());
    }
    // Step 1.
    store.source.check_writable()?;
    sync_published(store, disk)?;
    // What others have written since is not ours to cut; all that was committed is on disk.
    if !(disk.changed || store.has_map()) || store.seen_outside(disk)?.is_some() {
        return Ok(());
    }
    // Step 2. What is staged now no state will ever have.
    {
        let _staged_whole = store.gate.write();
        store.with_ground(|space, _| space.chunks_mut().discard_staged(store.epochs.now()));
    }
    if disk.changed {
        store.sweep_rest();
        shorten(store, disk)?;
    }
    lower_tail(store, disk)?;
    // Step 3. Moving took its time.
    if store.seen_outside(disk)?.is_some() {
        return Ok(());
    }
    punch(store, disk);
    if store.seen_outside(disk)?.is_some() {
        return Ok(());
    }
    let frame_len = store.committed().map_or(0, |image| image.header.frame_len());
    let file = Arc::clone(&store.place.read().file);
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
fn shorten(store: &CframeStore, disk: &mut Disk) -> Result<()> {
    let long = store.with_ground(|space, names| {
        store.collect(space, names);
        let long = space.is_long() && space.next_unknown().is_none();
        if long {
            space.grant_moves();
        }
        long
    });
    if long {
        settle_while(store, disk, ExtentMap::is_long);
    }
    // What failed on the way may have ended all writing.
    store.source.check_writable()
}

/// Room that was left for appending goes.
fn lower_tail(store: &CframeStore, disk: &mut Disk) -> Result<()> {
    // Without chunks there is no room to give back, and cbytes means nothing.
    let Some(image) = store.committed().filter(|_| !disk.empty) else { return Ok(()) };
    let slack = store.with_ground(|space, names| {
        store.collect(space, names);
        space.tail_slack()
    });
    let tail_len = image.header.frame_len() - u64::from(image.header.header_len()) - image.header.cbytes();
    if slack >= tail_len.max(SECTOR) {
        write(store, disk, (*image).clone(), Change::default())?;
        sync_published(store, disk)?;
    }
    Ok(())
}

/// Gives the blocks of holes back, which neither the state on disk nor any read needs.
fn punch(store: &CframeStore, disk: &Disk) {
    debug_assert_eq!(disk.durable, Some(disk.published), "a crash may bring an older state back");
    let _nothing_staged_meanwhile = store.gate.write();
    let holes = store.with_ground(|space, names| {
        store.collect(space, names);
        space.blocks_to_give_back()
    });
    let file = Arc::clone(&store.place.read().file);
    let punch = || holes.iter().try_for_each(|(start, len)| file.punch_hole(*start, *len));
    if !holes.is_empty()
        && let Err(error) = store.writing(&*file, punch)
    {
        debug!("{}: its holes keep their room: {error}", store.source.path.display());
    }
}

/// Says so where much of the file is unused all the same.
fn report(store: &CframeStore, frame_len: u64) {
    let unused = store.with_ground(|space, _| space.is_long().then(|| space.holes()));
    if let Some(unused) = unused {
        let path = store.source.path.display();
        info!("{path}: {unused} of its {frame_len} bytes are unused; `b2fuse compact` gives them back");
    }
}
