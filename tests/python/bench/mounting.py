"""A frame of a million chunks: to mount and unmount, what its names cost in memory, one small change."""

import os
import shutil
import tempfile
from pathlib import Path

import blosc2

from mounts import Mount

from .data import TINY, Frame
from .harness import Case, Row, Skip, drop_caches, shell, timed

COUNT = 1_000_000
TARGET_S, TARGET_MIB, TARGET_COMMIT_S = 0.3, 64, 0.03


def mount(bench):
    frame = bench.data.tiny(COUNT)
    for _ in bench.rounds:
        for name, options in (("ro", ["-o", "ro"]), ("rw", [])):
            mount = Mount(frame.cframe, bench.point, options)
            for state in ("cold", "warm"):
                if state == "cold":
                    if not bench.cold:
                        continue
                    drop_caches()
                bench.time(f"mount/{name}/{state}", mount.mount)
                bench.time(f"umount/{name}/{state}", mount.umount)


def memory_of(pid):
    """MiB: resident now, at most so far, and of the latter's kind what is no file's."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM", "RssAnon")]


def memory(bench):
    frame = bench.data.tiny(COUNT)
    for _ in bench.rounds:
        for name, options in (("ro", ["-o", "ro"]), ("rw", [])):
            with Mount(frame.cframe, bench.point, options, in_front=True) as mount:
                bench.add(f"memory/{name}/mounted", memory_of(mount.daemon.pid)[0])
                shell("find . -size +100k >/dev/null", bench.point)
                resident, peak, anonymous = memory_of(mount.daemon.pid)
                bench.add(f"memory/{name}/listed", resident)
                bench.add(f"memory/{name}/peak", peak)
                bench.add(f"memory/{name}/anonymous", anonymous)


def commit(bench):
    """On a file system in memory, where a sync costs nothing."""
    if not Path("/dev/shm").is_dir():
        raise Skip("this needs /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as where:
        for count, name in ((1000, "1k"), (COUNT, "1m")):
            frame = Frame(Path(where))
            shutil.copyfile(bench.data.tiny(count).cframe, frame.cframe)
            commits(bench, f"commit/{name}", frame.cframe, count)


def commits(bench, prefix, source, count):
    chunks = [blosc2.compress2(bytes(range(n, n + TINY)), typesize=1, clevel=0) for n in range(1, 100)]
    with Mount(source, bench.point):
        replaced = {}
        # The first finds what is known of the frame not yet there.
        for n in range(len(bench.rounds) + 1):
            position, chunk = int(bench.rng.integers(count)), chunks[n]

            def replace():
                file = os.open(bench.point / f"{position:08X}.chunk", os.O_WRONLY | os.O_TRUNC)
                os.write(file, chunk)
                os.fsync(file)
                os.close(file)

            bench.add(f"{prefix}/first" if n == 0 else f"{prefix}/chunk", timed(replace))
            replaced[position] = chunk
        frame = blosc2.open(str(bench.point), mode="a")
        index = os.open(bench.point / "chunks.b2frame", os.O_RDONLY)
        for n in bench.rounds:

            def change():
                frame.vlmeta["round"] = n
                os.fsync(index)

            bench.time(f"{prefix}/vlmeta", change)
        os.close(index)
        del frame
    frame = blosc2.open(str(source), mode="r")
    assert frame.nchunks == count and frame.vlmeta["round"] == bench.rounds[-1]
    for position, chunk in replaced.items():
        assert frame.get_chunk(position) == chunk, position


CASES = [
    Case(
        "mount", "a frame of a million chunks, mounted and unmounted", mount,
        [
            Row(f"{what} 1,000,000 chunks, {long}, {state}", f"{what}/{name}/{state}", at_most=TARGET_S if what == "mount" else None)
            for what in ("mount", "umount")
            for name, long in (("ro", "read-only"), ("rw", "read-write"))
            for state in ("cold", "warm")
        ],
    ),
    Case(
        "memory", "the daemon's memory, before and after all of a million names are listed and stated", memory,
        [
            Row(f"{what}, {long}", f"memory/{name}/{series}", at_most=target, unit="MiB")
            for name, long in (("ro", "read-only"), ("rw", "read-write"))
            for what, series, target in (
                ("resident, just mounted", "mounted", None), ("resident, all stated", "listed", TARGET_MIB),
                ("at its peak", "peak", TARGET_MIB), ("without the pages of files", "anonymous", None),
            )
        ],
        rounds=1,
    ),
    Case(
        "commit", "one small change and its commit, in memory", commit,
        [
            Row("a chunk replaced, 1,000,000 chunks", "commit/1m/chunk", at_most=TARGET_COMMIT_S),
            Row("the same, the first", "commit/1m/first", at_most=TARGET_COMMIT_S),
            Row("a chunk replaced, 1000 chunks", "commit/1k/chunk"),
            Row("vlmeta set by the library, 1,000,000", "commit/1m/vlmeta"),
            Row("vlmeta set by the library, 1000", "commit/1k/vlmeta"),
        ],
    ),
]  # fmt: skip
