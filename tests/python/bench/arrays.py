"""Decompressed views: arrays read as .npy files, beside the library with as many threads, and beside a native .npy."""

import itertools
import os
import re
import subprocess
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount, default_binary

from .harness import Case, Row, Skip, drop_caches, middle, shell, timed

THREADS = os.cpu_count()
# How chunks lie in the file: the place of an array's chunks decides how it is read.
SHAPES = {
    # Name: shape, chunks, blocks (None: what the library takes).
    "1-D": ((1 << 25,), None, None),
    "along": ((4096, 8192), (64, 8192), (8, 8192)),
    "across": ((4096, 8192), (512, 512), (64, 128)),
}
CODECS = ("lz4", "zstd")
SMALL_READS = 1000
# Of a .npy file of these arrays.
HEADER = 128
SLOW = 500  # MB/s, of a disk
CACHE = 64  # MiB
# What the daemon may take besides.
BESIDES = 64


def steps(rng, shape):
    """Doubles that go up and down a little, which compress to about a seventh."""
    return np.cumsum(rng.integers(-3, 4, int(np.prod(shape)), dtype="i4"), dtype="f8").reshape(shape)


def array_of(bench, codec, kind):
    """A directory with array.b2nd, 256 MiB of doubles, and with the same as array.npy."""
    shape, chunks, blocks = SHAPES[kind]

    def make(frame):
        values = steps(np.random.default_rng(7), shape)
        params = {"codec": blosc2.Codec[codec.upper()], "clevel": 5, "filters": [blosc2.Filter.SHUFFLE], "filters_meta": [0], "nthreads": THREADS}
        places = {"chunks": chunks, "blocks": blocks} if chunks else {}
        blosc2.asarray(values, urlpath=str(frame.directory / "array.b2nd"), mode="w", cparams=params, **places)
        np.save(frame.directory / "array.npy", values)

    return bench.data._made(f"arrays-1-{codec}-{kind}", make).directory


def compressible(bench):
    """512 MiB that compress to a tenth."""

    def make(frame):
        rng = np.random.default_rng(8)
        values = np.cumsum(np.where(rng.random(1 << 26) < 0.5, rng.integers(-9, 10, 1 << 26), 0)).astype("f8").reshape(4096, -1)
        params = {"codec": blosc2.Codec.ZSTD, "clevel": 5, "nthreads": THREADS}
        blosc2.asarray(values, urlpath=str(frame.directory / "array.b2nd"), mode="w", cparams=params)
        np.save(frame.directory / "array.npy", values)

    return bench.data._made("arrays-1-compressible", make).directory


def opened(path, threads=THREADS):
    return blosc2.open(str(path), mode="r", dparams={"nthreads": threads})


