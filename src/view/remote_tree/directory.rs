//! Names beneath prefixes, as the store listed them last: each listing is good for the time of `-o refresh=`.
//!
//! A lookup of a name fetches the first page of the listing, which mostly is all of it. In a directory with more names single ones
//! are looked up, unless all of it was listed before and that is cheaper. One thread fetches the listing of a directory, and others wait for it.
//!
//! Listings take [`MOST`] bytes of memory together. One that would take more is an error; single names in it can be looked up.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::store::interrupts;
use crate::store::remote::Client;
use crate::store::remote::folder::{Entry, Page, are_chunks};

/// Bytes of memory for listings.
const MOST: usize = 64 << 20;
/// Answers that a listing takes at most: some may have nothing in them.
const MOST_PAGES: usize = 10_000;
/// Directories that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");
/// Single names of a directory that are.
const NAMED: usize = 256;

/// The directories of a tree.
pub struct Directories {
    client: Arc<Client>,
    refresh: Duration,
    hasher: RandomState,
    known: Mutex<LruCache<String, Arc<Directory>>>,
}

#[derive(Default)]
struct Directory {
    /// Held while the store is asked.
    asking: Mutex<()>,
    /// A leaf lock.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listing: Option<Arc<Listing>>,
    /// Single names.
    named: HashMap<String, (Instant, Option<Entry>)>,
    /// Answers that a whole listing took the last time.
    pages: Option<usize>,
    /// Names that were asked for since.
    misses: usize,
    /// There are more names than one answer has.
    is_large: bool,
    /// Clients have been told of this listing.
    is_told: bool,
}

/// What there is beneath a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beneath {
    Nothing,
    /// Chunk files only.
    Chunks,
    Names,
}

/// Names of a directory.
pub struct Listing {
    began: Instant,
    /// By their places: see [`Directories::place`].
    entries: Vec<(u64, Entry)>,
    /// What is missing: what comes behind a key, and the token for it.
    rest: Option<(String, String)>,
    weight: usize,
    pages: usize,
}

impl Listing {
    /// What comes behind a place, each with its own.
    pub fn behind(&self, place: u64) -> &[(u64, Entry)] {
        let from = self.entries.partition_point(|(at, _)| *at <= place);
        self.entries.get(from..).unwrap_or_default()
    }

    /// What a name stands for; `None` where this listing does not tell.
    fn get(&self, place: u64, name: &str) -> Option<Option<Entry>> {
        let from = self.entries.partition_point(|(at, _)| *at < place);
        let same = self.entries.iter().skip(from).take_while(|(at, _)| *at == place);
        let found = same.map(|(_, entry)| entry).find(|entry| *entry.name == *name);
        match (&self.rest, found) {
            // What is beneath a name is listed behind others that begin with it.
            (Some((last, _)), Some(Entry { object: Some(_), .. })) if *last <= format!("{name}/") => None,
            (Some(_), None) => None,
            (_, found) => Some(found.cloned()),
        }
    }
}

impl Directories {
    pub fn new(client: Arc<Client>, refresh: Duration) -> Self {
        let known = Mutex::new(LruCache::new(REMEMBERED));
        Directories { client, refresh, hasher: RandomState::new(), known }
    }

    /// What there is beneath a prefix.
    ///
    /// # Errors
    /// What the store answers.
    pub fn beneath(&self, dir: &str) -> io::Result<Beneath> {
        let listing = self.ask(&self.directory(dir), dir, 1)?;
        Ok(match () {
            () if listing.entries.is_empty() && listing.rest.is_none() => Beneath::Nothing,
            () if are_chunks(listing.entries.iter().map(|(_, entry)| entry)) => Beneath::Chunks,
            () => Beneath::Names,
        })
    }

    fn directory(&self, dir: &str) -> Arc<Directory> {
        Arc::clone(self.known.lock().get_or_insert_ref(dir, Arc::default))
    }

    /// The place of a name in all listings, whichever others there are: 1 to 2^62.
    fn place(&self, name: &str) -> u64 {
        (self.hasher.hash_one(name) >> 2) + 1
    }

    fn is_fresh(&self, when: Instant) -> bool {
        when.elapsed() < self.refresh
    }

    fn held(&self, directory: &Directory, name: &str) -> Option<Option<Entry>> {
        let state = directory.state.lock();
        let named = state.named.get(name).filter(|(when, _)| self.is_fresh(*when)).map(|(_, entry)| entry.clone());
        named.or_else(|| {
            let listing = state.listing.as_ref().filter(|listing| self.is_fresh(listing.began))?;
            listing.get(self.place(name), name)
        })
    }

    /// What a name stands for, as far as that is known without asking.
    pub fn known(&self, dir: &str, name: &str) -> Option<Option<Entry>> {
        let directory = self.known.lock().get(dir).cloned()?;
        self.held(&directory, name)
    }

