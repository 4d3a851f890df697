#!/usr/bin/env python3
"""Cuts the frames of tests/data into seeds for the fuzz targets: make_seeds.py DATA SEEDS, where SEEDS gets a directory for each."""

import io
import struct
import sys
import zipfile
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

# Archives: members and directories, with ZIP64 where it need not be; and a directory alone, behind the number of its members.
for kind, names in {"flat": ["embed.b2e", "a.b2nd"], "deep": ["g/h/a.b2nd", "g/", "g/b.b2f", "embed.b2e"], "none": []}.items():
    for wide in (False, True):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            for name in names:
                with archive.open(zipfile.ZipInfo(name), "w", force_zip64=wide) as member:
                    member.write(b"" if name.endswith("/") else name.encode())
            directory = archive.start_dir
        content = out.getvalue()
        if wide:
            end, size = len(content) - 22, len(content) - 22 - directory
            record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, len(names), len(names), size, directory)
            locator = struct.pack("<4sIQI", b"PK\6\7", 0, end, 1)
            content = content[:end] + record + locator + b"PK\5\6" + bytes(4) + b"\xff" * 12 + bytes(2)
        seed("archive", f"{kind}-{wide}", content)
        seed("archive", f"{kind}-{wide}-directory", bytes([len(names)]) + content[directory : len(content) - 22])

# Types of items, headers of files that have such, and slices of arrays of a shape.
TYPES = ["<f4", ">M8[25s]", "S5", "('<i4', (2, 3))", "[('a', '<i4'), (('t', 'b'), '?', (2,)), ('', 'U3')]", "(numpy.record, [('x', 'u1')])",
         "{'names': ['a', 'b'], 'formats': ['i1', [('\\xe9', '<f8')]], 'offsets': [0, 8], 'titles': [None, 't'], 'itemsize': 24, 'aligned': True}"]
for number, text in enumerate(TYPES):
    seed("dtype", str(number), text.encode())
    text = text if text[0] in "[(" else f"'{text}'"
    content = f"{{'descr': {text}, 'fortran_order': {number % 2 == 1}, 'shape': (3, {number}), }}\n".encode()
    seed("npy", f"{number}-1", b"\x93NUMPY\1\0" + struct.pack("<H", len(content)) + content)
    seed("npy", f"{number}-3", b"\x93NUMPY\3\0" + struct.pack("<I", len(content)) + content)
for number, text in enumerate(["3:10,:,5", "...,::-2", "[-1, 2::7, ...]", "::40,::3,-5:2:-1", "()", "0"]):
    seed("slice", str(number), b"\3\x64\4\2\x20\5\3\x0a\7\7" + text.encode())

# Sessions are short at first; which frame, then operations.
for target in ("sparse", "contiguous"):
    for frame in range(5):
        for step in range(8):
            seed(target, f"{frame}-{step}", bytes([frame]) + bytes((step * 37 + n * (step + 3)) % 256 for n in range(60)))
