//! Where messages go: a file, stderr of a mount in front, or the system's log; where there is none, a file of our own.
//!
//! Whoever logs waits for nobody. A regular file is written to at once. A pipe or a terminal, whose reader may have stopped, gets its
//! lines from a thread, and the system's log by a socket that does not block; what finds no room there is counted, and the count is
//! the next message that gets through.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::format::plain::plain;
use crate::store::in_words;
use crate::store::local::system;
use crate::store::local::{self, OwnLog};

/// Where the system takes messages.
const SYSTEM_LOG: &str = "/dev/log";
/// The facility of daemons (3), as syslog(3) has it.
const FACILITY: u8 = 3 << 3;

/// Bytes of a log of our own, at the most.
const LONGEST_LOG: u64 = 1 << 20;
/// Lines that wait for the reader of a pipe or a terminal.
const MOST_WAITING: usize = 256;
/// Bytes of a line, at the most.
const LONGEST: usize = 8 << 10;
/// How long the end of the program waits for that reader.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Where messages go.
pub(super) enum Target {
    /// Of a mount in front.
    Stderr,
    /// Of a command that says one line if it fails: what went well enough is told after it has succeeded.
    AfterSuccess,
    /// Appended to, until it is opened again by its path.
    File(File, PathBuf),
    /// The system's log; of what it does not take, see [`Own`].
    System {
        /// Where the mount is.
        point: PathBuf,
    },
}

/// A target that is ready.
enum Sink {
    Stderr(Output),
    File(RwLock<Output>, PathBuf),
    Held(Mutex<Vec<String>>),
    System(System, Own),
}

