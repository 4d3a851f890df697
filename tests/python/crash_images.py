#!/usr/bin/env python3
"""What the Blosc2 library leaves when it is killed in the middle of a change to a frame.

Each change is made once under strace, which tells every write, truncation and removal. Played up to any of them, and to the
middle of each write, they give the images that a kill can leave: `Image.make` puts one on disk. As a program, says what
the library itself makes of them:

    crash_images.py            a table of changes and images
    crash_images.py --repair   the same, what `b2fuse repair --yes` makes of each of them, and whether it keeps its word
"""

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import blosc2
import numpy as np

from frames import contents, difference, open_frame
from mounts import default_binary

CHUNK = 1000
BEGIN, END = "/b2fuse-trace-begin", "/b2fuse-trace-end"


def numbers(n, seed):
    """Items that compress to about half, so that no chunk is of the size of another."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << int(rng.integers(8, 24)), n, dtype=np.int64)


def build(path, contiguous, array):
    options = {"urlpath": str(path), "contiguous": contiguous, "mode": "w", "meta": {"fixed": b"content"}}
    options["cparams"] = {"codec": blosc2.Codec.LZ4, "typesize": 8, "nthreads": 1}
    if array:
        array = blosc2.asarray(numbers(6 * CHUNK, 1), chunks=(CHUNK,), blocks=(CHUNK // 4,), **options)
        frame = array.schunk
    else:
        frame = blosc2.SChunk(chunksize=8 * CHUNK, **options)
        for n in range(6):
            frame.append_data(numbers(CHUNK, 10 + n))
    frame.vlmeta["note"] = "as it was " * 20


def grow(array):
    array.resize((8 * CHUNK,))


def shrink(array):
    array.resize((4 * CHUNK,))


def append(frame):
    frame.append_data(numbers(CHUNK, 2))


def insert(frame):
    frame.insert_data(2, numbers(CHUNK, 3), True)


def delete(frame):
    frame.delete_chunk(2)


def update(frame):
    frame.update_data(2, numbers(CHUNK, 5) % 100, True)


def metadata(frame):
    frame.vlmeta["note"] = "as it is now " * 60


CHANGES = {change.__name__: change for change in (append, grow, shrink, insert, delete, update, metadata)}
LAYOUTS = {"cframe": True, "sframe": False}


class Write:
    """`data` written at `offset` of a file, which is made if there is none."""

    def __init__(self, name, offset, data):
        self.name, self.offset, self.data = name, offset, data

    def play(self, root, part=1.0):
        path = file_of(root, self.name)
        data = self.data[: int(len(self.data) * part)]
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.seek(self.offset)
            file.write(data)


class Truncate:
    """A file cut or lengthened, or made."""

    def __init__(self, name, length):
        self.name, self.length = name, length

    def play(self, root):
        path = file_of(root, self.name)
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(self.length)


class Remove:
    def __init__(self, name):
        self.name = name

    def play(self, root):
        file_of(root, self.name).unlink(missing_ok=True)


def file_of(root, name):
    return root / name if name else root


def parse(trace, frame):
    """The operations of an strace on a frame: names are relative to it, empty for the frame itself."""
    frame = str(frame)
    operations, files, began = [], {}, False
    for line in whole_calls(trace):
        if f'"{BEGIN}"' in line:
            began = True
        if f'"{END}"' in line:
            return operations
        call = re.match(r"(\w+)\((.*)\) += (-?\d+)", line)
        if not call or int(call[3]) < 0:
            continue
        name, args, result = call[1], call[2], int(call[3])
        if name == "openat":
            path = unquote(args.split('"')[1]).decode()
            if path == frame or path.startswith(frame + "/"):
                files[result] = [path[len(frame) + 1 :], 0]
                if began and "O_TRUNC" in args:
                    operations.append(Truncate(files[result][0], 0))
            continue
        if name in ("unlink", "unlinkat"):
            path = unquote(args.split('"')[1]).decode()
            if began and path.startswith(frame + "/"):
                operations.append(Remove(path[len(frame) + 1 :]))
            continue
        fd = re.match(r"\d+", args)
        if not fd or int(fd[0]) not in files:
            continue
        file = files[int(fd[0])]
        if name == "close":
            del files[int(fd[0])]
        elif name == "lseek":
            file[1] = result
        elif name in ("read", "readv"):
            file[1] += result
        elif name == "ftruncate" and began:
            operations.append(Truncate(file[0], int(args.split(",")[1])))
        elif name in ("write", "writev", "pwrite64"):
            data = b"".join(unquote(part) for part in args.split('"')[1::2])[:result]
            offset = int(args.rsplit(",", 1)[1]) if name == "pwrite64" else file[1]
            if name != "pwrite64":
                file[1] += result
            if began:
                operations.append(Write(file[0], offset, data))
    raise RuntimeError("the trace has no end")


def whole_calls(trace):
    """The lines of an strace of several threads, without thread numbers. A call during which another thread shows up is told
    in two pieces, `write(3, "..." <unfinished ...>` and `<... write resumed>, 5) = 5`: they are put together where it ends."""
    begun = {}
    for line in trace.splitlines():
        thread, _, line = line.partition(" ")
        line = line.lstrip()
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>").rstrip()
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>", line):
            line = begun.pop(thread) + line[resumed.end() :]
        yield line


def a_split_call_is_one_operation():
    """A trace as strace tells it when a second thread ends in the middle of a write."""
    text = "\n".join(
        [
            r'7  openat(AT_FDCWD, "\x2f\x66", O_RDWR) = 3',
            f'7  newfstatat(AT_FDCWD, "{BEGIN}", 0x7f, 0) = -1 ENOENT',
            r'7  write(3, "\x61\x62" <unfinished ...>',
            "12 +++ exited with 0 +++",
            "7  <... write resumed>, 2) = 2",
            r'7  lseek(3, 0, SEEK_SET <unfinished ...>',
            "7  <... lseek resumed>) = 0",
            r'7  write(3, "\x63", 1) = 1',
            f'7  newfstatat(AT_FDCWD, "{END}", 0x7f, 0) = -1 ENOENT',
        ]
    )
    seen = [(write.name, write.offset, write.data) for write in parse(text, "/f")]
    expected = [("", 0, b"ab"), ("", 0, b"c")]
    if seen != expected:
        raise RuntimeError(f"a trace with split calls: {seen}, expected {expected}")


def unquote(text):
    """strace -xx writes every byte as \\xNN."""
    return bytes.fromhex(text.replace("\\x", ""))


def trace(change, frame):
    """Makes a change to the frame under strace; answers the operations."""
    code = f"import os, crash_images as c\narray = c.open_frame({str(frame)!r}, 'a')\n"
    code += f"os.path.exists({BEGIN!r})\nc.CHANGES[{change!r}](array)\nos.path.exists({END!r})\n"
    with tempfile.NamedTemporaryFile("r", suffix=".strace") as log:
        calls = "openat,close,lseek,read,readv,write,writev,pwrite64,ftruncate,unlink,unlinkat,newfstatat,stat"
        command = ["strace", "-f", "-xx", "-s", str(1 << 18), "-e", f"trace={calls}", "-o", log.name, sys.executable, "-c", code]
        subprocess.run(command, check=True, cwd=Path(__file__).parent)
        text = log.read()
    for marker in (BEGIN, END):
        text = text.replace("".join(f"\\x{byte:02x}" for byte in marker.encode()), marker)
    return parse(text, frame)


class Image:
    """One state that a kill can leave: `count` operations, the last of them perhaps only half done."""

    def __init__(self, case, count, half):
        self.case, self.count, self.half = case, count, half

    def __str__(self):
        return f"{self.case.layout} {self.case.change}, cut {'in' if self.half else 'after'} operation {self.count} of {len(self.case.operations)}"

    def make(self, path):
        """Puts the image at `path`."""
        remove(path)
        copy(self.case.before, path)
        for n, operation in enumerate(self.case.operations[: self.count], 1):
            if self.half and n == self.count:
                operation.play(path, 0.5)
            else:
                operation.play(path)


class Case:
    """A change to a frame of one layout: the frame before and after it, and what was done to it."""

    def __init__(self, directory, layout, change):
        self.layout, self.change = layout, change
        self.before = Path(directory) / f"{layout}-{change}-before.b2nd"
        self.after = Path(directory) / f"{layout}-{change}-after.b2nd"
        build(self.before, LAYOUTS[layout], change in ("grow", "shrink"))
        copy(self.before, self.after)
        self.operations = trace(change, self.after)
        self.all_are_there(Path(directory) / "played.b2nd")
        self.old, self.new = contents(open_frame(self.before), cbytes=False), contents(open_frame(self.after), cbytes=False)

    def all_are_there(self, path):
        """Whether the operations, played, give the frame as the library left it: none has been missed."""
        Image(self, len(self.operations), False).make(path)
        played, left = files_of(path), files_of(self.after)
        if played != left:
            names = sorted(name for name in played.keys() | left.keys() if played.get(name) != left.get(name))
            raise RuntimeError(f"{self.layout} {self.change}: the trace of {len(self.operations)} operations does not give {names} as the library left it")
        remove(path)

    def images(self):
        for count, operation in enumerate(self.operations, 1):
            if isinstance(operation, Write) and len(operation.data) > 1:
                yield Image(self, count, True)
            yield Image(self, count, False)

    def verdict(self, path, words=""):
        """What a frame at `path` is: old, new, or how it differs from the new one; but for what `words` name as lost."""
        try:
            seen = but_for(contents(open_frame(path), cbytes=False), words)
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        against = {"old": difference(seen, but_for(self.old, words)), "new": difference(seen, but_for(self.new, words))}
        return next((name for name, found in against.items() if found is None), f"neither: {against['new']}")


def files_of(frame):
    """The bytes of every file of a frame, by names as operations have them."""
    return {"": frame.read_bytes()} if frame.is_file() else {path.name: path.read_bytes() for path in frame.iterdir()}


def copy(source, target):
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def verdict_apart(case, path, words=""):
    """As Case.verdict, in a child: a damaged frame can take the library down."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, case.verdict(path, words).encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        verdict = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return verdict if status == 0 else f"ended by {status}"


