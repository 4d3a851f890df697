//! What the kernel may believe for long of frames, and what it must forget when others change them.

use std::time::{Duration, Instant};

use super::*;
use crate::view::Good;

/// How long the system may take to tell.
const SURELY: Duration = Duration::from_secs(20);

fn watched() -> (tempfile::TempDir, Tree) {
    let (dir, tree) = tree();
    tree.frames.resources().watcher().begin();
    list(&tree, ROOT);
    (dir, tree)
}

/// As the kernel does it.
fn list(tree: &Tree, ino: Ino) {
    assert!(tree.caches_listing(ino));
    tree.list(ino, 0, false, &mut |_| true).unwrap();
}

fn good(tree: &Tree, name: &str) -> Good {
    tree.lookup(ROOT, OsStr::new(name)).unwrap().good
}

/// What is told within a moment of what was done.
fn told(tree: &Tree) -> Invalidations {
    let began = Instant::now();
    loop {
        let outdated = tree.outdated();
        if !outdated.is_empty() {
            return outdated;
        }
        assert!(began.elapsed() < SURELY, "nothing is told");
        let soon = Instant::now() + Duration::from_millis(100);
        tree.frames.resources().watcher().wait(Some(soon), Instant::now());
    }
}

/// No more is told than what a change made next brings.
fn told_nothing(tree: &Tree, dir: &Path) {
    assert_eq!(good(tree, "b.b2nd"), Good::Watched);
    let next = Invalidation::Attr(tree.lookup(ROOT, OsStr::new("b.b2nd")).unwrap().ino);
    touch(&dir.join("b.b2nd"), 7);
    let mut found = Invalidations::new();
    while !found.contains(&next) {
        found.append(&mut told(tree));
    }
    found.retain(|found| *found != Invalidation::Data(ROOT));
    assert_eq!(found, [next]);
}

/// An open frame is soon what has its name now, which is this.
fn goes_with_its_name(tree: &Tree, open: &frame::OpenFrame, now: &Found) {
    let began = Instant::now();
    while !tree.is_open_as(open, now) {
        assert!(began.elapsed() < SURELY, "it does not go with its name");
        tree.follow(&mut Invalidations::new());
        let soon = Instant::now() + Duration::from_millis(100);
        tree.frames.resources().watcher().wait(Some(soon), Instant::now());
    }
}

