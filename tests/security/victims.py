#!/usr/bin/env python3
"""What an attack must not touch: a tree that only root may read or write, and what is in it, to the last bit.

    victims.py make DIR         a new tree
    victims.py manifest DIR     a line for each thing in a tree, which changes if anything does
"""

import hashlib
import os
import socket
import stat
import sys
from pathlib import Path

# Is in every file that nobody but root may read: wherever else it turns up, it was given away.
SECRET = "for-the-eyes-of-root-"


def secret(nbytes):
    return (SECRET * (nbytes // len(SECRET) + 1)).encode()[:nbytes]


def make(where):
    """Files, directories, a login script's directory, and what is neither. Only root comes in."""
    where = Path(where)
    where.mkdir(mode=0o700)
    for name, mode, nbytes in (("private", 0o600, 60_000), ("public", 0o644, 20_000), ("program", 0o4755, 9_000), ("short", 0o600, 8)):
        (where / name).write_bytes(secret(nbytes))
        (where / name).chmod(mode)
    (where / "large").write_bytes(secret(1_080_000))
    (where / "large").chmod(0o600)
    # Nothing in it that could not be shown: hard links are made to it, which are as good a name as any.
    (where / "twice").write_bytes(b"known to all\n" * 500)
    (where / "twice").chmod(0o600)
    for name, mode in (("home", 0o700), ("open", 0o755), ("empty", 0o700), ("emptied", 0o700)):
        (where / name).mkdir()
        (where / name).chmod(mode)
    (where / "home" / ".profile").write_text("umask 077\n")
    for name in ("one", "two", "00000000.chunk", ".b2fuse-1-0.tmp"):
        (where / "open" / name).write_bytes(secret(3_000))
    for name in ("00000000.chunk", "00000001.chunk", "three"):
        (where / "emptied" / name).write_bytes(secret(3_000))
    os.mkfifo(where / "fifo", 0o600)
    os.symlink("private", where / "link")


def digest(path, stats):
    kind = stat.S_IFMT(stats.st_mode)
    if kind == stat.S_IFREG:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if kind == stat.S_IFLNK:
        return os.readlink(path)
    return "-"


def manifest(where):
    """A line for each thing below: what it is, whose, when it was written, its attributes and its bytes."""
    lines = []
    for folder, folders, files in os.walk(where):
        for name in [".", *sorted(set(files) | {name for name in folders if os.path.islink(os.path.join(folder, name))})]:
            path = os.path.normpath(os.path.join(folder, name))
            stats = os.lstat(path)
            attributes = [] if stat.S_ISLNK(stats.st_mode) else sorted((a, os.getxattr(path, a)) for a in os.listxattr(path))
            what = (oct(stats.st_mode), stats.st_uid, stats.st_gid, stats.st_size if name != "." else "-", stats.st_mtime_ns)
            lines.append(" ".join(map(str, (path, *what, attributes, digest(path, stats)))))
    return sorted(lines)


def listener(path):
    """A socket's name in the file system."""
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        print("\n".join(manifest(sys.argv[2])))
