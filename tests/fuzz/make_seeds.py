#!/usr/bin/env python3
"""Cuts the frames of tests/data into seeds for the fuzz targets: make_seeds.py DATA SEEDS, where SEEDS gets a directory for each."""

import struct
import sys
from pathlib import Path

data, seeds = Path(sys.argv[1]), Path(sys.argv[2])


def seed(target, name, content):
    directory = seeds / target
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_bytes(content)


def chunk_at(frame, at):
    return frame[at : at + struct.unpack_from("<i", frame, at + 12)[0]]


def parts(frame, name, sparse):
    header_len, frame_len = struct.unpack_from(">i", frame, 11)[0], struct.unpack_from(">Q", frame, 16)[0]
    nbytes, cbytes = struct.unpack_from(">qxq", frame, 30)
    trailer_len = struct.unpack_from(">I", frame, frame_len - 22)[0]
    chunks_len = 0 if sparse or nbytes == 0 else cbytes
    at, trailer_at = header_len + chunks_len, frame_len - trailer_len
    seed("metadata", f"{name}-header", frame[:header_len])
    seed("metadata", f"{name}-trailer", frame[trailer_at:])
    if trailer_at > at:
        seed("index", name, frame[at:trailer_at])
    # A vlmetalayer's content, and every chunk that follows another from the header on.
    at = header_len
    while not sparse and at + 32 <= header_len + chunks_len:
        chunk = chunk_at(frame, at)
        if len(chunk) < 32:
            break
        seed("chunk", f"{name}-{at}", chunk)
        at += len(chunk)


for path in sorted((data / "cframe").iterdir()):
    frame = path.read_bytes()
    parts(frame, path.name, False)
    seed("frame", f"cframe-{path.name}", frame)
    for target in ("store", "examine"):
        seed(target, f"cframe-{path.name}", b"\0" + frame)

for path in sorted((data / "sframe").iterdir()):
    frame = (path / "chunks.b2frame").read_bytes()
    parts(frame, f"sframe-{path.name}", True)
    seed("frame", f"sframe-{path.name}", frame)
    seed("index_file", path.name, frame)
    count = len(list(path.glob("*.chunk")))
    for target in ("store", "examine"):
        seed(target, f"sframe-{path.name}", bytes([1 | min(count, 7) << 1]) + frame)
    for chunk in path.glob("*.chunk"):
        seed("chunk", f"{path.name}-{chunk.name}", chunk.read_bytes())

# A record of times, without its checksum: two runs.
IDENTITY = struct.pack("<QQQqIIqQ", 1, 2, 3, 4, 5, 6, 7, 8)
RUNS = struct.pack("<IIqIIq", 3, 0, 1000, 5, 999_999_999, -1)
seed("times", "two-runs", b"b2times\0" + struct.pack("<II", 1, 2) + IDENTITY + struct.pack("<Q", 5) + RUNS)

# Sessions are short at first; which frame, then operations.
for target in ("sparse", "contiguous"):
    for frame in range(5):
        for step in range(8):
            seed(target, f"{frame}-{step}", bytes([frame]) + bytes((step * 37 + n * (step + 3)) % 256 for n in range(60)))
