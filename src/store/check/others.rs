//! What else lies in an sframe's directory.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::{Finding, Kind};
use crate::format::{ChunkId, INDEX_NAME, IndexEntry, plain::plain};
use crate::store::backend::Backend;
use crate::store::error::Complain;
use crate::store::{Location, Result, sidecar};

/// Tells of files that the index does not name. What is held is about files that there are, not about entries of the index.
pub(super) fn others(
    location: &Location,
    dir: &dyn Backend,
    entries: &[IndexEntry<ChunkId>],
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    let (mut names, mut ids) = (Vec::new(), Vec::new());
    for name in dir.names().map_err(location.io("list"))? {
        match ChunkId::from_file_name(name.as_bytes()) {
            Some(id) => ids.push((id, false)),
            None if name == INDEX_NAME || name == sidecar::SUFFIX => {}
            None => names.push((name, false)),
        }
    }
    ids.sort_unstable();
    for id in entries.iter().filter_map(|entry| entry.stored()) {
        let at = ids.binary_search_by_key(&id, |(id, _)| *id);
        if let Some((_, named)) = at.ok().and_then(|at| ids.get_mut(at)) {
            *named = true;
        }
    }
    names.extend(ids.iter().filter(|(_, named)| !named).map(|(id, _)| (OsString::from(id.file_name()), true)));
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
