//! Which processes use what is below a path, as far as the user of this process may know.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A process that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsingProcess {
    /// Its number.
    pub pid: u32,
    /// What it is called.
    pub name: String,
}

/// How long is looked, at the most.
const PATIENCE: Duration = Duration::from_secs(1);
/// Open files of a process that are looked at.
const MOST_FILES: usize = 4096;
/// Bytes that are read of the list of its mapped files.
const MOST_MAPS: u64 = 4 << 20;

/// Processes that have a file open at or below `point`, a path without symbolic links, or work there; if there are none, those that have
/// one mapped, without this process and those that it started. Nothing of what is there is asked for anything.
pub fn holders(point: &Path) -> Vec<UsingProcess> {
    let until = Instant::now() + PATIENCE;
    let found = search(until, |process| has_open(process, point));
    if found.is_empty() { search(until, |process| has_mapped(process, point)) } else { found }
}

fn search(until: Instant, uses: impl Fn(&Path) -> bool) -> Vec<UsingProcess> {
    let own = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let looked_at = numbers.filter(|pid| *pid != own).take_while(|_| Instant::now() < until);
    looked_at
        .filter_map(|pid| {
            let process = PathBuf::from(format!("/proc/{pid}"));
            (uses(&process) && parent(&process) != Some(own)).then(|| {
                let name = std::fs::read(process.join("comm")).unwrap_or_default();
                UsingProcess { pid, name: String::from_utf8_lossy(name.trim_ascii_end()).into_owned() }
            })
        })
        .collect()
}

fn parent(process: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

fn has_open(process: &Path, point: &Path) -> bool {
    let leads = |link: &Path| std::fs::read_link(link).is_ok_and(|target| is_below(target.as_os_str(), point));
    if ["cwd", "root", "exe"].iter().any(|name| leads(&process.join(name))) {
        return true;
    }
    let Ok(files) = std::fs::read_dir(process.join("fd")) else { return false };
    files.flatten().take(MOST_FILES).any(|file| leads(&file.path()))
}

fn has_mapped(process: &Path, point: &Path) -> bool {
    use std::io::Read;
    let mut text = Vec::new();
    let read = std::fs::File::open(process.join("maps")).and_then(|maps| maps.take(MOST_MAPS).read_to_end(&mut text));
    // The path is the sixth field, and may have spaces; the others are shorter than 74 bytes, and have no slash.
    let path = |line: &[u8]| {
        line.iter().position(|byte| *byte == b'/').map(|at| OsString::from(OsStr::from_bytes(line.get(at..).unwrap_or_default())))
    };
    read.is_ok() && text.split(|byte| *byte == b'\n').filter_map(path).any(|path| is_below(&path, point))
}

/// Whether the kernel's name for a file is that of `point` or of something in it.
fn is_below(name: &OsStr, point: &Path) -> bool {
    let name = name.as_bytes();
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    Path::new(OsStr::from_bytes(name)).starts_with(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_a_point() {
        let below = |name: &str| is_below(name.as_ref(), Path::new("/mnt/a"));
        assert!(below("/mnt/a") && below("/mnt/a/b c") && below("/mnt/a/b (deleted)") && below("/mnt/a (deleted)"));
        assert!(!below("/mnt/ab") && !below("/mnt") && !below("socket:[1]") && !below("anon_inode:[eventpoll]"));
    }

    #[test]
    fn another_process_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().canonicalize().unwrap();
        assert_eq!(holders(&point), []);
        // A shell that this process starts, and what the shell starts.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo $!; wait"]).current_dir(&point).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
        let pid = line.trim().parse::<u32>().unwrap();
        let found = holders(&point);
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
        shell.wait().unwrap();
        assert_eq!(found.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [pid]);
    }
}
