"""Frames of many chunks, in either layout, in time that grows with their number: the library would write the index for each."""

import shutil
from pathlib import Path

import blosc2
import numpy as np


def _template(contiguous, chunksize, where, vlmeta=None):
    """Header and trailer of a frame that the library made of one chunk."""
    path = where.with_name(f"{where.name}.template")
    blosc2.remove_urlpath(str(path))
    frame = blosc2.SChunk(chunksize=chunksize, urlpath=str(path), contiguous=contiguous, mode="w", cparams={"typesize": 1})
    frame.append_data(bytes(range(256)) * (chunksize // 256) + bytes(chunksize % 256))
    for name, value in (vlmeta or {}).items():
        frame.vlmeta[name] = value
    del frame
    data = (path if contiguous else path / "chunks.b2frame").read_bytes()
    blosc2.remove_urlpath(str(path))
    return data[: int.from_bytes(data[11:15], "big")], data[-int.from_bytes(data[-22:-18], "big") :]


def stored(data):
    """A chunk that holds its bytes as they are."""
    chunk = blosc2.compress2(data, typesize=1, clevel=0)
    assert len(chunk) == 32 + len(data)
    return chunk


def hollow(nbytes):
    """(head, cbytes) of a chunk of stored zeros that takes hardly any room on disk: behind its header is a hole."""
    return stored(np.random.default_rng(0).bytes(nbytes))[:32], 32 + nbytes


def write_frame(path, contiguous, count, chunksize, chunk, first_id=0, vlmeta=None):
    """A frame of `count` chunks; chunk(n) is the bytes of one, or what begins it and its length, when the rest are zeros. The chunk files of
    a sparse frame are numbered from `first_id` on."""
    path = Path(path)
    header, trailer = _template(contiguous, chunksize, path, vlmeta)
    total = 0
    places = np.empty(count, dtype="<i8")
    if not contiguous:
        path.mkdir(parents=True)
    file = open(path if contiguous else path / "chunks.b2frame", "wb", buffering=1 << 20)
    file.write(header)
    for n in range(count):
        made = chunk(n)
        head, length = made if isinstance(made, tuple) else (made, len(made))
        if contiguous:
            places[n] = total
            file.write(head)
            if len(head) < length:
                file.seek(length - len(head), 1)
        else:
            places[n] = first_id + n
            with open(path / f"{first_id + n:08X}.chunk", "wb", buffering=0) as own:
                own.write(head)
                if len(head) < length:
                    own.truncate(length)
        total += length
    index = blosc2.compress2(places, typesize=8, codec=blosc2.Codec.BLOSCLZ)
    file.write(index + trailer)
    frame_len = file.tell()
    header = bytearray(header)
    header[16:24] = frame_len.to_bytes(8, "big")
    header[30:38] = (count * chunksize).to_bytes(8, "big")
    header[39:47] = total.to_bytes(8, "big")
    file.seek(0)
    file.write(header)
    file.close()
    frame = blosc2.open(str(path), mode="r")
    assert frame.nchunks == count and len(frame.decompress_chunk(count - 1)) == chunksize


def many_chunks(path, count):
    """An sframe of many small chunks, unless it is there."""
    path, count = Path(path), int(count)
    if (path / "chunks.b2frame").exists():
        return
    shutil.rmtree(path, ignore_errors=True)
    rng = np.random.default_rng(2)
    chunks = [blosc2.compress2(rng.bytes(1024), typesize=1) for _ in range(64)]
    write_frame(path, False, count, 1024, lambda n: chunks[n % 64])
