#!/usr/bin/env python3
"""Power cuts at every point of making, replacing, renaming and removing frames in a mounted tree.

The daemon runs under strace while clients play scenes (crash_scenes.py) in its mount. After each of its operations on DIR the disks are
made that a power cut may leave (crash_disk.py): with all, none or any part of what was not synced. On each:

- each name of a frame stands for the frame that it was or the one that it is to be, whole; or for nothing, where there was or is to be
  nothing. What was durable is there. Other files are as they were;
- no content is lost that had a name before and has one after;
- in a new mount of it nothing of b2fuse's own is shown, and nothing stays once it was listed, whoever has the daemon's number by then;
- that mount shows the same frames.

    tree_crashes.py                 all scenes
    tree_crashes.py --few           those of scripts/test
    tree_crashes.py --only renamed --show other --layout sframe -v
    tree_crashes.py --kill          the daemon is killed at an fsync, and the power cut after what the next one does
    tree_crashes.py --self-test     syncs are taken away, and operations exchanged: something must be found
"""

import argparse
import collections
import contextlib
import faulthandler
import hashlib
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import blosc2

from crash_disk import Cuts
from crash_scene import Scene
from crash_scenes import FEW, KILLED, SCENES
from crash_trace import CALLS, Op, Trace, scan
from frames import contents, open_frame
from mounts import Mount, default_binary, is_mounted

MARK = "crash-mark-"
SHOWS = ["other", "sparse", "contiguous"]
LAYOUTS = ["cframe", "sframe"]
SUFFIXES = (".b2nd", ".b2e")
NOTE = "note.txt"
SECONDS = 900
# So many findings of one scene are told.
TOLD = 3
# At so many fsyncs the daemon is killed.
KILLS = 5


# ---- What is on an image

def reading(path):
    """What the library reads at a path, in digests."""
    return {key: hashlib.sha1(pickle.dumps(value)).hexdigest() for key, value in contents(open_frame(path), cbytes=False).items()}


def read_apart(path):
    """The same in a child, as what is broken can take the library down; or words."""
    incoming, outgoing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                answer = reading(path)
            except Exception as error:
                answer = f"broken: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            with os.fdopen(outgoing, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(outgoing)
    with os.fdopen(incoming, "rb") as pipe:
        bytes_ = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(bytes_) if status == 0 and bytes_ else f"broken: the library ended by {status}"


class Reader:
    """Says what frames on images hold, each only once."""

    def __init__(self, scratch):
        self.path, self.known, self.read = Path(scratch) / "read.b2nd", {}, 0

    def at(self, image, name):
        """None for nothing, "empty" for an empty directory, words, or what the library reads."""
        if name not in image.entries:
            return None
        if image.entries[name] is None and not any(path.startswith(name + "/") for path in image.entries):
            return "empty"
        digest = image.digest(name)
        if digest not in self.known:
            image.write(self.path, name)
            self.known[digest] = read_apart(self.path)
            shutil.rmtree(self.path) if self.path.is_dir() else self.path.unlink()
            self.read += 1
        return self.known[digest]


def grows(seen, into):
    """Whether a frame is one on its way to another: whole, with chunks of that or with none yet."""
    if not isinstance(seen, dict) or seen["nchunks"] != into["nchunks"] and not is_shorter(seen, into):
        return False
    return True


def is_shorter(seen, into):
    chunks = [key for key in seen if key.startswith("chunk ")]
    return all(seen[key] == into.get(key) for key in chunks)


def names_of(image):
    """The names of frames on an image; others; and b2fuse's own, in which nobody looks."""
    frames, others, inside = set(), {}, []
    for path, what in sorted(image.entries.items()):
        if any(path.startswith(above + "/") for above in inside):
            continue
        name = path.rsplit("/", 1)[-1]
        if name.startswith(".b2fuse-"):
            inside.append(path)
        elif name.endswith(SUFFIXES):
            inside.append(path)
            frames.add(path)
        elif what is not None:
            others[path] = what
    return frames, others


# ---- One mount, in which all scenes are played

