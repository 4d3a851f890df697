#!/usr/bin/env python3
"""Makes tests/data: small frames as C-Blosc2 writes them, the same bytes on every run.

    make_test_data.py [DIRECTORY]

tests/data/cframe/NAME is a contiguous frame, tests/data/sframe/NAME the directory that the same calls make of a sparse one
(not every frame has such a twin). expected.tsv beside them says what the library itself reads from each: the number of
chunks, nbytes, and CRC-32 sums of the index and of the data (uninitialised chunks left out).

codec-*              each codec with other filters, types, split modes and levels; several blocks; a short last chunk
stored               data that does not compress: plain copies
special              zeros, NaN, uninitialised and repeated values between stored chunks
fill-*               "fill special": an index of one repeated value, no stored chunk (fill-value: a chunk each)
chunks-1, chunks-3   an index that is a plain copy
chunks-2500          an index of more than one block
metalayers           the most metalayers and vlmetalayers that the library writes, of every length of name
b2nd-*               arrays: edges that do not divide, a string and a structured type, a type of 300 bytes
moved                after insert, delete, update, reorder: offsets not ascending, holes, gaps in the ids
holes                made by hand from codec-lz4: old index and trailer left as a hole, new ones behind
varying              chunks of varying size (chunksize 0)
vlblocks-*           chunks of blocks of varying size, in chunks of one size and of varying size
caterva              made by the package of that name, before b2nd; kept as it is (make_caterva_data.py)
empty, empty-meta    no chunk yet
emptied              no chunk any more: C-Blosc2 leaves the old cbytes in the header

Needs python-blosc2 4.14 or newer (C-Blosc2 3.3); other versions may compress to other bytes.
"""

import os
import shutil
import struct
import sys
import zlib
from pathlib import Path

import blosc2
import numpy as np

# The header says how many threads there were. Those that read are two, for the fields to differ.
ONE_THREAD, TWO_THREADS = {"nthreads": 1}, {"nthreads": 2}
DEFAULT_DATA = Path(__file__).resolve().parent.parent / "data"


def schunk(path, contiguous, typesize, chunksize=None, meta=None, **cparams):
    return blosc2.SChunk(
        chunksize=chunksize, urlpath=str(path), contiguous=contiguous, mode="w", meta=meta,
        cparams={"typesize": typesize, **ONE_THREAD, **cparams}, dparams=TWO_THREADS,
    )


def append(frame, data, chunksize):
    raw = bytes(data)
    for start in range(0, len(raw), chunksize):
        frame.append_data(raw[start : start + chunksize])


def noise(nbytes, seed=1):
    return np.random.RandomState(seed).bytes(nbytes)