def repair(path):
    """Repairs an image; answers what the program said."""
    done = subprocess.run([default_binary(), "repair", "--yes", str(path)], capture_output=True, text=True)
    shutil.rmtree(str(path) + ".before-repair", ignore_errors=True)
    if done.returncode not in (0, 1) or "panicked" in done.stderr:
        raise RuntimeError(f"repair ended with {done.returncode}: {done.stderr}")
    return done.returncode == 0, (done.stdout + done.stderr).replace(f"{path}: ", "").strip()


def but_for(seen, words):
    """Contents without what a repair has named as lost."""
    chunks = set(re.findall(r"lost: chunk (\d+):", words))
    layers = set(re.findall(r'lost: vlmetalayer "(.*)"', words))
    every = "lost: the vlmetalayers" in words

    def lost(key):
        kind, _, name = key.rpartition(" ")
        return kind.endswith("chunk") and name in chunks or kind == "vlmetalayer" and (every or name in layers) or key == "array" and chunks

    return {key: value for key, value in seen.items() if not lost(key)}


def outcome(case, path, mended, words):
    """What a repair came to, in one word of the table."""
    verdict = verdict_apart(case, path, words)
    if verdict in ("old", "new"):
        return verdict + (", but for what is named" if "lost: " in words else ""), verdict
    if not mended:
        return "refused", verdict
    # A resize is several changes, between which the frame is whole.
    return "whole, between old and new" if case.change in ("grow", "shrink") and verdict.startswith("neither") else "WRONG", verdict


