#!/usr/bin/env python3
"""Holds `b2fuse info --json` against the library: some hundred frames of both layouts, every field that both show.

    info.py [--b2fuse PROGRAM] [--seed N] [--keep DIRECTORY]

Frames of every codec, level, filter, split mode, with dictionaries, special values, chunks and blocks of varying size, metalayers of
all that MessagePack has and of other bytes, arrays (b2nd and Caterva) of 0 to 8 dimensions, with edges that do not divide and
without items. Needs python-blosc2 4.14 or newer. The last line is the count.
"""

import argparse
import ast
import collections
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import blosc2
import msgpack
import numpy as np

import anatomy
import libblosc2
from frames import schunk_of

CODECS = [blosc2.Codec.BLOSCLZ, blosc2.Codec.LZ4, blosc2.Codec.LZ4HC, blosc2.Codec.ZLIB, blosc2.Codec.ZSTD]
F, S, V = blosc2.Filter, blosc2.SplitMode, blosc2.SpecialValue
PIPELINES = [
    ([], []),
    ([F.SHUFFLE], [0]),
    ([F.SHUFFLE], [3]),
    ([F.BITSHUFFLE], [0]),
    ([F.DELTA, F.SHUFFLE], [0, 0]),
    ([F.TRUNC_PREC, F.SHUFFLE], [10, 0]),
    ([F.TRUNC_PREC, F.DELTA, F.BITSHUFFLE], [20, 0, 0]),
]
SPLITS = {S.ALWAYS_SPLIT: "always", S.NEVER_SPLIT: "never", S.AUTO_SPLIT: "auto", S.FORWARD_COMPAT_SPLIT: "forward_compat"}
DTYPES = ["<i4", ">i2", "|u1", "<f8", "<c16", "|b1", "<U5", "|S7", "<M8[ns]", [("a", "<i4"), ("b", "S3"), ("c", "<f8", (2,))]]
VALUES = {
    "int": -7, "large": 2**63, "float": 0.25, "nan": float("nan"), "inf": float("-inf"), "text": "é \x1b[31m", "bytes": b"\x00\xff",
    "list": [1, [2, [3, []]]], "map": {"b": 1, "a": {"x": None}}, "true": True, "none": None, "long": "word " * 500,
    "many": list(range(300)), "numbers": {1: 2, "x": 3},
}
OBJECTS = {"complex": 1 + 2j, "set": {1, 2}, "array": np.arange(5), "date": "2024-01-01"}


def schunk(path, contiguous, typesize=4, chunksize=800, meta=None, **cparams):
    return blosc2.SChunk(
        chunksize=chunksize, urlpath=str(path), contiguous=contiguous, mode="w", meta=meta,
        cparams={"typesize": typesize, "nthreads": 1, **cparams}, dparams={"nthreads": 1},
    )


