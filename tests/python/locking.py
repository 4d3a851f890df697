#!/usr/bin/env python3
"""Processes that use the library with locking, some on a mount and some on SOURCE: nothing that is read is torn or stale.

A writer makes one state of the frame after the other, each under one exclusive lock: chunks of another number, of other sizes and
other bytes, all of which say which state they belong to, and a vlmetalayer that says it as well. Eight readers look at it, half of
them on each side: at all of a state under one shared lock of their own, and at single chunks under the library's. What a reader sees
must be one state as a whole, and none older than the last one that was whole when it asked for the lock. At the end SOURCE, opened
natively, must be in the last state.

    locking.py --seconds 10        all cases together take that long: the writer on the mount, on SOURCE under a mount
                                   for writing, on SOURCE under one for reading, writers on both; SOURCE in both layouts
    locking.py --seconds 600       the same, longer
    locking.py --tree              the same of frames in a mounted directory, shown as directories and as files
    locking.py --self-test         mounts without locking: every case must find something
"""

import argparse
import contextlib
import faulthandler
import fcntl
import itertools
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import blosc2
import numpy as np

from frames import open_frame
from mounts import Mount, default_binary

ITEMS = 3000
CHUNKS = range(3, 9)
READERS = 8
# Between two reads of one reader, at most; or nobody who wants to write would ever find the frame free of readers.
PAUSE = 0.04
# A case in which less happens has tested nothing: it goes on until then, for no longer than this.
LEAST_STATES, LEAST_READS = 3, 10
IN_TIME = 60

fork = multiprocessing.get_context("fork")


class Wrong(AssertionError):
    """What was read is torn or stale."""


def chunk_of(state, count, position):
    """The bytes of a chunk: how well they compress is another matter in each state."""
    rng = np.random.default_rng((state, position))
    items = np.full(ITEMS, state, dtype=np.int64)
    noise = int(rng.integers(0, ITEMS - 3))
    items[3 : 3 + noise] = rng.integers(0, 1 << 40, noise)
    items[:3] = state, count, position
    return items


def check_chunk(raw, position):
    items = np.frombuffer(raw, dtype=np.int64)
    if len(items) != ITEMS:
        raise Wrong(f"chunk {position} has {len(items)} items")
    state, count, at = (int(item) for item in items[:3])
    if at != position or not np.array_equal(items, chunk_of(state, count, position)):
        raise Wrong(f"chunk {position} is torn: it says it is chunk {at} of {count} of state {state}")
    return state, count


def check_state(schunk):
    """All of a frame, which must be of one state."""
    state = schunk.vlmeta["state"]
    for position in range(schunk.nchunks):
        found = check_chunk(schunk.decompress_chunk(position), position)
        if found != (state, schunk.nchunks):
            raise Wrong(f"chunk {position} is of state {found[0]} with {found[1]} chunks, in state {state} with {schunk.nchunks}")
    return state


