//! Turns each request into a call of the file system, and the result or the error into a reply.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use fuser::{
    Errno, FopenFlags, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr,
};
use log::{debug, error, warn};

use super::backings::Backed;
use super::notify::KernelLock;
use super::reads::Origin;
use super::shared::{GENERATION, OpenReply, Shared, Shown};
use super::xattr;
use crate::format::plain::plain;
use crate::store::{FsSpace, StoreError};
use crate::view::{Handle, Ino, Invalidations, Result, ViewError, Wait};

/// A path of more names is not told whole.
const DEEPEST: usize = 64;

/// A reply with a value or with an error.
pub(super) trait Reply: Send + 'static {
    type Value: Send + 'static;

    fn send(self, outcome: std::result::Result<Self::Value, Errno>);
}

macro_rules! replies {
    ($($reply:ty, $value:ty => $send:expr;)*) => {$(
        impl Reply for $reply {
            type Value = $value;

            fn send(self, outcome: std::result::Result<$value, Errno>) {
                let send: fn(Self, $value) = $send;
                match outcome {
                    Ok(value) => send(self, value),
                    Err(errno) => self.error(errno),
                }
            }
        }
    )*};
}

replies! {
    ReplyEmpty, () => |reply, ()| reply.ok();
    ReplyAttr, Shown => |reply, Shown { attr, valid }| reply.attr(&valid.attr, &attr);
    ReplyEntry, Shown => |reply, Shown { attr, valid }| reply.entry_with_ttls(&valid.attr, &valid.entry, &attr, GENERATION);
    ReplyOpen, OpenReply => |reply, OpenReply { ino, handle, flags, backing }| {
        match backing.map(|(file, backings)| backings.opened(ino, file, |file| reply.open_backing(file))) {
            Some(Backed::File(backing)) => reply.opened_passthrough(handle, flags, &backing),
            Some(Backed::Unheard) => reply.opened(handle, flags | FopenFlags::FOPEN_DIRECT_IO),
            Some(Backed::Pages) | None => reply.opened(handle, flags),
        }
    };
    ReplyCreate, (Shown, OpenReply) => |reply, (Shown { attr, valid }, OpenReply { ino, handle, flags, backing })| {
        let valid = valid.entry.min(valid.attr);
        match backing.map(|(file, backings)| backings.opened(ino, file, |file| reply.open_backing(file))) {
            Some(Backed::File(backing)) => reply.created_passthrough(&valid, &attr, GENERATION, handle, flags, &backing),
            Some(Backed::Unheard) => reply.created(&valid, &attr, GENERATION, handle, flags | FopenFlags::FOPEN_DIRECT_IO),
            Some(Backed::Pages) | None => reply.created(&valid, &attr, GENERATION, handle, flags),
        }
    };
    ReplyData, Vec<u8> => |reply, bytes| reply.data(&bytes);
    ReplyWrite, u32 => ReplyWrite::written;
    ReplyLseek, u64 => |reply, offset| reply.offset(offset.cast_signed());
    ReplyXattr, (u32, Vec<u8>) => |reply, (size, bytes)| xattr::reply(reply, size, &bytes);
    ReplyStatfs, FsSpace => |reply, s| {
        let (bsize, namemax, frsize) = (s.io_size as u32, s.name_max as u32, s.block_size as u32);
        reply.statfs(s.blocks, s.free, s.available, s.files, s.free_files, bsize, namemax, frsize);
    };
}

/// The one place where an error becomes an errno. Errors are logged if a client cannot know the reason, and
/// nothing else has logged it.
pub(super) fn errno(what: &str, ino: Ino, refusal: &ViewError) -> Errno {
    let ino = ino.0;
    match refusal {
        ViewError::Store(StoreError::Lost { .. }) => debug!("{what}: {refusal}"),
        ViewError::Store(_) => error!("{what}: {refusal}"),
        ViewError::Rejected(_) => warn!("{what} of inode {ino}: {refusal}"), // what changes something says it with the path
        _ => debug!("{what} of inode {ino}: {refusal}"),
    }
    Errno::from_i32(refusal.errno())
}

/// Asks the file system for what is to be answered.
pub(super) trait Ask<R: Reply>: FnOnce(&Shared, Ino) -> Result<R::Value> {}
impl<R: Reply, F: FnOnce(&Shared, Ino) -> Result<R::Value>> Ask<R> for F {}

