#!/usr/bin/env python3
"""What the owner of a mounted directory can do to get at what others keep in it: one attack each, to be run by trees.sh as root.

    owners.py ATTACK DIR MOUNTPOINT

DIR belongs to the attacker, who may give every name in it to something else, and what others have there any name. Where an attack needs
luck it has some seconds. Whatever the attacker gets to see is printed, so a secret in the output was given away.
"""

import ctypes
import errno
import itertools
import os
import random
import signal
import stat
import struct
import sys
import threading
import time
from pathlib import Path

from victims import SECRET, secret

UID, GID = map(int, os.environ["ATTACKER"].split(":"))
OTHER = int(os.environ["OTHER"].split(":")[0])
FX, FULL = Path(os.environ["FX"]), os.environ.get("FULL")
FRAMES = Path(os.environ["FRAMES"])
# For attacks that need luck.
SECONDS = 20 if FULL else 1.5
MARK = SECRET.encode()
NOREPLACE, EXCHANGE = 1, 2

libc = ctypes.CDLL(None, use_errno=True)


def rename2(one, other, flags):
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one))


def exchange(one, other):
    rename2(one, other, EXCHANGE)


def child(work, uid=UID, gid=GID):
    """A process of the attacker's, or of another user, at work."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            work()
        except OSError as error:
            print(error, flush=True)
        except BaseException as error:  # noqa: BLE001, whatever it is, it is to be seen
            print(f"{type(error).__name__}: {error}", flush=True)
            code = 3
        os._exit(code)
    return pid


def as_attacker(work):
    code = os.waitpid(child(work), 0)[1]
    assert code == 0, f"the attacker ended with {code}"


def against(swaps, work):
    """The attacker swaps names all the time in one process, and in another does what is to profit by it, for some seconds."""
    swapper = child(lambda: [swaps() for _ in itertools.repeat(None)])
    end, rounds = time.monotonic() + SECONDS, 0
    try:

        def works():
            count = 0
            while time.monotonic() < end:
                work()
                count += 1
            print("rounds:", count)

        as_attacker(works)
    finally:
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    return rounds


def quietly(work, *arguments):
    try:
        return work(*arguments)
    except OSError:
        return None


def pause():
    end = time.monotonic() + random.random() * 0.0002
    while time.monotonic() < end:
        pass


def flips(one, other):
    def flip():
        quietly(exchange, one, other)
        pause()

    return flip


def show(path, flags=os.O_RDONLY):
    """Prints what can be read of a file."""
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        shown(b"".join(iter(lambda: os.read(file, 1 << 20), b"")), path)
    except OSError:
        pass
    finally:
        os.close(file)


def shown(data, where):
    if MARK in data:
        print(where, data[data.index(MARK) :][:60], flush=True)


def show_all(path):
    for folder, _, files in os.walk(path):
        for name in files:
            show(Path(folder, name))


def roots(path, mode=0o600, content=None):
    """A file of root's."""
    path.write_bytes(secret(5000) if content is None else content)
    os.chown(path, 0, 0)
    path.chmod(mode)
    return path


def theirs(path, content=b"mine"):
    """A file of the attacker's."""
    path.write_bytes(content)
    os.chown(path, UID, GID)
    return path


def copied(source, path, owner=UID, closed=False):
    """A copy of a frame, whose owner alone may read it if it is closed."""
    pairs = [(source, path)]
    if source.is_dir():
        path.mkdir()
        pairs += [(inner, path / inner.name) for inner in source.iterdir()]
    for one, new in pairs:
        if one.is_file():
            new.write_bytes(one.read_bytes())
        os.chown(new, owner, GID if owner == UID else owner)
        new.chmod((0o700 if one.is_dir() else 0o600) if closed else (0o755 if one.is_dir() else 0o644))
    return path


def same(path, mode, content):
    """That a file of root's is what it was."""
    stats = path.lstat()
    assert (stats.st_uid, stats.st_mode & 0o7777) == (0, mode), f"{path}: {stats}"
    assert path.read_bytes() == content, f"{path} has changed"


# ---- What is opened, and what is asked about it, is what the kernel has let the caller do


def create_finds_a_file(d, m):
    """A file of root's gets the name between the kernel's look at it and the request to make it."""
    kept = roots(d / "roots")
    number = kept.stat().st_ino

    def swaps():
        quietly(rename2, kept, d / "x", NOREPLACE)
        pause()
        if quietly(lambda: (d / "x").stat().st_ino) == number:
            quietly(rename2, d / "x", kept, NOREPLACE)
        pause()

    def work():
        show(m / "x", os.O_CREAT | os.O_RDWR)
        if quietly(lambda: (d / "x").stat().st_uid) == UID:
            quietly(os.unlink, d / "x")

    against(swaps, work)


