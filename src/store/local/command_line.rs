//! The command line of this process, as lists of processes show it.
//!
//! Every user can read it. The kernel takes it from the memory where the process was given its arguments. That is written to through
//! `/proc/self/mem`, which reaches this process alone and needs neither rights nor raw pointers; prctl(2) would need CAP_SYS_RESOURCE.
//! A process that is forked later has the memory as it is then.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::read_small;

/// Bytes of a command line, at most. Linux has a limit of 6 MiB.
const MOST: u64 = 16 << 20;
/// Where in `/proc/PID/stat`, counted from behind the program's name, the memory of the arguments begins. The next one is its end.
const BEGIN: usize = 45;

/// Puts stars in place of these parts of each argument. What the program was given it must have read before.
///
/// # Errors
/// What the system refuses: then some of them may be there still.
pub fn hide_arguments(parts: impl Fn(&[u8]) -> Vec<Range<usize>>) -> io::Result<()> {
    let strange = || io::Error::other("/proc/self/stat is not as expected");
    let stat = read_small(Path::new("/proc/self/stat"), MOST)?;
    let behind = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 1..)).ok_or_else(strange)?;
    let behind = str::from_utf8(behind).map_err(|_| strange())?;
    let mut places = behind.split_whitespace().skip(BEGIN).map(|field| field.parse::<u64>().ok());
    let (Some(Some(begin)), Some(Some(end))) = (places.next(), places.next()) else { return Err(strange()) };
    let len = end.checked_sub(begin).filter(|len| (1..=MOST).contains(len)).ok_or_else(strange)?;
    let memory = File::from(rustix::fs::open("/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?);
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| strange())?];
    memory.read_exact_at(&mut bytes, begin)?;
    let mut at = 0;
    for argument in bytes.split(|byte| *byte == 0) {
        for part in parts(argument) {
            let stars = vec![b'*'; part.len()];
            memory.write_all_at(&stars, begin + (at + part.start) as u64)?;
        }
        at += argument.len() + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_hidden() {
        let shown = || std::fs::read("/proc/self/cmdline").unwrap();
        let before = shown();
        // The first one is the path of the tests' program, which nobody needs any more.
        let first = |argument: &[u8]| before.starts_with(argument) && argument.len() > 3;
        hide_arguments(|argument| first(argument).then_some(1..3).into_iter().collect()).unwrap();
        let after = shown();
        assert_eq!((&after[1..3], after.len()), (b"**".as_slice(), before.len()));
        assert_eq!((after[0], &after[3..]), (before[0], &before[3..]));
    }
}
