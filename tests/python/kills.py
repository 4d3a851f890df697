#!/usr/bin/env python3
"""Daemons that are killed at any moment: nobody who uses their mounts hangs, nothing is left of them, and SOURCE is sound.

    kills.py [--count N] [--seed S] [--where WHERE] [--kind KIND]

Each round mounts a directory, a frame or an array. Four clients make random calls, another process changes SOURCE so that the kernel is
told of names and pages, and the daemon is killed. Within 5 s every client must have got ECONNABORTED or ENOTCONN, or have died of a map
(SIGBUS), and the guard must have ended. Then plain umount works, and a new mount; frames that clients wrote hold what they held, as that
is what was written. Rounds are root's, of a user in a user namespace, of an ordinary user with fusermount3 (`fusermount`), in a PID
namespace (`pid`), of a daemon that is the first process of one (`init`), and of one whose /proc is of another (`foreign`). With `both` the
guard is killed too: clients may hang, and must then be freed by SIGKILL. Needs root.
The last line is the count."""

import argparse
import errno
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import blosc2
import numpy as np

from mounts import default_binary, is_mounted
from namespaces import ended, enter, forked, gone, possible, processes

TREES = ("other", "sparse", "contiguous")
KINDS = (*TREES, "cframe", "sframe", "npy", "raw")
FIRST = ["unshare", "--pid", "--fork", "--kill-child"]
WHERE = {"root": [], "user": [], "fusermount": [], "pid": [], "both": [], "init": FIRST}
WHERE["foreign"] = [*FIRST, "sh", "-c", '"$@" & wait $! || exec sleep 60', "sh"]
VALUES = np.arange(20_000, dtype=np.int64)


def make(path, contiguous):
    blosc2.asarray(VALUES, chunks=(4000,), blocks=(1000,), urlpath=str(path), contiguous=contiguous)


class Client:
    """Random calls on what a mount shows, until one tells that it is gone."""

    def __init__(self, scene, number):
        self.scene, self.number, self.maps = scene, number, []
        self.dice = random.Random(scene.seed * 100 + number)

    def own(self):
        """A name that no other client uses."""
        return f"{self.dice.choice(self.scene.folders)}/n{self.number}_{self.dice.randrange(4)}{self.dice.choice(['.txt', '.b2nd'])}"

    def stat(self):
        os.stat(self.dice.choice([self.own(), f"{self.dice.choice(self.scene.folders)}/o1.txt", *self.scene.files, *self.scene.folders]))

    def readdir(self):
        os.listdir(self.dice.choice(self.scene.folders))

    def read(self):
        with open(self.dice.choice(self.scene.files), "rb", buffering=0) as file:
            file.seek(self.dice.randrange(1 << 15))
            file.read(self.dice.randrange(1 << 17))

    def write(self):
        path, content = self.dice.choice(list(self.scene.content.items()) or [(self.own(), b"")])
        file = os.open(path, os.O_WRONLY | self.dice.choice([0, os.O_TRUNC]))
        try:
            for part in content[: len(content) // 2], content[len(content) // 2 :]:
                os.write(file, part)
            if self.dice.random() < 0.3:
                os.fsync(file)
        finally:
            os.close(file)

    def create(self):
        path, parts = self.own(), self.dice.choice([self.scene.parts, {"": self.scene.frame}, {"": b"text"}])
        if len(parts) > 1:
            os.mkdir(path)
        for name, content in parts.items():
            with open(os.path.join(path, name) if name else path, "wb", buffering=0) as file:
                file.write(content)

    def rename(self):
        os.rename(self.own(), self.own())

    def unlink(self):
        path = self.own()
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)

    def fault(self):
        # A file that is empty cannot be mapped.
        with suppress(ValueError), open(self.dice.choice(self.scene.files), "rb") as file:
            self.maps[8:] = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)]
        for shown in self.maps:
            shown[self.dice.randrange(len(shown))]

    def run(self):
        steps = [self.stat, self.readdir, self.read, self.write, self.create, self.rename, self.unlink, self.fault]
        # Most of them do some things much more often than others.
        weights = [self.dice.choice([1, 1, 1, 10]) for _ in steps]
        while True:
            step, late = self.dice.choices(steps, weights)[0], self.scene.flags[0]
            try:
                step()
            except OSError as error:
                if error.errno in (errno.ECONNABORTED, errno.ENOTCONN):
                    return
                if late and error.errno == errno.EIO:
                    raise


