"""A scene of tree_crashes.py: what a client does in one directory of a mounted tree, in steps that say what each name has after them.

A cut within a step may leave each name as it was before or after it, and everything since what was last made durable.
"""

import contextlib
import ctypes
import os
import subprocess
import time

import blosc2
import numpy as np

from mutate import fsync

CHUNK = 300
RENAME_EXCHANGE = 2


class Skip(Exception):
    """The scene does not exist in this mode."""


class State:
    """What each name has from a mark on: a name of a content, or None. See Scene.step for the rest."""

    def __init__(self, names, loose=(), grows=None, swaps=None, durable=False):
        self.names, self.loose, self.grows, self.durable = dict(names), set(loose), dict(grows or {}), durable
        self.swaps = dict(swaps or {})


class Scene:
    def __init__(self, number, play, show, layout, directory, view, mark):
        self.number, self.play_it, self.show, self.layout = number, play, show, layout
        self.dir, self.view, self.mark = directory, view, mark
        self.contents = {}
        self.states = [State({}, durable=True)]
        self.skipped = None

    def __str__(self):
        return f"--show {self.show}, {self.play_it.__name__}, {self.layout}s in DIR"

    # ---- Frames

    def build(self, path, content, contiguous):
        """A frame with a content that goes by its name. One with a W has so many chunks that they are not synced one by one."""
        chunk = CHUNK // 6 if "W" in content else CHUNK
        seed = sum(content.encode())
        rng = np.random.default_rng(seed)
        items = 3 * CHUNK + seed % 200
        data = rng.integers(0, 1 << 20, items, dtype=np.int64)
        options = {"urlpath": str(path), "contiguous": contiguous, "mode": "w", "meta": {"content": content.encode()}}
        options["cparams"] = {"codec": blosc2.Codec.LZ4, "nthreads": 1}
        frame = blosc2.asarray(data, chunks=(chunk,), blocks=(chunk // 2,), **options)
        frame.schunk.vlmeta["note"] = content * 20

    def know(self, content):
        """The content's frame elsewhere: to copy from, and to compare with."""
        if content not in self.contents:
            made = self.dir.parent.parent / f"{self.dir.name}-{content}.b2nd"
            self.build(made, content, True)
            self.contents[content] = made
        return self.contents[content]

    def know_directory(self, content):
        self.know(content)
        made = self.dir.parent.parent / f"{self.dir.name}-{content}-dir.b2nd"
        if not made.exists():
            self.build(made, content, False)
        return made

    def change(self, name, content, into):
        """The library changes a frame, which has another content then."""
        known = self.dir.parent.parent / f"{self.dir.name}-{into}.b2nd"
        known.write_bytes(self.know(content).read_bytes())
        self.contents[into] = known
        for path in (known, self.view / name):
            frame = blosc2.open(str(path), mode="a")
            frame[CHUNK : 2 * CHUNK] = np.arange(CHUNK) ** 3 % 9973

    def put(self, name, content, layout=None):
        """A frame that is there before."""
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.know(content)
        self.build(path, content, (layout or self.layout) == "cframe")
        self.states[0].names[name] = content

    def other(self):
        return "sframe" if self.layout == "cframe" else "cframe"

    def is_file(self, name):
        return os.path.isfile(self.view / name)

    # ---- Steps

    @contextlib.contextmanager
    def step(self, names=None, loose=(), grows=None, swaps=None, durable=False):
        """One step, after which names have other contents.

        `loose`: names of which nothing is promised until they are durable. `grows`: names under which a frame may be on its way to a
        content. `swaps`: names that may hold another content on the way."""
        last = self.states[-1]
        state = State({**last.names, **(names or {})}, loose, grows, swaps, durable)
        self.states.append(state)
        yield
        for content in {content for content in state.names.values() if content}:
            self.know(content)
        os.path.lexists(self.view.parent / f"{self.mark}{self.number}-{len(self.states) - 1}")

    def sync(self, *names):
        """What was done is durable: an fsync of each name, of all in it, and of the directories."""
        with self.step(durable=True):
            for name in names:
                path = self.view / name
                if path.is_dir():
                    for inside in sorted(path.iterdir()):
                        fsync(inside)
                if os.path.lexists(path):
                    fsync(path)
            for folder in sorted({path for name in names for path in (self.view / name).parents if self.view in (path, *path.parents)}):
                if folder.exists():
                    fsync(folder)

    def settle(self):
        """Waits until DIR holds what the last state says, as far as names go. What a close begins may end after it."""
        end = time.monotonic() + 10
        while True:
            there = {name for name, content in self.states[-1].names.items() if os.path.lexists(self.dir / name)}
            wanted = {name for name, content in self.states[-1].names.items() if content}
            ours = [path for path in self.dir.rglob(".b2fuse-*") if not (path.parent / "chunks.b2frame").exists()]
            if there == wanted and not ours:
                return
            if time.monotonic() > end:
                raise RuntimeError(f"{self}: DIR holds {sorted(there)} and {ours}, expected {sorted(wanted)}")
            time.sleep(0.01)

    def forget(self, name):
        """Makes the kernel forget what it knows of names: until then a directory stays one, be a frame in it or not."""
        end = time.monotonic() + 10
        while not self.is_file(name):
            run("mount", "-i", "-o", "remount,rw", self.view.parent)
            if time.monotonic() > end:
                raise RuntimeError(f"{self}: {name} is still shown as a directory")

    def play(self):
        """The part natively, and then, when called again, that through the mount."""
        generator = self.play_it(self)
        try:
            next(generator)
        except Skip as skip:
            self.skipped = str(skip)
            return
        self.rest = generator

    def go_on(self):
        if self.skipped:
            return
        os.path.lexists(self.view.parent / f"{self.mark}{self.number}-0")
        try:
            for _ in self.rest:
                pass
        except Skip as skip:
            self.skipped = str(skip)


def exchange(one, other):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), f"exchange {one} and {other}")


def run(*command):
    subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=60)


def needs(condition, why):
    if not condition:
        raise Skip(why)
