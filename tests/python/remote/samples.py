"""Frames that are read remotely: random ones of all kinds, and those that random ones seldom are; and what a mount of each shows locally."""

import functools
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import blosc2
import numpy as np

from arrayframes import some_bytes, some_frame
from frames import contents, open_frame

from .mounting import RemoteMount, b2fuse, files_of, read_all, run

SHOWS = ["sparse", "contiguous", "other", "npy", "raw"]
# A chunk larger than what is asked for at once.
LARGE = 5 << 20


@dataclass(frozen=True)
class Sample:
    """A frame on disk, and what b2fuse makes of it there."""

    path: Path
    what: str

    @property
    def is_sparse(self):
        return self.path.is_dir()

    @property
    def key(self):
        """On a server. What is a prefix there is never an object, for servers that are directories of files."""
        return f"{'sparse' if self.is_sparse else 'contiguous'} ones/{self.path.name}"

    @functools.cached_property
    def shown(self):
        """By `--show`: the bytes of a mount's files by name, and their sizes. None where a frame is not shown so."""
        return {show: self.mounted(show) for show in SHOWS}

    def mounted(self, show):
        point = self.path.parent / "local"
        if show == "npy" and b'"array":null' in run("info", "--json", self.path).stdout:
            return None
        with RemoteMount(self.path, point, ["-r", "--show", show]):
            return read_all(point) | {"sizes": files_of(point)}

    @functools.cached_property
    def contents(self):
        """What the library reads, or None if it does not read what it wrote."""
        try:
            return contents(open_frame(self.path))
        except (RuntimeError, ValueError):
            return None

    @functools.cached_property
    def said(self):
        """By command: exit code and output."""
        return {words: said(words, self.path) for words in COMMANDS}

    @functools.cached_property
    def nchunks(self):
        return b2fuse("ls", self.path).count(b"\n")


# {} stands for the frame. All are taken of a frame on disk as well.
COMMANDS = [
    ("info", "{}"),
    ("info", "--json", "{}"),
    ("ls", "{}"),
    ("ls", "--json", "{}"),
    ("check", "{}"),
    ("check", "--deep", "{}"),
    ("cat", "{}", "0"),
    ("cat", "--raw", "{}", "0"),
    ("cat", "--npy", "{}"),
]


def said(words, name, environment=None):
    """Exit code and output of a command on a frame, with its name as {}."""
    done = run(*(word.replace("{}", str(name)) for word in words), environment=environment)
    return done.returncode, done.stdout.replace(str(name).encode(), b"{}"), done.stderr.replace(str(name).encode(), b"{}")


def schunk(path, sparse, chunks, typesize=4, **cparams):
    """A frame of given chunks: bytes, or special values."""
    data = [chunk for chunk in chunks if isinstance(chunk, bytes)]
    chunksize = len(data[0]) if data else 4000
    params = {"typesize": typesize, "nthreads": 1, **cparams}
    frame = blosc2.SChunk(chunksize=chunksize, urlpath=str(path), contiguous=not sparse, mode="w", cparams=params)
    for chunk in chunks:
        frame.append_data(chunk if isinstance(chunk, bytes) else bytes(chunksize))
    for n, chunk in enumerate(chunks):
        if not isinstance(chunk, bytes):
            frame.update_special(n, chunk)
    return frame


def fixed(directory):
    """What random frames seldom are, each in both layouts."""
    rng, numpy = random.Random("fixed"), np.random.default_rng(1)
    samples = []
    zero, nan = blosc2.SpecialValue.ZERO, blosc2.SpecialValue.NAN
    for sparse in (True, False):
        word = "sparse" if sparse else "contiguous"

        def add(name, what, frame):
            samples.append(Sample(Path(frame.urlpath), f"{what}, {word}"))

        at = directory / word
        at.mkdir()
        add("empty", "no chunks", schunk(at / "empty.b2frame", sparse, []))
        add("one", "one chunk", schunk(at / "one.b2frame", sparse, [some_bytes(rng, 100_000)]))
        large = [numpy.bytes(LARGE), some_bytes(rng, LARGE), numpy.bytes(LARGE)]
        add("large", "chunks above 4 MiB", schunk(at / "large chunks.b2frame", sparse, large, blocksize=1 << 18))
        mixed = [zero if n % 3 == 1 else nan if n % 7 == 2 else some_bytes(rng, 20_000) for n in range(40)]
        frame = schunk(at / "mixed.b2frame", sparse, mixed)
        frame.vlmeta["history"] = list(range(200))
        frame.vlmeta["unit"] = "kelvin" * 1000
        add("mixed", "40 chunks, some special, with vlmetalayers", frame)
        values = np.cumsum(numpy.integers(-3, 4, (300, 200)), axis=1).astype("f8")
        array = blosc2.asarray(values, chunks=(70, 90), blocks=(30, 40), urlpath=str(at / "größe 100%.b2nd"), contiguous=not sparse, mode="w",
                               meta={"own": b"layer"}, cparams={"nthreads": 1})  # fmt: skip
        array.schunk.vlmeta["x"] = 1
        add("array", "an array with metalayers of its own, its name not of ASCII", array.schunk)
    return samples


def some(directory, count, seed, first=0):
    """Random frames, each in a directory of its own."""
    samples = []
    for n in range(first, first + count):
        at = directory / f"random{n}"
        at.mkdir()
        made = some_frame(random.Random(f"{seed} {n}"), at, f"frame{n}", n)
        samples.append(Sample(made.path, f"{made.what}, {'sparse' if made.path.is_dir() else 'contiguous'}"))
    return samples


def copied(path, target):
    (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target)
    return target
