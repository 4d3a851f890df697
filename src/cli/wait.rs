//! Waiting for a daemon that is ending: what was unmounted a moment ago can be mounted again.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Failure;
use crate::fs::kernel::{self, FS_TYPE};
use crate::store::StoreError;
use crate::store::mark::{Life, LockHolder};
use crate::view::ViewError;

/// How long a daemon that is ending is waited for, unless told otherwise.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// After so long it is said that somebody is waited for; and so long is waited for what may be over in a moment.
const SOON: Duration = Duration::from_secs(1);
/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Where whoever has SOURCE stands.
enum Stand {
    /// It is mounted there.
    Mounted(PathBuf),
    /// There is a mount of that number, there or where it cannot be seen. The number of a mount that is gone is given again, and its
    /// daemon may not know yet.
    Perhaps(Option<PathBuf>),
    Ending,
    /// A mount that has just begun or that ended just now, or a program that rewrites it.
    Unknown,
}

/// Opens SOURCE for writing, when the daemon that has it has ended. `say` is told of waiting for longer than a moment. `instead` is
/// what the user can do instead of unmounting, if there is anything, in words for the end of the line.
///
/// # Errors
/// A daemon that goes on, with where it has mounted it; one that has not ended after `patience`; all others as `failed` has them.
pub(super) fn until_released<T>(
    patience: Duration,
    instead: &str,
    mut say: impl FnMut(&str),
    failed: impl FnOnce(ViewError) -> Failure,
    mut open: impl FnMut() -> Result<T, ViewError>,
) -> Result<T, Failure> {
    let began = Instant::now();
    let mut said = false;
    loop {
        let (path, holder) = match open() {
            Err(ViewError::Store(StoreError::Busy { path, holder })) => (path, holder),
            other => return other.map_err(failed),
        };
        let stand = stand(&path, &holder);
        let waited = began.elapsed();
        let enough = match stand {
            Stand::Mounted(_) => true,
            Stand::Perhaps(_) | Stand::Unknown => waited >= patience.min(SOON),
            Stand::Ending => waited >= patience,
        };
        if enough {
            return Err(busy(&path, &holder, stand, waited, instead));
        }
        if waited >= SOON && !std::mem::replace(&mut said, true) {
            say(&Failure::new(&path, format_args!("was unmounted just now; waiting until it is released{}", by(&holder))).0);
        }
        sleep(PAUSE);
    }
}

fn by(holder: &LockHolder) -> String {
    holder.process.map_or_else(String::new, |process| format!(" by process {process}"))
}

fn busy(path: &Path, holder: &LockHolder, stand: Stand, waited: Duration, instead: &str) -> Failure {
    let by = by(holder);
    let what = match stand {
        Stand::Mounted(point) | Stand::Perhaps(Some(point)) => {
            format!("is mounted for writing already{by}, on {}", point.display())
        }
        Stand::Perhaps(None) => format!("is mounted for writing already{by}, detached or in another namespace"),
        Stand::Unknown => format!("is mounted for writing already{by}, or being rewritten"),
        Stand::Ending => {
            return Failure::new(path, format_args!("was unmounted, but not released{by} within {} s", waited.as_secs()));
        }
    };
    Failure::new(path, format_args!("{what}; unmount it first{instead}"))
}

fn stand(path: &Path, holder: &LockHolder) -> Stand {
    let number = match holder.says {
        Some((Life::Ending, _)) => return Stand::Ending,
        Some((Life::Serving, number)) => number,
        None => return Stand::Unknown,
    };
    let mounts = kernel::mounts().unwrap_or_default();
    let mount = mounts.into_iter().rev().find(|mount| mount.device_number() == Some(number) && mount.fs_type == FS_TYPE);
    match mount {
        Some(mount) if std::path::absolute(path).is_ok_and(|path| path == Path::new(&mount.source)) => {
            Stand::Mounted(mount.point)
        }
        Some(mount) => Stand::Perhaps(Some(mount.point)),
        // The daemon may not have noticed yet.
        None => match kernel::is_alive(number) {
            Some(true) => Stand::Perhaps(None),
            Some(false) => Stand::Ending,
            None => Stand::Unknown,
        },
    }
}
