"""Writes chunks made by the Blosc2 library, and what the library reads from them, for tests/codec_matrix.rs.

    make_codec_matrix.py DIRECTORY [SEED]

DIRECTORY/data.bin    contents: each a length (u32, little endian) and its bytes
DIRECTORY/cases.bin   chunks: name, chunk and key, each with its length; the key is the number of the content in data.bin
                      (u32), or empty where the library refuses to read the chunk

Every combination of codec, filters, typesize, size and split mode is there; level and kind of data are drawn for each, always
the same ones unless another seed is given. Expected is what the library decodes, not what went in.
"""

import collections
import itertools
import pathlib
import random
import struct
import sys

import libblosc2 as lib
from libblosc2 import BITSHUFFLE, DELTA, NOFILTER, SHUFFLE, TRUNC_PREC

TYPESIZES = [1, 2, 3, 4, 7, 8, 12, 16, 17, 32, 255]
FILTERS = {
    "none": [],
    "shuffle": [SHUFFLE],
    "bitshuffle": [BITSHUFFLE],
    "delta": [DELTA],
    "delta+shuffle": [DELTA, SHUFFLE],
    "delta+bitshuffle": [DELTA, BITSHUFFLE],
    "trunc_prec": [TRUNC_PREC],
    "trunc_prec+shuffle": [TRUNC_PREC, SHUFFLE],
}
SPLITS = {"always": lib.ALWAYS_SPLIT, "never": lib.NEVER_SPLIT, "auto": lib.FORWARD_COMPAT_SPLIT}
KINDS = ["random", "ramp", "runs", "constant", "zeros", "text"]


class Output:
    def __init__(self, directory):
        self.data = open(directory / "data.bin", "wb")
        self.cases = open(directory / "cases.bin", "wb")
        self.known = {}
        self.count, self.refused, self.kinds = 0, 0, collections.Counter()

    def content(self, data):
        """The number of a content, which is stored once."""
        if data not in self.known:
            self.known[data] = len(self.known)
            self.data.write(struct.pack("<I", len(data)) + data)
        return self.known[data]

    def kind(self, chunk):
        """How a chunk is stored."""
        if len(chunk) > 31 and chunk[2] & 5 == 5 and chunk[31] >> 4 & 7:
            return "special"
        return "copied" if chunk[2] & 2 else "whole blocks" if chunk[2] & 16 else "split blocks"

    def case(self, name, chunk, nbytes, expected=None):
        """Stores a chunk; `expected` stands in for the library's answer where that is not to be trusted."""
        if chunk is None:
            return
        if expected is None:
            expected = lib.decompress(chunk, nbytes)
        if isinstance(expected, bytes) and len(expected) == nbytes:
            key = struct.pack("<I", self.content(expected))
        else:
            key = b""
            self.refused += 1
        for field in (name.encode(), chunk, key):
            self.cases.write(struct.pack("<I", len(field)) + field)
        self.count += 1
        self.kinds[self.kind(chunk)] += 1