class Play:
    """All scenes of one mode, each in a directory of its own, in one mount under strace."""

    def __init__(self, show, layouts, names, options, scratch):
        self.show, self.options, self.scratch = show, options, Path(scratch)
        self.dir, self.view, self.before = self.scratch / "DIR", self.scratch / "mnt", self.scratch / "before"
        self.dir.mkdir()
        self.view.mkdir()
        self.scenes = []
        for layout in layouts:
            for name in names:
                directory = f"{layout}-{name}"
                (self.dir / directory).mkdir()
                (self.dir / directory / "sub").mkdir()
                (self.dir / directory / NOTE).write_text(f"of {directory}\n")
                number = len(self.scenes)
                self.scenes.append(Scene(number, SCENES[name], show, layout, self.dir / directory, self.view / directory, MARK))
        for scene in self.scenes:
            scene.play()

    def run(self):
        """Plays; answers the trace."""
        start = scan(self.dir)
        with self.traced("strace") as log:
            for scene in self.scenes:
                if self.options.verbose:
                    print(scene, flush=True)
                scene.go_on()
                if not scene.skipped:
                    scene.settle()
        return self.trace(start, log)

    def run_killed(self, number):
        """Plays until a thread of the daemon is about to do its `number`th fsync, and dies; the next mount lists what is left."""
        start = scan(self.dir)
        with self.traced("strace", [f"inject=fsync:signal=KILL:when={number}"]) as log:
            for scene in self.scenes:
                with contextlib.suppress(OSError, subprocess.CalledProcessError, RuntimeError):
                    scene.go_on()
        with self.traced("strace2") as second:
            for _ in os.walk(self.view):
                pass
        return self.trace(start, log, second)

    @contextlib.contextmanager
    def traced(self, name, faults=()):
        log = self.scratch / name
        # With --seccomp-bpf strace is faster, and forgets signals.
        command = ["strace", "-f", *([] if faults else ["--seccomp-bpf"]), "-qq", "-xx", "-s", str(1 << 22), "-e", "signal=none", "-e", f"trace={CALLS},ioctl", "-o", str(log)]
        # What the kernel writes by itself, past the daemon, no trace tells: it is not let.
        for fault in ["inject=ioctl:error=EPERM", *faults]:
            command += ["-e", fault]
        command += [self.options.b2fuse, "mount", "-f", "--log-level", "error", "--show", self.show, str(self.dir), str(self.view)]
        daemon = subprocess.Popen(command)
        try:
            while not is_mounted(self.view):
                if daemon.poll() is not None:
                    raise RuntimeError(f"the mount ended with {daemon.returncode}")
                time.sleep(0.01)
            yield log
            done = subprocess.run([self.options.b2fuse, "umount", str(self.view)], capture_output=True, timeout=120)
            if not faults and (done.returncode != 0 or daemon.wait(60) != 0):
                raise RuntimeError(f"the unmount ended with {done.returncode}, the daemon with {daemon.returncode}: {done.stderr}")
        finally:
            subprocess.run(["umount", "-l", str(self.view)], capture_output=True)
            if not faults and daemon.poll() is None:
                daemon.terminate()
            daemon.wait(60)

    def trace(self, start, *logs):
        trace = Trace(self.dir, start, [log.read_text() for log in logs], MARK)
        if wrong := trace.is_now(self.dir):
            raise RuntimeError(f"the trace of {len(trace.ops)} operations does not give DIR as it is: {wrong}")
        return trace


