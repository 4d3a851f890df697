#!/usr/bin/env python3
"""Decompressed views of a frame that others change: each item that is read is an old one, a new one, or there is an error.

A writer changes SOURCE at random, as in others.py: with the library, in place; by another frame in its place; piece by piece; into
what is no frame. Readers open the file that a mount shows, with `--show npy` an array in chunks along or across the file, with
`--show raw` a frame that is no array. By one handle they read all of it in pieces, or at random places, or through a map in a process
of its own, which an error kills. Each item must be of a state that SOURCE was in since shortly before the file was opened: a view goes
on to the next state as a file does that is changed in place, so one read may have items of both. While nobody changes SOURCE, all is the last state, and nothing is refused.

    array_changes.py --seconds 20        all cases together: both layouts, with locking and without
    array_changes.py --self-test         on native files: what is fresh passes; in what is stale, or torn, something must be found

The last line is the count.
"""

import argparse
import errno
import faulthandler
import functools
import mmap
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import blosc2
import numpy as np

import others
from arrayframes import saved
from frames import open_frame
from mounts import Mount
from others import CHUNKS, IN_TIME, ITEMS, READERS, Shared, Wrong, Writer, data_of, fork, process

# What is read while somebody writes in place without a lock may be torn, and nothing tells: no more than one read in so many is not
# judged. A frame of a tree is looked at by its time less often than a mount of one.
JUDGED = 300
# A view follows a writer that makes no pause now and then, and not each time.
others.LAG = LAG = 1.0
# A chunk that is there and not yet written.
ZEROS = 0


@functools.lru_cache(64)
def shown(kind, chunks):
    """The bytes of the view of a frame of these chunks."""
    items = [np.zeros(ITEMS, "i8") if chunk == ZEROS else data_of(chunk) for chunk in chunks]
    if kind == "raw":
        return b"".join(part.tobytes() for part in items)
    return saved(np.concatenate(items) if kind == "along" else np.stack(items, axis=1))