def to_a_pipe(data):
    """To who throws it away."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        reader.stdin.write(data)
        reader.stdin.close()


def by_the_library(path):
    to_a_pipe(memoryview(opened(path)[:]).cast("B"))


def cat(path):
    shell(f"cat '{path}' >/dev/null")


def view(bench, path, *options, in_front=False):
    return Mount(path, bench.point, ["--show", "npy", *options], in_front=in_front)


def shown(bench, path):
    return bench.point / f"{path.name}.npy"


def sequential(bench):
    for codec, kind in itertools.product(CODECS, SHAPES):
        directory = array_of(bench, codec, kind)
        source, native = directory / "array.b2nd", directory / "array.npy"
        prefix = f"arrays/{codec}/{kind}"
        expect_same(bench, source, native)
        for _ in bench.rounds:
            for state in ("cold", "hot"):
                # With SOURCE's pages in the machine's cache, and without.
                if state == "cold" and not bench.cold:
                    continue
                prepare = drop_caches if state == "cold" else (lambda: cat(source))
                prepare()
                bench.time(f"{prefix}/library/{state}", lambda: by_the_library(source))
                with view(bench, source):
                    prepare()
                    bench.time(f"{prefix}/view/{state}", lambda: cat(shown(bench, source)))
                    if state == "hot":
                        warm = min(timed(lambda: cat(shown(bench, source))) for _ in range(2))
                        cat(native)
                        bench.add(f"{prefix}/native/warm", min(timed(lambda: cat(native)) for _ in range(2)))
                        bench.add(f"{prefix}/view/warm", warm)


def expect_same(bench, source, native):
    with view(bench, source):
        if subprocess.run(["cmp", shown(bench, source), native]).returncode != 0:
            raise SystemExit(f"{source}: the view is not what NumPy writes")


def small(bench):
    """At places of the file's pages, and at places of the items, where a read takes two pages of the machine's cache."""
    for codec, kind in itertools.product(CODECS, ("1-D", "across")):
        source = array_of(bench, codec, kind) / "array.b2nd"
        array = opened(source)
        width = array.shape[-1]
        cat(source)

        def slice_of(view, at):
            """512 items that follow each other, in one row."""
            return view[at : at + 512] if array.ndim == 1 else view[at // width, at % width : at % width + 512]

        for _ in bench.rounds:
            for align, offset in (("pages", -HEADER // 8), ("items", 0)):
                # None at a row's beginning, which a page begins before.
                places = bench.rng.integers(1, array.size // 512 - 1, 2 * SMALL_READS) * 512 + offset
                places = places[places % width <= width - 512][:SMALL_READS].tolist()
                assert len(places) == SMALL_READS
                series = f"arrays-small/{codec}/{kind}/{align}"
                bench.time(f"{series}/library", lambda: [slice_of(array, at) for at in places])
                with view(bench, source):
                    file = os.open(shown(bench, source), os.O_RDONLY)
                    bench.time(f"{series}/view", lambda: [os.pread(file, 4096, HEADER + 8 * at) for at in places])
                    got = os.pread(file, 4096, HEADER + 8 * places[-1])
                    os.close(file)
                assert got == slice_of(array, places[-1]).tobytes(), "the view is not what the library reads"


def disk(bench):
    """From the disk that there is, which may be faster than any, and from the same as slow as many are."""
    if not bench.cold:
        raise Skip("this needs cold caches")
    directory = compressible(bench)
    source, native = directory / "array.b2nd", directory / "array.npy"
    bench.sizes["times"] = f"{native.stat().st_size / source.stat().st_size:.0f}"
    for name, limited in (("as-it-is", nullcontext), ("slow", lambda: slow_disk(source))):
        try:
            with limited():
                for _ in bench.rounds:
                    drop_caches()
                    bench.time(f"arrays-disk/{name}/native", lambda: cat(native))
                    with view(bench, source):
                        drop_caches()
                        bench.time(f"arrays-disk/{name}/view", lambda: cat(shown(bench, source)))
        except OSError as error:
            bench.note(f"a disk of {SLOW} MB/s", f"not measured: {error}")
    bench.sizes["rate"] = f"{native.stat().st_size / 1e6 / middle(bench.series['arrays-disk/as-it-is/native']):.0f}"


@contextmanager
def slow_disk(path):
    """This process and those that it starts read from a path's disk no faster than that."""
    group = Path("/sys/fs/cgroup/blkio/b2fuse-bench")
    device = os.stat(path).st_dev
    group.mkdir(exist_ok=True)
    try:
        (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(device)}:{os.minor(device)} {SLOW * 10**6}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def convert(bench):
    b2fuse = default_binary()
    source = array_of(bench, "zstd", "1-D") / "array.npy"
    cat(source)
    with tempfile.TemporaryDirectory(dir=bench.data.root) as where:
        frame, back = Path(where, "x.b2nd"), Path(where, "x.npy")

        def clean():
            blosc2.remove_urlpath(str(frame))
            back.unlink(missing_ok=True)
            os.sync()

        def to_frame():
            blosc2.asarray(np.load(source), urlpath=str(frame), mode="w", cparams={"nthreads": THREADS})
            os.sync()

        def to_npy():
            np.save(back, opened(frame)[:])
            os.sync()

        for _ in bench.rounds:
            clean()
            bench.time("arrays-convert/library/in", to_frame)
            bench.time("arrays-convert/library/out", to_npy)
            bench.add("arrays-convert/library/size", frame.stat().st_size / 1e6)
            clean()
            bench.time("arrays-convert/b2fuse/in", lambda: shell(f"'{b2fuse}' convert '{source}' '{frame}' && sync"))
            bench.time("arrays-convert/b2fuse/out", lambda: shell(f"'{b2fuse}' convert '{frame}' '{back}' && sync"))
            bench.add("arrays-convert/b2fuse/size", frame.stat().st_size / 1e6)
            if subprocess.run(["cmp", back, source]).returncode != 0:
                raise SystemExit("what was converted back is not what it was")


def memory(bench):
    """Arrays of four times the cache and more, in chunks along, in bands that fit, and in a band that does not."""
    sources = {
        "along": array_of(bench, "lz4", "along") / "array.b2nd",
        "band": array_of(bench, "lz4", "across") / "array.b2nd",
        "large": wide_band(bench),
    }
    for _ in bench.rounds:
        for name, spill in (("along", None), ("band", None), ("large", "none"), ("large", "disk")):
            source = sources[name]
            series = f"arrays-memory/{name}{f'/{spill}' if spill else ''}"
            options = ["--spill", "none" if spill == "none" else str(bench.data.root)] if spill else []
            with view(bench, source, "--cache-size", f"{CACHE}M", *options, in_front=True) as mount:
                bench.time(f"{series}/time", lambda: cat(shown(bench, source)))
                bench.add(f"{series}/peak", peak(mount.daemon.pid))
                if not spill:
                    # At random places, everything.
                    scattered(bench, shown(bench, source))
                    bench.add(f"{series}/scattered", peak(mount.daemon.pid))
        bench.time("arrays-memory/library", lambda: by_the_library(sources["large"]))


