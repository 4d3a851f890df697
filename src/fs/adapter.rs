//! FUSE requests to calls of a [`View`]: unpacks, calls, replies, and decides nothing about frames.
//!
//! Attributes and names are cached by the kernel for good; what a view makes untrue is told through [`Notify`]. Names that
//! are not there are not cached at all. Permissions are the kernel's affair (`default_permissions`), unless the one user of a mount
//! does without: ACCESS comes here then, from access(2) and chdir(2) only.
//! Locks of both kinds work inside the kernel, unless the view has a lock file: then those of flock(2) come here, and wait
//! on threads of their own, as does everything that may have to wait until other processes give their locks back. What may have to wait
//! for the disk never keeps the last event loop.
//!
//! A read-only mount answers ENOSYS to OPEN and FLUSH as well, after which the kernel sends no more of either, and RELEASE
//! neither: reading then runs at the page cache's own speed. A mount for writing needs both, as its close has something to say.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileHandle, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use log::debug;
use parking_lot::RwLockReadGuard;

use super::notify::Held;
use super::shared::{FOREVER, GENERATION, Shared, empty, errno};
use super::spin::Turn;
use super::waiting::Wait;
use super::{unmount, xattr};
use crate::view::{Creation, Flock, Handle, Ino, Inval, Invals, Kind, OpenMode, ROOT, RenameMode, SetAttr, ViewError};

/// The longest WRITE that the kernel may send, in bytes.
const MAX_WRITE: u32 = 1 << 20;
/// The longest READ that is answered in one piece, in bytes; the kernel asks for [`MAX_WRITE`] at most.
const MAX_READ: usize = 16 << 20;

