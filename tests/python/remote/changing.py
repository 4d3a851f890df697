"""Objects that others change between any two requests: each read is of the old state or the new one, or an error, and the new one comes.

A frame is mounted, and read at random, through a proxy that stops all requests now and then to change the next object. The changes of a
frame are spread over the requests: a few of its chunks here, some more there, its index first or last. What an open file gives is of one
state, whenever it is read, unless the chunks of the frame were overwritten in place, under the same keys: then each chunk is judged alone.
A file of decompressed data goes on to the new state while it is open: there, each byte is judged alone.
"""

import itertools
import os
import random
import threading
import time
from dataclasses import dataclass

import numpy as np

from bigframes import stored, write_frame

from .mounting import RemoteMount, Wrong, files_of, read_all

# Of small frames, which one request may have as a whole, and of others.
SMALL, LARGE = 3000, 200_000
# Of a chunk that is stored as it is.
HEAD = 32
# Until the new state must be seen, at an open, with `-o refresh=0`.
SOON = 20
ORDERS = ["chunks first", "index first"]
SHOWS = ["sparse", "contiguous", "raw"]


@dataclass
class Version:
    """One state of a frame: its objects by key, and what each view shows."""

    objects: dict
    views: dict


def version(directory, word, sparse, seed, count, first_id=0, chunksize=SMALL):
    """Chunks that say nothing by their length of which version they are; the index does, by a vlmetalayer."""
    numpy = np.random.default_rng(seed)
    path = directory / word / "frame.b2frame"
    path.parent.mkdir()
    write_frame(path, not sparse, count, chunksize, lambda n: stored(numpy.bytes(chunksize)), first_id, {"version": seed})
    if sparse:
        objects = {f"{key_of(sparse)}/{file.name}": file.read_bytes() for file in path.iterdir()}
    else:
        objects = {key_of(sparse): path.read_bytes()}
    views = {}
    for show in SHOWS:
        point = directory / word / "local"
        with RemoteMount(path, point, ["-r", "--show", show]):
            views[show] = read_all(point)
    return Version(objects, views)


def key_of(sparse):
    return f"{'sparse' if sparse else 'contiguous'}/frame.b2frame"


def is_index(key):
    return not key.endswith(".chunk")


class Changes:
    """Puts the objects of the new version between requests, as the proxy calls for."""

    def __init__(self, server, old, new, order, rng, span):
        keys = sorted(new.objects, key=lambda key: (is_index(key) == (order == "chunks first"), key))
        gone = sorted(set(old.objects) - set(new.objects))
        self.steps = [("put", key) for key in keys] + [("delete", key) for key in gone]
        # After which request each is made.
        first = rng.randrange(span)
        self.when = sorted(first + rng.randrange(rng.choice([1, 3, span])) for _ in self.steps)
        self.server, self.new, self.done, self.seen = server, new, 0, 0
        # Requests are held up by a thread of the proxy's.
        self.turn = threading.Lock()

    def __call__(self, request):
        with self.turn:
            self.seen += 1
            while self.done < len(self.steps) and self.when[self.done] < self.seen:
                self.step()

    def step(self):
        what, key = self.steps[self.done]
        self.server.put(key, self.new.objects[key]) if what == "put" else self.server.delete(key)
        self.done += 1

    def finish(self):
        with self.turn:
            while self.done < len(self.steps):
                self.step()


class Judge:
    """Says of bytes which version they are of."""

    def __init__(self, old, new, show, by_chunks, chunksize=SMALL):
        self.views, self.show, self.by_chunks = [old.views[show], new.views[show]], show, by_chunks
        self.chunksize = chunksize
        self.reads = self.errors = 0

    def versions(self, name, at, data, length):
        """The versions that have this data there."""
        return {n for n, view in enumerate(self.views) if name in view and view[name][at : at + length] == data}

    def judge(self, name, at, data, length, among={0, 1}):
        self.reads += 1
        if self.show == "raw":
            if not self.is_of_both(name, at, data, length):
                raise Wrong(f"{name}: {len(data)} bytes at {at} are of neither state")
            return {0, 1}
        found = self.versions(name, at, data, length) & among
        if not found and not (self.by_chunks and self.is_mixed(name, at, data, length)):
            raise Wrong(f"{name}: {len(data)} bytes at {at} are neither the old state's nor the new one's, or not of the version of the bytes before")
        return found

    def is_of_both(self, name, at, data, length):
        """Whether each byte is of one state or the other. Behind the end of one, a page has zeros until the kernel knows of the other."""
        views = [view[name] for view in self.views if name in view]
        sizes = [len(view) for view in views]
        if len(data) < length and not min(sizes) <= at + len(data) <= max(sizes):
            return False
        got, good = np.frombuffer(data, "u1"), np.zeros(len(data), bool)
        for view in views:
            there = np.frombuffer(view[at : at + len(data)], "u1")
            good[: len(there)] |= got[: len(there)] == there
            good[len(there) :] |= got[len(there) :] == 0
        return bool(good.all())

    def is_mixed(self, name, at, data, length):
        """Whether each chunk is of one version or the other. Both have chunks of one size, so that they have the same places."""
        if not data or len(data) < length and at + len(data) not in {len(view[name]) for view in self.views if name in view}:
            return False
        places = [place for place in self.boundaries(name) if at < place < at + len(data)]
        return all(
            any(view[name][begin:end] == data[begin - at : end - at] for view in self.views if name in view)
            for begin, end in itertools.pairwise([at, *places, at + len(data)])
        )

    def boundaries(self, name):
        """Where one chunk ends and another begins."""
        if self.show == "sparse":
            return []
        view = max((view.get(name, b"") for view in self.views), key=len)
        # The one file begins with a header that says how long it is.
        first, size = (int.from_bytes(view[11:15], "big"), HEAD + self.chunksize) if self.show == "contiguous" else (0, self.chunksize)
        return range(first, len(view), size)


