#!/usr/bin/env python3
"""A client makes a frame as a file, appends to it, and has each chunk synced, until the disk is full. With room again, the frame opens and
has every chunk that was acknowledged."""

import os
import shutil
import subprocess
import sys
import tempfile

import blosc2

B2FUSE = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse"))


def append(path):
    frame = blosc2.open(path, mode="a")
    frame.append_data(os.urandom(80000))
    del frame
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def acknowledged(place, show):
    """How many chunks were acknowledged, and how many are in DIR afterwards."""
    below, view = place + "/d", place + "/v"
    os.mkdir(below)
    os.mkdir(view)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", below], check=True)
    try:
        subprocess.run([B2FUSE, "mount", "--show", show, below, view], check=True)
        path, count = view + "/f.b2frame", 0
        blosc2.SChunk(chunksize=80000, urlpath=path, mode="w", contiguous=True, cparams={"typesize": 1, "nthreads": 1})
        try:
            for _ in range(20):
                append(path)
                count += 1
        except Exception as error:
            print(f"{show}: {count} chunks acknowledged, then: {error}")
        subprocess.run(["mount", "-o", "remount,size=50m", below], check=True)
        subprocess.run([B2FUSE, "umount", view], check=False)
        try:
            return count, blosc2.open(below + "/f.b2frame", mode="r").nchunks
        except Exception as error:
            print(f"{show}: {error}")
            return count, -1
    finally:
        subprocess.run(["umount", "-l", below], check=False)


wrong = 0
for show in ("sparse", "contiguous"):
    place = tempfile.mkdtemp(prefix="b2fuse-full-")
    count, kept = acknowledged(place, show)
    print(f"{show}: {count} chunks acknowledged, {kept} in DIR")
    wrong += kept < count or count == 0
    shutil.rmtree(place, ignore_errors=True)
sys.exit(bool(wrong))
