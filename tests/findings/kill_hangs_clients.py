#!/usr/bin/env python3
"""A daemon of a mounted directory is killed while clients make and rename names: they must be free within 5 s, and the mount must go.

A thread of the daemon that told the kernel of a name waited for a directory's lock, and kept the device open: every client hung in D.
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import blosc2

B2FUSE = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse"))
ROUNDS = int(os.environ.get("ROUNDS", "12"))
GONE = (103, 107)  # ECONNABORTED, ENOTCONN


def client(at, mount):
    for n in range(1 << 30):
        path, name = f"{mount}/s/x{at}_{n % 5}.b2frame", f"{mount}/s/y{at}_{n}.b2frame"
        try:
            array = blosc2.SChunk(chunksize=800, urlpath=path, mode="w", contiguous=n % 2 == 0, cparams={"typesize": 8, "nthreads": 1})
            array.append_data(bytes(800))
            del array
            os.rename(path, name)
            subprocess.run(["rm", "-r", name], stderr=subprocess.DEVNULL)
            with open(f"{mount}/s/p{at}.txt", "w") as file:
                file.write("x")
            os.rename(f"{mount}/s/p{at}.txt", f"{mount}/s/q{at}.txt")
        except OSError as error:
            if error.errno in GONE:
                return
        except RuntimeError:
            pass
        try:
            os.stat(f"{mount}/s")
        except OSError:
            return


def ends(pid, until):
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.02)
    return False


def main():
    work = tempfile.mkdtemp(prefix="b2fuse-kill")
    source, mount = work + "/d", work + "/m"
    os.makedirs(mount)
    bad = 0
    for n in range(ROUNDS):
        os.makedirs(source + "/s", exist_ok=True)
        daemon = subprocess.Popen([B2FUSE, "mount", "-f", *sys.argv[1:], source, mount], stderr=subprocess.DEVNULL)
        while not os.path.exists(mount + "/s"):
            assert daemon.poll() is None
            time.sleep(0.01)
        clients = []
        for at in range(4):
            clients.append(os.fork())
            if clients[-1] == 0:
                # The library may abort when all its files fail.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                client(at, mount)
                os._exit(0)
        time.sleep(random.uniform(0.5, 1.2))
        daemon.kill()
        until = time.monotonic() + 5
        hung = [pid for pid in clients if not ends(pid, until)]
        if hung or subprocess.run(["umount", mount], timeout=20).returncode != 0:
            bad += 1
            print(f"round {n}: {len(hung)} of {len(clients)} clients hang")
            subprocess.run(["umount", "-f", mount], stderr=subprocess.DEVNULL)
            for pid in hung:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            subprocess.run(["umount", "-l", mount], stderr=subprocess.DEVNULL)
        daemon.wait()
        subprocess.run(["rm", "-rf", source + "/s"])
    subprocess.run(["rm", "-rf", work])
    print(f"{bad} of {ROUNDS} kills left clients that hang")
    sys.exit(bad > 0)


main()
