//! A mount from its first request to its last commit.
//!
//! Unmounting tells us little: no RELEASE, no DESTROY comes, and `umount` returns before we have noticed. What counts is
//! that the device ends, whoever unmounted. Then, or when we have given up waiting for it, the view is shut down, and its
//! errors are what [`Mounted::run`] returns.
//!
//! The end, on a signal:
//!
//! 1. unmount, and try again for `PATIENCE` while files are open;
//! 2. commit everything, and detach: the name is gone, open files go on working;
//! 3. wait for them for `GRACE`, or until the next signal;
//! 4. answer whatever still comes with ENODEV, shut the view down, and leave; the kernel drops the rest with our device.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::SessionACL;
use log::{debug, error, info, warn};

use super::adapter::Adapter;
use super::apart::{Apart, Teller, clone_device};
pub use super::events::{Control, Signal};
use super::events::{Event, Events};
use super::executor::{FIRST, LEAST, Others};
use super::guard::Guard;
use super::kernel::Mountpoint;
pub use super::kernel::{Access, MountError, MountRequest};
use super::notify::Role;
use super::pm_qos::PmQos;
pub use super::shared::Overrides;
use super::shared::Shared;
use super::spawn;
use crate::store::local::{self, descriptors};
use crate::store::mark::Life;
use crate::store::{in_words, interrupts};
use crate::view::{FileSystem, Invalidations, Kind, ROOT, ViewError};

/// How long unmounting is tried while files are open.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between tries.
const PAUSE: Duration = Duration::from_millis(50);
/// How long open files of a detached mount are waited for.
const GRACE: Duration = Duration::from_secs(5);

/// How to mount.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the kernel is asked for. `MS_RDONLY` is added for a file system that is read-only.
    pub mount: MountRequest,
    /// Keep the machine's cores awake while requests come in quick succession, where that can be and is of use.
    pub low_latency: bool,
    /// The most event loops. 4 are allowed at least.
    pub threads: usize,
    /// What is shown instead of a view's own attributes.
    pub overrides: Overrides,
    /// Whether there are extended attributes. Without, the kernel does not ask for `security.capability` before writes.
    pub xattrs: bool,
    /// Whether clients are free when this process is killed. Another one sees to that: this program, run anew.
    pub guarded: bool,
}

/// A mount that answers. [`Mounted::run`] sees it to its end; dropped without, it is unmounted and shut down.
pub struct Mounted {
    shared: Arc<Shared>,
    point: Mountpoint,
    events: Events,
    control: Control,
    helpers: Vec<JoinHandle<()>>,
    pm_qos: Option<Arc<PmQos>>,
    guard: Option<Guard>,
    finished: bool,
}

impl Mounted {
    /// Mounts `view` and begins to answer. Files of the mount can be opened once this has returned.
    ///
    /// # Errors
    /// Why it cannot be mounted or served.
    pub fn start(view: Arc<dyn FileSystem>, config: &Config) -> Result<Self, MountError> {
        let features = view.features();
        let Config { mut mount, .. } = config.clone();
        match (features.read_only, features.locks) {
            (true, false) => mount.flags |= libc::MS_RDONLY,
            // Who reads has to open the lock file for writing.
            (true, true) => mount.flags &= !libc::MS_RDONLY,
            (false, _) => {}
        }
        let refused = |reason| MountError::new(&config.mount.point, reason);
        let root = view.getattr(ROOT).map_err(|error| refused(error.to_string()))?.kind;
        // What else may be the matter with the mount point, mounting says.
        if let Ok(Some(stat)) = local::stat(&mount.point)
            && stat.is_dir() != (root == Kind::Directory)
        {
            let (found, expected) = if stat.is_dir() { ("directory", "file") } else { ("file", "directory") };
            return Err(refused(format!("is a {found}; expected a {expected} to mount on")));
        }
        // Before requests come: what the kernel may believe depends on it.
        if let Some(error) = view.watcher().and_then(|watcher| watcher.begin()) {
            let point = mount.point.display();
            info!(
                "{point}: polling for changes by others while a file is open, because inotify is not available: {}",
                in_words(&error)
            );
        }
        let (events, control) = Events::new().map_err(|error| refused(in_words(&error)))?;
        let (point, device) = Mountpoint::mount(&mount)?;
        let shared = Arc::new(Shared::new(view, config.overrides, mount.access));
        if let Some(device) = point.device_number() {
            let _ = shared.device.set(device);
            shared.say(Life::Serving);
        }
        // From here on dropping it unmounts.
        let mut mounted =
            Mounted { shared, point, events, control, helpers: Vec::new(), pm_qos: None, guard: None, finished: false };
        mounted.serve(device, config).map_err(|error| refused(format!("cannot start: {}", in_words(&error))))?;
        Ok(mounted)
    }

