//! How what was written becomes what the frame is: at a close, at an fsync, when nobody writes any more; and how that goes to
//! the store.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::{debug, error, warn};
use parking_lot::Mutex;

use super::ContiguousView;
use super::consider::{Candidate, Found, consider, is_begun};
use super::layout::Layout;
use super::overlay::{Below, Inner, Overlaid, Overlay, Verdict};
use super::state::State;
use crate::format;
use crate::store::{Draft, FrameStore, StoreError};
use crate::view::follow::{Again, Follow, Following};
use crate::view::left::is_final;
use crate::view::pacer::{Pacer, Pacing, Publish};
use crate::view::{Handle, Ino, Inval, Invals, Left, Lost, Result, ViewError};

/// How long nobody may have written before a frame that was not written by whole changes is taken for one.
const SETTLE_AFTER: Duration = Duration::from_secs(1);
/// How long nobody may have written before what is no frame is dropped.
const DROP_AFTER: Duration = Duration::from_secs(10);

/// On whose behalf what was written is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// A close: what is no frame is refused.
    Close,
    /// A change of length without a handle: what is no frame is dropped, if it was nothing but that.
    Truncate,
    /// Somebody who wants it on disk, or nobody: every frame is taken.
    Settle,
}

impl Follow for ContiguousView {
    fn following(&self) -> &Following {
        &self.following
    }

    fn reload(&self, wait: bool, invals: &mut Invals) -> Result<Again> {
        let writing = if wait { Some(self.writing.lock()) } else { self.writing.try_lock() };
        let Some(_nobody_writes) = writing else { return Ok(Again::Busy) };
        let pacer = if wait { Some(self.pacer.lock()) } else { self.pacer.try_lock() };
        let Some(_nobody_commits) = pacer else { return Ok(Again::Busy) };
        let mut state = self.state.write();
        if state.is_uncommitted() {
            return Ok(Again::Uncommitted);
        }
        self.store.reload()?;
        self.following.out_of_step(true);
        let (layout, meta) = (Layout::canonical(&*self.store)?, self.store.source_stat()?.into());
        state.reloaded(layout, meta, invals);
        self.following.out_of_step(false);
        Ok(Again::Done)
    }

    fn is_uncommitted(&self) -> bool {
        self.state.read().is_uncommitted()
    }

    fn take_attributes(&self, invals: &mut Invals) {
        if let Ok(stat) = self.store.source_stat() {
            self.state.write().take_attributes(stat.into());
            invals.push(Inval::All);
        }
    }

    fn hand_over(&self, invals: &mut Invals) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        {
            let _writing = self.writing.lock();
            self.look(Look::Settle, invals)?;
        }
        self.drop_unfinished(invals);
        self.publish()
    }

    fn is_unfinished(&self) -> bool {
        let state = self.state.read();
        state.overlay.is_some() && state.frame_writers() > 0
    }

    fn drop_unfinished(&self, invals: &mut Invals) {
        if self.left_behind().is_some() {
            let _writing = self.writing.lock();
            if let Some(error) = self.left_behind() {
                self.drop_held(&error, invals);
            }
        }
    }
}

impl ContiguousView {
    // --- writing ---

    /// Changes the bytes of the frame, on behalf of a handle if there is one. The caller has `writing`.
    pub(super) fn change_frame(
        &self,
        handle: Option<Handle>,
        apply: impl FnOnce(&mut Inner, &dyn Below) -> io::Result<()>,
    ) -> Result<()> {
        let guard = self.store.enter();
        let (layout, overlay) = {
            let mut state = self.state.write();
            let joined = handle.and_then(|handle| state.handles.get(&handle.0)).map_or(0, |open| open.serial);
            // Those who wrote what was refused may go on with it; to others it is as if it had never been.
            let current = state.overlay.clone().filter(|overlay| !overlay.refused() || overlay.serial == joined);
            let overlay = current.unwrap_or_else(|| {
                let overlay = Arc::new(Overlay::new(state.serial(), state.layout.len(), self.store.drafts()));
                state.overlay = Some(Arc::clone(&overlay));
                overlay
            });
            if let Some(open) = handle.and_then(|handle| state.handles.get_mut(&handle.0)) {
                open.serial = overlay.serial;
            }
            (Arc::clone(&state.layout), overlay)
        };
        let overlaid = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
        let changed = apply(&mut overlay.inner.write(), &overlaid);
        overlay.set_refused(false);
        changed.map_err(|error| self.held_error("hold what was written", error))
    }