def access_list_of_another(d, m):
    """The kernel is told the access list of another file, and keeps it."""
    roots(d / "roots", 0o640)
    theirs(d / "mine")
    entries = [(1, 6, 2**32 - 1), (2, 6, UID), (4, 4, 2**32 - 1), (16, 6, 2**32 - 1), (32, 0, 2**32 - 1)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(d / "mine", "system.posix_acl_access", access)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        print("no access lists here")
        return

    def work():
        for _ in range(5):
            os.stat(m / "roots")
            exchange(d / "roots", d / "mine")
            os.access(m / "roots", os.R_OK)
            exchange(d / "roots", d / "mine")
            show(m / "roots")
            time.sleep(0.3)

    as_attacker(work)


def attribute_of_another(d, m):
    """An extended attribute that only who may read the file may read."""
    kept = roots(d / "roots")
    os.setxattr(kept, "user.secret", secret(100))
    theirs(d / "mine")

    def work():
        file = os.open(m / "mine", os.O_RDONLY)
        os.rename(d / "roots", d / "mine")
        for name in quietly(os.listxattr, file) or ["user.secret"]:
            shown(quietly(os.getxattr, file, name) or b"", name)
        assert "user.secret" not in (quietly(os.listxattr, file) or [])

    as_attacker(work)


def truncated_another(d, m):
    """Opened to be emptied, when another file has its name."""
    kept = roots(d / "roots")
    theirs(d / "mine")
    number, content = kept.stat().st_ino, kept.read_bytes()

    def work():
        try:
            os.close(os.open(m / "mine", os.O_WRONLY | os.O_TRUNC))
        except OSError:
            pass

    against(flips(d / "mine", d / "roots"), work)
    kept = next(path for path in (d / "mine", d / "roots") if path.stat().st_ino == number)
    same(kept, 0o600, content)


def opened_another_frame(d, m):
    """A frame is opened, and another has its name."""
    copied(FX / "full.b2frame", d / "c.b2frame")
    copied(FRAMES / "secret-cframe", d / "kept.b2frame", 0, closed=True)
    copied(FX / "sparse" / "full.b2frame", d / "s.b2frame")
    copied(FRAMES / "secret-sframe", d / "keptdir.b2frame", 0, closed=True)

    def swaps():
        quietly(exchange, d / "c.b2frame", d / "kept.b2frame")
        quietly(exchange, d / "s.b2frame", d / "keptdir.b2frame")
        pause()

    def work():
        for name in ("c.b2frame", "kept.b2frame"):
            show(m / name / "00000001.chunk")
        show(m / "s.b2frame")
        show(m / "keptdir.b2frame")
        # Closed, so that it is opened again.
        quietly(os.rename, m / "c.b2frame", m / "d.b2frame")
        quietly(os.rename, m / "d.b2frame", m / "c.b2frame")

    against(swaps, work)


def held_while_another_comes(d, m):
    """A frame is open, and root's gets its name."""
    copied(FX / "full.b2frame", d / "c.b2frame")
    copied(FRAMES / "secret-cframe", d / "kept.b2frame", 0, closed=True)
    copied(FX / "sparse" / "full.b2frame", d / "s.b2frame")
    copied(FRAMES / "secret-sframe", d / "keptdir.b2frame", 0, closed=True)

    def work():
        files = [os.open(m / "s.b2frame", os.O_RDONLY), os.open(m / "c.b2frame" / "00000001.chunk", os.O_RDONLY)]
        folder = os.open(m / "c.b2frame", os.O_RDONLY)
        exchange(d / "c.b2frame", d / "kept.b2frame")
        exchange(d / "s.b2frame", d / "keptdir.b2frame")
        for _ in range(12):
            for file in files:
                shown(quietly(os.pread, file, 1 << 20, 0) or b"", "held")
            for name in ("00000001.chunk", "00000002.chunk"):
                inner = quietly(lambda name=name: os.open(name, os.O_RDONLY, dir_fd=folder))
                if inner is not None:
                    shown(quietly(os.pread, inner, 1 << 20, 0) or b"", name)
                    os.close(inner)
            show(m / "s.b2frame")
            time.sleep(0.2)

    as_attacker(work)


# ---- Owner and mode


def mode_of_another(d, m):
    """The index of a frame that is shown as a file is a file of root's."""
    kept = roots(d / "roots")
    copied(FX / "sparse" / "full.b2frame", d / "s.b2frame")
    content = kept.read_bytes()

    def work():
        file = os.open(m / "s.b2frame", os.O_RDONLY)
        os.pread(file, 100, 0)
        os.rename(d / "s.b2frame" / "chunks.b2frame", d / "mine")
        os.rename(d / "roots", d / "s.b2frame" / "chunks.b2frame")
        quietly(os.fchmod, file, 0o666)
        quietly(os.utime, file, (1, 1))
        quietly(os.chmod, m / "s.b2frame", 0o666)

    as_attacker(work)
    kept = d / "s.b2frame" / "chunks.b2frame"
    same(kept, 0o600, content)
    assert kept.stat().st_mtime > 2


def mode_of_anothers_directory(d, m):
    """The attacker has an index in a directory of root's."""
    kept = copied(FX / "sparse" / "full.b2frame", d / "s.b2frame", 0)
    kept.chmod(0o777)
    os.chown(kept / "chunks.b2frame", UID, GID)
    entries = [(1, 6, 2**32 - 1), (2, 7, OTHER), (4, 4, 2**32 - 1), (16, 7, 2**32 - 1), (32, 0, 2**32 - 1)]
    access = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)

    def work():
        for mode in (0o666, 0o600):
            quietly(os.chmod, m / "s.b2frame", mode)
        quietly(os.setxattr, m / "s.b2frame", "system.posix_acl_access", access)

    as_attacker(work)
    stats = kept.stat()
    assert (stats.st_uid, stats.st_mode & 0o7777) == (0, 0o777), f"{kept}: {stats}"


