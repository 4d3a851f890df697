#!/usr/bin/env python3
"""The general form for a directory that is mounted whole: all names in it, each as each kind of thing, while the attacker and root read,
write, make, rename and remove through the mount.

    trees.py squats SHOW      names taken before the mount, and when all has been looked at
    trees.py storm SHOW       names exchanged at random, for some seconds

To be run by trees.sh. The verdicts are those of matrix.py; besides, what is root's in the directory stays what it is, and root's. It is
the attacker who may give it other names, and who may remove a file or a frame as one thing.
"""

import ctypes
import fcntl
import hashlib
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import matrix
from matrix import B2FUSE, FRAMES, FX, MARK, Harm, M, Tally
from squats import FULL, KEPT, KINDS, T, U, V, chown_all, disk_of_secrets, take

NEW = [FX / "new" / str(number) for number in range(4)]
D = U / "d"

# Names in DIR that stand in nobody's way, and those without which nothing goes.
ASIDE = [f"{where}.b2fuse-{end}" for where in ("", "e/", "dir/") for end in ("PID-0.tmp", "PID-1.tmp", "gone-PID-1", "gone-PID-2", "gone-1-1")]
ASIDE += [".b2fuse-gone-2147483646-1", "c.b2frame.b2lock", "c.b2frame.lost", "s.b2frame.lost", "s.b2frame.b2lock", ".new"]
ASIDE += ["s.b2frame/.b2lock", "s.b2frame/.b2fuse-chunks.tmp", "s.b2frame/00000006.chunk", "c.b2frame.PID"]
FIRST = ["plain", "dir", "dir/in", "c.b2frame", "s.b2frame", "s.b2frame/chunks.b2frame", "s.b2frame/00000001.chunk", "t.b2d"]
FIRST += ["t.b2d/leaf.b2nd", "e/embed.b2e", "e/a.b2nd", "e/a.b2nd/00000001.chunk", "n.b2frame", "f.b2frame", "x.b2frame"]

libc = ctypes.CDLL(None, use_errno=True)
# What is root's in DIR, by inode, as it was made; and what keeps others from getting the inodes.
roots, held = {}, []


def mine(path):
    """What is to be the same about something of root's."""
    stats = path.lstat()
    content = sorted(os.listdir(path)) if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
    return stat.S_IFMT(stats.st_mode), stat.S_IMODE(stats.st_mode), stats.st_uid, stats.st_gid, content


def keep(path):
    for one in (path, *path.iterdir()) if path.is_dir() else (path,):
        one.chmod(0o700 if one.is_dir() else 0o600)
        # Open, so that its number is given to nothing else.
        held.append(os.open(one, os.O_PATH))
        roots[one.lstat().st_ino] = (one, mine(one))


def roots_file(path, name):
    kind = "chunk" if name.endswith(".chunk") else "chunks.b2frame" if name.endswith("chunks.b2frame") else "c.b2frame"
    shutil.copyfile(V / "twins" / kind, path)
    keep(path)


def roots_frame(path, _):
    shutil.copytree(V / "twins" / "s.b2frame", path)
    keep(path)


def roots_directory(path, _):
    """What b2fuse could take for a frame's, and one file more."""
    shutil.copytree(V / "twins" / "s.b2frame", path)
    (path / "chunks.b2frame").unlink()
    shutil.copyfile(V / "private", path / "notes")
    keep(path)


def huge(path, _):
    path.write_bytes((FX / "full.b2frame").read_bytes()[:200])
    with suppress(OSError):
        os.truncate(path, 1 << 42)


def unreadable(path, _):
    path.write_bytes(b"nothing")
    path.chmod(0)


def immutable(path, _):
    shutil.copyfile(FX / "base.b2frame", path)
    subprocess.run(["chattr", "+i", path], capture_output=True, check=False)


def growing(path, _):
    """A file that changes its size all the time."""
    path.write_bytes((FX / "full.b2frame").read_bytes())
    length = path.stat().st_size
    pid = os.fork()
    if pid == 0:
        try:
            file = os.open(path, os.O_RDWR)
            for _ in range(100_000):
                os.ftruncate(file, random.randrange(2 * length))
        finally:
            os._exit(0)
    grows.append(pid)


