//! How a view follows other programs that write SOURCE.
//!
//! What is read is of one version of SOURCE, which the store sees to. When others have made another, a view with nothing
//! uncommitted reads it again: files of SOURCE get new inodes, so that whoever has one open reads no mixture, but is told (ESTALE). A
//! view that holds something uncommitted refuses reads, writes and commits from then on, and saves what it holds at the end.
//!
//! Who looks: the mount's thread for it, when the system or a read tells of something ([`crate::store::Watch`]); and whoever opens a
//! file in a mount for writing, before it is opened.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use log::{debug, error, info, warn};
use parking_lot::Mutex;

use self::unrest::{Unrest, last_attributes, last_page};
use super::frame_view::{FrameView, Standing};
use super::meta::Meta;
use super::nodes::MADE;
use super::single::{Single, State};
use super::state_lock::Changing;
use super::{Ino, Invalidation, Invalidations, POLLED, ROOT, Reread, Result, ViewError};
use crate::store::{FrameStore, Others, ReadGuard, StoreError, Watch, interrupts};

mod unrest;

/// When a SOURCE is looked at once more that has changed: later changes may bear the same time. What was read of it until then is forgotten,
/// as a write changes the time first and the bytes afterwards.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// Attributes of files that were made during the mount.
const ATTRIBUTES_OF_MADE: Invalidation = Invalidation::AttrWithin(Ino(MADE), Ino(u64::MAX));
/// Pauses between tries to read a SOURCE that is in the middle of a change: the first, and up to which they double. Then the next change is
/// waited for.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(1000));
/// How long a look-up of what is far away does not look again, however soon it is to be looked for changes otherwise.
const GLANCE_AGAIN: Duration = Duration::from_secs(1);
/// Lines of the log about a SOURCE that cannot be shown, until it can be shown again.
const MOST_REASONS: u32 = 20;
/// How often a read is begun again that another version of SOURCE has overtaken.
const ROUNDS: usize = 4;

/// What becomes of a view when others have changed SOURCE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// It has been read again.
    Done,
    /// The same, and the file that is shown has kept its inode.
    Kept,
    /// The file cannot keep its inode, and another view is to show what was read.
    Outdated,
    /// Something is uncommitted, which it would take away.
    Uncommitted,
    /// Somebody is at work on the view, who was not to be waited for.
    Busy,
}

impl<V: FrameView> Single<V> {
    /// Reads SOURCE again, in which others may have changed anything, and shows it. Meanwhile no draft is begun, and whoever fails to read
    /// a chunk of the state before waits: see [`Single::of_one_version`].
    ///
    /// # Errors
    /// What is wrong with SOURCE.
    pub(super) fn reload(&self, wait: bool, invalidations: &mut Invalidations) -> Result<Again> {
        let writing = if wait { Some(self.writing.lock()) } else { self.writing.try_lock() };
        let Some(_nobody_writes) = writing else { return Ok(Again::Busy) };
        let commit_throttle = if wait { Some(self.commit_throttle.lock()) } else { self.commit_throttle.try_lock() };
        let Some(_nobody_commits) = commit_throttle else { return Ok(Again::Busy) };
        // Not before: it may have been asked for when SOURCE had its name still.
        if self.following.is_left() {
            return Ok(Again::Busy);
        }
        let _reloading = self.following.reloading.lock();
        {
            let mut state = self.state.write();
            if V::is(&state, Standing::Uncommitted) {
                return Ok(Again::Uncommitted);
            }
            state.is_reloading = true;
            self.following.reloads.fetch_add(1, SeqCst);
        }
        let before = self.source_id();
        let loaded = self.load_again();
        let is_same = self.store.local().is_none() || before.is_some() && before == self.source_id();
        let mut state = self.state.write();
        state.is_reloading = false;
        let (frame, source) = loaded?;
        let keeps_inode = V::KEEPS_INODE && is_same && frame.keeps_inode(&state.frame);
        if self.is_opened_anew && V::KEEPS_INODE && !keeps_inode {
            self.following.outdated.store(true, SeqCst);
            self.following.reloads.fetch_add(1, SeqCst);
            return Ok(Again::Outdated);
        }
        if keeps_inode {
            state.nodes.take_attributes(source, true);
            invalidations.extend(last_page(&state, &frame));
        } else {
            last_attributes(&state).into_iter().for_each(|attr| state.nodes.give_up(attr));
            state.nodes.reloaded(source, invalidations);
        }
        state.frame = frame;
        self.following.reloads.fetch_add(1, SeqCst);
        self.following.out_of_step(false);
        Ok(if keeps_inode { Again::Kept } else { Again::Done })
    }