class Side:
    """A frame by one of its two paths."""

    def __init__(self, path):
        self.path = Path(path)

    def lock_file(self):
        return self.path / ".b2lock" if self.path.is_dir() else Path(f"{self.path}.b2lock")

    def open(self, mode):
        return open_frame(self.path, mode, locking=True)

    @contextlib.contextmanager
    def shared_lock(self):
        fd = os.open(self.lock_file(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)


class Shared:
    """What the processes of a case share."""

    def __init__(self):
        self.stop = fork.Event()
        # The last state that is whole; set by whoever has the exclusive lock.
        self.done = fork.RawValue("q", 0)
        self.states, self.reads = fork.Value("q", 0), fork.Value("q", 0)

    def enough(self):
        return self.states.value >= LEAST_STATES and self.reads.value >= LEAST_READS


def write(side, shared, rng):
    schunk = side.open("a")
    while not shared.stop.is_set():
        with schunk.holding_lock():
            state = schunk.vlmeta["state"] + 1
            if state != shared.done.value + 1:
                raise Wrong(f"the writer finds state {state - 1}, and {shared.done.value} was written")
            count = rng.choice(CHUNKS)
            while schunk.nchunks > count:
                schunk.delete_chunk(rng.randrange(schunk.nchunks))
            for position in range(schunk.nchunks):
                schunk.update_data(position, chunk_of(state, count, position), copy=True)
            while schunk.nchunks < count:
                schunk.append_data(chunk_of(state, count, schunk.nchunks))
            schunk.vlmeta["state"] = state
            shared.done.value = state
        with shared.states.get_lock():
            shared.states.value += 1
        time.sleep(rng.random() * PAUSE / 4)


def read(side, shared, rng):
    schunk = side.open("r")
    while not shared.stop.is_set():
        if rng.random() < 0.2:
            schunk = side.open("r")
        known = shared.done.value
        if rng.random() < 0.5:
            with side.shared_lock():
                state = check_state(schunk)
        else:
            state, _ = check_chunk(schunk.decompress_chunk(0), 0)
        if state < known:
            raise Wrong(f"state {state} is stale: {known} was whole before the lock was asked for")
        with shared.reads.get_lock():
            shared.reads.value += 1
        time.sleep(rng.random() * PAUSE)


def process(name, work, side, shared, seed, failures):
    # The library's complaints are only of interest where something is wrong.
    blosc2.set_nthreads(1)
    try:
        work(side, shared, random.Random(seed))
    except BaseException as error:
        kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
        failures.put(f"{name}: {kind}{error}" + ("" if kind == "" else f"\n{traceback.format_exc()}"))
        shared.stop.set()


def make(path, layout):
    schunk = blosc2.SChunk(
        chunksize=ITEMS * 8, urlpath=str(path), mode="w", contiguous=layout == "cframe", cparams={"typesize": 8, "nthreads": 1}
    )
    for position in range(CHUNKS[0]):
        schunk.append_data(chunk_of(0, CHUNKS[0], position))
    schunk.vlmeta["state"] = 0


# Where the writers are, and how SOURCE is mounted.
CASES = {
    "writer on the mount": (["mount"], []),
    "writer on SOURCE": (["source"], []),
    "writer on SOURCE, read-only mount": (["source"], ["-o", "ro"]),
    "writers on both sides": (["mount", "source"], []),
}


def run(directory, layout, case, seconds, seed, locking, show):
    """One case; answers what was found wrong, or None. With `show`, of a frame in a directory that is mounted so."""
    writers, options = CASES[case]
    name, point = f"shared-{layout}.b2frame", directory / "mount"
    above = directory / "tree" / "sub" if show else directory
    above.mkdir(parents=True, exist_ok=True)
    source = above / name
    make(source, layout)
    if show:
        options = [*options, "--show", show]
    options = ["--log-file", directory / "log", *(locking if locking else []), *options]
    shared, failures = Shared(), fork.SimpleQueue()
    try:
        with Mount(directory / "tree" if show else source, point, options):
            shown = point / "sub" / name if show else point if layout == "cframe" else point / name
            sides = {"source": Side(source), "mount": Side(shown)}
            work = [("writer", write, where) for where in writers]
            work += [("reader", read, ("mount", "source")[n % 2]) for n in range(READERS)]
            processes = [
                fork.Process(target=process, args=(f"{what} {n} on {where}", body, sides[where], shared, f"{seed} {n}", failures))
                for n, (what, body, where) in enumerate(work)
            ]
            for each in processes:
                each.start()
            until = time.monotonic() + IN_TIME
            shared.stop.wait(seconds)
            # Where something must be found, only that is enough.
            while not (shared.stop.is_set() or (locking and shared.enough()) or time.monotonic() > until):
                shared.stop.wait(0.1)
            shared.stop.set()
            for each in processes:
                each.join(60)
                if each.is_alive():
                    failures.put(f"{each.name} hangs")
                    each.kill()
                elif each.exitcode != 0:
                    failures.put(f"{each.name} ended with {each.exitcode}")
    except RuntimeError as error:
        # Writers that took no turns can leave a frame that nothing can be committed to any more.
        failures.put(f"the mount: {error}")
    try:
        left = check_state(open_frame(source))
        if left != shared.done.value:
            failures.put(f"SOURCE is left in state {left}, and {shared.done.value} was written")
        checked = subprocess.run([default_binary(), "check", "--deep", source], capture_output=True, text=True)
        if checked.returncode != 0:
            failures.put(f"check: {checked.stdout}{checked.stderr}")
    except (Wrong, RuntimeError) as error:
        failures.put(f"SOURCE at the end: {error}")
    print(f"  {layout}, {f'shown {show}, ' if show else ''}{case}: {shared.states.value} states, {shared.reads.value} reads", flush=True)
    if failures.empty():
        return None if shared.enough() else "too little happened"
    return failures.get()


def main():
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="for all cases together")
    parser.add_argument("--seed", default=str(time.time_ns() % 10**9))
    parser.add_argument("--case", choices=CASES, help="one of them only")
    parser.add_argument("--layout", choices=["cframe", "sframe"])
    parser.add_argument("--tree", action="store_true", help="frames in a mounted directory")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    layouts = [args.layout] if args.layout else ["cframe", "sframe"]
    cases = [args.case] if args.case else list(CASES)
    shows = ["sparse", "contiguous"] if args.tree else [None]
    each = args.seconds / len(layouts) / len(cases) / len(shows)
    passed = failed = 0
    for n, (layout, show, case) in enumerate(itertools.product(layouts, shows, cases)):
        seed = f"{args.seed} {layout} {show} {case}"
        with tempfile.TemporaryDirectory(prefix="b2fuse-locking-") as directory:
            locking = [["--locking"], ["-o", "locking"]][n % 2] if not args.self_test else None
            wrong = run(Path(directory), layout, case, each, seed, locking, show)
            log = Path(directory, "log").read_text()
        if (wrong is None) == args.self_test:
            failed += 1
            print(f"FAILED: {layout}, {f'shown {show}, ' if show else ''}{case}, seed {args.seed}: {wrong or 'nothing was found without locking'}")
            if wrong:
                print(log[-4000:])
        else:
            passed += 1
            if args.self_test:
                print(f"    found, as it must be: {wrong.splitlines()[0]}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
