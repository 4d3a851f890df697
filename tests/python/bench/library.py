"""The library at work on a mount: decompressing, slicing, and every change that costs something, on one thread."""

import os

import blosc2

from .data import CHUNKS, CHUNKSIZE, noisy_chunk
from .harness import Case, Row, timed
from .sides import native, views

UPDATES, APPENDS, INSERTS, SLICES = 100, 100, 50, 200
# The library moves half of a file for each.
FILE_UPDATES = 10


def opened(path, mode="r"):
    return blosc2.open(str(path), mode=mode, dparams=blosc2.DParams(nthreads=1))


def all_sides(bench, frame):
    """Both native layouts, and both views."""
    file = [type(side)(f"file-{side.name}", side.open) for side in views(bench, frame.sframe)]
    return [native("sframe", frame.sframe), native("cframe", frame.cframe), *views(bench, frame.cframe), *file]


def decompress(bench):
    for _ in bench.rounds:
        frame = bench.data.plain()
        for side in all_sides(bench, frame):
            with side.open() as path:
                schunk = opened(path)

                def every_chunk():
                    for n in range(schunk.nchunks):
                        schunk.decompress_chunk(n)

                every_chunk()
                bench.time(f"decompress/{side.name}", every_chunk)
                del schunk


def slices(bench):
    frame = bench.data.array()
    for _ in bench.rounds:
        corners = bench.rng.integers(0, 4096 - 100, (SLICES, 2)).tolist()
        for side in all_sides(bench, frame):
            with side.open() as path:
                array = opened(path)

                def random_slices():
                    for row, column in corners:
                        array[row : row + 100, column : column + 100]

                random_slices()
                bench.time(f"slices/{side.name}", random_slices)
                del array


class Changes:
    """What is done to one side: the frame is as long after it as before."""

    def __init__(self, bench, updates=UPDATES, appends=APPENDS, inserts=INSERTS, count=CHUNKS, chunksize=CHUNKSIZE):
        rng = bench.rng
        self.updated = dict.fromkeys(rng.choice(count, updates, replace=False).tolist())
        for n in self.updated:
            self.updated[n] = noisy_chunk(rng, chunksize)
        self.appended = [noisy_chunk(rng, chunksize) for _ in range(appends)]
        self.inserted = {int(n): noisy_chunk(rng, chunksize) for n in rng.integers(0, count, inserts)}
        self.count = count

    def run(self, bench, prefix, path, sync):
        frame = opened(path, "a")

        def update():
            for n, chunk in self.updated.items():
                frame.update_chunk(n, chunk)

        def append():
            for chunk in self.appended:
                frame.append_chunk(chunk)

        def insert():
            for n, chunk in self.inserted.items():
                frame.insert_chunk(n, chunk)

        def delete():
            for n in reversed(self.inserted):
                frame.delete_chunk(n)
            for n in range(frame.nchunks - 1, self.count - 1, -1):
                frame.delete_chunk(n)

        took = timed(update)
        bench.add(f"{prefix}/update", took)
        bench.add(f"{prefix}/update-synced", took + timed(sync))
        if self.appended:
            bench.time(f"{prefix}/append", append)
            bench.time(f"{prefix}/insert", insert)
            bench.time(f"{prefix}/delete", delete)

    def check(self, path):
        """SOURCE is a frame that the library opens, as long as it was, with every new chunk."""
        frame = blosc2.open(str(path), mode="r")
        assert frame.nchunks == self.count, f"{path}: {frame.nchunks} chunks, expected {self.count}"
        for n, chunk in self.updated.items():
            assert frame.get_chunk(n) == chunk, f"{path}: chunk {n} is not what it was updated with"


def change(bench, prefix, sides, **sizes):
    """sides: (side, the frame on disk that it changes)."""
    for _ in bench.rounds:
        changes = Changes(bench, **sizes)
        for side, source in sides:
            os.sync()
            with side.open() as path:
                # On SOURCE's file system, and in a mount what is not committed yet.
                changes.run(bench, f"{prefix}/{side.name}", path, lambda: sync(path, source))
            changes.check(source)


