//! Arguments, messages, exit codes; and the only code that wires the layers together.
//!
//! 0 done; 1 failed, with one line on stderr that begins with the path; 2 wrong usage. Nothing else ever reaches a user: a
//! panic is one line as well.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use std::ffi::OsString;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{getegid, geteuid, getgid, getuid};

use crate::format::plain::{is_plain, plain};
use crate::fs::guard;

mod aside;
mod background;
mod busy;
mod cat;
mod check;
mod compact;
mod convert;
mod frames;
mod help;
mod hints;
mod info;
mod log;
mod ls;
mod markdown;
mod memory;
mod mount;
mod options;
mod output;
mod panic;
mod progress;
#[cfg(feature = "remote")]
mod remote;
#[cfg(feature = "remote")]
mod remote_args;
mod remount;
mod repair;
#[cfg(feature = "remote")]
mod secrets;
mod strangers;
mod trees;
mod umount;
mod users;
mod values;
mod wait;

pub use memory::Allocator;

/// Shows a Blosc2 frame in its other layout, live, for reading and writing.
#[derive(Parser)]
#[command(name = "b2fuse", version, long_version = help::version(), max_term_width = 100, disable_help_subcommand = true)]
#[command(after_long_help = "\
Exit codes:
  0  done
  1  failed, with one line on stderr that begins with the path
  2  wrong usage
  3  unmounted, and it cannot be told whether everything was kept (umount)
  Control characters in names are printed as escapes: \\n, \\u{1b}, \\xff

Examples:
  # Show a file as a directory of chunk files, then end that
  b2fuse mount pressure.b2frame view
  b2fuse umount view
  # Print all options of a command
  b2fuse mount --help")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mount(Box<mount::Args>),
    #[command(visible_alias = "unmount")]
    Umount(umount::Args),
    Convert(convert::Args),
    Info(info::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Check(check::Args),
    Repair(repair::Args),
    Compact(compact::Args),
    Completions(help::Completions),
    Man(help::Manual),
}

/// Why a command failed: one line, beginning with the path.
#[derive(Debug)]
struct Failure(String);

impl Failure {
    fn new(path: &Path, reason: impl fmt::Display) -> Self {
        Failure::from_text(format_args!("{}: {reason}", plain(&*frames::shown(path))))
    }

    /// Of words that begin with a path already.
    fn from_text(text: impl fmt::Display) -> Self {
        let text = text.to_string();
        let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        Failure(plain(&line).to_string())
    }
}

/// A command's outcome.
enum Outcome {
    Done,
    Failed(Failure),
    /// All has been said; this is the exit code.
    Code(u8),
    /// Wrong usage, in words for after `error: `.
    Usage(String),
}

impl From<Result<(), Failure>> for Outcome {
    fn from(result: Result<(), Failure>) -> Self {
        result.map_or_else(Outcome::Failed, |()| Outcome::Done)
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    if has_more_rights_than_its_caller() {
        eprintln!(
            "b2fuse: has rights that its caller has not (it is set-user-ID, set-group-ID or has capabilities), and does nothing; \
             expected a program file without (chmod ug-s, setcap -r)"
        );
        return ExitCode::from(1);
    }
    let mut words = std::env::args_os();
    if words.next().is_some_and(|name| name == guard::NAME) {
        let daemon = words.next().and_then(|word| word.into_string().ok()).unwrap_or_default();
        return ExitCode::from(u8::from(guard::run(&daemon).is_err()));
    }
    panic::install_hook();
    let words = as_subcommand(std::env::args_os().collect());
    #[cfg(feature = "remote")]
    if let Err(Failure(line)) = secrets::hide(&words) {
        eprintln!("{line}");
        return ExitCode::from(1);
    }
    let args = match Args::try_parse_from(&words) {
        Ok(args) => args,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            say(&with_usage(error, meant(&words)), &words);
            return ExitCode::from(code);
        }
    };
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| match args.command {
        Command::Mount(args) => mount::run(*args),
        Command::Umount(args) => umount::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Compact(args) => compact::run(&args),
        Command::Completions(args) => help::completions(&args),
        Command::Man(args) => help::manual(&args),
    }));
    let code = match outcome {
        Ok(Outcome::Done) if panic::happened().is_none() => ExitCode::SUCCESS,
        Ok(Outcome::Code(code)) if panic::happened().is_none() => ExitCode::from(code),
        Ok(Outcome::Failed(Failure(line))) => {
            log::say(&line);
            ExitCode::from(1)
        }
        Ok(Outcome::Usage(what)) => {
            say(&meant(&words).error(ErrorKind::InvalidValue, what), &words);
            ExitCode::from(2)
        }
        // The hook has said it.
        Ok(Outcome::Done | Outcome::Code(_)) | Err(_) => ExitCode::from(1),
    };
    log::end(code == ExitCode::SUCCESS);
    code
}

