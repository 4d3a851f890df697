"""Decoding against the library: single chunks in memory, of all kinds, with one thread and some with two, and whole frames by `cat` and
`check`.

Single chunks are decoded into a buffer that is used again, in turns, and what is counted is processor time (with two threads, time):
this side is tests/codec_speed.rs. There two threads decode a chunk each, where the library's decode a chunk together. A row of the
table is the chunk with the worst ratio of its codec and filter, and the ordinary one.
"""

import ctypes
import itertools
import os
import statistics
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import blosc2
import numpy as np

import libblosc2 as lib
from mounts import ROOT, default_binary

from .harness import Case, Row, shell

TARGET = 2.0
# Of what the target is for; the others are there for comparison.
PROMISED = [("lz4", "shuffle"), ("zstd", "shuffle")]
FILTERS = {"none": [], "shuffle": [lib.SHUFFLE], "bitshuffle": [lib.BITSHUFFLE]}
# Uncompressed bytes that a measurement goes through.
WORK = 8 << 20


def contents(rng):
    """Kinds of data: name, and a function from a number of bytes to an array whose items have the type's size."""

    def smooth(dtype, scale):
        return lambda n: (np.sin(np.arange(n // np.dtype(dtype).itemsize) / 5000) * scale).astype(dtype)

    def walk(dtype, step):
        return lambda n: np.cumsum(rng.integers(-step, step + 1, n // np.dtype(dtype).itemsize)).astype(dtype)

    def records(size):
        """Records of a counter, some digits and padding."""

        def make(n):
            items = np.zeros((n // size, size), "u1")
            items[:, : min(4, size)] = np.arange(n // size, dtype="<u4").view("u1").reshape(-1, 4)[:, : min(4, size)]
            items[:, -1] = rng.integers(0, 10, n // size)
            return items.view(f"V{size}").ravel()

        return make

    words = np.array([f"{word} " for word in "chunk block frame index of the offset and a trailer in every header".split()], "S")

    def text(n):
        drawn = b"".join(words[rng.integers(0, len(words), n // 3)].tolist())
        return np.frombuffer(drawn[:n], "u1")

    return {
        "text": text,
        "digits": lambda n: rng.integers(0, 4, n).astype("u1"),
        "bytes, smooth": smooth("i1", 100),
        "i2, smooth": smooth("<i2", 30_000),
        "i2, walk": walk("<i2", 3),
        "records of 3": records(3),
        "i4, ramp": lambda n: np.arange(n // 4, dtype="<i4") * 3,
        "i4, walk": walk("<i4", 100),
        "f4, smooth": smooth("<f4", 1e3),
        "f4, rounded": lambda n: np.round(rng.normal(20, 5, n // 4), 1).astype("<f4"),
        "i8, ramp": lambda n: np.arange(n // 8, dtype="<i8") * 1000,
        "i8, walk": walk("<i8", 1000),
        "f8, smooth": smooth("<f8", 1e3),
        "f8, walk": lambda n: np.cumsum(rng.normal(0, 1, n // 8)),
        "records of 12": records(12),
        "c16, smooth": lambda n: smooth("<f8", 1.0)(n).view("<c16"),
        "records of 16": records(16),
        "records of 25": records(25),
        "noise": lambda n: rng.integers(0, 256, n, dtype="u1").view("<i4"),
        "half noise": lambda n: (rng.integers(0, 1 << 16, n // 4).astype("<i4")),
    }


def chunks_of_all_kinds():
    """(codec, filter, what, chunk, its uncompressed size) of each chunk."""
    rng = np.random.default_rng(5)
    kinds = contents(rng)
    full = itertools.product(["lz4", "zstd"], ["shuffle", "none", "bitshuffle"], kinds, [64 << 10, 1 << 20, 8 << 20])
    some = itertools.product(["blosclz", "lz4hc", "zlib"], ["shuffle"], kinds, [1 << 20])
    made = {}
    for codec, filters, kind, size in [*full, *some]:
        if size == 8 << 20 and filters != "shuffle":
            continue
        if (kind, size) not in made:
            made[kind, size] = kinds[kind](size)
        items = made[kind, size]
        splits = {"split": lib.FORWARD_COMPAT_SPLIT}
        if size == 1 << 20 and filters == "shuffle" and codec in ("lz4", "zstd"):
            splits = {"split": lib.ALWAYS_SPLIT, "whole": lib.NEVER_SPLIT}
        for split, mode in splits.items():
            data = items.tobytes()
            params = lib.params(codec, 5, items.dtype.itemsize, 0, mode, FILTERS[filters])
            chunk = lib.compress(data, params)
            yield codec, filters, f"{kind}, {size >> 10} KiB, {split}", chunk, len(data)


class Library:
    """Decompresses with the library as a program in C would: nothing is made anew for each call."""

    def __init__(self):
        self.contexts = {threads: lib._lib.blosc2_create_dctx(lib.DParams(nthreads=threads)) for threads in (1, 2)}
        self.out = ctypes.create_string_buffer(8 << 20)

    def time(self, chunk, nbytes, repeats, threads=1):
        """Seconds, those for calling from Python taken off."""
        context = self.contexts[threads]
        call, args = lib._lib.blosc2_decompress_ctx, (context, chunk, len(chunk), self.out, nbytes)
        if call(*args) != nbytes:
            raise SystemExit("the library does not decode its own chunk")
        return spent(repeats, threads, lambda: call(*args), lambda: call(context, chunk, 0, self.out, nbytes))


def spent(repeats, threads, work, nothing):
    """Seconds for `work`, so often, those for calling from Python taken off: with one thread those that it had a processor."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    began = clock()
    for _ in range(repeats):
        work()
    middle = clock()
    for _ in range(repeats):
        nothing()
    return 2 * middle - began - clock()


class Ours:
    """The other side: a test of tests/codec_speed.rs."""

    def __init__(self, test, cases):
        self.file = tempfile.NamedTemporaryFile(prefix="b2fuse-bench-")
        for case in cases:
            self.file.write(struct.pack("<I", len(case)) + case)
        self.file.flush()
        command = ["cargo", "test", "--quiet", "--locked", "--release", "--test", "codec_speed", "--", "--ignored", "--nocapture", test]
        environment = {**os.environ, "B2FUSE_CASES": self.file.name}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def time(self, n, repeats, threads=1):
        """What the test says of a case."""
        print(n, repeats, threads, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("took "):
                return [float(word) for word in line.split()[1:]]
        raise SystemExit("tests/codec_speed.rs has ended")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def chunks(bench):
    every = list(chunks_of_all_kinds())
    library, ours = Library(), Ours("serve_decoder", [chunk for *_, chunk, _ in every])
    ratios = {}
    for n, (codec, filters, what, chunk, nbytes) in enumerate(every):
        repeats, series = max(1, WORK // nbytes), f"decode/{codec}/{filters}/{what}"
        for _ in bench.rounds:
            bench.add(f"{series}/library", library.time(chunk, nbytes, repeats))
            for name, seconds in zip(("decode", "verify"), ours.time(n, repeats)):
                bench.add(f"{series}/{name}", seconds)
            if (codec, filters) in PROMISED and nbytes == 1 << 20:
                pairs = 1 + repeats // 2
                theirs, (seconds, _) = library.time(chunk, nbytes, 2 * pairs, 2), ours.time(n, pairs, 2)
                bench.add(f"decode/{codec}/{filters}/two threads", seconds / theirs)
        pairs = zip(bench.series[f"{series}/decode"], bench.series[f"{series}/library"])
        ratios.setdefault((codec, filters), []).append((statistics.median(a / b for a, b in pairs), what))
    ours.close()
    for (codec, filters), found in ratios.items():
        ratio, what = max(found)
        bench.add(f"decode/{codec}/{filters}/worst", ratio)
        bench.add(f"decode/{codec}/{filters}/middle", statistics.median(ratio for ratio, _ in found))
        bench.note(f"{codec}, {filters}, worst", what)


FRAME = 96
KINDS = ("i4, ramp", "i4, walk", "f4, smooth", "f4, rounded", "half noise", "noise")


def frames(bench):
    """A frame of chunks of 1 MiB for each codec: read once, so that it is in the machine's caches."""
    b2fuse = default_binary()
    for codec in ("lz4", "zstd"):
        path = bench.data.root / f"decode-{codec}.b2frame"
        if not path.exists():
            kinds = contents(np.random.default_rng(6))
            cparams = {"typesize": 4, "codec": blosc2.Codec[codec.upper()], "clevel": 5, "filters": [blosc2.Filter.SHUFFLE], "nthreads": 1}
            frame = blosc2.SChunk(chunksize=1 << 20, urlpath=f"{path}.new", mode="w", cparams=cparams)
            for n in range(FRAME):
                frame.append_data(kinds[KINDS[n % len(KINDS)]](1 << 20))
            del frame
            os.rename(f"{path}.new", path)
        buffer = bytearray(1 << 20)

        def library():
            frame = blosc2.open(str(path), mode="r", dparams={"nthreads": 1})
            for n in range(FRAME):
                frame.decompress_chunk(n, dst=buffer)

        library()
        for _ in bench.rounds:
            bench.time(f"decode/frame/{codec}/library", library)
            bench.time(f"decode/frame/{codec}/cat", lambda: shell(f"'{b2fuse}' cat '{path}' 0- >/dev/null"))
            bench.time(f"decode/frame/{codec}/check", lambda: shell(f"'{b2fuse}' check --deep --threads 1 '{path}' >/dev/null"))


def decode(bench):
    frames(bench)
    chunks(bench)


def rows():
    for codec in ("lz4", "zstd"):
        for command in ("cat", "check"):
            against = f"decode/frame/{codec}/library"
            yield Row(f"{command} a frame, {codec}, shuffle", f"decode/frame/{codec}/{command}", against, at_most=TARGET)
    for codec, filters in [*itertools.product(("lz4", "zstd"), FILTERS), *((codec, "shuffle") for codec in ("blosclz", "lz4hc", "zlib"))]:
        target = TARGET if (codec, filters) in PROMISED else None
        yield Row(f"chunk, {codec}, {filters}, worst", f"decode/{codec}/{filters}/worst", at_most=target, unit="times")
        yield Row(f"chunk, {codec}, {filters}, ordinary", f"decode/{codec}/{filters}/middle", unit="times")
    for codec, filters in PROMISED:
        yield Row(f"chunk, {codec}, {filters}, two threads", f"decode/{codec}/{filters}/two threads", unit="times")


CASES = [Case("decode", "chunks decoded, against the library with one thread", decode, list(rows()))]
