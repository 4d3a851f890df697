//! `b2fuse umount`: returns when everything is in SOURCE, on disk, or says what is not.
//!
//! After an unmount the daemon can say nothing any more. So it is asked before, in [`unmount`](mod@unmount)'s words, and its end is
//! waited for by its mark on SOURCE. Whoever serves the mount may be anybody: nothing is waited for without a limit.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::aside::{Aside, User, become_user, in_time};
use super::{Failure, Outcome, busy};
use crate::format::plain::plain;
use crate::fs::kernel::{self, FS_TYPE, MountInfo};
use crate::fs::unmount::{self, Answer, Question, SEALED};
use crate::store::in_words;
use crate::store::local::{self, holders, system};
use crate::store::mark::MarkWatch;
use crate::view::BY_OTHERS;

/// How long a daemon may take to answer.
const SILENCE: Duration = Duration::from_secs(30);
/// How long it may say that it is still writing.
const PATIENCE: Duration = Duration::from_secs(600);
/// The same of another user's.
const FOREIGN_PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of a daemon is waited for that has written everything.
const END: Duration = Duration::from_secs(30);
/// How long the end of a mount is waited for that files may still be open in, or that may be mounted elsewhere as well.
const USED_END: Duration = Duration::from_secs(2);
/// How long unmounting is tried while processes come and go.
const COMING_AND_GOING: Duration = Duration::from_secs(2);
/// How often it is tried again where no process is seen that uses the mount.
const PASSING: u32 = 4;
/// The first and the longest pause between two questions.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Unmount; return when all changes are in the frame, on disk
///
/// Data that has no place in SOURCE is saved in SOURCE.lost; the message names it, and the exit code is 1. If it cannot be saved, the
/// frame stays mounted. The exit code is 3 if it cannot be told whether everything was kept, as after the daemon was killed. root may unmount any user's mount. umount(8), fusermount3 -u, SIGTERM and SIGINT end a mount in the same way,
/// except that only the log names what is not in SOURCE.
#[derive(clap::Args)]
#[command(after_long_help = "\
Examples:
  b2fuse umount view
  # Even if files are open, or data cannot be saved
  b2fuse umount -z view")]
pub(super) struct Args {
    /// Unmount even if files are open or data cannot be saved. The mount ends when the last file is closed
    #[arg(short = 'z', long)]
    lazy: bool,
    /// Where the frame is mounted: a directory or a file
    mountpoint: PathBuf,
}

pub(super) fn run(args: &Args) -> Outcome {
    match unmount(&args.mountpoint, args.lazy) {
        Ok(()) => Outcome::Done,
        Err(Trouble::Failed(reason)) => Outcome::Failed(Failure::new(&args.mountpoint, reason)),
        Err(Trouble::Untold(reason)) => {
            let Failure(line) = Failure::new(&args.mountpoint, reason);
            super::log::say(&line);
            Outcome::Code(UNTOLD)
        }
    }
}

/// Why not everything is as it should be.
enum Trouble {
    Failed(String),
    /// It is unmounted, and it cannot be told whether everything was kept.
    Untold(String),
}

impl From<String> for Trouble {
    fn from(reason: String) -> Self {
        Trouble::Failed(reason)
    }
}

/// The exit code of [`Trouble::Untold`].
const UNTOLD: u8 = 3;

