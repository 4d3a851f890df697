//! If memory runs out, a command ends with one line, where the standard library would abort.
//!
//! A small frame may need much memory, and a limit may be set. Not every collection in the program can fail, so the allocator itself
//! ends the process. A serving mount is not ended this way: there, large allocations report failure themselves.

#![expect(unsafe_code, reason = "an allocator hands every call on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

use crate::format::plain::plain;

/// The system's allocator, but for when it has nothing left.
pub struct Allocator;

/// What a command says that is ended; `None` where nothing is to be ended. No memory is asked for under this lock.
static LINE: Mutex<Option<String>> = Mutex::new(None);
/// Where the line goes.
static OUTPUT: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);

/// From now on, a lack of memory ends the process with exit code 1, and a line about this path.
pub(super) fn end_with(path: &Path) {
    set(Some(format!("{}: needs more memory than there is", plain(&*super::frames::shown(path)))));
}

/// The line goes to whoever reads this descriptor, without an end of line.
pub(super) fn say_to(descriptor: i32) {
    OUTPUT.store(descriptor, SeqCst);
}

/// From now on a lack of memory ends nothing, unless there is no other way. What it took to begin goes back to the system.
pub(super) fn serving() {
    set(None);
    #[cfg(target_env = "gnu")]
    // SAFETY: releases pages that hold nothing.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn set(line: Option<String>) {
    if let Ok(mut now) = LINE.lock() {
        *now = line;
    }
}

fn checked(place: *mut u8) -> *mut u8 {
    if place.is_null() {
        out_of_memory();
    }
    place
}

#[cold]
fn out_of_memory() {
    // Several threads may find at once that there is no memory: the others wait here for the end.
    let Ok(line) = LINE.lock() else { return };
    let Some(line) = &*line else { return };
    let output = OUTPUT.load(SeqCst);
    let end_of_line: &[u8] = if output == libc::STDERR_FILENO { b"\n" } else { b"" };
    for bytes in [line.as_bytes(), end_of_line] {
        // SAFETY: a slice is as long as it says.
        unsafe { libc::write(output, bytes.as_ptr().cast(), bytes.len()) };
    }
    exit_at_once(1);
}

/// Ends the process, and runs nothing that was to be run at its end.
pub(super) fn exit_at_once(code: i32) -> ! {
    // SAFETY: nothing comes after it.
    unsafe { libc::_exit(code) }
}

// SAFETY: every call is handed through as it comes, and its answer comes back.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        checked(unsafe { System.alloc(layout) })
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        checked(unsafe { System.alloc_zeroed(layout) })
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        checked(unsafe { System.realloc(place, layout, size) })
    }
}