def shut_directory(d, m):
    """The files of a frame are for all to read, and its directory is not."""
    copied(FRAMES / "secret-sframe", d / "s.b2frame").chmod(0o700)
    copied(FRAMES / "secret-sframe", d / "t.b2frame", 0).chmod(0o750)
    for name in ("s.b2frame", "t.b2frame"):
        os.waitpid(child(lambda name=name: show(m / name), OTHER, OTHER), 0)
        as_attacker(lambda: show(m / "t.b2frame"))
    mode = (m / "s.b2frame").stat().st_mode & 0o777
    assert mode == 0o600, oct(mode)
    # Its owner may.
    as_attacker(lambda: os.close(os.open(m / "s.b2frame", os.O_RDONLY)))


def programs_of_others(d, m):
    """Bits by which a program runs as another, in a directory whose group is inherited."""
    shared = d / "shared"
    shared.mkdir()
    os.chown(shared, 0, 0)
    shared.chmod(0o2777)

    def work():
        os.umask(0)
        for mode in (0o2755, 0o6777, 0o2644):
            name = f"{mode:o}"
            quietly(lambda: os.close(os.open(m / "shared" / name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)))
            quietly(os.mknod, m / "shared" / f"{name}.node", mode | stat.S_IFREG)
            quietly(os.mknod, m / "shared" / f"{name}.fifo", mode | stat.S_IFIFO)
            quietly(os.mkdir, m / "shared" / f"{name}.dir", mode)
            quietly(os.chmod, m / "shared" / name, mode)
            for number, source in enumerate((FX / "full.b2frame", FX / "sparse" / "full.b2frame")):
                new = m / "shared" / f"{name}{number}.b2frame"
                if source.is_dir():
                    quietly(os.mkdir, new, mode)
                for one in source.iterdir() if source.is_dir() else [source]:
                    to = new / one.name if source.is_dir() else new
                    file = quietly(os.open, to, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
                    if file is not None:
                        quietly(os.write, file, one.read_bytes())
                        quietly(os.fchmod, file, mode)
                        quietly(os.close, file)
                quietly(os.chmod, new, mode)

    as_attacker(work)
    made = [path for path in shared.rglob("*") if not path.is_dir()]
    assert len(made) > 10, made
    for path in made:
        stats = path.lstat()
        assert stats.st_mode & 0o2010 != 0o2010 or stats.st_gid == GID, f"{path}: {stats}"
        assert stats.st_mode & 0o4000 == 0 or stats.st_uid == UID, f"{path}: {stats}"


def everybody_at_once(d, m):
    """Many users make things at the same time: each has what he made, with his own umask."""
    shared = d / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    users = [(0, 0), (UID, GID), (OTHER, OTHER), (0, GID), (70_001, 70_002)]

    def maker(uid, gid, umask):
        def work():
            os.umask(umask)

            def makes(thread):
                for number in range(20):
                    name = str(m / "shared" / f"{uid}-{gid}-{umask:o}-{thread}-{number}")
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o777))
                    os.mkdir(name + ".dir", 0o777)
                    os.mkdir(name + ".b2frame", 0o777)
                    os.mkfifo(name + ".fifo", 0o777)
                    os.symlink("x", name + ".link")

            threads = [threading.Thread(target=makes, args=(thread,)) for thread in range(2)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]

        return work

    pids = [(child(maker(uid, gid, umask), uid, gid), uid) for uid, gid in users for umask in (0, 0o027)]
    for pid, uid in pids:
        assert os.waitpid(pid, 0)[1] == 0, uid
    made = list(os.scandir(shared))
    assert len(made) >= len(users) * 2 * 2 * 20 * 5, len(made)
    for entry in made:
        if entry.name.startswith(".b2fuse-"):
            continue  # of a frame that is being made
        uid, gid, umask = entry.name.split("-")[:3]
        stats = entry.stat(follow_symlinks=False)
        assert (stats.st_uid, stats.st_gid) == (int(uid), int(gid)), f"{entry.name}: {stats}"
        if not entry.is_symlink():
            assert stats.st_mode & 0o777 == 0o777 & ~int(umask, 8), f"{entry.name}: {oct(stats.st_mode)}"


