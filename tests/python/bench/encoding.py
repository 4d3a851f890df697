"""Encoding against the library: single chunks in memory, of all kinds, with one thread and with two.

As in decoding.py, whose kinds of data these are. Two threads of ours encode a chunk each, the library's encode a chunk together.
"""

import ctypes
import itertools
import statistics
import struct

import numpy as np

import libblosc2 as lib
from encode_matrix import RECORD

from .decoding import Ours, contents, spent
from .harness import Case, Row

TARGET = 1.2
FILTERS = {"none": [], "shuffle": [lib.SHUFFLE], "bitshuffle": [lib.BITSHUFFLE]}
# Of what the target is for: items of 4 and of 8 bytes; others are there for comparison.
PROMISED = [("lz4", "shuffle"), ("zstd", "shuffle"), ("blosclz", "shuffle")]
OTHERS = [("lz4", "bitshuffle"), ("zstd", "bitshuffle"), ("lz4", "none"), ("lz4hc", "shuffle"), ("zlib", "shuffle")]
# Bytes that a measurement goes through, for each codec.
WORK = {"lz4": 16 << 20, "blosclz": 16 << 20}
SIZE = 1 << 20


class Library:
    """Compresses with the library as a program in C would: nothing is made anew for each call."""

    def __init__(self):
        self.out = ctypes.create_string_buffer(SIZE + lib.OVERHEAD)

    def time(self, data, params, repeats, threads=1):
        """Seconds, and the size of the chunk."""
        context = lib._lib.blosc2_create_cctx(lib.params(*params, nthreads=threads))
        call, args = lib._lib.blosc2_compress_ctx, (context, data, len(data), self.out, len(self.out))
        size = call(*args)
        # Refused before anything is done: room for less than a header.
        seconds = spent(repeats, threads, lambda: call(*args), lambda: call(context, data, len(data), self.out, 1))
        lib._lib.blosc2_free_ctx(context)
        return seconds, size


def encode(bench):
    kinds = {name: make(SIZE) for name, make in contents(np.random.default_rng(5)).items()}
    every = list(itertools.product([*PROMISED, *OTHERS], kinds.items()))
    cases, fields = [], []
    for (codec, filters), (kind, items) in every:
        data, typesize, block = items.tobytes(), items.dtype.itemsize, 256 << 10
        data, block = data[: len(data) // typesize * typesize], block // typesize * typesize
        ids = FILTERS[filters]
        cases.append((data, (codec, 5, typesize, block, lib.FORWARD_COMPAT_SPLIT, ids)))
        pad = [0] * (6 - len(ids))
        fields += [struct.pack(RECORD, lib.CODECS[codec], 5, lib.FORWARD_COMPAT_SPLIT, typesize, block, *pad, *ids, *[0] * 6), data]
    library, ours = Library(), Ours("serve_encoder", fields)
    ratios, doubled = {}, {}
    for n, (((codec, filters), (kind, items)), (data, params)) in enumerate(zip(every, cases)):
        repeats, series = max(1, WORK.get(codec, 4 << 20) // SIZE), f"encode/{codec}/{filters}/{kind}"
        promised = (codec, filters) in PROMISED and items.dtype.itemsize in (4, 8)
        for _ in bench.rounds:
            theirs, size = library.time(data, params, repeats)
            seconds, made = ours.time(n, repeats)
            bench.add(f"{series}/library", theirs)
            bench.add(f"{series}/encode", seconds)
            bench.add(f"{series}/size", made / size)
            if promised:
                theirs, _ = library.time(data, params, 2 * repeats, 2)
                doubled.setdefault((codec, filters), []).append(ours.time(n, repeats, 2)[0] / theirs)
        pairs = zip(bench.series[f"{series}/encode"], bench.series[f"{series}/library"])
        found = statistics.median(a / b for a, b in pairs)
        if promised or (codec, filters) not in PROMISED:
            ratios.setdefault((codec, filters), []).append((found, kind))
        bench.add(f"encode/{codec}/{filters}/sizes", bench.series[f"{series}/size"][0])
    ours.close()
    for (codec, filters), found in ratios.items():
        ratio, kind = max(found)
        bench.add(f"encode/{codec}/{filters}/worst", ratio)
        bench.add(f"encode/{codec}/{filters}/middle", statistics.median(ratio for ratio, _ in found))
        bench.note(f"encoding, {codec}, {filters}, worst", kind)
    for (codec, filters), found in doubled.items():
        bench.add(f"encode/{codec}/{filters}/two threads", statistics.median(found))


def rows():
    for codec, filters in [*PROMISED, *OTHERS]:
        promised = (codec, filters) in PROMISED
        what, series = f"encode, {codec}, {filters}", f"encode/{codec}/{filters}"
        yield Row(f"{what}, worst", f"{series}/worst", unit="times")
        yield Row(f"{what}, ordinary", f"{series}/middle", at_most=TARGET if promised else None, unit="times")
        if promised:
            yield Row(f"{what}, two threads", f"{series}/two threads", at_most=TARGET, unit="times")
        yield Row(f"{what}, size", f"{series}/sizes", at_most=1.05, unit="times")


CASES = [Case("encode", "chunks encoded, against the library", encode, list(rows()), rounds=3)]