class Scene:
    def __init__(self, work, kind, where, seed):
        self.seed, self.where, self.dice, self.tree = seed, where, random.Random(seed), kind in TREES
        self.point = str(work / "mnt")
        # Of frames that begin with `a` clients write, those that begin with `b` others change.
        self.source = work / ("dir" if self.tree else self.dice.choice("ab") + "x.b2nd")
        shown = [] if kind in ("cframe", "sframe") else ["--show", kind]
        self.command = [default_binary(), "mount", "-f", "--log-level", "error", *shown, str(self.source), self.point]
        # The first byte: the daemon is killed. The second: others are to stop.
        self.flags = mmap.mmap(-1, 2)
        on_file = kind in ("sframe", "npy", "raw") and self.dice.random() < 0.3
        Path(self.point).touch() if on_file else os.mkdir(self.point)
        self.folders_of_source = [self.source, self.source / "s"] if self.tree else []
        for folder in self.folders_of_source:
            folder.mkdir()
        for path in self.frames("a") + self.frames("b"):
            make(path, path.name[1] == "c" if self.tree else kind == "cframe" or kind != "sframe" and self.dice.random() < 0.5)
        # What clients make frames of.
        make(work / "frame", True)
        make(work / "parts", False)
        self.frame = (work / "frame").read_bytes()
        self.parts = {path.name: path.read_bytes() for path in (work / "parts").iterdir()}

    def frames(self, whose):
        in_trees = [folder / f"{whose}{layout}.b2nd" for folder in self.folders_of_source for layout in "cs"]
        return in_trees if self.tree else [self.source] * (self.source.name[0] == whose)

    def look(self):
        walked = [(folder, names) for folder, _, names in os.walk(self.point)]
        self.folders = [folder for folder, _ in walked] or [self.point]
        self.files = [f"{folder}/{name}" for folder, names in walked for name in names] or [self.point]
        written = [path for path in self.files if "/a" in path[len(self.point) :]] if self.tree else self.files * len(self.frames("a"))
        self.content = {path: Path(path).read_bytes() for path in written}

    def others(self):
        """Changes SOURCE until it is told to stop, and never stops within a change."""
        dice, n = random.Random(self.seed + 1), 0
        while not self.flags[1]:
            n += 1
            for path in self.frames("b"):
                start = dice.randrange(len(VALUES) - 500)
                blosc2.open(str(path), mode="a")[start : start + 500] = n
            for folder in self.folders_of_source:
                (folder / f"o{n % 3}.txt").write_text("others")
                (folder / f"o{n % 3}.txt").rename(folder / f"o{n % 2}.new")
                with suppress(FileNotFoundError):
                    (folder / f"o{dice.randrange(2)}.new").unlink()
            time.sleep(dice.random() * 0.01)

    def start(self):
        process = subprocess.Popen([*WHERE[self.where], *self.command], stderr=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while not is_mounted(Path(self.point)):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"it is not mounted; exit code {process.poll()}")
            time.sleep(0.005)
        self.look()
        return process

    def unmount(self):
        command = ["fusermount3", "-u"] if self.where == "fusermount" else ["umount"]
        return subprocess.run([*command, self.point], capture_output=True, text=True, timeout=20).stderr.strip()

    def round(self):
        process = self.start()
        (daemon,) = processes("-f", f"^{' '.join(self.command)}$")
        clients = [forked(Client(self, number).run) for number in range(4)]
        others = forked(self.others)
        time.sleep(self.dice.uniform(0, 1))
        guards = processes("-P", str(daemon), "-x", "b2fuse-guard")
        self.flags[0] = 1
        for killed in [*guards, daemon] if self.where == "both" else [daemon]:
            os.kill(killed, signal.SIGKILL)
        until = time.monotonic() + 5
        well = (0, -signal.SIGBUS)
        if self.where == "both" and not all(gone(client, until) for client in clients):
            # One client waits for a reply, and a thread of the daemon in the kernel for that client.
            for client in clients:
                os.kill(client, signal.SIGKILL)
            until, well = until + 5, (*well, -signal.SIGKILL)
        wrong = [f"a client {what}" for client in clients if (what := ended(client, until, well))]
        wrong += [f"guard {guard} is left" for guard in guards if not gone(guard, until + 1)]
        self.flags[1] = 1
        if what := ended(others, time.monotonic() + 20, (0,)):
            wrong.append(f"who changes SOURCE {what}")
        if wrong or (refused := self.unmount()):
            subprocess.run(["umount", "-f", self.point], stderr=subprocess.DEVNULL)
            return "; ".join(wrong or [refused])
        process.kill()
        process.wait(20)
        process = self.start()
        if (refused := self.unmount()) or process.wait(20):
            return f"mounted again: {refused or f'exit code {process.returncode}'}"
        for path in self.frames("a") + self.frames("b"):
            values = blosc2.open(str(path), mode="r")[...]
            if path.name[0] == "a" and not np.array_equal(values, VALUES):
                return f"{path} holds other values"
        return None


def one(kind, where, seed):
    """A round in a process of its own, and why it failed."""
    work = Path(tempfile.mkdtemp(prefix="b2fuse-kills-"))

    def run():
        enter(where, work)
        (work / "wrong").write_text(Scene(work, kind, where, seed).round() or "")

    if wrong := ended(forked(run), time.monotonic() + 120, (0,)) or (work / "wrong").read_text():
        return f"{wrong} (kept in {work})"
    shutil.rmtree(work)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--where", choices=WHERE)
    parser.add_argument("--kind", choices=KINDS)
    options = parser.parse_args()
    blosc2.set_nthreads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Where the system has no such namespaces, they are left out.
    places = [where for where in WHERE if possible(where)]
    failed = 0
    for seed in range(options.seed * 1000, options.seed * 1000 + options.count):
        kind = options.kind or random.Random(seed).choice(KINDS)
        where = options.where or places[seed % len(places)]
        if wrong := one(kind, where, seed):
            failed += 1
            print(f"{kind}, {where}, seed {seed}: {wrong}", flush=True)
    print(f"{options.count - failed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
