"""Many readers at once, alone and beside a writer, the frame being in memory and the mount knowing nothing of it yet."""

import multiprocessing

from .data import CHUNKS, noisy_chunk
from .harness import Case, Row, Skip, drop_caches, shell, timed
from .library import opened
from .sides import native, view

READERS = 16
fork = multiprocessing.get_context("fork")


def read_all(path, names):
    for name in names:
        with open(path / name, "rb", buffering=0) as file:
            file.read()


def append_until(path, chunk, stop, begun):
    while not stop.is_set():
        schunk = opened(path, "a")
        schunk.insert_chunk(schunk.nchunks, chunk)
        begun.set()


def read_by(readers, path, names):
    """Each reads its share."""
    work = [fork.Process(target=read_all, args=(path, names[n::readers])) for n in range(readers)]
    for each in work:
        each.start()
    for each in work:
        each.join()
        if each.exitcode != 0:
            raise RuntimeError(f"a reader of {path} failed")


def parallel(bench):
    if not bench.cold:
        raise Skip("needs caches to be dropped")
    names = [f"{n:08X}.chunk" for n in range(CHUNKS)]
    frame = bench.data.plain()
    with bench.data.copies(frame.sframe, frame.cframe) as (sframe, cframe):
        sides = [(native("sframe", sframe), f"{sframe}/*"), (view(bench, "rw", cframe), cframe)]
        for _ in bench.rounds:
            for side, files in sides:
                for readers, writer in ((1, False), (READERS, False), (READERS, True)):
                    with side.open() as path:
                        order = bench.rng.permutation(names).tolist()
                        # SOURCE in memory, and nothing else.
                        drop_caches()
                        shell(f"cat {files} >/dev/null")
                        measure(bench, side, path, order, readers, writer)


def measure(bench, side, path, names, readers, writer):
    series = f"parallel/{side.name}/{readers}{' and a writer' if writer else ''}"
    if not writer:
        bench.time(series, lambda: read_by(readers, path, names))
        return
    stop, begun = fork.Event(), fork.Event()
    chunk = noisy_chunk(bench.rng)
    process = fork.Process(target=append_until, args=(path, chunk, stop, begun))
    process.start()
    begun.wait()
    try:
        bench.add(series, timed(lambda: read_by(readers, path, names)))
    finally:
        stop.set()
        process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"the writer of {path} failed")


def row(what, one, other):
    return Row(what, f"parallel/{one}", f"parallel/{other}")


CASES = [
    Case(
        "parallel", f"{CHUNKS} chunks read in random order by one process, by {READERS}, and by these beside a library that appends", parallel,
        [
            row(f"{READERS} readers over one, native sframe", f"sframe/{READERS}", "sframe/1"),
            row(f"{READERS} readers over one, read-write", f"rw/{READERS}", "rw/1"),
            row("with a writer over without, native sframe", f"sframe/{READERS} and a writer", f"sframe/{READERS}"),
            row("with a writer over without, read-write", f"rw/{READERS} and a writer", f"rw/{READERS}"),
        ],
        rounds=3,
    ),
]  # fmt: skip
