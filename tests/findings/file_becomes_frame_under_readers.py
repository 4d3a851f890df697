#!/usr/bin/env python3
"""A file that the kernel reads by itself gets a frame's name while it is open, and a frame that is open gets a name without a suffix. New
opens read and write what the name stands for."""

import os
import subprocess
import sys
import tempfile

import blosc2
import numpy

B2FUSE = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse"))


def frame(seed):
    data = numpy.random.default_rng(seed).bytes(800)
    return blosc2.SChunk(chunksize=800, contiguous=True, data=data, cparams={"clevel": 0}).to_cframe()


one, two = frame(1), frame(2)


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def gains_suffix(view):
    write(f"{view}/x.dat", one)
    with open(f"{view}/x.dat", "rb", buffering=0) as reader:
        os.rename(f"{view}/x.dat", f"{view}/x.b2nd")
        if read(f"{view}/x.b2nd") != one:
            return "a new open reads other bytes"
        write(f"{view}/x.b2nd", two)
        if reader.read() != two:
            return "the reader does not see what was written"
        if read(f"{view}/x.b2nd") != two:
            return "a new open does not see what was written"
    return None if read(f"{view}/x.b2nd") == two else "what was written is lost"


def loses_suffix(view):
    write(f"{view}/y.b2nd", one)
    with open(f"{view}/y.b2nd", "rb", buffering=0):
        read(f"{view}/y.b2nd")
        read(f"{view}/y.b2nd")
        os.rename(f"{view}/y.b2nd", f"{view}/y.dat")
        return None if read(f"{view}/y.dat") == one else "a new open reads other bytes"


wrong = []
for show in ("other", "contiguous", "sparse"):
    with tempfile.TemporaryDirectory() as place:
        below, view = place + "/d", place + "/v"
        os.mkdir(below)
        os.mkdir(view)
        subprocess.run([B2FUSE, "mount", "--show", show, below, view], check=True)
        for case in (gains_suffix, loses_suffix):
            try:
                what = case(view)
            except OSError as error:
                what = str(error)
            wrong += [f"{show}, {case.__name__}: {what}"] if what else []
        subprocess.run([B2FUSE, "umount", view], check=False)
        # The frame is made when the last reader is gone.
        if os.path.isdir(f"{below}/x.b2nd") != (show == "other"):
            wrong.append(f"{show}: not stored as it should be")
print("\n".join([*wrong, f"{len(wrong)} wrong"]))
sys.exit(bool(wrong))
