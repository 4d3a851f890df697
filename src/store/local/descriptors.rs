//! How many files this process may have open: as many as it is allowed to ask for. Programs that it runs get what it had.

#![expect(unsafe_code, reason = "a limit is set between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What was there before.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of this process to the highest that it may set.
pub fn raise_limit() {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, ..before };
    if before.current != before.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        let _ = BEFORE.set(before);
    }
}

/// Has a program begin with the limit of before: there are some that look at every number a file may have.
pub(crate) fn lower_for(command: &mut Command) {
    if let Some(before) = BEFORE.get() {
        let before = *before;
        // SAFETY: a system call on a copy, as may be made between fork and exec.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, before)?)) };
    }
}
