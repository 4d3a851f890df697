//! Times of chunk files, as they are kept from one mount to the next: for each position of a frame's index since when the file of that
//! name has its content, run-length encoded.
//!
//! A record is bytes that somebody may have changed: one with any defect is not used. All numbers are little endian.
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..8 | `b2times` and a NUL |
//! | 8..12 | version, 1 |
//! | 12..16 | number of runs |
//! | 16..72 | [`Identity`] of the frame's file, 8 bytes each: device, inode, length, seconds of mtime, nanoseconds of mtime (4) and ctime (4), seconds of ctime, checksum of the header |
//! | 72..80 | number of positions |
//! | 80.. | the runs, 16 bytes each: first position behind the run (4), nanoseconds (4), seconds (8) |
//! | the last 8 | FNV-1a of all before |

use std::time::{Duration, SystemTime};

use super::{Error, Result};

/// No record is longer, in bytes.
pub const MAX_LEN: usize = 1 << 20;
/// Runs of the longest record.
pub const MAX_RUNS: usize = 65_530;

const MAGIC: [u8; 8] = *b"b2times\0";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 80;
const RUN_LEN: usize = 16;
const CHECKSUM_LEN: usize = 8;
const SECOND: u32 = 1_000_000_000;

const _: () = assert!(MAX_RUNS == (MAX_LEN - HEADER_LEN - CHECKSUM_LEN) / RUN_LEN);

/// A moment as files have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp {
    secs: i64,
    nanos: u32,
}

impl From<SystemTime> for Stamp {
    fn from(time: SystemTime) -> Self {
        let whole = |secs: u64| i64::try_from(secs).unwrap_or(i64::MAX);
        match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => Stamp { secs: whole(since.as_secs()), nanos: since.subsec_nanos() },
            Err(before) => {
                let before = before.duration();
                let secs = whole(before.as_secs()).saturating_neg();
                match before.subsec_nanos() {
                    0 => Stamp { secs, nanos: 0 },
                    nanos => Stamp { secs: secs.saturating_sub(1), nanos: SECOND.saturating_sub(nanos) },
                }
            }
        }
    }
}

impl Stamp {
    /// The same for the system; `None` for what it cannot say.
    pub fn time(self) -> Option<SystemTime> {
        let whole = Duration::from_secs(self.secs.unsigned_abs());
        let secs = match self.secs < 0 {
            true => SystemTime::UNIX_EPOCH.checked_sub(whole)?,
            false => SystemTime::UNIX_EPOCH.checked_add(whole)?,
        };
        secs.checked_add(Duration::from_nanos(self.nanos.into()))
    }

    /// Whether it is a whole second: of a file system that keeps no more, as a rule.
    pub fn is_whole_second(self) -> bool {
        self.nanos == 0
    }
}

/// A state of a frame's file. Every write to the file makes it another, and so does every change of its attributes: the system sets
/// ctime, and nobody else does. So of a file that has the same identity as before nothing has changed.
///
/// Less would not do. The library replaces a chunk by one of the same length in its place, with the same index, trailer and header:
/// only the file's times differ afterwards. Nor can that be told from a `touch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub ino: u64,
    /// Length in bytes.
    pub len: u64,
    /// Last change of content.
    pub mtime: Stamp,
    /// Last change of the inode.
    pub ctime: Stamp,
    /// [`checksum`] of the frame's header.
    pub header: u64,
}

/// FNV-1a, 64 bits.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    /// The first position behind it; it begins where the run before ends.
    end: u32,
    nanos: u32,
    secs: i64,
}

impl Run {
    fn new(end: u32, Stamp { secs, nanos }: Stamp) -> Self {
        Run { end, nanos, secs }
    }

    fn stamp(self) -> Stamp {
        Stamp { secs: self.secs, nanos: self.nanos }
    }
}

/// From positions to times, at 16 bytes a run.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Times {
    runs: Vec<Run>,
}

impl Times {
    /// One time for that many positions.
    pub fn all(count: u32, time: Stamp) -> Self {
        Times { runs: if count > 0 { vec![Run::new(count, time)] } else { Vec::new() } }
    }

    /// The time of a position, if it is known.
    pub fn get(&self, position: u32) -> Option<Stamp> {
        let at = self.runs.partition_point(|run| run.end <= position);
        self.runs.get(at).map(|run| run.stamp())
    }

