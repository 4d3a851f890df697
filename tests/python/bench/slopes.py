"""Cost against the number of chunks, and against the size of a frame: the exponent of a line through the logarithms.

0 is a cost that does not grow, 1 one that grows in proportion. Frames are in memory if they can be: the disk is not what is asked.
"""

import os
import tempfile
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount

from .data import TINY, stored
from .harness import Case, Row, shell, timed

READS = 200


def sample(bench, source, count, chunks, names):
    """Seconds of each operation on a mount of one frame, by name."""
    took = {}
    mount = Mount(source, bench.point)
    took["mount"] = timed(mount.mount)
    try:
        if names:
            took["ls -f"] = timed(lambda: shell("ls -f >/dev/null", bench.point))
        places = bench.rng.choice(count, READS, replace=False).tolist()

        def reads():
            for n in places:
                with open(bench.point / f"{n:08X}.chunk", "rb", buffering=0) as file:
                    file.read(4096)

        took["chunk opened and read"] = timed(reads)

        def commits():
            for n, chunk in zip(places, chunks):
                file = os.open(bench.point / f"{n:08X}.chunk", os.O_WRONLY | os.O_TRUNC)
                os.write(file, chunk)
                os.fsync(file)
                os.close(file)

        took["commit of a chunk"] = timed(commits)
        frame = blosc2.open(str(bench.point), mode="a")

        def updates():
            for n, chunk in zip(places[10:], chunks):
                frame.update_chunk(n, chunk)

        took["library update"] = timed(updates)
        del frame
    finally:
        took["umount"] = timed(mount.umount)
    frame = blosc2.open(str(source), mode="r")
    for n, chunk in zip(places[10:], chunks):
        assert frame.nchunks == count and frame.get_chunk(n) == chunk, f"{source}: chunk {n} of {count}"
    return took


def slopes(bench, prefix, frames):
    """frames: (size, source, number of chunks, new chunks)."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else bench.data.root) as where:
        made = []
        for size, source, count, chunks in frames:
            made.append((size, Path(where) / f"{size}.b2frame", count, chunks))
            shell(f"cp {source} {made[-1][1]}")
        for _ in bench.rounds:
            measured = [sample(bench, source, count, chunks, prefix == "by-chunks") for _, source, count, chunks in made]
            for name in measured[0]:
                fit = np.polyfit(np.log([size for size, *_ in made]), np.log([took[name] for took in measured]), 1)
                bench.add(f"{prefix}/{name}", float(fit[0]))
                bench.add(f"{prefix}/{name}/largest", measured[-1][name])


def by_chunks(bench):
    counts = [1000, 10_000, 100_000, *([1_000_000] if bench.options.full else [])]
    chunks = [stored(bytes(range(n, n + TINY))) for n in range(1, 11)]
    slopes(bench, "by-chunks", [(count, bench.data.tiny(count).cframe, count, chunks) for count in counts])


def by_size(bench):
    """From 64 MiB up, 4096 chunks each; what is written is small."""
    frames = []
    for chunksize in (1 << 14, 1 << 17, 1 << 20, *([1 << 23] if bench.options.full else [])):
        new = [blosc2.compress2(bench.rng.bytes(1000) + bytes(chunksize - 1000), typesize=1) for _ in range(10)]
        frames.append((4096 * chunksize, bench.data.hollow(4096, chunksize).cframe, 4096, new))
    slopes(bench, "by-size", frames)


OPERATIONS = ("mount", "ls -f", "chunk opened and read", "commit of a chunk", "library update", "umount")

CASES = [
    Case(
        name, about, run, [Row(f"{operation}, exponent", f"{name}/{operation}", unit="") for operation in OPERATIONS if listed or operation != "ls -f"], rounds=3
    )
    for name, about, run, listed in (
        ("by-chunks", "how costs grow with the number of chunks: 1e3 to 1e5, 1e6 with --full", by_chunks, True),
        ("by-size", "how costs grow with the size of a frame: 64 MiB to 4 GiB, 32 GiB with --full", by_size, False),
    )
]  # fmt: skip
