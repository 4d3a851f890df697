#!/usr/bin/env python3
"""Many mounts of one user: together they take no more inotify instances than their slots, and a mount without an instance still shows
what others change, and is idle while no file is open. An idle mount takes less than 1 MiB of memory and 6 threads at most.

Slots are files under flock(2) in /run/b2fuse; all but a few are taken here, in a mount namespace of our own with an empty /run.
Exit code 0: all is so."""

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time

import blosc2
import numpy

BINARY = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse"))
MOUNTS, FREE, LATE = 40, 4, 30
# Bytes of an idle mount.
MEMORY = 1 << 20
THREADS = 6
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18

failed = 0


def wrong(text):
    global failed
    failed = 1
    print(text)


def own_run():
    """An empty /run, which no other mount of this user takes slots in."""
    libc = ctypes.CDLL(None, use_errno=True)
    for result in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None),
        libc.mount(b"run", b"/run", b"tmpfs", ctypes.c_ulong(0), None),
    ):
        if result:
            raise OSError(ctypes.get_errno(), "no mount namespace of our own")


def number(path):
    with open(path) as file:
        return int(file.read())


def take_slots():
    """Takes all slots but FREE."""
    limits = ("/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances")
    slots = min(number(path) for path in limits if os.path.exists(path)) // 4
    os.mkdir("/run/b2fuse", 0o700)
    taken = [open(f"/run/b2fuse/watch-{slot}", "w") for slot in range(slots - FREE)]
    for file in taken:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return taken


def write(path, value, chunks=10):
    """As another program: a new frame takes the name."""
    blosc2.asarray(numpy.arange(1000) + value, urlpath=f"{path}.new.b2nd", mode="w", chunks=(1000 // chunks,))
    os.rename(f"{path}.new.b2nd", path)


def daemon_of(point):
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            # A process that guards the mount may have the same words.
            if os.fsencode(point) in words and any(os.readlink(f"/proc/{process}/fd/{fd}") == "/dev/fuse" for fd in os.listdir(f"/proc/{process}/fd")):
                yield int(process)
        except OSError:
            pass


def instances(process):
    links = (os.readlink(f"/proc/{process}/fd/{fd}") for fd in os.listdir(f"/proc/{process}/fd"))
    return sum(link.endswith("inotify") for link in links)


def memory(process):
    """Bytes that this process has written to, but for what the loader writes into pages of the program."""
    total, is_own = 0, False
    with open(f"/proc/{process}/smaps") as file:
        for line in file:
            words = line.split()
            if not words[0].endswith(":"):
                is_own = len(words) < 6 or words[5].startswith("[")
            elif words[0] == "Anonymous:" and is_own:
                total += int(words[1]) << 10
    return total


def switches(process):
    total = 0
    for thread in os.listdir(f"/proc/{process}/task"):
        with open(f"/proc/{process}/task/{thread}/status") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return total


def seen(read, expected):
    """Waits until a mount shows what it should."""
    deadline = time.monotonic() + LATE
    while time.monotonic() < deadline:
        try:
            if read() == expected:
                return True
        except OSError:
            pass
        time.sleep(0.02)
    return False


def main(scene):
    taken = take_slots()
    points, processes = [], []
    try:
        for mount in range(MOUNTS):
            source, point = f"{scene}/{mount}.b2nd", f"{scene}/m{mount}"
            write(source, mount)
            os.mkdir(point)
            points.append(point)
            options = ["-r"] if mount % 2 else []
            subprocess.run([BINARY, "mount", "--show", "npy" if mount % 4 < 2 else "other", *options, "--log-file", f"{point}.log", source, point], check=True)
        for point in points:
            processes.append(max(daemon_of(point), key=lambda process: len(os.listdir(f"/proc/{process}/task"))))
        counts = [instances(process) for process in processes]
        print(f"{sum(counts)} inotify instances of {FREE} slots")
        if sum(counts) != FREE or max(counts) > 1:
            wrong(f"inotify instances: {counts}")
        for point, count in zip(points, counts):
            with open(f"{point}.log") as log:
                lines = [line for line in log if "polling" in line]
            if len(lines) != 1 - count or not all(point in line for line in lines):
                wrong(f"{point}: {count} instances, and the log says {lines}")

        blind = [mount for mount in range(MOUNTS) if not counts[mount]]
        npy = next(mount for mount in blind if mount % 4 == 0)
        other = next(mount for mount in blind if mount % 4 == 3)
        for mount in (npy, other):
            if not os.listdir(points[mount]):
                wrong(f"{points[mount]}: empty")
        time.sleep(1)
        before = [switches(process) for process in processes]
        time.sleep(2)
        woken = [switches(process) - count for process, count in zip(processes, before)]
        if max(woken) > 4:
            wrong(f"idle mounts are woken: {woken}")

        file, shown = f"{points[npy]}/{npy}.b2nd.npy", f"{points[other]}/00000001.chunk"
        state = lambda path: (os.stat(path).st_ino, os.stat(path).st_mtime_ns)
        # Names are right at once, for writing and for reading.
        for mount in (other, next(mount for mount in blind if mount % 4 == 2)):
            names = len(os.listdir(points[mount]))
            write(f"{scene}/{mount}.b2nd", 500, chunks=20)
            if len(os.listdir(points[mount])) != names + 10:
                wrong(f"{points[mount]}: {len(os.listdir(points[mount]))} names, and {names} before 10 chunks more")
        old, old_chunk = state(file), state(shown)
        for mount in (npy, other):
            write(f"{scene}/{mount}.b2nd", 1000)
        if not seen(lambda: state(file) != old and state(shown) != old_chunk, True):
            wrong("others' changes are not shown while no file is open")
        with open(file, "rb"), open(shown, "rb"):
            old, old_chunk = state(file), state(shown)
            for mount in (npy, other):
                write(f"{scene}/{mount}.b2nd", 2000)
            if not seen(lambda: state(file) != old and state(shown) != old_chunk, True):
                wrong("others' changes are not shown while a file is open")
        if not seen(lambda: numpy.load(file)[0], 2000):
            wrong(f"{file} shows {numpy.load(file)[0]}")

        count_threads = lambda: [len(os.listdir(f"/proc/{process}/task")) for process in processes]
        if not seen(lambda: max(count_threads()) <= THREADS, True):
            wrong(f"threads of idle mounts: {count_threads()}")
        threads = count_threads()
        private = [memory(process) for process in processes]
        print(f"at most {max(threads)} threads, {max(private) >> 10} KiB")
        if max(private) > MEMORY:
            wrong(f"bytes of memory: {private}")
    finally:
        for point in points:
            subprocess.run([BINARY, "umount", point], check=False)
        for file in taken:
            file.close()


own_run()
scene = tempfile.mkdtemp()
try:
    main(scene)
finally:
    shutil.rmtree(scene)
sys.exit(failed)
