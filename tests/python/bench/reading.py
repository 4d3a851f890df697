"""Reading by ordinary tools: all chunks, random chunks, the one file, random places in it."""

import os

from .harness import Case, Row, drop_caches, timed
from .sides import archivemount, native, squashfuse, views

RANDOM_CHUNKS, RANDOM_READS, REQUESTS = 1000, 20_000, 20_000


def rounds_of(bench, prefix, sides):
    """Each side in turn: cold, and again warm."""
    for _ in bench.rounds:
        for side in sides:
            with side.open() as path:
                bench.cold_and_warm(f"{prefix}/{side.name}", lambda: side.cat(path))


def read(bench):
    frame = bench.data.plain()
    sides = [native("sframe", frame.sframe), native("cframe", frame.cframe), *views(bench, frame.cframe), *squashfuse(bench, frame)]
    rounds_of(bench, "read", sides)


def read_small(bench):
    frame = bench.data.small()
    rounds_of(bench, "small", [native("sframe", frame.sframe), *views(bench, frame.cframe), *squashfuse(bench, frame)])


def read_archive(bench):
    """It looks for each file from the beginning of the archive."""
    frame = bench.data.plain()
    rounds_of(bench, "archive", [native("sframe", frame.sframe), *archivemount(bench, frame)])


def read_random(bench):
    """Opened, read and closed by one process."""
    frame = bench.data.plain()
    sides = [native("sframe", frame.sframe), *views(bench, frame.cframe), *squashfuse(bench, frame)]
    for _ in bench.rounds:
        names = [f"{n:08X}.chunk" for n in bench.rng.choice(4096, RANDOM_CHUNKS, replace=False)]
        for side in sides:
            with side.open() as path:

                def reads():
                    for name in names:
                        with open(path / name, "rb", buffering=0) as file:
                            file.read()

                bench.cold_and_warm(f"random/{side.name}", reads)


def file_read(bench):
    frame = bench.data.plain()
    sides = [native("chunks", frame.sframe), native("cframe", frame.cframe), *views(bench, frame.sframe)]
    rounds_of(bench, "file", sides)


def file_random(bench):
    frame = bench.data.plain()
    for _ in bench.rounds:
        for side in [native("cframe", frame.cframe), *views(bench, frame.sframe)]:
            with side.open() as path:
                file = os.open(path, os.O_RDONLY)
                places = bench.rng.integers(0, os.fstat(file).st_size - 4096, RANDOM_READS).tolist()

                def reads():
                    for at in places:
                        os.pread(file, 4096, at)

                if bench.cold:
                    # Few: each is a wait for the disk.
                    drop_caches()
                    del places[RANDOM_READS // 20 :]
                    bench.time(f"file-random/{side.name}/cold", reads)
                    places += bench.rng.integers(0, os.fstat(file).st_size - 4096, RANDOM_READS - len(places)).tolist()
                side.cat(path)
                bench.add(f"file-random/{side.name}/warm", min(timed(reads) for _ in range(2)))
                os.close(file)


def request(bench):
    """The least that a request takes: each asks for a name that is not there, which the kernel does not keep in mind. Without what
    asking for it takes where the kernel knows."""
    frame = bench.data.plain()
    for _ in bench.rounds:
        native_us = asked(frame.sframe)
        for side in views(bench, frame.cframe):
            with side.open() as path:
                bench.add(f"request/{side.name}", asked(path) - native_us)


def asked(path):
    name = str(path / "FFFFFFFF.chunk")

    def requests():
        for _ in range(REQUESTS):
            os.path.exists(name)

    requests()
    return timed(requests) / REQUESTS * 1e6


def rows(prefix, what, reference, targets, names=("ro", "rw")):
    """Cold and warm rows of sides over one reference; targets by (side, state)."""
    long = {"ro": "read-only", "rw": "read-write"}
    return [
        Row(f"{what}, {long.get(name, name)}, {state}", f"{prefix}/{name}/{state}", f"{prefix}/{reference}/{state}", at_most=targets.get((name, state)))
        for name in names
        for state in ("cold", "warm")
    ]  # fmt: skip


CASES = [
    Case(
        "request", "a request that has nothing to do: what many small ones cost at least", request,
        [Row(f"a request, {long}", f"request/{name}", unit="us") for name, long in (("ro", "read-only"), ("rw", "read-write"))],
    ),
    Case(
        "read", "all chunks of a frame of 4096 x 128 KiB by cat", read,
        rows("read", "all chunks", "sframe", {("ro", "cold"): 0.45, ("ro", "warm"): 1.05, ("rw", "cold"): 0.65, ("rw", "warm"): 1.5}, ("ro", "rw", "cframe", "squashfuse")),
    ),
    Case(
        "read-small", "32,768 chunks of 2 KiB by cat", read_small,
        rows("small", "small chunks", "sframe", {("ro", "cold"): 0.35}, ("ro", "rw", "squashfuse")), rounds=3,
    ),
    Case(
        "read-random", "a thousand random chunks opened and read", read_random,
        rows("random", "random chunks", "sframe", {("ro", "cold"): 1.0, ("rw", "cold"): 1.0}, ("ro", "rw", "squashfuse")),
    ),
    Case(
        "read-archive", "the first case with a tar archive of the sframe, by archivemount", read_archive,
        rows("archive", "all chunks", "sframe", {}, ("archivemount",)), rounds=1, full=True,
    ),
    Case(
        "file-read", "a directory shown as one file by cat, cold over cat of the chunk files, warm over the native cframe", file_read,
        [
            *rows("file", "one file over chunk files", "chunks", {("ro", "cold"): 0.9, ("rw", "cold"): 0.9}),
            *rows("file", "one file over a cframe", "cframe", {("ro", "warm"): 1.6, ("rw", "warm"): 1.6}),
        ],
    ),
    Case(
        "file-random", f"{RANDOM_READS:,} reads of 4 KiB in it", file_random,
        rows("file-random", "4 KiB reads", "cframe", {("ro", "warm"): 1.1, ("rw", "warm"): 1.1}),
    ),
]  # fmt: skip