    /// Answers INIT and starts all threads.
    fn serve(&mut self, device: OwnedFd, config: &Config) -> io::Result<()> {
        let mut options = fuser::Config::default();
        options.n_threads = Some(FIRST);
        // The kernel lets in only the owner, or everyone. That root is the only other, fuser sees to for requests, and `Private` for
        // what is cached.
        let acl = if config.mount.access == Access::Root { SessionACL::RootAndOwner } else { SessionACL::All };
        self.pm_qos = if config.low_latency { PmQos::open(self.point.path()).map(Arc::new) } else { None };
        self.shared.placement.start();
        let (auto_unmount, xattrs, pm_qos) = (config.mount.auto_unmount, config.xattrs, self.pm_qos.clone());
        let new_adapter = move |shared: &Arc<Shared>| Adapter::new(shared.clone(), auto_unmount, xattrs, pm_qos.clone());
        let adapter = new_adapter(&self.shared);
        // Not in unit tests, whose process has files open in its own mounts: a thread apart would flush them.
        let own = if config.guarded { clone_device(&device).map(descriptors::lowered).ok() } else { None };
        let device = descriptors::lowered(device);
        let fuser = own.is_some().then(|| device.as_raw_fd());
        let session = fuser::Session::from_fd(adapter, device, acl, options)?;
        if let Some(bytes) = self.shared.features.read_ahead
            && let Err(error) = self.point.set_read_ahead(bytes)
        {
            debug!("{}: the kernel keeps its default read-ahead: {}", self.point.path().display(), in_words(&error));
        }
        let device = own.map_or_else(|| session.as_fd().try_clone_to_owned(), Ok)?.into();
        let teller = Arc::new(Teller { notifier: session.notifier(), device });
        let shared = Arc::downgrade(&self.shared);
        self.shared.notify.start_by(move |role| {
            let (Some(shared), teller) = (shared.upgrade(), Arc::clone(&teller)) else { return false };
            let (name, apart) = match role {
                Role::Names => ("b2fuse-names", "b2fuse-a-name"),
                Role::Pages => ("b2fuse-pages", "b2fuse-a-page"),
            };
            spawn(name, "what the kernel must forget, which waits", move || {
                shared.notify.run(role, Apart::new(apart, teller, fuser), &*shared.view, &shared.inodes);
            })
        });
        let shared = Arc::downgrade(&self.shared);
        self.shared.ticker.start_by(move || {
            let Some(shared) = shared.upgrade() else { return false };
            spawn("b2fuse-tick", "commits, which wait", move || {
                shared.ticker.run(&*shared.view, |invalidations| shared.notify.forget(invalidations));
            })
        });
        self.help("b2fuse-watch", |shared| shared.follow_others())?;
        if let Some(pm_qos) = self.pm_qos.clone() {
            self.help("b2fuse-awake", move |_| pm_qos.run())?;
        }
        self.guard = if config.guarded { Guard::start(&session, &self.point) } else { None };
        self.shared.loops.prepare(Others {
            device: session.as_fd().try_clone_to_owned()?,
            all: config.threads.max(LEAST),
            session: Box::new(move |shared, device, threads| {
                let mut options = fuser::Config::default();
                options.n_threads = Some(threads);
                let session = fuser::Session::from_fd(new_adapter(shared), device, acl, options)?;
                Ok(Box::new(|| session.run()))
            }),
        });
        let (control, shared) = (self.control.clone(), Arc::clone(&self.shared));
        // Not one of the helpers: it may outlive a detached mount, and is not waited for.
        std::thread::Builder::new().name("b2fuse-session".into()).spawn(move || {
            let outcome = session.run();
            shared.loops.join();
            control.tell(Event::Ended(outcome));
        })?;
        Ok(())
    }

