"""Prints shapes of arrays and how python-blosc2 cuts them, for tests/partition.rs: one line each.

    make_partitions.py [COUNT]

A line: bytes of the three caches, of an item, the shape, the chunks that are asked for or -, the chunks and the blocks that are taken.
"""

import platform
import random
import sys

import blosc2
import numpy as np

rng = random.Random(4)
SIZES = [1, 2, 3, 5, 7, 10, 64, 97, 100, 256, 1000, 1024, 1999, 4096, 10_000, 99_991, 100_001, 1_000_000, 1_234_567, 10**8]
# What else it goes by.
assert platform.system() == "Linux"


def line(sizes):
    return ",".join(map(str, sizes)) or "."


for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2000):
    caches = rng.choice([32, 48, 64]) << 10, rng.choice([256, 512, 1024, 1280, 2048, 4096]) << 10, rng.choice([0, 1, 8, 32, 36, 256]) << 20
    blosc2.cpu_info.update(zip(("l1_data_cache_size", "l2_cache_size", "l3_cache_size"), caches))
    item = rng.choice([1, 2, 3, 4, 8, 8, 16, 100, 255, 3000, 1_000_000])
    shape = [rng.choice(SIZES) if rng.random() < 0.7 else rng.randint(1, 3000) for _ in range(rng.randrange(9))]
    while np.prod(shape, dtype=float) * item > 1e17:
        shape.pop()
    chunks = [rng.randint(1, max(2, min(size, 500))) for size in shape] if shape and rng.random() < 0.3 else None
    if chunks and np.prod(chunks, dtype=float) * item > 2**30:
        chunks = None
    taken = blosc2.compute_chunks_blocks(shape, chunks, None, np.dtype(f"V{item}"))
    print(*caches, item, line(shape), line(chunks) if chunks else "-", *map(line, taken))
