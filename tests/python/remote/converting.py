"""Frames that `b2fuse convert` sends to a server, fetches from there, and copies between two places there."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import blosc2
import numpy as np

from frames import contents, open_frame

from .mounting import Wrong, b2fuse, default_binary, expect, expect_bytes, run, without_clouds
from .proxy import Fault

LAYOUTS = ["sparse", "contiguous"]
# Objects that are no chunks, and requests besides those for objects: the index, and one that finds out about conditions.
INDEX, MORE = 1, 1
# Most requests that look at what is there.
LOOKS = 6


numbers = itertools.count()


def new(name):
    """A key that nobody has had: some servers keep the directories of objects that are gone."""
    return f"{next(numbers)}/{name}"


def files_of(path):
    """Names below a frame, with bytes; of one in one file its name is empty."""
    if not path.is_dir():
        return {"": path.read_bytes()}
    return {file.name: file.read_bytes() for file in path.iterdir()}


def fetched(server, key, target):
    """What is at a key, as another client of the server has it, as files."""
    keys = [name for name in server.keys() if name == key or name.startswith(f"{key}/")]
    if keys == [key]:
        target.write_bytes(server.get(key))
        return target
    target.mkdir()
    for name in keys:
        (target / name.removeprefix(f"{key}/")).write_bytes(server.get(name))
    return target


def expect_files(what, got, expected):
    expect(f"{what}: names", sorted(got), sorted(expected))
    for name, data in expected.items():
        expect_bytes(f"{what}: {name}", got[name], data)


def expect_frame(sample, path):
    if sample.contents is not None:
        expect(f"what the library reads of {path.name}", contents(open_frame(path), cbytes=False), without_cbytes(sample.contents))


def without_cbytes(seen):
    return {name: value for name, value in seen.items() if name != "cbytes"}


def there_and_back(server, sample, directory):
    """An upload in each layout is what a local copy is, and so is what comes back, in each."""
    environment, up, down = server.environment(), new("up"), new("copy")
    for layout in LAYOUTS:
        local = directory / f"local-{layout}"
        b2fuse("convert", "--show", layout, sample.path, local)
        key = f"{up}/{layout} größe.b2frame"
        b2fuse("convert", "--show", layout, sample.path, server.url(key), environment=environment)
        raw = fetched(server, key, directory / f"raw-{layout}")
        expect_files(f"upload as {layout}", files_of(raw), files_of(local))
        expect_frame(sample, raw)
    for source in LAYOUTS:
        for layout in LAYOUTS:
            url, back = server.url(f"{up}/{source} größe.b2frame"), directory / f"back-{source}-{layout}"
            b2fuse("convert", "--show", layout, url, back, environment=environment)
            expect_files(f"{source} back as {layout}", files_of(back), files_of(directory / f"local-{layout}"))
            b2fuse("check", "--deep", back)
            copy = f"{down}/{source}-{layout}.b2frame"
            b2fuse("convert", "--show", layout, url, server.url(copy), environment=environment)
            raw = fetched(server, copy, directory / f"raw-{source}-{layout}")
            expect_files(f"{source} to {layout} there", files_of(raw), files_of(directory / f"local-{layout}"))


def kept(server, sample, directory):
    """Without --show, what is sent, fetched or copied there keeps its layout, and a line says what was made. A presigned URL of it works."""
    environment = server.environment()
    for layout in LAYOUTS:
        local, back, key, copy = directory / f"kept-{layout}", directory / f"fetched-{layout}", new("kept.b2frame"), new("copied.b2frame")
        b2fuse("convert", "--show", layout, sample.path, local)
        as_file, as_objects = {
            "contiguous": ("a contiguous frame, one file", "a contiguous frame, one object"),
            "sparse": ("a sparse frame, a directory with a file for each chunk", "a sparse frame, an object for each chunk"),
        }[layout]
        for source, target, what in (
            (local, server.url(key), as_objects),
            (server.url(key), server.url(copy), as_objects),
            (server.url(key), back, as_file),
            (server.url(copy), directory / f"{layout}.npy", "a NumPy file"),
        ):
            if what == "a NumPy file" and run("cat", "--npy", local).returncode:
                continue
            done = b2fuse("convert", source, target, environment=environment)
            expect("what is printed", done.decode(), f"{target}: made {what}\n")
        for name in (key, copy):
            expect_files(f"{name} as {layout}", files_of(fetched(server, name, directory / name.replace("/", "-"))), files_of(local))
        expect_files(f"back as {layout}", files_of(back), files_of(local))
        if layout == "contiguous" and hasattr(server, "presigned"):
            url, fetched_by_it = server.presigned(key), directory / "presigned"
            expect("a presigned URL", b2fuse("info", url).splitlines()[1:], b2fuse("info", local).splitlines()[1:])
            done = b2fuse("convert", url, fetched_by_it)
            expect("what is printed", done.decode(), f"{fetched_by_it}: made {as_file}\n")
            expect_files("by a presigned URL", files_of(fetched_by_it), files_of(local))


def replaced(server, first, second, directory):
    """Nothing is replaced without --force, nor by another layout, nor where others could be harmed."""
    environment = server.environment()
    for layout, other in (LAYOUTS, LAYOUTS[::-1]):
        key = new(f"force/{layout}")
        url = server.url(key)
        b2fuse("convert", "--show", layout, first.path, url, environment=environment)
        before = objects(server, key)
        for words, layout_asked in (([], layout), ([], other), (["--force"], other)):
            refused(url, ["convert", *words, "--show", layout_asked, second.path, url], environment)
            expect("objects after a refusal", objects(server, key), before)
        done = run("convert", "--force", "--show", layout, second.path, url, environment=environment)
        if done.returncode and layout == "sparse" and b"does not compare ETags" in done.stderr:
            left = fetched(server, key, directory / "left")
            expect_frame(first, left)
            continue
        expect("exit code", (done.returncode, done.stderr), (0, b""))
        now = fetched(server, key, directory / f"now-{layout}")
        expect_frame(second, now)
        # Chunks that it does not name are gone.
        expect("check", run("check", now).stdout.count(b"unused"), 0)


def refused(url, words, environment):
    done = run(*words, environment=environment)
    expect("exit code", done.returncode, 1)
    if done.stderr.count(b"\n") != 1 or not done.stderr.startswith(url.encode()):
        raise Wrong(f"no line about {url}: {done.stderr!r}")
    return done.stderr.decode()


def objects(server, prefix):
    return {key: server.get(key) for key in server.keys(prefix)}


def arrays(server, directory):
    """A file of NumPy's becomes a frame there, and that one a file again."""
    environment, values = server.environment(), np.random.default_rng(2).integers(0, 9, (300, 500)).astype("i4")
    np.save(directory / "values.npy", values)
    key, refused_url = new("array.b2nd"), server.url(new("c.b2nd"))
    url = server.url(key)
    b2fuse("convert", "--chunks", "70,90", directory / "values.npy", url, environment=environment)
    raw = fetched(server, key, directory / "array.b2nd")
    expect("the array", bool(np.array_equal(blosc2.open(str(raw))[...], values)), True)
    b2fuse("convert", url, directory / "back.npy", environment=environment)
    expect("the array in a file", bool(np.array_equal(np.load(directory / "back.npy"), values)), True)
    refused(refused_url, ["convert", "--show", "contiguous", directory / "values.npy", refused_url], environment)