class ArrayWriter(Writer):
    """Changes an array whose chunks follow each other along the file, or go across it."""

    def __init__(self, kind, *args, **more):
        super().__init__(*args, **more)
        self.kind = kind

    def make(self, path, chunks, clevel):
        values = np.frombuffer(shown("raw", tuple(chunks)), "i8")
        places = {"chunks": (ITEMS,), "blocks": (ITEMS // 3,)}
        if self.kind == "across":
            values = values.reshape(len(chunks), ITEMS).T
            places = {"chunks": (ITEMS, 1), "blocks": (ITEMS // 3, 1)}
        params = {"typesize": 8, "nthreads": 1, "clevel": clevel}
        blosc2.asarray(np.ascontiguousarray(values), urlpath=str(path), contiguous=self.layout == "cframe", mode="w", cparams=params, **places)

    def another(self):
        self.remove(self.beside)
        chunks = [self.fresh() for _ in range(self.rng.choice(CHUNKS))]
        self.make(self.beside, chunks, self.rng.choice([0, 1]))
        return chunks

    def overwrite(self):
        # Chunk files that are written one by one make arrays of old and new ones: others.py has that.
        if self.layout == "sframe":
            self.replace()
        else:
            super().overwrite()

    def by_the_library(self):
        """A chunk is replaced; the array grows by one, which is zeros first, or shrinks by one."""
        now = self.shared.states.of(self.shared.states.last.value)
        deeds = ["update"] * 3 + ["grow"] * (len(now) < CHUNKS.stop) + ["shrink"] * (len(now) > CHUNKS.start)
        deed = self.rng.choice(deeds)
        array = open_frame(self.path, "a", locking=self.locking)
        if deed == "shrink":
            self.begin(now[:-1])
            array.resize(self.shape(len(now) - 1))
            self.end()
            return
        at = self.rng.randrange(len(now))
        if deed == "grow":
            at, now = len(now), [*now, ZEROS]
            self.begin(now)
            array.resize(self.shape(len(now)))
            self.end()
        chunks = list(now)
        chunks[at] = self.fresh()
        self.begin(chunks)
        if self.kind == "along":
            array[at * ITEMS : (at + 1) * ITEMS] = data_of(chunks[at])
        else:
            array[:, at] = data_of(chunks[at])
        self.end()

    def shape(self, count):
        return (count * ITEMS,) if self.kind == "along" else (ITEMS, count)


class FrameWriter(ArrayWriter):
    """The same for a frame that is no array."""

    by_the_library = Writer.by_the_library

    def make(self, path, chunks, clevel):
        others.make(path, self.layout, chunks, clevel)


def writer_of(kind):
    return functools.partial(FrameWriter if kind == "raw" else ArrayWriter, kind)


# ---- Reading


class Files:
    """The file that a mount shows."""

    # Whether it cannot be mapped for a while after a change.
    maps_late = False

    def __init__(self, kind, path):
        self.kind, self.path = kind, path
        # What others.read asks of the files of a frame.
        self.frame = path

    def open(self, shared):
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def bytes_of(self, shared, at):
        return shown(self.kind, tuple(shared.states.of(at)))


class Stale(Files):
    """What SOURCE was at first, and stays."""

    def __init__(self, kind, path, shared):
        super().__init__(kind, path)
        path.write_bytes(self.bytes_of(shared, 0))


class Fresh(Files):
    """The last state, in a file of its own for each who opens it: nothing is wrong with that."""

    def content(self, shared):
        return self.bytes_of(shared, shared.states.last.value)

    def open(self, shared):
        path = self.path.with_name(f"fresh-{os.getpid()}")
        path.unlink(missing_ok=True)
        path.write_bytes(self.content(shared))
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class Torn(Fresh):
    """Items of which a part is of one state, and the rest of the next."""

    def content(self, shared):
        last = shared.states.last.value
        one, other = (self.bytes_of(shared, at) for at in (max(last - 1, 0), last))
        mixed = np.frombuffer(one, "u1").copy()
        both = min(len(one), len(other)) // 8 * 8
        mixed[:both].reshape(-1, 8)[:, :1] = np.frombuffer(other[:both], "u1").reshape(-1, 8)[:, :1]
        return mixed.tobytes()


def of_states(contents, place, data):
    """Whether each item of what was read is of one of these contents. NumPy's header counts as items of 8 bytes."""
    got = np.frombuffer(data, "u1")
    good = np.zeros(len(got), bool)
    first = place % 8
    for content in contents:
        there = np.frombuffer(content[place : place + len(got)], "u1")
        same = np.zeros((first + len(got) + 7) // 8 * 8, bool)
        same[:first] = same[first + len(got) :] = True
        same[first : first + len(there)] = there == got[: len(there)]
        whole = np.repeat(same.reshape(-1, 8).all(axis=1), 8)
        good |= whole[first : first + len(got)]
        # Beyond the end of a file that has become shorter, the kernel has zeros in the last page.
        good[len(there) :] |= got[len(there) :] == 0
    return bool(good.all())


def judge(files, shared, since, got, size=None):
    """Fails unless states that are possible since then have all these items at these places, and sizes around this one."""
    possible = shared.states.possible(since, time.monotonic())
    contents = [files.bytes_of(shared, at) for at in possible]
    sizes = [len(content) for content in contents]
    if (size is None or min(sizes) <= size <= max(sizes)) and all(of_states(contents, place, data) for place, _, data in got):
        return
    places = [(place, length, len(data)) for place, length, data in got]
    raise Wrong(
        f"no states have what was read, of a size of {size}, at (place, length asked, length got) {places[:10]}; possible were "
        f"{[(len(files.bytes_of(shared, at)), shared.states.of(at)) for at in possible]}"
    )


def whole(files, shared, rng):
    since = time.monotonic()
    fd = files.open(shared)
    try:
        content, piece = bytearray(), rng.choice([5000, 1 << 16, 1 << 20])
        while got := os.pread(fd, piece, len(content)):
            content += got
            if rng.random() < 0.02:
                time.sleep(rng.choice([0.001, 0.02]))
    finally:
        os.close(fd)
    judge(files, shared, since, [(0, len(content), bytes(content))], len(content))


def at_random(files, shared, rng):
    since = time.monotonic()
    fd = files.open(shared)
    try:
        size, got = os.fstat(fd).st_size, []
        for _ in range(rng.randrange(1, 12)):
            place, length = rng.randrange(size + 100), rng.choice([1, 512, 4096, 20_000])
            got.append((place, length, os.pread(fd, length, place)))
            if rng.random() < 0.1:
                time.sleep(rng.choice([0.001, 0.02]))
    finally:
        os.close(fd)
    judge(files, shared, since, got)


def mapped(files, shared, rng):
    """In a process of its own: where a mapped page cannot be had, it is killed."""
    since = time.monotonic()
    fd = files.open(shared)
    memory = mmap.mmap(-1, 1 << 20)
    try:
        size = os.fstat(fd).st_size
        spans = [(place, min(rng.choice([1, 512, 4096, 20_000]), size - place)) for place in (rng.randrange(size) for _ in range(8))]
        child = os.fork()
        if child == 0:
            try:
                with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
                    for place, length in spans:
                        memory.write(view[place : place + length])
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(fd)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS:
        raise OSError(errno.EIO, "a mapped page could not be read")
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        # Not judged, where the page cache is passed by for as long as names and attributes are good.
        number = errno.ENOENT if files.maps_late else errno.EIO
        raise OSError(number, f"{size} bytes, which fstat tells of, cannot be mapped")
    if status != 0:
        raise Wrong(f"who reads a map ended with {status}")
    memory.seek(0)
    judge(files, shared, since, [(place, length, memory.read(length)) for place, length in spans])


def in_peace(files, shared, rng):
    """While nobody changes SOURCE, who opens the file reads the last state."""
    since = time.monotonic()
    if not shared.states.is_quiet(since, since):
        time.sleep(0.02)
        return
    expected = files.bytes_of(shared, shared.states.last.value)
    try:
        found = Path(files.path).read_bytes()
    except OSError as error:
        found = repr(error).encode()
    if shared.states.is_quiet(since, time.monotonic()) and found != expected:
        raise Wrong(f"in peace, {len(found)} bytes {found[:100]!r}, and it is {len(expected)} bytes {expected[:100]!r}")


WAYS = [whole, at_random, at_random, mapped, in_peace]
# Kind, layout, options of the mount, whether the writer uses the library's locking. With TREE the directory is mounted.
TREE = "a tree"
CASES = [
    ("along", "cframe", [], False),
    ("across", "cframe", ["--locking"], True),
    ("raw", "cframe", [], False),
    ("along", "sframe", ["--locking"], True),
    ("across", "sframe", [], False),
    ("raw", "sframe", ["--locking"], True),
    ("across", "cframe", [], False),
    ("along", "cframe", ["--locking"], False),
    ("along", "cframe", [TREE], False),
    ("across", "sframe", [TREE, "--locking"], True),
    ("raw", "sframe", [TREE], False),
]


def beside_a_writer(directory, case, seconds, seed, stand_in):
    kind, layout, options, locking = case
    shared, failures, rng = Shared(), fork.SimpleQueue(), random.Random(seed)
    shared.judges_all = locking or stand_in is not None
    source = directory / "directory" / "source.b2frame"
    source.parent.mkdir()
    writer = writer_of(kind)(source, layout, shared, rng, locking)
    chunks = [writer.fresh() for _ in range(4)]
    at = shared.states.begin(chunks)
    writer.make(source, chunks, 1)
    shared.states.end(at)
    show = "raw" if kind == "raw" else "npy"
    if stand_in:
        files = stand_in(kind, directory / "file", *[shared] * (stand_in is Stale))
        work_on(files, writer, shared, rng, failures, seed, seconds)
    else:
        log = ["--log-file", directory / "log", "--log-level", "debug"]
        mounted, options = (source.parent, options[1:]) if TREE in options else (source, options)
        with Mount(mounted, directory / "mount", ["--show", "npy" if mounted != source else show, *log, *options]):
            files = Files(kind, directory / "mount" / f"{source.name}.{show}")
            files.maps_late = mounted != source and "--locking" in options
            work_on(files, writer, shared, rng, failures, seed, seconds)
            if failures.empty():
                time.sleep(LAG)
                found, last = files.path.read_bytes(), files.bytes_of(shared, shared.states.last.value)
                if found != last:
                    failures.put(f"at the end the mount shows {len(found)} bytes {found[:200]!r}, expected {len(last)} {last[:200]!r}")
    return shared, failures


def work_on(files, writer, shared, rng, failures, seed, seconds):
    """One who writes and some who read, until the time is over or something is wrong."""
    ways = WAYS if type(files) is Files else [whole, at_random, mapped] if type(files) is Fresh else [whole]
    work = [("writer", lambda: others.write(writer, shared, rng))]
    for n in range(READERS):
        work.append((f"reader {n}", functools.partial(others.read, files, shared, random.Random(f"{seed} {n}"), ways)))
    others.work_beside(work, shared, failures, seconds, shared.enough)


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="for all cases together")
    parser.add_argument("--seed", default=str(time.time_ns() % 10**9))
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    cases = [
        (f"{kind}, {layout}, mount {' '.join(options) or 'without locking'}, writer {'locks' if locks else 'does not lock'}",
         (kind, layout, options, locks), None)
        for kind, layout, options, locks in CASES
    ]  # fmt: skip
    if args.self_test:
        # A native file has none of that.
        others.LAG = 0.5
        cases = [
            (f"{kind}, {stand_in.__name__.lower()}", (kind, "cframe", [], False), stand_in)
            for stand_in in (Fresh, Stale, Torn) for kind in ("along", "across", "raw")
        ]  # fmt: skip
    cases = [each for each in cases if args.only in each[0]]
    passed = failed = reads = refused = unjudged = 0
    for name, case, stand_in in cases:
        with tempfile.TemporaryDirectory(prefix="b2fuse-array-changes-") as directory:
            try:
                shared, failures = beside_a_writer(Path(directory), case, args.seconds / len(cases), f"{args.seed} {name}", stand_in)
                wrong = None if failures.empty() else failures.get()
                said = f"{shared.states.last.value} changes, {shared.reads.value} reads, {shared.refused.value} refused"
                print(f"  {name}: {said}, {shared.unjudged.value} not judged", flush=True)
                reads, refused, unjudged = reads + shared.reads.value, refused + shared.refused.value, unjudged + shared.unjudged.value
                if wrong is None and shared.unjudged.value > 3 + shared.reads.value / JUDGED:
                    wrong = "too much could not be judged"
                if wrong is None and not shared.enough():
                    wrong = "too little happened"
            except (RuntimeError, OSError) as error:
                wrong = f"the mount: {error}"
            log = Path(directory, "log")
            log = log.read_text() if log.exists() else ""
        must_find = stand_in in (Stale, Torn)
        if (wrong is None) == must_find:
            failed += 1
            print(f"FAILED: {name}, seed {args.seed}: {wrong or 'nothing was found'}\n{log[-4000:] if wrong else ''}")
        else:
            passed += 1
            if must_find:
                print(f"    found, as it must be: {wrong.splitlines()[0][:200]}")
    print(f"{reads} reads, {refused} refused, {unjudged} not judged")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