fn unmount(path: &Path, lazy: bool) -> Result<(), Trouble> {
    let failed = Trouble::Failed;
    let point = kernel::resolve_point(path).map_err(|error| failed(format!("cannot be found: {}", in_words(&error))))?;
    let mounted = kernel::mounted_at(&point).map_err(|error| failed(format!("cannot list mounts: {}", in_words(&error))))?;
    let mount = match mounted {
        Some(mount) if mount.fs_type == FS_TYPE => mount,
        Some(mount) => {
            return Err(failed(format!("found a file system of type {} there, expected a b2fuse mount", mount.fs_type)));
        }
        None => {
            let of_it = |mount: &MountInfo| mount.fs_type == FS_TYPE && Path::new(&mount.source) == point;
            let shown = kernel::mounts().unwrap_or_default().into_iter().find(of_it);
            let shown = shown.map(|mount| format!(", such as {}, where it is shown", mount.point.display())).unwrap_or_default();
            return Err(failed(format!("found nothing mounted there, expected a b2fuse mount{shown}")));
        }
    };
    let daemon = Daemon::of(mount);
    let outcome = if lazy { detach(&daemon) } else { take_away(&daemon) };
    let (left, source) = outcome?;
    let note = match daemon.ended(source) {
        // It has no lock that could be given back.
        Ended::Unseen
            if daemon.mount.read_only || daemon.mount.source.as_encoded_bytes().windows(3).any(|part| part == b"://") =>
        {
            ""
        }
        Ended::Yes => "",
        Ended::No => "everything is written, but its daemon has not ended yet",
        Ended::Used if lazy => "files are still open; the mount ends when the last one is closed",
        Ended::Used => "everything is written, but its daemon is still running: another mount namespace has the mount as well",
        Ended::Unseen if daemon.never_made() => "nothing was copied to the mount, so no frame was made",
        Ended::Unseen => "everything is written; whether its daemon has ended cannot be seen from here",
    };
    if !note.is_empty() && left.is_empty() {
        eprintln!("{}: {note}", plain(path));
    }
    if left.is_empty() {
        return Ok(());
    }
    let what = if left.starts_with(BY_OTHERS) { "" } else { "not everything is in the frame: " };
    Err(failed(format!("unmounted, but {what}{left}; see {}", daemon.log())))
}

/// SOURCE, and which file it is.
type Source = (PathBuf, (u64, u64));
/// What is not in SOURCE, in words, and what tells of the daemon's end, where that can be seen.
type TakenAway = Result<(String, Option<Source>), Trouble>;

/// Takes the mount away when its daemon is ready for that.
fn take_away(daemon: &Daemon) -> TakenAway {
    const STILL: &str = "still mounted";
    let until = Instant::now() + COMING_AND_GOING;
    let mut passing = PASSING;
    loop {
        let Ready { ticket, left, source, since } = match daemon.open().and_then(|talk| daemon.make_ready(talk, false)) {
            Ok(Ok(ready)) => ready,
            Ok(Err(None)) => return Err(busy(&daemon.mount.point).into()),
            Ok(Err(Some(why))) => {
                return Err(format!("{STILL}, because not all data can be saved: {why} (-z unmounts anyway)").into());
            }
            Err(error) if is_dead(&error) => return dead(daemon),
            Err(error) => return Err(format!("{STILL}: {}", silent(&error)).into()),
        };
        let Err(error) = kernel::unmount(&daemon.mount.point, false) else {
            if since.elapsed() >= SEALED {
                let reason = "what was written while that was going on may not be in the frame: see";
                let took = since.elapsed().as_secs();
                return Err(Trouble::Untold(format!("unmounted, but it took {took} s, and {reason} {}", daemon.log())));
            }
            return Ok((left, source));
        };
        // If this fails, all goes on a little later.
        let resumed = daemon.open().and_then(|talk| talk.ask(Question::Resume(ticket)));
        let somebody_waited = matches!(resumed, Ok((_, Answer::Working)));
        if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= until {
            return Err(cannot_unmount(daemon, &error).into());
        }
        if !somebody_waited {
            // Who looks at all open files of a process, as lsof does, has a mount for a moment.
            if passing == 0 || !holders(&daemon.mount.point).is_empty() {
                return Err(cannot_unmount(daemon, &error).into());
            }
            passing -= 1;
            std::thread::sleep(PAUSES.1);
        }
    }
}

/// Takes the mount's name away, and asks afterwards what is not in SOURCE: through a file that keeps the mount alive.
fn detach(daemon: &Daemon) -> TakenAway {
    if let Some(process) = stopped(&daemon.mount) {
        kernel::unmount(&daemon.mount.point, true).map_err(|error| cannot_unmount(daemon, &error))?;
        let reason =
            format!("its daemon is stopped (process {process}), so it cannot be told whether everything is in the frame");
        return Err(Trouble::Untold(format!("unmounted, but {reason}; it goes on with kill -CONT {process}")));
    }
    let talk = daemon.open();
    kernel::unmount(&daemon.mount.point, true).map_err(|error| cannot_unmount(daemon, &error))?;
    match talk.and_then(|talk| daemon.make_ready(talk, true)) {
        Ok(Ok(Ready { left, source, .. })) => Ok((left, source)),
        Ok(Err(why)) => Err(format!("unmounted, but not all data can be saved: {}", why.unwrap_or("it is busy".into())).into()),
        Err(error) if is_dead(&error) => after_death(daemon),
        Err(error) => Err(Trouble::Untold(format!(
            "unmounted, but whether everything is in the frame is not known: {}; see {}",
            silent(&error),
            daemon.log()
        ))),
    }
}

