#!/usr/bin/env python3
"""tar of a frame that the library has just closed does not say "file changed as we read it", and times that a client sets stay, though the
commit comes up to a second later. exit 0: all as expected; 1: not."""
import os, shutil, subprocess, sys, tempfile
import blosc2
B = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse")); bad = []
W = tempfile.mkdtemp(prefix="b2t"); os.chdir(W)
for show, contiguous, count in ("sparse", False, 60), ("other", False, 20), ("other", True, 20), ("contiguous", True, 20):
    d, m = f"{show}{contiguous}.d", f"{show}{contiguous}.m"; os.mkdir(d); os.mkdir(m)
    subprocess.run([B, "mount", "--show", show, d, m], check=True)
    for i in range(count):
        f = f"{m}/f{i}.b2frame"
        o = blosc2.SChunk(chunksize=3200, urlpath=f, mode="w", contiguous=contiguous, cparams={"typesize": 8, "nthreads": 1})
        for _ in range(4): o.append_data(os.urandom(3200))
        o.vlmeta["a"] = i; del o
        if i % 2:
            r = subprocess.run(["tar", "cf", "t.tar", "-C", m, f"f{i}.b2frame"], capture_output=True)
            if b"changed" in r.stderr or b"shrank" in r.stderr: bad.append(f"{f}: {r.stderr.decode().strip()}")
            continue
        # fsync commits what the closes have left to a commit a second later; times that a client has set stay too.
        if i % 4: os.utime(f, (1e9, 1e9 + i))
        before = os.stat(f); h = os.open(f, os.O_RDONLY); os.fsync(h); os.close(h); after = os.stat(f)
        times = lambda stat: (stat.st_mtime_ns, stat.st_ctime_ns)
        if times(before) != times(after): bad.append(f"{f}: {times(before)} are its times, and {times(after)} after fsync")
    subprocess.run([B, "umount", m], check=True)
print(*bad, f"{len(bad)} of 120 changed", sep="\n")
os.chdir("/"); shutil.rmtree(W); sys.exit(1 if bad else 0)
