//! Files that are not as they were written.

use proptest::prelude::*;

use super::*;

/// A state with one piece of 40 bytes, which is in that file.
fn one_piece() -> (tempfile::TempDir, Arc<DiskCache>, State, PathBuf) {
    let (dir, path, cache) = cache(None);
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, &bytes(5, 40), 40, "own");
    let file = files(&path).remove(0);
    (dir, cache, state, file)
}

#[test]
fn one_wrong_bit_or_byte_or_length_is_noticed_and_the_file_removed() {
    let (_dir, cache, state, file) = one_piece();
    let good = fs::read(&file).unwrap();
    let mut damaged: Vec<Vec<u8>> = (0..good.len()).map(|len| good[..len].to_vec()).collect();
    for at in 0..good.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            damaged.push(bytes);
        }
    }
    damaged.push([&good[..], b"\0"].concat());
    damaged.push([&good[..], &good[..]].concat());
    damaged.push(vec![0; good.len()]);
    for bytes in damaged {
        fs::write(&file, &bytes).unwrap();
        assert_eq!(state.get("a", 0), None, "{bytes:?}");
        assert!(!file.exists());
        state.put("a", 0, b"filled in", 9, "");
        assert_eq!(state.get("a", 0), whole(b"filled in", ""));
    }
    fs::write(&file, &good).unwrap();
    assert_eq!(state.get("a", 0), whole(&bytes(5, 40), "own"), "what is not damaged is got");
    assert!(counted(&cache) <= cost(1), "what was removed is not counted");
}

#[test]
fn pieces_in_the_wrong_place_are_not_got() {
    let (_dir, path, cache) = cache(None);
    let (state, other) = (cache.state(URL, "t1").unwrap(), cache.state(URL, "t2").unwrap());
    state.put("a", 0, b"first", 5, "");
    let (a0, folder) = (files(&path).remove(0), files(&path).remove(0).parent().unwrap().to_owned());
    state.put("a", 1, b"second", 6, "");
    // Another piece of the same state: that one is missing, and no more.
    fs::copy(&a0, folder.join(piece_name(checksum(b"a"), 1))).unwrap();
    assert_eq!((state.get("a", 1), state.get("a", 0)), (None, whole(b"first", "")));
    state.put("a", 1, b"second", 6, "");
    assert_eq!(state.get("a", 1), whole(b"second", ""));
    // A piece of another state: somebody has been at it.
    other.put("a", 0, b"other", 5, "");
    let others = files(&path).into_iter().find(|file| file.parent() != Some(&folder)).unwrap();
    fs::copy(&others, &a0).unwrap();
    assert_eq!(state.get("a", 0), None);
    assert_eq!((state.get("a", 1), other.get("a", 0)), (None, whole(b"other", "")));
    assert!(!folder.exists());
    // A whole folder under another's name.
    fs::rename(others.parent().unwrap(), &folder).unwrap();
    let state = cache.state(URL, "t1").unwrap();
    assert_eq!(state.get("a", 0), None);
    assert!(!folder.exists());
}

#[test]
fn a_count_that_is_damaged_is_counted_again() {
    let (_dir, path, cache) = cache(None);
    let state = cache.state(URL, "t").unwrap();
    state.put("a", 0, b"one", 3, "");
    let right = cost(1);
    let old = Count { swept: Count::now(0, 0).swept - 2 * 24 * 60 * 60, ..Count::now(0, 0) };
    let early = Count { swept: Count::now(0, 0).swept + 1000, ..Count::now(0, 0) };
    let mut flipped = Count::now(1 << 50, 0).encode();
    flipped[9] ^= 1;
    let empty: &[u8] = b"";
    for content in [empty, b"garbage", &flipped, &old.encode(), &early.encode()] {
        fs::write(path.join(names::COUNT), content).unwrap();
        cache.sweeper.lock().not_before = None;
        state.put("a", 0, b"one", 3, "");
        settle(&cache);
        // What is counted twice is still near.
        let count = super::count(&cache);
        assert!((right..=3 * right).contains(&count.bytes), "{count:?} after {content:?}");
        assert!(count.swept.abs_diff(Count::now(0, 0).swept) < 100);
        assert_eq!(state.get("a", 0), whole(b"one", ""));
        state.put("a", 0, b"one", 3, "");
    }
    fs::write(path.join(names::COUNT), b"").unwrap();
    fs::write(path.join(names::COUNT), Count::now(1 << 60, 0).encode()).unwrap();
    state.put("b", 0, b"two", 3, "");
    assert_eq!(state.get("b", 0), None, "there is no room, as far as is known");
    settle(&cache);
    state.put("b", 0, b"two", 3, "");
    assert_eq!(state.get("b", 0), whole(b"two", ""));
}

fn replace(good: &mut Vec<u8>, at: usize, with: &[u8]) {
    let at = at % (good.len() + 1);
    let end = (at + with.len()).min(good.len());
    good.splice(at..end, with.iter().copied());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Without a right checksum nothing but what was put is got. With one, by somebody who means it, anything may be, but nothing fails,
    /// and no more memory is taken than the file has bytes.
    #[test]
    fn random_damage_gives_no_other_bytes(
        changes in prop::collection::vec((any::<usize>(), prop_oneof![
            prop::collection::vec(any::<u8>(), 1..9),
            any::<u64>().prop_map(|number| number.to_le_bytes().to_vec()),
            (0..200u32).prop_map(|number| number.to_le_bytes().to_vec()),
        ]), 1..6),
        in_head: bool,
        cut in prop::option::of(any::<usize>()),
        summed: bool,
    ) {
        thread_local!(static PLACE: (tempfile::TempDir, Arc<DiskCache>, State, PathBuf) = one_piece());
        PLACE.with(|(_, _, state, file)| {
            state.put("a", 0, &bytes(5, 40), 40, "own");
            let good = fs::read(file).unwrap();
            let mut bad = good.clone();
            for (at, with) in &changes {
                replace(&mut bad, if in_head { at % 48 } else { *at }, with);
            }
            if let Some(cut) = cut {
                bad.truncate(cut % (bad.len() + 1));
            }
            if summed && bad.len() >= 16 {
                let sum = checksum(&bad[16..]);
                bad[8..16].copy_from_slice(&sum.to_le_bytes());
            }
            fs::write(file, &bad).unwrap();
            let got = state.get("a", 0);
            if !summed && bad != good {
                prop_assert_eq!(got, None);
                prop_assert!(!file.exists());
            } else if let Some(piece) = got {
                prop_assert!(piece.bytes.len() + piece.tag.len() <= bad.len());
                prop_assert!(piece.total_len >= piece.bytes.len() as u64);
            }
            Ok(())
        })?;
    }
}
