#!/usr/bin/env python3
"""Frames that say more than they hold: small on disk, large for whoever believes them.

    hostile.py KIND PATH [COUNT]

makes one of the kinds below. In front of a command, `hostile.py peak LIMIT COMMAND...` runs it with at most LIMIT KiB of address space
(0 for no limit), and prints its exit code and the most memory that it held, in KiB.
"""

import os
import resource
import struct
import sys
from pathlib import Path

import blosc2
import numpy as np

from bigframes import _template

INDEX = 1 << 24  # entries that an index of any length may have
SIZE = 256  # nbytes of a chunk
TOO_LONG = (1 << 31) - 1
SPARSE = 8 << 30


def repeated(word, count, typesize=8):
    """A chunk of 40 bytes that stands for `count` times `word`."""
    nbytes = count * typesize
    head = struct.pack("<BBBBiii", 5, 1, 5, typesize, nbytes, min(nbytes, 16 << 10), 32 + typesize)
    return head + bytes(15) + b"\x30" + word.to_bytes(typesize, "little")


def frame(path, index, count, chunks=b"", contiguous=True, chunksize=SIZE):
    """A frame of an index chunk, whatever that is, and the bytes of the chunks section."""
    path = Path(path)
    header, trailer = _template(contiguous, SIZE, path)
    header = bytearray(header)
    body = chunks if contiguous else b""
    header[16:24] = (len(header) + len(body) + len(index) + len(trailer)).to_bytes(8, "big")
    header[30:38] = (count * chunksize).to_bytes(8, "big")
    header[39:47] = len(chunks).to_bytes(8, "big")
    header[58:62] = chunksize.to_bytes(4, "big")
    if not contiguous:
        path.mkdir()
        (path / "00000000.chunk").write_bytes(chunks)
        path /= "chunks.b2frame"
    path.write_bytes(bytes(header) + body + index + trailer)


def misfits(path, count=INDEX, contiguous=True):
    """Every entry is the same chunk, whose size fits nowhere: a finding for each."""
    frame(path, repeated(0, count), count, repeated(0, 3 * SIZE, 1)[:32] + bytes(1), contiguous)


def misfits_in_a_directory(path, count=INDEX):
    misfits(path, count, contiguous=False)


def equal_chunks(path, count=INDEX, contiguous=True):
    """Every entry is the same chunk, and all is well."""
    frame(path, repeated(0, count), count, repeated(0, SIZE, 1)[:32] + bytes(1), contiguous)


def equal_chunks_in_a_directory(path, count=INDEX):
    equal_chunks(path, count, contiguous=False)


def specials(path, count=INDEX, contiguous=True):
    """Every entry is zeros."""
    frame(path, repeated(0x81 << 56, count), count, b"", contiguous)


def specials_in_a_directory(path, count=INDEX):
    specials(path, count, contiguous=False)


def long_index(path, count=64 << 20, contiguous=True):
    """An index of 2 MB for very many entries."""
    places = np.zeros(count, dtype="<i8")
    # Zeros as special values, here and there.
    places[np.random.default_rng(0).integers(0, count, count // 256)] = (0x81 << 56) - (1 << 64)
    index = blosc2.compress2(places, typesize=8, codec=blosc2.Codec.BLOSCLZ, clevel=9, nthreads=1)
    frame(path, index, count, repeated(0, SIZE, 1)[:32] + bytes(1), contiguous)


def _lengthened(path, at, value, end=SPARSE):
    """A small frame in which a length is a lie, in a file that is long enough for it, and is a hole."""
    equal_chunks(path, 3)
    data = bytearray(Path(path).read_bytes())
    trailer = int.from_bytes(data[-22:-18], "big")
    data[16:24] = end.to_bytes(8, "big")
    with open(path, "wb") as file:
        if at >= 0:
            data[at : at + 4] = value.to_bytes(4, "big")
        file.write(data[:-trailer])
        tail = bytearray(data[-trailer:])
        if at < 0:
            tail[at : at + 4 or None] = value.to_bytes(4, "big")
        file.seek(end - len(tail))
        file.write(tail)


def long_header(path):
    _lengthened(path, 11, TOO_LONG)


def long_trailer(path):
    _lengthened(path, -22, TOO_LONG)


def hollow_index(path):
    """The index chunk is 2 GiB, of which only the header is there."""
    equal_chunks(path, 3)
    data = bytearray(Path(path).read_bytes())
    header_len, cbytes = int.from_bytes(data[11:15], "big"), int.from_bytes(data[39:47], "big")
    trailer = data[-int.from_bytes(data[-22:-18], "big") :]
    at = header_len + cbytes
    index = bytearray(data[at : at + 32])
    index[2], index[31] = 0x02 | 0x05, 0  # a plain copy
    nbytes = (TOO_LONG - 32) // 8 * 8
    index[4:8], index[12:16] = nbytes.to_bytes(4, "little"), (nbytes + 32).to_bytes(4, "little")
    end = at + nbytes + 32
    data[16:24] = (end + len(trailer)).to_bytes(8, "big")
    data[30:38] = (nbytes // 8 * SIZE).to_bytes(8, "big")
    with open(path, "wb") as file:
        file.write(data[:at] + index)
        file.seek(end)
        file.write(trailer)


def peak(limit, *command):
    pid = os.fork()
    if pid == 0:
        if int(limit):
            resource.setrlimit(resource.RLIMIT_AS, (int(limit) << 10, int(limit) << 10))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.execvp(command[0], command)
    _, status, usage = os.wait4(pid, 0)
    print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "peak":
        peak(*arguments)
    else:
        globals()[name](arguments[0], *map(int, arguments[1:]))
