"""What `--disk-cache` keeps from mount to mount: read without the server, never other bytes, and no more than was asked for."""

import os
import shutil

from . import changing, failing
from .mounting import RemoteMount, Wrong, read_all
from .reading import random_of

# A part of a frame of 4 MB.
BOUND = 1 << 20


def place(point):
    return point.with_name("disk-cache")


def cached(point, size=""):
    return ["--disk-cache", f"{place(point)}{size}"]


def pieces(point):
    """The files that hold what is kept."""
    return sorted(path for path in place(point).glob("s-*/*") if path.is_file())


def emptied(test):
    """A cache of its own for each test."""

    def run(server, proxy, sample, point, *words):
        shutil.rmtree(place(point), ignore_errors=True)
        try:
            test(server, proxy, sample, point, *words)
        finally:
            shutil.rmtree(place(point), ignore_errors=True)

    run.__name__ = test.__name__
    return run


@emptied
def kept(server, proxy, sample, point, options=None):
    """What one mount has read, another one reads while the server is away."""
    words = [*(options or cached(point)), "--show", "sparse", "-o", f"timeout={failing.TIMEOUT},refresh=3600"]
    with failing.through(server, proxy, sample, point, words):
        failing.expect_all(sample, "sparse", point)
    with failing.through(server, proxy, sample, point, words):
        proxy.away()
        try:
            failing.expect_all(sample, "sparse", point)
        finally:
            proxy.back()


@emptied
def damaged(server, proxy, sample, point, seed):
    """Files of the cache that are changed, cut off, exchanged or gone cost a request, and never give other bytes."""
    rng = random_of(seed, "damaged", sample.path.name)
    for show in ("sparse", "contiguous", "raw"):
        words = [*cached(point), "--show", show]
        with failing.through(server, proxy, sample, point, words):
            failing.expect_all(sample, show, point)
        files = pieces(point)
        if not files:
            raise Wrong("nothing is kept")
        for path in rng.sample(files, -(-len(files) // 2)):
            spoil(path, rng, files)
        with failing.through(server, proxy, sample, point, words):
            failing.expect_all(sample, show, point)


def spoil(path, rng, others):
    way = rng.randrange(5)
    # One that another view has left spoiled may be empty, and stays so until it is asked for.
    if way == 0 or not path.exists() or path.stat().st_size == 0:
        path.unlink(missing_ok=True)
    elif way == 1:
        os.truncate(path, rng.randrange(path.stat().st_size))
    elif way == 2:
        path.write_bytes(b"")
    elif way == 3 and (other := rng.choice(others)).exists():
        path.write_bytes(other.read_bytes())
    else:
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


@emptied
def bounded(server, proxy, sample, point):
    """No more is kept than was asked for, and what is read is right."""
    words = [*cached(point, ":1M"), "--cache-size", "1M", "--show", "sparse"]
    for _ in range(2):
        with failing.through(server, proxy, sample, point, words):
            failing.expect_all(sample, "sparse", point)
        taken = sum(-(-path.stat().st_size // 4096) * 4096 for path in pieces(point))
        if not 0 < taken <= BOUND:
            raise Wrong(f"{taken} bytes are kept, expected at most {BOUND}")


def replaced(server, proxy, directory, point, seed, sparse, options=()):
    """Objects that are replaced between two mounts, under the same keys: the second one shows the new state."""
    rng = random_of(seed, "replaced", sparse)
    count = rng.randrange(3, 14)
    old, new = (changing.version(directory, word, sparse, rng.getrandbits(32), count) for word in ("old", "new"))
    url, environment = server.url(changing.key_of(sparse), via=proxy.address), server.environment(via=proxy.address)
    try:
        for state in (old, new, old):
            for key in sorted(state.objects, key=changing.is_index):
                server.put(key, state.objects[key])
            for show in changing.SHOWS:
                with RemoteMount(url, point, [*cached(point), "--show", show, *options], environment):
                    found = read_all(point)
                for name, data in state.views[show].items():
                    if found.get(name) != data:
                        raise Wrong(f"as {show}: {changing.unlike(name, found.get(name), data)}")
    finally:
        shutil.rmtree(place(point), ignore_errors=True)
        for key in old.objects:
            server.delete(key)