    /// Which file or directory SOURCE is. What is far away is known by its name alone.
    fn source_id(&self) -> Option<(u64, u64)> {
        let (file, _) = self.store.local()?.source()?;
        rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
    }

    fn load_again(&self) -> Result<(V, Meta)> {
        self.store.reload()?;
        self.following.out_of_step(true);
        Ok(((self.load)(&*self.store)?, self.store.source_stat()?.into()))
    }

    /// The state, to begin a draft in it: not while SOURCE is read again, upon which the draft would be gone.
    pub(super) fn change_to_begin(&self) -> Changing<'_, State<V>> {
        loop {
            let state = self.state.write();
            if !state.is_reloading {
                return state;
            }
            drop(state);
            drop(self.following.reloading.lock());
        }
    }

    /// Takes over SOURCE's owner, mode and times.
    fn take_attributes(&self, invalidations: &mut Invalidations) {
        if let Ok(stat) = self.store.source_stat() {
            let mut state = self.state.write();
            state.nodes.take_attributes(stat.into(), V::TAKES_MTIME);
            let (first, last) = state.nodes.shown();
            // What the mount has given up keeps the attributes that the kernel has of it.
            invalidations.extend([Invalidation::Attr(ROOT), Invalidation::AttrWithin(first, last), ATTRIBUTES_OF_MADE]);
        }
    }

    /// What the kernel must forget of all that is shown now, and of names. Pages of files that were given up stay.
    pub(super) fn all_shown(&self) -> Invalidations {
        if self.following.is_outdated() {
            return Invalidations::new();
        }
        let (first, last) = self.state.read().nodes.shown();
        vec![Invalidation::Names, Invalidation::Data(ROOT), Invalidation::Within(first, last)]
    }

    /// The same, after so many changes by others.
    pub(super) fn reread(&self, count: u64) -> Reread {
        Reread { of: ROOT, count, invalidations: self.all_shown() }
    }

    /// Looks whether others have changed SOURCE, and shows what it holds now. Answers when to look again, if nobody tells.
    pub(super) fn look(&self, invalidations: &mut Invalidations) -> Option<Instant> {
        let following = &self.following;
        let mut seen = following.seen.lock();
        self.look_with(&mut seen, true, invalidations)
    }

    /// The same where nobody is to be waited for; what the kernel must forget is left to the next [`Single::look`].
    pub(super) fn glance(&self) {
        let following = &self.following;
        if following.is_left() || self.store.is_as_seen() {
            return;
        }
        if let Some(mut seen) = following.seen.try_lock()
            && !self.is(Standing::Uncommitted)
        {
            let mut invalidations = Invalidations::new();
            self.look_with(&mut seen, false, &mut invalidations);
            seen.owed.append(&mut invalidations);
        }
        if let Some(watch) = self.store.watch() {
            watch.ring();
        }
    }

    /// Before names are listed, or are looked up, of what is far away or whose changes the system does not report: a glance if it is time
    /// for one. For a look-up alone, that is no sooner than [`GLANCE_AGAIN`] or [`POLLED`] after the last one.
    pub(super) fn glance_untold(&self, list: bool) -> Result<()> {
        let again = match self.store.refreshes() {
            Some(_) => GLANCE_AGAIN,
            None if self.is_blind() && !self.following.by_turns.load(SeqCst) => POLLED,
            None => return Ok(()),
        };
        let now = Instant::now();
        let is_soon = self.following.glanced.lock().is_some_and(|last| now < last + again);
        if is_soon && !list {
            return Ok(());
        }
        if self.store.is_as_seen() {
            // On this machine that takes a look at SOURCE.
            if self.store.local().is_some() {
                *self.following.glanced.lock() = Some(now);
            }
            return Ok(());
        }
        let glance = self.glance_before(true);
        *self.following.glanced.lock() = Some(Instant::now());
        glance
    }

    /// Before a file is opened or read: where nothing tells of changes, or `open` says that this is the moment.
    pub(super) fn glance_before(&self, open: bool) -> Result<()> {
        let following = &self.following;
        following.check()?;
        match following.by_turns.load(SeqCst) {
            true if open => self.glance_in_turn(),
            false if open || self.is_blind() => {
                self.glance();
                // Who opens a file after a change by others is to get what it is now.
                following.wait_for_reload()?;
            }
            _ => return following.check_in_step(),
        }
        following.check()?;
        following.check_in_step()
    }

    /// Reads, and again where another version of SOURCE has come meanwhile. What is asked for is looked up anew each time, with a
    /// guard that is older.
    pub(super) fn of_one_version<T>(&self, mut read: impl FnMut(&ReadGuard<'_>) -> Result<T>) -> Result<T> {
        for _ in 0..ROUNDS {
            let reloads = self.following.reloads.load(SeqCst);
            let guard = self.store.enter();
            let error = match read(&guard) {
                Err(ViewError::Store(error)) => error,
                read => return read,
            };
            let mut is_overtaken = matches!(error, StoreError::Stale { .. }) && !guard.is_current();
            drop(guard);
            // Elsewhere nobody tells of changes but what cannot be read any more.
            if self.store.local().is_none() && matches!(error, StoreError::Stale { .. }) {
                self.glance();
            }
            self.following.wait_for_reload()?;
            is_overtaken |= self.following.reloads.load(SeqCst) != reloads;
            match error {
                _ if is_overtaken => {}
                StoreError::Stale { path, reason } => {
                    debug!("{}: {reason}", path.display());
                    return Err(ViewError::Gone);
                }
                error => return Err(ViewError::Store(error)),
            }
        }
        Err(ViewError::Gone)
    }

    /// Whether anything may be written.
    pub(super) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(ViewError::ReadOnly);
        }
        let following = &self.following;
        following.check()?;
        if following.gone.load(SeqCst) {
            // It may have come back.
            self.glance();
            if following.gone.load(SeqCst) {
                return Err(ViewError::Gone);
            }
        }
        if self.store.committed().is_some() { Ok(self.store.check_writable().or_else(passing)?) } else { Ok(()) }
    }

    fn look_with(&self, seen: &mut Seen, wait: bool, invalidations: &mut Invalidations) -> Option<Instant> {
        invalidations.append(&mut seen.owed);
        let (following, store) = (&self.following, &*self.store);
        if following.is_left() || following.check().is_err() || store.committed().is_none() {
            return None;
        }
        let source = store.path();
        let source = source.display();
        let Some(others) = (if wait { Some(store.look()) } else { store.glance() }) else {
            return Some(Instant::now() + TRY_AGAIN.0);
        };
        let due = match others {
            Ok(Others::Nothing) if !following.out_of_step.load(SeqCst) => {
                following.gone.store(false, SeqCst);
                seen.failed = 0;
                seen.forget_what_may_be_torn(self, invalidations)
            }
            Ok(Others::Attributes) => {
                following.gone.store(false, SeqCst);
                self.take_attributes(invalidations);
                seen.forget_what_may_be_torn(self, invalidations)
            }
            Ok(Others::Gone(reason)) => {
                let was_gone = following.gone.swap(true, SeqCst);
                let shown = match following.out_of_step.load(SeqCst) {
                    true => "the mount shows nothing until there is a frame that it can show",
                    false => "the mount still shows the frame that it has open, and commits nothing",
                };
                if seen.is_new(&reason) || !was_gone {
                    warn!("{source}: {reason}; {shown}");
                }
                seen.forget_what_may_be_torn(self, invalidations)
            }
            Ok(Others::Touched(reason)) => match self.reload(wait, invalidations) {
                Ok(again @ (Again::Done | Again::Kept | Again::Outdated)) => seen.read_again(self, again, &reason, invalidations),
                _ => Some(Instant::now() + TRY_AGAIN.1),
            },
            Ok(others) => {
                let reason = match others {
                    Others::Changed(reason) => reason,
                    _ => "it could not be shown before".to_owned(),
                };
                match self.reload(wait, invalidations) {
                    Ok(again @ (Again::Done | Again::Kept | Again::Outdated)) => {
                        seen.read_again(self, again, &reason, invalidations)
                    }
                    Ok(Again::Uncommitted) => {
                        self.refuse(&reason, invalidations);
                        None
                    }
                    Ok(Again::Busy) => Some(Instant::now() + TRY_AGAIN.0),
                    // In the middle of a change by the library it does not parse.
                    Err(error) => {
                        following.gone.store(true, SeqCst);
                        self.is_not_read();
                        if following.out_of_step.load(SeqCst) {
                            // The kernel must ask again, and is refused. Pages of what was there stay.
                            invalidations.push(Invalidation::Names);
                        }
                        seen.not_read(&source, &error)
                    }
                }
            }
            Err(error) => seen.not_read(&source, &error.into()),
        };
        // Where no file is open, the next look-up or open looks.
        let polls = self.is_blind() && (following.by_turns.load(SeqCst) || self.state.read().nodes.handles().next().is_some());
        let next = polls.then(|| Instant::now() + POLLED);
        due.into_iter().chain(next).min()
    }

    /// Whether the system reports no changes of SOURCE.
    pub(super) fn is_blind(&self) -> bool {
        self.store.watch().is_some_and(Watch::is_blind)
    }

    /// Refuses reads, writes and commits from now on.
    pub(super) fn refuse(&self, reason: &str, invalidations: &mut Invalidations) {
        let (following, source) = (&self.following, self.store.path());
        let source = source.display();
        if following.refused.set(reason.to_owned()).is_ok() {
            error!(
                "{source}: was changed by another process under the mount ({reason}), which holds changes of its own: \
                 nothing more is read or written, and what is held is saved at the end"
            );
            invalidations.push(Invalidation::All);
        }
    }
}