# ---- What is removed


def precious(path):
    """A directory of root's, which the attacker may give other names, and no more."""
    path.mkdir()
    path.chmod(0o700)
    for name in ("notes", "00000000.chunk", "00000001.chunk", "chunks.b2frame"):
        roots(path / name)
    (path / "inside").mkdir()
    roots(path / "inside" / "more")
    return path


def still_there(d, number, names):
    for folder in [d, *(path for path in d.iterdir() if path.is_dir())]:
        for path in (folder, *folder.iterdir()):
            if path.is_dir() and path.stat().st_ino == number:
                assert {name.name for name in path.iterdir()} == names, f"{path}: {list(path.iterdir())}"
                assert path.stat().st_mode & 0o777 == 0o700 and path.stat().st_uid == 0
                assert "inside" not in names or (path / "inside" / "more").exists()
                return
    raise AssertionError("the directory is gone")


def called_like_ours(d, m):
    """A directory of root's gets a name of those that b2fuse removes when it finds them."""
    for number, name in enumerate((".b2fuse-gone-2147483646-1", ".b2fuse-1-7.tmp", ".b2fuse-x.tmp")):
        kept = precious(d / "kept")
        names = {path.name for path in kept.iterdir()}
        inode = kept.stat().st_ino
        (d / "sub").mkdir()
        os.chown(d / "sub", UID, GID)

        def work(name=name):
            os.rename(d / "kept", d / name)
            for path in (m, m / "sub"):
                os.listdir(path)
            quietly(os.rmdir, m / "sub")
            quietly(os.rmdir, m / name)

        as_attacker(work)
        os.listdir(m)
        still_there(d, inode, names)
        os.rename(d / name, d / f"kept-{number}")
        quietly(os.rmdir, d / "sub")


def removed_another(d, m, remove=None):
    """A frame's directory is removed, and root's has its name."""
    kept = precious(d / "kept")
    # What a frame has, and nothing else.
    (kept / "inside" / "more").unlink()
    (kept / "inside").rmdir()
    (kept / "notes").unlink()
    number, names = kept.stat().st_ino, {path.name for path in kept.iterdir()}
    copied(FX / "sparse" / "full.b2frame", d / "s.b2frame")

    def work():
        (remove or os.unlink)(m / "s.b2frame")

    def works():
        quietly(work)
        if (d / "s.b2frame").is_file():
            quietly(os.unlink, d / "s.b2frame")
        if not (d / "s.b2frame").exists():
            quietly(os.mkdir, d / "s.b2frame")
            for one in (FX / "sparse" / "full.b2frame").iterdir():
                quietly(lambda one=one: (d / "s.b2frame" / one.name).write_bytes(one.read_bytes()))

    def swaps():
        quietly(exchange, d / "s.b2frame", d / "kept")
        for name in os.listdir(d):
            # Where what is being removed is.
            if name.startswith(".b2fuse-"):
                quietly(exchange, d / name, d / "kept")
        pause()

    against(swaps, works)
    still_there(d, number, names)


def replaced_another(d, m):
    """A file is renamed over a frame that is a directory, and root's has its name."""

    def remove(path):
        (m / ".new").write_bytes(b"no frame")
        os.rename(m / ".new", path)

    removed_another(d, m, remove)


def removed_in_a_sticky_directory(d, m):
    """The kernel has let the caller remove a file that another has the name of by now."""
    shared = d / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for change in (os.unlink, lambda path: os.rename(path, m / "shared" / "elsewhere"), lambda path: os.replace(m / "shared" / "mine", path)):
        theirs(shared / "mine")
        theirs(shared / "a")
        as_attacker(lambda: (os.stat(m / "shared" / "a"), os.stat(m / "shared" / "mine")))
        (shared / "a").unlink()
        kept = roots(shared / "a")
        as_attacker(lambda: quietly(change, m / "shared" / "a"))
        same(kept, 0o600, secret(5000))
        kept.unlink()