def counted(server, proxy, sample):
    """Each chunk is sent once, many at a time."""
    environment, key = server.environment(proxy.address), new("counted")
    proxy.clear()
    with proxy.slower(0.03):
        b2fuse("convert", "--show", "sparse", sample.path, server.url(key, proxy.address), environment=environment)
    puts = [request for request in proxy.requests if request.method == "PUT"]
    stored = len(server.keys(key)) - INDEX
    expect("requests that send", len(puts), stored + INDEX + MORE)
    if len(proxy.requests) - len(puts) > LOOKS:
        raise Wrong(f"{len(proxy.requests) - len(puts)} requests look at what is there: {[str(r) for r in proxy.requests if r not in puts][:9]}")
    together = max(request.together for request in puts)
    if together < min(8, stored - 1):
        raise Wrong(f"{together} chunks of {stored} at the same time")


def spoiled(server, proxy, sample, directory, fault):
    """What goes away by asking again is not seen."""
    environment = server.environment(proxy.address)
    for layout in LAYOUTS:
        seen = [0]

        def pick(request):
            seen[0] += 1
            return fault if seen[0] % 3 == 1 else None

        proxy.fault = pick
        try:
            key = new("spoiled")
            b2fuse("convert", "--show", layout, sample.path, server.url(key, proxy.address), environment=environment)
            b2fuse("convert", server.url(key, proxy.address), directory / f"back-{layout}", environment=environment)
        finally:
            proxy.fault = None
        expect_frame(sample, fetched(server, key, directory / f"spoiled-{layout}"))
        expect_frame(sample, directory / f"back-{layout}")


