//! Mounts: that they begin, what they show, and how they end.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use super::content::{content, frames};
use super::*;

/// How a frame is mounted: SOURCE, MOUNTPOINT, and a file that the mount shows.
pub(super) struct Shape(pub(super) &'static str, pub(super) &'static str, pub(super) &'static str);

const SHAPES: [Shape; 3] = [
    Shape("frame", "point", "point/chunks.b2frame"),
    Shape("sparse", "point", "point/sparse.b2frame"),
    Shape("sparse", "file", "file"),
];

impl Place {
    /// With a real frame in both layouts, and both kinds of mount point.
    pub fn with_frames() -> Self {
        let place = Place::with_frame();
        let from = data("sframe/special.b2frame");
        copy_dir(&from, &place.path("sparse"));
        fs::write(place.path("file"), "below").unwrap();
        place
    }

    /// Mount points in this place.
    fn mounted(&self) -> Vec<PathBuf> {
        let place = self.0.path().canonicalize().unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        points.filter(|point| point.starts_with(&place)).collect()
    }

    /// Mounts in front, and returns once the mount answers.
    pub(super) fn mount_in_front(&self, Shape(source, point, shown): &Shape, words: &str) -> Front {
        let mut command = self.command(&format!("mount -f {words} {source} {point}"));
        let mut child = command.stderr(Stdio::piped()).begun();
        eventually("mounted", || {
            if let Some(status) = child.try_wait().unwrap() {
                let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
                panic!("{source} on {point} with {words:?}: {status}: {said}");
            }
            !self.mounted().is_empty()
        });
        fs::metadata(self.path(shown)).unwrap();
        Front(child)
    }
}

pub(super) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A mount in front, killed when dropped.
pub(super) struct Front(Child);

impl Front {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).begun().wait().unwrap().success());
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.0.wait().unwrap();
        (status.code(), std::io::read_to_string(self.0.stderr.take().unwrap()).unwrap())
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for point in self.mounted() {
            let _ = Command::new("umount").arg("-l").arg(point).begun().wait();
        }
    }
}

#[test]
fn every_frame_is_shown_in_its_other_layout() {
    if !fuse() {
        return;
    }
    for layout in ["cframe", "sframe"] {
        for frame in frames(layout) {
            let place = Place::new();
            fs::write(place.path("file"), "below").unwrap();
            let name = frame.file_name().unwrap();
            let points = match layout {
                "cframe" => vec![("point", place.path("point"))],
                _ => vec![("point", place.path("point").join(name)), ("file", place.path("file"))],
            };
            for (point, shown) in points {
                place.succeeds(&format!("mount -o ro {} {point}", frame.display()));
                assert_eq!(content(&shown), content(&frame), "{} on {point}", frame.display());
                if frame.is_dir() {
                    place.succeeds(&format!("convert --force {} copy", frame.display()));
                    assert!(
                        fs::read(&shown).unwrap() == fs::read(place.path("copy")).unwrap(),
                        "{}: as a copy would be",
                        frame.display()
                    );
                }
                let meta = fs::metadata(if frame.is_dir() { frame.join("chunks.b2frame") } else { frame.clone() }).unwrap();
                let seen = fs::metadata(&shown).unwrap();
                assert_eq!((seen.mode() & 0o666, seen.uid()), (meta.mode() & 0o666, meta.uid()));
                assert_eq!(seen.is_file(), frame.is_dir());
                place.succeeds(&format!("umount {point}"));
            }
            assert_eq!(fs::read(place.path("file")).unwrap(), b"below");
        }
    }
}

#[test]
fn a_mount_goes_by_the_name_that_source_has_for_its_user() {
    if !fuse() {
        return;
    }
    let place = Place::with_frames();
    std::os::unix::fs::symlink("sparse", place.path("link.b2eframe")).unwrap();
    for (source, name) in
        [("sparse", "sparse.b2frame"), ("link.b2eframe", "link.b2frame"), ("sparse/../sparse/.", "sparse.b2frame")]
    {
        place.succeeds(&format!("mount -o ro {source} point"));
        let names: Vec<_> = fs::read_dir(place.path("point")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [name], "{source}");
        place.succeeds("umount point");
    }
}

#[test]
fn one_mount_writes_and_many_read() {
    if !fuse() {
        return;
    }
    for shape in SHAPES {
        let place = Place::with_frames();
        let Shape(source, point, shown) = shape;
        fs::create_dir(place.path("other")).unwrap();
        let mount = place.mount_in_front(&shape, "");
        let (process, on) = (mount.0.id(), place.path(point).canonicalize().unwrap());
        let on = format!("by process {process}, on {}", on.display());
        let busy = format!("{source}: is mounted for writing already {on}; unmount it first");
        place.run(&format!("mount {source} other")).failed(&format!("{busy} (-r mounts it read-only)"));
        let from = if source == "frame" { "sparse" } else { "frame" };
        let before = content(&place.path(source));
        place.run(&format!("convert --force {from} {source}")).failed(&busy);
        assert_eq!(content(&place.path(source)), before, "what is mounted is not replaced");
        place.succeeds(&format!("mount -o ro {source} other"));
        let again = format!("{point}: is busy: {} is mounted there already (b2fuse umount)", place.path(source).display());
        place.run(&format!("mount {source} {point}")).failed(&again);
        fs::metadata(place.path(shown)).unwrap();
        place.succeeds("umount other");
        place.succeeds(&format!("umount {point}"));
        assert_eq!(mount.end().0, Some(0));
    }
}