struct Logger {
    sink: Sink,
    level: LevelFilter,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Begins to log. To be called once, and when there is no fork to come.
pub(super) fn start(target: Target, level: LevelFilter) {
    let sink = match target {
        Target::Stderr => match io::stderr().as_fd().try_clone_to_owned() {
            Ok(fd) => Sink::Stderr(Output::of(fd.into())),
            Err(_) => return,
        },
        Target::AfterSuccess => Sink::Held(Mutex::default()),
        Target::File(file, path) => Sink::File(RwLock::new(Output::of(file)), path),
        Target::System { point } => Sink::System(System::new(), Own::of(point)),
    };
    if log::set_logger(LOGGER.get_or_init(|| Logger { sink, level })).is_ok() {
        log::set_max_level(level);
    }
}

/// This process leaves whoever started it, and its stderr.
pub(super) fn leave() {
    if let Some(Sink::System(_, own)) = LOGGER.get().map(|logger| &logger.sink) {
        own.leave();
    }
}

/// Logs what is said on stderr as well; whether it is there now.
pub(super) fn announce(text: &str) -> bool {
    match LOGGER.get().map(|logger| &logger.sink) {
        Some(Sink::Stderr(_)) if log::max_level() >= LevelFilter::Info => {
            log::info!("{text}");
            return true;
        }
        Some(Sink::System(_, own)) => own.hushed(|| log::info!("{text}")),
        // What is held goes to stderr as well, later.
        Some(Sink::Held(_)) => {}
        _ => log::info!("{text}"),
    }
    false
}

/// Logs why a daemon serves nothing, which whoever started it says on the stderr that is still this process's, too.
pub(super) fn failed_to_start(line: &str) {
    if let Some(Sink::System(_, own)) = LOGGER.get().map(|logger| &logger.sink) {
        own.hush();
    }
    log::error!("{line}");
}

/// Goes on in a file that has the log file's path now, which may be a new one.
pub(super) fn reopen() {
    let Some(Sink::File(output, path)) = LOGGER.get().map(|logger| &logger.sink) else { return };
    match local::reopen_log_file(path) {
        Ok(Some(file)) => {
            let new = Output::of(file);
            let old = std::mem::replace(&mut *output.write(), new);
            old.flush();
        }
        Ok(None) => {}
        Err(error) => log::error!("{}: cannot open the log file again: {}", path.display(), in_words(&error)),
    }
}

/// Where to look for what the daemon of a mount has said, in words.
pub(super) fn place(point: &Path, user: u32) -> String {
    match local::own_log(point, user) {
        Some(path) => format!("the daemon's log, {}", path.display()),
        None => "the daemon's log".into(),
    }
}

/// Prints the line of a failure to stderr, behind what is logged there.
pub(super) fn say(line: &str) {
    match LOGGER.get().map(|logger| &logger.sink) {
        Some(Sink::Stderr(output)) => output.write(line),
        _ => eprintln!("{line}"),
    }
}

/// The end of the program: what was logged is written, if anybody takes it.
pub(super) fn end(success: bool) {
    match LOGGER.get().map(|logger| &logger.sink) {
        Some(Sink::Stderr(output)) => output.flush(),
        Some(Sink::File(output, _)) => output.read().flush(),
        Some(Sink::System(_, own)) => own.end(success),
        Some(Sink::Held(lines)) if success => lines.lock().drain(..).for_each(|line| eprintln!("{line}")),
        _ => {}
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        // It warns of every request that a file system leaves to the kernel.
        let level = if target.starts_with(crate::fs::LIBRARY) { Level::Trace } else { metadata.level() };
        // What libraries tell of their work may have URLs and headers in it, and so secrets.
        let ours = target.starts_with(env!("CARGO_CRATE_NAME")) || target.starts_with(crate::fs::LIBRARY);
        level <= self.level && (ours || metadata.level() <= Level::Warn)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = shortened(plain(&record.args().to_string()).to_string());
        match &self.sink {
            Sink::Stderr(output) => output.write(&text),
            Sink::File(output, _) => output.read().write(&dated(record.level(), &text)),
            Sink::Held(lines) if record.level() > Level::Error => {
                let mut lines = lines.lock();
                if lines.len() < MOST_WAITING {
                    lines.push(text);
                }
            }
            Sink::Held(_) => eprintln!("{text}"),
            Sink::System(system, own) => {
                if !system.send(record.level(), &text) {
                    own.write(record.level(), &text);
                }
            }
        }
    }

    fn flush(&self) {}
}

fn dated(level: Level, text: &str) -> String {
    format!("{} {level:<5} [{}] {text}", Utc::now(), std::process::id())
}

fn shortened(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// What is told of messages that were dropped.
fn dropped(count: u64) -> String {
    format!("{count} messages before this one were dropped, as nobody read the log")
}

/// A file that lines are written to.
enum Output {
    /// One that takes them at once.
    Direct(File),
    /// One that somebody must read.
    Queued(Arc<Queue>),
}

impl Output {
    fn of(file: File) -> Self {
        if file.metadata().is_ok_and(|meta| meta.is_file()) {
            return Output::Direct(file);
        }
        let queue = Arc::new(Queue::default());
        let copy = file.try_clone();
        let serve = {
            let queue = Arc::clone(&queue);
            move || queue.serve(&file)
        };
        match (std::thread::Builder::new().name("b2fuse-log".into()).spawn(serve), copy) {
            (Err(_), Ok(file)) => Output::Direct(file),
            _ => Output::Queued(queue),
        }
    }

    fn write(&self, line: &str) {
        match self {
            // There is nobody to tell of a log that cannot be written.
            Output::Direct(file) => drop((&*file).write_all(format!("{line}\n").as_bytes())),
            Output::Queued(queue) => queue.put(line.to_owned()),
        }
    }

    fn flush(&self) {
        if let Output::Queued(queue) = self {
            queue.wait(LAST_WAIT);
        }
    }
}

/// Lines on their way to a reader.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<String>,
    /// Lines that found no room since the last one that did.
    dropped: u64,
    /// The thread has a line in its hands.
    writing: bool,
}

impl Queue {
    fn put(&self, line: String) {
        let mut waiting = self.waiting.lock();
        if waiting.lines.len() >= MOST_WAITING {
            waiting.dropped += 1;
            return;
        }
        waiting.lines.push_back(line);
        self.changed.notify_all();
    }

    fn serve(&self, mut file: &File) {
        let mut waiting = self.waiting.lock();
        loop {
            let count = std::mem::take(&mut waiting.dropped);
            // What was dropped came behind what waits.
            if count > 0 {
                waiting.lines.push_back(dropped(count));
            }
            waiting.writing = !waiting.lines.is_empty();
            let Some(line) = waiting.lines.pop_front() else {
                self.changed.notify_all();
                self.changed.wait(&mut waiting);
                continue;
            };
            parking_lot::MutexGuard::unlocked(&mut waiting, || {
                let _ = file.write_all((line + "\n").as_bytes());
            });
        }
    }

    /// Waits until all is written.
    fn wait(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut waiting = self.waiting.lock();
        while (waiting.writing || !waiting.lines.is_empty()) && !self.changed.wait_until(&mut waiting, end).timed_out() {}
    }
}

/// The system's log, which gets a datagram for each message, and so may be restarted.
struct System {
    socket: Option<UnixDatagram>,
    to: PathBuf,
    dropped: AtomicU64,
}

impl System {
    fn new() -> Self {
        let socket = UnixDatagram::unbound().ok().filter(|socket| socket.set_nonblocking(true).is_ok());
        System { socket, to: SYSTEM_LOG.into(), dropped: AtomicU64::new(0) }
    }