grows = []
KINDS.update({"file": lambda path, _: path.write_bytes(b"text"), "root's file": roots_file, "root's frame": roots_frame})
KINDS.update({"root's directory": roots_directory, "huge": huge, "unreadable": unreadable, "immutable": immutable, "growing": growing})
KINDS["loop"] = lambda path, _: os.symlink(path.name, path)
KEPT |= {"root's file", "root's frame", "root's directory", "immutable"}


def clear():
    """What is left of a case."""
    while grows:
        pid = grows.pop()
        with suppress(OSError):
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    roots.clear()
    while held:
        os.close(held.pop())
    if U.exists():
        subprocess.run(["chattr", "-R", "-i", U], capture_output=True, check=False)


class TreeCase(matrix.Case):
    """One run: DIR in the attacker's directory, and what is to take which names, and when."""

    def __init__(self, show, squats=(), late=False, storm=None):
        clear()
        self.show, self.late, self.kinds = show, late, {kind for _, kind in squats}
        super().__init__("cframe", squats, storm=storm)
        self.calm = True
        self.source.unlink()
        self.source = D
        for path in (D, D / "dir", D / "e", D / "t.b2d"):
            path.mkdir()
        for name in ("plain", "dir/in"):
            (D / name).write_bytes(b"plain " * 100)
        for name in ("c.b2frame", "t.b2d/leaf.b2nd"):
            self.copy(FX / "full.b2frame", D / name)
        for name in ("s.b2frame", "e/a.b2nd"):
            self.copy(FX / "sparse" / "full.b2frame", D / name)
        chown_all(D)

    def squat(self, names, pid=0):
        for name, kind in names:
            path = D / name.replace("PID", str(pid))
            # Nothing is put into what is root's, nor where a link leads.
            if path.parent.is_symlink() or not path.parent.is_dir() or path.parent.lstat().st_uid == 0:
                continue
            take(path.relative_to(U), kind)

    def mount(self):
        command = [B2FUSE, "mount", "-f", "-o", "allow_other", "--show", self.show, str(D), str(M)]
        if not self.late:
            # But for those that say which process has made them.
            self.squat([pair for pair in self.squats if "PID" not in pair[0]])
        with self.output() as out:
            self.daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        end = time.monotonic() + matrix.PATIENCE
        while matrix.mount_device() is None:
            if self.daemon.poll() is not None:
                raise Harm("the mount was refused")
            if time.monotonic() > end:
                raise Harm("neither mounted nor ended")
            time.sleep(0.002)
        if self.late:
            self.child(look, root=True)
        self.squat([pair for pair in self.squats if self.late or "PID" in pair[0]], self.daemon.pid)
        self.begin()

    def begin(self):
        """Names of DIR are exchanged with what lies in it."""
        if self.storm is None or self.attack or self.daemon is None:
            return
        kinds = [kind for kind in KINDS if kind not in ("immutable", "link to its like")]
        if self.storm.random() < 0.5:
            kinds = [kind for kind in kinds if not kind.startswith("root's")]
        self.kinds = set(kinds)
        for number, kind in enumerate(kinds):
            take(f"d/.squat-{number}", kind)
        for number, name in enumerate(("c.b2frame", "00000001.chunk", "chunks.b2frame")):
            if "root's file" in kinds:
                roots_file(D / f".squat-x{number}", name)
            shutil.copyfile(V / "twins" / name if (V / "twins" / name).exists() else V / "twins" / "chunk", D / f".squat-y{number}")
            chown_all(D / f".squat-y{number}")
            # Nothing that only root may read.
            (D / f".squat-y{number}").write_bytes((FX / "full.b2frame").read_bytes()[: 9000 * number + 100])
        pause, seed = self.storm.choice((20, 50, 300, 2000)), self.storm.randrange(1 << 31)
        names = ["s.b2frame", *FIRST, *(name.replace("PID", str(self.daemon.pid)) for name in ASIDE)]
        command = [matrix.ATTACK, "storm", D, ".squat-", str(pause), str(seed), *names]
        self.attack = subprocess.Popen(command, user=matrix.UID, group=matrix.GID, extra_groups=(), stdout=subprocess.PIPE)
        self.attack.stdout.readline()

    def leaks(self):
        found = super().leaks()
        there = {}
        for folder, folders, files in os.walk(U):
            for name in (*folders, *files):
                path = Path(folder, name)
                there[path.lstat().st_ino] = path
        for number, (path, before) in roots.items():
            now = there.get(number)
            if now is None:
                # A file can be removed, and a frame as one thing.
                if "notes" in before[-1]:
                    found.append(f"{path}, which is root's, is gone")
            elif mine(now) != before:
                found.append(f"{path}, which is root's, was {before}, and is {mine(now)} at {now}")
        return found