# ---- What is copied from one layout to the other


def stored_another(d, m):
    """A file becomes a frame, and is stored as a directory: of that file, and with its owner."""
    spare = [copied(FRAMES / "secret-cframe", d / f"spare-{number}", 0, closed=True) for number in range(100)]
    data = (FX / "full.b2frame").read_bytes()
    turn = itertools.count()

    def work():
        by_rename = next(turn) % 2
        name = ".t" if by_rename else "a.b2frame"
        quietly(lambda: (m / name).write_bytes(data))
        if by_rename:
            quietly(os.rename, m / name, m / "a.b2frame")
        for path in (d / ".t", d / "a.b2frame", d / ".kept"):
            if quietly(lambda path=path: path.lstat().st_uid) == UID:
                show(path)
                show_all(path)
                for inner in quietly(os.listdir, path) or ():
                    quietly(os.unlink, path / inner)
                quietly(os.rmdir, path)
                quietly(os.unlink, path)
        if not any((d / one).exists() for one in (".t", "a.b2frame", ".kept")) and spare:
            os.rename(spare.pop(), d / ".kept")

    def swaps():
        quietly(exchange, d / random.choice((".t", "a.b2frame")), d / ".kept")
        pause()

    against(swaps, work)


def stored_another_in_a_store(d, m):
    """A directory becomes a store, and its frames files: of those directories, and with their owners."""
    pairs = [(f"a{number}.b2nd", f"kept{number}.b2nd") for number in range(12)]
    end, rounds = time.monotonic() + 2 * SECONDS, 0
    while time.monotonic() < end:
        store = f"store{rounds}"
        rounds += 1
        (d / store).mkdir()
        os.chown(d / store, UID, GID)
        for one, kept in pairs:
            copied(FX / "sparse" / "full.b2frame", d / store / one)
            copied(FRAMES / "secret-sframe", d / store / kept, 0, closed=True)

        def swaps(store=store):
            one, kept = random.choice(pairs)
            quietly(exchange, d / store / one, d / store / kept)

        def work(store=store):
            (m / store / "embed.b2e").write_bytes((FX / "base.b2frame").read_bytes())
            for path in (d / store).iterdir():
                if path.is_file() and path.stat().st_uid == UID:
                    show(path)

        swapper = child(lambda swaps=swaps: [swaps() for _ in itertools.repeat(None)])
        as_attacker(work)
        os.kill(swapper, signal.SIGKILL)
        os.waitpid(swapper, 0)
    print("rounds:", rounds)


def made_like_another(d, m):
    """A directory is made in which a frame is to be made, and root's has its name."""
    kept = d / "kept"
    kept.mkdir()
    kept.chmod(0o777)

    def work():
        # What is in it is the attacker's.
        try:
            os.mkdir(m / "n.b2frame")
            for one in (FX / "native.b2frame").iterdir():
                (m / "n.b2frame" / one.name).write_bytes(one.read_bytes())
            file = os.open(m / "n.b2frame", os.O_RDONLY)
            os.fsync(file)
            os.close(file)
        except OSError:
            pass
        for path in list(d.iterdir()):
            if path.is_file():
                if path.stat().st_uid != UID:
                    print("not the attacker's:", path, path.stat().st_uid)
                quietly(os.unlink, path)

    against(flips(d / "n.b2frame", kept), work)
    for path in d.iterdir():
        assert not path.is_file() or path.stat().st_uid == UID, path


# ---- Memory


def large_directories(d, m):
    """Of a directory with very many names nothing is kept but what is needed."""
    daemon = int(sys.argv[4])
    for name in ("full", ".b2fuse-gone-2147483646-1"):
        (d / name).mkdir()
        os.chown(d / name, UID, GID)
        for number in range(20_000):
            os.close(os.open(d / name / f"{number:0200}", os.O_CREAT))

    def used():
        status = Path(f"/proc/{daemon}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))

    os.stat(m / "full")
    before = used()
    as_attacker(lambda: quietly(os.rmdir, m / "full"))
    # What a mount has left that is gone is taken apart.
    os.listdir(m)
    assert not (d / ".b2fuse-gone-2147483646-1").exists()
    print("rounds:", used() - before, "KiB")
    assert used() - before < 2500, f"{used() - before} KiB"


if __name__ == "__main__":
    name, d, m = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    globals()[name](d, m)
