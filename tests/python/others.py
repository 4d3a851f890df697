#!/usr/bin/env python3
"""Other programs that write SOURCE while it is mounted: what is read is the old state, the new one, or an error, and the new one soon.

A writer changes SOURCE at random, with the library and without: appends, inserts, updates and deletes chunks in place, puts another
frame in its place, writes one over it piece by piece, cuts it, removes it, puts a link or a text there and then a frame again. Every chunk
says which one it is, so a read tells of which states it can be. Readers read files of the mount whole, with one handle, in pieces. What
they get must be of a state that SOURCE was in, or was being brought into, since shortly before the last piece was asked for. While
nobody changes SOURCE, nothing is refused, and the library reads the last state.

    others.py --seconds 20        all cases together take that long: both layouts, mounts for reading and for writing, with locking, and
                                  writers who take turns and who do not; and mounts for writing that are written to by turns with SOURCE
    others.py --seconds 600       the same, longer
    others.py --self-test         reads from where SOURCE once had what is asked for, as who does not follow it: every case must find something
"""

import argparse
import errno
import faulthandler
import functools
import json
import mmap
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import blosc2
import numpy as np

from anatomy import Cframe
from frames import open_frame
from mounts import Mount, default_binary

ITEMS = 1500
CHUNKS = range(2, 8)
MOST = CHUNKS.stop + 2
READERS = 3
# What is older than this is stale. The machine may be busy with other things.
LAG = 0.5
# A process that writes in place without a lock may be kept waiting in the middle of it, on a busy machine, after the file's time has
# changed and before its bytes have. What is read just then may be torn, and nothing tells. That is not judged, but counted: no more than
# one read in so many, and soon after the change it is judged again.
JUDGED, SOON = 1000, 0.1
# A case in which less happens has tested nothing: it goes on until then, for no longer than this.
LEAST_STATES, LEAST_READS = 5, 20
IN_TIME = 60

fork = multiprocessing.get_context("fork")


class Wrong(AssertionError):
    """What was read is neither the old state's nor the new one's."""


@functools.lru_cache(4096)
def data_of(chunk):
    """The bytes of a chunk: how well they compress is another matter in each."""
    rng = np.random.default_rng(chunk)
    items = np.full(ITEMS, chunk, dtype=np.int64)
    noise = int(rng.integers(0, ITEMS - 1))
    items[1 : 1 + noise] = rng.integers(0, 1 << 40, noise)
    return items


def chunk_in(raw):
    """Which chunk decompressed bytes are."""
    items = np.frombuffer(raw, dtype=np.int64)
    if len(items) != ITEMS or not np.array_equal(items, data_of(int(items[0]))):
        raise Wrong("a chunk is torn")
    return int(items[0])


class States:
    """The states that SOURCE was in, shared by the processes of a case: when each was begun and done, and its chunks."""

    LIMIT = 100_000

    def __init__(self):
        memory = mmap.mmap(-1, self.LIMIT * 8 * (4 + MOST))
        table = np.frombuffer(memory, dtype=np.float64).reshape(self.LIMIT, 4 + MOST)
        self.begun, self.done, self.piecewise, self.count, self.chunks = *table.T[:4], table[:, 4:]
        self.last = fork.RawValue("q", -1)

    def begin(self, chunks, piecewise=False):
        """Chunk files that are written one after the other make a frame of old and new ones meanwhile, for everybody."""
        at = self.last.value + 1
        self.piecewise[at] = piecewise
        self.chunks[at, : len(chunks)] = chunks
        self.count[at] = len(chunks)
        self.done[at] = np.inf
        self.begun[at] = time.monotonic()
        self.last.value = at
        return at

    def end(self, at):
        self.done[at] = time.monotonic()

    def of(self, at):
        return [int(chunk) for chunk in self.chunks[at, : int(self.count[at])]]

    def possible(self, since, until):
        """States in which SOURCE can have been seen."""
        last = self.last.value
        first = last
        while first > 0 and not self.done[first] <= since - LAG:
            first -= 1
        return [at for at in range(first, last + 1) if self.begun[at] <= until]

    def is_possible(self, chunks, possible):
        """Whether a frame of these chunks was seen."""
        for at in possible:
            new = self.of(at)
            if chunks == new:
                return True
            if self.piecewise[at]:
                old = self.of(at - 1)
                # The old index may have them in any order.
                if len(chunks) in (len(old), len(new)) and set(chunks) <= set(old + new):
                    return True
        return False

    def was_at_work(self, since, until):
        """Whether somebody was changing SOURCE, or just had."""
        return any(self.done[at] >= since - SOON for at in self.possible(since, until))

    def is_quiet(self, since, until):
        """Whether nobody changed SOURCE from shortly before on."""
        last = self.last.value
        return self.done[last] <= since - LAG and self.begun[last] <= until


