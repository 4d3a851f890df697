//! Slices of arrays, as NumPy writes them between brackets: `3:10,:,5`, `..., ::-1`, `-1`.
//!
//! An integer takes one item of a dimension, which is then none of the result's; `start:stop:step` takes some, and what is out of
//! range takes fewer; `...` stands for the dimensions that are not named, which are taken whole, as are those behind the last
//! one named. Lists, masks and new dimensions are no part of it: the result is a box of the array, perhaps with holes.

use super::plain::plain;
use super::{Error, Result};

/// Characters of a slice at most.
pub const MAX_TEXT: usize = 4096;

const FIELD: &str = "slice";

/// The items that a slice takes along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Along {
    /// The first item, if there is one.
    pub start: u64,
    /// From one item to the next; not 0.
    pub step: i64,
    /// Items.
    pub count: u64,
    /// Whether the dimension is one of the result's; else there is one item.
    pub is_kept: bool,
}

impl Along {
    /// The place of an item in the array; the number counts from 0 and is below `count`.
    pub fn item(&self, number: u64) -> u64 {
        // Items are within the dimension, so that no sum is out of range.
        let way = self.step.unsigned_abs().saturating_mul(number);
        if self.step < 0 { self.start.saturating_sub(way) } else { self.start.saturating_add(way) }
    }
}

/// The items that a slice takes of an array: for each dimension of the array, those along it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// As many as the array has dimensions.
    pub dims: Vec<Along>,
}

impl Slice {
    /// The whole of an array.
    pub fn whole(shape: &[u64]) -> Self {
        let dims = shape.iter().map(|size| Along { start: 0, step: 1, count: *size, is_kept: true }).collect();
        Slice { dims }
    }

    /// What a text means for an array of that shape. Spaces do not matter, and brackets around the whole may be there.
    ///
    /// # Errors
    /// What is no such text, more parts than dimensions, and an integer that is out of range. Offsets count from the beginning of
    /// the text.
    pub fn parse(text: &str, shape: &[u64]) -> Result<Self> {
        if text.len() > MAX_TEXT {
            return Err(Error::new(FIELD, 0, format_args!("{} bytes", text.len()), format_args!("at most {MAX_TEXT}")));
        }
        let mut dims = shape.iter().enumerate();
        let mut taken = Vec::with_capacity(shape.len());
        let parts = parts(text);
        parts.iter().try_for_each(Part::check)?;
        let named = parts.iter().filter(|part| part.text != "...").count();
        let Some(rest) = shape.len().checked_sub(named) else {
            let got = format!("{named} parts");
            return Err(Error::new(FIELD, 0, got, format_args!("at most {}, the array's dimensions", shape.len())));
        };
        let mut ellipsis = None;
        for part in &parts {
            if part.text == "..." {
                if ellipsis.replace(part.at).is_some() {
                    return Err(Error::new(FIELD, part.at, "a second '...'", "one at most"));
                }
                taken.extend(dims.by_ref().take(rest).map(|(_, size)| whole(*size)));
            } else if let Some((axis, size)) = dims.next() {
                taken.push(part.along(axis, *size)?);
            }
        }
        taken.extend(dims.map(|(_, size)| whole(*size)));
        Ok(Slice { dims: taken })
    }

    /// Items of the result in each of its dimensions.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().filter(|along| along.is_kept).map(|along| along.count).collect()
    }
}

fn whole(size: u64) -> Along {
    Along { start: 0, step: 1, count: size, is_kept: true }
}

/// What is between two commas.
struct Part<'a> {
    /// Without spaces around it.
    text: &'a str,
    at: u64,
}

/// The parts of a text. `()` has none.
fn parts(text: &str) -> Vec<Part<'_>> {
    let trim = |text: &'_ str, at: u64| {
        let left = text.len().saturating_sub(text.trim_start().len());
        at.saturating_add(left as u64)
    };
    let (mut at, mut inner) = (trim(text, 0), text.trim());
    if let Some(bracketed) = inner.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        at = trim(bracketed, at.saturating_add(1));
        inner = bracketed.trim();
    }
    if inner == "()" {
        return Vec::new();
    }
    // One comma behind the last part is none too many.
    let inner = inner.strip_suffix(',').unwrap_or(inner);
    let mut parts = Vec::new();
    for text in inner.split(',') {
        parts.push(Part { text: text.trim(), at: trim(text, at) });
        at = at.saturating_add(text.len() as u64).saturating_add(1);
    }
    parts
}