/// Has the file system do what an operation is for.
pub(super) trait Call<R: Reply>: FnOnce(&Shared, Ino, &mut Invalidations) -> Result<R::Value> {}
impl<R: Reply, F: FnOnce(&Shared, Ino, &mut Invalidations) -> Result<R::Value>> Call<R> for F {}

/// An operation that changes something, or makes a change take effect.
#[derive(Clone, Copy)]
pub(super) struct Op {
    /// As messages call it.
    pub(super) what: &'static str,
    pub(super) ino: Ino,
    pub(super) held: KernelLock,
    /// It may have to wait as [`FileSystem::may_wait`](crate::view::FileSystem::may_wait) says, and not for the disk alone.
    pub(super) turns: bool,
    /// It changes what the mount shows, so it waits while an unmount is being tried.
    pub(super) changes: bool,
}

impl Op {
    pub(super) fn change(what: &'static str, ino: INodeNo, held: KernelLock) -> Self {
        Op { what, ino: Ino(ino.0), held, turns: false, changes: true }
    }

    /// Completes earlier changes: a close, an fsync.
    pub(super) fn settle(what: &'static str, ino: INodeNo, held: KernelLock) -> Self {
        Op { turns: true, changes: false, ..Op::change(what, ino, held) }
    }
}

impl Shared {
    /// Carries out an operation when the executor allows it to wait, and replies.
    pub(super) fn perform<R: Reply>(self: &Arc<Self>, op: Op, reply: R, call: impl Call<R> + Send + 'static) {
        self.unless_sealed(op.changes, move |shared, change| {
            let wait = if op.turns { shared.view.may_wait(op.ino) } else { Wait::Disk };
            shared.run(wait, move |shared| {
                shared.answer(op, reply, call);
                drop(change);
            });
        });
    }

    /// The path of a file in the mount, for messages; its number where it has none any more.
    fn called(&self, ino: Ino) -> PathBuf {
        let mut names: Vec<OsString> = Vec::new();
        let mut at = ino;
        while let Some((parent, name)) = self.view.last_name(at).filter(|_| names.len() < DEEPEST) {
            names.push(name);
            at = parent;
        }
        if names.is_empty() { PathBuf::from(format!("inode {}", ino.0)) } else { names.iter().rev().collect() }
    }

    /// Replies once the kernel has dropped what `call` made out of date, as far as that can be awaited.
    pub(super) fn answer<R: Reply>(&self, op: Op, reply: R, call: impl Call<R>) {
        let mut invalidations = Invalidations::new();
        let outcome = call(self, op.ino, &mut invalidations).map_err(|refusal| {
            if matches!(refusal, ViewError::NotPermitted) && self.features.passes_on.is_none() {
                self.say_what_makes_frames();
            }
            if matches!(refusal, ViewError::Rejected(_)) {
                warn!("{}: {}: {refusal}", plain(&self.called(op.ino)), op.what);
                return Errno::from_i32(refusal.errno());
            }
            errno(op.what, op.ino, &refusal)
        });
        self.notify.answer(invalidations, op.held, move || reply.send(outcome));
        self.changed();
    }

    /// Writes and replies. `from_mapping` says that the data was changed through a mapping. If the request is queued, its data is copied
    /// from the event loop's buffer.
    pub(super) fn write(
        self: &Arc<Self>,
        ino: INodeNo,
        handle: Handle,
        (offset, append): (u64, bool),
        data: &[u8],
        (origin, from_mapping): (Origin, bool),
        reply: ReplyWrite,
    ) {
        let op = Op::change("write", ino, KernelLock::Nothing);
        let write = move |shared: &Shared, data: &[u8]| {
            let written = match append {
                true => shared.view.append(handle, offset, data),
                false => shared.view.write(handle, offset, data),
            };
            shared.notify.written(Ino(ino.0), (offset, data.len() as u64), origin, from_mapping);
            written.map(|()| data.len() as u32)
        };
        let mut reply = Some(reply);
        self.try_run(Wait::Disk, |shared| {
            if let Some(reply) = reply.take() {
                shared.answer(op, reply, |shared, _, _| write(shared, data));
            }
        });
        if let Some(reply) = reply {
            let data = data.to_vec();
            self.run(Wait::Disk, move |shared| shared.answer(op, reply, move |shared, _, _| write(shared, &data)));
        }
    }
}