class Shared:
    def __init__(self):
        self.states = States()
        self.stop = fork.Event()
        self.reads, self.refused, self.turns, self.unjudged = (fork.Value("q", 0) for _ in range(4))
        self.judges_all = False

    def enough(self):
        return self.states.last.value >= LEAST_STATES and self.reads.value >= LEAST_READS

    def count(self, what):
        with what.get_lock():
            what.value += 1


# ---- Writing


def make(path, layout, chunks, clevel):
    schunk = blosc2.SChunk(
        chunksize=ITEMS * 8,
        urlpath=str(path),
        mode="w",
        contiguous=layout == "cframe",
        cparams={"typesize": 8, "nthreads": 1, "clevel": clevel},
    )
    for chunk in chunks:
        schunk.append_data(data_of(chunk))


class Writer:
    """Changes SOURCE, or a frame in a mount."""

    def __init__(self, path, layout, shared, rng, locking=False):
        self.path, self.layout, self.shared, self.rng, self.locking = Path(path), layout, shared, rng, locking
        self.beside = self.path.parent / "beside"
        self.next = 1

    def fresh(self):
        self.next += 1
        return self.next * 1000 + self.rng.randrange(1000)

    def begin(self, chunks, piecewise=False):
        self.made = self.shared.states.begin(chunks, piecewise)

    def end(self):
        self.shared.states.end(self.made)

    def by_the_library(self):
        """Chunks come, go and are replaced, in place."""
        now = self.shared.states.of(self.shared.states.last.value)
        deeds = ["update"] * 3 + ["append", "insert"] * (len(now) < CHUNKS.stop) + ["delete"] * (len(now) > CHUNKS.start)
        deed, at, chunk = self.rng.choice(deeds), self.rng.randrange(len(now)), self.fresh()
        chunks = list(now)
        if deed == "update":
            chunks[at] = chunk
        elif deed == "append":
            chunks.append(chunk)
        elif deed == "insert":
            chunks.insert(at, chunk)
        else:
            del chunks[at]
        self.begin(chunks)
        schunk = open_frame(self.path, "a", locking=self.locking)
        if deed == "update":
            schunk.update_data(at, data_of(chunk), True)
        elif deed == "append":
            schunk.append_data(data_of(chunk))
        elif deed == "insert":
            schunk.insert_data(at, data_of(chunk), True)
        else:
            schunk.delete_chunk(at)
        del schunk
        self.end()

    def another(self):
        """Another frame, beside SOURCE."""
        self.remove(self.beside)
        chunks = [self.fresh() for _ in range(self.rng.choice(CHUNKS))]
        make(self.beside, self.layout, chunks, self.rng.choice([0, 1]))
        return chunks

    @staticmethod
    def remove(path):
        if not path.is_dir() or path.is_symlink():
            path.unlink(missing_ok=True)
            return
        while path.exists():
            try:
                shutil.rmtree(path)
            except OSError as error:
                # A mount with locking that had it open has made a lock file meanwhile.
                if error.errno != errno.ENOTEMPTY:
                    raise

    def put(self):
        """Gives what is beside SOURCE its name."""
        if self.path.is_dir() and not self.path.is_symlink():
            gone = self.path.parent / "gone"
            self.path.rename(gone)
            self.beside.rename(self.path)
            self.remove(gone)
        elif self.beside.is_dir():
            self.path.unlink(missing_ok=True)
            self.beside.rename(self.path)
        else:
            self.beside.rename(self.path)

    def replace(self):
        chunks = self.another()
        self.begin(chunks)
        self.put()
        self.end()

    def overwrite(self):
        """Another frame over SOURCE's files, in pieces; chunk files whole, as the library writes them, for nothing else tells them."""
        chunks = self.another()
        self.begin(chunks, self.layout == "sframe")
        if self.layout == "cframe":
            self.write_over(self.path, self.beside.read_bytes())
        else:
            files = sorted(self.beside.iterdir())
            if self.rng.random() < 0.5:
                files.reverse()  # the index first
            for file in files:
                if file.suffix == ".chunk":
                    (self.path / file.name).write_bytes(file.read_bytes())
                else:
                    self.write_over(self.path / file.name, file.read_bytes())
            names = {file.name for file in files}
            for file in self.path.iterdir():
                if file.name not in names and file.suffix == ".chunk":
                    file.unlink()
        self.end()

    def write_over(self, path, content):
        with open(path, "r+b" if path.exists() and self.rng.random() < 0.5 else "wb", buffering=0) as file:
            at = 0
            while at < len(content):
                piece = self.rng.choice([100, 4096, len(content)])
                file.write(content[at : at + piece])
                at += piece
                if self.rng.random() < 0.1:
                    time.sleep(0.002)
            file.truncate(len(content))

    def spoil(self):
        """SOURCE is no frame for a while, and another one then."""
        chunks = self.another()
        self.begin(chunks)
        index = self.path if self.layout == "cframe" else self.path / "chunks.b2frame"
        deed = self.rng.choice(["cut", "header", "remove", "link", "text"])
        if deed == "cut":
            os.truncate(index, self.rng.randrange(index.stat().st_size))
        elif deed == "header":
            with open(index, "r+b") as file:
                file.write(bytes(self.rng.randrange(256) for _ in range(30)))
        else:
            self.remove(self.path)
            if deed == "link":
                self.path.symlink_to(self.beside.name)
            elif deed == "text":
                self.path.write_text("this is no frame\n" * 20)
        time.sleep(self.rng.choice([0, 0.003, 0.03]))
        if deed == "link":
            self.path.unlink()
        self.put()
        self.end()

    def change(self):
        deeds = [self.by_the_library] * 6
        if not self.locking:
            deeds += [self.replace, self.overwrite, self.spoil]
        self.rng.choice(deeds)()


