"""The frames that are measured, made once and kept; what is changed is a copy that goes again."""

import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import blosc2
import numpy as np

from bigframes import hollow, many_chunks, stored, write_frame

# The frame of most cases.
CHUNKS, CHUNKSIZE = 4096, 128 * 1024
# The frames of tiny chunks hold this much in each.
TINY = 36


@dataclass(frozen=True)
class Frame:
    """The same frame in both layouts."""

    directory: Path

    @property
    def sframe(self):
        return self.directory / "sframe.b2frame"

    @property
    def cframe(self):
        return self.directory / "cframe.b2frame"


def noise(rng, nbytes=CHUNKSIZE, share=1.0):
    """Random bytes for a share of it, zeros for the rest: chunks of sizes in between."""
    cut = int(nbytes * share)
    return rng.bytes(cut) + bytes(nbytes - cut)


def noisy_chunk(rng, chunksize=CHUNKSIZE):
    return blosc2.compress2(noise(rng, chunksize, rng.uniform(0.6, 1)), typesize=1, clevel=1, nthreads=1)


class Data:
    """All under one directory, by name; a name has its version, for when its contents become others."""

    def __init__(self, root):
        self.root = root

    def _made(self, name, make):
        """A directory that is there as a whole or not at all."""
        path = self.root / name
        if not path.exists():
            print(f"making {path}", file=sys.stderr)
            new = self.root / f"{name}.new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            make(Frame(new))
            new.rename(path)
        return Frame(path)

    def plain(self):
        """4096 chunks of 128 KiB, some more compressible than others: 512 MiB before, and about 450 after compression."""

        def make(frame):
            for contiguous, path in ((False, frame.sframe), (True, frame.cframe)):
                rng = np.random.default_rng(1)
                write_frame(
                    path, contiguous, CHUNKS, CHUNKSIZE,
                    lambda n: blosc2.compress2(noise(rng, share=1 - 0.3 * (n % 7) / 7), typesize=1, clevel=1),
                )  # fmt: skip

        return self._made("plain-1", make)

    def small(self):
        """32,768 chunks of 2 KiB."""

        def make(frame):
            for contiguous, path in ((False, frame.sframe), (True, frame.cframe)):
                rng = np.random.default_rng(2)
                write_frame(path, contiguous, 32_768, 2048, lambda n: stored(rng.bytes(2048)))

        return self._made("small-1", make)

    def hollow(self, count, chunksize=CHUNKSIZE):
        """A frame of any size that takes 4 KiB of disk a chunk: stored zeros, as holes."""
        head = hollow(chunksize)

        def make(frame):
            for contiguous, path in ((False, frame.sframe), (True, frame.cframe)):
                write_frame(path, contiguous, count, chunksize, lambda n: head)

        return self._made(f"hollow-1-{count}-{chunksize}", make)

    def tiny(self, count):
        """As many chunks of some bytes as one likes, as a cframe."""
        chunk = stored(bytes(range(TINY)))
        return self._made(f"tiny-1-{count}", lambda frame: write_frame(frame.cframe, True, count, TINY, lambda n: chunk))

    def tiny_names(self, count):
        """The directory of such a frame as `ls` and `find` see it: names and lengths, and holes where the bytes are."""

        def make(frame):
            frame.sframe.mkdir()
            (frame.sframe / "chunks.b2frame").touch()
            for n in range(count):
                with open(frame.sframe / f"{n:08X}.chunk", "wb", buffering=0) as file:
                    file.truncate(32 + TINY)

        return self._made(f"tiny-names-1-{count}", make)

    def many(self, count):
        """Chunk files of 1 KiB, to copy."""
        return self._made(f"many-1-{count}", lambda frame: many_chunks(frame.sframe, count))

    def array(self):
        """A b2nd array of 4096 x 4096 doubles, 128 MiB, in chunks of 128 KiB."""

        def make(frame):
            rng = np.random.default_rng(4)
            values = np.cumsum(rng.integers(-3, 4, (4096, 4096)), axis=1).astype("f8")
            for contiguous, path in ((False, frame.sframe), (True, frame.cframe)):
                blosc2.asarray(values, chunks=(128, 128), blocks=(32, 32), urlpath=str(path), contiguous=contiguous, mode="w")

        return self._made("array-1", make)

    def tree(self):
        """`tree`: 180 directories with 100 files of up to 8 KiB each, under git, and a file of 1 GiB; `copy`: the small files again."""

        def make(frame):
            rng = np.random.default_rng(5)
            top = frame.directory / "tree"
            for n in range(180):
                directory = top / "files" / f"{n // 20:02}" / f"{n:03}"
                directory.mkdir(parents=True)
                for m in range(100):
                    (directory / f"{m:02}.txt").write_bytes(rng.bytes(int(rng.integers(0, 8192))))
            git = ["git", "-C", top, "-c", "gc.auto=0", "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
            subprocess.run(["git", "init", "--quiet", top], check=True)
            (top / ".git" / "info" / "exclude").write_text("large*\n")
            subprocess.run([*git, "add", "."], check=True)
            subprocess.run([*git, "commit", "--quiet", "-m", "files"], check=True)
            # Now, and not some time in the background.
            subprocess.run([*git, "gc", "--quiet"], check=True)
            with open(top / "large", "wb") as file:
                for _ in range(64):
                    file.write(rng.bytes(16 << 20))
            subprocess.run(["cp", "-a", top / "files", frame.directory / "copy"], check=True)

        return self._made("tree-1", make).directory

    def frames(self):
        """`cframes` and `sframes`: the same 2,000 frames of four chunks, in 20 directories."""

        def make(frame):
            rng = np.random.default_rng(6)
            for n in range(2000):
                chunks = [stored(rng.bytes(1024)) for _ in range(4)]
                for contiguous, kind in ((True, "cframes"), (False, "sframes")):
                    directory = frame.directory / kind / f"{n // 100:02}"
                    directory.mkdir(parents=True, exist_ok=True)
                    write_frame(directory / f"{n:04}.b2frame", contiguous, 4, 1024, lambda n: chunks[n])

        return self._made("frames-1", make).directory

    def crowd(self):
        """`files`: a million of 100 bytes, a thousand in a directory; `frames`: 100,000 small cframes, as many."""

        def make(frame):
            rng = np.random.default_rng(8)
            one = frame.directory / "one.b2frame"
            write_frame(one, True, 4, 1024, lambda n: stored(rng.bytes(1024)))
            for kind, count, suffix, content in (("files", 1_000_000, "dat", rng.bytes(100)), ("frames", 100_000, "b2frame", one.read_bytes())):
                for n in range(count):
                    if n % 1000 == 0:
                        directory = frame.directory / "crowd" / kind / f"{n // 1000:04}"
                        directory.mkdir(parents=True)
                    (directory / f"{n:07}.{suffix}").write_bytes(content)

        return self._made("crowd-1", make).directory / "crowd"

    @contextmanager
    def copies(self, *paths):
        """Copies that a case may change, gone after it."""
        where = self.root / "copies"
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        try:
            made = []
            for n, path in enumerate(paths):
                made.append(where / f"{n}-{path.name}")
                subprocess.run(["cp", "-r", path, made[-1]], check=True)
            yield made
        finally:
            shutil.rmtree(where)

    def remove(self, frame):
        """One that is too large to keep."""
        shutil.rmtree(frame.directory)

