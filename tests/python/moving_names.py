#!/usr/bin/env python3
"""Names that are renamed again and again, beside processes that use them: what a native directory never refuses, a mount never does.

    moving_names.py [--seconds N] [--show MODE] [--scene NAME]   each scene for N seconds (1), in each mode of --show
    moving_names.py --log FILE ...                               with what the daemons did
    moving_names.py --self-test                                  the same in a native directory

In each scene one process renames, and two use the names. A name that moves is there or not (ENOENT), and one that is replaced or
exchanged is always there. Only of a name that is replaced twice while it is opened the mount may say ESTALE. What is open can be read, and asked for its attributes and names, whatever becomes of its name, and goes on
holding the same. The kernel believes no name and no attribute for any time, so that it asks for all. The last line is the count.
"""

import argparse
import collections
import ctypes
import errno
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import blosc2

from mounts import Mount

SHOWS = ["other", "sparse", "contiguous"]
LIBC = ctypes.CDLL(None, use_errno=True)
EXCHANGE = 2
PATIENCE = 60
AT_ONCE = ["-o", "entry_timeout=0,attr_timeout=0"]


def exchange(one, other):
    if LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), EXCHANGE):
        raise OSError(ctypes.get_errno(), "exchange")


def frame(fill):
    return blosc2.SChunk(chunksize=800, data=bytes([fill]) * 800, cparams={"clevel": 0}).to_cframe()


class Wrong(Exception):
    """What a native directory does not give."""


class Scene:
    """Files at two names."""

    names, refusals, content = ("a", "b"), [errno.ENOENT], staticmethod(lambda fill: bytes([fill]) * 5000)

    def __init__(self, root):
        self.root, self.kept = str(root), collections.deque()

    def path(self, number):
        return f"{self.root}/{self.names[number]}"

    def written(self, path, fill):
        with open(path, "wb") as file:
            file.write(self.content(fill))

    def made(self):
        self.written(self.path(0), 1)

    def move(self, turn):
        os.rename(self.path(turn % 2), self.path((turn + 1) % 2))

    @contextmanager
    def may_be_gone(self):
        try:
            yield
        except OSError as error:
            if error.errno not in self.refusals:
                raise

    def inside(self, path):
        """What is read there."""
        return path

    def use(self, turn):
        path = self.path(turn % 2)
        with self.may_be_gone():
            os.stat(self.inside(path))
        with self.may_be_gone():
            os.listxattr(self.inside(path))
        with self.may_be_gone():
            self.opened(os.open(self.inside(path), os.O_RDONLY))

    def opened(self, file):
        data = self.read(file)
        self.kept.append((file, data))
        if len(self.kept) > 3:
            file, before = self.kept.popleft()
            if self.read(file) != before:
                raise Wrong("what is open holds something else")
            os.close(file)

    def read(self, file):
        step = "fstat"
        try:
            size = os.fstat(file).st_size
            step = "read"
            data = os.pread(file, 1 << 20, 0)
            step = "listxattr"
            os.listxattr(file)
            step = "utime"
            os.utime(file)
            step = "fstat again"
            again = os.fstat(file).st_size
        except OSError as error:
            raise Wrong(f"what is open: {step}: {errno.errorcode[error.errno]}") from error
        if not len(data) == size == again:
            raise Wrong(f"{size} bytes by fstat, then {again}, {len(data)} read")
        self.judge(data)
        return data

    def judge(self, data):
        if data not in (self.content(1), self.content(2)):
            raise Wrong(f"{len(data)} bytes that nobody has written")


class Moved(Scene):
    pass


class Replaced(Scene):
    names, refusals, temporary = ("a", "a"), [errno.ESTALE], "new"

    def move(self, turn):
        self.written(f"{self.root}/{self.temporary}", 1 + turn % 2)
        os.rename(f"{self.root}/{self.temporary}", self.path(0))


class Exchanged(Scene):
    refusals = ()

    def made(self):
        self.written(self.path(0), 1)
        self.written(self.path(1), 2)

    def move(self, _turn):
        exchange(self.path(0), self.path(1))


