#!/usr/bin/env python3
"""Maps of decompressed views that live through changes of SOURCE by others.

A writer changes an array: an item, some rows, more rows, fewer rows, another width, another frame in its place, none for a while, a
change by a process that is killed in the middle, and one by a process that computes it from its own map of the view. Readers hold maps
for a long time and read through them in a process that a SIGBUS may kill:

- each item has a value that it had in SOURCE since shortly before it was read, and at the end the last one;
- SIGBUS comes only for places beyond the end, and for pages never read of a frame that was replaced, removed or made of another width;
- what was read of the last state of a frame can be read again, whatever became of SOURCE (but for frames in a tree).

    maps.py --seconds 20 --seed 7     all cases together
    maps.py --self-test               reads from a copy that is stale: something must be found

The last line is the count.
"""

import argparse
import faulthandler
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount

# What is older than this is stale.
LAG = 3.0
# When the kernel has been told of a change, and a page that is read is of the last state.
SETTLES = 1.0
# Sizes are of whole chunks: what is behind the end in a chunk that shrank, the library shows again when it grows.
CHUNK = 16
WIDTHS, ROWS, MOST_ROWS, MOST = [48, 64, 80], range(32, 160, CHUNK), 192, 1 << 16
MODULUS = 1 << 40
IN_TIME = 90
READERS = 3
# Kind, layout, whether the directory is mounted.
CASES = [("npy", "cframe", False), ("npy", "sframe", False), ("raw", "cframe", False), ("npy", "cframe", True), ("raw", "sframe", True)]
fork = multiprocessing.get_context("fork")

FEEDS = """
import sys, time
import blosc2, numpy as np
view, source, expected, start, end = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
expected = np.load(expected)
deadline = time.monotonic() + float(sys.argv[6])
def mapped():
    return np.load(view, mmap_mode="r") if view.endswith(".npy") else np.memmap(view, "i8", "r").reshape(-1, expected.shape[1])
m = mapped()
while m.shape != expected.shape or not np.array_equal(m[start:end], expected[start:end]):
    assert time.monotonic() < deadline, "the map does not show the last state"
    time.sleep(0.05)
    m = mapped() if m.shape != expected.shape else m
a = blosc2.open(source, mode="a")
for row in range(start, end, 8):
    last = min(row + 8, end)
    a[row:last] = m[row:last] * 2 % (1 << 40)
"""
KILLED = """
import sys, time
import blosc2, numpy as np
a = blosc2.open(sys.argv[1], mode="a")
print("begun", flush=True)
while True:
    for row in range(0, a.shape[0]):
        a[row] = int(sys.argv[2])
"""


class Wrong(AssertionError):
    """A map shows what it must not."""


class States:
    """What SOURCE was, and when."""

    def __init__(self, directory):
        self.directory = directory
        self.begun, self.done = fork.Array("d", MOST, lock=False), fork.Array("d", MOST, lock=False)
        # Frames that have had the name; odd while there is none that can be mapped, or none whose values are known.
        self.frames = fork.Array("q", MOST, lock=False)
        self.last, self.frame = fork.Value("q", -1), fork.Value("q", 0)
        # When the last frame got the name.
        self.named = fork.Value("d", 0)

    def path(self, at):
        return self.directory / f"{at}.npy"

    def of(self, at):
        return np.load(self.path(at))

    def begin(self, values):
        at = self.last.value + 1
        np.save(self.path(at), values)
        self.begun[at], self.done[at], self.frames[at] = time.monotonic(), float("inf"), self.frame.value
        self.last.value = at
        if at == 0 or self.frames[at] != self.frames[at - 1]:
            self.named.value = float("inf")

    def end(self):
        at = self.last.value
        self.done[at] = time.monotonic()
        if at == 0 or self.frames[at] != self.frames[at - 1]:
            self.named.value = self.done[at]

    def possible(self, since, until):
        last = self.last.value
        first = last
        while first > 0 and not self.done[first] <= since - LAG:
            first -= 1
        return [at for at in range(first, last + 1) if self.begun[at] <= until]


