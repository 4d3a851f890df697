#!/usr/bin/env python3
"""Chunks and frames of every kind, put into frames in every way: what is taken reads as what was put in, what is refused changes
nothing, and C-Blosc2 opens SOURCE afterwards in either case.

Each round makes a frame and chunks for it, some that fit and many that do not quite: other block and item sizes, special values, plain
copies, dictionaries, VL-blocks, Blosc1, other lengths. Each chunk goes in over a chunk file by a copy and by a rename, inside a whole
frame over a contiguous view, and inside a frame that is converted or repaired. The library then reads SOURCE in a process of its own,
as it may crash: whole, by slices and by items.

    chunk_ways.py [--seed S] [--count N] [--library PYTHON ...] [--blosc1 PYTHON] [--binary B2FUSE]

`--library` names Pythons with other versions of blosc2, which make frames and chunks in turn with this one; `--blosc1` one with blosc.
Prints each round's seed if it fails. The last line is the count.
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

READS = Path(__file__).resolve()


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


# --- reading, in a process of its own ---


def read(path, told):
    """What the library reads: chunk by chunk, by slices and by items. Anything it refuses is an exception. `loose`: chunks without values
    read as something else each time."""
    import blosc2

    def same(one, two, what):
        assert len(one) == len(two) and (told["loose"] or one == two), what

    frame = blosc2.open(path, mode="r")
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
        for a, b in [(0, items), (1, items - 1), (items // 3, items // 3 + 1), (items // 2, items)]:
            same(schunk[a:b], whole[a * part : b * part], f"slice {a}:{b}")
        for n in range(0, items, max(1, items // 17)):
            same(schunk[n : n + 1], whole[n * part : (n + 1) * part], f"item {n}")
    return {"whole": whole.hex(), "chunks": [chunk.hex() for chunk in chunks]}


def reader():
    for line in sys.stdin:
        path, told = json.loads(line)
        try:
            answer = read(path, told)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


class Reader:
    def __init__(self):
        self.process = None

    def __call__(self, path, told, loose=False):
        if self.process is None:
            command = [sys.executable, str(READS), "--read"]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        brief = {"array": told["array"], "dtype": told["dtype"], "loose": loose}
        self.process.stdin.write(json.dumps([str(path), brief]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        status, self.process = self.process.wait(), None
        return {"error": f"the library ended with {status}"}


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
    made.append(("a flag turned", None, bytes(flags), False))
    return made


# --- the ways ---


class Failure(Exception):
    pass


class Round:
    def __init__(self, args, seed, counts, reader):
        self.args, self.seed, self.counts, self.reader = args, seed, counts, reader
        self.rng = random.Random(seed)

    def b2fuse(self, *words, ok=(0,)):
        done = subprocess.run([self.args.binary, *map(str, words)], capture_output=True, text=True, timeout=120)
        if done.returncode not in ok:
            raise Failure(f"b2fuse {' '.join(map(str, words))}: {done.returncode}: {done.stderr.strip()}")
        return done.returncode

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            python = self.rng.choice([sys.executable, *self.args.library])
            if python == sys.executable:
                make_frame(folder, self.seed)
            else:
                subprocess.run([python, READS, "--make", folder, str(self.seed)], check=True, capture_output=True)
            self.told = json.loads((self.folder / "told.json").read_text())
            self.nbytes = self.told["items"] * numpy.dtype(self.told["dtype"]).itemsize
            blosc1 = []
            if self.args.blosc1:
                subprocess.run([self.args.blosc1, READS, "--make-blosc1", folder, str(self.seed)], check=True, capture_output=True)
                blosc1 = json.loads((self.folder / "blosc1.json").read_text())
            made = candidates(self.rng, self.told, blosc1)
            self.rng.shuffle(made)
            self.chunk_files(made[: self.args.chunks], "c" if self.rng.random() < 0.5 else "s")
            for chunk in self.rng.sample(made, 2):
                self.whole_frame(chunk)
                self.raw_frame(chunk)

    def parts(self, path, loose=False):
        got = self.reader(path, self.told, loose)
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

    def chunk_files(self, made, name):
        """Over chunk files of the sparse view, by a copy or a rename."""
        source, view = self.folder / "view.b2nd", self.folder / "view"
        copy = shutil.copytree if name == "s" else shutil.copyfile
        copy(self.folder / f"{name}.b2nd", source)
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
                self.counts[f"{'taken' if is_taken else 'refused'}: chunk"] += 1
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

    def native(self, data, chunk):
        """A cframe that the library has put the chunk into, where it does, and whether it reads that."""
        import blosc2

        path = self.folder / "native.b2nd"
        path.unlink(missing_ok=True)
        frame = blosc2.open(str(self.folder / "c.b2nd"), mode="r")
        schunk = getattr(frame, "schunk", frame)
        path.write_bytes(schunk.to_cframe())
        frame = blosc2.open(str(path), mode="a")
        schunk = getattr(frame, "schunk", frame)
        position = self.rng.randrange(schunk.nchunks)
        try:
            schunk.update_chunk(position, bytes(chunk))
        except Exception:
            return None, None
        del frame, schunk
        return path, self.reader(path, self.told, data is None)

    def whole_frame(self, made):
        """In a whole frame that is copied over a contiguous view."""
        name, data, chunk, must = made
        path, native = self.native(data, chunk)
        # Of chunks that vary in size the library reads no slice. Of Blosc1's it takes data for flags, and it makes NaN of any item.
        if name.startswith("Blosc1") or data == b"refused" or path is None or not self.is_full(chunk):
            return
        source, view = self.folder / "file.b2nd", self.folder / "file"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(self.folder / "s.b2nd", source)
        before = self.parts(source)
        view.touch()
        self.b2fuse("mount", source, view)
        try:
            try:
                shutil.copyfile(path, view)
                is_taken = True
            except OSError:
                is_taken = False
        finally:
            self.b2fuse("umount", view)
        self.counts[f"{'taken' if is_taken else 'refused'}: whole frame"] += 1
        if must and "error" not in native and not is_taken:
            raise Failure(f"a frame with {name} was refused")
        if is_taken and "error" in native and not self.args.lenient:
            raise Failure(f"a frame with {name} was taken, of which the library says {native['error']}")
        expected = [bytes.fromhex(chunk) for chunk in native["chunks"]] if is_taken else before
        if is_taken and data is None:
            expected = [None] * len(expected)
        self.compare(source, expected, f"a whole frame with {name}")

    def raw_frame(self, made):
        """In an sframe beside the library, which is converted and repaired."""
        name, data, chunk, _ = made
        if not self.is_full(chunk):
            return
        raw = self.folder / "raw.b2nd"
        shutil.rmtree(raw, ignore_errors=True)
        shutil.copytree(self.folder / "s.b2nd", raw)
        files = sorted(raw.glob("*.chunk"))
        if not files:
            return
        self.rng.choice(files).write_bytes(chunk)
        native = self.reader(raw, self.told, data is None)
        is_sound = self.b2fuse("check", "--deep", raw, ok=(0, 1)) == 0
        if is_sound and "error" in native and data is not None:
            raise Failure(f"check calls a frame with {name} sound, of which the library says {native['error']}")
        is_special = chunk[31] >> 4 & 7 in (1, 2, 4) and len(chunk) == 32
        out = self.folder / "out.b2nd"
        out.unlink(missing_ok=True)
        converted = self.b2fuse("convert", raw, out, ok=(0, 1)) == 0
        self.counts[f"{'converted' if converted else 'refused'}: raw frame"] += 1
        if converted:
            got = self.reader(out, self.told, data is None)
            if "error" in got and ("error" not in native or is_special and data != b"refused"):
                raise Failure(f"a frame with {name} was converted, and the library says {got['error']}")
        if is_special and data != b"refused":
            self.b2fuse("repair", "--yes", raw)
            self.parts(raw, data is None)
            self.counts["repaired: raw frame"] += 1

    def is_full(self, chunk):
        return int.from_bytes(chunk[4:8], "little") == self.nbytes


def main():
    sys.path.insert(0, str(READS.parent))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10, help="rounds")
    parser.add_argument("--seconds", type=float, help="rounds for so long instead")
    parser.add_argument("--chunks", type=int, default=12, help="chunks that are copied into each frame")
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--blosc1")
    parser.add_argument("--binary", default=os.environ.get("B2FUSE", "target/release/b2fuse"))
    parser.add_argument("--lenient", action="store_true")
    parser.add_argument("--keep-going", action="store_true")
    args = parser.parse_args()
    args.binary = os.path.abspath(args.binary)
    import time

    end = time.monotonic() + (args.seconds or 0)
    counts, read, passed, failed, seed = collections.Counter(), Reader(), 0, 0, args.seed
    while time.monotonic() < end if args.seconds else seed < args.seed + args.count:
        try:
            Round(args, seed, counts, read).run()
            passed += 1
        except Failure as failure:
            failed += 1
            print(f"seed {seed}: {failure}")
            if not args.keep_going:
                break
        seed += 1
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        reader()
    elif sys.argv[1:2] == ["--make"]:
        make_frame(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1:2] == ["--make-blosc1"]:
        make_blosc1(sys.argv[2], int(sys.argv[3]))
    else:
        main()
