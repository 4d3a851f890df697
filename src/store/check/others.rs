//! What else lies in an sframe's directory.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;

use super::{Finding, Kind};
use crate::format::{ChunkId, INDEX_NAME, plain::plain};
use crate::store::backend::Backend;
use crate::store::source::Complain;
use crate::store::{Location, Result, sidecar};

/// Tells of files that the index does not name.
pub(super) fn others(
    location: &Location,
    dir: &dyn Backend,
    named: &HashSet<ChunkId>,
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    let mut names = Vec::new();
    for name in dir.names().map_err(location.io("list"))? {
        match ChunkId::from_file_name(name.as_bytes()) {
            Some(id) if named.contains(&id) => {}
            _ if name == INDEX_NAME || name == sidecar::SUFFIX => {}
            id => names.push((name, id.is_some())),
        }
    }
    names.sort_unstable();
    for (name, chunk) in names {
        let name = plain(&name);
        found(match chunk {
            true => Finding::note(Kind::Orphan, format!("{name}: no entry of the index names it")),
            false => Finding::note(Kind::Surplus, format!("{name}: is no part of a frame")),
        });
    }
    Ok(())
}
