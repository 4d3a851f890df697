//! FUSE requests to calls of a [`FileSystem`](crate::view::FileSystem): unpacks, calls, replies, and decides nothing about files.
//!
//! The kernel caches attributes and names without a time limit; [`Notify`](super::notify) tells it what a call has changed. It does not
//! cache that a name is missing. The kernel checks permissions (`default_permissions`), except on a mount that only one user may use:
//! there it sends ACCESS for access(2) and chdir(2) only. It handles the locks of fcntl(2) itself, and those of flock(2) too unless the
//! file system wants them. The [executor](super::executor) decides when a request that may wait is carried out.
//!
//! A read-only mount fails OPEN and FLUSH with ENOSYS. After that the kernel sends neither of them, and no RELEASE, so that cached files
//! are read as fast as native ones. A mount for writing needs FLUSH, because a close can fail, and OPEN, because the file system must know
//! its handles.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use log::debug;
use parking_lot::RwLockReadGuard;

use super::answers::{Ask, Call, Op, Reply, errno};
use super::executor::{Busy, LateRead};
use super::lock_waits::Patience;
use super::notify::KernelLock;
use super::pm_qos::PmQos;
use super::reads::Origin;
use super::shared::Shared;
use super::{unmount, waiters, xattr};
use crate::store::interrupts;
use crate::view::{
    Creation, Features, Flock, Handle, Ino, Invalidation, Invalidations, Kind, New, OpenMode, RenameMode, Seek, SetAttr,
    ViewError, Wait,
};

/// The longest WRITE that the kernel may send, in bytes.
pub(super) const MAX_WRITE: u32 = 1 << 20;
/// The longest READ that is answered in one piece, in bytes; the kernel asks for [`MAX_WRITE`] at most.
const MAX_READ: usize = 16 << 20;

/// How often a READ is begun again that a WRITE has overtaken.
const READ_AGAIN: usize = 4;

/// The file system that fuser calls.
pub(super) struct Adapter {
    shared: Arc<Shared>,
    /// The kernel accepts ENOSYS for OPEN.
    no_open: bool,
    /// The kernel accepts ENOSYS for OPENDIR, and caches listings then.
    no_opendir: bool,
    /// Whether there are extended attributes.
    xattrs: bool,
    /// With `low_latency`.
    pm_qos: Option<Arc<PmQos>>,
}

/// A request that is served.
struct Entered<'a> {
    _open: RwLockReadGuard<'a, bool>,
    _busy: Busy<'a>,
}

impl Adapter {
    /// Whether OPENDIR fails with ENOSYS. Not if fusermount3 is to unmount the mount when the daemon dies: it checks that by opening the
    /// mount point.
    pub(super) fn new(shared: Arc<Shared>, auto_unmount: bool, xattrs: bool, pm_qos: Option<Arc<PmQos>>) -> Self {
        let no_open = shared.features.read_only && !shared.features.handles;
        let Features { passes_on, far, is_untold, .. } = shared.features;
        let no_opendir = !auto_unmount && passes_on.is_none() && far.is_none() && !is_untold;
        Adapter { no_open, no_opendir, xattrs, pm_qos, shared }
    }

    /// Held while a request is served. After the end of the mount, requests fail with ENODEV.
    fn enter(&self, req: &Request) -> Option<(&Arc<Shared>, Entered<'_>)> {
        let entered = Entered { _open: self.shared.enter()?, _busy: self.shared.begin() };
        if let Some(pm_qos) = &self.pm_qos {
            pm_qos.asked();
        }
        self.shared.placement.serve(req.pid());
        interrupts::serve(req.pid());
        Some((&self.shared, entered))
    }

