//! The names of the cache's files; files with other names are never removed. They are checksums as numbers, so no URL and no object can be part of one.

use std::ffi::{OsStr, OsString};

use crate::store::create::TEMP_PREFIX;

/// The file that says how much is kept.
pub(super) const COUNT: &str = "count";
/// The file whose lock is held by whoever looks through everything.
pub(super) const LOCK: &str = "lock";

/// A folder's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Folder {
    /// Pieces of a state.
    State(u64),
    /// What was dropped and is being removed: of which state, and a number.
    Dropped(u64, u64),
}

impl Folder {
    pub(super) fn name(self) -> OsString {
        match self {
            Folder::State(state) => format!("s-{state:016x}").into(),
            Folder::Dropped(state, number) => format!("d-{state:016x}-{number:x}").into(),
        }
    }

    pub(super) fn parse(name: &OsStr) -> Option<Self> {
        let text = name.to_str()?;
        let (kind, rest) = text.split_at_checked(2)?;
        let folder = match kind {
            "s-" => Folder::State(number(rest)?),
            "d-" => {
                let (state, index) = rest.split_once('-')?;
                Folder::Dropped(number(state)?, number(index)?)
            }
            _ => return None,
        };
        // One name has one way to be written.
        (folder.name() == text).then_some(folder)
    }
}

/// A file's name in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InFolder {
    /// A piece: of which object, and which of its pieces.
    Piece(u64, u64),
    /// A piece that is being written, or never was to its end.
    Unfinished,
}

impl InFolder {
    pub(super) fn parse(name: &OsStr) -> Option<Self> {
        let text = name.to_str()?;
        if text.starts_with(TEMP_PREFIX) && text.ends_with(".tmp") {
            return Some(InFolder::Unfinished);
        }
        let (object, piece) = text.split_once('-')?;
        let (object, piece) = (number(object)?, number(piece)?);
        (piece_name(object, piece) == text).then_some(InFolder::Piece(object, piece))
    }
}

/// The name of a piece's file.
pub(super) fn piece_name(object: u64, piece: u64) -> OsString {
    format!("{object:016x}-{piece:x}").into()
}

fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}
