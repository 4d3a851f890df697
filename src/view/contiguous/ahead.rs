//! Who reads on and on: what a sequential reader will want next is told to the store in time.

use super::layout::Layout;
use crate::store::ChunkKey;

/// How far ahead of a reader chunks are asked for, in bytes.
const WINDOW: u64 = 8 << 20;
/// Readers told apart.
const STREAMS: usize = 4;
/// READs of one reader come from several threads, hence a little out of order: this far from where it was is still on its way.
const SLACK: u64 = 4 << 20;
/// Who has read this much in order is a sequential reader.
const CERTAIN: u64 = 256 << 10;

/// One reader's way through the file.
#[derive(Debug, Default, Clone, Copy)]
struct Stream {
    /// Where it began.
    start: u64,
    /// How far it has come.
    end: u64,
    /// How far chunks have been asked for: each only once.
    asked: u64,
    /// For finding the one that has been idle for longest.
    used: u64,
}

/// The readers of the file.
#[derive(Debug, Default)]
pub struct Ahead {
    streams: [Stream; STREAMS],
    clock: u64,
}

impl Ahead {
    /// Notes a read; answers which part of the file to ask for.
    fn saw(&mut self, offset: u64, len: u64) -> Option<(u64, u64)> {
        self.clock += 1;
        let end = offset.saturating_add(len);
        let near = |stream: &&mut Stream| stream.used > 0 && offset >= stream.start && offset.abs_diff(stream.end) <= SLACK;
        let stream = match self.streams.iter_mut().find(near) {
            Some(stream) => stream,
            None => {
                let stream = self.streams.iter_mut().min_by_key(|stream| stream.used)?;
                *stream = Stream { start: offset, end, asked: end, used: 0 };
                stream
            }
        };
        stream.used = self.clock;
        stream.end = stream.end.max(end);
        stream.asked = stream.asked.max(stream.end);
        let wanted = stream.end.saturating_add(WINDOW);
        if stream.end - stream.start < CERTAIN || wanted - stream.asked < WINDOW / 2 {
            return None;
        }
        Some((std::mem::replace(&mut stream.asked, wanted), wanted))
    }

    /// Notes a read; answers the chunks to ask for, if now is the time.
    pub fn read(&mut self, layout: &Layout, offset: u64, len: usize) -> Vec<(ChunkKey, u32)> {
        let Some((from, to)) = self.saw(offset, len as u64) else { return Vec::new() };
        // Those that begin in that part: what reaches into it was asked for before, or is being read.
        let first = layout.extents.reaching(from);
        let ahead = layout.extents.from(first).skip_while(|extent| extent.start < from).take_while(|extent| extent.start < to);
        ahead.map(|extent| (extent.key, extent.len)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_reader_asks_for_everything_once() {
        let mut ahead = Ahead::default();
        let mut asked = Vec::new();
        for n in [0, 1, 3, 2, 4, 5, 6, 8, 7].into_iter().chain(9..100u64) {
            asked.extend(ahead.saw(n << 17, 1 << 17));
        }
        assert!(asked[0].0 <= 1 << 20 && asked.last().unwrap().1 >= (100 << 17) + WINDOW / 2);
        assert!(asked.windows(2).all(|pair| pair[0].1 == pair[1].0), "{asked:?}");
    }

    #[test]
    fn who_jumps_about_asks_for_nothing() {
        let mut ahead = Ahead::default();
        for n in 0..1000u64 {
            assert_eq!(ahead.saw((n * 7919 % 1000) << 24, 4096), None);
        }
    }

    #[test]
    fn two_readers_are_told_apart() {
        let mut ahead = Ahead::default();
        let (mut one, mut two) = (0, 0);
        for n in 0..64u64 {
            one += usize::from(ahead.saw(n << 17, 1 << 17).is_some());
            two += usize::from(ahead.saw((1 << 40) + (n << 17), 1 << 17).is_some());
        }
        assert!(one >= 2 && one == two, "{one} {two}");
    }
}