def make(rng, kind, typesize, size):
    """`size` bytes that look like items of `typesize`."""
    if kind == "random":
        return rng.randbytes(size)
    if kind == "zeros":
        return bytes(size)
    items = -(-size // typesize)
    if kind == "constant":
        return (rng.randbytes(typesize) * items)[:size]
    if kind == "ramp":
        start, step = rng.randrange(1000), rng.choice([1, 3, 256, 1000])
        mask = (1 << (8 * typesize)) - 1
        return b"".join(((start + i * step) & mask).to_bytes(typesize, "little") for i in range(items))[:size]
    if kind == "text":
        words = [b"chunk ", b"block ", b"frame ", b"index ", b"offset\n"]
        return b"".join(rng.choice(words) for _ in range(size // 6 + 1))[:size]
    out = bytearray()
    while len(out) < size:
        run = rng.randrange(1, 200)
        out += bytes(run) if rng.random() < 0.5 else bytes([rng.randrange(256)]) * run if rng.random() < 0.5 else rng.randbytes(run)
    return bytes(out[:size])


def matrix(out, rng):
    for codec, filters, typesize, split in itertools.product(lib.CODECS, FILTERS, TYPESIZES, SPLITS):
        if "trunc_prec" in filters and typesize not in (4, 8):
            continue
        block = typesize * max(rng.choice([33, 129, 300] if typesize < 32 else [9, 20, 129]), 200 // typesize)
        sizes = [block - 1, block, block + 1, 2 * block, 3 * block + typesize, 4 * block + typesize // 2 + 1, 7 * block - 1]
        # Too small for anything but a copy.
        sizes += [0, 1, 7, typesize] if split == "never" else []
        for size in sizes:
            level, kind = rng.choices(range(10), [1] + [3] * 9)[0], rng.choices(KINDS, [1, 4, 4, 2, 1, 4])[0]
            data = make(rng, kind, typesize, size)
            ids = FILTERS[filters]
            metas = [rng.randrange(1, 20) if id == TRUNC_PREC else 0 for id in ids]
            # The library writes a wrong blocksize where it is told one above a size that is no multiple of the typesize.
            blocksize = block if size >= block or rng.random() < 0.2 else 0
            params = lib.params(codec, level, typesize, blocksize, SPLITS[split], ids, metas)
            name = f"{codec} {filters} typesize {typesize} size {size} block {blocksize} split {split} level {level} {kind}"
            out.case(name, lib.compress(data, params), size)


def large(out, rng):
    """Block sizes that the library chooses."""
    for codec, filters, typesize in itertools.product(lib.CODECS, ["shuffle", "bitshuffle", "delta+shuffle"], [1, 4, 8, 16, 12]):
        size, level, kind = rng.randrange(200_000, 700_000), rng.randrange(1, 10), rng.choice(["ramp", "runs", "text"])
        data = make(rng, kind, typesize, size)
        name = f"large {codec} {filters} typesize {typesize} size {size} level {level} {kind}"
        out.case(name, lib.compress(data, lib.params(codec, level, typesize, filters=FILTERS[filters])), size)


def pipelines(out, rng):
    """Up to six filters, and shuffle with a group size of its own."""
    for n in range(300):
        typesize = rng.choice([4, 8])
        ids = [rng.choice([NOFILTER, SHUFFLE, BITSHUFFLE, TRUNC_PREC]) for _ in range(rng.randrange(1, 7))]
        if rng.random() < 0.5:
            # A second delta, or another filter before it, is more than the library itself can undo.
            ids[0] = DELTA
        metas = [rng.choice([0, 0, 2, 3, 8, 16]) if id == SHUFFLE else 10 if id == TRUNC_PREC else 0 for id in ids]
        size, codec = rng.randrange(32, 4000), rng.choice(list(lib.CODECS))
        data = make(rng, rng.choice(KINDS), typesize, size)
        params = lib.params(codec, 5, typesize, typesize * rng.choice([40, 100]), rng.choice(list(SPLITS.values())), ids, metas)
        out.case(f"pipeline {n} {ids} {metas} typesize {typesize} {codec} size {size}", lib.compress(data, params), size)


def dictionaries(out, rng):
    for codec, split, filters, level in itertools.product(["zstd", "lz4", "lz4hc"], SPLITS, ["none", "shuffle"], [1, 5, 9]):
        size = rng.randrange(40_000, 90_000)
        data = make(rng, "text", 4, size)
        params = lib.params(codec, level, 4, 4096, SPLITS[split], FILTERS[filters], use_dict=1)
        chunk = lib.compress(data, params)
        if not chunk or not chunk[31] & 1:
            continue
        out.case(f"dictionary {codec} split {split} {filters} level {level} size {size}", chunk, size)


def vl_blocks(out, rng):
    for codec, filters, use_dict in itertools.product(lib.CODECS, FILTERS, [0, 1]):
        if use_dict and codec in ("blosclz", "zlib"):
            continue
        for n in range(3):
            typesize = rng.choice([4, 8]) if "trunc" in filters else rng.choice(TYPESIZES)
            # Delta on a part of an item loses it in the library.
            unit = typesize if "delta" in filters else 1
            sizes = [unit * rng.choice([1, 5, 64, 1000, 3000]) for _ in range(rng.choice([1, 2, 9, 40]))]
            blocks = [make(rng, rng.choice(KINDS), typesize, size) for size in sizes]
            ids = FILTERS[filters]
            metas = [0] * len(ids)
            if "trunc" in filters:
                metas[0] = 10
            params = lib.params(codec, rng.randrange(1, 10), typesize, filters=ids, metas=metas, use_dict=use_dict)
            chunk = lib.vlcompress(blocks, params)
            # The library compares VL-blocks with themselves when it applies delta, and with the first block when it undoes it
            # for a whole chunk: there what went in is the truth.
            expected = b"".join(blocks) if "delta" in filters else None
            out.case(f"vl-blocks {codec} {filters} typesize {typesize} dict {use_dict} {sizes}", chunk, sum(sizes), expected)


def blosc1(out, rng):
    for codec, shuffle, typesize, split, delta in itertools.product(lib.CODECS, [0, 1, 2], TYPESIZES, SPLITS, [False, True]):
        size, level, kind = rng.choice([1, 31, 500, 5000, 40_000, typesize * 3000]), rng.randrange(10), rng.choice(KINDS)
        data = make(rng, kind, typesize, size)
        chunk = lib.compress_blosc1(data, level, shuffle, typesize, codec, SPLITS[split], delta)
        name = f"blosc1 {codec} shuffle {shuffle} typesize {typesize} split {split} delta {delta} {kind} {size}"
        out.case(name, chunk, size)
        if shuffle == 2 and chunk and size % typesize == 0:
            # In version 2, bitshuffle left alone the blocks whose number of items is no multiple of 8 (and lost parts of items).
            out.case(f"{name} version 2", b"\2" + chunk[1:], size)


def specials(out, rng):
    for typesize, items, block in itertools.product([*TYPESIZES, 300, 5000], [0, 1, 3, 100, 3000], [0, 512, 1000]):
        size = typesize * items
        for name in ["zeros", "nans", "repeatval"]:
            value = rng.randbytes(typesize) if name == "repeatval" else b""
            chunk = lib.special(name, lib.params(typesize=typesize, blocksize=block), size, value)
            out.case(f"special {name} typesize {typesize} items {items} block {block}", chunk, size)
        chunk = lib.special("uninit", lib.params(typesize=typesize, blocksize=block), size)
        out.case(f"special uninit typesize {typesize} items {items} block {block}", chunk, size, bytes(size))


def instrumented(out, rng):
    """Chunks of measurements instead of data: the library returns them as they are."""
    for codec, split in itertools.product(lib.CODECS, SPLITS):
        data = make(rng, "ramp", 8, 20_000)
        chunk = lib.compress(data, lib.params(codec, 5, 8, 4000, SPLITS[split], [SHUFFLE], instr=True))
        if chunk:
            out.case(f"instrumented {codec} split {split}", chunk, struct.unpack_from("<i", chunk, 4)[0])


def mutants(out, rng):
    """Headers and block starts with bytes that do not belong there: refused here exactly where the library refuses them.

    Left out is what differs on purpose: negative sizes and LZ4 matches at distance 0, which the library takes, its own plugins,
    and what crashes it (VL-blocks in an empty chunk).
    """
    chunks = []
    for codec, filters, typesize, split in itertools.product(lib.CODECS, ["none", "shuffle", "bitshuffle"], [1, 4, 12], SPLITS):
        size, block = rng.choice([0, 24, 500, 1500, 3000, 3000]), rng.choice([0, typesize * 100])
        params = lib.params(codec, rng.randrange(1, 10), typesize, block, SPLITS[split], FILTERS[filters])
        chunks.append(lib.compress(make(rng, rng.choice(["ramp", "runs", "text"]), typesize, size), params))
    for codec in lib.CODECS:
        blocks = [make(rng, "text", 1, size) for size in (50, 100, 7)]
        chunks.append(lib.vlcompress(blocks, lib.params(codec, 5, 1, filters=[SHUFFLE])))
        chunks.append(lib.compress_blosc1(make(rng, "runs", 4, 500), 5, 1, 4, codec))
    chunks += [lib.compress(make(rng, "text", 4, 9000), lib.params("zstd", 5, 4, 1024, use_dict=1))]
    for typesize, name in itertools.product([3, 4, 8], ["zeros", "nans", "uninit", "repeatval"]):
        value = rng.randbytes(typesize) if name == "repeatval" else b""
        chunks.append(lib.special(name, lib.params(typesize=typesize, blocksize=typesize * 10), typesize * 50, value))
    fields = [*range(16), 16, 20, 21, 22, 24, 29, 30, 31, 31, 2, *range(32, 44)]
    for n in range(8000):
        chunk = bytearray(rng.choice(chunks))
        for _ in range(rng.choice([1, 1, 2])):
            at = rng.choice(fields)
            if at in (4, 8, 12) and rng.random() < 0.7:
                value = struct.unpack_from("<i", chunk, at)[0]
                value = rng.choice([0, 1, value - 1, value + 1, value * 2, value // 2, 16, 32, len(chunk), len(chunk) - 32])
                struct.pack_into("<I", chunk, at, value & 0x7FFFFFFF)
            elif at < len(chunk):
                chunk[at] = rng.choice([0, 1, rng.randrange(256), chunk[at] ^ 1 << rng.randrange(8)])
        version, flags, nbytes, cbytes = chunk[0], chunk[2], *struct.unpack_from("<i4xi", chunk, 4)
        vl_blocks = len(chunk) > 30 and chunk[30] & 1
        if not (0 <= nbytes <= 200_000 and 16 <= cbytes <= len(chunk) + 1000) or flags >> 5 == 1 or (vl_blocks and nbytes == 0):
            continue
        if len(chunk) > 31 and chunk[31] & 8 or (vl_blocks and DELTA in chunk[16:22]):
            continue
        if any(32 <= id < 40 for id in chunk[16:22]):
            continue
        chunk = bytes(chunk[:cbytes]) + bytes(max(0, cbytes - len(chunk)))
        expected = bytes(nbytes) if len(chunk) > 31 and chunk[2] & 5 == 5 and chunk[31] >> 4 & 7 == 4 else None
        if expected is not None and not isinstance(lib.decompress(chunk, nbytes), bytes):
            expected = lib.REFUSED
        out.case(f"mutant version {version} {n}: {chunk[:40].hex()}", chunk, nbytes, expected)


def main():
    directory, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    directory.mkdir(parents=True, exist_ok=True)
    out, rng = Output(directory), random.Random(seed)
    for part in (matrix, large, pipelines, dictionaries, vl_blocks, blosc1, specials, instrumented, mutants):
        part(out, rng)
    out.data.close()
    out.cases.close()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(out.kinds.items()))
    print(f"{kinds}; {out.refused} refused by the library, {len(out.known)} contents")


if __name__ == "__main__":
    main()
