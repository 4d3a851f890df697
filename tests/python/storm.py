#!/usr/bin/env python3
"""Renames, reads and writes of the same few names in a mounted tree, all at once: nothing hangs, and nothing is harmed.

    storm.py [--seconds N] [--seed S]      each mode of --show in turn, N seconds (10)

Two threads rename among the names in all ways, two read, one writes chunks and whole frames, one walks the tree. Errors that the
mount gives are counted, and are no failure: natively, who loses such a race gets some too. What must hold is that all threads end,
that the tree is unmounted with everything in it, that each frame in DIR is sound and holds one of the states that were written, and
that nothing of the daemon's own is left. The last line is the count.
"""

import argparse
import collections
import ctypes
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount, default_binary

NAMES = [f"{kind}{number}.b2frame" for kind in "cs" for number in range(4)] + ["x.bak", "y.dat"]
DIRS = ["", "sub"]
RENAMES = {0: "rename", 1: "rename to a free name", 2: "exchange"}
LIBC = ctypes.CDLL(None, use_errno=True)
# How long threads may take to end, once they are told to.
PATIENCE = 60


def frame(path, contiguous, seed):
    numbers = np.random.default_rng(seed).integers(0, 1 << 20, 10_000, dtype=np.int64)
    blosc2.SChunk(chunksize=16_000, data=numbers, urlpath=str(path), contiguous=contiguous, cparams={"typesize": 8})


class Storm:
    def __init__(self, point, new, seconds, seed):
        self.point, self.new = point, new
        self.until, self.seed = time.monotonic() + seconds, seed
        self.done = collections.Counter()

    def path(self, dice):
        return self.point / dice.choice(DIRS) / dice.choice(NAMES)

    def rename(self, dice):
        source, target, flag = self.path(dice), self.path(dice), dice.choice([0, 0, 1, 2, 2])
        if LIBC.renameat2(-100, os.fsencode(source), -100, os.fsencode(target), flag):
            raise OSError(ctypes.get_errno(), RENAMES[flag])

    def read(self, dice):
        path = self.path(dice)
        if path.is_dir():
            path /= dice.choice(os.listdir(path))
        with open(path, "rb", buffering=0) as file:
            file.read()
            time.sleep(dice.random() * 0.02)
            file.seek(0)
            file.read()

    def write(self, dice):
        path, content = self.path(dice), self.new[0]
        if path.is_dir():
            path, content = path / "00000003.chunk", self.new[1]
        # Nothing is made: only what is there is written anew.
        file = os.open(path, os.O_WRONLY | os.O_TRUNC)
        try:
            half = len(content) // 2
            os.write(file, content[:half])
            time.sleep(dice.random() * 0.02)
            os.write(file, content[half:])
        finally:
            os.close(file)

    def walk(self, _dice):
        for folder, _, files in os.walk(self.point):
            for name in files:
                with suppress(OSError):
                    os.stat(os.path.join(folder, name))

    def work(self, step, number):
        dice = random.Random(self.seed * 100 + number)
        while time.monotonic() < self.until:
            try:
                step(dice)
                self.done[step.__name__] += 1
            except OSError as error:
                self.done[f"{step.__name__}: {errno.errorcode.get(error.errno, error.errno)}"] += 1

    def run(self):
        steps = [self.rename, self.rename, self.read, self.read, self.write, self.walk]
        threads = [threading.Thread(target=self.work, args=(step, n), daemon=True) for n, step in enumerate(steps)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.1, self.until - time.monotonic()) + PATIENCE)
        return not any(thread.is_alive() for thread in threads)


def storm(show, seconds, seed, work):
    source, point = work / "dir", work / "mnt"
    for path in (source / "sub", point):
        path.mkdir(parents=True)
    states = []
    for number in range(4):
        for kind in "cs":
            frame(source / f"{kind}{number}.b2frame", kind == "c", number)
    frame(work / "new", True, 9)
    # A chunk of another frame, which any of these may have in place of its own.
    frame(work / "chunks", False, 10)
    new = (work / "new").read_bytes(), (work / "chunks" / "00000003.chunk").read_bytes()
    states = [blosc2.open(str(work / "chunks")).decompress_chunk(3)]
    for path in (*source.glob("*.b2frame"), work / "new"):
        states += [blosc2.open(str(path)).decompress_chunk(n) for n in range(5)]
    with Mount(source, point, ["--show", show]):
        one = Storm(point, new, seconds, seed)
        if not one.run():
            return "some thread does not end"
    print(f"--show {show}, seed {seed}:", ", ".join(f"{what} {count}" for what, count in sorted(one.done.items())))
    left = [path for path in source.rglob("*") if path.name.startswith(".b2fuse-") or path.name.endswith(".lost")]
    if left:
        return f"left: {left}"
    checked = subprocess.run([default_binary(), "check", "--deep", str(source)], capture_output=True, text=True, check=False)
    named = [path for path in source.rglob("*.b2frame") if path.name != "chunks.b2frame"]
    frames = [path for path in named if path.is_dir() or path.read_bytes()[2:9] == b"b2frame"]
    if frames and checked.returncode:
        return checked.stdout + checked.stderr
    for path in frames:
        opened = blosc2.open(str(path), mode="r")
        if opened.nchunks != 5 or any(opened.decompress_chunk(n) not in states for n in range(5)):
            return f"{path} holds what nobody has written"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    failed = 0
    for show in ("other", "sparse", "contiguous"):
        work = Path(tempfile.mkdtemp(prefix="b2fuse-storm-"))
        wrong = storm(show, options.seconds, options.seed, work)
        if wrong:
            failed += 1
            print(f"--show {show}, seed {options.seed}: {wrong} (kept in {work})")
        else:
            shutil.rmtree(work)
    print(f"{3 - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
