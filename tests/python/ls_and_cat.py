#!/usr/bin/env python3
"""Holds `b2fuse ls` and `b2fuse cat` against the Blosc2 library, on the frames of tests/data and on generated ones.

    ls_and_cat.py [--seeds FROM-TO]    so many generated frames, each in both layouts
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import blosc2
import numpy as np

from anatomy import Cframe, Sframe
from frames import UNINIT, chunk_is_vl, open_frame, schunk_of, special_of

ROOT = Path(__file__).resolve().parents[2]
B2FUSE = os.environ.get("B2FUSE") or ROOT / "target/release/b2fuse"
CODECS = {0: "blosclz", 1: "lz4", 3: "zlib", 4: "zstd"}
FILTERS = {1: "shuffle", 2: "bitshuffle", 3: "delta", 4: "trunc_prec", 34: "bytedelta_buggy", 35: "bytedelta", 36: "int_trunc"}
SPECIAL = {0: None, 1: "zeros", 2: "nan", 3: "value", 4: "uninit"}


def b2fuse(*words):
    done = subprocess.run([B2FUSE, *map(str, words)], capture_output=True)
    if done.returncode or (done.stderr and b": warning: an array of" not in done.stderr):
        raise AssertionError(f"b2fuse {words}: {done.returncode}, {done.stderr.decode()}")
    return done.stdout


def expected_row(path, frame, position, entry, chunk):
    """What `ls --json` must say of a chunk, of which `chunk` is the library's copy."""
    sparse, stored = path.is_dir(), entry >= 0
    nbytes, cbytes, _ = blosc2.get_cbuffer_sizes(chunk)
    flags, special = chunk[2], SPECIAL[special_of(chunk)]
    row = {"position": position, "offset": None, "id": None, "cbytes": 0, "nbytes": nbytes, "ratio": None, "codec": None}
    row |= {"filters": [], "special": special, "copy": False, "place": None, "error": None}
    if stored:
        header_len = (Sframe(path) if sparse else Cframe.read(path)).header_len
        row |= {"id": entry} if sparse else {"offset": header_len + entry}
        row |= {"cbytes": cbytes, "ratio": nbytes / cbytes, "copy": special is None and bool(flags & 2)}
        row["codec"] = CODECS[flags >> 5]
        row["filters"] = [{"name": FILTERS[n], "meta": m} for n, m in zip(chunk[16:22], chunk[24:30]) if n]
    grid = None
    if isinstance(frame, blosc2.NDArray):
        grid = [-(-size // part) if part else 0 for size, part in zip(frame.shape, frame.chunks)]
    elif "caterva" in frame.meta:
        grid = [-(-size // part) for size, part in zip(*frame.meta["caterva"][2:4])]
    if grid is not None:
        row["place"] = [int(n) for n in np.unravel_index(position, grid)] if grid else []
    return row


def copy_with_dictionary(chunk):
    """Whether a chunk is one that the library writes, but does not read: a copy that is said to have a dictionary, and has none."""
    return bool(chunk[2] & 2 and chunk[31] & 1)


def compare(path):
    """Everything that both say of a frame; the number of its chunks."""
    frame = open_frame(path)
    schunk = schunk_of(frame)
    entries = (Sframe(path) if path.is_dir() else Cframe.read(path)).entries
    assert schunk.nchunks == len(entries)
    chunks = [schunk.get_chunk(n) for n in range(schunk.nchunks)]
    rows = [json.loads(line) for line in b2fuse("ls", "--json", path).splitlines()]
    assert len(rows) == len(chunks), f"{len(rows)} lines for {len(chunks)} chunks"
    # In the long run of equal chunks a few will do.
    some = [n for n in range(len(chunks)) if n < 40 or n > len(chunks) - 5]
    for n in some:
        expected = expected_row(path, frame, n, entries[n], chunks[n])
        assert rows[n] == expected, f"chunk {n}: got {rows[n]}, expected {expected}"
    assert len(b2fuse("ls", path).splitlines()) == len(chunks) + 1
    raw = b2fuse("cat", "--raw", path, "0-")
    for n, chunk in enumerate(chunks):
        if entries[n] < 0 and not schunk.blocksize:
            # The library's own choice, of no meaning here.
            chunk = chunks[n] = chunk[:8] + raw[8:12] + chunk[12:]
        assert raw[: len(chunk)] == chunk, f"chunk {n}, raw"
        raw = raw[len(chunk) :]
    assert not raw
    readable = [n for n, chunk in enumerate(chunks) if not copy_with_dictionary(chunk)]
    data = b2fuse("cat", path, *(["0-"] if len(readable) == len(chunks) else readable)) if readable else b""
    for n in readable:
        chunk, size = chunks[n], rows[n]["nbytes"]
        if special_of(chunk) == UNINIT:
            assert not any(data[:size]), f"chunk {n} was never initialised, but is not zeros"
        elif not chunk_is_vl(chunk):
            assert data[:size] == schunk.decompress_chunk(n), f"chunk {n}, decompressed"
        data = data[size:]
    assert not data
    for n in some[:: max(1, len(some) // 3)]:
        assert b2fuse("cat", "--raw", path, n) == chunks[n]
    return len(chunks)


def cparams(rng, typesize):
    """Any codec, pipeline and splitting."""
    codecs = [blosc2.Codec.BLOSCLZ, blosc2.Codec.LZ4, blosc2.Codec.LZ4HC, blosc2.Codec.ZLIB, blosc2.Codec.ZSTD]
    codec = codecs[rng.integers(len(codecs))]
    pipelines = [[], ["SHUFFLE"], ["BITSHUFFLE"], ["DELTA"], ["DELTA", "SHUFFLE"], ["TRUNC_PREC", "BITSHUFFLE"]]
    names = pipelines[rng.integers(6 if typesize in (4, 8) else 5)]
    params = {"codec": codec, "clevel": int(rng.integers(0, 10)), "typesize": typesize, "nthreads": 1}
    params |= {"filters": [blosc2.Filter[name] for name in names], "filters_meta": [10 if name == "TRUNC_PREC" else 0 for name in names]}
    params["splitmode"] = list(blosc2.SplitMode)[rng.integers(4)]
    params["use_dict"] = bool(codec is blosc2.Codec.ZSTD and rng.integers(2) and params["clevel"])
    return params


def numbers(rng, nbytes):
    """From noise to none at all."""
    kind = rng.integers(4)
    if kind == 0:
        return rng.bytes(nbytes)
    if kind == 1:
        return np.arange(nbytes // 8 + 1, dtype="<i8").tobytes()[:nbytes]
    if kind == 2:
        return np.cumsum(rng.normal(size=nbytes // 8 + 1)).tobytes()[:nbytes]
    return bytes([int(rng.integers(256))]) * nbytes


def make_chunks(rng, path, contiguous):
    """A frame of chunks of every kind, the last one short now and then; some moved, replaced and deleted."""
    typesize = int(rng.choice([1, 2, 3, 4, 8, 16, 24]))
    chunksize = typesize * int(rng.integers(1, 5000))
    params = cparams(rng, typesize)
    frame = blosc2.SChunk(chunksize=chunksize, urlpath=str(path), contiguous=contiguous, mode="w", cparams=params)
    count = int(rng.integers(0, 14))
    short = bool(rng.integers(2))
    for n in range(count):
        items = int(rng.integers(1, chunksize // typesize + 1)) if short and n == count - 1 else chunksize // typesize
        frame.append_data(numbers(rng, typesize * items))
    for n in range(count - 1):
        kind = ["ZERO", "NAN", "UNINIT", "VALUE", None, None, None, None][rng.integers(8)]
        if kind == "NAN" and typesize not in (4, 8):
            continue
        if kind:
            frame.update_special(n, blosc2.SpecialValue[kind], bytes(range(1, typesize + 1)) if kind == "VALUE" else None)
        elif rng.integers(3) == 0:
            frame.update_data(n, numbers(rng, chunksize), copy=True)
    # Behind a short chunk, inserting makes a frame of chunks that vary in size, of which the library reads no special ones.
    if count > 3 and not short:
        frame.delete_chunk(1)
        frame.insert_data(0, numbers(rng, chunksize), copy=True)


def make_array(rng, path, contiguous):
    """An array of 1 to 8 dimensions, whose edges do not divide."""
    ndim = int(rng.integers(1, 9))
    shape = [int(n) for n in rng.integers(1, 3 if ndim > 4 else 12, ndim)]
    chunks = [int(rng.integers(1, n + 1)) for n in shape]
    blocks = [int(rng.integers(1, n + 1)) for n in chunks]
    dtype = np.dtype(str(rng.choice(["<i4", "<f8", "|u1", "<U3", "<c16"])))
    data = np.resize(np.frombuffer(rng.integers(0, 90, 4096).astype("<u4").tobytes(), dtype="<u4"), int(np.prod(shape)))
    array = data.astype(dtype).reshape(shape)
    params = cparams(rng, dtype.itemsize)
    params |= {"filters": [blosc2.Filter.SHUFFLE], "filters_meta": [0]}
    blosc2.asarray(array, chunks=chunks, blocks=blocks, urlpath=str(path), mode="w", contiguous=contiguous, cparams=params)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-30")
    first, last = map(int, parser.parse_args().seeds.split("-"))
    blosc2.set_nthreads(1)
    failed, passed, chunks = 0, 0, 0
    with tempfile.TemporaryDirectory() as where:
        jobs = [(path, None) for layout in ("cframe", "sframe") for path in sorted((ROOT / "tests/data" / layout).iterdir())]
        for seed in range(first, last + 1):
            for contiguous in (True, False):
                jobs.append((Path(where, f"{seed}-{'c' if contiguous else 's'}.b2frame"), (seed, contiguous)))
        for path, generated in jobs:
            try:
                if generated:
                    make = make_array if generated[0] % 3 == 0 else make_chunks
                    make(np.random.default_rng(generated[0]), path, generated[1])
                chunks += compare(path)
                passed += 1
            except (AssertionError, RuntimeError, ValueError, KeyError) as error:
                print(f"FAILED {path.name}: {error!r}")
                failed += 1
    print(f"{chunks} chunks")
    print(f"{passed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
