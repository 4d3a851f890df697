"""What requests cost: the system calls of the daemon for each, on a frame in a mounted directory.

    request_calls.py

The daemon runs under strace. A request's calls are those that a thread makes between the read of the request and its reply. Of the
requests of one kind the cheapest counts: others may do work that is due now and then. The last line is the count.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from mounts import ROOT, default_binary, is_mounted

FRAME = ROOT / "tests" / "data" / "cframe" / "chunks-3.b2frame"
ROUNDS = 12
KINDS = {3: "GETATTR", 4: "SETATTR", 10: "UNLINK", 14: "OPEN", 16: "WRITE", 22: "GETXATTR"}
# The most calls of a request beside the read and the reply.
MOST = {"GETATTR": 1, "SETATTR": 2, "OPEN": 1, "GETXATTR": 4, "WRITE": 2}
# As strace writes it with -xx.
DEVICE = "".join(f"\\x{byte:02x}" for byte in b"/dev/fuse")
SYNCS = ("fsync", "fdatasync", "syncfs")


def requests(log):
    """The requests that a log tells of: the kind of each, and the names of the calls that it made."""
    serving, halves, found = {}, {}, []
    for line in log.read_text(errors="replace").splitlines():
        thread, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            halves[thread] = call.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            call = halves.pop(thread, "") + resumed.group(1)
        name = call.partition("(")[0]
        if DEVICE in call.partition(",")[0]:
            if name == "read" and (header := re.search(r'"((?:\\x[0-9a-f]{2}){8})', call)):
                kind = int.from_bytes(bytes.fromhex(header.group(1).replace("\\x", ""))[4:8], "little")
                serving[thread] = []
                found.append((KINDS.get(kind, str(kind)), serving[thread]))
            elif name != "read":
                serving.pop(thread, None)
        # What a debug build asks of each descriptor that it closes.
        elif "F_GETFD" not in call and thread in serving:
            serving[thread].append(name)
    return found


def use(point):
    """Does to frames what the library does to them."""
    content = bytearray(FRAME.read_bytes())
    frame, gone = point / "frame.b2frame", point / "gone.b2frame"
    for _ in range(ROUNDS):
        file = os.open(frame, os.O_RDWR)
        os.pwrite(file, content[-64:], len(content) - 64)
        os.ftruncate(file, len(content))
        os.fstat(file)
        os.close(file)
        frame.stat()
        try:
            os.getxattr(frame, "security.capability")
        except OSError:
            pass
    # A byte of the last chunk's data: the close commits it, and nothing needs it on disk any more when its name goes.
    content[-200] ^= 1
    with gone.open("r+b", buffering=0) as file:
        file.write(content)
    gone.unlink()


def main():
    with tempfile.TemporaryDirectory(prefix="b2c-") as name:
        below, point, log = Path(name, "below"), Path(name, "mount"), Path(name, "strace")
        below.mkdir()
        point.mkdir()
        for frame in ("frame.b2frame", "gone.b2frame"):
            shutil.copyfile(FRAME, below / frame)
        mount = [default_binary(), "mount", "-f", "--log-level", "error", "--show", "contiguous", str(below), str(point)]
        daemon = subprocess.Popen(["strace", "-f", "-qq", "-y", "-xx", "-s", "16", "-e", "signal=none", "-o", str(log), *mount])
        try:
            while not is_mounted(point):
                if daemon.poll() is not None:
                    sys.exit(f"the mount ended with {daemon.returncode}")
                time.sleep(0.01)
            use(point)
        finally:
            subprocess.run([default_binary(), "umount", str(point)], check=True)
        daemon.wait(60)
        found = requests(log)
    failed = 0

    def check(what, holds):
        nonlocal failed
        failed += not holds
        print(f"{'ok' if holds else 'FAILED'}: {what}")

    for kind, most in MOST.items():
        calls = min((calls for each, calls in found if each == kind), key=len, default=None)
        told = "none was made" if calls is None else dict(Counter(calls))
        check(f"{kind}: {told}; expected {most} at most", calls is not None and len(calls) <= most)
    synced = [[call for call in calls if call in SYNCS] for kind, calls in found if kind == "UNLINK"]
    check(f"UNLINK of a frame syncs nothing: {synced}", synced == [[]])
    print(f"{len(MOST) + 1 - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