class Judge:
    """Looks at the images of one scene."""

    def __init__(self, scene, start, ops, reader, options):
        self.scene, self.reader, self.killed = scene, reader, options.kill
        self.cuts = Cuts(start.names[scene.dir.name], ops, options.seed, options.chances)
        self.marks = []
        for at, op in enumerate(self.cuts.ops):
            if op.what == "mark" and op.text.split("-")[0] == str(scene.number):
                self.marks.append(at)
        self.contents = {content: reading(path) for content, path in scene.contents.items()}
        self.findings, self.images, self.distinct = [], 0, {}

    def window(self, at):
        """The states that a cut after so many operations may leave."""
        states = self.scene.states
        if self.killed:
            return states
        if at == len(self.cuts.ops):
            # Unmounted: all that was done is on disk.
            return states[-1:]
        passed = sum(1 for mark in self.marks if mark < at) - 1
        newest = min(max(passed, 0) + 1, len(states) - 1)
        oldest = max(number for number in range(max(passed, 0) + 1) if states[number].durable)
        return states[oldest : newest + 1]

    def judge(self):
        own = [at for at, op in enumerate(self.cuts.ops) if op.changes or op.what in ("write", "length", "punch", "sync")]
        if not own:
            return
        seen = {}
        for at in [*range(own[0], own[-1] + 2), len(self.cuts.ops)]:
            states = self.window(at)
            for image in self.cuts.images(at):
                digest = image.digest()
                key = (digest, len(states), id(states[0]), id(states[-1]))
                if key in seen:
                    continue
                seen[key] = True
                self.images += 1
                self.distinct.setdefault(digest, image)
                found = self.wrong(image, states)
                if found:
                    self.findings.append(f"{image}: {found}")

    def name_of(self, seen):
        for content, reads in self.contents.items():
            if seen == reads:
                return content
        return seen if seen is None or isinstance(seen, str) else "another frame"

    def wrong(self, image, states):
        """What is on an image that may not be, in words."""
        frames, others = names_of(image)
        loose = set().union(*(state.loose for state in states))
        held = {}
        for name in sorted(frames.union(*(state.names for state in states)) - loose):
            seen = self.reader.at(image, name)
            held[name] = self.name_of(seen)
            allowed = {state.names.get(name) for state in states}
            allowed |= {state.swaps[name] for state in states[1:] if name in state.swaps}
            if held[name] in allowed:
                continue
            into = [state.grows[name] for state in states[1:] if name in state.grows]
            if into and (seen == "empty" or any(grows(seen, self.contents[content]) for content in into)):
                continue
            return f"{name} is {held[name]}, expected {' or '.join(sorted(str(one) for one in allowed))}"
        stay = set.intersection(*({content for content in state.names.values() if content} for state in states))
        for content in sorted(stay):
            if content not in held.values() and not any(state.names.get(name) == content for state in states for name in loose):
                return f"{content} is nowhere: {held}"
        expected = hashlib.sha1(f"of {self.scene.dir.name}\n".encode()).hexdigest()
        if others.get(NOTE) != ("file", expected):
            return f"{NOTE} is {others.get(NOTE)}"
        return None


# ---- Images in new mounts