impl Part<'_> {
    fn error(&self, expected: &str) -> Error {
        let shown: String = self.text.chars().take(40).collect();
        Error::new(FIELD, self.at, format_args!("'{}'", plain(&shown)), expected)
    }

    /// Refuses what NumPy knows, and has no place here.
    fn check(&self) -> Result<()> {
        if matches!(self.text, "None" | "np.newaxis" | "newaxis") {
            return Err(self.error("no new dimension, as the result is a part of the array"));
        }
        if self.text.contains(['[', '(', ']', ')']) || matches!(self.text, "True" | "False") {
            return Err(self.error("no list and no mask: an integer, start:stop:step or '...'"));
        }
        Ok(())
    }

    /// The items that it takes of a dimension.
    fn along(&self, axis: usize, size: u64) -> Result<Along> {
        const EXPECTED: &str = "an integer, start:stop:step or '...'";
        let size = i64::try_from(size).map_err(|_| Error::new(FIELD, self.at, size, "a dimension of less than 2^63 items"))?;
        let mut numbers = self.text.split(':').map(str::trim);
        let (first, stop, step) = (numbers.next().unwrap_or_default(), numbers.next(), numbers.next());
        if numbers.next().is_some() {
            return Err(self.error(EXPECTED));
        }
        let number = |text: &str| integer(text).ok_or_else(|| self.error(EXPECTED));
        let optional = |text: Option<&str>| match text {
            None | Some("" | "None") => Ok(None),
            Some(text) => number(text).map(Some),
        };
        let Some(stop) = stop else {
            let index = number(first)?;
            let from_end = if index < 0 { index.saturating_add(size) } else { index };
            let start = u64::try_from(from_end).ok().filter(|_| from_end < size);
            let start = start.ok_or_else(|| self.error(&format!("an item of axis {axis}, which has {size}")))?;
            return Ok(Along { start, step: 1, count: 1, is_kept: false });
        };
        // Its negative is then an i64 as well.
        let step = optional(step)?.unwrap_or(1).max(-i64::MAX);
        if step == 0 {
            return Err(self.error("a step that is not 0"));
        }
        let (start, count) = range(optional(Some(first))?, optional(Some(stop))?, step, size);
        Ok(Along { start, step, count, is_kept: true })
    }
}

/// The first item, and how many there are.
fn range(start: Option<i64>, stop: Option<i64>, step: i64, size: i64) -> (u64, u64) {
    // Where one goes to that is out of range: just outside, on the side that it is out of range on.
    let last = size.saturating_sub(1);
    let (low, high) = if step < 0 { (-1, last) } else { (0, size) };
    let clamp = |number: i64| match number {
        ..0 => number.saturating_add(size).max(low),
        _ => number.min(high),
    };
    let start = start.map_or(if step < 0 { last } else { 0 }, clamp);
    let stop = stop.map_or(if step < 0 { -1 } else { size }, clamp);
    let way = if step < 0 { start.saturating_sub(stop) } else { stop.saturating_sub(start) };
    let count = u64::try_from(way).unwrap_or(0).div_ceil(step.unsigned_abs());
    // Where nothing is taken, no item is the first one.
    if count == 0 { (0, 0) } else { (u64::try_from(start).unwrap_or(0), count) }
}