    /// How many positions have one: all from 0 on.
    pub fn len(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The time that all positions have.
    pub fn only(&self) -> Option<Stamp> {
        match self.runs.as_slice() {
            [run] => Some(run.stamp()),
            _ => None,
        }
    }

    /// The bytes of a record.
    pub fn encode(&self, of: &Identity) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.runs.len().saturating_mul(RUN_LEN).saturating_add(HEADER_LEN + CHECKSUM_LEN));
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::try_from(self.runs.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(encode_identity(of));
        bytes.extend(u64::from(self.len()).to_le_bytes());
        for Run { end, nanos, secs } in &self.runs {
            bytes.extend(end.to_le_bytes());
            bytes.extend(nanos.to_le_bytes());
            bytes.extend(secs.to_le_bytes());
        }
        let checksum = checksum(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// What a record says, and of which state of which file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<(Identity, Times)> {
        let err = |field, offset, got: String, expected: String| Err(Error::new(field, offset, got, expected));
        let (header, rest) = match bytes.split_at_checked(HEADER_LEN) {
            Some(parts) if bytes.len() <= MAX_LEN => parts,
            _ => {
                let expected = format!("{} to {MAX_LEN} bytes", HEADER_LEN + CHECKSUM_LEN);
                return err("record: length", 0, bytes.len().to_string(), expected);
            }
        };
        let mut fields = Fields(header);
        let magic: [u8; 8] = fields.take()?;
        if magic != MAGIC {
            return err("record: magic", 0, format!("{magic:?}"), format!("{MAGIC:?}"));
        }
        let version = u32::from_le_bytes(fields.take()?);
        if version != VERSION {
            return err("record: version", 8, version.to_string(), VERSION.to_string());
        }
        let count = u32::from_le_bytes(fields.take()?);
        let expected = usize::try_from(count).ok().and_then(|count| count.checked_mul(RUN_LEN));
        let Some((runs, sum)) = expected.and_then(|len| rest.split_at_checked(len)).filter(|(_, sum)| sum.len() == CHECKSUM_LEN)
        else {
            return err("record: number of runs", 12, count.to_string(), format!("as many as {} bytes hold", rest.len()));
        };
        let covered = bytes.get(..bytes.len().saturating_sub(CHECKSUM_LEN)).unwrap_or_default();
        let (found, right) = (u64::from_le_bytes(Fields(sum).take()?), checksum(covered));
        if found != right {
            return err("record: checksum", covered.len() as u64, format!("{found:#x}"), format!("{right:#x}"));
        }
        let identity = decode_identity(&mut fields)?;
        let positions = u64::from_le_bytes(fields.take()?);
        let mut times = Times { runs: Vec::with_capacity(runs.len().checked_div(RUN_LEN).unwrap_or(0)) };
        for (n, run) in runs.chunks_exact(RUN_LEN).enumerate() {
            let at = n.saturating_mul(RUN_LEN).saturating_add(HEADER_LEN) as u64;
            let mut fields = Fields(run);
            let end = u32::from_le_bytes(fields.take()?);
            let nanos = u32::from_le_bytes(fields.take()?);
            let secs = i64::from_le_bytes(fields.take()?);
            if end <= times.len() {
                return err("record: end of a run", at, end.to_string(), format!("more than {}", times.len()));
            }
            let stamp = stamp(secs, nanos, at.saturating_add(4))?;
            times.runs.push(Run::new(end, stamp));
        }
        if u64::from(times.len()) != positions {
            return err("record: number of positions", 72, positions.to_string(), times.len().to_string());
        }
        Ok((identity, times))
    }
}

fn encode_identity(of: &Identity) -> impl Iterator<Item = u8> {
    let Identity { dev, ino, len, mtime, ctime, header } = *of;
    let times = [
        mtime.secs.to_le_bytes(),
        (u64::from(mtime.nanos) | u64::from(ctime.nanos) << 32).to_le_bytes(),
        ctime.secs.to_le_bytes(),
        header.to_le_bytes(),
    ];
    [dev, ino, len].map(u64::to_le_bytes).into_iter().chain(times).flatten()
}

fn decode_identity(fields: &mut Fields<'_>) -> Result<Identity> {
    let mut next = || fields.take().map(u64::from_le_bytes);
    let (dev, ino, len) = (next()?, next()?, next()?);
    let (mtime, nanos, ctime, header) = (next()?, next()?, next()?, next()?);
    let (low, high) = (nanos as u32, (nanos >> 32) as u32);
    let (mtime, ctime) = (stamp(mtime.cast_signed(), low, 48)?, stamp(ctime.cast_signed(), high, 52)?);
    Ok(Identity { dev, ino, len, mtime, ctime, header })
}

fn stamp(secs: i64, nanos: u32, at: u64) -> Result<Stamp> {
    match nanos < SECOND {
        true => Ok(Stamp { secs, nanos }),
        false => Err(Error::new("record: nanoseconds", at, nanos, format!("less than {SECOND}"))),
    }
}

/// What is left to read of bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((field, rest)) = self.0.split_first_chunk() else {
            return Err(Error::new("record: field", 0, self.0.len(), format!("{N} bytes")));
        };
        self.0 = rest;
        Ok(*field)
    }
}

