"""Opens each frame whose path comes on standard input and says what the library finds in it.

One line each: the number of vlmetalayers, and for every chunk the CRC of its bytes as stored, or its special value's code; or what
goes wrong.
"""

import sys
import zlib

import blosc2


def describe(path):
    schunk = blosc2.open(path, mode="r")
    schunk = getattr(schunk, "schunk", schunk)
    words = [str(len(schunk.vlmeta.getall()))]
    for position in range(schunk.nchunks):
        chunk = schunk.get_chunk(position)
        special = (chunk[31] >> 4) & 7
        stored = special in (0, 3)
        schunk.decompress_chunk(position)
        words.append(f"{zlib.crc32(chunk):08x}" if stored else f"special-{special}")
    return " ".join(words)


for line in sys.stdin:
    try:
        words = describe(line.rstrip("\n"))
    except Exception as error:
        words = f"error: {error!r}"
    print(words, flush=True)
