//! Names the processes that keep a mount from being unmounted.

use std::path::Path;

use crate::fs::kernel;
use crate::store::local::{UsingProcess, holders};

/// Processes that are named.
const NAMED: usize = 5;

/// Why what is mounted at a path, which has no symbolic links, is busy, in words.
pub(super) fn reason(point: &Path) -> String {
    let below = |mount: &kernel::MountInfo| mount.point != point && mount.point.starts_with(point);
    if let Some(mount) = kernel::mounts().ok().and_then(|mounts| mounts.into_iter().rev().find(below)) {
        return format!("is busy: something is mounted on {}", mount.point.display());
    }
    let holders = holders(point);
    if holders.is_empty() {
        return "is busy: some process has a file open there, or works in it".into();
    }
    let mut names: Vec<_> = holders.iter().take(NAMED).map(|UsingProcess { pid, name }| format!("{name} ({pid})")).collect();
    match holders.len() - names.len() {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    let names = match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    };
    let (have, work) = if holders.len() == 1 { ("has", "works") } else { ("have", "work") };
    format!("is busy: {names} {have} a file open there, or {work} in it")
}
