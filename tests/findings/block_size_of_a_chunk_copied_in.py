#!/usr/bin/env python3
"""In a view of an array, a chunk of the right length but with blocks of another size (as compress2 chooses by itself) is copied
over a chunk. C-Blosc2 cannot read such an array. Right: the close is refused (EINVAL) and the old chunk stays, or the array reads
as what was copied in. `b2fuse check` must not call an array sound that cannot be read."""
import os, subprocess, sys, tempfile
import blosc2, numpy

B = os.path.abspath(os.environ.get("B2FUSE", "target/debug/b2fuse"))
READ = "import blosc2,sys; sys.stdout.buffer.write(blosc2.open(sys.argv[1])[:].tobytes())"
wrong = 0
for contiguous in (True, False):
    for blocksize in (128, 1024, 4096, 0):
        with tempfile.TemporaryDirectory() as t:
            src, view = t + "/f.b2nd", t + "/v"
            os.mkdir(view)
            want = numpy.arange(1, 3 * 512 + 1, dtype="f8")
            array = blosc2.asarray(want, urlpath=src, mode="w", chunks=(512,), blocks=(64,), contiguous=contiguous)
            del array
            part = numpy.arange(512) % 50 * 1.5
            chunk = blosc2.compress2(part, typesize=8, **({"blocksize": blocksize} if blocksize else {}))
            subprocess.run([B, "mount", "--show", "sparse", src, view], check=True, capture_output=True)
            try:
                with open(view + "/00000001.chunk", "wb") as f:
                    f.write(chunk)
                want[512:1024] = part
            except OSError:
                pass
            subprocess.run([B, "umount", view], check=True)
            got = subprocess.run([sys.executable, "-c", READ, src], capture_output=True)
            if got.stdout != want.tobytes():
                wrong = 1
                sound = subprocess.run([B, "check", "--deep", src], capture_output=True).returncode == 0
                how = "contiguous" if contiguous else "sparse"
                said = got.stderr.decode().strip().splitlines()[-1] if got.returncode else "other data"
                print(f"{how} SOURCE, blocksize {blocksize or 'automatic'}: {said}; check says {'sound' if sound else 'damaged'}")
sys.exit(wrong)