def codec(typesize, clevel=5, **cparams):
    """5 chunks, the last short; ints that grow, with a little noise, so that every codec and filter has work to do."""

    def build(path, contiguous):
        frame = schunk(path, contiguous, typesize, 2048, clevel=clevel, blocksize=512, **cparams)
        values = np.arange(9000 // typesize, dtype=np.int64) ** 2 // 7 + np.frombuffer(noise(9000 // typesize), np.uint8) % 4
        data = values.astype(f"<i{typesize}").tobytes()
        append(frame, data[: len(data) - 3 * typesize], 2048)

    return build


def codec_float(path, contiguous):
    frame = schunk(
        path, contiguous, 8, 2048, blocksize=1024, codec=blosc2.Codec.ZSTD, clevel=7, splitmode=blosc2.SplitMode.NEVER_SPLIT,
        filters=[blosc2.Filter.TRUNC_PREC, blosc2.Filter.SHUFFLE], filters_meta=[20, 0],
    )
    append(frame, np.sqrt(np.arange(1000, dtype="<f8")).tobytes(), 2048)


def codec_dict(path, contiguous):
    frame = schunk(path, contiguous, 4, 16384, blocksize=1024, codec=blosc2.Codec.ZSTD, clevel=5, use_dict=True)
    append(frame, (np.arange(8000, dtype="<i4") % 977 * 31).tobytes(), 16384)


def stored(path, contiguous):
    frame = schunk(path, contiguous, 1, 1500)
    append(frame, noise(4000), 1500)


def special(path, contiguous):
    frame = schunk(path, contiguous, 8, 800)
    for i in range(12):
        append(frame, (np.arange(100, dtype="<f8") * (i + 1)).tobytes(), 800)
    for i, (kind, value) in {
        0: (blosc2.SpecialValue.ZERO, None),
        3: (blosc2.SpecialValue.NAN, None),
        4: (blosc2.SpecialValue.UNINIT, None),
        7: (blosc2.SpecialValue.VALUE, 2.5),
        8: (blosc2.SpecialValue.NAN, None),
        11: (blosc2.SpecialValue.ZERO, None),
    }.items():
        frame.update_special(i, kind, value)
    append(frame, bytes(80), 800)


def fill(kind, nitems, value=None, chunksize=400):
    def build(path, contiguous):
        frame = schunk(path, contiguous, 4, chunksize)
        frame.fill_special(nitems, kind, value)

    return build


def chunks(count):
    def build(path, contiguous):
        frame = schunk(path, contiguous, 4, 400)
        append(frame, np.arange(100 * count, dtype="<i4").tobytes(), 400)

    return build


def chunks_2500(path, contiguous):
    """Most of them zeros, so that the frame is small; the others as small as a chunk can be."""
    fill(blosc2.SpecialValue.ZERO, 2500, chunksize=4)(path, contiguous)
    frame = blosc2.open(str(path), mode="a")
    # The library makes an index with four threads, which store the blocks in any order.
    os.environ["BLOSC_NTHREADS"] = "1"
    for i in range(0, 2500, 9):
        frame.update_data(i, struct.pack("<i", i), copy=True)
    del os.environ["BLOSC_NTHREADS"]


def metalayers(path, contiguous):
    meta = {"m" * n: list(range(n)) for n in range(1, 32, 2)}
    frame = schunk(path, contiguous, 4, 400, meta=meta)
    append(frame, np.arange(150, dtype="<i4").tobytes(), 400)
    for n in range(1, 32, 2):
        frame.vlmeta["v" * n] = "text " * n * n


def b2nd(array, chunkshape, blockshape, **more):
    def build(path, contiguous):
        blosc2.asarray(
            array, chunks=chunkshape, blocks=blockshape, urlpath=str(path), contiguous=contiguous, mode="w",
            cparams=blosc2.CParams(**ONE_THREAD), dparams=blosc2.DParams(**TWO_THREADS), **more,
        )

    return build


def b2nd_meta(path, contiguous):
    array = np.arange(7 * 10, dtype="<i4").reshape(7, 10)
    b2nd(array, (4, 6), (2, 3), meta={"author": "someone"})(path, contiguous)
    array = blosc2.open(str(path), mode="a")
    array.vlmeta["units"] = "K"


def moved(path, contiguous):
    frame = schunk(path, contiguous, 4, 400)

    def data(seed, n=100):
        return (np.arange(n, dtype="<i4") * seed).tobytes()

    for i in range(8):
        frame.append_data(data(i + 1))
    frame.insert_data(2, data(20), copy=True)
    frame.delete_chunk(4)
    frame.update_data(5, noise(400), copy=True)
    frame.update_special(6, blosc2.SpecialValue.ZERO)
    frame.insert_data(0, bytes(400), copy=True)
    frame.delete_chunk(8)
    frame.reorder_offsets([3, 1, 0, 2, 7, 6, 5, 4])
    frame.append_data(data(30))
    frame.delete_chunk(1)
    frame.append_data(data(40, 25))


def holes(path, contiguous):
    """What a writer makes that never touches live bytes: the old index and trailer stay where they were."""
    assert contiguous
    codec(2, codec=blosc2.Codec.LZ4, filters=[blosc2.Filter.BITSHUFFLE])(path, True)
    old = path.read_bytes()
    (header_len,) = struct.unpack_from(">i", old, 11)
    nbytes, cbytes = struct.unpack_from(">q", old, 30)[0], struct.unpack_from(">q", old, 39)[0]
    (trailer_len,) = struct.unpack_from(">I", old, len(old) - 22)
    trailer_at, index_at = len(old) - trailer_len, header_len + cbytes
    offsets = list(struct.unpack("<5q", blosc2.decompress2(old[index_at:trailer_at])))
    # The second chunk grows, so that its old place becomes a hole too.
    new_chunk = blosc2.compress2(noise(2048), typesize=2, blocksize=512, **ONE_THREAD)
    offsets[1] = len(old) - header_len
    index = blosc2.compress2(struct.pack("<5q", *offsets), typesize=8, codec=blosc2.Codec.BLOSCLZ, **ONE_THREAD)
    new = bytearray(old + new_chunk + index + old[trailer_at:])
    struct.pack_into(">Q", new, 16, len(new))
    struct.pack_into(">q", new, 39, len(old) + len(new_chunk) - header_len)
    assert struct.unpack_from(">q", new, 30)[0] == nbytes
    path.write_bytes(new)


def varying(path, contiguous):
    frame = schunk(path, contiguous, 4, 400)

    def chunk(n, fill=None):
        items = np.arange(n, dtype="<i4") if fill is None else np.full(n, fill, "<i4")
        return blosc2.compress2(items.tobytes(), typesize=4, **ONE_THREAD)

    for n in (100, 30, 500, 1):
        frame.append_chunk(chunk(n))
    frame.insert_chunk(1, chunk(77))
    frame.update_chunk(3, chunk(250, 9))
    frame.append_chunk(chunk(40))


def vlblocks(sizes):
    def build(path, contiguous):
        frame = schunk(path, contiguous, 1, sum(sizes[0]), codec=blosc2.Codec.LZ4)
        for i, row in enumerate(sizes):
            blocks = [bytes((i * 7 + j + k // 5) % 256 for k in range(n)) for j, n in enumerate(row)]
            frame.append_chunk(blosc2.blosc2_ext.vlcompress(blocks, typesize=1, codec=blosc2.Codec.LZ4, clevel=5, **ONE_THREAD))

    return build


def empty(path, contiguous):
    schunk(path, contiguous, 4)


def empty_meta(path, contiguous):
    frame = schunk(path, contiguous, 4, 400, meta={"one": 1, "two": "2"})
    frame.vlmeta["three"] = [3.0]


def kept(path, contiguous):
    """What this library does not make."""
    assert path.exists(), f"{path}: is made by make_caterva_data.py"


def emptied(path, contiguous):
    chunks(2)(path, contiguous)
    frame = blosc2.open(str(path), mode="a")
    frame.delete_chunk(0)
    frame.delete_chunk(0)


F, S = blosc2.Filter, blosc2.SplitMode
STRUCT = np.array([(i, f"n{i}", i / 2) for i in range(11)], dtype=[("id", "<i4"), ("name", "S5"), ("half", "<f4")])
BOTH, CONTIGUOUS = ("cframe", "sframe"), ("cframe",)

FRAMES = {
    "codec-blosclz.b2frame": (BOTH, codec(4, codec=blosc2.Codec.BLOSCLZ, filters=[F.SHUFFLE], splitmode=S.ALWAYS_SPLIT)),
    "codec-lz4.b2frame": (BOTH, codec(2, codec=blosc2.Codec.LZ4, filters=[F.BITSHUFFLE])),
    "codec-lz4hc.b2frame": (CONTIGUOUS, codec(8, codec=blosc2.Codec.LZ4HC, filters=[F.DELTA, F.SHUFFLE], clevel=9)),
    "codec-zlib.b2frame": (CONTIGUOUS, codec(1, codec=blosc2.Codec.ZLIB, filters=[F.NOFILTER], clevel=1)),
    "codec-zstd.b2frame": (CONTIGUOUS, codec_float),
    "codec-zstd-dict.b2frame": (CONTIGUOUS, codec_dict),
    "stored.b2frame": (CONTIGUOUS, stored),
    "special.b2frame": (BOTH, special),
    "fill-zeros.b2frame": (BOTH, fill(blosc2.SpecialValue.ZERO, 100 * 1000)),
    "fill-nan.b2frame": (CONTIGUOUS, fill(blosc2.SpecialValue.NAN, 100 * 20 + 7)),
    "fill-uninit.b2frame": (CONTIGUOUS, fill(blosc2.SpecialValue.UNINIT, 100 * 5000)),
    "fill-value.b2frame": (CONTIGUOUS, fill(blosc2.SpecialValue.VALUE, 100 * 10 + 50, 1234567)),
    "chunks-1.b2frame": (BOTH, chunks(1)),
    "chunks-3.b2frame": (CONTIGUOUS, chunks(3)),
    "chunks-2500.b2frame": (CONTIGUOUS, chunks_2500),
    "metalayers.b2frame": (BOTH, metalayers),
    "b2nd-int.b2nd": (BOTH, b2nd_meta),
    "b2nd-string.b2nd": (CONTIGUOUS, b2nd(np.array([f"word {i}" for i in range(20)], "<U8"), (6,), (4,))),
    "b2nd-struct.b2nd": (CONTIGUOUS, b2nd(STRUCT, (4,), (2,))),
    "b2nd-wide.b2nd": (CONTIGUOUS, b2nd(np.array([f"item {i} " * 20 for i in range(10)], "S300"), (4,), (2,))),
    "caterva.b2frame": (BOTH, kept),
    "moved.b2frame": (BOTH, moved),
    "holes.b2frame": (CONTIGUOUS, holes),
    "varying.b2frame": (BOTH, varying),
    "vlblocks-fixed.b2frame": (CONTIGUOUS, vlblocks([(50, 100, 150), (150, 100, 50), (100, 100, 100)])),
    "vlblocks-varying.b2frame": (BOTH, vlblocks([(50, 60), (300, 1, 40), (7,)])),
    "empty.b2frame": (BOTH, empty),
    "empty-meta.b2frame": (BOTH, empty_meta),
    "emptied.b2frame": (BOTH, emptied),
}


def expected(path):
    """What the library reads: (chunks, nbytes, CRC of the index, CRC of the data)."""
    opened = blosc2.open(str(path), mode="r")  # an array must live as long as its schunk is used
    frame = getattr(opened, "schunk", opened)
    raw = (path / "chunks.b2frame" if path.is_dir() else path).read_bytes()
    (header_len,), (cbytes,) = struct.unpack_from(">i", raw, 11), struct.unpack_from(">q", raw, 39)
    (trailer_len,) = struct.unpack_from(">I", raw, len(raw) - 22)
    index = raw[header_len + (0 if path.is_dir() or not frame.nchunks else cbytes) : len(raw) - trailer_len]
    index_crc = zlib.crc32(blosc2.decompress2(index)) if index else 0
    data_crc = 0
    for info in frame.iterchunks_info():
        if info.special != blosc2.SpecialValue.UNINIT:
            data_crc = zlib.crc32(frame.decompress_chunk(info.nchunk), data_crc)
    return frame.nchunks, frame.nbytes, index_crc, data_crc


def main():
    top = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_DATA
    lines = []
    for layout in BOTH:
        (top / layout).mkdir(parents=True, exist_ok=True)
        for name, (layouts, build) in FRAMES.items():
            if layout in layouts:
                path = top / layout / name
                if path.is_dir() and build != kept:
                    shutil.rmtree(path)
                build(path, layout == "cframe")
                nchunks, nbytes, index_crc, data_crc = expected(path)
                lines.append(f"{layout}/{name}\t{nchunks}\t{nbytes}\t{index_crc:08x}\t{data_crc:08x}\n")
    (top / "expected.tsv").write_text("".join(sorted(lines)))


if __name__ == "__main__":
    main()