/// Failures of the past say what they have to say when something is stored.
fn passing(error: StoreError) -> std::result::Result<(), StoreError> {
    if matches!(error, StoreError::Poisoned { .. }) { Ok(()) } else { Err(error) }
}

/// What a view knows of other programs.
#[derive(Default)]
pub struct Following {
    seen: Mutex<Seen>,
    /// Why nothing is read or written any more.
    refused: OnceLock<String>,
    /// SOURCE holds what another view is to show.
    outdated: AtomicBool,
    /// There is no frame to commit to.
    gone: AtomicBool,
    /// The mount itself has taken SOURCE its name, which nobody is to look for.
    left: AtomicBool,
    /// The store has read SOURCE again, and what it found cannot be shown: nothing is committed.
    out_of_step: AtomicBool,
    /// Programs take turns, and somebody else says when to look.
    by_turns: AtomicBool,
    /// Held while SOURCE is read again, and taken before the state.
    reloading: Mutex<()>,
    /// Why reads of decompressed data wait. A leaf lock.
    unrest: Mutex<Unrest>,
    /// When a look-up of what is far away looked last. A leaf lock.
    glanced: Mutex<Option<Instant>>,
    /// Counts when that begins, and when what was read is shown.
    reloads: AtomicU64,
}

/// What was seen by the one who looked last. Taken before any lock of the view.
#[derive(Default)]
pub struct Seen {
    /// What the kernel must forget.
    owed: Invalidations,
    /// SOURCE could not be read so many times.
    failed: u32,
    /// Why nothing can be shown, as the log says, and how many reasons there were.
    told: (String, u32),
    /// From when on what is read of SOURCE is whole.
    whole_from: Option<Instant>,
}