def given_up(server, proxy, sample, directory):
    """A server that fails from some request on leaves no frame, and the same command goes on later."""
    environment = server.environment(proxy.address) | {"AWS_MAX_ATTEMPTS": "1"}
    key = new("given-up")
    url = server.url(key, proxy.address)
    sent = [0]

    def pick(request):
        sent[0] += request.method == "PUT"
        return Fault(status=500) if sent[0] > 12 else None

    proxy.fault = pick
    try:
        line = refused(url, ["convert", "-o", "timeout=1", "--show", "sparse", sample.path, url], environment)
    finally:
        proxy.fault = None
    if "goes on with the chunks that are there" not in line:
        raise Wrong(f"no word of how to go on: {line}")
    goes_on(server, proxy, sample, directory, key)


def spoiled_rest(server, proxy, sample, directory):
    """What is there and is not what was sent is not taken for it."""
    environment, key = server.environment(proxy.address) | {"AWS_MAX_ATTEMPTS": "1"}, new("spoiled-rest")
    url = server.url(key, proxy.address)
    sent = [0]

    def pick(request):
        sent[0] += request.method == "PUT"
        return Fault(status=500) if sent[0] > 12 else None

    proxy.fault = pick
    try:
        refused(url, ["convert", "-o", "timeout=1", "--show", "sparse", sample.path, url], environment)
    finally:
        proxy.fault = None
    proxy.settle()
    there = server.keys(key)
    for number, name in enumerate(there):
        data = server.get(name)
        # One bit of some, the end of others.
        if number % 3 < 2:
            server.put(name, data[:100] + bytes([data[100] ^ 1]) + data[101:] if number % 3 else data[:-1])
    b2fuse("convert", "--show", "sparse", sample.path, url, environment=environment)
    expect_frame(sample, fetched(server, key, directory / "spoiled-rest"))


def goes_on(server, proxy, sample, directory, key):
    """What is there of an upload is not sent again."""
    proxy.settle()
    there = server.keys(key)
    if not there or any(name.endswith("b2frame") for name in there):
        raise Wrong(f"chunks and no index are to be left, and there are {there[:3]} and others, {len(there)}")
    # The name of an unfinished upload is not one for an object.
    url, environment = server.url(key, proxy.address), server.environment(proxy.address)
    if "is a prefix with objects beneath it" not in refused(url, ["convert", "--show", "contiguous", sample.path, url], environment):
        raise Wrong("not refused as a prefix")
    expect("objects", server.keys(key), there)
    proxy.clear()
    b2fuse("convert", "--show", "sparse", sample.path, url, environment=environment)
    puts = sum(request.method == "PUT" for request in proxy.requests)
    expect("requests that send", puts, len(server.keys(key)) - len(there) + MORE)
    expect_frame(sample, fetched(server, key, directory / "gone-on"))


def stopped(server, proxy, sample, directory, number):
    """A signal in the middle of an upload, and of a download."""
    environment = without_clouds(os.environ) | server.environment(proxy.address)

    def stop(words, method, after):
        """Ends a command when so many requests of a kind were made; the rest are not answered before it ends."""
        reached, ended, count = threading.Event(), [False], [0]

        def pick(request):
            count[0] += request.method == method
            if count[0] <= after or ended[0]:
                return None
            reached.set()
            return Fault(hang=True)

        proxy.fault = pick
        command = subprocess.Popen([default_binary(), *map(str, words)], stderr=subprocess.PIPE, env=environment)
        try:
            if not reached.wait(60):
                raise Wrong(f"no {after} requests by {method}")
            command.send_signal(number)
            line = command.communicate(timeout=60)[1].decode()
            ended[0] = True
            expect("exit code", command.returncode, 1)
        finally:
            proxy.fault = None
            if command.poll() is None:
                command.kill()
                command.wait()
        if "interrupted" not in line or line.count("\n") != 1:
            raise Wrong(f"no line of an interruption: {line!r}")
        return line

    key, other = new("stopped"), new("stopped")
    url = server.url(key, proxy.address)
    line = stop(["convert", "--show", "sparse", sample.path, url], "PUT", 10)
    if "goes on with the chunks that are there" not in line:
        raise Wrong(f"no word of how to go on: {line}")
    goes_on(server, proxy, sample, directory, key)
    url = server.url(other, proxy.address)
    line = stop(["convert", "--show", "contiguous", sample.path, url], "PUT", 0)
    expect("objects", server.keys(other), [])
    url, target = server.url(key, proxy.address), directory / "download"
    line = stop(["convert", "-o", "timeout=3", url, target], "GET", 12)
    if "goes on with the chunks that are there" not in line:
        raise Wrong(f"no word of how to go on: {line}")
    left = [path.name for path in directory.iterdir() if "download" in path.name or path.name.startswith(".b2fuse")]
    expect("what a download leaves", [name.startswith(".b2fuse-") and name.endswith(".tmp") for name in left], [True])
    # Which ones were answered is a matter of chance.
    downloads_on(server, proxy, sample, target, url, 0)