/// The command that is meant, or the whole program.
fn meant(words: &[OsString]) -> clap::Command {
    let mut program = Args::command();
    program.build();
    let name = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    program.find_subcommand(name).cloned().unwrap_or(program)
}

/// The same, with how the command is used, where that is not in it.
fn with_usage(mut error: clap::Error, mut command: clap::Command) -> clap::Error {
    if error.use_stderr() && error.get(ContextKind::Usage).is_none() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(command.render_usage()));
    }
    error
}

/// Prints help, or what is wrong with the arguments, which may be names that others have made, and have secrets.
fn say(error: &clap::Error, words: &[OsString]) {
    let text = error.render().to_string();
    let shown = shown(text.clone(), words);
    if text == shown && text.chars().all(|c| c == '\n' || is_plain(c)) {
        let _ = error.print();
    } else {
        shown.lines().for_each(|line| eprintln!("{}", plain(line)));
    }
}

#[cfg(feature = "remote")]
fn shown(text: String, words: &[OsString]) -> String {
    secrets::censored(text, words)
}

#[cfg(not(feature = "remote"))]
fn shown(text: String, _: &[OsString]) -> String {
    text
}

/// `mount -t fuse.b2fuse SOURCE MOUNTPOINT -o ...` runs `b2fuse SOURCE MOUNTPOINT -o ...`, or `mount.fuse.b2fuse` in its place:
/// the word `mount` is put in, and what mount(8) says to all its helpers is put in ours. `help COMMAND` is `COMMAND --help`.
fn as_subcommand(mut args: Vec<OsString>) -> Vec<OsString> {
    let called = args.first().and_then(|name| Path::new(name).file_name());
    let helper = called.is_some_and(|name| name.to_string_lossy().starts_with("mount."));
    let path_first = args.get(1).is_some_and(|arg| arg.to_string_lossy().starts_with('/'));
    if helper {
        let mut words = Vec::with_capacity(args.len());
        let mut all = args.into_iter();
        while let Some(word) = all.next() {
            match word.to_str() {
                // Do not note it in /etc/mtab, overlook options that are not known, say more.
                Some("-n" | "-s" | "-v") => {}
                // The file system's type, and a mount namespace that this process is in already.
                Some("-t" | "-N") => drop(all.next()),
                Some("-f") => words.push("--fake".into()),
                Some("-o") => words.extend([Some(word), all.next()].into_iter().flatten()),
                _ => words.push(word),
            }
        }
        args = words;
    }
    if !helper && args.get(1).is_some_and(|word| word == "help") {
        args.remove(1);
        args.push("--help".into());
        return args;
    }
    if helper || path_first {
        args.insert(1, "mount".into());
    }
    args
}

/// Whether the program file gives rights to whoever runs it. Paths, options and the environment are then a stranger's, who could read
/// and write with those rights whatever a command can name.
#[expect(unsafe_code, reason = "getauxval(3)")]
fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: takes and returns numbers, and cannot fail.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    secure || getuid() != geteuid() || getgid() != getegid()
}

/// nohup(1) asks for a mount that outlives its terminal.
#[expect(unsafe_code, reason = "sigaction(2)")]
fn hangup_ignored() -> bool {
    // SAFETY: all zeros are a valid sigaction, which the call only fills.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn words_are_put_in_for_mount_8_and_for_help() {
        let words = |text: &str| as_subcommand(text.split(' ').map(OsString::from).collect()).join(" ".as_ref());
        assert_eq!(words("b2fuse /a /b -o ro"), "b2fuse mount /a /b -o ro");
        assert_eq!(words("/sbin/mount.fuse.b2fuse a b"), "/sbin/mount.fuse.b2fuse mount a b");
        let helper = "/sbin/mount.fuse.b2fuse a b -s -f -n -v -o -n,ro -t fuse.b2fuse -N /proc/7/ns/mnt";
        assert_eq!(words(helper), "/sbin/mount.fuse.b2fuse mount a b --fake -o -n,ro");
        assert_eq!(words("b2fuse umount /b"), "b2fuse umount /b");
        assert_eq!(words("b2fuse help"), "b2fuse --help");
        assert_eq!(words("b2fuse help mount"), "b2fuse mount --help");
    }

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::new(Path::new("/x"), "one\n\ntwo\n").0, "/x: one; two");
        #[cfg(feature = "remote")]
        assert_eq!(Failure::new(Path::new("https://u:p@h/x?secret"), "gone").0, "https://h/x?...: gone");
        assert_eq!(Failure::new(Path::new("/\u{1b}[2J\u{9b}é\nb"), "one\u{7}").0, "/\\u{1b}[2J\\u{9b}é\\nb: one\\u{7}");
    }
}
