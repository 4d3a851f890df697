#!/usr/bin/env python3
"""A chunk that says only "all zeros" or "uninitialised" (32 bytes, as compress2 returns it) is copied over a chunk of a view.
Right: C-Blosc2 opens SOURCE afterwards, and the chunk, a slice and an item of the array are what was copied in."""
import os, subprocess, sys, tempfile
import blosc2, numpy

B = os.path.abspath(os.environ.get("B2FUSE", "target/debug/b2fuse"))
READ = """
import blosc2, sys
array = blosc2.open(sys.argv[1])
position, n = int(sys.argv[2]), 512
chunk = array.schunk.decompress_chunk(position)
part = array[position * n : (position + 1) * n]
item = array[position * n + 7]
if sys.argv[3] == "zeros":  # what is uninitialised has any value
    assert chunk == bytes(8 * n) and not part.any() and item == 0
"""
wrong = 0
for contiguous in (True, False):
    for uninitialised in (False, True):
        for position in (0, 1, 2):
            with tempfile.TemporaryDirectory() as t:
                src, view = t + "/f.b2nd", t + "/v"
                os.mkdir(view)
                data = numpy.arange(1, 3 * 512 + 1, dtype="f8")
                array = blosc2.asarray(data, urlpath=src, mode="w", chunks=(512,), blocks=(64,), contiguous=contiguous)
                del array
                chunk = bytearray(blosc2.compress2(numpy.zeros(512), typesize=8, blocksize=512))
                assert len(chunk) == 32
                if uninitialised:
                    chunk[31] = chunk[31] & 0x8F | 4 << 4
                subprocess.run([B, "mount", "--show", "sparse", src, view], check=True)
                try:
                    with open(f"{view}/{position:08X}.chunk", "wb") as f:
                        f.write(chunk)
                    taken = True
                except OSError:
                    taken = False
                subprocess.run([B, "umount", view], check=True)
                if not taken:
                    continue
                got = subprocess.run([sys.executable, "-c", READ, src, str(position), "any" if uninitialised else "zeros"], capture_output=True, text=True)
                if got.returncode:
                    wrong = 1
                    how = "contiguous" if contiguous else "sparse"
                    print(f"{how} SOURCE, chunk {position}{', uninitialised' if uninitialised else ''}: {got.stderr.strip().splitlines()[-1]}")
sys.exit(wrong)