#[test]
fn hanging_up_leaves_a_mount_without_a_terminal() {
    if !fuse() {
        return;
    }
    for shape in SHAPES {
        let place = Place::with_frames();
        let mount = place.mount_in_front(&shape, "");
        mount.signal("-HUP");
        // It opens the log file again, if it has one.
        assert_eq!(place.mounted().len(), 1);
        mount.signal("-TERM");
        let (code, said) = mount.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(place.mounted().is_empty());
    }
}

#[test]
fn auto_unmount_survives_the_daemon() {
    if !fuse() {
        return;
    }
    for (shape, options) in SHAPES.iter().flat_map(|shape| [(shape, "auto_unmount"), (shape, "auto_unmount,ro")]) {
        let place = Place::with_frames();
        let Shape(source, point, shown) = shape;
        let mount = place.mount_in_front(shape, &format!("-o {options}"));
        fs::read(place.path(shown)).unwrap();
        mount.signal("-KILL");
        mount.end();
        eventually("unmounted by the helper", || place.mounted().is_empty());
        place.succeeds(&format!("mount -o {options} {source} {point}"));
        place.succeeds(&format!("umount {point}"));
    }
}

#[test]
fn a_dead_daemons_mount_can_be_unmounted() {
    if !fuse() {
        return;
    }
    for (shape, options) in SHAPES.iter().flat_map(|shape| [(shape, "ro"), (shape, "rw")]) {
        let place = Place::with_frames();
        let Shape(source, point, shown) = shape;
        let mount = place.mount_in_front(shape, &format!("-o {options}"));
        fs::read(place.path(shown)).unwrap();
        mount.signal("-KILL");
        mount.end();
        assert_eq!(place.run(&format!("mount {source} {point}")).code(), 1);
        let reason = "its daemon had died, so it cannot be told whether everything that was written is in the frame";
        let dead = format!("{point}: unmounted, but {reason}; see the daemon's log\n");
        match options {
            "ro" => place.succeeds(&format!("umount {point}")),
            _ => {
                let outcome = place.run(&format!("umount {point}"));
                assert_eq!((outcome.code(), outcome.stderr()), (3, dead));
            }
        }
        assert!(place.mounted().is_empty());
    }
}

#[test]
fn a_mount_with_open_files_is_busy_or_lazy() {
    if !fuse() {
        return;
    }
    for shape in SHAPES {
        let place = Place::with_frames();
        let Shape(_, point, shown) = shape;
        let mount = place.mount_in_front(&shape, "");
        // Another process: what this one has open, those that other tests start have for a moment as well.
        let mut holder = Holder::of(&place.path(shown));
        let busy =
            format!("{point}: is busy: cat ({}) has a file open there, or works in it (-z unmounts anyway)", holder.0.id());
        place.run(&format!("umount {point}")).failed(&busy);
        assert!(!place.mounted().is_empty());
        let outcome = place.run(&format!("umount -z {point}"));
        let said = format!("{point}: files are still open; the mount ends when the last one is closed\n");
        assert_eq!((outcome.code(), outcome.stderr()), (0, said));
        assert!(place.mounted().is_empty());
        holder.end();
        assert_eq!(mount.end().0, Some(0));
    }
}

#[test]
fn a_new_frame_that_nobody_fills_leaves_nothing() {
    if !fuse() {
        return;
    }
    let place = Place::new();
    place.run("mount --create -r new.b2frame point").misused("'--create' cannot be used with '--read-only'");
    place.succeeds("mount --create new.b2frame point");
    let outcome = place.run("umount point");
    let said = "point: nothing was copied to the mount, so no frame was made\n";
    assert_eq!((outcome.code(), outcome.stderr().as_str()), (0, said));
    // Its daemon, which has nothing to be waited for by, may still be ending.
    eventually("nothing is left", || place.names() == ["point"]);
}

#[test]
fn a_mount_point_is_not_compacted() {
    if !fuse() {
        return;
    }
    for Shape(source, point, shown) in SHAPES.iter().filter(|shape| shape.1 == shape.2 || shape.0 == "frame") {
        let place = Place::with_frames();
        place.succeeds(&format!("mount {source} {point}"));
        let frame = place.path(source).canonicalize().unwrap();
        place
            .run(&format!("compact {point}"))
            .failed(&format!("{point}: is a mount; expected the frame that it shows, {}", frame.display()));
        fs::metadata(place.path(shown)).unwrap();
        place.succeeds(&format!("umount {point}"));
    }
}

/// A process that has a file open.
struct Holder(Child);

impl Holder {
    fn of(path: &Path) -> Self {
        let script = "exec 7<\"$0\"; echo; exec cat";
        let command = Command::new("sh").args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = command.unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        // It is called so from when it runs.
        let name = format!("/proc/{}/comm", child.id());
        eventually("it runs", || fs::read_to_string(&name).is_ok_and(|name| name == "cat\n"));
        Holder(child)
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}
