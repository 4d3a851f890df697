//! Into the background, with an exit code that tells the truth: the process that was started waits until the one that stays
//! says how it went.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::os::fd::AsRawFd;

use rustix::process::setsid;

use super::{aside, memory};
use crate::store::local::system;

/// What a daemon that has begun to serve sends.
const READY: u8 = 0;
/// Before a line for the user. All that begins otherwise is why it does not serve.
const LINE: u8 = 1;

/// Which of the two processes this is.
pub(super) enum Role {
    /// The one that stays, as a child like any other until [`Starter::leave`].
    Daemon(Starter),
    /// The one that was started, once the other has said how it went; nothing if it has ended without a word.
    Starter(Result<(), Option<String>>),
}

/// The process that waits to hear how it went.
pub(super) struct Starter {
    ear: PipeWriter,
    null: File,
}

impl Starter {
    /// Leaves the process that waits, and its process group: from now on this one has a session of its own, `/` as its directory, and
    /// nothing for stdin, stdout and stderr.
    ///
    /// Not before the mount is there: autofs holds up whoever looks at a mount point before that, and is not of the automounter's
    /// process group.
    ///
    /// # Errors
    /// What the system refuses.
    pub(super) fn leave(&self) -> io::Result<()> {
        std::env::set_current_dir("/")?;
        // Not where it has one already.
        let _ = setsid();
        Ok(aside::nothing_on_standard_files(&self.null)?)
    }

    /// All is well. False if nobody waits any more.
    pub(super) fn ready(mut self) -> bool {
        self.ear.write_all(&[READY]).is_ok()
    }

    /// It takes longer than it should.
    pub(super) fn say(&mut self, line: &str) {
        let _ = self.ear.write_all(&[&[LINE], line.as_bytes(), b"\n"].concat());
    }

    /// It did not go well.
    pub(super) fn failed(mut self, why: &str) {
        let _ = self.ear.write_all(why.as_bytes());
    }
}

/// Forks. To be called while there is one thread only.
///
/// # Errors
/// When there is no second process, and this one has changed nothing.
pub(super) fn split() -> io::Result<Role> {
    let null = system::open_device("/dev/null")?;
    let (read, write) = io::pipe()?;
    if aside::fork()?.is_none() {
        drop(read);
        memory::say_to(write.as_raw_fd());
        return Ok(Role::Daemon(Starter { ear: write, null }));
    }
    drop(write);
    Ok(Role::Starter(listen(&mut BufReader::new(read))?))
}

/// Passes on what a daemon says, and answers how it went: why not, if it has said so.
fn listen(daemon: &mut impl BufRead) -> io::Result<Result<(), Option<String>>> {
    loop {
        let mut said = Vec::new();
        match daemon.fill_buf()?.first() {
            None => return Ok(Err(None)),
            Some(&READY) => return Ok(Ok(())),
            Some(&LINE) => {
                daemon.read_until(b'\n', &mut said)?;
                eprint!("{}", String::from_utf8_lossy(said.get(1..).unwrap_or_default()));
            }
            Some(_) => {
                daemon.read_to_end(&mut said)?;
                return Ok(Err(Some(String::from_utf8_lossy(&said).into_owned())));
            }
        }
    }
}