class Around(Scene):
    """A directory moves, with what is in it."""

    def made(self):
        os.mkdir(self.path(0))
        self.written(self.inside(self.path(0)), 1)

    def inside(self, path):
        return f"{path}/f"

    def use(self, turn):
        super().use(turn)
        with self.may_be_gone():
            around = os.open(self.path(turn % 2), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fstat(around)
                os.listxattr(around)
                name = os.path.basename(self.inside(""))
                if name not in os.listdir(around):
                    raise Wrong("a name is not listed")
                os.stat(name, dir_fd=around)
                self.opened(os.open(name, os.O_RDONLY, dir_fd=around))
            except OSError as error:
                raise Wrong(f"in an open directory: {errno.errorcode[error.errno]} {error}") from error
            finally:
                os.close(around)


class AroundAcross(Around):
    """Between two directories."""

    names = ("one/d", "other/d")

    def made(self):
        os.mkdir(f"{self.root}/one")
        os.mkdir(f"{self.root}/other")
        super().made()


class AroundExchanged(Around):
    refusals = ()

    def made(self):
        super().made()
        os.mkdir(self.path(1))
        self.written(self.inside(self.path(1)), 2)

    def move(self, _turn):
        exchange(self.path(0), self.path(1))


def of_frames(scene, **more):
    names = tuple(f"{name}.b2nd" for name in scene.names) if not issubclass(scene, Around) else scene.names
    return type(scene.__name__ + "Frame", (scene,), {"names": names, "content": staticmethod(frame), "temporary": ".a.b2nd.Ab12", **more})


class Frames(Around):
    """Frames that are directories."""

    names = ("a.b2nd", "b.b2nd")

    def inside(self, path):
        return f"{path}/00000000.chunk"

    def written_whole(self, path, fill):
        blosc2.SChunk(chunksize=800, data=bytes([fill]) * 800, cparams={"clevel": 0}, urlpath=path, contiguous=False)

    def made(self):
        self.written_whole(self.path(0), 1)

    def judge(self, data):
        if len(data) != 832 or data[32:] not in (b"\1" * 800, b"\2" * 800):
            raise Wrong(f"{len(data)} bytes that nobody has written")


class FramesExchanged(Frames):
    refusals = ()

    def made(self):
        super().made()
        self.written_whole(self.path(1), 2)

    def move(self, _turn):
        exchange(self.path(0), self.path(1))


class AroundFrames(Frames):
    """A directory moves, with a frame in it that is one."""

    names = ("a", "b")

    def inside(self, path):
        return f"{path}/f.b2nd/00000000.chunk"

    def made(self):
        os.mkdir(self.path(0))
        self.written_whole(f"{self.path(0)}/f.b2nd", 1)

    def use(self, turn):
        Scene.use(self, turn)


BOTH = [Moved, Replaced, Exchanged, Around, AroundAcross, AroundExchanged]
SCENES = {scene.__name__: scene for scene in [*BOTH, *map(of_frames, BOTH), Frames, FramesExchanged, AroundFrames]}


def work(name, root, what, until, report):
    scene, turn = SCENES[name](root), 0
    try:
        while time.monotonic() < until:
            getattr(scene, what)(turn)
            turn += 1
    except (Wrong, OSError) as error:
        code = f"{errno.errorcode.get(error.errno)} " if isinstance(error, OSError) else ""
        return report.put((what, turn, f"{code}{error}"))
    return report.put((what, turn, None))


def play(name, root, seconds):
    os.mkdir(root)
    SCENES[name](root).made()
    report, until = multiprocessing.SimpleQueue(), time.monotonic() + seconds
    roles = ["move", "use", "use"]
    processes = [multiprocessing.Process(target=work, args=(name, root, what, until, report), daemon=True) for what in roles]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds + PATIENCE)
    if any(process.exitcode is None for process in processes):
        return ["a call does not return"], {}
    reports = [report.get() for _ in processes]
    return [f"{what} {turn}: {wrong}" for what, turn, wrong in reports if wrong], collections.Counter(
        {what: sum(turn for which, turn, _ in reports if which == what) for what in roles}
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--show", choices=SHOWS)
    parser.add_argument("--scene", choices=SCENES)
    parser.add_argument("--log")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    passed = failed = 0
    shows = ["natively"] if options.self_test else [options.show] if options.show else SHOWS
    for show in shows:
        work_dir = Path(tempfile.mkdtemp(prefix="b2fuse-moving-"))
        (work_dir / "dir").mkdir()
        root = work_dir / ("dir" if options.self_test else "mnt")
        with nullcontext() if options.self_test else Mount(work_dir / "dir", root, ["--show", show, *AT_ONCE, *(["--log-level", "trace", "--log-file", options.log] if options.log else [])]):
            for name in [options.scene] if options.scene else SCENES:
                if show == "contiguous" and issubclass(SCENES[name], Frames):
                    continue  # Files there.
                wrong, counts = play(name, root / name, options.seconds)
                print(f"{show}, {name}: {dict(counts)}", *wrong, sep="\n    ", flush=True)
                failed, passed = failed + bool(wrong), passed + (not wrong)
        shutil.rmtree(work_dir)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