fn died(daemon: &Daemon) -> Trouble {
    let reason = "its daemon had died, so it cannot be told whether everything that was written is in the frame";
    Trouble::Untold(format!("unmounted, but {reason}; see {}", daemon.log()))
}

fn dead(daemon: &Daemon) -> TakenAway {
    kernel::unmount(&daemon.mount.point, false).map_err(|error| cannot_unmount(daemon, &error))?;
    after_death(daemon)
}

/// A daemon that took no writes has lost none.
fn after_death(daemon: &Daemon) -> TakenAway {
    if daemon.mount.read_only { Ok((String::new(), None)) } else { Err(died(daemon)) }
}

fn busy(point: &Path) -> String {
    format!("{} (-z unmounts anyway)", busy::reason(point))
}

/// Of a dead daemon's mount the directory may still be opened, out of the kernel's cache.
fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV))
}

fn cannot_unmount(daemon: &Daemon, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => busy(&daemon.mount.point),
        _ => format!("cannot unmount: {}", in_words(error)),
    }
}

/// A process that serves a mount, and is stopped (SIGSTOP), as far as that can be seen. It answers nothing.
fn stopped(mount: &MountInfo) -> Option<u32> {
    let connection = mount.device_number()? & 0xf_ffff;
    system::stopped_processes().into_iter().find(|process| system::serves(*process, connection))
}

/// Whoever serves a mount.
struct Daemon {
    mount: MountInfo,
    /// Whom one has to be to be let into the mount, if somebody else: FUSE keeps root out of others' mounts.
    user: Option<User>,
}

/// A daemon that lets its mount be taken away.
struct Ready {
    ticket: u32,
    /// What is not in SOURCE.
    left: String,
    source: Option<Source>,
    /// It was not ready yet.
    since: Instant,
}

impl Daemon {
    fn of(mount: MountInfo) -> Self {
        let root = rustix::process::geteuid().is_root();
        Daemon { user: mount.owner.filter(|(user, _)| root && *user != 0), mount }
    }

    /// Whether the frame that it was to make is not there. What has no lock, or one that cannot be seen, is there.
    fn never_made(&self) -> bool {
        let source = Path::new(&self.mount.source);
        source.is_absolute() && matches!(local::stat(source), Ok(None))
    }

    /// Where to look for what it has said, in words.
    fn log(&self) -> String {
        let user = self.mount.owner.map_or_else(|| rustix::process::geteuid().as_raw(), |(user, _)| user);
        super::log::place(&self.mount.point, user)
    }

    /// Opens the mount's root, to ask.
    fn open(&self) -> io::Result<Talk> {
        let (point, user) = (&self.mount.point, self.user);
        let aside = Aside::start(SILENCE, |stream| {
            // The way there may be closed to the user by now.
            let opened = system::FoundPath::at(point).and_then(|found| {
                user.map_or(Ok(()), become_user)?;
                found.open()
            });
            let _ = pass_on(stream, opened);
        })?;
        let talk = Talk(aside);
        talk.answered()?;
        Ok(talk)
    }

    /// Asks until the daemon is ready, and closes the mount's root; answers why it is not, or nothing if it is busy.
    fn make_ready(&self, talk: Talk, regardless: bool) -> io::Result<Result<Ready, Option<String>>> {
        let asked = self.ask_until_ready(&talk, regardless);
        match &asked {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            _ => talk.0.end()?,
        }
        asked
    }