class Writer:
    def __init__(self, source, view, kind, layout, states, rng):
        self.source, self.view, self.kind, self.layout, self.states, self.rng = source, view, kind, layout, states, rng
        self.count = 0
        self.values = None

    def fresh(self, shape):
        """Values that were never there before."""
        self.count += 1
        return np.full(shape, self.count * 1000 + 1, "i8")

    def make(self, path, values):
        blosc2.asarray(values, urlpath=str(path), contiguous=self.layout == "cframe", mode="w", chunks=(CHUNK, CHUNK), blocks=(8, CHUNK), cparams={"nthreads": 1, "clevel": self.rng.choice([0, 1])})

    def become(self, values, change):
        self.states.begin(values)
        change()
        self.states.end()
        self.values = values

    def clear(self, path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def step(self):
        deeds = ["item"] * 4 + ["rows"] * 4 + ["grow"] * 3 + ["shrink"] * 2 + ["feed", "replace", "remove", "width", "kill"]
        deed = self.rng.choice(deeds)
        # What is read now stays.
        time.sleep(1.5 * SETTLES * (deed in ("replace", "remove", "width") and self.rng.random() < 0.5))
        getattr(self, deed)()
        return deed

    def open(self):
        return blosc2.open(str(self.source), mode="a")

    def item(self):
        values = self.values.copy()
        at = tuple(self.rng.randrange(size) for size in values.shape)
        values[at] = self.fresh(())
        array = self.open()
        self.become(values, lambda: array.__setitem__(at, values[at]))

    def rows(self):
        values = self.values.copy()
        start = self.rng.randrange(len(values))
        end = min(len(values), start + self.rng.choice([1, 5, 40, MOST_ROWS]))
        values[start:end] = self.fresh(values[start:end].shape) + np.arange(values.shape[1])
        array = self.open()
        self.become(values, lambda: array.__setitem__(slice(start, end), values[start:end]))

    def grow(self):
        before, rows = self.values, min(MOST_ROWS, len(self.values) + self.rng.choice([1, 3]) * CHUNK)
        values = np.zeros((rows, before.shape[1]), "i8")
        values[: len(before)] = before
        array = self.open()
        self.become(values, lambda: array.resize(values.shape))
        if rows > len(before):
            values = values.copy()
            values[len(before) :] = self.fresh(values[len(before) :].shape)
            self.become(values, lambda: array.__setitem__(slice(len(before), rows), values[len(before) :]))

    def shrink(self):
        values = self.values[: max(ROWS.start, len(self.values) - self.rng.choice([1, 3]) * CHUNK)].copy()
        array = self.open()
        self.become(values, lambda: array.resize(values.shape))

    def feed(self):
        """By a process that computes it from its own map."""
        values = self.values.copy()
        start = self.rng.randrange(len(values))
        end = min(len(values), start + self.rng.choice([5, 40]))
        # All that it writes may be seen, row by row, and what was there before.
        expected = self.states.path(self.states.last.value)
        values[start:end] = values[start:end] * 2 % MODULUS
        done = []
        command = [sys.executable, "-c", FEEDS, str(self.view), str(self.source), str(expected), str(start), str(end), str(2 * LAG)]
        self.become(values, lambda: done.append(subprocess.run(command, capture_output=True, text=True, timeout=IN_TIME)))
        if done[0].returncode != 0:
            raise Wrong(f"a change by a program from its own map: exit code {done[0].returncode}, {done[0].stderr[-300:]}")

    def another(self, values):
        """SOURCE is another frame from now on, or one that cannot be compared with the one before."""
        self.states.frame.value += 1
        return values

    def replace(self):
        values = self.fresh((self.rng.choice(ROWS), self.rng.choice(WIDTHS)))
        beside = self.source.with_name("beside")
        self.clear(beside)
        self.make(beside, values)

        def change():
            if self.layout == "sframe":
                self.clear(self.source)
            os.rename(beside, self.source)

        self.become(self.another(values), change)

    def remove(self):
        """SOURCE is not there for a while."""
        self.another(None)
        self.states.begin(self.values)
        self.clear(self.source)
        self.states.end()
        time.sleep(self.rng.choice([0, 0.05, 0.3]))
        self.replace()

    def width(self):
        width = self.rng.choice([width for width in WIDTHS if width != self.values.shape[1]])
        values = np.zeros((len(self.values), width), "i8")
        both = min(width, self.values.shape[1])
        values[:, :both] = self.values[:, :both]
        array = self.open()
        self.become(self.another(values), lambda: array.resize(values.shape))

    def kill(self):
        """A process is killed in the middle of a change. Nobody knows what is there then, so another frame takes its place."""
        value = int(self.fresh(()))
        self.another(None)
        self.states.begin(np.full_like(self.values, value))
        with subprocess.Popen([sys.executable, "-c", KILLED, str(self.source), str(value)], stdout=subprocess.PIPE) as process:
            process.stdout.read(1)
            time.sleep(self.rng.choice([0, 0.01, 0.1]))
            process.kill()
        self.states.end()
        self.replace()


def write(writer, stop, deeds):
    while not stop.is_set():
        deed = writer.step()
        with deeds.get_lock():
            deeds.value += 1
        time.sleep(writer.rng.choice([0, 0, 0.001, 0.003, 0.02, 0.1, 0.5]))


class Map:
    """A map that is held, and what was read through it."""

    def __init__(self, view, kind, states, stays):
        self.states, self.kind, self.stays = states, kind, stays
        self.since, self.frame = time.monotonic(), states.frame.value
        if self.since < states.named.value + SETTLES:
            raise ValueError("what is mapped now may be the frame before")
        fd = os.open(view, os.O_RDONLY)
        try:
            self.size = os.fstat(fd).st_size
            self.map = mmap.mmap(fd, self.size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self.seen = {}
        self.memory = mmap.mmap(-1, 1 << 20)

    def close(self):
        self.map.close()
        self.memory.close()

    def fetch(self, start, length):
        """Bytes, or `None` for SIGBUS."""
        child = os.fork()
        if child == 0:
            try:
                faulthandler.disable()
                signal.signal(signal.SIGBUS, signal.SIG_DFL)
                self.memory[:length] = self.map[start : start + length]
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS:
            return None
        if status != 0:
            raise Wrong(f"who reads a map ended with {status}")
        return self.memory[:length]

    def content(self, at):
        """The bytes of the view in a state."""
        values = self.states.of(at)
        if self.kind == "raw":
            return values.tobytes()
        with tempfile.TemporaryFile() as file:
            np.lib.format.write_array(file, values)
            file.seek(0)
            return file.read()

    def read(self, rng):
        """Reads a place, and judges it. Returns whether it could be read."""
        length = min(self.size, rng.choice([8, 512, 4096, 20_000]))
        start = rng.randrange(0, self.size - length + 8, 8)
        length = min(length, self.size - start)
        since = time.monotonic()
        given_up = self.states.frame.value != self.frame
        got = self.fetch(start, length)
        until = time.monotonic()
        pages = range(start // 4096, (start + length - 1) // 4096 + 1)
        is_whole = self.states.frame.value == self.frame
        possible = self.states.possible(since, until)
        if got is None:
            if is_whole and start + length <= min(len(self.content(at)) for at in possible):
                raise Wrong(f"SIGBUS at {start}+{length} of a frame that nobody replaced")
            if given_up and self.stays and all(self.seen.get(page, 0) > self.settled() for page in pages):
                raise Wrong(f"SIGBUS at {start}+{length}, which was read before")
            return False
        if is_whole:
            self.judge(start, got, possible, until)
        for page in pages:
            self.seen[page] = since
        return True

    def settled(self):
        """From when on what was read is of the last state of the map's frame."""
        states = [at for at in range(self.states.last.value + 1) if self.states.frames[at] == self.frame]
        return max((self.states.done[at] for at in states), default=float("inf")) + SETTLES

    def judge(self, start, got, possible, until):
        got = np.frombuffer(got, "u1")
        good = np.zeros(len(got), bool)
        for at in possible:
            content = np.frombuffer(self.content(at)[start : start + len(got)], "u1")
            same = content == got[: len(content)]
            # An item is of one state.
            items = len(same) // 8 * 8
            same[:items] = np.repeat(same[:items].reshape(-1, 8).all(axis=1), 8)
            good[: len(same)] |= same
            # Beyond the end the kernel has zeros.
            good[len(content) :] |= got[len(content) :] == 0
        if not good.all():
            bad = np.flatnonzero(~good)
            at = int(bad[0]) // 8 * 8
            values = {n: self.content(n)[start + at : start + at + 8].hex() for n in possible}
            raise Wrong(f"at {time.strftime('%H:%M:%S')}, {until - self.since:.3f} s mapped, {len(bad)} bytes from {start + at} on are of no state: {got[at : at + 8].tobytes().hex()}, possible were {values}")


def read(view, kind, states, stays, rng, stop, counts):
    held = None
    while not stop.is_set():
        try:
            held = held or Map(view, kind, states, stays)
        except (OSError, ValueError):
            time.sleep(0.01)
            continue
        got = held.read(rng)
        with counts.get_lock():
            counts[0 if got else 1] += 1
        # What has been given up is held on to for a while.
        if held.frame != states.frame.value and rng.random() < 0.1 or rng.random() < 0.002:
            held.close()
            held = None
        time.sleep(rng.choice([0, 0, 0.002, 0.02]))
    if held:
        held.close()


def guarded(work, failures, stop):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    blosc2.set_nthreads(1)
    try:
        work()
    except BaseException as error:
        failures.put(f"{type(error).__name__}: {error}")
        stop.set()
    os._exit(0)


def run(directory, case, seconds, seed, stale):
    kind, layout, in_tree = case
    rng, stop, failures = random.Random(seed), fork.Event(), fork.SimpleQueue()
    deeds, counts = fork.Value("q", 0), fork.Array("q", 2)
    (directory / "states").mkdir()
    states = States(directory / "states")
    source = directory / "dir" / "a.b2nd"
    source.parent.mkdir()
    view = directory / "mount" / f"{source.name}.{kind}"
    writer = Writer(source, view, kind, layout, states, rng)
    values = writer.fresh((96, 64))
    writer.become(values, lambda: writer.make(source, values))
    log = ["--log-file", directory / "log", "--log-level", "debug"]
    with Mount(source.parent if in_tree else source, directory / "mount", ["--show", kind, *log]):
        shown = view
        if stale:
            shown = directory / "stale"
            shutil.copyfile(view, shown)
        work = [lambda: write(writer, stop, deeds)]
        work += [lambda n=n: read(shown, kind, states, not in_tree, random.Random(f"{seed} {n}"), stop, counts) for n in range(READERS)]
        processes = [fork.Process(target=guarded, args=(each, failures, stop)) for each in work]
        for process in processes:
            process.start()
        stop.wait(seconds)
        stop.set()
        for process in processes:
            process.join(IN_TIME)
            if process.is_alive():
                failures.put("a process does not end")
                process.kill()
        if failures.empty():
            time.sleep(SETTLES)
            last = Map(shown, kind, states, False)
            deadline, expected = time.monotonic() + LAG, last.content(states.last.value)
            while last.size != len(expected) or last.fetch(0, last.size) != expected:
                if time.monotonic() > deadline:
                    failures.put("at the end the map does not show the last state")
                    break
                time.sleep(0.05)
                last.close()
                last = Map(shown, kind, states, False)
            last.close()
    return deeds.value, list(counts), None if failures.empty() else failures.get()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="for all cases together")
    parser.add_argument("--seed", default=str(time.time_ns() % 10**9))
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    cases = [(f"{kind}, {layout}, {'a tree' if tree else 'a mount'}", (kind, layout, tree)) for kind, layout, tree in CASES]
    cases = [each for each in cases if args.only in each[0]]
    passed = failed = 0
    for name, case in cases:
        with tempfile.TemporaryDirectory(prefix="b2fuse-maps-") as directory:
            deeds, (reads, refused), wrong = run(Path(directory), case, args.seconds / len(cases), f"{args.seed} {name}", args.self_test)
            log = Path(directory, "log").read_text()
        print(f"  {name}: {deeds} changes, {reads} reads, {refused} ended by SIGBUS", flush=True)
        if (wrong is None) == args.self_test:
            failed += 1
            print(f"FAILED: {name}, seed {args.seed}: {wrong or 'nothing was found'}\n{log[-6000:] if wrong else ''}")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