impl Following {
    /// SOURCE has lost its name, or has it back, by what the mount did. The caller has the lock of commits.
    pub fn leave(&self, left: bool) {
        self.left.store(left, SeqCst);
        self.gone.store(left, SeqCst);
    }

    pub fn is_left(&self) -> bool {
        self.left.load(SeqCst)
    }

    /// Whether anything is read and written.
    ///
    /// # Errors
    /// [`ViewError::Gone`] if others have changed SOURCE while something was uncommitted, or into what another view is to show.
    pub fn check(&self) -> Result<()> {
        if self.refused.get().is_some() || self.is_outdated() { Err(ViewError::Gone) } else { Ok(()) }
    }

    /// Whether SOURCE holds what another view is to show.
    pub fn is_outdated(&self) -> bool {
        self.outdated.load(SeqCst)
    }

    /// Why nothing can be committed.
    pub fn hindrance(&self, store: &dyn FrameStore) -> Option<StoreError> {
        let stale = |reason: &str| StoreError::Stale { path: store.path(), reason: reason.into() };
        match self.refused.get() {
            Some(reason) => Some(stale(reason)),
            None => self.out_of_step.load(SeqCst).then(|| stale("what it holds now cannot be shown")),
        }
    }

    /// While the answer lives, the store knows more than the view does; at its end as well, unless it is told otherwise.
    pub fn out_of_step(&self, yes: bool) {
        self.out_of_step.store(yes, SeqCst);
    }

