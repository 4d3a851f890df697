#!/usr/bin/env python3
"""The random-mutation test: the Blosc2 library on a view and on a native frame, step for step.

One seed makes one sequence of mutations, drawn from all that the library offers for the kind of frame. Each is applied to a
*subject* (a frame seen through a mount) and to a *reference* (a native frame of the layout that the mount shows). After each
step everything readable must be equal, through handles that stay open and through fresh ones; at each unmount SOURCE, opened
natively, must be equal too, and so must what the next mount shows.

    mutate.py --seeds 1-8                 eight sequences, kinds in turn
    mutate.py --seed 7 --steps 500        one of them, longer
    mutate.py --seeds 1-8 --self-test     a native frame of the other layout in place of the view: tests this test
    mutate.py --view-layout cframe ...    the mount shows an sframe as one file
    mutate.py --same ...                  the mount shows a frame of the layout that it has
    mutate.py --remounts ...              unmounted and mounted again after many a step, at once or a while later; and the library
                                          writes SOURCE natively now and then, between two mounts and beneath one

A failure names the seed, the step and the difference, and leaves the frames where --keep says.
"""

import argparse
import faulthandler
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blosc2
import numpy as np

from anatomy import Cframe, footprint, header_cbytes
from frames import brief, contents, difference, open_frame, schunk_of, special_of
from mounts import Mount, default_binary
from mutations import KINDS

STEPS = 120
# What a header may grow by, what file systems give room in, and in how many mounts more a file becomes short.
HEADER_ROOM, BLOCK, MORE_MOUNTS = 1024, 4096, 3
# Seconds from a mount to the next step, or from a step to the unmount: some before all is committed, some long after.
WAITS = 14 * [0] + [0.01, 0.05, 0.1, 0.3, 1.2]
# Seconds after which a mount has committed what it can; after which file systems give a change another time.
COMMITTED, TICK = 1.3, 0.02
# More than any sequence takes that goes on.
SECONDS = 600
OTHER = {"sframe": "cframe", "cframe": "sframe"}


class Difference(AssertionError):
    """What the subject shows is not what the reference shows."""


class Between(Exception):
    """A commit fell between the two writes by which the library changes a frame of chunks of any size.

    It writes the index and then the header's nbytes, and closes the file after each. Where all chunks are of one size, the number of
    chunks tells that the header is still the old one. Here nothing does, so this is a state like any other.
    """


class Exhausted(Exception):
    """The library can no longer open its own reference, so the sequence ends here.

    C-Blosc2 refuses on opening any index value above the header's cbytes - 32, the ids of an sframe included. After many new
    ids for small chunks its own sframes are beyond that.
    """


# ---- The two sides


class Native:
    """A frame that the library alone has to do with."""

    def __init__(self, directory, layout):
        self.layout = layout
        self.path = self.source = Path(directory) / f"native-{layout}.b2frame"
        self.source_layout = layout

    def start(self):
        pass

    def stop(self, at_once=False):
        pass

    def kill(self):
        pass

    def counts_like(self, reference):
        """Whether the header's cbytes is counted as the reference counts it."""
        return False

    def check_files(self, reference, expected):
        pass

    def check_source(self, expected):
        pass

    def check_room(self, expected):
        pass