    /// Sends a message, or counts it where there is no room; false if there is no log to send it to.
    fn send(&self, level: Level, text: &str) -> bool {
        let Some(socket) = &self.socket else { return false };
        let severity = match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        };
        let send = |severity: u8, text: &str| {
            let message = format!("<{}>b2fuse[{}]: {text}", FACILITY | severity, std::process::id());
            system::send_to(socket, message.as_bytes(), &self.to)
        };
        let before = self.dropped.load(Relaxed);
        if before > 0 && send(4, &dropped(before)).is_ok() {
            self.dropped.fetch_sub(before, Relaxed);
        }
        match send(severity, text) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.dropped.fetch_add(1, Relaxed);
                true
            }
            Err(_) => false,
        }
    }
}

/// Where messages go that the system's log does not take: to stderr, until the daemon leaves it, and then to a file of its own, which is
/// removed at a good end if it holds nothing but what is good to know.
struct Own {
    point: PathBuf,
    state: Mutex<OwnState>,
}

enum OwnState {
    Stderr,
    /// Somebody else says what there is to say.
    Hushed,
    /// To be opened with the first message.
    Left,
    Open {
        log: OwnLog,
        len: u64,
        serious: bool,
    },
    /// It cannot be opened.
    Nowhere,
}

impl Own {
    fn of(point: PathBuf) -> Self {
        Own { point, state: Mutex::new(OwnState::Stderr) }
    }

    fn leave(&self) {
        *self.state.lock() = OwnState::Left;
    }

    fn hush(&self) {
        let mut state = self.state.lock();
        if let OwnState::Stderr = *state {
            *state = OwnState::Hushed;
        }
    }

    /// Does something that is not to be heard on stderr.
    fn hushed(&self, work: impl FnOnce()) {
        self.hush();
        work();
        let mut state = self.state.lock();
        if let OwnState::Hushed = *state {
            *state = OwnState::Stderr;
        }
    }

    fn write(&self, level: Level, text: &str) {
        let mut state = self.state.lock();
        if let OwnState::Left = *state {
            *state = match OwnLog::open(&self.point) {
                Ok(log) => OwnState::Open { len: log.file.metadata().map_or(0, |meta| meta.len()), serious: !log.new, log },
                Err(_) => OwnState::Nowhere,
            };
        }
        match &mut *state {
            // Whoever has closed it does not want to know.
            OwnState::Stderr => drop(writeln!(io::stderr(), "{text}")),
            OwnState::Open { log, len, serious } => {
                let line = dated(level, text)
                    + "
";
                *len += line.len() as u64;
                // In memory, on most systems.
                if *len > LONGEST_LOG {
                    let _ = log.file.set_len(0);
                    *len = line.len() as u64;
                }
                let _ = (&log.file).write_all(line.as_bytes());
                *serious |= level <= Level::Warn;
            }
            OwnState::Hushed | OwnState::Left | OwnState::Nowhere => {}
        }
    }

    fn end(&self, success: bool) {
        if let OwnState::Open { log, serious: false, .. } = &*self.state.lock()
            && success
        {
            let _ = log.remove();
        }
    }
}

/// A moment, shown to the millisecond.
struct Utc(SystemTime);

