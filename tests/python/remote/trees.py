"""Prefixes of frames, mounted whole: held against a local mount of the same directory, and how many requests are made."""

import contextlib
import errno
import os
import random
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import blosc2
import numpy as np

from frames import contents, difference, open_frame

from . import counting
from .mounting import RemoteMount, Wrong, expect, expect_bytes, read_somehow, run
from .reading import comparable
from .samples import SHOWS, said
from .servers import COPIES

# What commands say of all frames beneath a prefix. {} stands for it.
COMMANDS = [("ls", "{}"), ("ls", "--json", "{}"), ("info", "{}"), ("check", "--deep", "{}")]
# Names of one prefix: more than four answers have.
MANY = 5000
OPEN = 200
# Bytes that a mount may take then.
MEMORY = 128 << 20
# A frame that no name tells from another prefix: a directory, unless its data is shown.
UNNAMED = "without a suffix"


def make(directory, samples):
    """A directory of frames, of files that are none, and of a store of python-blosc2."""
    top = directory / "tree"
    for at in ("sparse", "contiguous", "deep/er", "store.b2d"):
        (top / at).mkdir(parents=True)
    for n, sample in enumerate(samples):
        where = ("sparse" if sample.is_sparse else "contiguous", "deep/er", "")[n % 3]
        name = f"{n}-{sample.path.name}"
        (shutil.copytree if sample.is_sparse else shutil.copyfile)(sample.path, top / where / name)
    shutil.copytree(next(sample.path for sample in samples if sample.is_sparse), top / "deep" / UNNAMED)
    for sparse in (True, False):
        array = np.arange(3000).reshape(30, 100)
        blosc2.asarray(array, urlpath=str(top / "store.b2d" / f"leaf{sparse}.b2nd"), contiguous=not sparse, mode="w", chunks=(10, 100))
    rng = np.random.default_rng(1)
    for name, length in (("empty", 0), ("größe 100%.bin", 3_500_000), ("deep/er/notes.txt", 5000), ("deep/a.b2z", 70_000), ("block", 1 << 20)):
        (top / name).write_bytes(rng.bytes(length))
    return top


def put_all(server, objects):
    """Pairs of a key and bytes, in no order."""
    with ThreadPoolExecutor(COPIES) as pool:
        list(pool.map(lambda pair: server.put(*pair), objects))


def upload(server, top, prefix):
    put_all(server, ((f"{prefix}{file.relative_to(top)}", file.read_bytes()) for file in sorted(top.rglob("*")) if file.is_file()))


def shown(point, rng=None):
    """By path: a directory's names, or a file's bytes. What a name stands for is asked for, as a listing need not tell."""
    found, left = {}, [point]
    while left:
        at = left.pop()
        relative = str(at.relative_to(point))
        if stat.S_ISDIR(at.lstat().st_mode):
            found[relative] = sorted(os.listdir(at))
            left += [at / name for name in found[relative]]
        else:
            found[relative] = read_somehow(at, rng or random.Random(0))
    return found


def same(what, got, expected, top):
    expect(f"{what}: names", sorted(got), sorted(expected))
    for name in got:
        one, other = got[name], expected[name]
        if isinstance(one, list) or isinstance(other, list):
            expect(f"{what}: {name}", one, other)
        elif (top / name).is_file() and one == (top / name).read_bytes():
            # A frame in one file that is shown as one is the object; a local one has its chunks in order.
            continue
        else:
            expect_bytes(f"{what}: {name}", one, other)


def compare(server, samples, directory, point, prefix, rng):
    """Every view of a prefix is that of the directory which was uploaded, and the library reads it."""
    top = make(directory, samples)
    upload(server, top, prefix)
    for show in SHOWS:
        with RemoteMount(top, point, ["-r", "--show", show]):
            expected = shown(point)
        if show in ("other", "contiguous"):
            del expected[f"deep/{UNNAMED}"]
            with RemoteMount(top / "deep" / UNNAMED, point, ["-r", "--show", "sparse"]):
                expected |= {str(Path("deep", UNNAMED, name)): content for name, content in shown(point).items()}
        with RemoteMount(server.url(prefix.rstrip("/")), point, ["--show", show], server.environment()) as mount:
            same(f"--show {show}", shown(point, rng), expected, top)
            for what in ("write", "mkdir"):
                with contextlib.suppress(OSError):
                    (point / "new").write_bytes(b"x") if what == "write" else (point / "new").mkdir()
                    raise Wrong(f"--show {show}: {what} is not refused")
        if mount.said().count("\n") > 2:
            raise Wrong(f"--show {show}: the log says: {mount.said()}")
    for words in COMMANDS:
        (code, local, _), (remote_code, remote, errors) = said(words, top), said(words, server.url(prefix.rstrip("/")), server.environment())
        expect(f"{words}: exit code: {errors}", remote_code, code)
        expect_bytes(f"{words}", comparable(remote), comparable(local))
    with RemoteMount(server.url(prefix.rstrip("/")), point, ["--show", "contiguous"], server.environment()):
        for path in sorted(point.rglob("*-frame*")):
            if not path.is_file():
                raise Wrong(f"{path} is no file")
            sample = next(sample for n, sample in enumerate(samples) if path.name == f"{n}-{sample.path.name}")
            if sample.contents:
                found = difference(contents(open_frame(path)), sample.contents)
                if found:
                    raise Wrong(f"the library, of {path.name}: {found}")