# ---- Reading


def whole(path, rng):
    """A file by one handle, in pieces, and when the last piece was asked for."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = bytearray()
        piece = rng.choice([500, 5000, 1 << 20])
        while True:
            asked = time.monotonic()
            got = os.pread(fd, piece, len(content))
            if not got:
                # Where the last page was already there, nobody was asked; who asks anew now must be told the truth.
                return bytes(content), asked
            content += got
            if rng.random() < 0.02:
                time.sleep(rng.choice([0.001, 0.02]))
    finally:
        os.close(fd)


def vector_of(content):
    """The chunks of a frame in one file."""
    schunk = blosc2.schunk_from_cframe(content, copy=True)
    return [chunk_in(schunk.decompress_chunk(n)) for n in range(schunk.nchunks)]


class Files:
    """The files of a mount."""

    def __init__(self, point, layout, source):
        self.point, self.layout = point, layout
        self.frame = point if layout == "cframe" else point / source.name

    def chunk(self, position, rng):
        return whole(self.point / f"{position:08X}.chunk", rng)

    def file(self, rng):
        return whole(self.frame, rng)


class Naive:
    """Where SOURCE had what is asked for when it was first looked at, as who does not follow it."""

    def __init__(self, source):
        self.fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        self.places = Cframe.read(source).stored

    def chunk(self, position, rng):
        if position >= len(self.places):
            raise FileNotFoundError(errno.ENOENT, "no such chunk")
        asked = time.monotonic()
        start, end = self.places[position]
        return os.pread(self.fd, end - start, start), asked


def one_chunk(files, shared, rng):
    position = rng.randrange(MOST)
    content, asked = files.chunk(position, rng)
    until = time.monotonic()
    possible = shared.states.possible(asked, until)
    if len(content) < 32 or int.from_bytes(content[12:16], "little") != len(content):
        raise Wrong(f"chunk {position} has {len(content)} bytes, and none of them a header that says so")
    try:
        chunk = chunk_in(blosc2.decompress2(content))
    except (RuntimeError, ValueError) as error:
        raise Wrong(f"chunk {position} cannot be decompressed: {error}") from error
    if not any(chunk in shared.states.of(at)[position : position + 1] for at in possible):
        raise Wrong(f"chunk {position} is {chunk}, and {[shared.states.of(at) for at in possible]} were possible")


def whole_file(files, shared, rng):
    content, asked = files.file(rng)
    until = time.monotonic()
    possible = shared.states.possible(asked, until)
    try:
        chunks = vector_of(content)
    except (RuntimeError, ValueError) as error:
        raise Wrong(f"the file of {len(content)} bytes is no frame: {error}") from error
    if not shared.states.is_possible(chunks, possible):
        raise Wrong(f"the file holds {chunks}, and {[shared.states.of(at) for at in possible]} were possible")


def by_the_library(files, shared, rng):
    """While nobody changes SOURCE, all is the last state."""
    since = time.monotonic()
    if not shared.states.is_quiet(since, since):
        time.sleep(0.02)
        return
    expected = shared.states.of(shared.states.last.value)
    try:
        schunk = open_frame(files.frame)
        found = [int(np.frombuffer(schunk.decompress_chunk(n), dtype=np.int64)[0]) for n in range(schunk.nchunks)]
    except (RuntimeError, ValueError, OSError) as error:
        found = error
    if shared.states.is_quiet(since, time.monotonic()) and found != expected:
        raise Wrong(f"the library finds {found!r}, and it is {expected}")


def read(files, shared, rng, what):
    while not shared.stop.is_set():
        since = time.monotonic()
        try:
            rng.choice(what)(files, shared, rng)
            shared.count(shared.reads)
        except Wrong:
            if shared.judges_all or not shared.states.was_at_work(since, time.monotonic()):
                raise
            shared.count(shared.unjudged)
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.ENOENT, errno.EIO, errno.EAGAIN, errno.ENODEV):
                raise
            shared.count(shared.refused)
            if error.errno != errno.ENOENT and shared.states.is_quiet(since, time.monotonic()):
                raise Wrong(f"refused while nobody changed SOURCE: {error}") from error
        time.sleep(rng.choice([0, 0, 0.001, 0.01]))


def write(writer, shared, rng):
    while not shared.stop.is_set():
        writer.change()
        # Now and then long enough for everybody to see that it is quiet.
        time.sleep(rng.choice([0, 0, 0.001, 0.003, 0.02, 0.1] + [LAG + 0.2] * (rng.random() < 0.2)))


def process(name, work, shared, failures):
    # The library's complaints are of no interest: it is asked to read what is being changed.
    blosc2.set_nthreads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        work()
    except BaseException as error:
        kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
        failures.put(f"{name}: {kind}{error}" + ("" if kind == "" else f"\n{traceback.format_exc()}"))
        shared.stop.set()


# Layout, options of the mount, whether the writer uses the library's locking.
CASES = [
    ("cframe", ["-o", "ro"], False),
    ("cframe", [], False),
    ("cframe", ["--locking"], False),
    ("cframe", ["--locking", "-o", "ro"], True),
    ("sframe", ["-o", "ro"], False),
    ("sframe", [], False),
    ("sframe", ["--locking"], False),
    ("sframe", ["--locking"], True),
]


def prepare(directory, layout, shared, rng, locking):
    source = directory / "source.b2frame"
    writer = Writer(source, layout, shared, rng, locking)
    chunks = [writer.fresh() for _ in range(4)]
    at = shared.states.begin(chunks)
    make(source, layout, chunks, 1)
    shared.states.end(at)
    return source, writer


def work_beside(work, shared, failures, seconds, is_enough):
    """Has each do its work in a process of its own, for some seconds and until it is enough."""
    processes = [fork.Process(target=process, args=(name, body, shared, failures)) for name, body in work]
    for each in processes:
        each.start()
    until = time.monotonic() + IN_TIME
    shared.stop.wait(seconds)
    while not (shared.stop.is_set() or is_enough() or time.monotonic() > until):
        shared.stop.wait(0.1)
    shared.stop.set()
    for (name, _), each in zip(work, processes):
        each.join(60)
        if each.is_alive():
            failures.put(f"{name} hangs")
            each.kill()
        elif each.exitcode != 0:
            failures.put(f"{name} ended with {each.exitcode}")


def beside_a_writer(directory, case, seconds, seed, self_test):
    """Readers of a mount beside a writer on SOURCE; answers what was found wrong, or None."""
    layout, options, locking = case
    shared, failures, rng = Shared(), fork.SimpleQueue(), random.Random(seed)
    # Who locks may take as long as it likes.
    shared.judges_all = self_test or locking
    source, writer = prepare(directory, layout, shared, rng, locking)
    with Mount(source, directory / "mount", ["--log-file", directory / "log", "--log-level", "debug", *options]):
        files = Naive(source) if self_test else Files(directory / "mount", layout, source)
        what = [one_chunk] if layout == "cframe" else [whole_file]
        work = [("writer", lambda: write(writer, shared, rng))]
        for n in range(READERS):
            each = random.Random(f"{seed} {n}")
            kinds = what * 3 if self_test else what * 3 + [by_the_library]
            work.append((f"reader {n}", functools.partial(read, files, shared, each, kinds)))
        work_beside(work, shared, failures, seconds, lambda: shared.enough() and not self_test)
        if failures.empty() and not self_test:
            settled(Files(directory / "mount", layout, source), shared, rng, failures)
    return shared, failures


def settled(files, shared, rng, failures):
    """Once nothing changes any more, all of the last state is there."""
    time.sleep(LAG)
    last = shared.states.of(shared.states.last.value)
    try:
        if files.layout == "cframe":
            names = sorted(path.name for path in files.point.glob("*.chunk"))
            found = [chunk_in(blosc2.decompress2(whole(files.point / name, rng)[0])) for name in names]
        else:
            found = vector_of(whole(files.frame, rng)[0])
    except OSError as error:
        found = error
    if found != last:
        failures.put(f"at the end the mount shows {found!r}, and SOURCE is {last}")


def by_turns(directory, layout, seconds, seed):
    """The mount and SOURCE are written to by turns: nothing that either has written is lost or harmed."""
    shared, failures, rng = Shared(), fork.SimpleQueue(), random.Random(seed)
    source, outside = prepare(directory, layout, shared, rng, False)
    options = ["--log-file", directory / "log", "--log-level", "debug"]
    point = directory / "mount"
    check = [default_binary(), "check", "--deep", "--json"]
    with Mount(source, point, options):
        files = Files(point, layout, source)
        inside = Writer(files.frame, layout, shared, rng)
        until = time.monotonic() + seconds
        while failures.empty() and (time.monotonic() < until or shared.states.last.value < LEAST_STATES):
            side = rng.choice([outside, inside])
            side.next = max(outside.next, inside.next)
            for _ in range(rng.choice([1, 1, 3])):
                side.by_the_library() if side is inside else side.change()
            expected = shared.states.of(shared.states.last.value)
            if side is inside:
                fd = os.open(point, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
            found = [chunk_in(schunk.decompress_chunk(n)) for schunk in [open_frame(source)] for n in range(schunk.nchunks)]
            if found != expected:
                failures.put(f"SOURCE holds {found}, and it should be {expected}")
            checked = subprocess.run([*check, source], capture_output=True, text=True)
            if checked.returncode != 0 or not json.loads(checked.stdout)["sound"]:
                failures.put(f"SOURCE is not sound: {checked.stdout}")
            # A read-write mount is up to date with the next file that is opened.
            deadline = time.monotonic() + LAG
            while True:
                try:
                    seen = [chunk_in(schunk.decompress_chunk(n)) for schunk in [open_frame(files.frame)] for n in range(schunk.nchunks)]
                except (RuntimeError, OSError, Wrong) as error:
                    seen = repr(error)
                if seen == expected or time.monotonic() > deadline:
                    break
            if seen != expected:
                failures.put(f"the mount shows {seen!r}, and SOURCE is {expected}")
            shared.count(shared.reads)
            shared.count(shared.turns)
    found = [chunk_in(schunk.decompress_chunk(n)) for schunk in [open_frame(source)] for n in range(schunk.nchunks)]
    if found != shared.states.of(shared.states.last.value):
        failures.put(f"SOURCE is left as {found}")
    return shared, failures


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=20, help="for all cases together")
    parser.add_argument("--seed", default=str(time.time_ns() % 10**9))
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    cases = [(f"{layout}, mount {' '.join(options) or 'rw'}, writer {'locks' if locks else 'does not lock'}", (layout, options, locks))
             for layout, options, locks in CASES]
    cases += [(f"{layout}, by turns", layout) for layout in ["cframe", "sframe"]]
    if args.self_test:
        cases = [case for case in cases if case[1][0] == "cframe" and not case[1][2]]
    cases = [(name, case) for name, case in cases if args.only in name]
    passed = failed = changes = reads = refused = unjudged = 0
    for name, case in cases:
        seed = f"{args.seed} {name}"
        seconds = args.seconds / len(cases)
        with tempfile.TemporaryDirectory(prefix="b2fuse-others-") as directory:
            try:
                if isinstance(case, str):
                    shared, failures = by_turns(Path(directory), case, seconds, seed)
                else:
                    shared, failures = beside_a_writer(Path(directory), case, seconds, seed, args.self_test)
                wrong = None if failures.empty() else failures.get()
                changes, reads, refused = changes + shared.states.last.value, reads + shared.reads.value, refused + shared.refused.value
                said = f"{shared.states.last.value} changes, {shared.reads.value} reads, {shared.refused.value} refused"
                print(f"  {name}: {said}, {shared.unjudged.value} not judged", flush=True)
                unjudged += shared.unjudged.value
                if wrong is None and shared.unjudged.value > 3 + shared.reads.value / JUDGED:
                    wrong = "too much could not be judged"
                if wrong is None and not shared.enough():
                    wrong = "too little happened"
            except RuntimeError as error:
                wrong = f"the mount: {error}"
            log = Path(directory, "log")
            log = log.read_text() if log.exists() else ""
        if (wrong is None) == args.self_test:
            failed += 1
            print(f"FAILED: {name}, seed {args.seed}: {wrong or 'nothing was found'}")
            print(log[-4000:] if wrong else "")
        else:
            passed += 1
            if args.self_test:
                print(f"    found, as it must be: {wrong.splitlines()[0][:200]}")
    print(f"{changes} changes by others, {reads} reads, {refused} refused, {unjudged} not judged, {failed} cases with a wrong one")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