    /// What a close of a handle does: nothing, unless the handle has a part in what is written.
    pub(super) fn close_handle(&self, handle: Handle, invals: &mut Invals) -> Result<()> {
        if !self.has_part(handle)? {
            return Ok(());
        }
        let _writing = self.writing.lock();
        // Another may have begun to write while the lock was waited for.
        if self.has_part(handle)? { self.look(Look::Close, invals) } else { Ok(()) }
    }

    /// Whether what is written is this handle's as well.
    fn has_part(&self, handle: Handle) -> Result<bool> {
        let state = self.state.read();
        let open = state.handles.get(&handle.0).ok_or(ViewError::BadHandle)?;
        let joined = |overlay: &Arc<Overlay>| overlay.serial == open.serial;
        Ok(state.frame == Some(open.ino) && state.overlay.as_ref().is_some_and(joined))
    }

    /// The last close of a handle: with the last writer goes what was refused.
    pub(super) fn end_handle(&self, handle: Handle) {
        if !self.state.read().handles.get(&handle.0).is_some_and(|open| open.write) {
            return self.state.write().close(handle, &*self.store);
        }
        let _writing = self.writing.lock();
        let mut state = self.state.write();
        state.close(handle, &*self.store);
        // Nobody has seen any of it since it was refused, so nothing is said: see `View::release`.
        if state.frame_writers() == 0 && state.overlay.as_ref().is_some_and(|overlay| overlay.refused()) {
            state.overlay = None;
        }
    }

    /// Takes what is written over the frame for what it is now. The caller has `writing`.
    pub(super) fn look(&self, look: Look, invals: &mut Invals) -> Result<()> {
        let guard = self.store.enter();
        let (layout, overlay) = {
            let state = self.state.read();
            let Some(overlay) = state.overlay.clone() else { return Ok(()) };
            (Arc::clone(&state.layout), overlay)
        };
        let (dirty, verdict) = {
            let inner = overlay.inner.read();
            (inner.dirty, inner.verdict.clone())
        };
        match verdict {
            _ if dirty => {}
            Verdict::Held(error) if look == Look::Close => return Err(ViewError::Unfinished(error)),
            Verdict::Held(_) => return Ok(()),
            Verdict::Unconfirmed if look != Look::Settle => return Ok(()),
            _ => {}
        }
        let file = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
        self.mend_len(&file, invals)?;
        let found = consider(&file, look == Look::Settle);
        let verdict = match &found {
            Ok(Found::Held(error)) => Verdict::Held(error.clone()),
            Ok(Found::Unconfirmed) => Verdict::Unconfirmed,
            Ok(Found::Same | Found::Frame(_)) => Verdict::Open,
            Err(_) => Verdict::Unstored,
        };
        let (from_nothing, mtime) = {
            let mut inner = overlay.inner.write();
            inner.dirty = false;
            inner.verdict = verdict;
            (inner.below() == 0, inner.mtime)
        };
        match found? {
            Found::Same => {
                let mut state = self.state.write();
                state.overlay = None;
                state.frame_changed(mtime);
                Ok(())
            }
            Found::Frame(candidate) => {
                self.adopt(*candidate, &overlay, invals);
                Ok(())
            }
            Found::Unconfirmed => {
                debug!("{}: held: a frame, but perhaps not the whole change", self.store.path().display());
                Ok(())
            }
            Found::Held(error) => {
                debug!("{}: held: {error}", self.store.path().display());
                match look {
                    Look::Settle => Ok(()),
                    // Nothing of the old frame is left, so no round of writing is to come, but after a new frame's first one.
                    Look::Close if from_nothing && !is_begun(&file) => {
                        let state = self.state.read();
                        overlay.set_refused(true);
                        invals.extend(state.frame.map(Inval::Data));
                        Err(ViewError::Rejected(error))
                    }
                    _ => Err(ViewError::Unfinished(error)),
                }
            }
        }
    }

    /// Makes a frame the one that is shown, and that the next commit takes.
    fn adopt(&self, candidate: Candidate, overlay: &Overlay, invals: &mut Invals) {
        let Candidate { layout, staged, dropped, holes } = candidate;
        let mut state = self.state.write();
        let (mtime, was_refused) = {
            let inner = overlay.inner.read();
            (inner.mtime, inner.was_refused)
        };
        if let Some(ino) = state.frame {
            match was_refused {
                true => invals.push(Inval::Data(ino)),
                false => invals.extend(holes.iter().map(|hole| Inval::Range(ino, hole.start, hole.end - hole.start))),
            }
        }
        if !same_image(&state.layout, &layout) {
            state.version += 1;
        }
        if state.layout.tail_start != layout.tail_start || state.layout.tail != layout.tail {
            state.former_lens.clear();
        }
        for key in &dropped {
            // One that a commit has taken is the store's affair.
            if state.staged.remove(key) {
                self.store.discard(*key);
            }
        }
        debug!("{}: adopted: {} new chunks of {}", self.store.path().display(), staged.len(), layout.image.entries.len());
        state.staged.extend(staged);
        state.layout = Arc::new(layout);
        state.overlay = None;
        state.frame_changed(mtime);
    }

