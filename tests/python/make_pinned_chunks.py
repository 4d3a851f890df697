"""Writes src/format/chunk/pinned.txt: small chunks made by the Blosc2 library, one of each kind, for the unit tests.

    make_pinned_chunks.py > src/format/chunk/pinned.txt

A line is: name, kind of data, typesize, nbytes, chunk in hexadecimal. Kinds: ramp (item i is 3 i, its highest byte 0x40 more),
zeros, nan, value (the bytes 1, 2, 3, … in each item).
"""

import struct

import libblosc2 as lib
from libblosc2 import BITSHUFFLE, DELTA, SHUFFLE, TRUNC_PREC


def data(kind, typesize, items):
    if kind == "ramp":
        top = 0x40 << 8 * (typesize - 1) if typesize > 1 else 0
        mask = (1 << 8 * typesize) - 1
        return b"".join((top + 3 * i & mask).to_bytes(typesize, "little") for i in range(items))
    if kind == "nan":
        return struct.pack("<f" if typesize == 4 else "<d", float("nan")) * items
    return bytes(range(1, typesize + 1)) * items if kind == "value" else bytes(typesize * items)


def line(name, kind, typesize, items, chunk):
    content = data(kind, typesize, items)
    read = lib.decompress(chunk, len(content))
    assert read == content or "uninit" in name, (name, read)
    print(name, kind, typesize, len(content), chunk.hex())


def main():
    filters = {"none": [], "shuffle": [SHUFFLE], "bitshuffle": [BITSHUFFLE], "delta+shuffle": [DELTA, SHUFFLE]}
    for codec in lib.CODECS:
        for name, ids in filters.items():
            split = lib.ALWAYS_SPLIT if name in ("shuffle", "none") else lib.NEVER_SPLIT
            chunk = lib.compress(data("ramp", 4, 490), lib.params(codec, 5, 4, 800, split, ids))
            line(f"{codec}-{name}", "ramp", 4, 490, chunk)
        line(f"{codec}-blosc1", "ramp", 4, 300, lib.compress_blosc1(data("ramp", 4, 300), 5, 1, 4, codec))
        blocks = [data("ramp", 8, 90)[at : at + 240] for at in (0, 240, 480)]
        line(f"{codec}-vl-blocks", "ramp", 8, 90, lib.vlcompress(blocks, lib.params(codec, 5, 8, filters=[SHUFFLE])))
    for codec in ("zstd", "lz4"):
        chunk = lib.compress(data("ramp", 4, 1500), lib.params(codec, 9, 4, 1200, lib.NEVER_SPLIT, [SHUFFLE], use_dict=1))
        assert chunk[31] & 1
        line(f"{codec}-dictionary", "ramp", 4, 1500, chunk)
    for typesize in (2, 3, 12, 16):
        line(f"typesize-{typesize}", "ramp", typesize, 200, lib.compress(data("ramp", typesize, 200), lib.params(
            "lz4", 5, typesize, filters=[SHUFFLE])))
    ids = [TRUNC_PREC, DELTA, BITSHUFFLE, SHUFFLE]
    chunk = lib.compress(data("ramp", 4, 200), lib.params("lz4", 5, 4, filters=ids, metas=[23, 0, 0, 2]))
    line("pipeline", "ramp", 4, 200, chunk)
    line("copy", "ramp", 4, 20, lib.compress(data("ramp", 4, 20), lib.params(clevel=0, typesize=4)))
    line("empty", "ramp", 4, 0, lib.compress(b"", lib.params(typesize=4)))
    for name, kind in [("zeros", "zeros"), ("nans", "nan"), ("uninit", "zeros"), ("repeatval", "value")]:
        value = data("value", 8, 1) if name == "repeatval" else b""
        line(name, kind, 8, 100, lib.special(name, lib.params(typesize=8, blocksize=160), 800, value))


if __name__ == "__main__":
    main()