def sync(path, source):
    for each in {path, source}:
        file = os.open(each / "chunks.b2frame" if each.is_dir() else each, os.O_RDONLY)
        os.fsync(file)
        os.close(file)
    os.sync()


def update(bench):
    frame = bench.data.plain()
    with bench.data.copies(frame.sframe, frame.cframe, frame.cframe) as (sframe, cframe, source):
        rw = views(bench, source)[1]
        change(bench, "update", [(native("sframe", sframe), sframe), (native("cframe", cframe), cframe), (rw, source)])


def update_large(bench):
    """Beside frames of 512 MiB made the same way."""
    for size, count in (("512m", 4096), ("8g", 65_536)):
        frame = bench.data.hollow(count)
        with bench.data.copies(frame.sframe, frame.cframe) as (sframe, source):
            rw = views(bench, source)[1]
            change(bench, f"update-{size}", [(native("sframe", sframe), sframe), (rw, source)], appends=0, inserts=0, count=count)


def file_update(bench):
    frame = bench.data.plain()
    with bench.data.copies(frame.cframe, frame.sframe) as (cframe, source):
        rw = views(bench, source)[1]
        sides = [(native("cframe", cframe), cframe), (rw, source)]
        change(bench, "file-update", sides, updates=FILE_UPDATES, appends=10, inserts=10)


def rows(prefix, what, targets):
    return [
        Row(f"{what}, {name}", f"{prefix}/{side}", f"{prefix}/{reference}", at_most=targets.get(side))
        for side, name, reference in (
            ("ro", "read-only", "sframe"), ("rw", "read-write", "sframe"), ("cframe", "native cframe", "sframe"),
            ("file-ro", "as a file, read-only", "cframe"), ("file-rw", "as a file, read-write", "cframe"),
        )
    ]  # fmt: skip


CASES = [
    Case("decompress", "every chunk decompressed in order, warm", decompress, rows("decompress", "library decompresses", {"ro": 1.1}), rounds=3),
    Case("slices", f"{SLICES} random slices of 100 x 100 of a b2nd array, warm", slices, rows("slices", "library slices", {})),
    Case(
        "update", f"{UPDATES} random chunks replaced by chunks of other sizes, {APPENDS} appended, {INSERTS} inserted, those deleted", update,
        [
            Row("library updates, times faster", "update/rw/update", "update/cframe/update", at_least=7),
            Row("library updates", "update/rw/update", "update/sframe/update", at_most=1.3),
            Row("library updates, on disk, times faster", "update/rw/update-synced", "update/cframe/update-synced", at_least=1),
            Row("library updates, on disk", "update/rw/update-synced", "update/sframe/update-synced"),
            *[
                Row(f"library {what}s", f"update/rw/{what}", f"update/{reference}/{what}")
                for what in ("append", "insert", "delete")
                for reference in ("sframe", "cframe")
            ],
        ],
    ),
    Case(
        "update-large", "the same updates in frames of 512 MiB and of 8 GiB, whose data are holes", update_large,
        [
            Row("library updates, 8 GiB", "update-8g/rw/update", "update-8g/sframe/update", at_most=1.56),
            Row("library updates, 8 GiB over 512 MiB", "update-8g/rw/update", "update-512m/rw/update", at_most=1.2),
            Row("the same, native sframe", "update-8g/sframe/update", "update-512m/sframe/update"),
        ],
        rounds=3,
    ),
    Case(
        "file-update", f"{FILE_UPDATES} updates, 10 appends, 10 inserts through the one file", file_update,
        [
            Row(f"library {what}, one file", f"file-update/rw/{what}", f"file-update/cframe/{what}")
            for what in ("update", "update-synced", "append", "insert", "delete")
        ],
        rounds=3,
    ),
]  # fmt: skip