    /// A request that changes nothing.
    fn ask<R: Reply>(&self, what: &'static str, req: &Request, ino: INodeNo, reply: R, call: impl Ask<R> + Send + 'static) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.send(Err(Errno::ENODEV)) };
        self.unless_far(shared, req, move |shared| {
            let _making = shared.replies.begin();
            reply.send(call(shared, Ino(ino.0)).map_err(|refusal| errno(what, Ino(ino.0), &refusal)));
        });
    }

    /// Does what changes nothing: at once, or as the executor allows it where all is far away.
    fn unless_far(&self, shared: &Arc<Shared>, req: &Request, work: impl FnOnce(&Arc<Shared>) + Send + 'static) {
        if shared.features.far.is_some() { shared.run_far(req.pid(), work) } else { work(shared) }
    }

    /// See [`Shared::perform`].
    fn perform<R: Reply>(&self, req: &Request, op: Op, reply: R, call: impl Call<R> + Send + 'static) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.send(Err(Errno::ENODEV)) };
        shared.perform(op, reply, call);
    }

    /// A new name.
    fn make(&self, req: &Request, parent: INodeNo, name: &OsStr, modes: (u32, u32), reply: ReplyEntry, new: New<'static>) {
        let (name, creation) = (name.to_owned(), creation(&self.shared.features, req, modes));
        self.perform(req, Op::change("make", parent, KernelLock::Directory), reply, move |shared, parent, invalidations| {
            shared.view.make(parent, &name, new, creation, invalidations).map(|attr| shared.entry(&attr))
        });
    }

    /// The error for attributes of which the file system knows without a call that there are none.
    fn no_xattr(&self, name: &OsStr) -> Option<Errno> {
        let Features { passes_on, lists, .. } = self.shared.features;
        match (self.xattrs, passes_on) {
            (false, _) => Some(Errno::ENOSYS),
            (true, _) if xattr::is_list(name) => (!lists).then_some(Errno::EOPNOTSUPP),
            (true, Some(_)) => None,
            (true, None) => (!xattr::is_ours(name)).then_some(Errno::EOPNOTSUPP),
        }
    }
}

/// Who asks, and the mode and the umask of the request.
fn creation(features: &Features, req: &Request, (mode, umask): (u32, u32)) -> Creation {
    let bits = if features.passes_on.is_some() { 0o7777 } else { 0o777 };
    // Only such a file asks for the groups of the caller.
    let is_set_group = mode & bits & libc::S_ISGID != 0 && waiters::clients_are_visible();
    let pid = if is_set_group { req.pid() } else { 0 };
    Creation { uid: req.uid(), gid: req.gid(), mode: mode & bits, umask: umask & 0o777, pid, exclusive: true }
}

fn origin(req: &Request) -> Origin {
    Origin { unique: req.unique().0, client: req.pid() }
}

fn kind(mode: u32) -> Kind {
    match mode & libc::S_IFMT {
        libc::S_IFIFO => Kind::Fifo,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFBLK => Kind::BlockDevice,
        libc::S_IFCHR => Kind::CharDevice,
        libc::S_IFLNK => Kind::Symlink,
        libc::S_IFDIR => Kind::Directory,
        _ => Kind::File,
    }
}

fn time(time: TimeOrNow) -> SystemTime {
    let TimeOrNow::SpecificTime(time) = time else { return SystemTime::now() };
    // For times before 1970, fuser subtracts the nanoseconds that it must add.
    let taken = SystemTime::UNIX_EPOCH.duration_since(time).map_or(0, |before| before.subsec_nanos());
    time + 2 * Duration::from_nanos(taken.into())
}

