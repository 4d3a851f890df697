//! What the library finds in a frame that the store has changed, after every commit.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use b2fuse::format::metalayer::Metalayer;
use b2fuse::format::trailer::Trailer;
use b2fuse::format::{IndexEntry, Special};
use b2fuse::store::{ChunkKey, FrameImage, FrameStore, OpenOptions};

use crate::changes::{history, sequences, small};
use crate::driver::{Frame, NAME, Store};
use crate::for_both;
use crate::frames::{Random, data, read};

/// A Python that reads frames by the library.
struct Library {
    python: Child,
    answers: BufReader<ChildStdout>,
}

impl Library {
    /// `None`, said aloud, where there is no Python with the library and that is allowed.
    fn start() -> Option<Library> {
        let Some(python) = env::var_os("B2FUSE_PYTHON") else {
            assert_ne!(env::var("B2FUSE_REQUIRE_PYTHON").as_deref(), Ok("1"), "B2FUSE_PYTHON is not set");
            eprintln!("SKIPPED: B2FUSE_PYTHON is not set, so no frame was opened by C-Blosc2");
            return None;
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/read_frames.py");
        let mut python = Command::new(python)
            .arg("-B")
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("B2FUSE_PYTHON runs");
        let answers = BufReader::new(python.stdout.take().unwrap());
        Some(Library { python, answers })
    }

    /// What the library finds.
    fn describe(&mut self, path: &Path) -> String {
        writeln!(self.python.stdin.as_mut().unwrap(), "{}", path.display()).unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        drop(self.python.stdin.take());
        let _ = self.python.wait();
    }
}

/// What it should find.
fn expected(store: &dyn FrameStore, entries: &[IndexEntry<ChunkKey>], vlmetalayers: usize) -> String {
    description(vlmetalayers, entries.iter().map(|entry| entry.map(|key| read(store, key))))
}

fn description(vlmetalayers: usize, entries: impl Iterator<Item = IndexEntry<Vec<u8>>>) -> String {
    let mut words = vec![vlmetalayers.to_string()];
    for entry in entries {
        words.push(match entry {
            IndexEntry::Stored(bytes) => {
                let mut crc = flate2::Crc::new();
                crc.update(&bytes);
                format!("{:08x}", crc.sum())
            }
            IndexEntry::Special(Special::Zeros) => "special-1".to_owned(),
            IndexEntry::Special(Special::Nan) => "special-2".to_owned(),
            IndexEntry::Special(Special::Uninit) => "special-4".to_owned(),
        });
    }
    words.join(" ")
}

for_both!(the_library_opens_the_frame_after_every_commit, the_library_opens_what_power_cuts_leave);

fn the_library_opens_the_frame_after_every_commit<S: Store>() {
    let Some(mut library) = Library::start() else { return };
    let mut commits = 0;
    for (seed, source) in data(S::DATA).into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("frame.b2frame");
        S::copy(&source, &path);
        let store = S::open_at(&path, OpenOptions::default()).unwrap();
        let old = store.committed().unwrap();
        let FrameImage { mut header, mut trailer, entries } = (*old).clone();
        let mut entries = (*entries).clone();
        let chunksize = u64::from(header.chunksize());
        // The last chunk may be a short one, and stays where it is. Arrays have as many chunks as their shape says.
        if chunksize == 0 || entries.len() < 3 || source.extension().is_some_and(|extension| extension == "b2nd") {
            continue;
        }
        // One that is the contents of a vlmetalayer: a chunk as well.
        let value = trailer.vlmetalayers().next().map(|layer| layer.content.to_vec());
        let mut random = Random(seed as u64);
        for _ in 0..40 {
            let last = entries.len() as u64 - 1;
            let at = random.below(last) as usize;
            let other = random.below(last) as usize;
            match random.below(12) {
                0..5 => {
                    if let IndexEntry::Stored(key) = entries[other] {
                        entries[at] = IndexEntry::Stored(store.stage(&read(&store, key)).unwrap());
                    }
                }
                5..7 => {
                    if let IndexEntry::Stored(key) = entries[other] {
                        entries.insert(at, IndexEntry::Stored(store.stage(&read(&store, key)).unwrap()));
                        header.set_nbytes(header.nbytes() + chunksize);
                    }
                }
                7 if entries.len() > 3 => {
                    entries.remove(at);
                    header.set_nbytes(header.nbytes() - chunksize);
                }
                8 => entries.swap(at, other),
                9 => entries[at] = IndexEntry::Special(Special::Zeros),
                10 => {
                    if let Some(value) = &value {
                        let names = [&b"one"[..], b"two", b"three"];
                        let count = random.below(4) as usize;
                        let layers: Vec<_> = names[..count].iter().map(|name| Metalayer { name, content: value }).collect();
                        trailer = Trailer::encode(&layers).unwrap();
                        header.set_has_vlmetalayers(count > 0);
                    }
                }
                _ => store.sync().unwrap(),
            }
            let image = FrameImage { header: header.clone(), trailer: trailer.clone(), entries: Arc::new(entries.clone()) };
            store.commit(store.enter(), image).unwrap();
            commits += 1;
            let found = library.describe(&path);
            assert_eq!(found, expected(&store, &entries, trailer.vlmetalayers().count()), "{}", source.display());
        }
        store.close().unwrap();
        let found = library.describe(&path);
        assert_eq!(found, expected(&store, &entries, trailer.vlmetalayers().count()), "{}, closed", source.display());
    }
    let least = data(S::DATA).len() * 15;
    assert!(commits > least, "only {commits} commits were looked at");
}

fn the_library_opens_what_power_cuts_leave<S: Store>() {
    let Some(mut library) = Library::start() else { return };
    let small = small::<S>();
    let mut images = 0;
    for (seed, changes) in sequences(3, 31).enumerate() {
        let (history, _) = history::<S>(&small, &changes, seed as u64);
        for (disk, states) in history.some_images(10, seed as u64) {
            let dir = tempfile::tempdir().unwrap();
            disk.write_to(dir.path());
            let found = library.describe(&dir.path().join(NAME));
            let expected = |state: &&Frame| {
                let vlmetalayers = Trailer::parse(&state.trailer).unwrap().vlmetalayers().count();
                description(vlmetalayers, state.entries.iter().cloned())
            };
            let expected: Vec<String> = states.iter().map(expected).collect();
            assert!(expected.contains(&found), "{changes:?}, seed {seed}: found {found}, expected one of {expected:#?}");
            images += 1;
        }
    }
    assert!(images > 300, "only {images} images were looked at");
}