thread_local! {
    /// Where an event loop reads into: a fresh buffer for each READ costs up to a quarter of the time.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The file system that fuser calls.
pub(super) struct Adapter {
    shared: Arc<Shared>,
    /// Where requests come from.
    device: File,
    read_only: bool,
    /// The view is told of the handles that are open.
    handles: bool,
    /// The kernel can do without OPEN, if told ENOSYS.
    no_open: bool,
    /// The kernel can do without OPENDIR, if told ENOSYS, and caches listings then.
    no_opendir: bool,
    /// Whether there are extended attributes.
    xattrs: bool,
}

impl Adapter {
    /// A mount that fusermount3 is to unmount if we die must not do without OPENDIR: by opening the mount point it finds out.
    pub(super) fn new(shared: Arc<Shared>, device: File, auto_unmount: bool, xattrs: bool) -> Self {
        let read_only = shared.view.read_only();
        let on_file = shared.view.getattr(ROOT).is_ok_and(|root| root.kind == Kind::File);
        // Without OPEN there is no RELEASE, which gives locks back.
        // And where the mount point is the file, only handles tell older versions of it from newer ones.
        let handles = !read_only || on_file || shared.lock_file.is_some();
        Adapter { no_open: !handles, no_opendir: !auto_unmount, read_only, handles, xattrs, device, shared }
    }
}

fn time(time: TimeOrNow) -> SystemTime {
    match time {
        // Before 1970, fuser takes the nanoseconds off where they are to be added.
        TimeOrNow::SpecificTime(time) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(_) => time,
            Err(before) => time + 2 * Duration::from_nanos(before.duration().subsec_nanos().into()),
        },
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn open_mode(flags: i32) -> OpenMode {
    let access = OpenFlags(flags).acc_mode();
    OpenMode {
        read: access != OpenAccMode::O_WRONLY,
        write: access != OpenAccMode::O_RDONLY,
        truncate: flags & libc::O_TRUNC != 0,
    }
}

/// Binds the shared state for one request, or answers it: after the end there is no device any more.
macro_rules! enter {
    ($self:ident, $req:ident, $reply:ident) => {{
        let Some(entered) = $self.shared.enter() else { return $reply.error(Errno::ENODEV) };
        $self.shared.awake.asked();
        (&$self.shared, Entered { _open: entered, _turn: $self.shared.spin.turn($req.pid()) })
    }};
}

/// Held while a request is answered. The fields are dropped in their order.
struct Entered<'a> {
    _open: RwLockReadGuard<'a, bool>,
    _turn: Turn<'a>,
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let mut wanted = vec![
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Whether attributes come with the names is for us to choose: see `listing`.
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            // With this, no file is asked for its capabilities at each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        if self.shared.lock_file.is_some() {
            wanted.push(InitFlags::FUSE_FLOCK_LOCKS);
        }
        wanted.push(if self.read_only { InitFlags::FUSE_NO_OPEN_SUPPORT } else { InitFlags::FUSE_ATOMIC_O_TRUNC });
        for flags in wanted {
            if config.add_capabilities(flags).is_err() {
                debug!("the kernel does not offer {flags:?}");
            }
        }
        self.no_open &= offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.no_opendir &= offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        let _ = config.set_max_write(MAX_WRITE);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (shared, _entered) = enter!(self, req, reply);
        match shared.view.lookup(Ino(parent.0), name) {
            Ok(attr) => {
                shared.lists.looked_up();
                shared.inodes.looked_up(attr.ino);
                reply.entry(&FOREVER, &shared.attr(&attr), GENERATION);
            }
            Err(refusal) => reply.error(errno("lookup", Ino(parent.0), &refusal)),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let Some(_entered) = self.shared.enter() else { return };
        if self.shared.inodes.forgotten(Ino(ino.0), nlookup) {
            self.shared.view.forget(Ino(ino.0));
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let (shared, _entered) = enter!(self, req, reply);
        match shared.view.getattr(Ino(ino.0)) {
            Ok(attr) => reply.attr(&FOREVER, &shared.attr(&attr)),
            Err(refusal) => reply.error(errno("getattr", Ino(ino.0), &refusal)),
        }
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
        let (shared, _entered) = enter!(self, req, reply);
        let ino = Ino(ino.0);
        let set = SetAttr { size, mode: mode.map(|mode| mode & 0o777), uid, gid, atime: atime.map(time), mtime: mtime.map(time) };
        let work = move |shared: &Arc<Shared>| {
            let mut invals = Invals::new();
            let outcome = shared.view.setattr(ino, fh.map(|fh| Handle(fh.0)), set, &mut invals);
            let outcome = outcome.map(|attr| shared.attr(&attr)).map_err(|refusal| errno("setattr", ino, &refusal));
            let answer = move || match outcome {
                Ok(attr) => reply.attr(&FOREVER, &attr),
                Err(errno) => reply.error(errno),
            };
            if size.is_some() {
                shared.notify.answer_writer(ino, answer);
                shared.notify.forget(invals);
            } else {
                shared.notify.answer(invals, Held::Nothing, answer);
            }
            shared.changed();
        };
        // A length that is set without a handle is a write and a close.
        if size.is_some() && fh.is_none() { shared.change_patiently(work) } else { work(shared) }
    }

    fn readlink(&self, _req: &Request, _ino: INodeNo, reply: ReplyData) {
        reply.error(Errno::EINVAL);
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, _rdev: u32, reply: ReplyEntry) {
        let (shared, _entered) = enter!(self, req, reply);
        if mode & libc::S_IFMT != libc::S_IFREG {
            return reply.error(Errno::EPERM);
        }
        let creation = Creation { uid: req.uid(), gid: req.gid(), mode: mode & 0o777, exclusive: true };
        let open = OpenMode { write: true, ..OpenMode::default() };
        let name = name.to_owned();
        shared.change(move |shared, _change| match shared.view.create(Ino(parent.0), &name, creation, open) {
            Ok((attr, handle)) => {
                let mut invals = Invals::new();
                shared.view.release(handle, &mut invals);
                shared.inodes.looked_up(attr.ino);
                let attr = shared.attr(&attr);
                shared.notify.answer(invals, Held::Directory, move || reply.entry(&FOREVER, &attr, GENERATION));
                shared.changed();
            }
            Err(refusal) => reply.error(errno("mknod", Ino(parent.0), &refusal)),
        });
    }

    fn mkdir(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn symlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn link(&self, _req: &Request, _ino: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (shared, _entered) = enter!(self, req, reply);
        let name = name.to_owned();
        shared.change(move |shared, _change| {
            let mut invals = Invals::new();
            let outcome = shared.view.unlink(Ino(parent.0), &name, &mut invals);
            let outcome = outcome.map_err(|refusal| errno("unlink", Ino(parent.0), &refusal));
            shared.notify.answer(invals, Held::Directory, move || empty(reply, outcome));
            shared.changed();
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
        let (shared, _entered) = enter!(self, req, reply);
        let mode = if flags.is_empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (name, newname) = (name.to_owned(), newname.to_owned());
        shared.change_patiently(move |shared| {
            let mut invals = Invals::new();
            let outcome = shared.view.rename((Ino(parent.0), &name), (Ino(newparent.0), &newname), mode, &mut invals);
            let outcome = outcome.map_err(|refusal| errno("rename", Ino(parent.0), &refusal));
            shared.notify.answer(invals, Held::Directory, move || empty(reply, outcome));
            shared.changed();
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (shared, _entered) = enter!(self, req, reply);
        let (ino, mode) = (Ino(ino.0), open_mode(flags.0));
        if self.read_only {
            if self.no_open {
                return reply.error(Errno::ENOSYS);
            }
            // The view wants no handles for reading, but locks do, and versions of a file that is the mount point.
            let handle = if self.handles { shared.view.open(ino, mode) } else { Ok(Handle(0)) };
            return match handle {
                Ok(handle) => reply.opened(FileHandle(handle.0), shared.open_flags(ino, mode)),
                Err(refusal) => reply.error(errno("open", ino, &refusal)),
            };
        }
        if mode.write || mode.truncate {
            return shared.change(move |shared, _change| shared.open_to_change(ino, mode, reply));
        }
        match shared.view.open(ino, mode) {
            Ok(handle) => reply.opened(FileHandle(handle.0), shared.open_flags(ino, mode)),
            Err(refusal) => return reply.error(errno("open", ino, &refusal)),
        }
        shared.notify_push(ino, false, |view, streams| streams.opened(view, req.pid(), ino));
    }

    fn create(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, flags: i32, reply: ReplyCreate) {
        let (shared, _entered) = enter!(self, req, reply);
        let open = open_mode(flags);
        let exclusive = flags & libc::O_EXCL != 0;
        let creation = Creation { uid: req.uid(), gid: req.gid(), mode: mode & 0o777, exclusive };
        let name = name.to_owned();
        shared.change(move |shared, _change| match shared.view.create(Ino(parent.0), &name, creation, open) {
            Ok((attr, handle)) => {
                if open.write {
                    shared.notify.writer_came(attr.ino);
                }
                shared.inodes.looked_up(attr.ino);
                reply.created(&FOREVER, &shared.attr(&attr), GENERATION, FileHandle(handle.0), shared.open_flags(attr.ino, open));
                shared.changed();
            }
            Err(refusal) => reply.error(errno("create", Ino(parent.0), &refusal)),
        });
    }

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
        let (shared, _entered) = enter!(self, req, reply);
        let ino = Ino(ino.0);
        let handle = self.handles.then_some(Handle(fh.0));
        let len = (size as usize).min(MAX_READ);
        shared.reads.fetch_add(1, Relaxed);
        BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            match shared.view.read(ino, handle, offset, &mut buffer[..len]) {
                Ok(n) => reply.data(&buffer[..n]),
                Err(ViewError::Locked) => shared.read_patiently(ino, handle, offset, len, reply),
                Err(refusal) => {
                    reply.error(errno("read", ino, &refusal));
                    // Who opens a file without asking must look its name up anew.
                    if matches!(refusal, ViewError::Gone) && self.no_open {
                        shared
                            .notify
                            .forget(shared.view.last_name(ino).map(|name| Inval::Entry(ROOT, name)).into_iter().collect());
                    }
                }
            }
        });
        shared.notify_push(ino, offset == 0, |view, streams| streams.read(view, req.pid(), ino, offset, size));
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (shared, _entered) = enter!(self, req, reply);
        match shared.view.write(Handle(fh.0), offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(refusal) => reply.error(errno("write", Ino(ino.0), &refusal)),
        }
        shared.changed();
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        let (shared, _entered) = enter!(self, req, reply);
        if self.read_only {
            return reply.error(Errno::ENOSYS);
        }
        shared.patiently(move |shared| {
            let mut invals = Invals::new();
            let outcome = shared.view.flush(Handle(fh.0), &mut invals);
            let outcome = outcome.map_err(|refusal| errno("close", Ino(ino.0), &refusal));
            shared.notify.answer(invals, Held::Nothing, move || empty(reply, outcome));
            shared.changed();
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
        let (shared, _entered) = enter!(self, req, reply);
        let (ino, handles, write) = (Ino(ino.0), self.handles, open_mode(flags.0).write);
        let work = move |shared: &Arc<Shared>| {
            let mut invals = Invals::new();
            if handles {
                shared.view.release(Handle(fh.0), &mut invals);
            }
            if write {
                shared.notify.writer_gone(ino);
            }
            // Only for an open file that has asked for a lock an owner is named.
            match owner {
                Some(_) => shared.lock(ino, Handle(fh.0), None, Wait::Aside(0), invals, reply),
                None => shared.notify.answer(invals, Held::Nothing, move || reply.ok()),
            }
            // Readers come and go by the thousand, and change nothing.
            if write {
                shared.changed();
            }
        };
        match owner {
            _ if write && shared.lock_file != Some(ino) => shared.patiently(work),
            Some(_) => shared.aside(work),
            None => work(shared),
        }
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
        let (shared, _entered) = enter!(self, req, reply);
        let lock = match typ {
            libc::F_RDLCK => Some(Flock::Shared),
            libc::F_WRLCK => Some(Flock::Exclusive),
            _ => None,
        };
        let wait = match lock {
            None => Wait::Here,
            Some(_) if sleep => Wait::Aside(req.pid()),
            Some(_) => Wait::No,
        };
        // By the handle: the kernel may name another file's owner the same before it has released this one's.
        // What was written under the lock before is committed.
        shared.aside(move |shared| {
            shared.lock(Ino(ino.0), Handle(fh.0), lock, wait, Invals::new(), reply);
            shared.changed();
        });
    }

    /// Asked of mounts without `default_permissions` only, whose one user may do everything but execute what nobody may.
    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (shared, _entered) = enter!(self, req, reply);
        match shared.view.getattr(Ino(ino.0)).map(|attr| shared.attr(&attr).perm) {
            Ok(perm) if mask.contains(AccessFlags::X_OK) && perm & 0o111 == 0 => reply.error(Errno::EACCES),
            Ok(_) => reply.ok(),
            Err(refusal) => reply.error(errno("access", Ino(ino.0), &refusal)),
        }
    }

    fn fsync(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let (shared, _entered) = enter!(self, req, reply);
        shared.patiently(move |shared| shared.fsync(Ino(ino.0), Held::Nothing, reply));
    }

    fn fsyncdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let (shared, _entered) = enter!(self, req, reply);
        shared.patiently(move |shared| shared.fsync(Ino(ino.0), Held::Directory, reply));
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        match (self.xattrs, xattr::is_ours(name)) {
            (true, true) => {}
            (true, false) => return reply.error(Errno::EOPNOTSUPP),
            (false, _) => return reply.error(Errno::ENOSYS),
        }
        let (shared, _entered) = enter!(self, req, reply);
        xattr::answer("getxattr", Ino(ino.0), size, shared.view.xattr(Ino(ino.0), name), reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let (shared, _entered) = enter!(self, req, reply);
        if !self.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        xattr::answer("listxattr", Ino(ino.0), size, shared.view.xattrs(Ino(ino.0)), reply);
    }

    fn setxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _position: u32, reply: ReplyEmpty) {
        let (shared, _entered) = enter!(self, req, reply);
        match xattr::set_mode(flags) {
            _ if !self.xattrs => reply.error(Errno::ENOSYS),
            Some(mode) => shared.set_xattr(Ino(ino.0), name, value, mode, reply),
            None => reply.error(Errno::EINVAL),
        }
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (shared, _entered) = enter!(self, req, reply);
        if !self.xattrs {
            return reply.error(Errno::ENOSYS);
        }
        shared.remove_xattr(req.pid(), Ino(ino.0), name, reply);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if self.no_opendir {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let (shared, _entered) = enter!(self, req, reply);
        match shared.names(Ino(ino.0), offset, |ino, cookie, kind, name| reply.add(ino, cookie, kind, name)) {
            Ok(()) => reply.ok(),
            Err(refusal) => reply.error(errno("readdir", Ino(ino.0), &refusal)),
        }
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let (shared, _entered) = enter!(self, req, reply);
        if shared.wants_names(offset) {
            return shared.list_names(&self.device, req.unique().0, Ino(ino.0), offset, reply);
        }
        match shared.readdirplus(Ino(ino.0), offset, &mut reply) {
            Ok(goes_on) => {
                reply.ok();
                if let Some(goes_on) = goes_on {
                    shared.list_on(Ino(ino.0), &goes_on);
                }
            }
            Err(refusal) => reply.error(errno("readdir", Ino(ino.0), &refusal)),
        }
    }

    fn statfs(&self, req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let (shared, _entered) = enter!(self, req, reply);
        match shared.view.statfs() {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(refusal) => reply.error(errno("statfs", None, &refusal)),
        }
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
        let (shared, _entered) = enter!(self, req, reply);
        if cmd != unmount::IOCTL {
            return reply.error(Errno::ENOTTY);
        }
        if req.uid() != 0 && req.uid() != rustix::process::geteuid().as_raw() {
            return reply.error(Errno::EPERM);
        }
        shared.asked(in_data, reply);
    }

    // Everything else is answered ENOSYS by fuser, and the kernel does without: no fallocate, lseek, bmap, poll,
    // copy_file_range; locks of fcntl(2) stay inside it. What fuser logs about it goes to `-vv`.
}