def downloads_on(server, proxy, sample, target, url, least):
    """The chunks of an interrupted download that are there, so many at least, are not asked for again."""
    proxy.settle()
    proxy.clear()
    b2fuse("convert", url, target, environment=server.environment(proxy.address))
    stored = len(server.keys(url.split("/", 3)[3])) - INDEX
    if len(proxy.gets()) > stored - least + INDEX:
        raise Wrong(f"{len(proxy.gets())} requests for {stored} chunks, of which {least} are there")
    expect_frame(sample, target)
    expect("what is left", [path.name for path in target.parent.iterdir() if path.name.startswith(".b2fuse")], [])
    expect("records that are left", recorded(target.name), 0)


def recorded(name):
    """How many lines are recorded of the download of that name."""
    state = Path("/var/lib") if os.geteuid() == 0 else Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    lines = 0
    for path in (state / "b2fuse" / "downloads").glob("*"):
        with contextlib.suppress(FileNotFoundError):
            first, *rest = path.read_text().splitlines() or [""]
            lines += len(rest) if name in first else 0
    return lines


def killed(server, proxy, sample, directory):
    """After a kill the same command works: a download continues, an upload in parts begins anew."""
    environment = without_clouds(os.environ) | server.environment(proxy.address)

    def kill(words, hangs, is_time):
        """Kills a command that gets no answer to some requests, as soon as it is time."""
        proxy.fault = lambda request: Fault(hang=True) if hangs(request) else None
        command = subprocess.Popen([default_binary(), *map(str, words)], stderr=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + 60
        try:
            while not is_time():
                if time.monotonic() > deadline or command.poll() is not None:
                    raise Wrong("the command has ended, or came to no point where it is to be killed")
                time.sleep(0.01)
        finally:
            command.kill()
            command.wait()
            proxy.fault = None

    key = new("killed")
    url, target = server.url(key, proxy.address), directory / f"killed-{key.replace('/', '-')}"
    b2fuse("convert", "--show", "sparse", sample.path, url, environment=server.environment(proxy.address))
    first = [name for name in server.keys(key) if name.endswith(".chunk")][:12]
    # The chunks, and what the record says of the source.
    kill(
        ["convert", url, target],
        lambda request: request.path.endswith(".chunk") and not request.path.endswith(tuple(first)),
        lambda: recorded(target.name) >= len(first) + 1,
    )  # fmt: skip
    downloads_on(server, proxy, sample, target, url, len(first))

    # Parts of 8 MiB, of which the last one is short.
    large, parts = directory / "large.b2frame", 6
    data = np.random.default_rng(3).integers(0, 256, parts * (8 << 20) - (1 << 20), "u1")
    storage = {"urlpath": str(large), "contiguous": True, "cparams": {"clevel": 0, "typesize": 1}}
    blosc2.SChunk(chunksize=1 << 20, data=data, **storage)
    key = new("parts")
    url = server.url(key, proxy.address)
    def is_part(request):
        return request.method == "PUT" and any(word.startswith("partNumber=") or word == "comp=block" for word in request.query.split("&"))

    words = ["convert", "--show", "contiguous", large, url]
    # Three parts are answered.
    sent = []

    def is_late(request):
        sent.extend([request] if is_part(request) else [])
        return len(sent) > 3

    kill(words, is_late, lambda: len(sent) > 3)
    expect("objects", server.keys(key), [])
    proxy.settle()
    proxy.clear()
    b2fuse(*words, environment=server.environment(proxy.address))
    expect("parts that are sent", sum(map(is_part, proxy.requests)), parts)
    raw = fetched(server, key, directory / "raw-parts")
    local = directory / "local-parts"
    b2fuse("convert", "--show", "contiguous", large, local)
    expect_bytes("upload in parts", raw.read_bytes(), local.read_bytes())


def hidden(server, proxy, sample, directory):
    """Nothing secret is said when something goes wrong."""
    for environment, words in (
        (server.environment(proxy.address), ["-o", "timeout=1"]),
        ({}, ["-o", "timeout=1,anonymous"]),
    ):
        proxy.fault = lambda request: Fault(status=500, body=b"x" * 5000)
        try:
            done = run("convert", *words, sample.path, server.url(new("hidden"), proxy.address), environment=environment)
        finally:
            proxy.fault = None
        expect("exit code", done.returncode, 1)
        for secret in [*server.secrets(), "Signature", "Credential", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" * 20]:
            if secret.encode() in done.stderr:
                raise Wrong(f"{secret} is said: {done.stderr!r}")


def tidy(directory):
    for path in directory.iterdir():
        (shutil.rmtree if path.is_dir() else os.unlink)(path)


SIGNALS = [signal.SIGINT, signal.SIGTERM]
