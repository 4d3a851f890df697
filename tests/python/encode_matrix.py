"""Holds the encoder against the Blosc2 library, for tests/codec_matrix.rs.

    encode_matrix.py make DIRECTORY [SEED]     writes what is to be encoded, and the library's own chunks of it
    encode_matrix.py check DIRECTORY           decodes with the library what was made of it

DIRECTORY/encode.bin   name, parameters, bytes and the library's chunk (empty where there is none to compare with), each with its
                       length (u32, little endian). Parameters: codec, level, split mode (u8 each), typesize, blocksize (u32 each), six
                       filters, their metadata
DIRECTORY/made.bin     the chunks, in this order, written by the test
"""

import itertools
import pathlib
import random
import struct
import sys

import numpy as np

import libblosc2 as lib
from libblosc2 import BITSHUFFLE, DELTA, SHUFFLE, TRUNC_PREC
from make_codec_matrix import FILTERS, KINDS, TYPESIZES, make

SPLITS = {"always": lib.ALWAYS_SPLIT, "never": lib.NEVER_SPLIT, "auto": lib.AUTO_SPLIT, "compat": lib.FORWARD_COMPAT_SPLIT}
RECORD = "<BBBII6B6B"


def truncated(data, typesize, ids, metas):
    """What the filters that lose something leave of `data`."""
    for id, meta in zip(ids, metas):
        if id == TRUNC_PREC:
            mantissa, word = (23, "<u4") if typesize == 4 else (52, "<u8")
            bits = meta - 256 if meta > 127 else meta
            zeroed = mantissa - bits if bits >= 0 else -bits
            whole = len(data) // typesize * typesize
            items = np.frombuffer(data[:whole], word)
            data = (items & ~np.array((1 << zeroed) - 1, word)).astype(word).tobytes() + data[whole:]
    return data


def expected(chunk, data, typesize, ids, metas):
    """What a chunk of `data` holds; a plain copy is not filtered."""
    return data if chunk[2] & 2 else truncated(data, typesize, ids, metas)