/// How somebody opens a file who may keep bits by which programs run as others only if that is root.
fn open_mode(req: &Request, flags: i32) -> OpenMode {
    let access = OpenFlags(flags).acc_mode();
    OpenMode {
        drop_privileges: req.uid() != 0,
        read: access != OpenAccMode::O_WRONLY,
        write: access != OpenAccMode::O_RDONLY,
        truncate: flags & libc::O_TRUNC != 0,
    }
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let is_first = self.shared.offered.set(config.capabilities()).is_ok();
        let offered = *self.shared.offered.get_or_init(InitFlags::empty);
        self.no_open &= offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.no_opendir &= offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        if !is_first {
            return Ok(());
        }
        let features = self.shared.features;
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | if features.lists_attributes { InitFlags::FUSE_DO_READDIRPLUS } else { InitFlags::empty() }
            | if self.shared.is_large() { InitFlags::FUSE_READDIRPLUS_AUTO } else { InitFlags::empty() }
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            // With this flag the kernel does not ask for a file's capabilities at each write.
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | if features.locks { InitFlags::FUSE_FLOCK_LOCKS } else { InitFlags::empty() }
            | if features.read_only { InitFlags::FUSE_NO_OPEN_SUPPORT } else { InitFlags::FUSE_ATOMIC_O_TRUNC };
        let wanted = match features.passes_on {
            None => wanted,
            // The umask and the lists that directories give to what is made in them are the affair of the file system below.
            Some(_) => wanted | InitFlags::FUSE_DONT_MASK,
        };
        let wanted = if features.lists { wanted | InitFlags::FUSE_POSIX_ACL } else { wanted };
        if features.passes_on.is_some() && offered.contains(InitFlags::FUSE_PASSTHROUGH) && config.set_max_stack_depth(1).is_ok()
        {
            let _ = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH);
            self.shared.backings.offer();
            if features.hears {
                let view = Arc::clone(&self.shared.view);
                self.shared.backings.hear_by(Box::new(move |ino| view.hear_of(ino)));
            }
        }
        // The kernel would ask for attributes at each read behind a write, and drop pages where they have changed, of frames' files too. Of
        // those it is told when others change them. It is told of others where few have pages, because the kernel reads most by itself.
        let looks = features.passes_on.is_some() && !self.shared.backings.hears();
        let wanted = if looks { wanted | InitFlags::FUSE_AUTO_INVAL_DATA } else { wanted };
        self.shared.expires.store(offered.contains(InitFlags::FUSE_HAS_EXPIRE_ONLY), Relaxed);
        let _ = config.add_capabilities(wanted & offered);
        if !offered.contains(wanted) {
            debug!("the kernel does not offer {:?}", wanted - offered);
        }
        let _ = config.set_max_write(MAX_WRITE);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.ask("lookup", req, parent, reply, move |shared, parent| {
            shared.view.lookup(parent, &name).map(|attr| shared.entry(&attr))
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let Some(_entered) = self.shared.enter() else { return };
        let altogether = self.shared.inodes.forgotten(Ino(ino.0), nlookup);
        self.shared.view.forget(Ino(ino.0), nlookup, altogether);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.ask("getattr", req, ino, reply, |shared, ino| Ok(shared.attr(&shared.view.getattr(ino)?)));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let bits = if self.shared.features.passes_on.is_some() { 0o7777 } else { 0o777 };
        let (mode, atime, mtime) = (mode.map(|mode| mode & bits), atime.map(time), mtime.map(time));
        let set = SetAttr { size, mode, uid, gid, atime, mtime, drop_privileges: req.uid() != 0, caller: (req.uid(), req.gid()) };
        let handle = fh.map(|fh| Handle(fh.0));
        let held = if size.is_some() { KernelLock::File(Ino(ino.0)) } else { KernelLock::Nothing };
        // Setting a length without a handle is handled as a write and a close.
        let whole = size.is_some() && fh.is_none();
        let op = Op { turns: whole, changes: whole, ..Op::change("setattr", ino, held) };
        self.perform(req, op, reply, move |shared, ino, invalidations| {
            shared.view.setattr(ino, handle, set, invalidations).map(|attr| shared.attr(&attr))
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        self.ask("readlink", req, ino, reply, |shared, ino| shared.view.readlink(ino).map(OsString::into_vec));
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let new = match kind(mode) {
            Kind::File => New::File,
            kind => New::Special(kind, rdev),
        };
        self.make(req, parent, name, (mode, umask), reply, new);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.make(req, parent, name, (mode, umask), reply, New::Directory);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let creation = creation(&self.shared.features, req, (0o777, 0));
        let (name, target) = (name.to_owned(), target.as_os_str().to_owned());
        self.perform(req, Op::change("symlink", parent, KernelLock::Directory), reply, move |shared, parent, invalidations| {
            let made = shared.view.make(parent, &name, New::Symlink(&target), creation, invalidations);
            made.map(|attr| shared.entry(&attr))
        });
    }

    fn link(&self, req: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.make(req, parent, name, (0, 0), reply, New::Link(Ino(ino.0)));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.perform(req, Op::change("rmdir", parent, KernelLock::Directory), reply, move |shared, parent, invalidations| {
            shared.view.rmdir(parent, &name, invalidations)
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.perform(req, Op::change("unlink", parent, KernelLock::Directory), reply, move |shared, parent, invalidations| {
            shared.view.unlink(parent, &name, invalidations)
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            _ if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (name, newname) = (name.to_owned(), newname.to_owned());
        let op = Op { turns: true, ..Op::change("rename", parent, KernelLock::Directory) };
        self.perform(req, op, reply, move |shared, parent, invalidations| {
            shared.view.rename((parent, &name), (Ino(newparent.0), &newname), mode, invalidations)
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        let (inode, mode) = (Ino(ino.0), open_mode(req, flags.0));
        let writable = !shared.features.read_only;
        if self.no_open {
            return reply.error(Errno::ENOSYS);
        }
        if writable && (mode.write || mode.truncate) {
            return shared.perform(Op::change("open", ino, KernelLock::File(inode)), reply, move |shared, ino, _| {
                if mode.write {
                    shared.notify.writer_came(ino);
                }
                let outcome = shared.view.open(ino, mode);
                if mode.write && outcome.is_err() {
                    shared.notify.writer_gone(ino);
                }
                Ok(shared.opened(ino, outcome?, mode))
            });
        }
        let client = req.pid();
        self.unless_far(shared, req, move |shared| {
            match shared.view.open(inode, mode) {
                Ok(file) => reply.send(Ok(shared.opened(inode, file, mode))),
                Err(refusal) => return reply.error(errno("open", inode, &refusal)),
            }
            if writable {
                shared.touched(client, inode, None);
            }
        });
    }

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, flags: i32, reply: ReplyCreate) {
        let open = open_mode(req, flags);
        let creation = creation(&self.shared.features, req, (mode, umask));
        let creation = Creation { exclusive: flags & libc::O_EXCL != 0, ..creation };
        let name = name.to_owned();
        self.perform(req, Op::change("create", parent, KernelLock::Nothing), reply, move |shared, parent, _| {
            let (attr, file) = shared.view.create(parent, &name, creation, open)?;
            if open.write {
                shared.notify.writer_came(attr.ino);
            }
            Ok((shared.entry(&attr), shared.opened(attr.ino, file, open)))
        });
    }

    #[expect(clippy::indexing_slicing, reason = "the buffer is taken with that length, and a view reads no more into it")]
    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        let ino = Ino(ino.0);
        let handle = (!self.no_open).then_some(Handle(fh.0));
        let len = (size as usize).min(MAX_READ);
        shared.reads.fetch_add(1, Relaxed);
        let client = req.pid();
        let reading = shared.reading(ino, offset, size.into(), origin(req));
        self.unless_far(shared, req, move |shared| {
            let mut buffer = shared.buffers.take(len);
            let mut outcome = shared.view.read(ino, handle, offset, &mut buffer[..len]);
            for _ in 0..READ_AGAIN {
                if !reading.is_overtaken() {
                    break;
                }
                outcome = shared.view.read(ino, handle, offset, &mut buffer[..len]);
            }
            match outcome {
                Ok(n) => reply.data(&buffer[..n]),
                Err(ViewError::Locked) => shared.read_waiting(reading, (ino, handle, offset), len, reply),
                Err(ViewError::Unsettled) => shared.read_later(LateRead { client, handle, offset, len, reply, reading }),
                Err(refusal) => {
                    reply.error(errno("read", ino, &refusal));
                    // A client whose kernel sends no OPEN must look the name up again.
                    if matches!(refusal, ViewError::Gone) && handle.is_none() {
                        let name = shared.view.last_name(ino).map(|(parent, name)| Invalidation::Entry(parent, name));
                        shared.notify.forget(name.into_iter().collect());
                    }
                }
            }
            shared.buffers.give_back(buffer);
            shared.touched(client, ino, Some((offset, size)));
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        let at = (offset, flags.0 & libc::O_APPEND != 0);
        let from = (origin(req), write_flags.contains(WriteFlags::FUSE_WRITE_CACHE));
        shared.write(ino, Handle(fh.0), at, data, from, reply);
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        if self.shared.features.read_only {
            return reply.error(Errno::ENOSYS);
        }
        self.perform(req, Op::settle("close", ino, KernelLock::Nothing), reply, move |shared, _, invalidations| {
            shared.view.flush(Handle(fh.0), invalidations)
        });
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        let (ino, handle, write) = (Ino(ino.0), Handle(fh.0), open_mode(req, flags.0).write);
        // The kernel names an owner only if the open file has asked for a lock. What was written under the lock is committed.
        let wait = match (write, owner) {
            (true, _) => shared.view.may_wait(ino),
            (false, Some(_)) => Wait::Disk,
            (false, None) => Wait::Never,
        };
        shared.run(wait, move |shared| {
            let mut invalidations = Invalidations::new();
            // The kernel has let it go by now; it may become a frame, which nothing backs.
            shared.backings.closed(ino);
            shared.view.release(handle, &mut invalidations);
            if write {
                shared.notify.writer_gone(ino);
            }
            match owner {
                Some(_) => shared.lock(ino, handle, None, Patience::OfClient(0), invalidations, reply),
                None => shared.notify.answer(invalidations, KernelLock::Nothing, move || reply.ok()),
            }
            // Readers change nothing, and there may be thousands.
            if write {
                shared.changed();
            }
        });
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _owner: LockOwner,
        _start: u64,
        _end: u64,
        typ: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        let lock = match typ {
            libc::F_RDLCK => Some(Flock::Shared),
            libc::F_WRLCK => Some(Flock::Exclusive),
            _ => None,
        };
        let patience = match lock {
            None => Patience::Moment,
            Some(_) if sleep => Patience::OfClient(req.pid()),
            Some(_) => Patience::None,
        };
        // The handle names the lock's owner: the kernel may reuse an owner's number before it releases this file.
        // What was written under the lock is committed.
        shared.run(Wait::Disk, move |shared| {
            shared.lock(Ino(ino.0), Handle(fh.0), lock, patience, Invalidations::new(), reply);
            shared.changed();
        });
    }

    /// The kernel sends ACCESS only on mounts without `default_permissions`. Their one user may do everything, except execute a file that
    /// nobody may execute. This is decided here because only this layer knows the permissions that the mount shows.
    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        self.unless_far(shared, req, move |shared| {
            match shared.view.getattr(Ino(ino.0)).map(|attr| shared.attr(&attr).attr.perm) {
                Ok(perm) if mask.contains(AccessFlags::X_OK) && perm & 0o111 == 0 => reply.error(Errno::EACCES),
                Ok(_) => reply.ok(),
                Err(refusal) => reply.error(errno("access", Ino(ino.0), &refusal)),
            }
        });
    }

    fn fsync(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.perform(req, Op::settle("fsync", ino, KernelLock::Nothing), reply, |shared, ino, invalidations| {
            shared.view.fsync(ino, invalidations)
        });
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.perform(req, Op::settle("fsync", ino, KernelLock::Directory), reply, |shared, ino, invalidations| {
            shared.view.fsync(ino, invalidations)
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(errno) = self.no_xattr(name) {
            return reply.error(errno);
        }
        let name = name.to_owned();
        self.ask("getxattr", req, ino, reply, move |shared, ino| Ok((size, shared.view.xattr(ino, &name)?)));
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        let pid = req.pid();
        self.ask("listxattr", req, ino, reply, move |shared, ino| {
            Ok((size, xattr::listed(shared.view.xattrs(ino)?, shared.features.lists, pid)))
        });
    }

    fn setxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        let mode = match (self.no_xattr(name), xattr::set_mode(flags)) {
            (None, Some(mode)) => mode,
            (Some(errno), _) => return reply.error(errno),
            (None, None) => return reply.error(Errno::EINVAL),
        };
        let (name, value) = (name.to_owned(), value.to_vec());
        // The kernel holds the inode, which may be the directory.
        let op = Op { turns: true, ..Op::change("setxattr", ino, KernelLock::Directory) };
        self.perform(req, op, reply, move |shared, ino, invalidations| shared.set_xattr(ino, &name, &value, mode, invalidations));
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if let Some(errno) = self.no_xattr(name) {
            return reply.error(errno);
        }
        let name = name.to_owned();
        let op = Op { turns: true, ..Op::change("setxattr", ino, KernelLock::Directory) };
        self.perform(req, op, reply, move |shared, ino, invalidations| shared.remove_xattr(ino, &name, invalidations));
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.no_opendir {
            return reply.error(Errno::ENOSYS);
        }
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        self.unless_far(shared, req, move |shared| {
            let ino = Ino(ino.0);
            let flags = match shared.view.caches_listing(ino) {
                true if shared.view.keeps_listing(ino) => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
                true => FopenFlags::FOPEN_CACHE_DIR,
                false => FopenFlags::empty(),
            };
            reply.opened(FileHandle(0), flags);
        });
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        self.unless_far(shared, req, move |shared| {
            match shared.names(Ino(ino.0), offset, |ino, cookie, kind, name| reply.add(ino, cookie, kind, name)) {
                Ok(()) => reply.ok(),
                Err(refusal) => reply.error(errno("readdir", Ino(ino.0), &refusal)),
            }
        });
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        self.unless_far(shared, req, move |shared| {
            let _making = shared.replies.begin();
            match shared.readdirplus(Ino(ino.0), offset, &mut reply) {
                Ok(()) => reply.ok(),
                Err(refusal) => reply.error(errno("readdir", Ino(ino.0), &refusal)),
            }
        });
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.ask("statfs", req, ino, reply, |shared, _| shared.view.statfs());
    }

    fn ioctl(
        &self,
        req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let Some((shared, _entered)) = self.enter(req) else { return reply.error(Errno::ENODEV) };
        if cmd != unmount::IOCTL {
            return reply.error(Errno::ENOTTY);
        }
        if req.uid() != 0 && req.uid() != rustix::process::geteuid().as_raw() {
            return reply.error(Errno::EPERM);
        }
        shared.asked(in_data, reply);
    }

    fn fallocate(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, len: u64, flags: i32, reply: ReplyEmpty) {
        if self.shared.features.passes_on.is_none() {
            return reply.error(Errno::ENOSYS);
        }
        self.perform(req, Op::change("fallocate", ino, KernelLock::Nothing), reply, move |shared, _, _| {
            shared.view.allocate(Handle(fh.0), offset, len, flags)
        });
    }

    fn lseek(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let seek = match (whence, u64::try_from(offset)) {
            _ if self.shared.features.passes_on.is_none() && !self.shared.features.holes => return reply.error(Errno::ENOSYS),
            (libc::SEEK_DATA, Ok(offset)) => (offset, Seek::Data),
            (libc::SEEK_HOLE, Ok(offset)) => (offset, Seek::Hole),
            _ => return reply.error(Errno::EINVAL),
        };
        self.ask("lseek", req, ino, reply, move |shared, ino| shared.view.seek(ino, Handle(fh.0), seek.0, seek.1));
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        if self.shared.features.passes_on.is_none() {
            return reply.error(Errno::ENOSYS);
        }
        self.perform(req, Op::change("copy", ino_out, KernelLock::Nothing), reply, move |shared, _, _| {
            // The answer has 32 bits.
            let copied =
                shared.view.copy_range((Handle(fh_in.0), offset_in), (Handle(fh_out.0), offset_out), len.min(1 << 30))?;
            Ok(copied as u32)
        });
    }

    // fuser fails all other requests with ENOSYS: bmap, poll; of a file system that passes nothing on also these three. The kernel handles the locks of
    // fcntl(2) itself. fuser's messages about them are logged with `-vv`.
}
