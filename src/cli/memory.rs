//! Memory that is not to be had ends a command with one line, where the standard library would abort.
//!
//! A small frame may need much memory, and a limit may be set. Not every collection in the program can fail, so the allocator itself
//! ends the process. A mount that serves is left alone: there, what can be large fails by itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::SeqCst};

use crate::format::plain::plain;

/// The system's allocator, but for when it has nothing left.
pub struct Allocator;

/// A command that may be ended.
struct Command {
    line: String,
    code: i32,
}

/// The command; null where nothing is to be ended.
static COMMAND: AtomicPtr<Command> = AtomicPtr::new(std::ptr::null_mut());
/// Where its line goes.
static OUTPUT: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);

/// A thread is about to end the process: several may find at once that there is no memory.
static ENDING: AtomicBool = AtomicBool::new(false);

/// From now on, a lack of memory ends the process with an exit code, and a line about this path.
pub(super) fn end_with(path: &Path, code: i32) {
    let line = format!("{}: needs more memory than there is", plain(path));
    // Never freed: another thread may be about to read the one before. There is one for each frame of a command line.
    COMMAND.store(Box::into_raw(Box::new(Command { line, code })), SeqCst);
}

/// The line goes to whoever reads this descriptor, without an end of line.
pub(super) fn say_to(descriptor: i32) {
    OUTPUT.store(descriptor, SeqCst);
}

/// From now on a lack of memory ends nothing, unless there is no other way.
pub(super) fn serving() {
    COMMAND.store(std::ptr::null_mut(), SeqCst);
}

fn checked(place: *mut u8) -> *mut u8 {
    if place.is_null() {
        out_of_memory();
    }
    place
}

#[cold]
fn out_of_memory() {
    // SAFETY: what is pointed to is never freed or changed.
    let Some(Command { line, code }) = (unsafe { COMMAND.load(SeqCst).as_ref() }) else { return };
    while ENDING.swap(true, SeqCst) {
        // SAFETY: touches no memory; returns after a signal, if at all.
        unsafe { libc::pause() };
    }
    let output = OUTPUT.load(SeqCst);
    // SAFETY: the bytes are there for as long as said; the process ends without a look at anything else.
    unsafe {
        libc::write(output, line.as_ptr().cast(), line.len());
        if output == libc::STDERR_FILENO {
            libc::write(output, c"\n".as_ptr().cast(), 1);
        }
        libc::_exit(*code);
    }
}

// SAFETY: every call is handed through as it comes, and its answer comes back.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        checked(unsafe { System.alloc(layout) })
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        checked(unsafe { System.alloc_zeroed(layout) })
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        unsafe { System.dealloc(place, layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        checked(unsafe { System.realloc(place, layout, size) })
    }
}