def counted(server, proxy, directory, point, prefix):
    """A listing is one request, whatever is in it; going inside a frame is one more."""
    frames = counting.make(directory)
    for n, frame in enumerate(frames * 3):
        server.copy_in(frame, f"{prefix}{n}-{frame.name}")
    server.put(f"{prefix}notes.txt", b"x" * 3_000_000)
    root = prefix.rstrip("/")
    with counting.Counter(server, proxy, root, point, ["--show", "sparse"]) as counter:
        counter.expect("mounting a prefix", 2, lists=1, least=1)
        counting.shell("ls; ls -l .; stat -c %s notes.txt; ls", point)
        counter.expect("ls, ls -l and stat in a prefix", 0)
        counting.shell("cat 0-counted-s.b2frame/chunks.b2frame", point)
        counter.expect("opening an sframe", 1, least=1)
        counting.shell("cat 1-counted-c.b2frame/chunks.b2frame", point)
        counter.expect("opening a cframe", 3, least=1)
        counting.shell("cat 2-counted-s.b2frame/00000007.chunk", point)
        counter.expect("opening an sframe and reading a chunk", 2, least=2)
        counting.shell("cat *-counted-s.b2frame/*.chunk", point)
        counter.expect("reading all chunks of three", 3 * counting.CHUNKS, least=3 * counting.CHUNKS)
        counting.shell("cat notes.txt", point)
        counter.expect("an object of three blocks", 3, least=3)
        with contextlib.suppress(FileNotFoundError):
            os.stat(point / "missing")
            raise Wrong("a name that is not there is found")
        counter.expect("a name that is not there", 0)
    with counting.Counter(server, proxy, root, point) as counter:
        proxy.clear()
        counting.shell("ls -l", point)
        counter.expect("ls -l of three sframes that are files", 3, lists=3, least=3)
    with counting.Counter(server, proxy, root, point, ["--show", "raw"]) as counter:
        proxy.clear()
        counting.shell("ls", point)
        counter.expect("names of the data of six frames", 6, least=6)


def replaced(server, directory, point, prefix):
    """Who opens a frame, or an object, after another has taken its place, gets it soon; a file that is open stays what it was."""
    for n in range(2):
        array = np.full((50, 50), n, dtype="i4")
        for sparse in (True, False):
            blosc2.asarray(array, urlpath=str(directory / f"{n}-{sparse}.b2nd"), contiguous=not sparse, mode="w", chunks=(10, 50))
    keys = {f"{prefix}dir/{name}.b2nd": name == "sparse" for name in ("sparse", "one")}

    def put(n):
        for key, sparse in keys.items():
            server.copy_in(directory / f"{n}-{sparse}.b2nd", key)
        server.put(f"{prefix}dir/text", b"%d" % n * 100_000)

    put(0)
    for show in ("contiguous", "other", "npy"):
        with RemoteMount(server.url(prefix.rstrip("/")), point, ["--show", show, "-o", "refresh=1"], server.environment()):
            names = [point / "dir" / (name + (".npy" if show == "npy" else "")) for name in ("sparse.b2nd", "one.b2nd")]
            read = lambda name: np.load(name)[3, 3] if show == "npy" else blosc2.open(str(name))[3, 3]  # noqa: E731
            expect("before", [read(name) for name in names], [0, 0])
            with open(point / "dir" / "text", "rb", buffering=0) as text:
                expect_bytes("a part of an object", text.read(10), b"0" * 10)
                put(1)
                (directory / "moved").mkdir(exist_ok=True)
                began, left = time.monotonic(), {*names, point / "dir" / "text"}
                while left and time.monotonic() < began + 20:
                    for name in sorted(left):
                        try:
                            now = name.read_bytes()[0] - ord("0") if name.name == "text" else read(name)
                        except (OSError, RuntimeError, ValueError):
                            continue
                        if now not in (0, 1):
                            raise Wrong(f"{show}: {name.name}: {now}")
                        if now == 1:
                            left.discard(name)
                expect("what is not seen to be replaced", left, set())
                try:
                    expect_bytes("an object that was open", os.pread(text.fileno(), 100, 50_000), b"0" * 100)
                except OSError as error:
                    expect("its error", error.errno, errno.ESTALE)
        put(0)