    /// Makes a temporary file, which is `draft`, the frame's, as a copy over it would; what is no frame changes nothing. The
    /// caller has `writing`.
    pub(super) fn replace_frame(&self, ino: Ino, draft: &Mutex<Draft>, invals: &mut Invals) -> Result<()> {
        let guard = self.store.enter();
        let (layout, serial) = {
            let mut state = self.state.write();
            (Arc::clone(&state.layout), state.serial())
        };
        let taken = std::mem::replace(&mut *draft.lock(), Draft::new(self.store.drafts()));
        let overlay = Overlay::of_draft(serial, taken);
        let found = {
            let file = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
            consider(&file, true)
        };
        // Before the names change: the kernel repeats what it was answered ESTALE, and would find no file of the old name any more.
        let stale = matches!(found, Ok(Found::Frame(_))) && self.store.changed_outside().unwrap_or(false);
        let refusal = match found {
            Ok(Found::Frame(candidate)) if stale => {
                candidate.staged.iter().for_each(|key| self.store.discard(*key));
                let reason = "it is not written over".to_owned();
                ViewError::Store(StoreError::Stale { path: self.store.path().into(), reason })
            }
            Ok(Found::Frame(candidate)) => {
                let holes = candidate.holes.clone();
                self.state.write().retire_frame(&*self.store);
                self.adopt(*candidate, &overlay, invals);
                invals.extend(holes.iter().map(|hole| Inval::Range(ino, hole.start, hole.end - hole.start)));
                return Ok(());
            }
            Ok(Found::Held(error)) => ViewError::Rejected(error),
            Ok(Found::Same | Found::Unconfirmed) => ViewError::Invalid, // neither is said of what covers everything
            Err(error) => ViewError::Store(error),
        };
        if let Some(taken) = overlay.into_draft() {
            *draft.lock() = taken;
        }
        Err(refusal)
    }
}

impl Publish for ContiguousView {
    fn store(&self) -> &dyn FrameStore {
        &*self.store
    }

    fn pacing(&self) -> &Pacing {
        &self.pacer
    }

    fn has_news(&self) -> bool {
        !self.state.read().is_published()
    }

    fn commit(&self, pacer: &mut Pacer) -> Result<()> {
        let began = Instant::now();
        let guard = self.store.enter(); // what is discarded from here on stays good until the store knows the image
        let (layout, version, staged) = {
            let state = self.state.read();
            if state.is_published() {
                pacer.settle();
                return Ok(());
            }
            (Arc::clone(&state.layout), state.version, state.staged.clone())
        };
        if let Some(hindrance) = self.following.hindrance(&*self.store) {
            return Err(ViewError::Store(hindrance));
        }
        let committed = self.store.commit(guard, layout.image.clone());
        pacer.committed(began);
        committed?;
        let mut state = self.state.write();
        state.published = version;
        state.staged.retain(|key| !staged.contains(key));
        debug!("{}: committed", self.store.path().display());
        Ok(())
    }
}

impl ContiguousView {
    // --- time ---

    /// What a read-write mount has to do now, and when again.
    pub(super) fn work(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        let held = self.settle_due(now, invals);
        [held, self.publish_due(now)].into_iter().flatten().min()
    }

    /// When what is held will be taken or dropped; does it if it is time.
    fn settle_due(&self, now: Instant, invals: &mut Invals) -> Option<Instant> {
        let due = |state: &State| {
            let overlay = state.overlay.as_ref().filter(|_| !state.has_writer())?;
            let inner = overlay.inner.try_read()?; // whoever writes pokes us
            match &inner.verdict {
                Verdict::Unconfirmed | Verdict::Open => Some((inner.last_write + SETTLE_AFTER, None)),
                Verdict::Held(error) if state.frame_writers() == 0 => Some((inner.last_write + DROP_AFTER, Some(error.clone()))),
                Verdict::Held(_) | Verdict::Unstored => None,
            }
        };
        let (at, _) = due(&self.state.read())?;
        if at > now {
            return Some(at);
        }
        let _writing = self.writing.lock();
        let (at, held) = due(&self.state.read())?; // nobody writes now
        if at > now {
            return Some(at);
        }
        match held {
            Some(error) => self.drop_held(&error, invals),
            None => {
                if let Err(error) = self.look(Look::Settle, invals) {
                    error!("{error}");
                }
            }
        }
        drop(_writing);
        if let Err(error) = self.publish_soon() {
            error!("{error}");
        }
        due(&self.state.read()).map(|(at, _)| at)
    }