/// Puts [`Times`] together from the first position to the last, in bounded memory.
///
/// Of more runs than a record may have, neighbours are merged, the oldest first. What is merged gets the moment at which the record is
/// made, and not the newer time of the two: a tool takes a file whose length and time it knows for the file that it knows, so a file
/// may have a time only if it never had the same with another content. That moment no file has had before. But a time of its
/// neighbour it may have had: clients set times, back as well. A time that is newer than need be costs a transfer of what has not changed,
/// once.
#[derive(Debug)]
pub struct Gather {
    runs: Vec<Run>,
    len: u32,
    most: usize,
    merged: Stamp,
}

impl Gather {
    /// For a record that is made at this moment.
    pub fn new(now: Stamp) -> Self {
        Self::at_most(MAX_RUNS, now)
    }

    fn at_most(most: usize, now: Stamp) -> Self {
        Gather { runs: Vec::new(), len: 0, most: most.max(1), merged: now }
    }

    /// The moment at which the record is made.
    pub fn now(&self) -> Stamp {
        self.merged
    }

    /// The next position has this time; `None` if it does not matter, as there is no file.
    pub fn push(&mut self, time: Option<Stamp>) {
        let Some(end) = self.len.checked_add(1) else { return };
        self.len = end;
        match (self.runs.last_mut(), time) {
            (Some(last), None) => last.end = end,
            (Some(last), Some(time)) if last.stamp() == time => last.end = end,
            (_, Some(time)) => self.runs.push(Run::new(end, time)),
            // The first run that comes has it.
            (None, None) => {}
        }
        if self.runs.len() >= self.most.saturating_mul(2) {
            self.merge();
        }
    }

    /// All of them.
    pub fn finish(mut self) -> Times {
        self.merge();
        if self.runs.is_empty() && self.len > 0 {
            self.runs.push(Run::new(self.len, self.merged));
        }
        Times { runs: self.runs }
    }

    /// Merges as many neighbours as there are too many runs: those pairs whose newer part is the oldest.
    fn merge(&mut self) {
        let excess = self.runs.len().saturating_sub(self.most);
        if excess == 0 {
            return;
        }
        let newer = |(n, pair): (usize, &[Run])| match pair {
            [one, other] => Some((one.stamp().max(other.stamp()), n)),
            _ => None,
        };
        let mut pairs: Vec<(Stamp, usize)> = self.runs.windows(2).enumerate().filter_map(newer).collect();
        pairs.sort_unstable();
        let mut joined: Vec<usize> = pairs.into_iter().take(excess).map(|(_, n)| n).collect();
        joined.sort_unstable();
        let mut joined = joined.into_iter().peekable();
        let runs = std::mem::take(&mut self.runs);
        let mut before = false;
        for (n, run) in runs.into_iter().enumerate() {
            let behind = joined.next_if_eq(&n).is_some();
            let stamp = if before || behind { self.merged } else { run.stamp() };
            match self.runs.last_mut() {
                Some(last) if last.stamp() == stamp => last.end = run.end,
                _ => self.runs.push(Run::new(run.end, stamp)),
            }
            before = behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Stamp {
        Stamp { secs, nanos: 0 }
    }

    fn identity() -> Identity {
        let (mtime, ctime) = (Stamp { secs: -1, nanos: 4 }, Stamp { secs: 5, nanos: 6 });
        Identity { dev: 1, ino: 2, len: 3, mtime, ctime, header: 7 }
    }

    fn gathered(times: &[Option<Stamp>], most: usize, now: Stamp) -> Times {
        let mut gather = Gather::at_most(most, now);
        times.iter().for_each(|time| gather.push(*time));
        gather.finish()
    }

    /// Numbers without end, the same in every run.
    fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (seed >> 33) % below
        }
    }