# ---- What is done. Root follows no link, and writes to nothing that is there: whatever happens then is b2fuse's doing.


def folder(*names):
    """A directory in the mount, reached without a link."""
    file = os.open(M, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        inner = None
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=file)
        finally:
            os.close(file)
        file = inner
    return file


def create(where, name, data):
    file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o666, dir_fd=where)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def put(name, data, *names):
    """A new file, renamed onto what is there."""
    where = folder(*names)
    try:
        with suppress(OSError):
            os.unlink(".w", dir_fd=where)
        create(where, ".w", data)
        os.rename(".w", name, src_dir_fd=where, dst_dir_fd=where)
    finally:
        os.close(where)


def look(case):
    """Everything is read, and what the attacker reads is shown."""

    def enter(file, path):
        for name in os.listdir(file):
            with suppress(OSError):
                os.readlink(name, dir_fd=file)
            try:
                inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=file)
            except OSError as error:
                print(path, name, error)
                continue
            try:
                kind = os.fstat(inner).st_mode
                with suppress(OSError):
                    for attribute in os.listxattr(inner):
                        os.getxattr(inner, attribute)
                if stat.S_ISDIR(kind):
                    enter(inner, f"{path}/{name}")
                elif stat.S_ISREG(kind):
                    data = os.read(inner, 4 << 20)
                    if MARK in data and os.getuid() != 0:
                        print(path, name, data[data.index(MARK) :][:100])
            except OSError as error:
                print(path, name, error)
            finally:
                os.close(inner)

    file = folder()
    try:
        enter(file, "")
    finally:
        os.close(file)


def make_frame(case):
    where = folder()
    try:
        os.mkdir("n.b2frame", dir_fd=where)
    finally:
        os.close(where)
    for path in sorted((FX / "native.b2frame").iterdir()):
        put(path.name, path.read_bytes(), "n.b2frame")
    inside = folder("n.b2frame")
    try:
        os.fsync(inside)
    finally:
        os.close(inside)


def make_file(case):
    where = folder()
    try:
        create(where, "x.b2frame", (FX / "full.b2frame").read_bytes())
    finally:
        os.close(where)


def move(case):
    where = folder()
    try:
        os.rename("plain", "plain2", src_dir_fd=where, dst_dir_fd=where)
        libc.renameat2(where, b"plain2", where, b"c.b2frame", 2)
        libc.renameat2(where, b"s.b2frame", where, b"c.b2frame", 2)
        os.rename("plain2", "plain", src_dir_fd=where, dst_dir_fd=where)
        os.rename("c.b2frame", "plain3", src_dir_fd=where, dst_dir_fd=where)
    finally:
        os.close(where)


def attributes(case):
    if os.getuid() == 0:
        return
    for name in FIRST:
        for step in (
            lambda path: os.chmod(path, 0o6777),
            lambda path: os.chmod(path, 0o600),
            lambda path: os.chown(path, os.getuid(), os.getgid()),
            lambda path: os.chown(path, 0, 0),
            lambda path: os.setxattr(path, "user.a", b"x"),
            lambda path: os.utime(path, (1, 1)),
            lambda path: os.truncate(path, 10) if "/" not in name else None,
        ):
            with suppress(OSError):
                step(M / name)