/// A decimal integer, of those out of range the last one in range, which is out of the range of any array as well.
fn integer(text: &str) -> Option<i64> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits.trim_start()),
        None => (false, text.strip_prefix('+').map_or(text, str::trim_start)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits.parse().unwrap_or(i64::MAX);
    Some(if is_negative { value.saturating_neg() } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn items(text: &str, size: u64) -> Vec<u64> {
        let slice = Slice::parse(text, &[size]).unwrap();
        let [along] = slice.dims[..] else { panic!("{slice:?}") };
        (0..along.count).map(|number| along.item(number)).collect()
    }

    #[test]
    fn what_a_slice_takes() {
        for (text, expected) in [
            ("3", &[3][..]),
            ("-1", &[9]),
            (" + 3", &[3]),
            (":", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ("...", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ("()", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            ("3:6", &[3, 4, 5]),
            ("[3:6]", &[3, 4, 5]),
            (" [ 3 : 6 ] ", &[3, 4, 5]),
            ("3:6,", &[3, 4, 5]),
            ("3:6,...", &[3, 4, 5]),
            ("None:None:4", &[0, 4, 8]),
            ("::4", &[0, 4, 8]),
            ("1::4", &[1, 5, 9]),
            ("::-4", &[9, 5, 1]),
            ("-2::-4", &[8, 4, 0]),
            ("6:3", &[]),
            ("6:3:-1", &[6, 5, 4]),
            ("8:100", &[8, 9]),
            ("100:", &[]),
            ("-100:2", &[0, 1]),
            ("100:7:-1", &[9, 8]),
            ("1:-100:-1", &[1, 0]),
            (":99999999999999999999:9223372036854775807", &[0]),
            ("::-99999999999999999999", &[9]),
            ("-99999999999999999999:1", &[0]),
        ] {
            assert_eq!(items(text, 10), expected, "{text}");
        }
        assert_eq!(items("::-1", 0), [0; 0]);
        assert_eq!(items("5:", 0), [0; 0]);
    }

    #[test]
    fn dimensions_that_are_not_named_are_whole() {
        let shape = |text: &str| Slice::parse(text, &[4, 5, 6, 7]).unwrap().shape();
        assert_eq!(shape("1:3"), [2, 5, 6, 7]);
        assert_eq!(shape("1,...,2"), [5, 6]);
        assert_eq!(shape("...,::2"), [4, 5, 6, 4]);
        assert_eq!(shape("1,2,3,4"), [0; 0]);
        assert_eq!(shape("1,2,...,3,4"), [0; 0]);
        assert_eq!(Slice::parse("...", &[]).unwrap(), Slice::whole(&[]));
        assert_eq!(Slice::parse("()", &[]).unwrap().shape(), [0; 0]);
        assert_eq!(Slice::parse(":,:", &[3, 0]).unwrap(), Slice::whole(&[3, 0]));
    }

    #[test]
    fn what_is_refused() {
        let error = |text: &str| Slice::parse(text, &[4, 5]).unwrap_err().to_string();
        assert_eq!(error("4"), "slice at byte 0: found '4', expected an item of axis 0, which has 4");
        assert_eq!(error("[0, -6]"), "slice at byte 4: found '-6', expected an item of axis 1, which has 5");
        assert_eq!(error("1,2,3"), "slice at byte 0: found 3 parts, expected at most 2, the array's dimensions");
        assert_eq!(error("..., ..."), "slice at byte 5: found a second '...', expected one at most");
        assert_eq!(error("::0"), "slice at byte 0: found '::0', expected a step that is not 0");
        assert_eq!(
            error("None"),
            "slice at byte 0: found 'None', expected no new dimension, as the result is a part of the array"
        );
        for text in [
            "", "[]", "[", "1]", "[[1]]", "(1)", "True", "1:2:3:4", "a", "1.5", "1e3", ",", "1,,2", "0x1", "1_0", "--1", "..",
            "\u{661}",
        ] {
            assert!(Slice::parse(text, &[4, 5]).is_err(), "{text}");
        }
        assert!(Slice::parse("1", &[]).is_err());
        assert!(Slice::parse("0", &[0]).is_err());
        assert!(Slice::parse(&":,".repeat(MAX_TEXT), &[1]).is_err());
        assert!(Slice::parse("0:1", &[u64::MAX]).is_err());
    }

    proptest! {
        #[test]
        fn items_are_those_between_start_and_stop(size in 0u64..12, start in -15i64..15, stop in -15i64..15, step in -5i64..6) {
            prop_assume!(step != 0);
            let taken = items(&format!("{start}:{stop}:{step}"), size);
            let from_end = |number: i64| if number < 0 { number + size as i64 } else { number };
            let (start, stop) = (from_end(start), from_end(stop));
            // Walking from the start, those within the array; but a start outside of it goes to its end first.
            let mut at = if step > 0 { start.max(0) } else { start.min(size as i64 - 1) };
            let mut expected = Vec::new();
            while if step > 0 { at < stop.min(size as i64) } else { at > stop.max(-1) } {
                expected.push(at as u64);
                at += step;
            }
            prop_assert_eq!(taken, expected);
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "[0-9:.,\\[\\] -]{0,20}", shape in proptest::collection::vec(0u64..9, 0..4)) {
            if let Ok(slice) = Slice::parse(&text, &shape) {
                prop_assert_eq!(slice.dims.len(), shape.len());
                for (along, size) in slice.dims.iter().zip(&shape) {
                    prop_assert!((0..along.count).all(|number| along.item(number) < *size), "{:?}", along);
                    prop_assert!(along.is_kept || along.count == 1);
                }
            }
        }
    }
}