impl Utc {
    fn now() -> Self {
        Utc(SystemTime::now())
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        let (hour, minute, second, millis) = (seconds / 3600, seconds / 60 % 60, seconds % 60, since.subsec_millis());
        // Years begin in March here, so that a leap day is the last of its year; an era has 400 of them.
        let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
        let year = era * 400 + year;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use std::os::fd::OwnedFd;

    use super::*;
    use crate::store::local::open_log_file;

    #[test]
    fn moments() {
        assert_eq!(Utc(UNIX_EPOCH).to_string(), "1970-01-01T00:00:00.000Z");
        let leap = UNIX_EPOCH + Duration::from_millis(951_827_696_789);
        assert_eq!(Utc(leap).to_string(), "2000-02-29T12:34:56.789Z");
        let day = |n: u64| Utc(UNIX_EPOCH + Duration::from_secs(n * 86_400)).to_string();
        let days = [(58, "1970-02-28"), (59, "1970-03-01"), (364, "1970-12-31"), (365, "1971-01-01"), (11_017, "2000-03-01")];
        let far = [
            (19_782, "2024-02-29"),
            (20_453, "2025-12-31"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
            (157_113, "2400-02-29"),
        ];
        for (n, expected) in days.into_iter().chain(far) {
            assert_eq!(day(n), format!("{expected}T00:00:00.000Z"));
        }
    }

    #[test]
    fn the_librarys_own_messages_are_for_those_who_want_everything() {
        let library = format!("{}::reply", crate::fs::LIBRARY);
        let enabled = |level, target: &str, wanted| {
            let logger = Logger { sink: Sink::Held(Mutex::default()), level: wanted };
            logger.enabled(&Metadata::builder().level(level).target(target).build())
        };
        assert!(enabled(Level::Info, "b2fuse::view", LevelFilter::Info));
        assert!(!enabled(Level::Debug, "b2fuse::view", LevelFilter::Info));
        assert!(!enabled(Level::Error, &library, LevelFilter::Debug));
        assert!(enabled(Level::Warn, &library, LevelFilter::Trace));
        // URLs are in what these say of their work.
        assert!(!enabled(Level::Info, "object_store::client::retry", LevelFilter::Trace));
        assert!(enabled(Level::Warn, "reqwest::connect", LevelFilter::Warn));
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (reader, writer) = io::pipe().unwrap();
        let output = Output::of(File::from(OwnedFd::from(writer)));
        let line = "x".repeat(1000);
        for _ in 0..2000 {
            output.write(&line);
        }
        let Output::Queued(queue) = &output else { panic!("a pipe is written to directly") };
        queue.wait(Duration::from_millis(10));
        assert!(queue.waiting.lock().writing, "the thread waits for the reader, and nobody else does");
        // Whoever reads on at last gets what waited, and hears how much is missing.
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        let (mut got, mut missing) = (0, 0);
        while got + missing < 2000 {
            match lines.next().unwrap().split_once(" messages before this one were dropped") {
                Some((count, _)) => missing += count.parse::<u64>().unwrap(),
                None => got += 1,
            }
        }
        assert!(got + missing == 2000 && missing > 1000, "{got} {missing}");
        output.write("the last one");
        assert_eq!(lines.next().unwrap(), "the last one");
        output.flush();
    }

    #[test]
    fn a_system_log_that_nobody_reads_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("log");
        let log = UnixDatagram::bind(&to).unwrap();
        let system = System { to, ..System::new() };
        for n in 0..2000 {
            system.send(Level::Info, &format!("message {n}"));
        }
        let missing = system.dropped.load(Relaxed);
        assert!((1..2000).contains(&missing), "{missing}");
        let mut message = [0; 1000];
        let mut next = || {
            let len = log.recv(&mut message).unwrap();
            String::from_utf8_lossy(&message[..len]).into_owned()
        };
        for n in 0..2000 - missing {
            assert!(next().ends_with(&format!(": message {n}")));
        }
        system.send(Level::Info, "after a pause");
        assert!(next().contains(&format!(": {missing} messages before this one were dropped")));
        assert!(next().ends_with(": after a pause"));
        assert_eq!(system.dropped.load(Relaxed), 0);
    }

    #[test]
    fn log_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let refused = |name: &str, why: &str| {
            let error = open_log_file(&path(name)).unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        };
        (&open_log_file(&path("log")).unwrap()).write_all(b"one").unwrap();
        (&open_log_file(&path("log")).unwrap()).write_all(b"two").unwrap();
        assert_eq!(std::fs::read(path("log")).unwrap(), b"onetwo");
        assert!(open_log_file(Path::new("/dev/null")).is_ok());
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        refused("fifo", "neither a regular file nor a character device");
        let _reader = File::options().read(true).write(true).open(path("fifo")).unwrap();
        refused("fifo", "neither a regular file nor a character device");
        let _socket = UnixDatagram::bind(path("socket")).unwrap();
        refused("socket", "neither a regular file nor a character device");
        refused(".", "Is a directory");
        refused("none/log", "No such file");
        symlink("loop", path("loop")).unwrap();
        refused("loop", "symbolic links");
        // A link is followed where nobody else could have made it, into a directory as well.
        std::fs::create_dir(path("deep")).unwrap();
        symlink("deep/to", path("link")).unwrap();
        symlink("../new", path("deep/to")).unwrap();
        (&open_log_file(&path("link")).unwrap()).write_all(b"by links").unwrap();
        assert_eq!(std::fs::read(path("new")).unwrap(), b"by links");
        std::fs::set_permissions(path("deep"), PermissionsExt::from_mode(0o777)).unwrap();
        refused("link", "a link in a directory that others may write to");
        refused("deep/to", "a link in a directory that others may write to");
        std::fs::hard_link(path("log"), path("deep/log")).unwrap();
        refused("deep/log", "several names");
        assert!(open_log_file(&path("deep/other")).is_ok());
        assert_eq!(std::fs::metadata(path("log")).unwrap().size(), 6);
    }
}
