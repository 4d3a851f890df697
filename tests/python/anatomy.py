"""Frames taken apart byte by byte, where what the library lets one read is not enough: places, holes, what was written anew."""

import sys
from pathlib import Path

import blosc2
import numpy as np


def field(data, at, nbytes):
    return int.from_bytes(data[at : at + nbytes], "big", signed=True)


def header_cbytes(path):
    """cbytes in the header of a frame of any layout."""
    path = Path(path)
    with open(path / "chunks.b2frame" if path.is_dir() else path, "rb") as file:
        return field(file.read(47), 39, 8)


class Cframe:
    """The parts of a contiguous frame's bytes. Asserts what every cframe must be."""

    def __init__(self, data):
        self.data = bytes(data)
        assert data[2:9] == b"b2frame", "no frame"
        assert data[26] == 0, f"frame type {data[26]}, expected 0"
        self.header_len, self.frame_len = field(data, 11, 4), field(data, 16, 8)
        assert self.frame_len == len(data), f"frame_len {self.frame_len} of {len(data)} bytes"
        self.trailer_at = self.frame_len - field(data, self.frame_len - 22, 4)
        if field(data, 30, 8) == 0:
            # Whatever cbytes says: the library leaves it when the last chunk goes.
            self.index_at, self.entries = self.header_len, []
            assert self.trailer_at == self.header_len, f"{self.trailer_at - self.header_len} bytes of index in an empty frame"
            return
        self.index_at = self.header_len + field(data, 39, 8)
        assert self.header_len <= self.index_at < self.trailer_at, (self.header_len, self.index_at, self.trailer_at)
        self.entries = np.frombuffer(blosc2.decompress2(data[self.index_at : self.trailer_at]), "<i8").tolist()

    @classmethod
    def read(cls, path):
        return cls(Path(path).read_bytes())

    def chunk(self, entry):
        """(from, to) of a stored chunk in the file."""
        at = self.header_len + entry
        return at, at + int.from_bytes(self.data[at + 12 : at + 16], "little")

    @property
    def stored(self):
        return [self.chunk(entry) for entry in self.entries if entry >= 0]

    def live(self):
        """The bytes, with zeros for the holes."""
        live = bytearray(len(self.data))
        parts = [(0, self.header_len), (self.index_at, len(self.data)), *self.stored]
        for start, end in parts:
            live[start:end] = self.data[start:end]
        return bytes(live)

    def parts(self):
        """All but the places: header without its lengths, trailer, and each chunk's bytes or its special entry."""
        header = self.data[:16] + self.data[24:39] + self.data[47 : self.header_len]
        chunks = [entry if entry < 0 else self.data[slice(*self.chunk(entry))] for entry in self.entries]
        return header, self.data[self.trailer_at :], chunks

    def check_canonical(self):
        """The chunks follow each other in index order, without holes, from the header to the index."""
        at = self.header_len
        for start, end in self.stored:
            assert start == at, f"a chunk at {start}, expected at {at}"
            at = end
        assert at == self.index_at, f"the index is at {self.index_at}, expected at {at}"


class Sframe:
    """The parts of a sparse frame's directory, to be compared with those of a cframe."""

    def __init__(self, directory):
        self.directory = Path(directory)
        data = self.data = (self.directory / "chunks.b2frame").read_bytes()
        assert data[26] == 1, f"frame type {data[26]}, expected 1"
        self.header_len, trailer_at = field(data, 11, 4), len(data) - field(data, len(data) - 22, 4)
        index = data[self.header_len : trailer_at]
        self.entries = np.frombuffer(blosc2.decompress2(index), "<i8").tolist() if index else []
        self.trailer = data[trailer_at:]

    def file(self, entry):
        return self.directory / f"{entry:08X}.chunk"

    def parts(self):
        header = bytearray(self.data[:16] + self.data[24:39] + self.data[47 : self.header_len])
        header[18] = 0
        return bytes(header), self.trailer, [n if n < 0 else self.file(n).read_bytes() for n in self.entries]


def parts(path):
    return (Sframe(path) if Path(path).is_dir() else Cframe.read(path)).parts()


def same_parts(one, other):
    """Fails unless two frames, of any layouts, agree in every byte but for places and lengths."""
    for what, a, b in zip(("header", "trailer"), parts(one), parts(other)):
        if a != b:
            sys.exit(f"{one}: {what} is {a.hex(' ')}, that of {other} is {b.hex(' ')}")
    a, b = parts(one)[2], parts(other)[2]
    if len(a) != len(b):
        sys.exit(f"{one}: {len(a)} chunks, {other} has {len(b)}")
    for n, (x, y) in enumerate(zip(a, b)):
        if x != y:
            sys.exit(f"{one}: chunk {n} is not that of {other}")


def footprint(directory):
    """What a directory's files are, by name: inode, length, time of change. What differs was written."""
    stats = ((name.name, name.stat()) for name in Path(directory).iterdir())
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats}


def written(before, after):
    """Bytes in the files that are new or changed between two footprints."""
    return sum(now[1] for name, now in after.items() if before.get(name) != now)