def remove(case):
    for names in ((), ("n.b2frame",), ("e",), ("dir",)):
        with suppress(OSError):
            where = folder(*names)
            for name in ("x.b2frame", "f.b2frame", "plain3", "s.b2frame", "00000000.chunk", "chunks.b2frame", "a.b2nd", "in"):
                with suppress(OSError):
                    os.unlink(name, dir_fd=where)
            for name in ("n.b2frame", "dir", "c.b2frame"):
                with suppress(OSError):
                    os.rmdir(name, dir_fd=where)
            os.close(where)


def write(case):
    full, base = (FX / "full.b2frame").read_bytes(), (FX / "base.b2frame").read_bytes()
    steps = [
        lambda: put("00000003.chunk", NEW[0].read_bytes(), "c.b2frame"),
        lambda: put("00000006.chunk", NEW[1].read_bytes(), "c.b2frame"),
        lambda: put("00000003.chunk", NEW[2].read_bytes(), "s.b2frame"),
        lambda: put("s.b2frame", base),
        lambda: make_frame(case),
        lambda: put("f.b2frame", full),
        lambda: make_file(case),
        lambda: put("embed.b2e", base, "e"),
        lambda: put("leaf.b2nd", full, "t.b2d"),
        lambda: attributes(case),
        lambda: os.sync() if FULL else None,
        lambda: move(case),
        lambda: remove(case),
        lambda: os.statvfs(M),
    ]
    for step in steps:
        try:
            step()
        except OSError as error:
            print(error, flush=True)


def operate(case):
    case.mount()
    case.child(look)
    case.child(look, root=True)
    case.child(write)
    # What is root's, root may change.
    if not any(kind.startswith("root's") for kind in case.kinds):
        case.child(write, root=True)
        case.child(look)
    if case.daemon.poll() is not None:
        raise Harm("the daemon has ended")
    case.umount()
    case.done = True


OPERATIONS = {"tree": operate}


def rounds(show):
    """What takes which names in each run. All at once but some of those without which nothing goes; with --full each for itself as well."""
    kinds = list(KINDS)
    # A third for each way of showing frames.
    start, step = (0, 1) if FULL else (("other", "sparse", "contiguous").index(show), 3)
    for number, turn in enumerate(range(start, len(kinds), step)):
        aside = [(name, kinds[(place + turn) % len(kinds)]) for place, name in enumerate(ASIDE)]
        first = [(name, kinds[(7 * place + turn) % len(kinds)]) for place, name in enumerate(FIRST) if (place + turn) % 4 == 0]
        yield [*first, *aside], number % 2 == 1
    for name in [*FIRST, *ASIDE] if FULL else ():
        for kind in kinds:
            for late in (False, True):
                yield [(name, kind)], late


def squats(show):
    tally = Tally(OPERATIONS)
    for taken, late in rounds(show):
        words = f"{show} {'late' if late else 'early'} " + ", ".join(f"{name}: {kind}" for name, kind in taken)
        if not tally.add("tree", TreeCase(show, taken, late), words):
            break
    if not tally.done:
        tally.said.append("none of the runs came to its end")
    return tally, f"{tally.tried} squats tried, {tally.harmed} changes, {tally.runs} runs of which {tally.done} were done"


def storm(show):
    tally = Tally(OPERATIONS)
    chance = random.Random(f"{matrix.SEED} {show}")
    end = time.monotonic() + matrix.STORM_SECONDS
    while time.monotonic() < end:
        if not tally.add("tree", TreeCase(show, storm=chance), "in a storm"):
            break
    return tally, f"{tally.runs} storms, {tally.done} runs done in spite of them, {tally.harmed} harmed"


def main():
    what, show = sys.argv[1:]
    os.umask(0o022)
    M.mkdir(exist_ok=True)
    disk_of_secrets()
    try:
        tally, words = (squats if what == "squats" else storm)(show)
    finally:
        clear()
    print(f"note: {words}")
    print("\n".join(tally.said))
    sys.exit(bool(tally.said))


if __name__ == "__main__":
    main()
