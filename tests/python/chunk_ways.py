#!/usr/bin/env python3
"""Chunks and frames of every kind, put into frames in every way: what is taken reads as what was put in, what is refused changes
nothing, and C-Blosc2 opens SOURCE afterwards in either case.

Each round makes a frame and chunks for it, some that fit and many that do not quite: other block and item sizes, special values, plain
copies, VL-blocks, Blosc1, other lengths. Each chunk goes in over a chunk file by a copy and by a rename, by the library's own calls on
a view, inside a whole frame over a contiguous view, inside a frame that is made in a mounted directory as a file and as a directory, and
inside a frame that is converted both ways or repaired. Frames whose array has another shape than their chunks enter as a whole and by
their index. The library then reads SOURCE in a process of its own, as it may crash: whole, by slices and by items.

    chunk_ways.py [--seed S] [--count N | --seconds S] [--jobs N] [--library PYTHON ...] [--blosc1 PYTHON] [--binary B2FUSE]

`--library` names Pythons with other versions of blosc2, which make frames and chunks in turn with this one; `--blosc1` one with blosc:
blosc 1.11.4 has C-Blosc 1.21. Prints each round's seed if it fails. The last line is the count.
"""

import argparse
import collections
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy

READS = Path(__file__).resolve()


class Failure(Exception):
    pass


# --- making: also by other versions of the library ---


def values(rng, items, dtype):
    kind = rng.choice(["ramp", "noise", "zeros", "same", "nan"])
    if kind == "ramp":
        made = numpy.arange(items) % 91
    elif kind == "noise":
        made = numpy.frombuffer(rng.getrandbits(8 * items).to_bytes(items, "little"), "u1")
    elif kind == "nan" and dtype.kind == "f":
        made = numpy.full(items, numpy.nan)
    else:
        made = numpy.full(items, 0 if kind == "zeros" else 7)
    return made.astype(dtype)


