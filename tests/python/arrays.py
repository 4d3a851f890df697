#!/usr/bin/env python3
"""Decompressed views, held against the library and NumPy: every byte of random frames, as every kind of reader sees it.

Each frame is mounted with `--show npy` and with `--show raw`. Its file must be what `np.save` makes of the library's `arr[()]`: read
whole, in pieces at random places, through `mmap`, by `np.load` with and without a map; its size, its blocks, its holes. `cat --npy`,
with slices, and `convert`, both ways, are held against the same bytes. Then all frames are put into one tree, which is mounted once.

    arrays.py                        25 frames
    arrays.py --count 300 --seed 7   as many as you like; a failure says which --first and --seed show it
    arrays.py --self-test            on native files in place of mounts, which pass, and with a fault in each, which must be found

--parts npy,raw,tree,cat,convert,encode takes some of it. Needs python-blosc2 4.14 or newer. The last line is the count.
"""

import argparse
import errno
import math
import mmap
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path

import blosc2
import numpy as np

from arrayframes import by_chunks, saved, some_frame
from mounts import Mount, default_binary, is_mounted

PARTS = ["npy", "raw", "tree", "cat", "convert", "encode"]
READS = 25
# What is kept of decoded blocks: all, none, few, in memory or in a file.
CACHES = [[], [], ["--cache-size", "0"], ["--cache-size", "64K"], ["--cache-size", "64K", "--spill", "none"]]


class Wrong(AssertionError):
    """What is shown is not what it must be."""