STRANGE = ["a//b", "a/./c", "a/../d", "..", "./x", "new\nline", "/first", "l" * 256, "l" * 256 + "/x", "marker/", "both", "both/x", "ü&<>\"' %41", "a/é"]


def strange(server, point, prefix):
    """Names that no file can have are left out, and hide no others."""
    put = []
    for name in STRANGE:
        with contextlib.suppress(Exception):
            server.client.put_object(Bucket="bucket", Key=prefix + name, Body=name.encode())
            put.append(name)
    server.put(f"{prefix}good", b"good")
    with RemoteMount(server.url(prefix.rstrip("/")), point, [], server.environment()):
        got = shown(point)
        expected = {".": ["a", "both", "good", "marker", "ü&<>\"' %41"], "a": ["é"], "both": ["x"], "marker": []}
        expected |= {name: name.encode() for name in ("good", "ü&<>\"' %41", "a/é", "both/x")}
        if not {"a//b", "a/é", "both", "both/x", "ü&<>\"' %41", "marker/"} <= set(put):
            raise Wrong(f"the server takes only {put}")
        expect("what is shown", got, expected)
        for name in ("l" * 255, "both/y", "a/b"):
            expect(f"whether {name[:10]} is there", (point / name).exists(), False)


def beside_an_object(server, point, prefix):
    """An empty object with the name of a prefix stands for the prefix; another one is what is mounted."""
    key = prefix.rstrip("/")
    server.put(f"{key}/x", b"x")
    server.put(key, b"")
    with RemoteMount(server.url(key), point, [], server.environment()):
        expect("what is beneath an empty object", shown(point), {".": ["x"], "x": b"x"})
    server.put(key, b"no frame")
    done = run("mount", server.url(key), point, environment=server.environment())
    expect("exit code", done.returncode, 1)
    if b"header" not in done.stderr:
        raise Wrong(f"an object that is no frame: {done.stderr!r}")


def many(server, proxy, point, prefix, count=MANY):
    """A prefix of many names is listed a thousand at a time."""
    put_all(server, ((f"{prefix}{n:05d}", b"%d" % n) for n in range(count)))
    pages = -(-count // 1000)
    with counting.Counter(server, proxy, prefix.rstrip("/"), point) as counter:
        counter.expect("mounting it", 2, lists=1)
        expect("a name at the end", (point / f"{count - 1:05d}").read_bytes(), b"%d" % (count - 1))
        counter.expect("a name at the end", 1, lists=1, least=1)
        expect("names", sorted(os.listdir(point)), [f"{n:05d}" for n in range(count)])
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(point)}
        expect("sizes", sizes, {f"{n:05d}": len(str(n)) for n in range(count)})
        counter.expect("all names and sizes", 0, lists=pages)


def bounded(server, directory, point, prefix):
    """Many frames open at once, with few descriptors: each is read again when its place was given up, and memory stays small."""
    rng = np.random.default_rng(7)
    data = [rng.integers(0, 1000, 5000).astype("i4") for _ in range(OPEN)]
    for n, array in enumerate(data):
        blosc2.asarray(array, urlpath=str(directory / f"{n}.b2nd"), contiguous=n % 2 == 0, mode="w", chunks=(2500,))
    upload(server, directory, prefix)
    mount = RemoteMount(server.url(prefix.rstrip("/")), point, ["--show", "sparse", "--cache-size", "16M"], server.environment())
    narrow = directory / "narrow"
    narrow.write_text(f'#!/bin/sh\nulimit -n 256\nexec "{mount.binary}" "$@"\n')
    narrow.chmod(0o755)
    mount.binary = narrow
    with mount, contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(point / f"{n}.b2nd" / "chunks.b2frame", "rb", buffering=0)) for n in range(OPEN)]
        for n in random.Random(3).sample(range(OPEN), OPEN):
            expect(f"frame {n}", np.array_equal(blosc2.open(str(point / f"{n}.b2nd"))[:], data[n]), True)
        for n, file in enumerate(files):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            header = os.pread(file.fileno(), 11, 0)
            expect(f"an open file of frame {n}", header[2:9], b"b2frame")
        if mount.memory() > MEMORY:
            raise Wrong(f"{mount.memory() >> 20} MiB with {OPEN} frames open")
        print(f"  {server.name}: {mount.memory() >> 20} MiB with {OPEN} frames open", flush=True)
