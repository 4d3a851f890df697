//! Frames at URLs, for all commands.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Failure;
use super::remote_args::RemoteArgs;
use crate::store::remote::{self, Access, Address, Client, RemoteStore};
use crate::store::{Budgets, FrameStore, Location, Resources, StoreError, in_words};

/// A frame in a store that can be asked.
pub(super) struct Connected {
    pub(super) client: Arc<Client>,
    /// What messages call it.
    pub(super) path: PathBuf,
    /// What beside that says which object it is.
    pub(super) origin: String,
}

/// Gets ready to ask for a frame. No request is made.
///
/// # Errors
/// What keeps from it, in words without secrets.
pub(super) fn connect(address: &Address, access: &Access) -> Result<Connected, String> {
    let opened = access.open(address)?;
    let parts = opened.parts;
    let client = match opened.pages {
        _ if address.is_http() => Client::of_file(opened.store, access.connections, access.timeout),
        Some(pages) => Client::listing(opened.store, pages, opened.key, access.connections, access.timeout),
        None => Client::new(opened.store, opened.key, access.connections, access.timeout),
    };
    let client = client.map_err(|error| format!("cannot be asked for: {}", in_words(&error)))?;
    let client = match parts {
        Some(parts) => client.with_parts(parts, remote::PART),
        None => client,
    };
    let (shown, patience) = (address.to_string(), access.timeout.as_secs_f32());
    let client = client.telling(move || {
        let text = format!("{shown}: no response yet; waits for up to {patience} s (-o timeout=)");
        if !super::log::announce(&text) {
            eprintln!("{text}");
        }
    });
    Ok(Connected { client, path: PathBuf::from(address.to_string()), origin: opened.origin })
}

/// How commands reach frames at URLs, if they were told.
static ACCESS: OnceLock<Access> = OnceLock::new();

/// Threads that each wait for one request.
const MOST_THREADS: usize = 256;

/// How many requests there are at one time, for a command that makes each in a thread.
pub(super) fn connections() -> usize {
    ACCESS.get().map_or_else(|| Access::default().connections, |access| access.connections).min(MOST_THREADS)
}

/// A command was told how to reach frames at URLs, of which some paths may be.
///
/// # Errors
/// What is wrong with what it was told; that no path is a URL.
pub(super) fn reach(args: &RemoteArgs, paths: &[impl AsRef<Path>]) -> Result<(), String> {
    let _ = ACCESS.set(args.access()?);
    args.check(&paths.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

/// Where a frame is, if its path is a URL.
///
/// # Errors
/// A URL that is none of ours; what keeps from asking.
pub(super) fn location(path: &Path) -> Result<Option<Location>, Failure> {
    Ok(located(path)?.map(|(location, _)| location))
}

/// The last URL that was asked for: what is known of it is not asked for twice.
static LAST: Mutex<Option<(PathBuf, Location, Arc<Client>)>> = Mutex::new(None);

fn located(path: &Path) -> Result<Option<(Location, Arc<Client>)>, Failure> {
    if let Some((_, location, client)) = LAST.lock().as_ref().filter(|(last, ..)| last == path) {
        return Ok(Some((location.clone(), Arc::clone(client))));
    }
    let Some((Connected { client, path: shown, .. }, access)) = connected(path)? else { return Ok(None) };
    let location = remote::location(&client, &shown, access.unsafe_immutable);
    *LAST.lock() = Some((path.to_owned(), location.clone(), Arc::clone(&client)));
    Ok(Some((location, client)))
}

/// A walk through what is beneath a URL that is no frame, if there is anything.
///
/// # Errors
/// As [`location`]; what the store answers.
pub(super) fn walk(path: &Path) -> Result<Option<remote::Walk>, Failure> {
    let Some((location, client)) = located(path)? else { return Ok(None) };
    let may_be = match location.layout() {
        Ok(layout) => layout.is_none(),
        Err(error) => client.is_empty_object(&error),
    };
    if !client.can_list() || !may_be {
        return Ok(None);
    }
    Ok(remote::Walk::of(&client, location.path())?)
}

fn connected(path: &Path) -> Result<Option<(Connected, Access)>, Failure> {
    let Some(address) = Address::parse(path) else { return Ok(None) };
    let address = address.map_err(Failure)?;
    let access = ACCESS.get().cloned().unwrap_or_default();
    let connected = connect(&address, &access).map_err(|what| Failure::new(path, what))?;
    Ok(Some((connected, access)))
}

/// Opens a frame, if its path is a URL.
///
/// # Errors
/// As [`location`]; what is there and no frame, in the words of `failed`.
pub(super) fn open(path: &Path, failed: impl Fn(StoreError) -> Failure) -> Result<Option<Arc<dyn FrameStore>>, Failure> {
    let Some((Connected { client, path, .. }, access)) = connected(path)? else { return Ok(None) };
    let Access { refresh, unsafe_immutable, .. } = access;
    let options = remote::Options { refresh, unsafe_immutable, ..remote::Options::default() };
    let resources = Resources::new(Budgets { cache_bytes: 0, ..Budgets::default() });
    let store = RemoteStore::open(client, &path, options, &resources).map_err(|error| failed(no_such_object(error)))?;
    Ok(Some(Arc::new(store)))
}

/// An error in the words of a store: what is missing there is no file.
pub(super) fn no_such_object(error: StoreError) -> StoreError {
    match error {
        StoreError::Io { path, source, .. } if source.raw_os_error() == Some(libc::ENOENT) => {
            StoreError::Unsupported { path, reason: "no such object; expected a Blosc2 frame".to_owned() }
        }
        error => error,
    }
}