def mounted_again(judges, show, options, scratch, most):
    """Some images of all scenes, side by side in a directory that is mounted; answers findings and how many there were."""
    batch, view, findings, count = Path(scratch) / "batch", Path(scratch) / "again", [], 0
    batch.mkdir()
    placed = []
    for judge in judges:
        images = list(judge.distinct.values())
        # All that have something of b2fuse's own on them before those that have not.
        images.sort(key=lambda image: not any("/.b2fuse-" in f"/{path}" for path in image.entries))
        step = max(1, len(images) // most)
        for image in images[::step]:
            place = batch / f"{len(placed)}"
            image.write(place)
            rename_for_another_process(place)
            placed.append((judge, image, place.name))
    with Mount(batch, view, ["--show", show], options.b2fuse, timeout=120):
        for judge, image, place in placed:
            count += 1
            if found := wrong_in_view(judge, image, view / place):
                findings.append(f"{judge.scene}: {image}: mounted again: {found}")
        # What a look at a directory begins may end after it.
        left = wait_until_nothing(batch)
    for path in left:
        judge, image, _ = placed[int(path.relative_to(batch).parts[0])]
        findings.append(f"{judge.scene}: {image}: {path.relative_to(batch)} stays")
    shutil.rmtree(batch)
    view.rmdir()
    return findings, count


def rename_for_another_process(place):
    """After a power cut the daemon's number is that of another process: here, of this one."""
    for path in sorted(place.rglob(".b2fuse-*"), reverse=True):
        path.rename(path.with_name(re.sub(r"-\d+-", f"-{os.getpid()}-", path.name, count=1)))


def wrong_in_view(judge, image, view):
    frames, _ = names_of(image)
    shown = set()
    for folder, dirs, files in os.walk(view):
        for name in [*dirs, *files]:
            path = str(Path(folder, name).relative_to(view))
            if name.startswith(".b2fuse-"):
                return f"{path} is shown"
            if name.endswith(SUFFIXES):
                shown.add(path)
        dirs[:] = [name for name in dirs if not name.endswith(SUFFIXES)]
    if shown != frames:
        return f"{sorted(shown)} are shown, expected {sorted(frames)}"
    for name in sorted(frames):
        expected = judge.reader.at(image, name)
        # The library opens a store where it sees one.
        if isinstance(expected, dict) and not name.endswith(".b2e"):
            key = ("seen", judge.scene.show, image.digest(name))
            if key not in judge.reader.known:
                judge.reader.known[key] = read_apart(view / name)
            if judge.reader.known[key] != expected:
                return f"{name} reads otherwise: {judge.reader.known[key] if isinstance(judge.reader.known[key], str) else 'another frame'}"
    return None


def wait_until_nothing(batch):
    end = time.monotonic() + 5
    while True:
        left = []
        for folder, dirs, files in os.walk(batch):
            left += [Path(folder, name) for name in [*dirs, *files] if name.startswith(".b2fuse-")]
            dirs[:] = [name for name in dirs if not name.endswith(SUFFIXES) and not name.startswith(".b2fuse-")]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


# ---- Broken daemons

def without_syncs(ops):
    return renumbered([op for op in ops if op.what not in ("sync", "syncfs")])


def without_syncs_of_names(ops):
    return renumbered([op for op in ops if not (op.what == "sync" and op.node.kind == "dir")])


def without_syncs_of_data(ops):
    return renumbered([op for op in ops if not (op.what == "sync" and op.node.kind == "file") and op.what != "syncfs"])


def names_first(ops):
    """Each change of names goes before the sync that it waited for."""
    ops = list(ops)
    for at in range(1, len(ops)):
        before = at - 1
        while ops[at].changes and before >= 0 and ops[before].what in ("sync", "syncfs", "write"):
            before -= 1
        if before < at - 1 and not any(op.node in {change[2] for change in ops[at].changes} for op in ops[before + 1 : at] if op.what == "create"):
            ops.insert(before + 1, ops.pop(at))
    return renumbered(ops)


def renumbered(ops):
    """Syncs that cover what is before them in this order."""
    new = []
    for op in ops:
        other = Op(len(new), op.what, op.node, changes=op.changes, upto=len(new), offset=op.offset, data=op.data, length=op.length, text=op.text)
        new.append(other)
    return new


BROKEN = [without_syncs, without_syncs_of_names, without_syncs_of_data, names_first]


# ---- All of it

def play_one(show, layouts, names, options):
    """One mode; answers counts and lines."""
    faulthandler.enable()
    blosc2.set_nthreads(1)
    lines, counts = [], collections.Counter()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="b2fuse-crashes-") as scratch, tempfile.TemporaryDirectory(prefix="b2fuse-images-", dir=base) as fast:
        play = Play(show, layouts, names, options, options.keep or scratch)
        trace = play.run()
        counts["skipped"] = sum(1 for scene in play.scenes if scene.skipped)
        if options.verbose:
            lines += [f"{scene}: skipped: {scene.skipped}" for scene in play.scenes if scene.skipped]
        scenes = [scene for scene in play.scenes if not scene.skipped]
        reader = Reader(fast)
        if options.self_test:
            self_test(scenes, trace, reader, options, counts, lines)
            return counts, lines
        judges = []
        for scene in scenes:
            judge = Judge(scene, trace.start, trace.ops, reader, options)
            judge.judge()
            judges.append(judge)
            own = sum(1 for op in judge.cuts.ops if op.what not in ("mark", "syncfs"))
            counts["passed" if not judge.findings else "failed"] += 1
            counts["images"] += judge.images
            if options.verbose or judge.findings:
                lines.append(f"{scene}: {own} operations, {judge.images} images, {len(judge.findings)} wrong")
                lines += [f"    {finding}" for finding in judge.findings[: None if options.verbose else TOLD]]
        findings, mounted = mounted_again(judges, show, options, fast, options.mounts)
        counts["mounted"] = mounted
        counts["failed" if findings else "passed"] += 1
        if findings:
            lines.append(f"--show {show}: {len(findings)} of {mounted} images wrong when mounted again")
            lines += [f"    {finding}" for finding in findings[: None if options.verbose else TOLD]]
        lines.append(f"--show {show}: {len(scenes)} scenes, {len(trace.ops)} operations, {counts['images']} images, {mounted} mounted again, {reader.read} different frames read")
    return counts, lines