def main():
    parser = argparse.ArgumentParser(description="What the library leaves when it is killed.")
    parser.add_argument("--repair", action="store_true", help="what repair makes of it")
    parser.add_argument("-v", "--verbose", action="store_true", help="every image that is neither old nor new")
    options = parser.parse_args()
    a_split_call_is_one_operation()
    blosc2.set_nthreads(1)
    totals = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="b2fuse-images-") as scratch:
        path = Path(scratch) / "image.b2nd"
        for layout in LAYOUTS:
            for change in CHANGES:
                case = Case(scratch, layout, change)
                counts = collections.Counter()
                for image in case.images():
                    image.make(path)
                    verdict, words = verdict_apart(case, path), ""
                    kind = verdict if verdict in ("old", "new") else "neither"
                    counts["images"] += 1
                    counts[kind] += 1
                    if options.repair and kind == "neither":
                        mended, words = repair(path)
                        kind, verdict = outcome(case, path, mended, words)
                        counts[f"repaired: {kind}"] += 1
                    if options.verbose and kind not in ("old", "new") or kind == "WRONG":
                        print(f"{image}: {kind}: {verdict}", *words.splitlines(), sep="\n        ", flush=True)
                print(f"{layout} {change}: {table(counts)}", flush=True)
                totals += counts
    print(f"all: {table(totals)}")
    return 1 if totals["repaired: WRONG"] else 0


def table(counts):
    return ", ".join(f"{n} {name}" for name, n in counts.items())


if __name__ == "__main__":
    sys.exit(main())
