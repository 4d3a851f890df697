//! A mount of a frame in an object store or on a web server, or of a prefix with frames beneath it: read-only, and opened by the daemon, as
//! no request is made before it is there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::super::Failure;
use super::super::options::{Options, TreeOptions, parse_disk_cache};
use super::point::{self, Fits};
use crate::fs::kernel;
use crate::store::in_words;
use crate::store::remote::{Access, Address};
use crate::view::{Decoded, Rules, Show, Timeouts};

/// Bytes of memory for what was fetched, where nothing else is asked for.
pub(super) const CACHE_SIZE: u64 = 96 << 20;
/// Event loops: each may wait for the store.
pub(super) const THREADS: usize = 32;

/// What is known of it before it is opened.
pub(super) struct RemotePlan {
    pub(super) address: Address,
    pub(super) access: Access,
    /// What is shown. Without, the default of a remote frame: its chunks as files.
    pub(super) show: Option<Show>,
    pub(super) decoded: Option<Decoded>,
    /// What is shown if it is a prefix with frames beneath it, and whether the options are for such a one.
    pub(super) rules: Rules,
    pub(super) is_tree_wanted: bool,
    pub(super) on_file: bool,
    /// Where chunks are kept for later mounts, and how many bytes of them.
    pub(super) disk_cache: Option<(PathBuf, Option<u64>)>,
}

impl RemotePlan {
    /// And the mount point without symbolic links.
    pub(super) fn new(
        address: Address,
        point: &Path,
        options: &Options,
        access: Access,
        show: Option<Show>,
    ) -> Result<(Self, PathBuf), Failure> {
        let source = PathBuf::from(address.to_string());
        let is_tree_wanted = options.tree != TreeOptions::default();
        let mut rules = super::tree::rules(&source, options, (false, false), show, true)?;
        // What others change is seen no later than that.
        let Timeouts { entry, attr } = &mut rules.timeouts;
        (*entry, *attr) = ((*entry).min(access.refresh), (*attr).min(access.refresh));
        let is_one_file = show.is_some_and(|show| show != Show::Sparse);
        let (point, on_file) = point::check(point, Fits::one_file(is_one_file), None)?;
        if on_file && options.access == kernel::Access::Root {
            return Err(Failure::new(
                &point,
                "is a file, whose size and times everybody sees; expected a directory for allow_root",
            ));
        }
        let decoded = match show {
            Some(Show::Npy) => Some(Decoded::Npy(options.dtype.clone())),
            Some(Show::Raw) => Some(Decoded::Raw),
            _ => None,
        };
        let disk_cache = options.disk_cache.as_deref().map(|text| kept_in(text).map_err(|what| Failure::new(&source, what)));
        let disk_cache = disk_cache.transpose()?;
        Ok((RemotePlan { address, access, show, decoded, rules, is_tree_wanted, on_file, disk_cache }, point))
    }
}

/// The directory for chunks, from the root on: the daemon is in another one than the user.
fn kept_in(text: &OsStr) -> Result<(PathBuf, Option<u64>), String> {
    let (dir, most) = parse_disk_cache(text).map_err(|expected| format!("--disk-cache: {expected}"))?;
    let dir = std::path::absolute(&dir).map_err(|error| format!("--disk-cache: {}", in_words(&error)))?;
    Ok((dir, most))
}