def make_frame(folder, seed):
    """A frame in both layouts, and what its chunks hold. Only what all versions of the library have."""
    import blosc2

    rng = random.Random(seed)
    dtype = numpy.dtype(rng.choice(["u1", "i2", "f4", "f8", "f8"]))
    is_array = rng.random() < 0.6
    size = dtype.itemsize
    codec = rng.choice([blosc2.Codec.BLOSCLZ, blosc2.Codec.LZ4, blosc2.Codec.ZLIB, blosc2.Codec.ZSTD])
    cparams = {"typesize": size, "codec": codec, "clevel": rng.choice([0, 1, 5, 9]), "nthreads": 1}
    items, block = rng.choice([(256, 32), (512, 64), (1024, 1024), (240, 80)])
    count = rng.randint(1, 5)
    if is_array:
        shape = (count * items,)
        chunks, blocks = (items,), (block,)
        if rng.random() < 0.4:
            shape, chunks, blocks = (count * 16, items // 16), (16, items // 16), (16, block // 16) if block >= 16 and block % 16 == 0 else (16, items // 16)
        data = numpy.concatenate([values(rng, items, dtype) for _ in range(count)]).reshape(shape)
        blocksize = int(numpy.prod(blocks)) * size
    else:
        blocksize = rng.choice([0, block * size])
        last = rng.choice([items, items, items // 2])
        data = numpy.concatenate([*[values(rng, items, dtype) for _ in range(count - 1)], values(rng, last, dtype)])
        cparams["blocksize"] = blocksize
    for name, contiguous in [("c", True), ("s", False)]:
        path = os.path.join(folder, f"{name}.b2nd")
        if is_array:
            blosc2.asarray(data, urlpath=path, mode="w", chunks=chunks, blocks=blocks, contiguous=contiguous, cparams=cparams)
        else:
            schunk = blosc2.SChunk(chunksize=items * size, urlpath=path, mode="w", contiguous=contiguous, cparams=cparams)
            for at in range(0, len(data), items):
                schunk.append_data(data[at : at + items].copy())
    # Chunks of this version.
    made = []
    for n in range(3):
        part = values(rng, items, dtype)
        made.append((part.tobytes(), blosc2.compress2(part, typesize=size, codec=codec, blocksize=blocksize or block * size)))
    numpy.save(os.path.join(folder, "data.npy"), data)
    told = {"array": is_array, "dtype": dtype.str, "items": items, "count": count, "blocksize": blocksize, "version": blosc2.__version__}
    told["chunks"] = [[data.hex(), chunk.hex()] for data, chunk in made]
    with open(os.path.join(folder, "told.json"), "w") as file:
        json.dump(told, file)


def make_blosc1(folder, seed):
    import blosc

    rng = random.Random(seed)
    made = []
    for _ in range(4):
        part = numpy.arange(rng.choice([256, 512, 1024, 240]), dtype="f8") % 91
        made.append([part.tobytes().hex(), blosc.compress(part.tobytes(), 8, rng.choice([0, 5]), rng.choice([0, 1, 2])).hex()])
    with open(os.path.join(folder, "blosc1.json"), "w") as file:
        json.dump(made, file)


# --- the library, in a process of its own ---


def read(path, told):
    """What the library reads: chunk by chunk, by slices and by items. Anything it refuses is an exception. `loose`: chunks without values
    read as something else each time."""
    import blosc2

    def same(one, two, what):
        assert len(one) == len(two) and (told["loose"] or one == two), what

    frame = blosc2.open(path, mode="r")
    if told["only"] == "open":
        return {}
    schunk = getattr(frame, "schunk", frame)
    chunks = [schunk.decompress_chunk(n) for n in range(schunk.nchunks)]
    dtype = numpy.dtype(told["dtype"])
    if told["array"]:
        data = frame[:]
        flat = numpy.ascontiguousarray(data).reshape(-1)
        rows = data.shape[0]
        for a, b in [(0, rows), (1, rows - 1), (rows // 3, rows // 3 + 1), (rows // 2, rows)]:
            same(frame[a:b].tobytes(), data[a:b].tobytes(), f"slice {a}:{b}")
        for n in range(0, rows, max(1, rows // 17)):
            index = (n,) + (0,) * (data.ndim - 1)
            same(numpy.asarray(frame[index]).tobytes(), data[index].tobytes(), f"item {n}")
        whole = flat.tobytes()
    else:
        whole = b"".join(chunks)
        items = len(whole) // dtype.itemsize
        part = dtype.itemsize
        # Where chunks vary in size the library divides by zero.
        cuts = [(0, items), (1, items - 1), (items // 3, items // 3 + 1), (items // 2, items)] if schunk.chunksize else []
        for a, b in cuts:
            same(schunk[a:b], whole[a * part : b * part], f"slice {a}:{b}")
        for n in range(0, items if cuts else 0, max(1, items // 17)):
            same(schunk[n : n + 1], whole[n * part : (n + 1) * part], f"item {n}")
    return {"whole": whole.hex(), "chunks": [chunk.hex() for chunk in chunks]}


def change(path, call, position, chunk):
    """One call of the library with a chunk that somebody else has compressed."""
    import blosc2

    frame = blosc2.open(path, mode="a")
    schunk = getattr(frame, "schunk", frame)
    chunk = bytes.fromhex(chunk)
    if call == "append":
        schunk.append_chunk(chunk)
    elif call == "insert":
        schunk.insert_chunk(position, chunk)
    else:
        schunk.update_chunk(position, chunk)


def serve():
    """Answers requests, a line each: [function, arguments ...]."""
    functions = {"read": read, "change": change, "make": make_frame, "make_blosc1": make_blosc1}
    for line in sys.stdin:
        name, *words = json.loads(line)
        try:
            answer = functions[name](*words) or {}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


class Library:
    """A process with the library, which is started anew if the library ends it."""

    def __init__(self, python=sys.executable):
        self.python, self.process = python, None

    def __call__(self, *request):
        if self.process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.process = subprocess.Popen([self.python, str(READS), "--serve"], text=True, **pipes)
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        status, self.process = self.process.wait(), None
        return {"error": f"the library ended with {status}"}

    def make(self, *request):
        answer = self(*request)
        if "error" in answer:
            raise Failure(f"{self.python} does not make a frame: {answer['error']}")

    def end(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


# --- chunks that may or may not fit ---


def candidates(rng, told, blosc1):
    """(name, data or None for any, chunk, must be taken over a chunk of a full size)."""
    import libblosc2 as lib

    dtype = numpy.dtype(told["dtype"])
    size, items, blocksize = dtype.itemsize, told["items"], told["blocksize"]
    nbytes = items * size
    part = values(rng, items, dtype)
    data = part.tobytes()
    made = [("native", bytes.fromhex(data), bytes.fromhex(chunk), True) for data, chunk in told["chunks"]]

    def compress(name, must=False, data=data, **options):
        options = {"typesize": size, "blocksize": blocksize, **options}
        chunk = lib.compress(data, lib.params(**options))
        # Of items that are no whole blocks it makes chunks that it does not read.
        if chunk and lib.decompress(chunk, len(data)) == data:
            made.append((name, data, chunk, must))

    codec = rng.choice(list(lib.CODECS))
    # Neither delta nor dictionaries: of such chunks the library reads some items wrongly or not at all, natively too.
    filters = rng.choice([(), (lib.SHUFFLE,), (lib.BITSHUFFLE,)])
    usual = {"codec": codec, "filters": filters, "clevel": rng.choice([0, 1, 9])}
    compress("as the frame's", True, **usual)
    compress("split", True, splitmode=rng.choice([lib.ALWAYS_SPLIT, lib.NEVER_SPLIT]), **usual)
    for other in rng.sample([8, 16, 100, 128, 512, 1024, 4096, 8192, nbytes], 4):
        compress(f"blocks of {other}", False, **{**usual, "blocksize": other})
    for other in rng.sample([1, 2, 3, 4, 8, 16, 255, 300], 3):
        compress(f"items of {other}", False, typesize=other, **usual)
    compress("short", False, data=data[: nbytes // 2], **usual)
    compress("one item", False, data=data[:size], **usual)
    compress("long", False, data=data + data[:size], **usual)
    for other in {blocksize, 0, nbytes}:
        for typesize in {size, rng.choice([1, 4, 8])}:
            params = lib.params(typesize=typesize, blocksize=other)
            for kind, what in [("zeros", bytes(nbytes)), ("uninit", None), ("nans", None)]:
                if kind == "nans" and dtype.kind == "f" and typesize == size:
                    what = numpy.full(items, numpy.nan, dtype).tobytes()
                elif kind == "nans":
                    what = b"refused"
                chunk = lib.special(kind, params, nbytes)
                if chunk:
                    made.append((f"{kind}, blocks of {other}, items of {typesize}", what, chunk, what != b"refused" and typesize == size))
            value = bytes(rng.randrange(256) for _ in range(typesize))
            chunk = lib.special("repeatval", params, nbytes, value)
            if chunk:
                fits = typesize == size and other == blocksize
                made.append((f"a value of {typesize}, blocks of {other}", value * (nbytes // typesize), chunk, fits))
    half = lib.special("zeros", lib.params(typesize=size, blocksize=blocksize), nbytes // 2)
    if half:
        made.append(("half of zeros", bytes(nbytes // 2), half, False))
    blocks = [data[: nbytes // 3], data[nbytes // 3 :]]
    chunk = lib.vlcompress(blocks, lib.params(typesize=size))
    # Of the one chunk of a frame, which may have VL-blocks, the library reads no slice.
    if chunk and told["count"] > 1:
        made.append(("VL-blocks", data, chunk, False))
    for shuffle in (0, 1, 2):
        chunk = lib.compress_blosc1(data, rng.choice([0, 5]), shuffle, size, rng.choice(["lz4", "blosclz", "zlib"]))
        if chunk:
            made.append(("Blosc1", data, chunk, False))
    made += [("Blosc1 by itself", bytes.fromhex(data), bytes.fromhex(chunk), False) for data, chunk in blosc1]
    flags = bytearray(made[0][2])
    flags[rng.choice([0, 1, 2, 3, 30, 31])] ^= 1 << rng.randrange(8)
    # Data that is broken is not looked for at a close: `check --deep` decodes it.
    if isinstance(lib.decompress(bytes(flags), nbytes), bytes):
        made.append(("a flag turned", None, bytes(flags), False))
    return made


def another_array(rng, header):
    """The beginning of a frame with another number in its array's metalayer: (what, bytes, how many chunks it takes)."""
    at = header.find(b"\xa4b2nd")
    at = int.from_bytes(header[at + 6 : at + 10], "big") + 5
    ndim = header[at + 2]
    along, which = rng.randrange(ndim), rng.choice(["shape", "chunks", "blocks"])
    place, size = {"shape": (at + 5 + 9 * along, 8), "chunks": (at + 5 + 9 * ndim + 5 * along + 1, 4), "blocks": (at + 6 + 14 * ndim + 5 * along + 1, 4)}[which]
    old = int.from_bytes(header[place : place + size], "big", signed=True)
    new = rng.choice([0, -1, 1, old - 1, old + 1, old // 2, 2 * old, 16 * old, 2**31 - 1, *([2**40, 2**62] if size == 8 else [])])
    forged = bytearray(header)
    forged[place : place + size] = new.to_bytes(size, "big", signed=True)
    sizes = [int.from_bytes(forged[at + 5 + 9 * n :][:8], "big", signed=True) for n in range(ndim)]
    chunks = [int.from_bytes(forged[at + 6 + 9 * ndim + 5 * n :][:4], "big", signed=True) for n in range(ndim)]
    takes = math.prod(-(-size // chunk) for size, chunk in zip(sizes, chunks)) if all(chunks) else 0
    return f"{which}[{along}] of {new} for {old}", bytes(forged), takes


# --- the ways ---


class Round:
    def __init__(self, args, seed, counts, libraries):
        self.args, self.seed, self.counts, self.libraries = args, seed, counts, libraries
        self.rng = random.Random(seed)

    def b2fuse(self, *words, ok=(0,)):
        done = subprocess.run([self.args.binary, *map(str, words)], capture_output=True, text=True, timeout=120)
        if done.returncode not in ok:
            raise Failure(f"b2fuse {' '.join(map(str, words))}: {done.returncode}: {done.stderr.strip()}")
        return done.returncode

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            self.libraries[self.rng.choice([sys.executable, *self.args.library])].make("make", folder, self.seed)
            self.told = json.loads((self.folder / "told.json").read_text())
            self.nbytes = self.told["items"] * numpy.dtype(self.told["dtype"]).itemsize
            blosc1 = []
            if self.args.blosc1:
                self.libraries[self.args.blosc1].make("make_blosc1", folder, self.seed)
                blosc1 = json.loads((self.folder / "blosc1.json").read_text())
            made = candidates(self.rng, self.told, blosc1)
            self.rng.shuffle(made)
            self.chunk_files(made[: self.args.chunks], "c" if self.rng.random() < 0.5 else "s")
            full = [chunk for chunk in made if is_full(chunk[2], self.nbytes)]
            picked = self.rng.sample(full, min(self.args.others, len(full)))
            frames = [frame for n, chunk in enumerate(picked) for frame in self.frames(n, *chunk)]
            for frame in frames:
                self.whole_frame(frame)
                self.converted(frame)
            for n in range(self.args.others if self.told["array"] else 0):
                frames += self.arrays(n)
            self.made_in_a_tree(frames)
            self.calls(picked)

    def read(self, path, loose=False, only=None):
        brief = {"array": self.told["array"], "dtype": self.told["dtype"], "loose": loose, "only": only}
        return self.libraries[sys.executable]("read", str(path), brief)

    def count(self, is_taken, way):
        self.counts[f"{'taken' if is_taken else 'refused'}: {way}"] += 1

    def parts(self, path, loose=False):
        got = self.read(path, loose)
        if "error" in got:
            raise Failure(f"the library does not read {path.name}: {got['error']}")
        return [bytes.fromhex(chunk) for chunk in got["chunks"]]

    def compare(self, path, expected, why):
        got = self.parts(path, None in expected)
        if len(got) != len(expected):
            raise Failure(f"{why}: {len(got)} chunks, expected {len(expected)}")
        for n, (now, want) in enumerate(zip(got, expected)):
            if want is not None and now != want:
                raise Failure(f"{why}: chunk {n} is another")
        self.b2fuse("check", "--deep", path)

    def copy(self, name, path):
        """A copy of the frame as a file or as a directory."""
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        (shutil.copytree if name == "s" else shutil.copyfile)(self.folder / f"{name}.b2nd", path)

    def chunk_files(self, made, name):
        """Over chunk files of the sparse view, by a copy or a rename."""
        source, view = self.folder / "view.b2nd", self.folder / "view"
        self.copy(name, source)
        view.mkdir(exist_ok=True)
        expected, shown, told = self.parts(source), {}, []
        self.b2fuse("mount", "--show", "sparse", source, view)
        try:
            # Special chunks of the library have no file.
            files = {file: int(os.getxattr(file, "user.b2frame.position")) for file in sorted(view.glob("*.chunk"))}
            for name, data, chunk, must in made if files else []:
                file = self.rng.choice(list(files))
                position = files[file]
                try:
                    if self.rng.random() < 0.5:
                        file.write_bytes(chunk)
                    else:
                        (view / ".new").write_bytes(chunk)
                        os.rename(view / ".new", file)
                    is_taken = True
                except OSError:
                    is_taken = False
                told.append(f"{name} over {position}: {'taken' if is_taken else 'refused'}")
                self.count(is_taken, "chunk file")
                if must and not is_taken:
                    raise Failure(f"refused: {told[-1]}")
                if is_taken:
                    expected[position], shown[file] = data, chunk
            for file, chunk in shown.items():
                if file.read_bytes() != chunk:
                    raise Failure(f"{file.name} does not show what was written")
        finally:
            self.b2fuse("umount", view)
        try:
            self.compare(source, expected, "chunk files")
        except Failure as failure:
            raise Failure(f"{failure}\n    " + "\n    ".join(told)) from None

    def frames(self, n, name, data, chunk, must):
        """A cframe that the library has put the chunk into, if it does, and an sframe that it was copied into, both beside b2fuse."""
        path = self.folder / f"native{n}.b2nd"
        self.copy("c", path)
        position = self.rng.randrange(self.told["count"])
        made = []
        if "error" not in self.libraries[sys.executable]("change", str(path), "update", position, chunk.hex()):
            made.append(path)
        path = self.folder / f"raw{n}.b2nd"
        self.copy("s", path)
        if files := sorted(path.glob("*.chunk")):
            self.rng.choice(files).write_bytes(chunk)
            made.append(path)
        return [self.frame(name, data, chunk, must, path) for path in made]

    def frame(self, name, data, chunk, must, path):
        # Of a chunk of Blosc1 the library takes data for flags: in an index it may be one without values.
        data = None if name.startswith("Blosc1") and data != b"refused" else data
        return Frame(name, data, chunk, must, path, self.read(path, data is None))

    def whole_frame(self, frame):
        """In a whole frame that is copied over a contiguous view."""
        # Of Blosc1's chunks the library takes data for flags, and it makes NaN of any item.
        if frame.path.is_dir() or frame.name.startswith("Blosc1") or frame.data == b"refused":
            return
        source, view = self.folder / "file.b2nd", self.folder / "file"
        self.copy("s", source)
        before = self.parts(source)
        view.touch()
        self.b2fuse("mount", source, view)
        try:
            try:
                shutil.copyfile(frame.path, view)
                is_taken = True
            except OSError:
                is_taken = False
        finally:
            self.b2fuse("umount", view)
        self.count(is_taken, "whole frame")
        if frame.must and frame.chunks and not is_taken:
            raise Failure(f"a frame with {frame.name} was refused")
        if frame.may_grow and is_taken:
            return
        if is_taken and not frame.chunks:
            raise Failure(f"a frame with {frame.name} was taken, of which the library says {frame.native['error']}")
        expected = frame.chunks if is_taken else before
        self.compare(source, expected, f"a whole frame with {frame.name}")

    def arrays(self, n):
        """Both layouts of a frame whose array is another than its chunks hold: whole over a contiguous view, and by its index."""
        made, seed = [], self.rng.getrandbits(32)
        for name in "cs":
            path = self.folder / f"array-{name}{n}.b2nd"
            self.copy(name, path)
            file = path / "chunks.b2frame" if name == "s" else path
            what, forged, takes = another_array(random.Random(seed), file.read_bytes())
            file.write_bytes(forged)
            made.append(Frame(f"an array with {what}", b"", b"", False, path, self.read(path)))
            # As long as an array grows, it has fewer chunks than it takes.
            made[-1].may_grow = takes > self.told["count"] and "error" not in self.read(path, only="open")
            # Chunks without data are read at any size of blocks.
            made[-1].must = what.startswith("shape")
        for frame in made:
            self.whole_frame(frame)
            self.converted(frame)
        self.index(made[1])
        return made

    def index(self, frame):
        """An index file that is copied over that of a sparse view."""
        source, view = self.folder / "index.b2nd", self.folder / "view"
        # Another layout would have other names.
        self.copy("s", source)
        before = self.parts(source)
        self.b2fuse("mount", "--show", "sparse", source, view)
        try:
            shutil.copyfile(frame.path / "chunks.b2frame", view / "chunks.b2frame")
        finally:
            is_taken = self.b2fuse("umount", view, ok=(0, 1)) == 0
        shutil.rmtree(f"{source}.lost", ignore_errors=True)
        self.count(is_taken, "index")
        if frame.chunks and frame.must and not is_taken:
            raise Failure(f"an index of {frame.name} was refused")
        if is_taken and not frame.chunks and not frame.may_grow:
            raise Failure(f"an index of {frame.name} was taken, of which the library says {frame.native['error']}")
        if not is_taken or frame.chunks:
            self.compare(source, frame.chunks if is_taken else before, f"an index of {frame.name}")

    def converted(self, frame):
        """In a frame that is checked, converted to the other layout, and repaired."""
        is_sound = self.b2fuse("check", "--deep", frame.path, ok=(0, 1)) == 0
        if is_sound and not frame.chunks and frame.data is not None:
            raise Failure(f"check calls a frame with {frame.name} sound, of which the library says {frame.native['error']}")
        out = self.folder / "out.b2nd"
        if out.is_dir():
            shutil.rmtree(out)
        out.unlink(missing_ok=True)
        way = "converted to a file" if frame.path.is_dir() else "converted to a directory"
        is_made = self.b2fuse("convert", frame.path, out, ok=(0, 1)) == 0
        self.count(is_made, way)
        if is_made:
            got = self.read(out, frame.data is None)
            if "error" in got and (frame.chunks or frame.is_special):
                raise Failure(f"a frame with {frame.name} was {way}, and the library says {got['error']}")
            if frame.chunks and not frame.matches(got):
                raise Failure(f"a frame with {frame.name} was {way}, and is another")
        elif frame.chunks:
            raise Failure(f"a frame with {frame.name}, which the library reads, was not {way}")
        if frame.path.is_dir() and frame.is_special:
            repaired = self.folder / "repaired.b2nd"
            if repaired.exists():
                shutil.rmtree(repaired)
            shutil.copytree(frame.path, repaired)
            self.b2fuse("repair", "--yes", repaired)
            self.parts(repaired, frame.data is None)
            self.count(True, "repaired")

    def made_in_a_tree(self, frames):
        """Made in a mounted directory, as a file or as a directory, and stored in the layout that `--show` asks for."""
        folder, view = self.folder / "dir", self.folder / "tree"
        folder.mkdir()
        view.mkdir()
        show = self.rng.choice(["other", "sparse", "contiguous"])
        self.b2fuse("mount", "--show", show, folder, view)
        kept = []
        try:
            for frame in frames:
                try:
                    (shutil.copytree if frame.path.is_dir() else shutil.copyfile)(frame.path, view / frame.path.name)
                    is_taken = True
                except (OSError, shutil.Error):
                    is_taken = False
                self.count(is_taken, f"made with --show {show}")
                kept.append((frame, is_taken))
        finally:
            # Files of a directory that is no frame in the end are saved.
            status = self.b2fuse("umount", view, ok=(0, 1))
        if status != bool(list(folder.glob("*.lost"))):
            raise Failure(f"unmounting returned {status}, and {list(folder.glob('*.lost'))} was saved")
        for frame, is_taken in kept:
            path = folder / frame.path.name
            is_saved = path.with_name(f"{path.name}.lost").exists()
            if is_saved:
                self.counts["saved beside it"] += 1
            elif frame.chunks and is_taken and not frame.matches(got := self.read(path, frame.data is None)):
                raise Failure(f"a frame with {frame.name}, made with --show {show}, is another: {got.get('error')}")
            if frame.chunks and frame.must and (is_saved or not is_taken):
                raise Failure(f"a frame with {frame.name} was refused with --show {show}")

    def calls(self, picked):
        """By calls of the library that take chunks, on a view of either kind. Of an array only whole chunks can be replaced."""
        layout = self.rng.choice("cs")
        source, view, native = self.folder / "calls.b2nd", self.folder / "calls", self.folder / "native.b2nd"
        for name, data, chunk, must in picked:
            call = "update" if self.told["array"] else self.rng.choice(["update", "insert", "append"])
            position = self.rng.randrange(self.told["count"])
            request = (call, position, chunk.hex())
            self.copy("s" if layout == "c" else "c", native)
            is_taken = "error" not in self.libraries[sys.executable]("change", str(native), *request)
            frame = self.frame(name, data, chunk, must, native)
            self.copy(layout, source)
            before = self.parts(source)
            if view.is_dir():
                view.rmdir()
            view.unlink(missing_ok=True)
            view.mkdir() if layout == "c" else view.touch()
            self.b2fuse("mount", source, view)
            try:
                answer = self.libraries[sys.executable]("change", str(view), *request)
            finally:
                # The library hears nothing of a refused close: its index names a chunk that is none.
                status = self.b2fuse("umount", view, ok=(0, 1))
            shutil.rmtree(f"{source}.lost", ignore_errors=True)
            got = self.read(source, frame.data is None)
            is_new = frame.chunks and frame.matches(got)
            self.count(is_new, f"{call} by the library")
            if is_taken and frame.chunks and must and not is_new:
                raise Failure(f"{call} of {name} at {position} is lost: {answer}, {status}, {got.get('error')}")
            # The library writes NaN for items of any size, and does not read it. It opens the frame, and reads all else.
            if "error" in got and not ("error code: -3" in got["error"] and got == frame.native):
                raise Failure(f"after {call} of {name} at {position} the library says {got['error']}")
            if not is_new and "error" not in got and [bytes.fromhex(one) for one in got["chunks"]] != before:
                raise Failure(f"{call} of {name} at {position} is another")


class Frame:
    """A frame beside b2fuse with a chunk that may not fit, and what the library reads of it."""

    def __init__(self, name, data, chunk, must, path, native):
        self.name, self.data, self.must, self.path, self.native = name, data, must, path, native
        # `None` for what has no values; nothing where the library refuses.
        parts = [bytes.fromhex(chunk) for chunk in native.get("chunks", [])]
        self.chunks = [None] * len(parts) if data is None else parts
        self.is_special = len(chunk) == 32 and chunk[31] >> 4 & 7 in (1, 2, 4) and data != b"refused"
        self.may_grow = False

    def matches(self, got):
        parts = got.get("chunks", [])
        return len(parts) == len(self.chunks) and all(want in (None, bytes.fromhex(now)) for want, now in zip(self.chunks, parts))


def is_full(chunk, nbytes):
    return int.from_bytes(chunk[4:8], "little") == nbytes


# --- rounds ---


class Libraries(dict):
    def __missing__(self, python):
        self[python] = Library(python)
        return self[python]


def rounds(args, seeds, results):
    """Plays the rounds of the seeds in one process."""
    libraries = Libraries()
    end = time.monotonic() + args.seconds if args.seconds else None
    for seed in seeds:
        if end and time.monotonic() > end:
            break
        counts, failure = collections.Counter(), None
        try:
            Round(args, seed, counts, libraries).run()
        except Exception as error:
            failure = str(error) if isinstance(error, Failure) else f"{type(error).__name__}: {error}"
        results.put((seed, counts, failure))
    for library in libraries.values():
        library.end()
    results.put(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10, help="rounds")
    parser.add_argument("--seconds", type=float, help="as many rounds as fit instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rounds at a time")
    parser.add_argument("--chunks", type=int, default=12, help="chunks that are copied into each frame")
    parser.add_argument("--others", type=int, default=2, help="chunks that enter frames in each other way")
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--blosc1")
    parser.add_argument("--binary", default=os.environ.get("B2FUSE", "target/release/b2fuse"))
    args = parser.parse_args()
    args.binary = os.path.abspath(args.binary)
    results, running = multiprocessing.Queue(), args.jobs
    for job in range(args.jobs):
        seeds = itertools.count(args.seed + job, args.jobs) if args.seconds else range(args.seed + job, args.seed + args.count, args.jobs)
        multiprocessing.Process(target=rounds, args=(args, seeds, results), daemon=True).start()
    counts, passed, failed = collections.Counter(), 0, 0
    while running:
        if (result := results.get()) is None:
            running -= 1
            continue
        seed, these, failure = result
        counts.update(these)
        if failure is None:
            passed += 1
        else:
            failed += 1
            print(f"seed {seed}: {failure}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    print(f"{sum(counts.values())} ways tried\n{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve()
    else:
        main()