def first_difference(got, expected):
    """Where and how bytes differ, in words; None if they do not."""
    if got == expected:
        return None
    at = next((n for n, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
    return f"{len(got)} bytes, expected {len(expected)}; from {at} on {got[at : at + 24]!r}, expected {expected[at : at + 24]!r}"


def expect_bytes(what, got, expected):
    difference = first_difference(bytes(got), expected)
    if difference:
        raise Wrong(f"{what}: {difference}")


def expect(what, got, expected):
    if got != expected:
        raise Wrong(f"{what}: {got!r}, expected {expected!r}")


# ---- Readers of one file that is shown


def whole(path, expected, rng):
    expect_bytes("the whole file", path.read_bytes(), expected)


def attributes(path, expected, rng):
    stat = path.stat()
    expect("st_size", stat.st_size, len(expected))
    used = len(expected) - expected.count(0)
    # What is not zeros counts, and some zeros may.
    least, most = max(-(-used // 512), 1 if expected else 0), -(-len(expected) // 4096) * 8
    if not least <= stat.st_blocks <= most:
        raise Wrong(f"st_blocks: {stat.st_blocks}, expected {least} to {most}, for {used} of {len(expected)} bytes are not zeros")
    expect("a file's times, twice", (path.stat().st_mtime_ns, path.stat().st_ino), (stat.st_mtime_ns, stat.st_ino))


def pieces(path, expected, rng):
    """Reads at random places, some over the end."""
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(READS):
            at = rng.randrange(len(expected) + 10)
            length = rng.choice([1, 7, 100, 512, 4096, 5000, 1 << 17, len(expected) + 1])
            expect_bytes(f"{length} bytes at {at}", os.pread(fd, length, at), expected[at : at + length])
    finally:
        os.close(fd)


def mapped(path, expected, rng):
    if not expected:
        return
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        for _ in range(READS):
            at = rng.randrange(len(expected))
            length = rng.choice([1, 100, 5000])
            expect_bytes(f"{length} bytes of a map at {at}", memory[at : at + length], expected[at : at + length])
        expect_bytes("a map", memory, expected)


def backwards(path, expected, rng):
    """From the end on, as who unpacks an archive, or shows a log, reads."""
    step = max(rng.choice([100, 4096, 65_536]), len(expected) // 50 + 1)
    with open(path, "rb", buffering=0) as file:
        for at in range((len(expected) - 1) // step * step if expected else 0, -1, -step):
            file.seek(at)
            expect_bytes(f"{step} bytes at {at}, backwards", file.read(step), expected[at : at + step])


def holes(path, expected, rng):
    """SEEK_HOLE and SEEK_DATA go through the file once, and what is between is zeros."""
    size = len(expected)
    fd = os.open(path, os.O_RDONLY)
    try:
        at = 0
        while at < size:
            hole = os.lseek(fd, at, os.SEEK_HOLE)
            if not at <= hole <= size:
                raise Wrong(f"SEEK_HOLE from {at}: {hole}, in a file of {size}")
            if hole == size:
                break
            try:
                data = os.lseek(fd, hole, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                data = size
            if not hole < data <= size:
                raise Wrong(f"SEEK_DATA from {hole}: {data}, in a file of {size}")
            if expected[hole:data].count(0) != data - hole:
                raise Wrong(f"a hole from {hole} to {data}, which is not all zeros")
            at = data
        for whence in (os.SEEK_HOLE, os.SEEK_DATA):
            try:
                raise Wrong(f"a seek at the end gives {os.lseek(fd, size, whence)}, expected ENXIO")
            except OSError as error:
                expect("a seek at the end", errno.errorcode[error.errno], "ENXIO")
    finally:
        os.close(fd)


def loaded(path, expected, rng):
    """np.load sees what it sees in a native file, whether it maps or not."""
    for mode in (None, "r"):
        results = []
        for file in (native_twin(expected), path):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    array = np.load(file, mmap_mode=mode, max_header_size=1 << 20)
                results.append((array.dtype.descr if array.dtype.names else array.dtype.str, array.shape, array.tobytes()))
            except Exception as error:
                # Of a map of nothing, and of whatever is no header.
                results.append(f"{type(error).__name__}: {error}")
        if results[0] != results[1]:
            raise Wrong(f"np.load with mmap_mode={mode}: {str(results[1])[:200]}, expected {str(results[0])[:200]}")


def from_file(path, expected, rng):
    """np.fromfile and np.memmap of raw bytes."""
    expect_bytes("np.fromfile", np.fromfile(path, "u1").tobytes(), expected)
    if expected:
        expect_bytes("np.memmap", np.memmap(path, "u1", "r").tobytes(), expected)


def refused(path, expected, rng):
    """Nothing can be written, by who opens it nor, in a directory, beside it."""
    calls = [("opening for writing", lambda: os.open(path, os.O_RDWR)), ("cutting", lambda: os.truncate(path, 0))]
    if not is_mounted(path):
        calls += [
            ("removing", lambda: os.unlink(path)),
            ("renaming", lambda: os.rename(path, path.with_name("other"))),
            ("making a file of such a name", lambda: os.open(path.with_name("new.b2nd.npy"), os.O_CREAT | os.O_WRONLY)),
        ]
    for what, call in calls:
        try:
            call()
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EPERM):
                raise Wrong(f"{what}: {error}, expected EROFS or EPERM") from error
        else:
            raise Wrong(f"{what} is not refused")


ANY = [attributes, pieces, mapped, whole, backwards, holes, from_file]
NPY = [*ANY, loaded]

_twin = None


def native_twin(content):
    _twin.write_bytes(content)
    return _twin


def check_file(path, expected, rng, readers):
    """All readers, in random order: the first finds nothing decoded yet."""
    for reader in rng.sample(readers, len(readers)):
        try:
            reader(path, expected, rng)
        except (OSError, ValueError) as error:
            raise Wrong(f"{reader.__name__}: {type(error).__name__}: {error}") from error


# ---- What is shown, by a mount or by who stands in for it


class Mounted:
    """The file that a mount shows of a frame."""

    def __init__(self, directory):
        self.point = directory / "mount"

    @contextmanager
    def shown(self, made, show, expected, rng, options=()):
        on_file = rng.random() < 0.2
        point = self.point.with_name("file") if on_file else self.point
        with Mount(made.path, point, ["--show", show, *rng.choice(CACHES), *options], on_file=on_file):
            if on_file:
                yield point
            else:
                name = f"{made.path.name}.{show}"
                expect("what the mount lists", os.listdir(point), [name])
                yield point / name


class StandIn:
    """A native file, with a fault or without."""

    def __init__(self, directory, fault=None):
        self.directory, self.fault = directory / "stand-in", fault
        self.directory.mkdir()

    @contextmanager
    def shown(self, made, show, expected, rng, options=()):
        path = self.directory / f"{made.path.name}.{show}"
        content = expected if self.fault is None else self.fault(expected)
        if content is None:
            raise NotApplicable
        path.write_bytes(content)
        yield path


class NotApplicable(Exception):
    pass


def another_byte(content):
    """In the middle of the data."""
    at = len(content) * 2 // 3
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] if content else None


def another_last_byte(content):
    return content[:-1] + bytes([content[-1] ^ 0x80]) if content else None


def too_short(content):
    return content[:-1] if content else None


def padding_behind(content):
    return content + bytes(8)


def exchanged(content):
    """Two runs of bytes, as blocks in the wrong order are."""
    size = len(content) // 5
    one, other = content[2 * size : 3 * size], content[4 * size : 5 * size]
    changed = content[: 2 * size] + other + content[3 * size : 4 * size] + one + content[5 * size :]
    return changed if changed != content else None


def no_room_in_the_header(content):
    """A header as NumPy 1.13 wrote it."""
    if content[:6] != b"\x93NUMPY" or content[6] != 1:
        return None
    end = 10 + int.from_bytes(content[8:10], "little")
    text = content[10:end].rstrip()
    text += b" " * (-(len(text) + 11) % 16) + b"\n"
    changed = content[:8] + len(text).to_bytes(2, "little") + text + content[end:]
    return changed if changed != content else None


FAULTS = [another_byte, another_last_byte, too_short, padding_behind, exchanged, no_room_in_the_header]


# ---- Parts


def npy(made, side, rng):
    """As an array, with the item type that is given for one that has none."""
    if made.array is None:
        return raw(made, side, rng)
    with side.shown(made, "npy", made.npy, rng) as path:
        check_file(path, made.npy, rng, NPY + [refused] * isinstance(side, Mounted))
    if made.word:
        expected = saved(made.typed)
        with side.shown(made, "npy", expected, rng, ["-o", f"dtype={made.word}"]) as path:
            check_file(path, expected, rng, NPY)


def raw(made, side, rng):
    with side.shown(made, "raw", made.raw, rng) as path:
        check_file(path, made.raw, rng, ANY + [refused] * isinstance(side, Mounted))


def b2fuse(*args, code=0):
    done = subprocess.run([default_binary(), *map(str, args)], capture_output=True, timeout=120)
    if done.returncode != code:
        raise Wrong(f"{' '.join(map(str, args))}: exit code {done.returncode}, expected {code}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def some_slice(rng, shape):
    """As it is written, between brackets: numbers, ranges of any step and sign, fewer than there are dimensions, an ellipsis."""
    words = []
    for size in shape[: rng.randint(0, len(shape))] if rng.random() < 0.4 else shape:
        if size and rng.random() < 0.3:
            words.append(str(rng.randrange(-size, size)))
            continue
        ends = [rng.choice(["", str(rng.randint(-size - 3, size + 3))]) for _ in range(2)]
        step = rng.choice(["", "", "", ":", f":{rng.choice([1, 2, 3, -1, -2, 7])}"])
        words.append(":".join(ends) + step)
    if rng.random() < 0.2:
        cut = rng.randint(0, len(words))
        # What stands behind it counts from the end.
        words[cut:cut] = ["..."]
    return ",".join(words)


def cat(made, side, rng):
    if made.array is None:
        b2fuse("cat", "--npy", made.path, code=1)
        return
    expect_bytes("cat --npy", b2fuse("cat", "--npy", made.path), made.npy)
    # NumPy copies no gaps between fields, but all of what it knows nothing about.
    array = made.array.view(f"V{made.array.dtype.itemsize}") if made.array.dtype.names else made.array
    for _ in range(3):
        text = some_slice(rng, made.array.shape) or "..."
        try:
            # One item is an array as well, as in the library: NumPy alone makes a scalar of it, in the machine's byte order.
            expected = eval(f"array[{text}]" if "..." in text else f"array[{text}, ...]", {"array": array})
        except IndexError:
            continue
        # In C order, whatever the steps.
        expected = np.ascontiguousarray(expected).reshape(expected.shape).view(made.array.dtype)
        got = b2fuse("cat", "--npy", made.path, f"[{text}]")
        expect_bytes(f"cat --npy [{text}]", got, saved(expected))


def convert(made, side, rng):
    """To a .npy file."""
    if made.array is None:
        return
    with tempfile.TemporaryDirectory(dir=made.path.parent) as directory:
        file = Path(directory, "x.npy")
        b2fuse("convert", made.path, file)
        expect_bytes("convert to .npy", file.read_bytes(), made.npy)


def encode(made, side, rng):
    """From a .npy file to a frame that the library reads: as it takes an array itself, and with other chunks, codecs and filters."""
    if made.array is None:
        return
    array = made.typed if made.word else made.array
    with tempfile.TemporaryDirectory(dir=made.path.parent) as directory:
        file, frame = Path(directory, "x.npy"), Path(directory, "x.b2nd")
        file.write_bytes(saved(array))
        # What it cannot describe it has written as bytes.
        array = np.load(file, max_header_size=1 << 20)
        # Other programs write the first dimension as the fastest one.
        fortran = array.ndim > 1 and array.size > 0 and rng.random() < 0.4
        if fortran:
            file.write_bytes(saved(np.asfortranarray(array)))
        options = []
        if array.ndim and array.size and rng.random() < 0.6:
            chunks = [rng.randint(1, size) for size in array.shape]
            blocks = [rng.randint(1, size) for size in chunks]
            if math.prod(-(-size // chunk) for size, chunk in zip(array.shape, chunks)) < 500:
                options += ["--chunks", ",".join(map(str, chunks)), "--blocks", ",".join(map(str, blocks))]
        if rng.random() < 0.6:
            options += ["--codec", rng.choice(["blosclz", "lz4", "lz4hc", "zlib", "zstd"]), "--level", str(rng.choice([0, 1, 5, 9]))]
        if rng.random() < 0.5:
            options += ["--filters", rng.choice(["shuffle", "bitshuffle", "delta,shuffle", "delta"])]
        b2fuse("convert", *options, file, frame)
        opened = blosc2.open(str(frame), mode="r")
        expect("the shape of what was converted", opened.shape, array.shape)
        if opened.dtype != array.dtype:
            expect("its type", opened.dtype, blosc2.asarray(array).dtype)
        expect_bytes("its items", by_chunks(opened) if array.size else opened[()].tobytes(), array.tobytes())
        if "--chunks" in options:
            expect("its chunks and blocks", (tuple(opened.chunks), tuple(opened.blocks)), (tuple(chunks), tuple(blocks)))
        elif array.ndim and "--codec" not in options and "--filters" not in options:
            taken = blosc2.asarray(array)
            expect("the chunks and blocks that it takes", (opened.chunks, opened.blocks), (taken.chunks, taken.blocks))
        # And from there as it was.
        b2fuse("convert", frame, Path(directory, "again.npy"))
        if opened.dtype == array.dtype and not fortran:
            expect_bytes("converted back", Path(directory, "again.npy").read_bytes(), file.read_bytes())


def tree(frames, directory, rng):
    """All frames in one directory with others beneath it, mounted as a whole."""
    top, point, expected = directory / "tree", directory / "point", {}
    top.mkdir()
    for n, made in enumerate(frames):
        folder = top / f"{n % 3}" / "deep" if n % 3 else top
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / made.path.name
        (shutil.copytree if made.path.is_dir() else shutil.copyfile)(made.path, target)
        name = f"{target.relative_to(top)}.{'raw' if made.array is None else 'npy'}"
        expected[name] = (made, made.raw if made.array is None else made.npy)
    (top / "notes.txt").write_text("text")
    failures = []
    with Mount(top, point, ["--show", "npy", *rng.choice(CACHES)]):
        listed = sorted(str(path.relative_to(point)) for path in point.rglob("*") if path.is_file())
        names = {*expected, "notes.txt"}
        expect("names that are shown and should not, and the other way round", (sorted({*listed} - names), sorted(names - {*listed})), ([], []))
        expect("a file that is no frame", (point / "notes.txt").read_text(), "text")
        for name, (made, content) in rng.sample(sorted(expected.items(), key=lambda item: item[0]), len(expected)):
            try:
                check_file(point / name, content, rng, (ANY if made.array is None else NPY) + [refused])
            except Wrong as wrong:
                failures.append(f"{name}, {made.what}: {wrong}")
    return failures


ONE_BY_ONE = {"npy": npy, "raw": raw, "cat": cat, "convert": convert, "encode": encode}


class Count:
    def __init__(self):
        self.passed = self.failed = 0

    def failure(self, text):
        self.failed += 1
        print(f"FAILED: {text}", flush=True)


def run(args, directory, count):
    frames, side = [], Mounted(directory)
    for n in range(args.first, args.first + args.count):
        made = some_frame(random.Random(f"{args.seed} {n}"), directory, f"frame{n}", n)
        frames.append(made)
        for part in args.parts:
            if part == "tree":
                continue
            try:
                ONE_BY_ONE[part](made, side, random.Random(f"{args.seed} {n} {part}"))
                count.passed += 1
            except (Wrong, RuntimeError, OSError, subprocess.TimeoutExpired) as wrong:
                where = f"--first {n} --count 1 --seed {args.seed} --parts {part}"
                layout = "sframe" if made.path.is_dir() else "cframe"
                trace = "" if isinstance(wrong, (Wrong, RuntimeError)) else f"\n{traceback.format_exc()}"
                count.failure(f"{where}: {made.path.name} ({layout}), {made.what}: {wrong}{trace}")
                unmounted(side.point)
                unmounted(side.point.with_name("file"))
    if "tree" in args.parts:
        try:
            failures = tree(frames, directory, random.Random(f"{args.seed} tree"))
            for failure in failures:
                count.failure(f"--first {args.first} --count {args.count} --seed {args.seed} --parts tree: {failure}")
            count.passed += len(frames) - len(failures)
        except (Wrong, RuntimeError, OSError) as wrong:
            count.failure(f"tree of {len(frames)}, --seed {args.seed}: {wrong}")
            unmounted(directory / "point")


def unmounted(point):
    """Whatever a failure has left."""
    subprocess.run(["umount", "-l", str(point)], capture_output=True)


def self_test(args, directory, count):
    """Native files pass; a fault is found in every file that can have it."""
    frames = [some_frame(random.Random(f"{args.seed} {n}"), directory, f"frame{n}", n) for n in range(args.first, args.first + args.count)]
    for fault in [None, *FAULTS]:
        where = directory / (fault.__name__ if fault else "none")
        where.mkdir()
        side, found, tried = StandIn(where, fault), 0, 0
        for n, made in enumerate(frames):
            for part in (npy, raw):
                try:
                    part(made, side, random.Random(f"{args.seed} {n}"))
                except NotApplicable:
                    continue
                except Wrong as wrong:
                    found += 1
                    if fault is None:
                        print(f"{made.what}: {wrong}")
                tried += 1
        name = fault.__name__.replace("_", " ") if fault else "no fault"
        print(f"  {name}: found in {found} of {tried} files")
        if tried and found == (tried if fault else 0):
            count.passed += 1
        else:
            count.failure(f"{name}: found in {found} of {tried} files")


def main():
    global _twin
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    args.parts = args.parts.split(",")
    if set(args.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    blosc2.set_nthreads(1)
    count = Count()
    with tempfile.TemporaryDirectory(prefix="b2fuse-arrays-") as directory:
        _twin = Path(directory, "twin")
        (self_test if args.self_test else run)(args, Path(directory), count)
    print(f"{count.passed} passed, {count.failed} failed")
    sys.exit(1 if count.failed else 0)


if __name__ == "__main__":
    main()