class Cases:
    def __init__(self, directory):
        self.file = open(directory / "encode.bin", "wb")
        self.count = self.lost = 0

    def add(self, name, data, codec, level, typesize, block, split, ids, metas=None):
        metas = metas or [0] * len(ids)
        pad = [0] * (6 - len(ids))
        record = struct.pack(RECORD, lib.CODECS[codec], level, SPLITS[split], typesize, block, *pad, *ids, *pad, *metas)
        # The library writes a wrong blocksize where it is told one above a size that is no multiple of the typesize.
        known, unit = None, typesize if typesize < 256 else 1
        if len(data) >= unit:
            theirs = min(block, len(data) // unit * unit)
            known = lib.compress(data, lib.params(codec, level, typesize, theirs, SPLITS[split], ids, metas))
        if known and lib.decompress(known, len(data)) != expected(known, data, typesize, ids, metas):
            # It has lost something: what delta, truncated precision or a second bitshuffle leave behind the last whole item, or
            # what delta makes of truncated items.
            known, self.lost = None, self.lost + 1
        for field in (name.encode(), record, data, known or b""):
            self.file.write(struct.pack("<I", len(field)) + field)
        self.count += 1


def matrix(cases, rng):
    for codec, filters, typesize, split in itertools.product(lib.CODECS, FILTERS, TYPESIZES, SPLITS):
        if "trunc_prec" in filters and typesize not in (4, 8):
            continue
        block = typesize * max(rng.choice([33, 129, 300] if typesize < 32 else [9, 20, 129]), 200 // typesize)
        sizes = [block - 1, block, block + 1, 2 * block, 3 * block + typesize, 4 * block + typesize // 2 + 1, 7 * block - 1]
        # Too small for anything but a copy.
        sizes += [0, 1, 7, 31, 32, typesize] if split == "never" else []
        for size in sizes:
            level, kind = rng.choices(range(10), [1] + [3] * 9)[0], rng.choices(KINDS, [1, 4, 4, 2, 1, 4])[0]
            ids = FILTERS[filters]
            metas = [rng.choice([*range(1, 20), 250]) if id == TRUNC_PREC else 0 for id in ids]
            name = f"{codec} {filters} typesize {typesize} size {size} block {block} split {split} level {level} {kind}"
            cases.add(name, make(rng, kind, typesize, size), codec, level, typesize, block, split, ids, metas)


def pipelines(cases, rng):
    """Several filters, groups of other sizes, items of more than 255 bytes."""
    for n in range(200):
        typesize = rng.choice([4, 8])
        ids = [rng.choice([0, SHUFFLE, BITSHUFFLE]) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.5:
            ids.insert(0, DELTA)
        if rng.random() < 0.5:
            ids.insert(0, TRUNC_PREC)
        metas = [rng.choice([0, 0, 2, 3, 8, 16]) if id == SHUFFLE else 10 if id == TRUNC_PREC else 0 for id in ids]
        size, codec, split = rng.randrange(32, 4000), rng.choice(list(lib.CODECS)), rng.choice(list(SPLITS))
        data, block = make(rng, rng.choice(KINDS), typesize, size), typesize * rng.choice([40, 100])
        cases.add(f"{codec} pipeline {n} {ids} {metas} typesize {typesize} size {size}", data, codec, 5, typesize, block, split, ids, metas)
    for typesize, codec, split in itertools.product([256, 300, 5000], lib.CODECS, SPLITS):
        data = make(rng, "text", typesize, 7 * typesize + rng.choice([0, 10]))
        cases.add(f"{codec} items of {typesize} {split}", data, codec, 5, typesize, 3 * typesize, split, [SHUFFLE])


def contents():
    """What arrays are like: by name, an array of `n` bytes."""
    rng = np.random.default_rng(7)
    return {
        "i4 ramp": lambda n: np.arange(n // 4, dtype="<i4"),
        "i8 ramp": lambda n: np.arange(n // 8, dtype="<i8"),
        "i4 walk": lambda n: np.cumsum(rng.integers(-9, 10, n // 4)).astype("<i4"),
        "i8 walk": lambda n: np.cumsum(rng.integers(-99, 100, n // 8)).astype("<i8"),
        "i2 noise": lambda n: (1000 + 20 * rng.standard_normal(n // 2)).astype("<i2"),
        "u1 picture": lambda n: (128 + 60 * np.sin(np.arange(n) / 77) + rng.integers(0, 4, n)).astype("u1"),
        "f4 smooth": lambda n: (20 + 5 * np.sin(np.arange(n // 4) / 1000)).astype("<f4"),
        "f8 smooth": lambda n: np.sin(np.arange(n // 8) / 500),
        "f8 rounded": lambda n: np.round(20 + 5 * rng.standard_normal(n // 8), 2),
        "f4 sparse": lambda n: np.where(rng.random(n // 4) < 0.02, rng.random(n // 4), 0).astype("<f4"),
        "f8 noise": lambda n: rng.random(n // 8),
        "i8 stamps": lambda n: 1_600_000_000_000 + np.cumsum(rng.integers(900, 1100, n // 8)),
    }


def large(cases, rng, every):
    """Blocks of the sizes that the library chooses, all levels."""
    filters = {"none": [], "shuffle": [SHUFFLE], "bitshuffle": [BITSHUFFLE], "delta+shuffle": [DELTA, SHUFFLE]}
    for (kind, array), codec, (name, ids), level in itertools.product(contents().items(), lib.CODECS, filters.items(), range(1, 10)):
        slow = codec == "zstd" and level > 7 or codec in ("lz4hc", "zlib") and level > 8
        if rng.random() > (1 if every else 0.01 if slow else 0.06):
            continue
        block = rng.choice([32, 64, 128, 256] if not every else [32, 128, 256, 512, 1024]) << 10
        size = (block * rng.choice([1, 2]) + rng.choice([0, 4096, 20_000])) // 8 * 8
        items = array(size)
        cases.add(f"{codec} {name} large {kind} size {size} block {block} level {level}", items.tobytes(), codec, level,
                  items.dtype.itemsize, block, "compat", ids)


def fields(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def check(directory):
    cases, wrong, count = fields(directory / "encode.bin"), 0, 0
    for chunk in fields(directory / "made.bin"):
        name, record, data, _ = (next(cases) for _ in range(4))
        typesize, filters = struct.unpack_from("<I", record, 3)[0], struct.unpack(RECORD, record)[5:]
        decoded = lib.decompress(chunk, len(data))
        if decoded != expected(chunk, data, typesize, filters[:6], filters[6:]):
            wrong += 1
            print(f"{name.decode()}: the library decodes something else: {decoded if isinstance(decoded, int) else ''}")
        count += 1
    assert next(cases, None) is None
    print(f"{count} decoded")
    sys.exit(wrong > 0)


def main():
    command, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    if command == "check":
        check(directory)
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    cases, rng = Cases(directory), random.Random(seed)
    matrix(cases, rng)
    pipelines(cases, rng)
    large(cases, rng, every=seed > 0)
    cases.file.close()
    print(f"{cases.count} cases, {cases.lost} of which the library cannot decode when it has made them itself")


if __name__ == "__main__":
    main()