    fn help(&mut self, name: &str, body: impl FnOnce(&Shared) + Send + 'static) -> io::Result<()> {
        let shared = self.shared.clone();
        self.helpers.push(std::thread::Builder::new().name(name.into()).spawn(move || body(&shared))?);
        Ok(())
    }

    /// By which the mount can be ended or asked for a report.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Has the thread of [`Mounted::run`] call `listen` each time [`Control::bell`] rings.
    pub fn listen(&mut self, listen: impl FnMut(&Control) + Send + 'static) {
        self.events.listen = Box::new(listen);
    }

    /// Waits for the end, whoever brings it about, and returns when everything is in SOURCE, or says what is not.
    ///
    /// # Errors
    /// What could not be saved.
    pub fn run(mut self) -> Result<(), ViewError> {
        if !self.wait(None) {
            self.unmount();
        }
        self.finish()
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    fn ended(&self, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => info!("{}: unmounted", self.point.path().display()),
            Err(error) => error!("{}: requests can no longer be read: {}", self.point.path().display(), in_words(&error)),
        }
        // If it was not an unmount that ended it, a mount is left that nobody will ever answer.
        if let Err(error) = self.point.unmount(true) {
            error!("{}: cannot unmount: {}", self.point.path().display(), in_words(&error));
        }
    }

    fn report(&self) {
        info!("{}: {}; {}", self.point.path().display(), self.shared.view.report(), self.shared.report());
    }

    /// Steps 1 to 3 of the module's list.
    fn unmount(&mut self) {
        let path = self.point.path().to_owned();
        let patience = Instant::now() + PATIENCE;
        while let Err(error) = self.point.unmount(false) {
            if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < patience {
                if self.wait(Some(PAUSE)) {
                    return;
                }
                continue;
            }
            warn!("{}: cannot unmount ({}); detached", path.display(), in_words(&error));
            let mut invalidations = Invalidations::new();
            if let Err(error) = self.shared.view.fsync(ROOT, &mut invalidations) {
                error!("{}: {error}", path.display());
            }
            self.shared.notify.forget(invalidations);
            if let Err(error) = self.point.unmount(true) {
                error!("{}: cannot detach: {}", path.display(), in_words(&error));
            }
            break;
        }
        if !self.wait(Some(GRACE)) {
            warn!("{}: is still in use; its open files end with the daemon now", path.display());
            // That is for the process, in which unit tests have many mounts.
            if !cfg!(test) {
                interrupts::end_all();
            }
        }
    }

    /// Waits for the kernel to close the device, no longer than `time`. True if it has; a signal to end cuts the waiting short.
    fn wait(&mut self, time: Option<Duration>) -> bool {
        let until = time.map(|time| Instant::now() + time);
        loop {
            match self.events.next(&self.control, until) {
                Some(Event::Ended(outcome)) => {
                    self.ended(outcome);
                    return true;
                }
                Some(Event::Signal(Signal::Report)) => self.report(),
                Some(Event::Signal(Signal::End)) | None => return false,
            }
        }
    }

    /// Shuts the view down. After an end of the device nothing is under way any more; otherwise what is ends first.
    fn finish(&mut self) -> Result<(), ViewError> {
        self.finished = true;
        self.shared.say(Life::Ending);
        self.shared.unmounting.end();
        self.shared.ticker.stop();
        if let Some(watcher) = self.shared.view.watcher() {
            watcher.stop();
        }
        self.shared.notify.stop();
        if let Some(pm_qos) = &self.pm_qos {
            pm_qos.stop();
        }
        *self.shared.closed.write() = true;
        for helper in self.helpers.drain(..) {
            // It has panicked if this fails, which the log knows.
            let _ = helper.join();
        }
        // Nothing waits in the kernel any more, and the device is to close with this process.
        self.guard = None;
        debug!("{}: {}", self.point.path().display(), self.shared.report());
        let outcome = self.shared.view.shutdown();
        // Who waits for the mark to go waits for all that this process has open.
        std::mem::forget(self.shared.mark.lock().take());
        outcome
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.finished {
            self.unmount();
            if let Err(error) = self.finish() {
                error!("{}: {error}", self.point.path().display());
            }
        }
    }
}
