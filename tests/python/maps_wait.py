#!/usr/bin/env python3
"""Reads that wait while another program is in the middle of a change.

A frame in a mounted directory is spoiled in place, as by a change that has begun, and 100 threads read places of its data that nobody
has read. Files of another frame are read in 100 ms meanwhile. When the change has ended, all that wait have the data; while nothing more
is written, a read fails with EIO after 10 s. The last line is the count.
"""

import errno
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount

WAITING, ROWS, ROW = 100, 400, 4096
HEAD = 128
IN_TIME = 0.1


def spoil(path, data):
    with open(path, "r+b") as file:
        file.write(data)


def main():
    wrong = []
    values = np.random.default_rng(1).integers(0, 1 << 60, (ROWS, ROW))
    data = values.tobytes()
    with tempfile.TemporaryDirectory(prefix="b2fuse-maps-wait-") as directory:
        frames, point = Path(directory, "frames"), Path(directory, "mount")
        frames.mkdir()
        for name in "ab":
            blosc2.asarray(values, urlpath=f"{frames}/{name}.b2nd", mode="w", chunks=(4, ROW))
        source = frames / "a.b2nd"
        begin, garbage = source.read_bytes()[:700], b"garbage" * 100
        with Mount(frames, point, ["--show", "npy"]):
            fd, other = (os.open(point / f"{name}.b2nd.npy", os.O_RDONLY) for name in "ab")
            got = {}

            def read(n):
                place = n * 98304
                try:
                    got[n] = os.pread(fd, 64, HEAD + place) == data[place : place + 64]
                except OSError as error:
                    got[n] = error

            os.pread(fd, HEAD, 0)
            spoil(source, garbage)
            # Not what the kernel has read ahead.
            threads = [threading.Thread(target=read, args=(n,)) for n in range(2, WAITING + 2)]
            for thread in threads:
                thread.start()
            time.sleep(1)
            if got:
                wrong.append(f"{len(got)} did not wait: {list(got.items())[:3]}")
            longest = 0
            for n in range(50):
                began = time.monotonic()
                os.pread(other, 64, HEAD + n * 7 * 32768)
                os.stat(point / "b.b2nd.npy")
                longest = max(longest, time.monotonic() - began)
                time.sleep(0.01)
            print(f"  a file of another frame was read in {longest * 1000:.1f} ms at most")
            if longest > IN_TIME:
                wrong.append(f"another file was read in {longest:.3f} s")
            spoil(source, begin)
            for thread in threads:
                thread.join(20)
            if len(got) != WAITING or any(value is not True for value in got.values()):
                wrong.append(f"after the change {len(got)} of {WAITING} had ended: {[value for value in got.values() if value is not True][:3]}")
            spoil(source, garbage)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.monotonic()
            try:
                os.pread(fd, 64, HEAD + 399 * 32768)
                wrong.append("garbage was read")
            except OSError as error:
                took = time.monotonic() - began
                if error.errno != errno.EIO or not 9 < took < 15:
                    wrong.append(f"{error} after {took:.1f} s")
            os.close(fd)
            os.close(other)
    for each in wrong:
        print(f"FAILED: {each}")
    print(f"{int(not wrong)} passed, {len(wrong)} failed")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