def play_killed(show, layouts, names, options):
    """One mode, killed: one mount for each fsync, of all scenes that need no library, as that does not outlive its file system."""
    lines, counts = [], collections.Counter()
    for name in [name for name in names if name in KILLED]:
        for number in range(1, KILLS + 1):
            with tempfile.TemporaryDirectory(prefix="b2fuse-crashes-") as scratch:
                play = Play(show, layouts, [name], options, scratch)
                trace = play.run_killed(number)
                for scene in play.scenes:
                    judge = Judge(scene, trace.start, trace.ops, Reader(scratch), options)
                    judge.judge()
                    counts["images"] += judge.images
                    counts["skipped" if scene.skipped else "failed" if judge.findings else "passed"] += 1
                    if judge.findings:
                        lines.append(f"{scene}, killed at fsync {number}: {judge.images} images, {len(judge.findings)} wrong")
                        lines += [f"    {finding}" for finding in judge.findings[: None if options.verbose else TOLD]]
    lines.append(f"--show {show}, {layouts[0]}s, killed: {counts['images']} images")
    return counts, lines


def self_test(scenes, trace, reader, options, counts, lines):
    for broken in BROKEN:
        ops, found, images = broken(trace.ops), [], 0
        for scene in scenes:
            judge = Judge(scene, trace.start, ops, reader, options)
            judge.judge()
            images += judge.images
            if judge.findings:
                found.append(scene.play_it.__name__)
        counts["passed" if found else "failed"] += 1
        lines.append(f"{broken.__name__}: found in {len(found)} of {len(scenes)} scenes, {images} images")


def play_guarded(job):
    show, layouts, names, options = job
    try:
        return (play_killed if options.kill else play_one)(show, layouts, names, options)
    except Exception:
        return collections.Counter(failed=1), [f"--show {show}: {traceback.format_exc()}"]


def main():
    parser = argparse.ArgumentParser(description="Power cuts at every point of what a mounted tree does to its directory.")
    parser.add_argument("--show", choices=SHOWS, help="what the mount shows (default: each)")
    parser.add_argument("--layout", choices=LAYOUTS, help="of the frames in DIR (default: each)")
    parser.add_argument("--only", metavar="REGEX", help="scenes by name")
    parser.add_argument("--few", action="store_true", help="a part of the scenes, with the layouts in turn")
    parser.add_argument("--self-test", action="store_true", help="missing syncs and wrong orders must be found")
    parser.add_argument("--kill", action="store_true", help="SIGKILL at each fsync, and the power cut in what the next mount does")
    parser.add_argument("--seed", type=int, default=1, help="of what is there by chance")
    parser.add_argument("--chances", type=int, default=2, metavar="N", help="images by chance, after each operation")
    parser.add_argument("--mounts", type=int, default=40, metavar="N", help="images of each scene that are mounted again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--b2fuse", default=default_binary(), help="the daemon")
    parser.add_argument("--keep", metavar="DIR", help="an empty directory in which to leave DIR and the trace, of one mode")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    names = [name for name in SCENES if re.search(options.only or "", name)]
    shows = [options.show] if options.show else SHOWS
    jobs = []
    for number, show in enumerate(shows):
        if options.few or options.self_test:
            few = [name for name in names if name in FEW or options.only]
            for turn, layout in enumerate(LAYOUTS):
                if not options.layout or layout == options.layout:
                    jobs.append((show, [layout], few if options.self_test or options.layout else few[(number + turn) % 2 :: 2], options))
        else:
            jobs += [(show, [layout], names, options) for layout in ([options.layout] if options.layout else LAYOUTS)]
    totals = collections.Counter()
    with multiprocessing.Pool(1 if options.keep else options.jobs, maxtasksperchild=1) as pool:
        for counts, lines in pool.imap(play_guarded, jobs):
            print(*lines, sep="\n", flush=True)
            totals += counts
    print(f"{totals['images']} images, {totals['mounted']} of them mounted again")
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    return 1 if totals["failed"] or not totals["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
