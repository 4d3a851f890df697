//! What the first thread of a mount waits for: the end of the device, and signals, by whichever thread they come.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// What a mount is told while it runs.
#[derive(Debug)]
pub(super) enum Event {
    /// The kernel has closed the device.
    Ended(io::Result<()>),
    Signal(Signal),
}

/// What a user may want of a running mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Unmount, commit, end.
    End,
    /// Write [`FileSystem::report`](crate::view::FileSystem::report) to the log.
    Report,
}

/// Sends signals to a mount, from any thread.
#[derive(Debug, Clone)]
pub struct Control {
    sender: Sender<Event>,
    bell: Arc<UnixStream>,
}

impl Control {
    /// Does nothing once the mount has ended.
    pub fn send(&self, signal: Signal) {
        self.tell(Event::Signal(signal));
    }

    pub(super) fn tell(&self, event: Event) {
        let _ = self.sender.send(event);
        // If it is full, the mount wakes too.
        let _ = (&*self.bell).write(&[0]);
    }

    /// Has the mount call what it was given by [`Mounted::listen`](super::session::Mounted::listen), each time a byte is written here, as
    /// a signal handler may.
    ///
    /// # Errors
    /// There is no room for another file.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        Ok(self.bell.try_clone()?.into())
    }
}

/// Takes what comes by [`Control`].
pub(super) struct Events {
    heard: UnixStream,
    events: Receiver<Event>,
    /// Called when something has come.
    pub(super) listen: Box<dyn FnMut(&Control) + Send>,
}

impl Events {
    /// # Errors
    /// There is no room for another file.
    pub(super) fn new() -> io::Result<(Self, Control)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (heard, bell) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let (heard, bell) = (UnixStream::from(heard), UnixStream::from(bell));
        let (sender, events) = channel();
        Ok((Events { heard, events, listen: Box::new(|_| {}) }, Control { sender, bell: Arc::new(bell) }))
    }

    /// Waits for the next event; none if none comes until then.
    pub(super) fn next(&mut self, control: &Control, until: Option<Instant>) -> Option<Event> {
        loop {
            // What comes from here on rings again.
            while (&self.heard).read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
            (self.listen)(control);
            if let Ok(event) = self.events.try_recv() {
                return Some(event);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            // A signal interrupts it, which is as well.
            let _ = poll(&mut [PollFd::new(&self.heard, PollFlags::IN)], timeout.as_ref());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_told_at_once_and_later_comes_in_order() {
        let (mut events, control) = Events::new().unwrap();
        assert!(events.next(&control, Some(Instant::now() + Duration::from_millis(5))).is_none());
        control.send(Signal::Report);
        control.send(Signal::End);
        let mut next = || events.next(&control, None);
        assert!(matches!(next(), Some(Event::Signal(Signal::Report))));
        assert!(matches!(next(), Some(Event::Signal(Signal::End))));
        let later = control.clone();
        let sender = std::thread::spawn(move || later.tell(Event::Ended(Ok(()))));
        assert!(matches!(next(), Some(Event::Ended(Ok(())))));
        sender.join().unwrap();
    }

    #[test]
    fn a_byte_has_the_mount_listen() {
        let (mut events, control) = Events::new().unwrap();
        let mut bell = UnixStream::from(control.bell().unwrap());
        let mut count = 0;
        events.listen = Box::new(move |control| {
            count += 1;
            if count == 2 {
                control.send(Signal::End);
            }
        });
        let ringer = std::thread::spawn(move || bell.write_all(&[1]));
        assert!(matches!(events.next(&control, None), Some(Event::Signal(Signal::End))));
        ringer.join().unwrap().unwrap();
    }
}
