#!/usr/bin/env python3
"""Frames of a tebibyte, both ways round, on a file system that has no such room: offsets above 4 GiB in every path, memory flat.

The chunks are plain copies of zeros, which the file system keeps as holes; each begins with its number. What is written is small.
With --chunks 1000000 it takes some 4 GiB of real room for each layout, which a tmpfs can be (--directory).
"""

import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import blosc2

from bigframes import hollow, write_frame
from frames import open_frame, schunk_of
from mounts import Mount, default_binary

SIZE = 1 << 40
MARK = struct.Struct("<q")
CACHE = 16 << 20
# What a daemon may take beside its cache: itself, its threads, and what it knows of each chunk.
ROOM = 32 << 20
PER_CHUNK = 300


BEGAN = time.monotonic()


class Failed(Exception):
    pass


def expect(found, expected, what):
    if found != expected:
        raise Failed(f"{what}: found {found!r}, expected {expected!r}")


class Large:
    """A frame of `count` chunks that come to SIZE bytes; `marks` says what is in each: its mark, or 0."""

    def __init__(self, directory, layout, count):
        self.path, self.count = Path(directory) / f"large-{layout}.b2frame", count
        self.nbytes = SIZE // count
        self.marks = list(range(1, count + 1))
        # The header of a chunk that is a plain copy.
        self.head, self.cbytes = hollow(self.nbytes)
        write_frame(self.path, layout == "cframe", count, self.nbytes, lambda n: (self.marked(n + 1), self.cbytes))

    def marked(self, mark):
        """The beginning of a chunk with its mark. The rest is a hole."""
        return self.head + MARK.pack(mark)

    @property
    def zeros(self):
        """A whole chunk of zeros, as a special value."""
        head = bytearray(self.head)
        head[2] &= ~0x02
        head[12:16] = len(head).to_bytes(4, "little")
        head[31] = 1 << 4
        return bytes(head)

    def sample(self, rng, count=12):
        """Some positions: the ends, and others."""
        last = len(self.marks) - 1
        return sorted({0, 1, last - 1, last, *(rng.randrange(last) for _ in range(count))})

    def check(self, path, rng, what):
        """The library sees the frame at `path`, and its marks."""
        print(f"    {what}  [{time.monotonic() - BEGAN:.1f} s]", flush=True)
        schunk = schunk_of(open_frame(path))
        expect(schunk.nchunks, len(self.marks), f"{what}: nchunks")
        for position in self.sample(rng):
            start = position * self.nbytes
            (mark,) = MARK.unpack(schunk.get_slice(start, start + MARK.size))
            expect(mark, self.marks[position], f"{what}: the mark of chunk {position}")


