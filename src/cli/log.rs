//! Where messages go: a file, stderr of a mount in front, or the system's log.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::time::{SystemTime, UNIX_EPOCH};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Where the system takes messages.
const SYSTEM_LOG: &str = "/dev/log";
/// The facility of daemons (3), as syslog(3) has it.
const FACILITY: u8 = 3 << 3;

/// Where messages go.
pub(super) enum Target {
    /// Of a mount in front.
    Stderr,
    /// Appended to.
    File(File),
    /// The system's log, if there is one; nowhere otherwise.
    System,
}

struct Logger {
    target: Target,
    level: LevelFilter,
}

/// Begins to log. To be called once.
pub(super) fn start(target: Target, level: LevelFilter) {
    if log::set_boxed_logger(Box::new(Logger { target, level })).is_ok() {
        log::set_max_level(level);
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // It warns of every request that a file system leaves to the kernel.
        let level = if metadata.target().starts_with(crate::fs::LIBRARY) { Level::Trace } else { metadata.level() };
        level <= self.level
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string().replace('\n', "; ");
        // There is nobody to tell of a log that cannot be written.
        let _ = match &self.target {
            Target::Stderr => writeln!(std::io::stderr(), "{text}"),
            Target::File(file) => {
                let line = format!("{} {:<5} [{}] {text}\n", Utc::now(), record.level(), std::process::id());
                (&*file).write_all(line.as_bytes())
            }
            Target::System => to_system(record.level(), &text),
        };
    }

    fn flush(&self) {}
}

/// A datagram for each message, so that the system's log may be restarted.
fn to_system(level: Level, text: &str) -> std::io::Result<()> {
    let severity = match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    let message = format!("<{}>b2fuse[{}]: {text}", FACILITY | severity, std::process::id());
    UnixDatagram::unbound()?.send_to(message.as_bytes(), SYSTEM_LOG).map(drop)
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
        let seconds = since.as_secs() as libc::time_t;
        // SAFETY: all zeros are a valid tm, and gmtime_r fills it from a valid time_t.
        let tm = unsafe {
            let mut tm: libc::tm = std::mem::zeroed();
            libc::gmtime_r(&raw const seconds, &raw mut tm);
            tm
        };
        let (year, month) = (tm.tm_year + 1900, tm.tm_mon + 1);
        let (hour, minute, second, millis) = (tm.tm_hour, tm.tm_min, tm.tm_sec, since.subsec_millis());
        write!(f, "{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z", tm.tm_mday)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments() {
        assert_eq!(Utc(UNIX_EPOCH).to_string(), "1970-01-01T00:00:00.000Z");
        let leap = UNIX_EPOCH + Duration::from_millis(951_827_696_789);
        assert_eq!(Utc(leap).to_string(), "2000-02-29T12:34:56.789Z");
    }

    #[test]
    fn the_librarys_own_messages_are_for_those_who_want_everything() {
        let library = format!("{}::reply", crate::fs::LIBRARY);
        let enabled = |level, target: &str, wanted| {
            let logger = Logger { target: Target::System, level: wanted };
            logger.enabled(&Metadata::builder().level(level).target(target).build())
        };
        assert!(enabled(Level::Info, "b2fuse::view", LevelFilter::Info));
        assert!(!enabled(Level::Debug, "b2fuse::view", LevelFilter::Info));
        assert!(!enabled(Level::Error, &library, LevelFilter::Debug));
        assert!(enabled(Level::Warn, &library, LevelFilter::Trace));
    }
}
