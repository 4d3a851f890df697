"""Has the Blosc2 library read the index chunks that tests/codec_matrix.rs wrote.

    check_index_chunks.py DIRECTORY

DIRECTORY/indexes.bin holds, each with its length (u32, little endian), the items of an index and the chunk made of them. The
answer is one line: how many there were, how many are the very bytes that the library makes, and both totals in bytes.
"""

import pathlib
import struct
import sys

import libblosc2 as lib


def fields(data):
    at = 0
    while at < len(data):
        size = struct.unpack_from("<I", data, at)[0]
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def main():
    data = list(fields((pathlib.Path(sys.argv[1]) / "indexes.bin").read_bytes()))
    # As the library writes the index of a frame.
    params = lib.params("blosclz", 5, 8, 16 * 1024, lib.NEVER_SPLIT, [lib.SHUFFLE])
    same = ours = theirs = 0
    for items, chunk in zip(data[::2], data[1::2]):
        read = lib.decompress(chunk, len(items))
        if read != items:
            what = read if isinstance(read, int) else "other bytes"
            raise SystemExit(f"an index of {len(items)} bytes: found {what}, expected the items ({chunk[:40].hex()})")
        made = lib.compress(items, params)
        same, ours, theirs = same + (made == chunk), ours + len(chunk), theirs + len(made)
    print(len(data) // 2, same, ours, theirs)


if __name__ == "__main__":
    main()