class View(Native):
    """A frame behind a mount that shows it in a layout."""

    def __init__(self, directory, layout, binary, options, create=False, on_file=False, killed=False, same=False):
        self.layout = layout
        self.create = create
        self.first = True
        self.source_layout = layout if same else OTHER[layout]
        self.source = Path(directory) / "source.b2frame"
        if same:
            options = [*options, "--show", "sparse" if layout == "sframe" else "contiguous"]
        point = Path(directory) / ("view.b2frame" if on_file else "view")
        self.path = point if layout == "sframe" or on_file else point / self.source.name
        self.mount = Mount(self.source, point, [*options, "--create"] if create else options, binary, on_file=on_file, in_front=killed)
        # Of a cframe's view: has had the bytes of the reference, and no mutation yet that could have told them apart.
        self.twin = False
        self.killed = False
        # SOURCE's time after the last mount, and after how many mounts in a row it was too long.
        self.seen = self.long = 0
        # The library has written SOURCE natively: counts and files beside the frame are its own.
        self.foreign = False

    def start(self):
        before = self.source.is_dir() and footprint(self.source)
        self.mount.mount()
        if before:
            # Mounting and looking is no change.
            index_file(self).read_bytes()
            if footprint(self.source) != before:
                raise Difference("SOURCE was written to by mounting it")

    def stop(self, at_once=False):
        if at_once:
            self.mount.umount_at_once()
        else:
            self.mount.umount()
        self.first = False

    def kill(self):
        subprocess.run(["umount", "-l", str(self.mount.point)], capture_output=True)

    def counts_like(self, reference):
        return self.layout == reference.layout and not self.foreign and (self.layout == "sframe" or self.twin)

    def meet(self, reference):
        """A new mount, or new bytes: from here on, a cframe that is as the reference to the byte has to remain so."""
        self.twin = self.layout == "cframe" and Cframe.read(self.path).live() == Cframe.read(reference.path).live()

    def written_by_others(self):
        self.twin = self.first = False
        self.foreign = True
        # Their room is left to them until the next change.
        self.seen, self.long = os.stat(self.source).st_mtime_ns, 0

    def check_files(self, reference, expected):
        if self.layout == "cframe":
            self.check_bytes(reference)
        else:
            self.check_chunk_files(self.path, expected)
            if self.create and self.first and index_file(self).read_bytes() != index_file(reference).read_bytes():
                raise Difference("chunks.b2frame is not what the library wrote")

    def check_bytes(self, reference):
        """What the kernel has cached of the file is what the daemon says of it, and what the library wrote."""
        cached = self.path.read_bytes()
        with open(self.path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            fresh = file.read()
        if fresh != cached:
            raise Difference(f"the bytes cached are not those of the file: {brief(cached, fresh)}, expected {brief(fresh, cached)}")
        live = Cframe(fresh).live()
        if self.twin and live != (expected := Cframe.read(reference.path).live()):
            raise Difference(f"the file is not what the library wrote: {brief(live, expected)}, expected {brief(expected, live)}")

    @staticmethod
    def check_chunk_files(directory, expected):
        """The chunk files are the stored chunks, no more and no less."""
        stored = sorted(v for k, v in expected.items() if k.startswith("chunk ") and special_of(v) not in (1, 2, 4))
        files = sorted(name.read_bytes() for name in directory.glob("*.chunk"))
        if files != stored:
            raise Difference(f"{directory}: {len(files)} chunk files do not hold the {len(stored)} stored chunks")

    def check_room(self, expected):
        """Unmounted, a cframe takes little more than what lives in it; by its length, three mounts later."""
        stat = os.stat(self.source)
        if self.source_layout != "cframe" or stat.st_mtime_ns == self.seen:
            return
        self.seen = stat.st_mtime_ns
        live = sum(len(v) for k, v in expected.items() if k.startswith("chunk ") and special_of(v) not in (1, 2, 4))
        data = self.source.read_bytes()
        cbytes = header_cbytes(self.source) if live else 0
        index = len(data) - int.from_bytes(data[11:15], "big") - cbytes
        # The header may grow, and blocks are whole.
        most = live * 3 // 2 + 3 * index + HEADER_ROOM
        if stat.st_blocks * 512 > most + 2 * BLOCK:
            raise Difference(f"SOURCE takes {stat.st_blocks * 512} bytes, expected at most {most} for {live} that live")
        self.long = self.long + 1 if stat.st_size > most else 0
        if self.long > MORE_MOUNTS:
            raise Difference(f"SOURCE has {stat.st_size} bytes after {self.long} mounts, expected at most {most} for {live} that live")

    def check_source(self, expected):
        """Unmounted, an sframe has nothing besides its index and its chunks, unless a daemon was killed or the library left some."""
        if self.source_layout == "sframe" and not self.killed and not self.foreign:
            self.check_chunk_files(self.source, expected)
            others = {name.name for name in self.source.iterdir() if name.suffix != ".chunk"} - {"chunks.b2frame"}
            if others:
                raise Difference(f"left behind in SOURCE: {' '.join(sorted(others))}")


class Pair:
    """Subject and reference, and the handles that stay open on them."""

    def __init__(self, subject, reference, locking):
        self.subject, self.reference, self.locking = subject, reference, locking
        self.writers = self.reader = None
        self.expected = None
        self.lengths = [0, 0]

    @property
    def sides(self):
        return (self.subject, self.reference)

    def open_writers(self):
        self.writers = [open_frame(side.path, "a", self.locking) for side in self.sides]

    def close(self):
        self.writers = self.reader = None
        # The library keeps a file open for as long as there is a handle, and an exception kept may hold one in a cycle.
        gc.collect()

    def apply(self, mutation):
        """Makes a change on both sides; both must answer alike."""
        if mutation.on_path:
            self.close()
        targets = [str(side.path) for side in self.sides] if mutation.on_path else self.writers
        self.make(mutation, targets)
        if mutation.other_bytes:
            self.subject.twin = self.subject.first = False
        if mutation.on_path:
            self.open_writers()

    def apply_natively(self, mutation):
        """Makes a change on SOURCE and on the reference, by handles that do not stay."""
        paths = [self.subject.source, self.reference.path]
        try:
            self.make(mutation, [str(path) if mutation.on_path else open_frame(path, "a") for path in paths])
        except Difference as difference:
            # The library looks at the view as well, which it knows from before, and the view may refuse that while SOURCE is
            # written to. Values can be set once more.
            if not (str(mutation).endswith("= values") and f"Stale file handle: '{self.subject.path}'" in str(difference)):
                raise
            self.make(mutation, [open_frame(path, "a") for path in paths])
        self.subject.written_by_others()

    @staticmethod
    def make(mutation, targets):
        answers = []
        for target in targets:
            try:
                answers.append(("returned", mutation.apply(target)))
            except Exception as error:
                answers.append(("raised", f"{type(error).__name__}: {error}"))
        if answers[0] != answers[1]:
            raise Difference(f"{mutation}: {' '.join(map(str, answers[0]))}, natively {' '.join(map(str, answers[1]))}")
        if answers[0][0] == "raised":
            raise Difference(f"{mutation}: {answers[0][1]}, natively as well: the test asked for what cannot be")

    def compare(self, where="fresh handle"):
        """Fresh handles and the open ones show what a fresh handle on the reference shows."""
        cbytes = self.subject.counts_like(self.reference)
        exhausted = any(ids_beyond_bound(side) for side in self.sides)
        expected = contents(self.writers[1] if exhausted else open_frame(self.reference.path), cbytes=cbytes)
        self.expected = {key: value for key, value in expected.items() if key != "cbytes"}
        if self.writers:
            self.expect(contents(self.writers[0], cbytes=cbytes), expected, "the writing handle")
        if exhausted:
            raise Exhausted
        self.expect(contents(open_frame(self.subject.path), cbytes=cbytes), expected, where)
        self.compare_reader(expected, cbytes)
        self.subject.check_files(self.reference, expected)
        return expected

    def compare_reader(self, expected, cbytes):
        # A reader that stays open notices a change by the frame's length. So it may lag natively as well, and the view's may
        # where the native one does not: its ids are others, and so is the length of its index. Where both lengths have
        # changed, and the native reader is right, the view's must be.
        before, self.lengths = self.lengths, [frame_len(side) for side in self.sides]
        if self.subject.layout != self.reference.layout:
            return
        if self.reader is None:
            self.reader = [open_frame(side.path) for side in self.sides]
            return
        seen = []
        for reader in self.reader:
            try:
                schunk_of(reader).refresh()
                seen.append(contents(reader, cbytes=cbytes))
            except Exception as error:
                seen.append(error)
        lag = isinstance(seen[1], Exception) or difference(seen[1], expected)
        # With chunks of varying size it looks for the new index before it looks at the length, and fails where that has grown:
        # not at the same steps, if chunks have other places in the two files.
        lag = lag or (expected["chunksize"] == 0 and not cbytes)
        if lag or any(a == b for a, b in zip(before, self.lengths)):
            self.reader = None
        elif isinstance(seen[0], Exception):
            raise Difference(f"a reading handle that stayed open: {seen[0]}")
        else:
            self.expect(seen[0], expected, "a reading handle that stayed open")

    def compare_source(self, where):
        """SOURCE, opened natively, is equal. Its cbytes counts holes if it is a cframe, so that is left out."""
        self.expect(contents(open_frame(self.subject.source), cbytes=False), self.expected, where)

    def compare_remounted(self):
        """A new mount is equal. Its cbytes is counted anew, where the library has its own way of keeping count."""
        self.expect(contents(open_frame(self.subject.path), cbytes=False), self.expected, "the next mount")

    @staticmethod
    def expect(got, expected, where):
        found = difference(got, expected)
        if found:
            raise Difference(f"{where}: {found}")


# ---- One sequence


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def copy_frame(source, target):
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def remove_frame(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def index_file(side):
    return side.path / "chunks.b2frame" if side.layout == "sframe" else side.path


def frame_len(side):
    """The header's length of the frame, which the library looks at to notice changes."""
    with open(index_file(side), "rb") as file:
        return int.from_bytes(file.read(24)[16:], "big")


def ids_beyond_bound(side):
    return side.layout == "sframe" and has_ids_beyond_bound(side.path)


def has_ids_beyond_bound(directory):
    cbytes = header_cbytes(directory)
    ids = [int(name.stem, 16) for name in directory.glob("*.chunk")]
    return max(ids, default=0) > cbytes - 32 and bool(ids)


class Sequence:
    def __init__(self, seed, steps, kind, options):
        self.seed, self.steps, self.options = seed, steps, options
        self.rng = np.random.default_rng(seed)
        names = sorted(KINDS)
        self.kind = KINDS[kind or names[seed % len(names)]]
        self.step = 0
        self.last = "making the frame"
        self.ended = f"{steps} steps"
        # With --kill: the states since the last durable one, with copies of the reference.
        self.history, self.synced = [], False
        self.older = None
        # How many kills lost something, and how many did not.
        self.kills = [0, 0]

    def reproduce(self):
        switches = ("self_test", "kill", "remounts", "same")
        extra = "".join(f" --{name.replace('_', '-')}" for name in switches if getattr(self.options, name))
        layout = f" --view-layout {self.options.view_layout}"
        return f"{sys.argv[0]} --seed {self.seed} --kind {self.kind.NAME} --steps {self.step + 1}{extra}{layout} --keep DIR"

    def run(self, directory):
        options = self.options
        layout = options.view_layout
        reference = Native(directory, layout)
        if options.self_test:
            subject = Native(directory, OTHER[layout])
        else:
            copied = bool(self.rng.random() < 0.3)
            # Chunks of another size have no place in a directory that shows a frame.
            copied = copied and not (options.same and layout == "sframe")
            on_file = layout == "cframe" and bool(self.rng.random() < 0.3)
            create = copied and layout == "sframe"
            subject = View(directory, layout, options.b2fuse, options.mount_option, create, on_file, options.kill, options.same)
        locking = bool(self.rng.random() < 0.25)
        pair = Pair(subject, reference, locking)
        self.kind = self.kind(self.rng)
        self.kind.build(str(reference.path), contiguous=layout == "cframe")
        copied = not options.self_test and copied
        if not copied or layout == "cframe":
            # Something else altogether, if a frame is to be copied over it.
            kind = KINDS["plain"](np.random.default_rng(self.seed)) if copied else self.kind
            kind.build(str(subject.source), contiguous=subject.source_layout == "cframe")
        subject.start()
        try:
            if copied:
                self.last = "copying a frame into the mount"
                self.copy_in(reference.path, subject.path)
            if not options.self_test:
                subject.meet(reference)
            self.play(pair)
            pair.close()
            subject.stop()
        except BaseException:
            pair.close()
            subject.kill()
            raise

    def copy_in(self, native, view):
        """As cp -r would, in any order."""
        if native.is_file():
            shutil.copyfile(native, view)
            return
        names = sorted(name.name for name in native.iterdir())
        for name in self.rng.permutation(names):
            shutil.copyfile(native / name, view / name)

    def play(self, pair):
        pair.open_writers()
        self.state = pair.compare("the frame as made")
        if self.options.kill:
            self.remember(pair, -1)
        for self.step in range(self.steps):
            self.kind.spoiled = any(header_cbytes(side.path) for side in pair.sides)
            mutation = self.kind.choose(pair.writers[1], self.state)
            self.last = str(mutation)
            self.note()
            pair.apply(mutation)
            try:
                self.state = pair.compare()
            except Exhausted:
                self.ended = f"{self.step + 1} steps (no more: C-Blosc2 cannot open its own sframe with such ids)"
                break
            try:
                copied = self.now_and_then(pair)
                if self.options.kill:
                    self.killing(pair, mutation.composite or copied)
            except Exhausted:
                self.ended = f"{self.step + 1} steps (no more: C-Blosc2 cannot open what it wrote natively, with such ids)"
                return
            except Between:
                self.ended = f"{self.step + 1} steps (no more: killed between the two writes of one change)"
                return
        self.last = "the end"
        self.remount(pair)

    def now_and_then(self, pair):
        """Between two mutations: fsync, a remount, an older state copied over the frame (returns whether), new handles."""
        if self.options.remounts and self.rng.random() < 0.25:
            self.last += ", then a remount"
            self.synced = True
            self.wait()
            self.remount(pair, at_once=bool(self.rng.random() < 0.5), others=bool(self.rng.random() < 0.3))
            self.wait()
            pair.open_writers()
            return False
        if self.options.remounts and not self.options.self_test and self.rng.random() < 0.12:
            self.others_beneath(pair)
            self.synced = True
            pair.open_writers()
            return False
        draw = self.rng.random()
        self.synced = draw < 0.07
        if draw < 0.04:
            self.last += ", then fsync"
            fsync(index_file(pair.subject))
            pair.compare_source("SOURCE after fsync")
        elif draw < 0.07:
            self.last += ", then a remount"
            self.remount(pair)
            pair.open_writers()
        elif draw < 0.12:
            pair.close()
            pair.open_writers()
        elif draw < 0.15 and pair.reference.layout == "cframe" and not self.options.self_test:
            if self.older is None:
                self.older = pair.reference.path.read_bytes()
                return False
            self.last += ", then an older state copied over it"
            pair.close()
            present, self.older = self.older, pair.reference.path.read_bytes()
            for side in pair.sides:
                side.path.write_bytes(present)
            pair.subject.meet(pair.reference)
            pair.open_writers()
            self.state = pair.compare("the older state")
            return True
        return False

    def killing(self, pair, composite):
        """SIGKILL between two mutations: SOURCE is a state since the last that was known to be durable; both go on from it."""
        self.remember(pair, self.step)
        if composite:
            # So that none of the states within it can be the last one committed.
            fsync(index_file(pair.subject))
        if self.synced or composite:
            self.forget_history(-1)
        if self.rng.random() > 0.06:
            return
        self.last += ", then SIGKILL"
        pair.close()
        pair.subject.mount.kill()
        pair.subject.killed = True
        found = contents(open_frame(pair.subject.source), cbytes=False)
        differences = [difference(found, state) for state, _ in self.history]
        if None not in differences:
            if self.is_between(found):
                raise Between
            raise Difference(f"SOURCE after SIGKILL is none of the {len(differences)} states since it was durable, the last being off by: {differences[-1]}")
        back = len(differences) - 1 - differences[::-1].index(None)
        remove_frame(pair.reference.path)
        copy_frame(self.history[back][1], pair.reference.path)
        self.forget_history(back)
        pair.expected = self.state = self.history[0][0]
        if self.options.remounts and self.rng.random() < 0.5:
            self.others(pair, "before the next mount")
            self.remember(pair, f"{self.step}-others")
            self.forget_history(-1)
        pair.subject.mount.mount()
        pair.subject.first = False
        pair.subject.meet(pair.reference)
        pair.open_writers()
        pair.compare_remounted()
        self.kills[back == len(differences) - 1] += 1

    def is_between(self, found):
        """Whether SOURCE has the chunks of one state, and the nbytes of the one before."""
        states = [state for state, _ in self.history]
        steps = zip(states, states[1:])
        return self.kind.NAME == "varying" and any(difference(found, after | {"nbytes": before["nbytes"]}) is None for before, after in steps)

    def remember(self, pair, step):
        snapshot = pair.reference.path.with_suffix(f".{step}")
        copy_frame(pair.reference.path, snapshot)
        self.history.append((pair.expected, snapshot))

    def forget_history(self, upto):
        keep = self.history[upto:] if upto < 0 else self.history[upto : upto + 1]
        for _, snapshot in self.history:
            if snapshot not in [kept for _, kept in keep]:
                remove_frame(snapshot)
        self.history = keep

    def wait(self):
        time.sleep(float(self.rng.choice(WAITS)))

    def others_beneath(self, pair):
        """The library changes SOURCE beneath the mount, which has nothing uncommitted and shows it then."""
        pair.close()
        if self.rng.random() < 0.5:
            fsync(index_file(pair.subject))
        else:
            # Committed, and not on disk.
            time.sleep(COMMITTED)
        pair.compare_source("SOURCE when all is committed")
        self.others(pair, "then beneath the mount")
        time.sleep(TICK)
        self.state = pair.compare("after others wrote SOURCE")
        if self.rng.random() < 0.5:
            self.last += ", then fsync"
            fsync(index_file(pair.subject))

    def others(self, pair, where):
        """Others make one to three changes to SOURCE."""
        for _ in range(1 + int(self.rng.integers(3))):
            self.kind.spoiled = any(header_cbytes(path) for path in (pair.subject.source, pair.reference.path))
            frame = open_frame(pair.reference.path)
            mutation = self.kind.choose(frame, contents(frame))
            del frame
            self.last += f", {where} {mutation}"
            self.note()
            pair.apply_natively(mutation)
            gc.collect()
            if any(path.is_dir() and has_ids_beyond_bound(path) for path in (pair.subject.source, pair.reference.path)):
                raise Exhausted
        pair.expected = self.state = contents(open_frame(pair.reference.path), cbytes=False)
        pair.compare_source("SOURCE that others wrote")

    def remount(self, pair, at_once=False, others=False):
        pair.close()
        pair.subject.stop(at_once)
        pair.compare_source("SOURCE after the unmount")
        pair.subject.check_source(pair.expected)
        pair.subject.check_room(pair.expected)
        if others and not self.options.self_test:
            self.others(pair, "between the mounts")
        pair.subject.start()
        pair.compare_remounted()
        if not self.options.self_test:
            pair.subject.meet(pair.reference)

    def note(self):
        """For the case that the library takes this process down."""
        if self.options.log:
            with open(self.options.log, "a") as log:
                print(f"seed {self.seed} step {self.step}: {self.last}", file=log)


def run_here(seed, options):
    sequence = Sequence(seed, options.steps, options.kind, options)
    with tempfile.TemporaryDirectory(prefix="b2fuse-mutate-", ignore_cleanup_errors=True) as scratch:
        directory = options.keep or scratch
        Path(directory).mkdir(parents=True, exist_ok=True)
        try:
            sequence.run(directory)
        except Exception as error:
            print(f"seed {seed} kind {sequence.kind.NAME} step {sequence.step}: {sequence.last}")
            print(f"    {error}")
            if not isinstance(error, Difference):
                traceback.print_exc(file=sys.stdout)
            print(f"    reproduce: {sequence.reproduce()}")
            return False
    kills = f"; killed {sum(sequence.kills)} times, {sequence.kills[0]} of them before the last commit" if options.kill else ""
    print(f"seed {seed} kind {sequence.kind.NAME}: {sequence.ended}, all equal{kills}")
    return True


def run_apart(script, seed, argv, seconds):
    """A process for each seed, so that a crash of the library fails one sequence only."""
    with tempfile.TemporaryDirectory(prefix=f"b2fuse-{Path(script).stem}-log-") as scratch:
        log = Path(scratch) / "log"
        command = [sys.executable, script, *argv, "--seed", str(seed), "--log", str(log)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as expired:
            print((expired.stdout or b"").decode(), f"seed {seed}: still running after {seconds} seconds", flush=True)
            return False
        print(done.stdout, end="", flush=True)
        if done.returncode not in (0, 1):
            tail = log.read_text().splitlines()[-5:] if log.exists() else []
            print(f"seed {seed}: ended by {done.returncode}; the last steps:", *tail, sep="\n    ", flush=True)
        return done.returncode == 0


def run_all(script, options, run_here, seeds, seconds):
    """The sequence that `options` name, in this process, or all of some, each in one of its own; the exit code."""
    faulthandler.enable()
    blosc2.set_nthreads(1)
    if options.seed is not None:
        if options.keep:
            shutil.rmtree(options.keep, ignore_errors=True)
        return 0 if run_here(options.seed, options) else 1
    argv = sys.argv[1:]
    at = next((i for i, word in enumerate(argv) if word.startswith("--seeds")), None)
    if at is not None:
        del argv[at : at + (1 if "=" in argv[at] else 2)]
    with ThreadPoolExecutor(1 if options.keep else options.jobs) as pool:
        results = list(pool.map(lambda seed: run_apart(script, seed, argv, seconds), options.seeds or seeds))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def seeds_of(text):
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser(description="The Blosc2 library on a view and on a native frame, step for step.")
    parser.add_argument("--seed", type=int, help="one sequence, in this process")
    parser.add_argument("--seeds", type=seeds_of, help="a range such as 1-8, a process for each")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="of a range, so many at once (default: all cores)")
    parser.add_argument("--kind", choices=sorted(KINDS), help="default: in turn by seed")
    parser.add_argument("--view-layout", choices=["sframe", "cframe"], default="sframe", help="what the mount shows")
    parser.add_argument("--self-test", action="store_true", help="a native frame in place of the view")
    parser.add_argument("--same", action="store_true", help="SOURCE has the layout that the mount shows")
    parser.add_argument("--kill", action="store_true", help="now and then the daemon is killed, and all goes on from what it left")
    parser.add_argument("--remounts", action="store_true", help="unmounted and mounted again after many a step, and SOURCE written by the library natively")
    parser.add_argument("--b2fuse", default=default_binary(), help="the daemon")
    parser.add_argument("--mount-option", action="append", default=[], metavar="ARG", help="one more argument for mount")
    parser.add_argument("--keep", metavar="DIR", help="work here and leave the frames")
    parser.add_argument("--log", help=argparse.SUPPRESS)
    return run_all(__file__, parser.parse_args(), run_here, seeds_of("1-5"), SECONDS)


if __name__ == "__main__":
    sys.exit(main())
