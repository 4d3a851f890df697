//! A frame that is closed while nobody uses it, and opened again under its nodes: its files keep their inodes, and the attributes
//! that clients have set, as long as SOURCE is what it was.

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Load, Single};
use crate::format::times::Identity;
use crate::store::FrameStore;
use crate::view::frame_view::{FrameView, Standing};
use crate::view::nodes::Nodes;
use crate::view::{FileSystem, Inval, Invals, Result};

/// A frame that is closed: what is known of its files.
pub struct Parked<V: FrameView> {
    nodes: Nodes,
    load: Box<Load<V>>,
    read_only: bool,
    takes_turns: bool,
    /// The state of SOURCE that the nodes are of; `None` where that cannot be told, or where its files would have other names.
    identity: Option<Identity>,
}

impl<V: FrameView> Single<V> {
    /// Whether it can be closed without anybody's noticing: nobody has a file open, no removed file is still known, and SOURCE has
    /// everything.
    pub fn is_idle(&self) -> bool {
        let state = self.state.read();
        state.nodes.is_idle() && !V::is(&state, Standing::Uncommitted)
    }

    /// Closes the store of an idle frame.
    ///
    /// # Errors
    /// What SOURCE does not have.
    pub fn park(self) -> Result<Parked<V>> {
        let is_renamed = self.is(Standing::Renamed);
        let identity = Arc::new(Mutex::new(self.store.identity().filter(|_| self.read_only)));
        let left = Arc::clone(&identity);
        self.store.at_close(Box::new(move |identity| *left.lock() = identity));
        self.shutdown()?;
        let identity = identity.lock().take().filter(|_| !is_renamed);
        let Single { state, load, read_only, locks, .. } = self;
        Ok(Parked { nodes: state.into_inner().nodes, load, read_only, takes_turns: locks.is_some(), identity })
    }
}

impl<V: FrameView> Parked<V> {
    /// Opens it again. Where SOURCE is not what it was, its files have other inodes, and `invals` says what the kernel must forget.
    ///
    /// # Errors
    /// What is wrong with the frame.
    pub fn open(self, store: Arc<dyn FrameStore>, invals: &mut Invals) -> Result<Single<V>> {
        let Parked { mut nodes, load, read_only, takes_turns, identity } = self;
        if identity.is_none() || store.identity() != identity {
            nodes.reloaded(store.source_stat()?.into(), invals);
            invals.push(Inval::All);
        }
        let lock_file = nodes.lock_file.clone();
        let frame = Single::under(nodes, store, read_only, load)?;
        if takes_turns { frame.taking_turns(lock_file) } else { Ok(frame) }
    }
}