    /// Whether what SOURCE holds now cannot be shown.
    pub(super) fn is_out_of_step(&self) -> bool {
        self.out_of_step.load(SeqCst)
    }

    /// Whether somebody else says when to look.
    pub(super) fn is_by_turns(&self) -> bool {
        self.by_turns.load(SeqCst)
    }

    /// # Errors
    /// [`ViewError::Gone`] if what SOURCE holds now cannot be shown.
    pub(super) fn check_in_step(&self) -> Result<()> {
        if self.out_of_step.load(SeqCst) {
            // So it is for a moment in every change.
            self.wait_for_reload()?;
        }
        if self.out_of_step.load(SeqCst) { Err(ViewError::Gone) } else { Ok(()) }
    }

    /// Waits until SOURCE has been read again, if that is under way: it may be far away.
    ///
    /// # Errors
    /// [`ViewError::Interrupted`] if nobody wants it any more.
    fn wait_for_reload(&self) -> Result<()> {
        interrupts::lock(&self.reloading).map(drop).map_err(|_| ViewError::Interrupted)
    }

    /// Counts when SOURCE begins to be read again, and when what was read is shown.
    pub fn reloads(&self) -> u64 {
        self.reloads.load(SeqCst)
    }

    /// From now on somebody else says when to look.
    pub fn by_turns(&self) {
        self.by_turns.store(true, SeqCst);
    }
}

impl Seen {
    fn forget_what_may_be_torn<V: FrameView>(&mut self, view: &Single<V>, invalidations: &mut Invalidations) -> Option<Instant> {
        let from = self.whole_from?;
        if Instant::now() < from {
            return Some(from);
        }
        self.whole_from = None;
        view.store.forget_cached();
        view.state.read().frame.forget();
        view.following.unrest.lock().end();
        // Pages of what has been given up were read before.
        match V::KEEPS_INODE {
            true => invalidations.push(view.pages_of_data()),
            false => invalidations.append(&mut view.all_shown()),
        }
        None
    }

    fn read_again<V: FrameView>(
        &mut self,
        view: &Single<V>,
        again: Again,
        reason: &str,
        invalidations: &mut Invalidations,
    ) -> Option<Instant> {
        info!("{}: was changed by another process, and read again ({reason})", view.store.path().display());
        self.failed = 0;
        self.told = Default::default();
        view.following.gone.store(false, SeqCst);
        match again {
            Again::Kept => view.data_is_loaded(invalidations),
            // Pages of what it has shown stay.
            Again::Outdated => return None,
            _ => {
                view.following.unrest.lock().begin(Instant::now());
                invalidations.extend([Invalidation::Names, Invalidation::Data(ROOT)]);
            }
        }
        // Objects far away are replaced as a whole.
        self.whole_from = view.store.local().map(|_| Instant::now() + LOOK_AGAIN);
        self.whole_from
    }

    fn not_read(&mut self, source: &dyn std::fmt::Display, error: &ViewError) -> Option<Instant> {
        let pause = TRY_AGAIN.0.saturating_mul(1 << self.failed.min(16));
        self.failed = self.failed.saturating_add(1);
        if pause < TRY_AGAIN.1 {
            debug!("not shown yet: {error}");
            return Some(Instant::now() + pause);
        }
        if self.is_new(&error.to_string()) {
            warn!("{source}: was changed by another process, and cannot be shown: {error}");
        }
        None
    }

    /// Whether the log should say why nothing can be shown, which it says once for each reason.
    fn is_new(&mut self, reason: &str) -> bool {
        let (before, count) = &mut self.told;
        if before == reason || *count >= MOST_REASONS {
            return false;
        }
        reason.clone_into(before);
        *count += 1;
        true
    }
}
