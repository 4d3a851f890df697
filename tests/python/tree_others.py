#!/usr/bin/env python3
"""Others change a mounted directory of frames while it is listed: what the kernel was told of frames is forgotten in time.

    tree_others.py [--rounds N] [--seed S] [--show MODE]
    tree_others.py --self-test             the same where nobody tells the kernel: something must be found

In each round some changes are made in DIR, of all kinds that a frame in it can meet, while threads list the mount with all attributes.
Then, within moments, the mount has to show what a mount made anew shows. The last line is the count.
"""

import argparse
import ctypes
import errno
import hashlib
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount, default_binary

LIBC = ctypes.CDLL(None, use_errno=True)
DIRS = ["", "sub", "sub/deep"]
FRAMES = 25
# A second, the kernel's own clock, and what a busy machine adds.
PATIENCE = 20
SOON = 2


def made(path, contiguous, seed):
    numbers = np.random.default_rng(seed).integers(0, 1 << 20, 1000, dtype=np.int64)
    blosc2.SChunk(chunksize=2000, data=numbers, urlpath=str(path), contiguous=contiguous, cparams={"typesize": 8})


class Others:
    def __init__(self, directory, samples, dice, show):
        self.directory, self.samples, self.dice, self.show = directory, samples, dice, show
        self.serial = 0

    def name(self):
        return self.directory / self.dice.choice(DIRS) / f"f{self.dice.randrange(FRAMES):02}.b2frame"

    def copy(self, kind="c"):
        """Of a sample, outside DIR: nobody is to see it before it is whole, and take it for something else from then on."""
        self.serial += 1
        path = self.directory.parent / f"new{self.serial}"
        sample = self.samples[self.dice.choice([key for key in self.samples if key[0] == kind])]
        (shutil.copytree if sample.is_dir() else shutil.copyfile)(sample, path)
        return path

    def replace(self, path):
        new = self.copy()
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(new, path)

    def by_directory(self, path):
        self.remove(path)
        os.rename(self.copy("s"), path)

    def by_file(self, path):
        self.remove(path)
        path.write_bytes(b"no frame")

    def remove(self, path):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def rename(self, path):
        other = self.name()
        if path.exists() and path != other:
            self.remove(other)
            os.rename(path, other)

    def exchange(self, path):
        LIBC.renameat2(-100, os.fsencode(path), -100, os.fsencode(self.name()), 2)

    def mode(self, path):
        if path.exists():
            path.chmod(self.dice.choice([0o600, 0o640, 0o644, 0o755]))

    def times(self, path):
        # A frame that is open as a file keeps the time that it had until its content changes.
        if path.exists() and self.show != "contiguous":
            os.utime(path, (self.dice.randrange(1 << 30), self.dice.randrange(1 << 30)))

    def owner(self, path):
        if path.exists():
            os.chown(path, self.dice.choice([0, 1, 2]), -1)

    def write(self, path):
        """In place. Not cut off before: what is looked at meanwhile is no frame, and stays that as long as the kernel knows it."""
        if path.is_file():
            with path.open("r+b") as file:
                first = file.read(1)
                file.seek(0)
                file.write(first)

    def directory_renamed(self, _path):
        deep = self.directory / "sub/deep"
        os.rename(deep, self.directory / "elsewhere")
        os.rename(self.directory / "elsewhere", deep)

    def some(self):
        changes = [self.replace, self.by_directory, self.by_file, self.remove, self.rename, self.exchange, self.mode, self.times]
        changes += [self.owner, self.write, self.directory_renamed]
        for _ in range(self.dice.randrange(1, 30)):
            self.dice.choice(changes)(self.name())


def listed(root):
    """What `ls -l` would show of each name."""
    shown = {}
    for at, names, files in os.walk(root):
        for name in names + files:
            path = Path(at, name)
            if any(part.endswith(".b2frame") for part in Path(at).parts[len(root.parts) :]):
                continue
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue
            is_frame = name.endswith(".b2frame")
            shown[f"{path.relative_to(root)} in it"] = inside(path) if is_frame else None
            shown[str(path.relative_to(root))] = (stat.st_mode, stat.st_uid, stat.st_mtime_ns if is_frame else 0, stat.st_size)
    return shown


def inside(path):
    """What a frame holds, whatever it is shown as."""
    try:
        if path.is_dir():
            return sorted((entry.name, hashlib.sha256(Path(entry.path).read_bytes()).hexdigest()) for entry in os.scandir(path))
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return errno.errorcode[error.errno]


def walk(root, until):
    while not until.is_set():
        subprocess.run(["ls", "-lR", root], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def run(binary, show, rounds, seed, options=(), patience=PATIENCE):
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        samples = {}
        for number in range(4):
            for kind in "cs":
                samples[kind, number] = scratch / f"{kind}{number}.sample"
                made(samples[kind, number], kind == "c", number)
        # Frames are closed when others need their place: of them, too, the kernel must forget what others change.
        few = scratch / "few"
        few.write_text(f'#!/bin/sh\nulimit -n 96\nexec {shlex.quote(binary)} "$@"\n')
        few.chmod(0o755)
        directory, point, anew = scratch / "dir", scratch / "point", scratch / "anew"
        for at in DIRS:
            (directory / at).mkdir(parents=True)
        point.mkdir()
        anew.mkdir()
        others = Others(directory, samples, dice, show)
        for at in DIRS:
            for number in range(FRAMES):
                shutil.copyfile(samples["c", number % 4], directory / at / f"f{number:02}.b2frame")
        # A frame that is closed has its name forgotten, which would hide what the self-test is to find.
        with Mount(directory, point, ["-o", "ro", "--show", show, *options], binary if options else few):
            for number in range(rounds):
                until = threading.Event()
                walkers = [threading.Thread(target=walk, args=(point, until)) for _ in range(2)]
                for walker in walkers:
                    walker.start()
                others.some()
                time.sleep(dice.random() / 20)
                others.some()
                until.set()
                for walker in walkers:
                    walker.join()
                with Mount(directory, anew, ["-o", "ro", "--show", show], binary):
                    expected = listed(anew)
                end = time.monotonic() + patience
                while (found := listed(point)) != expected:
                    if time.monotonic() > end:
                        wrong = {name: (found.get(name), expected.get(name)) for name in found.keys() | expected.keys()}
                        wrong = {name: both for name, both in wrong.items() if both[0] != both[1]}
                        raise AssertionError(f"--show {show}, seed {seed}, round {number}: shown, and what a mount made anew shows: {wrong}")
                    time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--show", choices=["other", "sparse", "contiguous"], action="append")
    arguments = parser.parse_args()
    shows = arguments.show or ["other", "sparse", "contiguous"]
    if arguments.self_test:
        try:
            run(default_binary(), shows[0], arguments.rounds, arguments.seed, ["-o", "entry_timeout=1000,attr_timeout=1000"], SOON)
        except AssertionError:
            print("1 passed, 0 failed")
            return
        sys.exit(f"seed {arguments.seed}: nothing was found")
    for show in shows:
        try:
            run(default_binary(), show, arguments.rounds, arguments.seed)
        except AssertionError as error:
            print(error)
            sys.exit("0 passed, 1 failed")
    print(f"{arguments.rounds * len(shows)} passed, 0 failed")


if __name__ == "__main__":
    main()
