//! Where decoded blocks go that find no room in memory.
//!
//! The directory is tried before anything is mounted: later nobody would see that no file can be made there. If the user named it, the
//! mount fails; of the directory for temporary files, the log has a line, and the mount goes without.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use log::warn;

use super::super::Failure;
use super::super::options::{Options, SpillTo};
use crate::store::in_words;
use crate::store::local::FileBackend;
use crate::view::BandFiles;
use crate::view::decoded::band_file::BandDirectory;

/// Where they go.
#[derive(Default)]
pub(super) struct SpillPlan {
    dir: Option<Arc<dyn BandDirectory>>,
    /// Why they do not go to the directory for temporary files.
    refused: Option<Failure>,
}

impl SpillPlan {
    /// Of a mount that shows the data of frames, or not. `said` is what stands behind `--spill`.
    pub(super) fn new(said: Option<&OsStr>, options: &Options, is_decoded: bool) -> Result<Self, Failure> {
        let named = said.map(SpillTo::from).or_else(|| options.spill.clone());
        Self::choose(named, is_decoded.then(std::env::temp_dir).as_deref())
    }

    /// The one that was named, or else this one.
    fn choose(named: Option<SpillTo>, default: Option<&Path>) -> Result<Self, Failure> {
        Ok(match (named, default) {
            (Some(SpillTo::Dir(dir)), _) => SpillPlan { dir: Some(tried(&dir)?), refused: None },
            (None, Some(dir)) => match tried(dir) {
                Ok(dir) => SpillPlan { dir: Some(dir), refused: None },
                Err(refused) => SpillPlan { dir: None, refused: Some(refused) },
            },
            (Some(SpillTo::Nothing), _) | (None, None) => SpillPlan::default(),
        })
    }

    /// The files that they go to.
    pub(super) fn files(&self) -> Option<BandFiles> {
        if let Some(Failure(line)) = &self.refused {
            warn!("{line}");
        }
        self.dir.clone().map(BandFiles::new)
    }
}

/// A directory in which a file without a name can be made.
fn tried(path: &Path) -> Result<Arc<dyn BandDirectory>, Failure> {
    let tried = FileBackend::open(path).and_then(|dir| {
        let dir: Arc<dyn BandDirectory> = Arc::new(dir);
        dir.create_unnamed().map(|_file| dir)
    });
    tried.map_err(|error| {
        let why = in_words(&error);
        Failure::new(
            path,
            format_args!("cannot take decoded blocks: {why} (--spill DIR takes another, --spill none goes without)"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_tried_whether_it_was_named_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = dir.path().join("nowhere");
        let takes = |named: Option<&Path>, default: Option<&Path>| {
            let chosen = SpillPlan::choose(named.map(|dir| SpillTo::Dir(dir.to_owned())), default);
            chosen.map(|spill| (spill.dir.is_some(), spill.refused.is_some())).map_err(|Failure(line)| line)
        };
        assert_eq!(takes(None, Some(dir.path())), Ok((true, false)));
        assert_eq!(takes(Some(dir.path()), None), Ok((true, false)));
        assert_eq!(takes(None, None), Ok((false, false)));
        // One that is not there, and one in which no file can be made.
        for bad in [&nowhere, Path::new("/proc")] {
            assert_eq!(takes(None, Some(bad)), Ok((false, true)), "{}", bad.display());
            let refused = takes(Some(bad), Some(dir.path())).unwrap_err();
            assert!(refused.starts_with(&format!("{}: cannot take decoded blocks", bad.display())), "{refused}");
        }
        assert!(SpillPlan::choose(Some(SpillTo::Nothing), Some(dir.path())).unwrap().files().is_none());
    }
}