    /// What a name stands for.
    ///
    /// # Errors
    /// What the store answers; EINTR.
    pub fn find(&self, dir: &str, name: &str) -> io::Result<Option<Entry>> {
        let directory = self.directory(dir);
        if let Some(found) = self.held(&directory, name) {
            return Ok(found);
        }
        let _alone = interrupts::lock(&directory.asking)?;
        if let Some(found) = self.held(&directory, name) {
            return Ok(found);
        }
        let place = self.place(name);
        let is_worth_a_listing = {
            let state = directory.state.lock();
            state.pages.is_some_and(|pages| state.misses >= pages)
        };
        if is_worth_a_listing {
            return Ok(self.ask(&directory, dir, usize::MAX)?.get(place, name).flatten());
        }
        let is_large = directory.state.lock().is_large;
        if !is_large && let Some(found) = self.ask(&directory, dir, 1)?.get(place, name) {
            return Ok(found);
        }
        let began = Instant::now();
        let found = self.client.find(dir, name)?;
        let mut state = directory.state.lock();
        state.misses += 1;
        if state.named.len() >= NAMED {
            state.named.clear();
        }
        state.named.insert(name.to_owned(), (began, found.clone()));
        Ok(found)
    }

    /// All names. Who goes on with a listing, as `goes_on` says, does not get a new one.
    ///
    /// # Errors
    /// What the store answers; EINTR; more names than there is room for.
    pub fn whole(&self, dir: &str, goes_on: bool) -> io::Result<Arc<Listing>> {
        let directory = self.directory(dir);
        let held = || {
            let mut state = directory.state.lock();
            let good = |listing: &&Arc<Listing>| listing.rest.is_none() && (goes_on || self.is_fresh(listing.began));
            let listing = state.listing.as_ref().filter(good).cloned()?;
            state.is_told |= !goes_on;
            Some(listing)
        };
        if let Some(listing) = held() {
            return Ok(listing);
        }
        let _alone = interrupts::lock(&directory.asking)?;
        if let Some(listing) = held() {
            return Ok(listing);
        }
        let listing = self.ask(&directory, dir, usize::MAX)?;
        directory.state.lock().is_told = !goes_on;
        Ok(listing)
    }

    /// Asks for a listing of so many pages at most; one that has begun goes on. Nobody else asks meanwhile.
    fn ask(&self, directory: &Directory, dir: &str, pages: usize) -> io::Result<Arc<Listing>> {
        let begun = directory.state.lock().listing.clone();
        let begun = begun.filter(|listing| listing.rest.is_some() && pages > 1 && self.is_fresh(listing.began));
        let mut listing = Listing { began: Instant::now(), entries: Vec::new(), rest: None, weight: 0, pages: 0 };
        if let Some(begun) = begun {
            listing = Listing { began: begun.began, entries: begun.entries.clone(), rest: begun.rest.clone(), ..*begun };
        }
        loop {
            let next = listing.rest.take().map(|(_, token)| token);
            let Page { entries, next } = self.client.page(dir, "", next)?;
            listing.pages += 1;
            let key = |entry: &Entry| format!("{}{}", entry.name, if entry.object.is_some() { "" } else { "/" });
            let last = entries.iter().map(key).max();
            for entry in entries {
                listing.weight += entry.weight() + size_of::<u64>();
                listing.entries.push((self.place(&entry.name), entry));
            }
            if listing.weight > MOST || listing.pages > MOST_PAGES {
                return Err(io::Error::other("there are more names than can be listed at once"));
            }
            listing.rest = next.map(|token| (last.unwrap_or_default(), token));
            if listing.rest.is_none() || listing.pages >= pages {
                break;
            }
        }
        // A name may be a key on one page and a prefix on another.
        listing
            .entries
            .sort_by(|(one, a), (other, b)| (one, &a.name, a.object.is_some()).cmp(&(other, &b.name, b.object.is_some())));
        listing.entries.dedup_by(|(_, one), (_, before)| one.name == before.name);
        let listing = Arc::new(listing);
        {
            let mut state = directory.state.lock();
            state.is_large = listing.pages > 1 || listing.rest.is_some();
            state.pages = if listing.rest.is_none() { Some(listing.pages).filter(|pages| *pages > 1) } else { state.pages };
            (state.misses, state.is_told) = (0, false);
            state.named.clear();
            state.listing = Some(Arc::clone(&listing));
        }
        self.limit();
        Ok(listing)
    }

    /// Forgets the listings that were used longest ago, but for the last one, until there is room.
    fn limit(&self) {
        let mut known = self.known.lock();
        let weight = |directory: &Directory| directory.state.lock().listing.as_ref().map_or(0, |listing| listing.weight);
        let mut sum: usize = known.iter().map(|(_, directory)| weight(directory)).sum();
        while sum > MOST && known.len() > 1 {
            let Some((_, oldest)) = known.pop_lru() else { break };
            sum = sum.saturating_sub(weight(&oldest));
        }
    }

    /// What is known of a directory is not true any more.
    pub fn forget(&self, dir: &str) {
        if let Some(directory) = self.known.lock().get(dir) {
            let mut state = directory.state.lock();
            state.listing = None;
            state.named.clear();
        }
    }

    /// Whether what clients were told is still good.
    pub fn is_told(&self, dir: &str) -> bool {
        let directory = self.known.lock().get(dir).cloned();
        directory.is_some_and(|directory| {
            let state = directory.state.lock();
            state.is_told && state.listing.as_ref().is_some_and(|listing| self.is_fresh(listing.began))
        })
    }
}
