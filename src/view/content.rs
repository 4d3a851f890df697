//! What a file's bytes are read from.

use std::sync::Arc;
use std::time::SystemTime;

use super::decoded::data::Data;
use super::frame_file::FrameFile;
use super::writing::Writing;
use crate::store::ChunkKey;

/// What a file holds. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Content {
    /// Nothing yet.
    Empty,
    /// These bytes.
    Bytes(Arc<Vec<u8>>),
    /// A stored chunk, and its length as soon as somebody has asked for it.
    Chunk(ChunkKey, Option<u32>),
    /// What is being written.
    Draft(Arc<Writing>),
    /// A whole frame.
    Frame(FrameFile),
    /// The data of a frame.
    Data(Arc<Data>),
}

impl Content {
    /// Whether it is read from the store, and lost when others have changed SOURCE.
    pub fn is_of_store(&self) -> bool {
        matches!(self, Content::Chunk(..) | Content::Frame(_) | Content::Data(_))
    }

    /// The chunks that it is made of.
    pub fn keys(&self) -> &[ChunkKey] {
        match self {
            Content::Chunk(key, _) => std::slice::from_ref(key),
            Content::Frame(file) => file.layout.extents.keys(),
            Content::Empty | Content::Bytes(_) | Content::Draft(_) | Content::Data(_) => &[],
        }
    }

    /// When it was written, as far as it is not committed.
    pub fn written(&self) -> Option<SystemTime> {
        match self {
            Content::Draft(writing) => Some(writing.inner.read_recursive().mtime),
            Content::Frame(file) => file.overlay.as_ref().map(|overlay| overlay.inner.read().mtime),
            _ => None,
        }
    }

    /// Sets when it was written, as far as it is not committed.
    pub fn set_written(&self, mtime: SystemTime) {
        match self {
            Content::Draft(writing) => writing.inner.write().mtime = mtime,
            Content::Frame(FrameFile { overlay: Some(overlay), .. }) => overlay.inner.write().mtime = mtime,
            _ => {}
        }
    }

    /// The chunk that it is, and its length as soon as somebody has asked for it.
    pub fn chunk(&self) -> Option<(ChunkKey, Option<u32>)> {
        match self {
            Content::Chunk(key, len) => Some((*key, *len)),
            _ => None,
        }
    }

    /// Whether somebody is writing it from nothing, or has just begun to, where so many may write.
    pub fn is_begun(&self, writers: u32) -> bool {
        match self {
            Content::Draft(writing) => writing.is_begun(writers),
            Content::Frame(FrameFile { overlay: Some(overlay), .. }) => {
                let inner = overlay.inner.read();
                inner.below() == 0 && (writers > 0 || inner.len() == 0)
            }
            _ => false,
        }
    }

    /// Whether both are the same.
    pub fn is_same(&self, other: &Content) -> bool {
        match (self, other) {
            (Content::Empty, Content::Empty) => true,
            (Content::Bytes(one), Content::Bytes(other)) => Arc::ptr_eq(one, other),
            (Content::Chunk(one, _), Content::Chunk(other, _)) => one == other,
            (Content::Data(one), Content::Data(other)) => Arc::ptr_eq(one, other),
            (Content::Frame(one), Content::Frame(other)) => Arc::ptr_eq(&one.layout, &other.layout),
            _ => false,
        }
    }
}
