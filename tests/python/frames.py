"""What is readable of a frame through the Blosc2 library, and how two frames differ."""

import itertools

import blosc2
import numpy as np

UNINIT = 4


def special_of(chunk):
    """The special code in a chunk's header, 0 for none."""
    return (chunk[31] >> 4) & 7


def open_frame(path, mode="r", locking=False):
    options = {"locking": True} if locking else {}
    return blosc2.open(str(path), mode=mode, dparams={"nthreads": 1}, **options)


def schunk_of(frame):
    return getattr(frame, "schunk", frame)


def contents(frame, cbytes=True):
    """Everything that the library lets one read, as an ordered dict of comparable values."""
    schunk = schunk_of(frame)
    seen = {"nchunks": schunk.nchunks, "nbytes": schunk.nbytes, "chunksize": schunk.chunksize}
    seen |= {"blocksize": schunk.blocksize, "typesize": schunk.typesize}
    if cbytes:
        seen["cbytes"] = schunk.cbytes
    for name in schunk.meta:
        seen[f"metalayer {name}"] = schunk.meta[name]
    for name in sorted(schunk.vlmeta):
        seen[f"vlmetalayer {name}"] = schunk.vlmeta[name]
    for n in range(schunk.nchunks):
        chunk = schunk.get_chunk(n)
        seen[f"chunk {n}"] = chunk
        if special_of(chunk) != UNINIT and not chunk_is_vl(chunk):
            seen[f"data of chunk {n}"] = schunk.decompress_chunk(n)
    if isinstance(frame, blosc2.NDArray):
        seen |= {"shape": frame.shape, "chunks": frame.chunks, "blocks": frame.blocks, "dtype": frame.dtype}
        seen["array"] = written(frame).tobytes()
    return seen


def regions(array):
    """The slices of each chunk, in the order of the chunks."""
    steps = [range(0, size, chunk) for size, chunk in zip(array.shape, array.chunks)]
    for corner in itertools.product(*steps):
        yield tuple(slice(start, start + chunk) for start, chunk in zip(corner, array.chunks))


def written(frame):
    """An array, with zeros for what nobody has written: the library gives what memory held before."""
    array = np.array(frame[...])
    for n, region in enumerate(regions(frame) if array.size else []):
        if special_of(frame.schunk.get_chunk(n)) == UNINIT:
            array[region] = np.zeros((), array.dtype)
    return array


def chunk_is_vl(chunk):
    """Whether a chunk is made of blocks of varying size, which decompress_chunk does not take."""
    return bool(chunk[30] & 1)


def difference(got, expected):
    """The first difference of two `contents`, in words; None if there is none."""
    for key in expected:
        if key not in got:
            return f"{key} is missing"
        if got[key] != expected[key]:
            return f"{key}: got {brief(got[key], expected[key])}, expected {brief(expected[key], got[key])}"
    for key in got:
        if key not in expected:
            return f"{key} should not be there"
    return None


def brief(value, other):
    if not isinstance(value, (bytes, bytearray)):
        return repr(value)[:200]
    if isinstance(other, (bytes, bytearray)):
        at = next((i for i, (a, b) in enumerate(zip(value, other)) if a != b), min(len(value), len(other)))
    else:
        at = 0
    return f"{len(value)} bytes, from byte {at} on {value[at : at + 16].hex(' ')}"