    /// Why what is held is no frame, if nobody has it open for writing.
    fn left_behind(&self) -> Option<format::Error> {
        let state = self.state.read();
        let overlay = state.overlay.as_ref().filter(|_| state.frame_writers() == 0)?;
        match &overlay.inner.try_read()?.verdict {
            Verdict::Held(error) => Some(error.clone()),
            _ => None,
        }
    }

    fn drop_held(&self, error: &format::Error, invals: &mut Invals) {
        warn!("{}: what was written is dropped, as it is no frame: {error}", self.store.path().display());
        drop_overlay(&mut self.state.write(), invals);
    }

    /// Without writers, what a change of length without a handle has left is dropped.
    pub(super) fn drop_truncated(&self, invals: &mut Invals) {
        let mut state = self.state.write();
        if state.frame_writers() == 0 {
            drop_overlay(&mut state, invals);
        }
    }

    /// For an fsync: everything that can be in SOURCE is, on disk.
    pub(super) fn settle(&self, invals: &mut Invals) -> Result<()> {
        {
            let _writing = self.writing.lock();
            self.look(Look::Settle, invals)?;
        }
        self.publish()?;
        Ok(self.store.sync()?)
    }

    /// See [`View::leave`](crate::view::View::leave).
    pub(super) fn leave_source(&self, regardless: bool, invals: &mut Invals) -> Left {
        let failed = self.settle(invals).err();
        let lost = match &failed {
            Some(error) if regardless || is_final(error) => vec![self.save_lost()],
            _ => Vec::new(),
        };
        Left { failed, lost }
    }

    /// The end of a read-write mount: everything that can be committed is, or saved beside SOURCE.
    pub(super) fn finish(&self) -> Result<()> {
        let mut invals = Invals::new();
        let left = self.leave_source(true, &mut invals);
        left.log(self.store.path());
        let held = self.state.read().overlay.clone();
        if let Some(Verdict::Held(error)) = held.map(|overlay| overlay.inner.read().verdict.clone()) {
            self.drop_held(&error, &mut invals);
        }
        let mut state = self.state.write();
        if state.frame.is_none() {
            warn!("{}: its file was removed, and no other took its place: SOURCE stays as it is", self.store.path().display());
        }
        state.published = state.version;
        state.unpin_all(&*self.store);
        left.into_result()
    }

    /// Saves the whole frame, as it was accepted, beside SOURCE, unless that was done before.
    fn save_lost(&self) -> Lost {
        let _writing = self.writing.lock();
        let guard = self.store.enter_to_save();
        let (layout, overlay, name, version) = {
            let state = self.state.read();
            // What is no frame was never accepted.
            let accepted = |overlay: &&Arc<Overlay>| !matches!(overlay.inner.read().verdict, Verdict::Held(_));
            let overlay = state.seen_overlay().filter(accepted).cloned();
            let name = state.frame_name(self.store.path()).to_string_lossy().into_owned();
            (Arc::clone(&state.layout), overlay, name, state.version)
        };
        let held = Held { version, written: overlay.as_ref().map(|overlay| (overlay.serial, overlay.inner.read().last_write)) };
        let mut before = self.saved.lock();
        let saved = match &*before {
            Some((saved, path)) if *saved == held => Ok(path.clone()),
            _ => {
                let overlay = overlay.unwrap_or_else(|| Arc::new(Overlay::new(0, layout.len(), self.store.drafts())));
                let file = Overlaid { store: &*self.store, guard: &guard, layout: &layout, overlay: &overlay };
                self.store.save_lost(&name, &file)
            }
        };
        if let Ok(path) = &saved {
            *before = Some((held, path.clone()));
        }
        Lost { name, saved }
    }
}

/// What the frame's file holds, by numbers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Held {
    version: u64,
    /// What is written over that version: which, and when last.
    written: Option<(u64, Instant)>,
}

/// Readers see the layout again.
fn drop_overlay(state: &mut State, invals: &mut Invals) {
    if state.overlay.take().is_some() {
        invals.extend(state.frame.map(Inval::Data));
    }
}

/// Whether two layouts make the same frame in the store, which sets lengths by itself.
fn same_image(old: &super::Layout, new: &super::Layout) -> bool {
    let mut header = new.header().clone();
    header.set_frame_len(old.header().frame_len());
    header.set_cbytes(old.header().cbytes());
    *old.header() == header && old.trailer() == new.trailer() && old.image.entries == new.image.entries
}
