#!/usr/bin/env python3
"""A FUSE file system that says it is b2fuse, and lies to whoever unmounts it.

    fakefs.py MOUNTPOINT USER HOW [ARGUMENT]

is mounted when it prints `mounted`, as USER's (a number), and serves until it is unmounted. HOW it answers ioctl(2):

    pid N         with that process id, as the daemons of older versions say it; nothing else is known
    silent        never
    working       that it is at it, for ever
    ready FILE    that all is well, and that FILE is SOURCE
    garbage       with random bytes
    mute          never, nor anything else
"""

import contextlib
import ctypes
import errno
import os
import struct
import sys

point, user, how, argument = (sys.argv + [""])[1:5]
libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id={user},group_id={user}"
if libc.mount(b"fake", point.encode(), b"fuse.b2fuse", 0, options.encode()) < 0:
    sys.exit(f"{point}: {os.strerror(ctypes.get_errno())}")

GETATTR, STATFS, INIT, OPENDIR, RELEASEDIR, FORGET, IOCTL = 3, 17, 26, 27, 29, 2, 39
ATTR = struct.pack("<QII 6Q 10I", 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, int(user), int(user), 0, 4096, 0)
PID = 2 << 30 | 4 << 16 | 0xB2 << 8 | 1


def answer(asked, size):
    if how == "pid":
        return struct.pack("<i", int(argument)) if asked == PID else -errno.ENOTTY
    if how == "garbage":
        return os.urandom(size)
    kind, path, file = 1, b"", (0, 0)
    if how == "ready":
        stat = os.stat(argument)
        kind, path, file = 3, argument.encode(), (stat.st_dev, stat.st_ino)
    return (struct.pack("<4I2Q", kind, 7, len(path), 0, *file) + path).ljust(size, b"\0")


while True:
    try:
        request = os.read(device, 1 << 20)
    except OSError:
        break
    opcode, unique = struct.unpack_from("<IQ", request, 4)
    if how == "mute" and opcode != INIT:
        continue
    body = request[40:]
    reply = -errno.ENOSYS
    if opcode == INIT:
        reply = struct.pack("<4I2H2I", 7, 31, 0, 0, 0, 0, 1 << 17, 1).ljust(64, b"\0")
        print("mounted", flush=True)
    elif opcode == GETATTR:
        reply = ATTR
    elif opcode == OPENDIR:
        reply = bytes(16)
    elif opcode == RELEASEDIR:
        reply = b""
    elif opcode == STATFS:
        reply = bytes(80)
    elif opcode == FORGET:
        continue
    elif opcode == IOCTL:
        _, _, command, _, _, size = struct.unpack_from("<QIIQII", body)
        if how == "silent":
            continue
        reply = answer(command, size)
        if isinstance(reply, bytes):
            reply = struct.pack("<i3I", 0, 0, 0, 0) + reply
    failure, data = (reply, b"") if isinstance(reply, int) else (0, reply)
    # ENOENT: the mount, or who asked, has gone meanwhile.
    with contextlib.suppress(FileNotFoundError):
        os.write(device, struct.pack("<IiQ", 16 + len(data), failure, unique) + data)