def fill(frame, rng, count=3):
    """Chunks that compress, that do not, that are one value; the last is short."""
    size, item = frame.chunksize, frame.typesize
    for n in range(count):
        nbytes = size if n + 1 < count else max(size // 2 // item, 1) * item
        data = [bytes(i * i // 7 % 256 for i in range(nbytes)), rng.randbytes(nbytes), bytes([n + 1]) * nbytes][rng.randrange(3)]
        frame.append_data(data)


def plain(typesize=4, chunksize=None, **cparams):
    def build(path, contiguous, rng):
        fill(schunk(path, contiguous, typesize, chunksize or 64 * typesize, **cparams), rng)

    return build


def dictionary(codec):
    def build(path, contiguous, rng):
        frame = schunk(path, contiguous, 4, 16384, blocksize=1024, codec=codec, use_dict=True)
        for _ in range(2):
            frame.append_data((np.arange(4096, dtype="<i4") % 977 * 31).tobytes())

    return build


def plugin(dtype=None, **cparams):
    """A codec that is registered with the project, which takes arrays of two dimensions."""

    def build(path, contiguous, rng):
        values = (np.arange(40 * 40) % 64).reshape(40, 40).astype(dtype)
        params = {"nthreads": 1, "splitmode": S.NEVER_SPLIT, "filters": [F.NOFILTER], "filters_meta": [0], **cparams}
        blosc2.asarray(
            values, chunks=(20, 20), blocks=(10, 10), urlpath=str(path), contiguous=contiguous, mode="w", cparams=params
        )

    return build


def own_codec(path, contiguous, rng):
    """A codec of a user's own, which here copies all but what is one value repeated."""
    frame = schunk(path, contiguous, 1, 100, codec=OWN_CODEC, codec_meta=3, filters=[F.NOFILTER], filters_meta=[0])
    for n in range(3):
        frame.append_data(bytes(50) + bytes(range(n, n + 50)))


OWN_CODEC = 170


def shorten(source, target, meta, schunk):
    """Data that begin with zeros, without these."""
    data = np.trim_zeros(source, "f")
    target[: len(data)] = data
    return len(data) if len(data) < len(source) else 0


def restore(source, target, meta, schunk):
    target[:] = 0
    target[len(target) - len(source) :] = source
    return len(target)


def special(path, contiguous, rng):
    frame = schunk(path, contiguous, 8, 800)
    fill(frame, rng, 9)
    kinds = [V.ZERO, V.NAN, V.UNINIT, V.VALUE]
    for n in rng.sample(range(8), 5):
        kind = rng.choice(kinds)
        frame.update_special(n, kind, 1.5 if kind == V.VALUE else None)


def filled(kind, value=None):
    return lambda path, contiguous, rng: schunk(path, contiguous).fill_special(1000 + rng.randrange(200), kind, value)


def varying(path, contiguous, rng):
    frame = schunk(path, contiguous, 4, 400)
    for n in (100, 30, 500, 1, 77):
        frame.append_chunk(blosc2.compress2(np.arange(n, dtype="<i4").tobytes(), typesize=4, nthreads=1))


def vlblocks(path, contiguous, rng):
    frame = schunk(path, contiguous, 1, 300, codec=blosc2.Codec.LZ4)
    for _ in range(3):
        blocks = [bytes(rng.randrange(4) for _ in range(n)) for n in (50, 100, 150)]
        chunk = blosc2.blosc2_ext.vlcompress(blocks, typesize=1, codec=blosc2.Codec.LZ4, clevel=5, nthreads=1)
        frame.append_chunk(chunk)


def metalayers(path, contiguous, rng):
    names = rng.sample(sorted(VALUES), 10)
    frame = schunk(path, contiguous, meta={name: VALUES[name] for name in names})
    libblosc2.add_metalayer(frame, "raw", rng.randbytes(20))
    libblosc2.add_metalayer(frame, "trailing", b"\x01\x02")
    libblosc2.add_metalayer(frame, "empty", b"")
    fill(frame, rng)
    # It writes no more than 16 of either.
    for name, value in [*((name, VALUES[name]) for name in rng.sample(sorted(VALUES), 10)), *OBJECTS.items()]:
        frame.vlmeta[name] = value
    libblosc2.add_vlmetalayer(frame, "raw", b"\xc1" + rng.randbytes(2000))
    libblosc2.add_vlmetalayer(frame, "trailing", msgpack.packb("text") + b"!")


def empty(path, contiguous, rng):
    schunk(path, contiguous)


def emptied(path, contiguous, rng):
    frame = schunk(path, contiguous)
    fill(frame, rng, 1)
    frame.delete_chunk(0)


def moved(path, contiguous, rng):
    frame = schunk(path, contiguous, 4, 400)
    for n in range(8):
        frame.append_data((np.arange(100, dtype="<i4") * n).tobytes())
    frame.update_data(rng.randrange(8), rng.randbytes(400), copy=True)
    frame.delete_chunk(rng.randrange(8))
    frame.insert_data(rng.randrange(7), bytes(400), copy=True)


def shapes(rng, ndim):
    shape = [rng.randrange(1, 6 if ndim > 4 else 12) for _ in range(ndim)]
    chunks = [rng.randrange(1, size + 1) for size in shape]
    return shape, chunks, [rng.randrange(1, size + 1) for size in chunks]


def b2nd(ndim, dtype, zero=False):
    def build(path, contiguous, rng):
        shape, chunks, blocks = shapes(rng, ndim)
        if zero:
            shape[rng.randrange(ndim)] = 0
        values = np.zeros(shape, np.dtype(dtype))
        if values.dtype.kind in "iufc":
            values[...] = np.arange(values.size).reshape(shape) % 100
        array = blosc2.asarray(
            values, chunks=chunks, blocks=blocks, urlpath=str(path), contiguous=contiguous, mode="w", cparams={"nthreads": 1},
            meta={"about": {"ndim": ndim}},
        )
        array.vlmeta["units"] = "K"

    return build


def scalar(path, contiguous, rng):
    blosc2.asarray(np.array(7.5), urlpath=str(path), contiguous=contiguous, mode="w")


def by_hand(kind, ndim, dtype=None):
    """A metalayer of bytes that are put together here, with as many zeros as it needs."""

    def build(path, contiguous, rng):
        shape, chunks, blocks = shapes(rng, ndim)
        content = bytes([0x97 if kind == "b2nd" else 0x95, 0, ndim, 0x90 + ndim])
        content += b"".join(b"\xd3" + struct.pack(">q", size) for size in shape)
        for part in (chunks, blocks):
            content += bytes([0x90 + ndim]) + b"".join(b"\xd2" + struct.pack(">i", size) for size in part)
        if dtype is not None:
            content += b"\0\xdb" + struct.pack(">i", len(dtype)) + dtype.encode()
        items = math.prod(-(-chunk // block) * block for chunk, block in zip(chunks, blocks))
        frame = schunk(path, contiguous, 4, 4 * items, blocksize=4 * math.prod(blocks))
        libblosc2.add_metalayer(frame, kind, content)
        frame.fill_special(items * math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks)), V.ZERO)
        by_hand.made[str(path)] = (shape, chunks, blocks)

    return build


by_hand.made = {}


def builders(rng):
    for codec in CODECS:
        for n, clevel in enumerate((0, 1, 5, 9)):
            yield plain((1, 2, 4, 8)[n], codec=codec, clevel=clevel, filters=[F.SHUFFLE], filters_meta=[0])
        for filters, metas in PIPELINES:
            yield plain(8, codec=codec, filters=filters, filters_meta=metas)
    for mode in SPLITS:
        yield plain(4, splitmode=mode)
        yield plain(16, splitmode=mode, blocksize=256, codec=blosc2.Codec.LZ4)
    for _ in range(20):
        filters, metas = rng.choice(PIPELINES)
        typesize = rng.choice([1, 2, 3, 4, 7, 8, 12, 255, 300])
        if F.TRUNC_PREC in filters:
            typesize = 8
        yield plain(
            typesize, typesize * rng.randrange(1, 300), codec=rng.choice(CODECS), clevel=rng.randrange(10),
            splitmode=rng.choice(list(SPLITS)), filters=filters, filters_meta=metas,
        )
    yield plain(4, filters=[F.SHUFFLE, F.BYTEDELTA], filters_meta=[0, 4])
    yield plain(4, filters=[F.INT_TRUNC], filters_meta=[20])
    yield plugin("<f4", codec=blosc2.Codec.ZFP_RATE, codec_meta=37)
    yield plugin("<f8", codec=blosc2.Codec.ZFP_ACC, codec_meta=2)
    yield plugin("|u1", codec=blosc2.Codec.NDLZ, codec_meta=4)
    yield own_codec
    yield from (dictionary(blosc2.Codec.ZSTD), dictionary(blosc2.Codec.LZ4))
    yield from [special] * 5
    yield from (filled(V.ZERO), filled(V.NAN), filled(V.UNINIT), filled(V.VALUE, 77))
    yield from (varying, vlblocks, empty, emptied, moved, moved, scalar)
    yield from [metalayers] * 3
    for ndim in range(1, 9):
        for dtype in rng.sample(DTYPES, 3):
            yield b2nd(ndim, dtype)
        yield b2nd(ndim, "<f4", zero=True)
        yield by_hand("caterva", ndim)
        yield by_hand("b2nd", ndim)
        yield by_hand("b2nd", ndim, "<f4")


def rendered(value):
    """A MessagePack value as --json shows it."""
    if isinstance(value, Pairs):
        keys = [key for key, _ in value]
        if all(isinstance(key, str) for key in keys) and len(set(keys)) == len(keys):
            return {key: rendered(item) for key, item in value}
        return {"map": [[rendered(key), rendered(item)] for key, item in value]}
    if isinstance(value, list):
        return [rendered(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, msgpack.ExtType):
        return {"ext": value.code, "bytes": value.data.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


class Pairs(list):
    """A map in the order in which it stands."""


def layer(name, content):
    expected = {"name": name, "nbytes": len(content), "hex": content.hex()}
    try:
        value = msgpack.unpackb(content, object_pairs_hook=Pairs, strict_map_key=False, ext_hook=msgpack.ExtType)
        expected["msgpack"] = rendered(value)
    except Exception:
        pass
    return expected


def codec_of(number):
    """As the library names them; its users' own have no name."""
    names = {codec.value: codec.name.lower() for codec in blosc2.Codec}
    return {"id": number, "name": names.get(number)}


def expected(path):
    """What the library says, in the fields of --json."""
    opened = blosc2.open(str(path), mode="r", dparams={"nthreads": 1})
    frame = schunk_of(opened)
    cparams = frame.cparams
    sparse = path.is_dir()
    raw = (anatomy.Sframe(path) if sparse else anatomy.Cframe.read(path))
    stored = [frame.get_chunk(n) for n, entry in enumerate(raw.entries) if entry >= 0]
    kinds = collections.Counter(info.special for info in frame.iterchunks_info())
    files = list(path.iterdir()) if sparse else [path]
    codecs = collections.Counter()
    for chunk in stored:
        if not chunk[2] & 2 and not chunk[31] >> 4 & 7:
            codecs[{0: "blosclz", 1: "lz4", 3: "zlib", 4: "zstd", 6: codec_of(chunk[22])["name"] or "user-codec-170"}[chunk[2] >> 5]] += 1
    fields = {
        "frame": str(path),
        "layout": "cframe" if frame.contiguous else "sframe",
        "version": raw.data[25] & 15,
        "nbytes": frame.nbytes,
        "cbytes": frame.cbytes,
        "ratio": frame.cratio if frame.cbytes else None,
        "file_size": sum(file.stat().st_size for file in files),
        "typesize": frame.typesize,
        "chunksize": None if frame.chunksize < 0 else frame.chunksize,
        "blocksize": frame.blocksize,
        "varying_chunks": bool(raw.data[25] & 0x40),
        "vl_blocks": bool(raw.data[25] & 0x80),
        "codec": {**codec_of(getattr(cparams.codec, "value", cparams.codec)), "meta": cparams.codec_meta, "level": cparams.clevel},
        "filters": [
            {"id": filter.value, "name": filter.name.lower(), "meta": meta}
            for filter, meta in zip(cparams.filters, cparams.filters_meta) if filter != F.NOFILTER
        ],
        "splitmode": SPLITS[cparams.splitmode],
        "dictionary": bool(cparams.use_dict),
        "threads": {"compress": anatomy.field(raw.data, 63, 2), "decompress": anatomy.field(raw.data, 66, 2)},
        "metalayers": [layer(name, blosc2.blosc2_ext.meta__getitem__(frame, name)) for name in frame.meta],
        "vlmetalayers": [layer(name, super(type(frame.vlmeta), frame.vlmeta).get_vlmeta(name)) for name in frame.vlmeta],
        "findings": [],
        "findings_left_out": 0,
    }
    sizes = [len(chunk) for chunk in stored]
    # Each of these is a number in chunks and one in stored: entries of the index, and chunks that are stored.
    sums = {"zeros": kinds[V.ZERO], "nan": kinds[V.NAN], "uninit": kinds[V.UNINIT]}
    chunks = {"count": frame.nchunks, "stored": len(stored)}
    about_stored = {
        "cbytes": sum(sizes), "smallest": min(sizes, default=None), "largest": max(sizes, default=None),
        "copies": sum(chunk[2] & 2 > 0 and not chunk[31] >> 4 & 7 for chunk in stored), "repeated": kinds[V.VALUE],
        "dictionary": sum(chunk[31] & 1 for chunk in stored), "vl_blocks": sum(chunk[30] & 1 for chunk in stored),
        "unreadable": 0, "codecs": dict(codecs),
    }
    if not sparse:
        live = sum(sizes)
        about_stored["unused"] = (frame.cbytes if frame.nchunks else 0) - live
    else:
        about_stored["unused"] = 0
    array = None
    if isinstance(opened, blosc2.NDArray):
        array = {"kind": "b2nd", "version": 0, "ndim": opened.ndim, "shape": list(opened.shape), "chunkshape": list(opened.chunks),
                 "blockshape": list(opened.blocks), "dtype": opened.dtype}
    elif str(path) in by_hand.made:
        shape, chunkshape, blockshape = by_hand.made[str(path)]
        array = {"kind": "caterva", "version": 0, "ndim": len(shape), "shape": shape, "chunkshape": chunkshape,
                 "blockshape": blockshape, "dtype": None}
    return fields, sums, chunks, about_stored, array


def compare(path, got):
    fields, sums, chunks, about_stored, array = expected(path)
    got = dict(got)
    differences = []

    def equal(what, value, right):
        if value != right and not (isinstance(right, float) and isinstance(value, float) and math.isclose(value, right)):
            differences.append(f"{what}: got {value!r}, expected {right!r}")

    for extra in got["vlmetalayers"]:
        if not extra.pop("cbytes") > 0:
            differences.append("vlmetalayer without cbytes")
    got_chunks, got_stored, got_array = got.pop("chunks"), got.pop("stored"), got.pop("array")
    for kind, count in sums.items():
        equal(kind, got_chunks.pop(kind) + got_stored.pop(kind), count)
    unused = got_stored.pop("unused")
    equal("unused", unused["bytes"], about_stored.pop("unused"))
    equal("holes", unused["holes"] > 0, unused["bytes"] > 0)
    equal("chunks", got_chunks, chunks)
    equal("stored", got_stored, about_stored)
    if array and got_array:
        text, right = got_array.pop("dtype"), array.pop("dtype")
        equal("dtype_format", got_array.pop("dtype_format"), None if text is None else 0)
        # Without one, the library takes bytes.
        dtype = np.dtype(ast.literal_eval(text) if text and text.startswith("[") else text or f"|S{fields['typesize']}")
        equal("dtype", dtype, np.dtype(f"|S{fields['typesize']}") if right is None else right)
    equal("array", got_array, array)
    for key in [*fields, *(key for key in got if key not in fields)]:
        equal(key, got.get(key), fields.get(key))
    return differences


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--b2fuse", default=os.environ.get("B2FUSE", "b2fuse"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="make the frames here, and leave them")
    options = parser.parse_args()
    blosc2.set_nthreads(1)  # as codecs in Python need
    blosc2.register_codec("shorten", OWN_CODEC, shorten, restore)
    with tempfile.TemporaryDirectory() as temporary:
        top = Path(options.keep or temporary)
        paths = []
        for n, build in enumerate(builders(random.Random(options.seed))):
            for layout in ("cframe", "sframe"):
                path = top / f"{n:03}-{layout}.b2frame"
                build(path, layout == "cframe", random.Random(f"{options.seed} {n}"))
                paths.append(path)
        words = [options.b2fuse, "info", *map(str, paths)]
        for run in ([*words, "--json"], words):
            done = subprocess.run(run, capture_output=True, text=True)
            if done.returncode != 0 or done.stderr:
                sys.exit(f"info exits with {done.returncode}, and says {done.stderr}")
            if run != words:
                objects = [json.loads(line) for line in done.stdout.splitlines()]
        assert not any(c in done.stdout for c in "\x1b\r\x08"), "control characters for a terminal"
        assert len(objects) == len(paths), f"{len(objects)} objects for {len(paths)} frames"
        failed = 0
        for path, got in zip(paths, objects):
            differences = compare(path, got)
            failed += bool(differences)
            for difference in differences:
                print(f"{path.name}: {difference}")
    print(f"{len(paths) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