def memory(source):
    """The most that the daemon of a mount took, in bytes."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            command = status.with_name("cmdline").read_bytes().split(b"\0")
            if b"mount" in command and os.fsencode(str(source)) in command:
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
                return int(lines["VmHWM"].split()[0]) << 10
        except (OSError, KeyError):
            pass
    raise Failed(f"no daemon of {source}")


def check_memory(large):
    most = memory(large.path)
    print(f"    memory: {most / 2**20:.0f} MiB at most")
    bound = ROOM + CACHE + PER_CHUNK * large.count
    if most > bound:
        raise Failed(f"memory: {most} bytes, expected at most {bound}")


def change_by_library(large, path):
    """Changes that move no data: at the end, in the middle, in the index, in the trailer."""
    schunk = schunk_of(open_frame(path, "a"))
    schunk.insert_chunk(len(large.marks), large.zeros)
    large.marks.append(0)
    schunk.vlmeta["large"] = list(range(100))
    schunk = schunk_of(open_frame(path))
    expect(schunk.vlmeta["large"], list(range(100)), "vlmetalayer")


def sparse_view(large, point, rng):
    options = ["--cache-size", str(CACHE)]
    with Mount(large.path, point, ["-o", "ro", *options]):
        names = sorted(name for name in os.listdir(point) if name.endswith(".chunk"))
        expect(len(names), large.count, "chunk files")
        for position in large.sample(rng):
            file = point / f"{position:08X}.chunk"
            expect(file.stat().st_size, large.cbytes, f"the size of {file.name}")
            with open(file, "rb") as chunk:
                expect(chunk.read(40), large.marked(position + 1), f"the beginning of {file.name}")
                chunk.seek(-4000, os.SEEK_END)
                expect(chunk.read(), bytes(4000), f"the end of {file.name}")
        large.check(point, rng, "read-only view")
        check_memory(large)
    with Mount(large.path, point, options):
        change_by_library(large, point)
        schunk = schunk_of(open_frame(point, "a"))
        last = large.count - 1
        # A small chunk takes a large one's place; a large one goes behind all others.
        schunk.update_chunk(last, large.zeros)
        large.marks[last] = 0
        with open(point / "00000001.chunk", "r+b") as file:
            file.truncate(0)
            file.write(large.marked(-7))
            file.truncate(large.cbytes)
        large.marks[1] = -7
        schunk = schunk_of(open_frame(point, "a"))
        schunk.insert_chunk(2, large.zeros)
        large.marks.insert(2, 0)
        schunk.delete_chunk(5)
        del large.marks[5]
        large.check(point, rng, "view after changes")
        check_memory(large)


def contiguous_view(large, point, rng):
    shown = point / large.path.name
    step, options = large.cbytes, ["--cache-size", str(CACHE)]
    with Mount(large.path, point, ["-o", "ro", *options]):
        expect(shown.stat().st_size > SIZE, True, "a file of more than a tebibyte")
        with open(shown, "rb") as file:
            header_len = int.from_bytes(file.read(16)[11:15], "big")
            for position in large.sample(rng)[1:]:
                # Across the boundary between two chunks.
                file.seek(header_len + position * step - 3)
                expect(file.read(43), bytes(3) + large.marked(position + 1), f"the bytes around the beginning of chunk {position}")
            file.seek(-23, os.SEEK_END)
            expect(file.read(1), b"\xce", "the trailer's length")
        large.check(shown, rng, "read-only view")
        check_memory(large)
    with Mount(large.path, point, options):
        change_by_library(large, shown)
        large.check(shown, rng, "view after changes")
        # The last large chunk: the library moves what is behind it, which is small.
        schunk = schunk_of(open_frame(shown, "a"))
        schunk.update_chunk(large.count - 1, large.zeros)
        del schunk  # with its open file
        large.marks[large.count - 1] = 0
        large.check(shown, rng, "view after an update")
        check_memory(large)


def run(directory, layout, count, rng):
    began = time.monotonic()
    large = Large(directory, layout, count)
    print(f"  {layout}: {count} chunks, made in {time.monotonic() - began:.1f} s", flush=True)
    (sparse_view if layout == "cframe" else contiguous_view)(large, Path(directory) / "mount", rng)
    large.check(large.path, rng, "SOURCE")
    checked = subprocess.run([default_binary(), "check", large.path], capture_output=True, text=True)
    expect(checked.returncode, 0, f"check: {checked.stdout}{checked.stderr}")
    print(f"  {layout}: done in {time.monotonic() - began:.1f} s")
    if large.path.is_dir():
        shutil.rmtree(large.path)
    else:
        large.path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--chunks", type=int, default=8192)
    parser.add_argument("--layout", choices=["cframe", "sframe"], action="append")
    parser.add_argument("--seed", default=str(time.time_ns() % 10**9))
    parser.add_argument("--directory", help="where the frames are made [default: the system's for temporary files]")
    args = parser.parse_args()
    blosc2.set_nthreads(1)
    layouts = args.layout or ["cframe", "sframe"]
    failed = 0
    for layout in layouts:
        with tempfile.TemporaryDirectory(prefix="b2fuse-large-", dir=args.directory) as directory:
            try:
                run(directory, layout, args.chunks, random.Random(args.seed))
            except (Failed, RuntimeError, OSError) as error:
                failed += 1
                print(f"FAILED: {layout}, seed {args.seed}: {type(error).__name__}: {error}")
    print(f"{len(layouts) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