fn touch(path: &Path, seconds: u64) {
    let file = std::fs::File::open(path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
}

#[test]
fn frames_that_are_files_are_good_until_others_change_them() {
    let (dir, tree) = watched();
    assert_eq!((good(&tree, "a.b2nd"), good(&tree, "b.b2nd")), (Good::Watched, Good::Watched));
    assert_eq!(good(&tree, "c.b2nd"), Good::Timeouts, "a directory changes inside");
    let ino = tree.lookup(ROOT, OsStr::new("a.b2nd")).unwrap().ino;
    assert_eq!(tree.getattr(ino).unwrap().good, Good::Watched);

    touch(&dir.path().join("a.b2nd"), 5);
    assert_eq!(told(&tree), [Invalidation::Attr(ino)]);
    // Of what the kernel was not told since there is nothing to forget.
    touch(&dir.path().join("a.b2nd"), 6);
    told_nothing(&tree, dir.path());
    // The name is believed further, so it must be told when that goes.
    std::fs::rename(dir.path().join("a.b2nd"), dir.path().join("y.b2nd")).unwrap();
    assert_eq!(told(&tree), [Invalidation::Data(ROOT), Invalidation::Expired(ROOT, "a.b2nd".into()), Invalidation::Attr(ino)]);
    std::fs::rename(dir.path().join("y.b2nd"), dir.path().join("a.b2nd")).unwrap();
    told_nothing(&tree, dir.path());
    assert_eq!(good(&tree, "a.b2nd"), Good::Watched);
    assert_eq!(tree.getattr(ino).unwrap().good, Good::Watched, "looked at again");

    std::fs::rename(dir.path().join("a.b2nd"), dir.path().join("z.b2nd")).unwrap();
    assert_eq!(told(&tree), [Invalidation::Data(ROOT), Invalidation::Expired(ROOT, "a.b2nd".into()), Invalidation::Attr(ino)]);
    assert_eq!(good(&tree, "z.b2nd"), Good::Watched);
    // A name that goes and a file that changes: both are told.
    touch(&dir.path().join("z.b2nd"), 8);
    std::fs::remove_file(dir.path().join("z.b2nd")).unwrap();
    let mut found = Invalidations::new();
    while !found.contains(&Invalidation::Expired(ROOT, "z.b2nd".into())) {
        found.append(&mut told(&tree));
    }
}

#[test]
fn what_is_not_a_frame_or_has_two_names_is_good_for_a_moment() {
    let (dir, tree) = tree();
    tree.frames.resources().watcher().begin();
    std::fs::write(dir.path().join("plain.txt"), "x").unwrap();
    std::fs::write(dir.path().join("none.b2nd"), "x").unwrap();
    assert_eq!(good(&tree, "a.b2nd"), Good::Timeouts, "nobody has listed the directory");
    list(&tree, ROOT);
    assert_eq!((good(&tree, "plain.txt"), good(&tree, "none.b2nd")), (Good::Timeouts, Good::Timeouts));
    std::fs::hard_link(dir.path().join("a.b2nd"), dir.path().join("a.bak")).unwrap();
    assert_eq!(good(&tree, "a.b2nd"), Good::Timeouts);
}

#[test]
fn what_was_looked_at_before_a_change_is_not_good_after_it() {
    let (dir, tree) = watched();
    let name = OsStr::new("a.b2nd");
    let attr = tree.lookup(ROOT, name).unwrap();
    let (heard, found) = (tree.heard(ROOT), beneath::look(tree.root.as_fd(), name).unwrap());
    assert_eq!(tree.good((ROOT, name), Attr { good: Good::Timeouts, ..attr }, &found, heard).good, Good::Watched);
    touch(&dir.path().join("a.b2nd"), 5);
    told(&tree);
    assert_eq!(tree.good((ROOT, name), Attr { good: Good::Timeouts, ..attr }, &found, heard).good, Good::Timeouts);
}

#[test]
fn a_listing_is_kept_as_long_as_no_name_changes() {
    let (dir, tree) = watched();
    std::fs::remove_dir_all(dir.path().join("c.b2nd")).unwrap();
    // The names of the directory that goes are told with it.
    touch(&dir.path().join("a.b2nd"), 4);
    assert_eq!(good(&tree, "b.b2nd"), Good::Watched);
    touch(&dir.path().join("b.b2nd"), 5);
    told(&tree);
    list(&tree, ROOT);
    assert!(tree.keeps_listing(ROOT));
    let long_ago = Instant::now().checked_sub(DEFAULT_TIMEOUTS.attr * 2).unwrap();
    tree.listed.lock().get_mut(&ROOT).unwrap().began = long_ago;
    assert!(tree.keeps_listing(ROOT), "frames are good for longer than a second");
    assert_eq!(good(&tree, "a.b2nd"), Good::Watched);
    touch(&dir.path().join("a.b2nd"), 6);
    told(&tree);
    assert!(tree.keeps_listing(ROOT), "only a file has changed");
    assert_eq!(good(&tree, "a.b2nd"), Good::Watched);
    std::fs::rename(dir.path().join("a.b2nd"), dir.path().join("z.b2nd")).unwrap();
    told(&tree);
    assert!(!tree.keeps_listing(ROOT));
}

#[test]
fn who_says_how_long_names_are_good_has_none_watched() {
    let (_dir, mut tree) = tree();
    tree.rules.watches = false;
    tree.frames.resources().watcher().begin();
    assert!(!tree.hears());
    tree.list(ROOT, 0, false, &mut |_| true).unwrap();
    assert_eq!(good(&tree, "a.b2nd"), Good::Timeouts);
}

#[test]
fn a_directory_that_is_forgotten_is_watched_no_more() {
    let (dir, tree) = tree();
    tree.frames.resources().watcher().begin();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::rename(dir.path().join("a.b2nd"), dir.path().join("sub/a.b2nd")).unwrap();
    let sub = tree.lookup(ROOT, OsStr::new("sub")).unwrap().ino;
    list(&tree, sub);
    let frame = tree.lookup(sub, OsStr::new("a.b2nd")).unwrap();
    assert_eq!(frame.good, Good::Watched);
    assert!(tree.heard(sub).is_some());
    tree.forget(frame.ino, 1, true);
    tree.forget(sub, 1, true);
    assert_eq!(tree.heard(sub), None);
}

/// A frame that is open goes with its name. What has got another name meanwhile is another frame.
#[test]
fn a_name_that_an_open_frame_does_not_go_with_is_looked_up_again() {
    let (dir, tree) = watched();
    let ino = tree.lookup(ROOT, OsStr::new("a.b2nd")).unwrap().ino;
    tree.readdir(ino, 0, &mut |_| true).unwrap();
    std::fs::rename(dir.path().join("a.b2nd"), dir.path().join("x.b2nd")).unwrap();
    assert_eq!(tree.lookup(ROOT, OsStr::new("x.b2nd")).unwrap().ino, ino);
    std::fs::rename(dir.path().join("b.b2nd"), dir.path().join("a.b2nd")).unwrap();
    let now = beneath::look(tree.root.as_fd(), OsStr::new("a.b2nd")).unwrap();
    let open = tree.frame_of(Some(ino)).unwrap().opened().unwrap();
    assert!(open.fs().source().is_some());
    goes_with_its_name(&tree, &open, &now);
    assert_eq!(tree.lookup(ROOT, OsStr::new("a.b2nd")).unwrap().ino, ino);
    let outdated = tree.outdated();
    for expected in [Invalidation::Expired(ROOT, "x.b2nd".into()), Invalidation::Attr(ino)] {
        assert!(outdated.contains(&expected), "{outdated:?}");
    }
    assert_ne!(tree.lookup(ROOT, OsStr::new("x.b2nd")).unwrap().ino, ino);
}

/// Others let names go round. A frame that is open goes with its name; a node stands for its file, which has another name now.
#[test]
fn a_node_shows_its_file_wherever_the_open_frame_went() {
    let (dir, tree) = watched();
    let [a, _] = ["a.b2nd", "b.b2nd"].map(|name| tree.lookup(ROOT, OsStr::new(name)).unwrap().ino);
    tree.readdir(a, 0, &mut |_| true).unwrap();
    std::fs::rename(dir.path().join("a.b2nd"), dir.path().join("x.b2nd")).unwrap();
    std::fs::rename(dir.path().join("b.b2nd"), dir.path().join("a.b2nd")).unwrap();
    let now = beneath::look(tree.root.as_fd(), OsStr::new("a.b2nd")).unwrap();
    let frame = tree.frame_of(Some(a)).unwrap();
    goes_with_its_name(&tree, &frame.opened().unwrap(), &now);
    assert_ne!(tree.lookup(ROOT, OsStr::new("a.b2nd")).unwrap().ino, tree.lookup(ROOT, OsStr::new("x.b2nd")).unwrap().ino);
    assert!(tree.outdated().contains(&Invalidation::Data(a)));
    for name in ["a.b2nd", "x.b2nd"] {
        let found = beneath::look(tree.root.as_fd(), OsStr::new(name)).unwrap();
        let ino = tree.lookup(ROOT, OsStr::new(name)).unwrap().ino;
        tree.readdir(ino, 0, &mut |_| true).unwrap();
        assert!(tree.is_open_as(&tree.frame_of(Some(ino)).unwrap().opened().unwrap(), &found), "{name}");
    }
}