    #[test]
    fn a_record_is_these_bytes() {
        let times = gathered(&[None, Some(at(8)), None, Some(at(-2)), Some(at(-2))], MAX_RUNS, at(0));
        let bytes = times.encode(&identity());
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let mut expected = b"b2times\0\x01\0\0\0\x02\0\0\0".to_vec();
        expected.extend(words(&[1, 2, 3, u64::MAX, 6 << 32 | 4, 5, 7, 5, 3, 8, 5, u64::MAX - 1]));
        assert_eq!(bytes[..bytes.len() - 8], expected);
        assert_eq!(bytes[bytes.len() - 8..], 0xdba7_b5ae_4c3f_9256u64.to_le_bytes());
        assert_eq!(Times::decode(&bytes).unwrap(), (identity(), times));
    }

    #[test]
    fn a_record_with_any_defect_is_refused() {
        let times = gathered(&[Some(at(1)), Some(at(2)), Some(at(2)), Some(at(3))], MAX_RUNS, at(0));
        let bytes = times.encode(&identity());
        for n in 0..bytes.len() {
            assert!(Times::decode(&bytes[..n]).is_err(), "cut at {n}");
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[n] ^= 1 << bit;
                assert!(Times::decode(&other).is_err(), "bit {bit} of byte {n}");
            }
        }
        assert!(Times::decode(&[&bytes[..], b"x"].concat()).is_err());
        // What the checksum covers as well: who makes a record can make its checksum.
        let with = |at: usize, field: &[u8]| {
            let mut other = bytes.clone();
            other[at..at + field.len()].copy_from_slice(field);
            let end = other.len() - 8;
            let sum = checksum(&other[..end]);
            other[end..].copy_from_slice(&sum.to_le_bytes());
            Times::decode(&other).err().map(|error| error.field)
        };
        assert_eq!(with(0, b"b"), None);
        assert_eq!(with(8, &[2]), Some("record: version"));
        assert_eq!(with(12, &u32::MAX.to_le_bytes()), Some("record: number of runs"));
        assert_eq!(with(12, &2u32.to_le_bytes()), Some("record: number of runs"));
        assert_eq!(with(48, &SECOND.to_le_bytes()), Some("record: nanoseconds"));
        assert_eq!(with(52, &SECOND.to_le_bytes()), Some("record: nanoseconds"));
        assert_eq!(with(72, &5u64.to_le_bytes()), Some("record: number of positions"));
        assert_eq!(with(80, &[0; 4]), Some("record: end of a run"));
        assert_eq!(with(96, &1u32.to_le_bytes()), Some("record: end of a run"));
        assert_eq!(with(84, &u32::MAX.to_le_bytes()), Some("record: nanoseconds"));
        assert_eq!(Times::decode(&vec![0; MAX_LEN + 1]).unwrap_err().field, "record: length");
        let none = gathered(&[], MAX_RUNS, at(0));
        assert_eq!(Times::decode(&none.encode(&identity())).unwrap().1, none);
        assert_eq!(none.get(0), None);
    }

    #[test]
    fn the_longest_record_is_of_a_mebibyte() {
        let of = |count: i64| {
            let mut gather = Gather::new(at(1 << 40));
            (0..count).for_each(|n| gather.push(Some(at(n))));
            gather.finish()
        };
        assert!((MAX_RUNS - 100..=MAX_RUNS).contains(&of(5 * MAX_RUNS as i64).runs.len()));
        let times = of(MAX_RUNS as i64);
        assert_eq!(times.runs.len(), MAX_RUNS);
        let bytes = times.encode(&identity());
        assert!(bytes.len() <= MAX_LEN && bytes.len() + RUN_LEN > MAX_LEN);
        assert_eq!(Times::decode(&bytes).unwrap().1, times);
    }

    #[test]
    fn moments_are_those_of_the_system() {
        for (secs, nanos) in [(0, 0), (1, 1), (-1, 0), (-1, 999_999_999), (-2, 1), (1 << 40, 5), (-(1 << 40), 5)] {
            let stamp = Stamp { secs, nanos };
            assert_eq!(Stamp::from(stamp.time().unwrap()), stamp);
        }
        assert!(at(-1) < Stamp { secs: -1, nanos: 1 } && Stamp { secs: -1, nanos: 1 } < at(0));
        for secs in [i64::MIN, i64::MAX] {
            Stamp { secs, nanos: SECOND - 1 }.time();
        }
    }

    /// What is merged has the record's moment, everything else its own time; no more is merged than has to be, and the oldest.
    #[test]
    fn the_oldest_are_merged() {
        let times: Vec<_> = [5, 1, 2, 9, 3, 8].into_iter().map(|secs| Some(at(secs))).collect();
        let got = |most| (0..6).map(|n| gathered(&times, most, at(10)).get(n).unwrap().secs).collect::<Vec<_>>();
        assert_eq!(got(6), [5, 1, 2, 9, 3, 8]);
        assert_eq!(got(5), [5, 10, 10, 9, 3, 8]);
        assert_eq!(got(4), [10, 10, 10, 9, 3, 8]);
        assert_eq!(got(1), [10; 6]);
    }

    /// A mount after the other, as a frame has them: chunks are written, put between others, removed and given times by clients, and at
    /// the end of each there is a record that is too small. No file ever has a time that it had with another content.
    #[test]
    fn no_file_has_a_time_that_it_had_with_another_content() {
        for seed in 0..200 {
            let mut below = numbers(seed);
            let most = 1 + below(12) as usize;
            let (mut clock, mut content) = (1000i64, 0u32);
            let mut next = move || {
                content += 1;
                content
            };
            // By name: what it holds, and its time. A special chunk has no file.
            let mut files: Vec<Option<(u32, Stamp)>> = (0..20).map(|_| Some((next(), at(clock)))).collect();
            let mut shown: std::collections::HashMap<(usize, Stamp), u32> = std::collections::HashMap::new();
            let mut kept = 0;
            for _ in 0..40 {
                // Positions by name, in the order of the index.
                let mut order: Vec<usize> = (0..files.len()).collect();
                for _ in 0..below(6) {
                    clock += 1;
                    let n = below(files.len() as u64) as usize;
                    match below(8) {
                        0 => {
                            order.insert(below(order.len() as u64 + 1) as usize, files.len());
                            files.push(Some((next(), at(clock))));
                        }
                        1 if order.len() > 2 => drop(order.remove(below(order.len() as u64) as usize)),
                        2 => files[n] = None,
                        // What rsync brings has the time that it has there, and that is of this content alone.
                        3 => {
                            let content = next();
                            files[n] = Some((content, at(-i64::from(content))));
                        }
                        // Or it is a version of an archive, all of whose files have one time; not always the newest.
                        4 => {
                            let version = below(3) as u32;
                            files[n] = Some((1 << 24 | version << 16 | n as u32, at(version.into())));
                        }
                        _ => files[n] = Some((next(), at(clock))),
                    }
                }
                let mut look = |files: &[Option<(u32, Stamp)>]| {
                    for (name, file) in files.iter().enumerate() {
                        let Some((content, time)) = file else { continue };
                        let before = shown.insert((name, *time), *content);
                        assert!(before.is_none_or(|before| before == *content), "seed {seed}: {name} at {time:?}");
                    }
                };
                look(&files);
                clock += 1;
                let mut gather = Gather::at_most(most, at(clock));
                for (position, name) in order.iter().enumerate() {
                    let (moved, file) = (position != *name, files[*name]);
                    gather.push(file.map(|(_, time)| if moved { gather.now() } else { time }));
                }
                let times = gather.finish();
                assert!(times.runs.len() <= most);
                let (_, times) = Times::decode(&times.encode(&identity())).unwrap();
                let now = order.iter().enumerate().map(|(position, name)| {
                    let (content, time) = files[*name]?;
                    let now = times.get(position as u32).unwrap();
                    kept += u32::from(now == time);
                    assert!(now == time || now == at(clock));
                    Some((content, now))
                });
                files = now.collect();
                look(&files);
            }
            assert!(most < 12 || kept > 0);
        }
    }
}
