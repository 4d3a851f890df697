#!/usr/bin/env python3
"""A client makes a frame as a file in a mounted directory. Length and bytes agree from the close on, and a reader that opened the file at
once sees later writes."""

import os
import subprocess
import sys
import tempfile

import blosc2
import numpy

B2FUSE = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse"))
ROUNDS = 400

with_holes = blosc2.SChunk(chunksize=8000, contiguous=True, data=numpy.arange(10000.0))
with_holes.delete_chunk(3)
with_holes.update_data(2, numpy.random.default_rng(0).random(1000), True)
with_holes = with_holes.to_cframe()


def frame(seed):
    data = numpy.random.default_rng(seed).bytes(800)
    return blosc2.SChunk(chunksize=800, contiguous=True, data=data, cparams={"clevel": 0}).to_cframe()


one, two = frame(1), frame(2)
assert len(one) == len(two)


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def length_and_bytes(view):
    """What is wrong with the lengths of new frames, if anything is."""
    for number in range(20):
        path = f"{view}/h{number}.b2frame"
        write(path, with_holes)
        size, got = os.stat(path).st_size, len(read(path))
        if size != got:
            return f"{size} bytes by stat, {got} read"
    return None


def readers(view):
    """What is wrong with what readers see, if anything is."""
    path = f"{view}/r.b2frame"
    for number in range(ROUNDS):
        write(path, one)
        reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
        os.pwrite(writer, two, 0)
        os.close(writer)
        got, now = os.pread(reader, len(two), 0), read(path)
        os.close(reader)
        os.unlink(path)
        if now != two:
            return f"round {number}: a new open does not see what was written"
        if got != two:
            return f"round {number}: a reader that was open does not see what was written"
    return None


wrong = []
for show in ("other", "contiguous", "sparse"):
    with tempfile.TemporaryDirectory() as place:
        below, view = place + "/d", place + "/v"
        os.mkdir(below)
        os.mkdir(view)
        subprocess.run([B2FUSE, "mount", "--show", show, below, view], check=True)
        try:
            wrong += [f"{show}: {what}" for what in (length_and_bytes(view), readers(view)) if what]
        finally:
            subprocess.run([B2FUSE, "umount", view], check=False)
print("\n".join([*wrong, f"{len(wrong)} wrong"]))
sys.exit(bool(wrong))
