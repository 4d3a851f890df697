"""Chunk files copied in and out, each until all is on disk."""

import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import blosc2

from mounts import Mount, default_binary

from .harness import Case, Row, drop_caches, shell, timed


def count_of(bench, short, full):
    return bench.options.count or (full if bench.options.full else short)


def expect(path, count):
    found = blosc2.open(str(path), mode="r").nchunks
    if found != count:
        sys.exit(f"{path} has {found} chunks, expected {count}")


def cpu():
    """Seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Target:
    """A frame that does not exist yet, or a copy of one; mounted to be copied into, looked at and gone after it."""

    def __init__(self, bench, where=None):
        self.bench, self.path = bench, (where or bench.data.root) / "copied.b2frame"

    def into(self, series, count, options, command):
        bench = self.bench
        mount = Mount(self.path, bench.point, options, in_front=True)
        before = cpu()
        mount.mount()
        try:
            took = timed(lambda: shell(command, bench.data.root))
            bench.add(series, took)
            # umount returns when all is on disk.
            bench.add(f"{series}/on-disk", took + timed(mount.umount))
        finally:
            mount.umount()
        bench.add(f"{series}/cpu", cpu() - before)
        expect(self.path, count)
        self.remove()

    def remove(self):
        self.path.unlink(missing_ok=True)
        shutil.rmtree(f"{self.path}.lost", ignore_errors=True)


class Copies:
    """Where directories are copied to. They go when all has been measured: ext4 makes files several times as slowly for minutes
    after many were removed, unless what it remembers of those is dropped."""

    def __init__(self, bench):
        self.bench, self.root, self.made = bench, bench.data.root / "copied", 0

    def __enter__(self):
        self.remove()
        self.root.mkdir()
        return self

    def __exit__(self, *_):
        self.remove()

    def remove(self):
        if self.root.exists():
            shutil.rmtree(self.root)
            if self.bench.cold:
                drop_caches()

    def native(self, series, command):
        """Runs a command that makes the directory PATH on the file system, which is synced."""
        self.made += 1
        path = self.root / str(self.made) / "copied.b2frame"
        path.parent.mkdir()
        took = timed(lambda: shell(command.replace("PATH", str(path)), self.bench.data.root))
        self.bench.add(series, took)
        self.bench.add(f"{series}/on-disk", took + timed(os.sync))
        expect(path, len(os.listdir(path)) - 1)


def copy(bench):
    """N and 2N files: a whole sframe into an empty mount, and chunk files alone behind the end of a frame of one chunk.

    In memory, if that can be, on one core, and by processor time: it is not the disk or the machine's other work that is asked
    whether it is linear, nor how long the daemon waits awake, which it does on several cores only.
    """
    count = count_of(bench, 4000, 100_000)
    bench.sizes["linear"] = f"{2 * count:,}"
    shm = Path("/dev/shm")
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else bench.data.root) as where:
        try:
            os.sched_setaffinity(0, {min(cores)})
            linear(bench, count, Target(bench, Path(where)))
        finally:
            os.sched_setaffinity(0, cores)


def linear(bench, count, target):
    first = bench.data.many(1).sframe
    for _ in bench.rounds:
        for n, name in ((count, "N"), (2 * count, "2N")):
            directory = bench.data.many(n).sframe
            target.into(f"copy/{name}", n, ["--create"], f"cp -r {directory}/. {bench.point}/")
            shell(f"{default_binary()} convert {first} {target.path}")
            target.into(f"append/{name}", n, [], f"find {directory} -name '*.chunk' -print0 | sort -z | xargs -0 cp -t {bench.point}")


def warm(directory):
    # More names than a command line holds.
    shell("find . -name '*.chunk' -print0 | xargs -0 cat >/dev/null", directory)


def copy_in(bench):
    count = count_of(bench, 20_000, 100_000)
    bench.sizes["copies"] = f"{count:,}"
    directory, target = bench.data.many(count).sframe, Target(bench)
    target.remove()
    with Copies(bench) as copies:
        warm(directory)
        for tool, command in (("cp", "cp -r"), ("rsync", "rsync -a")):
            if not shutil.which(tool):
                bench.note(tool, "not measured: not installed")
                continue
            for _ in bench.rounds:
                copies.native(f"{tool}-in/native", f"{command} {directory}/ PATH")
                target.into(f"{tool}-in/view", count, ["--create"], f"{command} {directory}/. {bench.point}/")


def copy_out(bench):
    count = count_of(bench, 20_000, 100_000)
    bench.sizes["copies"] = f"{count:,}"
    frame = bench.data.many(count)
    if not frame.cframe.exists():
        shell(f"{default_binary()} convert {frame.sframe} {frame.cframe}")
    with Copies(bench) as copies:
        warm(frame.sframe)
        shell(f"cat {frame.cframe} >/dev/null")
        for _ in bench.rounds:
            copies.native("out/native", f"cp -r {frame.sframe} PATH")
            for name, options in (("ro", ["-o", "ro"]), ("rw", [])):
                with Mount(frame.cframe, bench.point, options):
                    copies.native(f"out/{name}", f"cp -r {bench.point} PATH")


def enough(bench):
    return count_of(bench, 20_000, 100_000) >= 100_000


def pair(what, series, against, **target):
    return [
        Row(f"{what}", series, against, **target),
        Row(f"{what}, on disk", f"{series}/on-disk", f"{against}/on-disk", **target),
    ]


CASES = [
    Case(
        "copy", "whether processor time grows with the number of files that are copied in, and no faster", copy,
        [
            Row("copy an sframe of {linear}, over half", "copy/2N/cpu", "copy/N/cpu", at_most=2.3, best=True),
            Row("append {linear} files, over half", "append/2N/cpu", "append/N/cpu", at_most=2.3, best=True),
        ],
    ),
    Case(
        "copy-in", "an sframe copied into a view by cp -r and by rsync, and onto the file system", copy_in,
        [
            *pair("cp -r {copies} files in", "cp-in/view", "cp-in/native", at_most=1.5, target_when=enough),
            *pair("rsync {copies} files in", "rsync-in/view", "rsync-in/native"),
        ],
        rounds=3,
    ),
    Case(
        "copy-out", "cp -r out of a view, and of the native directory", copy_out,
        [*pair("cp -r {copies} files out, read-only", "out/ro", "out/native"), *pair("cp -r {copies} files out, read-write", "out/rw", "out/native")],
        rounds=3,
    ),
]  # fmt: skip