def wide_band(bench):
    """Two bands of blocks of 128 MiB each, twice the cache, of which a row takes 8 MiB. Without a file each block is decoded 8.5 times."""

    def make(frame):
        values = steps(np.random.default_rng(9), (32, 1 << 20))
        params = {"codec": blosc2.Codec.LZ4, "nthreads": THREADS}
        blosc2.asarray(values, chunks=(16, 16_384), blocks=(16, 2048), urlpath=str(frame.directory / "array.b2nd"), mode="w", cparams=params)

    return bench.data._made("arrays-1-wide", make).directory / "array.b2nd"


def peak(pid):
    """MiB that were resident at most."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def scattered(bench, path):
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    for at in bench.rng.integers(0, size, 5000).tolist():
        os.pread(file, 4096, at)
    os.close(file)


def each(rows):
    return [
        row
        for codec, kind in itertools.product(CODECS, SHAPES)
        for row in rows(f"{codec} + shuffle, {kind if kind == '1-D' else f'2-D, chunks {kind}'}", f"arrays/{codec}/{kind}")
    ]


CASES = [
    Case(
        "arrays", f"arrays of 256 MiB as .npy by cat, over the library's arr[:] into a pipe with {THREADS} threads, and over a native .npy", sequential,
        [
            *each(lambda what, prefix: [Row(f"{what}, cold disk", f"{prefix}/view/cold", f"{prefix}/library/cold", at_most=1.2)]),
            *each(lambda what, prefix: [Row(f"{what}, warm SOURCE", f"{prefix}/view/hot", f"{prefix}/library/hot", at_most=1.2)]),
            *each(lambda what, prefix: [Row(f"{what}, again", f"{prefix}/view/warm", f"{prefix}/native/warm", at_most=1.1)]),
        ],
        rounds=3,
    ),
    Case(
        "arrays-small", f"{SMALL_READS} reads of 4 KiB, nothing decoded yet, over the library's slices of the same items", small,
        [
            Row(f"{codec} + shuffle, {kind}, at {align}", f"{prefix}/view", f"{prefix}/library", at_most=1.5 if align == "pages" else None)
            for align in ("pages", "items") for codec in CODECS for kind in ("1-D", "across")
            for prefix in [f"arrays-small/{codec}/{kind}/{align}"]
        ],
        rounds=3,
    ),
    Case(
        "arrays-disk", "an array of 512 MiB that compresses well by cat, over the native .npy, from the same cold disk", disk,
        [
            Row("{times} times smaller, disk of {rate} MB/s", "arrays-disk/as-it-is/view", "arrays-disk/as-it-is/native", at_most=1),
            Row(f"the same, disk of {SLOW} MB/s", "arrays-disk/slow/view", "arrays-disk/slow/native", at_most=1),
        ],
        rounds=3,
    ),
    Case(
        "arrays-convert", "256 MiB from .npy and back, until all is on disk, over the library with as many threads", convert,
        [
            Row("convert x.npy x.b2nd", "arrays-convert/b2fuse/in", "arrays-convert/library/in", at_most=1.2),
            Row("convert x.b2nd x.npy", "arrays-convert/b2fuse/out", "arrays-convert/library/out", at_most=1.2),
            Row("size of x.b2nd, MB", "arrays-convert/b2fuse/size", "arrays-convert/library/size", at_most=1.05),
        ],
        rounds=3,
    ),
    Case(
        "arrays-memory", f"the daemon's memory at its peak, with a cache of {CACHE} MiB, while arrays of 256 MiB are read", memory,
        [
            Row("chunks along", "arrays-memory/along/peak", at_most=CACHE + BESIDES, unit="MiB"),
            Row("the same, at random places", "arrays-memory/along/scattered", at_most=CACHE + BESIDES, unit="MiB"),
            Row("bands that fit the cache", "arrays-memory/band/peak", at_most=CACHE + BESIDES, unit="MiB"),
            Row("the same, at random places", "arrays-memory/band/scattered", at_most=CACHE + BESIDES, unit="MiB"),
            Row("a larger band, --spill none", "arrays-memory/large/none/peak", at_most=CACHE + BESIDES, unit="MiB"),
            Row("a larger band, spilled", "arrays-memory/large/disk/peak", at_most=CACHE + BESIDES, unit="MiB"),
            Row("its time, --spill none, over the library", "arrays-memory/large/none/time", "arrays-memory/library"),
            Row("its time, spilled, over the library", "arrays-memory/large/disk/time", "arrays-memory/library"),
        ],
        rounds=1,
    ),
]  # fmt: skip