    fn ask_until_ready(&self, talk: &Talk, regardless: bool) -> io::Result<Result<Ready, Option<String>>> {
        let began = Instant::now();
        let patience = if self.user.is_some() { FOREIGN_PATIENCE } else { PATIENCE };
        let mut pause = PAUSES.0;
        let mut since = began;
        let (ticket, mut answer) = talk.ask(Question::Begin(regardless))?;
        loop {
            match answer {
                Answer::Ready { left, source } => return Ok(Ok(Ready { ticket, left, source, since })),
                Answer::Busy => return Ok(Err(None)),
                Answer::Refused(why) => return Ok(Err(Some(why))),
                Answer::Working if began.elapsed() >= patience => return Err(io::ErrorKind::WouldBlock.into()),
                Answer::Working => {}
            }
            std::thread::sleep(pause);
            pause = PAUSES.1.min(pause * 2);
            let asking = Instant::now();
            answer = talk.ask(Question::HowFar(ticket))?.1;
            if answer == Answer::Working {
                since = asking;
            }
        }
    }

    /// Waits until the daemon has released SOURCE.
    fn ended(&self, source: Option<Source>) -> Ended {
        let Some(((path, file), device)) = source.zip(self.mount.device_number()) else { return Ended::Unseen };
        let aside = Aside::start(END + SILENCE, |mut stream| {
            let watch = self.user.map_or(Ok(()), become_user).and_then(|()| MarkWatch::new(&path, file, device));
            let ended = watch.and_then(|watch| self.watch(&watch));
            let _ = stream.write_all(&[ended.unwrap_or(Ended::Unseen) as u8]);
        });
        let mut said = [0];
        match aside.and_then(|aside| (&aside.stream).read_exact(&mut said)) {
            Ok(()) => {
                [Ended::Yes, Ended::No, Ended::Used].into_iter().find(|ended| *ended as u8 == said[0]).unwrap_or(Ended::Unseen)
            }
            Err(_) => Ended::Unseen,
        }
    }

    fn watch(&self, watch: &MarkWatch) -> io::Result<Ended> {
        let began = Instant::now();
        let mut pause = PAUSES.0;
        let is_used = || self.mount.device_number().and_then(kernel::is_alive) == Some(true);
        while watch.is_marked()? {
            match began.elapsed() {
                time if time >= USED_END && is_used() => return Ok(Ended::Used),
                time if time >= END => return Ok(Ended::No),
                _ => std::thread::sleep(pause),
            }
            pause = PAUSES.1.min(pause * 2);
        }
        Ok(Ended::Yes)
    }
}

/// Whether a daemon has ended.
#[derive(Clone, Copy)]
enum Ended {
    Yes,
    No,
    /// Somebody uses the mount although its name is gone.
    Used,
    Unseen,
}

/// The other process: opens, asks, and is done when nothing more is asked.
fn pass_on(mut stream: UnixStream, opened: io::Result<File>) -> io::Result<()> {
    let code = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
    let file = match opened {
        Ok(file) => file,
        Err(error) => return stream.write_all(&code(&error)),
    };
    stream.write_all(&[0; 4])?;
    let mut question = [0; unmount::LEN];
    while stream.read_exact(&mut question).is_ok() {
        match unmount::pass_on(&file, &mut question) {
            Ok(()) => stream.write_all(&[&[0; 4], question.as_slice()].concat())?,
            Err(error) => stream.write_all(&code(&error))?,
        }
    }
    // Before the stream, which says that it is done.
    drop(file);
    Ok(())
}

/// The mount's root, open in another process.
struct Talk(Aside);

impl Talk {
    fn answered(&self) -> io::Result<()> {
        let mut code = [0; 4];
        (&self.0.stream).read_exact(&mut code).map_err(in_time)?;
        match i32::from_ne_bytes(code) {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    fn ask(&self, question: Question) -> io::Result<(u32, Answer)> {
        (&self.0.stream).write_all(&question.encode())?;
        self.answered()?;
        let mut answer = [0; unmount::LEN];
        (&self.0.stream).read_exact(&mut answer).map_err(in_time)?;
        Answer::decode(&answer).ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTO))
    }
}

/// Why a daemon has not answered, in words.
fn silent(error: &io::Error) -> String {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::TimedOut, None) => format!("its daemon has not answered for {} s", SILENCE.as_secs()),
        (io::ErrorKind::WouldBlock, None) => "its daemon is still writing; try again".into(),
        (_, Some(libc::EPERM | libc::EACCES)) => "it is another user's".into(),
        (_, Some(libc::ENOTTY | libc::ENOSYS | libc::EPROTO | libc::EINVAL)) => {
            "it is served by another version of b2fuse, or another program; umount(8) unmounts it".into()
        }
        _ => format!("cannot reach its daemon: {}", in_words(error)),
    }
}