class Held:
    """A file that stays open: what it gives is of one version."""

    def __init__(self, path, name):
        self.fd, self.name, self.among = os.open(path, os.O_RDONLY), name, {0, 1}

    def read(self, judge, rng):
        length = rng.choice([64, 1000, 10_000, 1 << 20])
        at = rng.randrange(max(os.fstat(self.fd).st_size, 1))
        data = b""
        try:
            while len(data) < length and (more := os.pread(self.fd, length - len(data), at + len(data))):
                data += more
        except OSError:
            # Of a read that fails in its middle the kernel gives what comes before, and the error to the next one.
            length = len(data)
            if not data:
                raise
            judge.errors += 1
        self.among = judge.judge(self.name, at, data, length, self.among) or self.among


def read_while(point, judge, rng, steps, changes):
    """Reads at random until all changes are made, and some more."""
    held = []
    try:
        for _ in range(steps):
            try:
                names = sorted(files_of(point)) if rng.random() < 0.2 else sorted(judge.views[0])
                name = rng.choice(names)
                if held and rng.random() < 0.4:
                    rng.choice(held).read(judge, rng)
                elif len(held) < 5 and rng.random() < 0.3:
                    held.append(Held(point / name, name))
                else:
                    with open(point / name, "rb") as file:
                        judge.judge(name, 0, file.read(), 1 << 40)
            except OSError:
                judge.errors += 1
    finally:
        for file in held:
            os.close(file.fd)


def see_new(mount, new, show):
    """The new state is seen, whole."""
    deadline = time.monotonic() + SOON
    while True:
        try:
            found = read_all(mount.point)
        except OSError as error:
            found = error
        if found == new.views[show]:
            return
        if time.monotonic() > deadline:
            what = found if isinstance(found, OSError) else [unlike(name, found.get(name), new.views[show][name]) for name in new.views[show]]
            raise Wrong(f"the new state is not seen in {SOON} s: {what}; the log: ...{mount.said()[-1500:]}")


def unlike(name, found, expected):
    """Where a file is not what it must be, in words."""
    if found is None or found == expected:
        return f"{name} is {'missing' if found is None else 'right'}"
    size = min(len(found), len(expected))
    places = np.flatnonzero(np.frombuffer(found[:size], "u1") != np.frombuffer(expected[:size], "u1"))
    where = f", {len(places)} bytes differ, from {places[0]} to {places[-1]}" if len(places) else ""
    return f"{name}: {len(found)} bytes, expected {len(expected)}{where}"


def change(server, proxy, directory, point, seed, sparse, show, order, in_place, options=(), refresh=None, chunksize=None):
    """One frame, one change."""
    rng = random.Random(f"{seed} {sparse} {show} {order} {in_place}")
    count = rng.randrange(3, 14)
    chunksize = chunksize or rng.choice([SMALL, LARGE])
    old = version(directory, "old", sparse, rng.getrandbits(32), count, 0, chunksize)
    more = count if rng.random() < 0.5 else rng.randrange(3, 14)
    new = version(directory, "new", sparse, rng.getrandbits(32), more, 0 if in_place else 1000, chunksize)
    for key in sorted(old.objects, key=is_index):
        server.put(key, old.objects[key])
    changes = Changes(server, old, new, order, rng, count + 4)
    judge = Judge(old, new, show, in_place and sparse, chunksize)
    refresh = rng.choice([0, 0, 3600]) if refresh is None else refresh
    options = [*options, *rng.choice([[], ["--cache-size", "1M"], ["--cache-size", "0"]])]
    url, environment = server.url(key_of(sparse), via=proxy.address), server.environment(via=proxy.address)
    proxy.clear()
    try:
        with RemoteMount(url, point, ["--show", show, "-o", f"refresh={refresh}", *options], environment, level="debug") as mount:
            proxy.between = changes
            read_while(point, judge, rng, 60, changes)
            proxy.between = None
            changes.finish()
            read_while(point, judge, rng, 20, changes)
            # A chunk that is overwritten in place after its index was is not looked at again: nothing says that it is another.
            if refresh == 0 and not (sparse and in_place and order == "index first"):
                see_new(mount, new, show)
    finally:
        proxy.between = None
        for key in {*old.objects, *new.objects} & set(server.keys(key_of(sparse))):
            server.delete(key)
    return judge
