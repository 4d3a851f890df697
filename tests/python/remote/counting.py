"""How many requests are made: remote.md says how many at most, and the proxy counts."""

import os
import subprocess

import numpy as np

from bigframes import stored, write_frame

from .mounting import RemoteMount, Wrong, b2fuse, expect, run
from .proxy import Fault

# Of the frames that are counted on. The library would read as many.
CHUNKS, CHUNKSIZE = 200, 20_000


def make(directory):
    """The same chunks in both layouts."""
    numpy = np.random.default_rng(3)
    chunks = [stored(numpy.bytes(CHUNKSIZE)) for _ in range(CHUNKS)]
    for sparse in (True, False):
        write_frame(directory / f"counted-{'s' if sparse else 'c'}.b2frame", not sparse, CHUNKS, CHUNKSIZE, lambda n: chunks[n])
    return directory / "counted-s.b2frame", directory / "counted-c.b2frame"


class Counter:
    """A mount through a proxy, and how many requests each step makes."""

    def __init__(self, server, proxy, key, point, options=()):
        self.proxy, self.point = proxy, point
        self.mount = RemoteMount(server.url(key, via=proxy.address), point, ["-o", "refresh=3600", *options], server.environment(via=proxy.address))

    def __enter__(self):
        self.proxy.clear()
        self.mount.__enter__()
        return self

    def __exit__(self, *words):
        self.mount.__exit__(*words)

    def expect(self, what, most, lists=0, least=0):
        """So many requests since the last time, and so many lists besides."""
        requests = list(self.proxy.requests)
        listed = [request for request in requests if request.is_list]
        others = len(requests) - len(listed)
        if not least <= others <= most or len(listed) > lists:
            shown = "\n      ".join(str(request) for request in requests[:40])
            wanted = f"{most}" if least == most else f"{least} to {most}"
            raise Wrong(f"{what}: {others} requests and {len(listed)} lists, expected {wanted} and at most {lists}:\n      {shown}")
        self.proxy.clear()


def shell(command, cwd):
    subprocess.run(["sh", "-c", command], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def open_sparse(server, proxy, point):
    with Counter(server, proxy, "counted-s.b2frame", point) as counter:
        counter.expect("opening an sframe", 1, least=1)
        shell("cat chunks.b2frame", point)
        shell("ls", point)
        counter.expect("its index file, and names", 0)


def open_contiguous(server, proxy, point):
    with Counter(server, proxy, "counted-c.b2frame", point) as counter:
        counter.expect("opening a cframe", 3, least=1)
        shell("cat chunks.b2frame", point)
        shell("ls; ls -l chunks.b2frame", point)
        counter.expect("its index file, and names", 0)


def one_chunk_of_sparse(server, proxy, point):
    with Counter(server, proxy, "counted-s.b2frame", point) as counter:
        proxy.clear()
        for n in (77, 12, 150):
            name = f"{n:08X}.chunk"
            shell(f"cat {name}", point)
            counter.expect("one chunk of an sframe", 1, least=1)
            shell(f"cat {name}; stat {name}", point)
            counter.expect("the same chunk again", 0)


def one_chunk_of_contiguous(server, proxy, point):
    with Counter(server, proxy, "counted-c.b2frame", point) as counter:
        proxy.clear()
        for n in (77, 12, 150):
            shell(f"cat {n:08X}.chunk", point)
            counter.expect("one chunk of a cframe", 1, least=1)


def scan_of_sparse(server, proxy, point):
    with Counter(server, proxy, "counted-s.b2frame", point) as counter:
        shell("cat *.chunk", point)
        counter.expect("opening and reading all chunks", CHUNKS + 1, least=CHUNKS + 1)


def scan_after_listing(server, proxy, point):
    with Counter(server, proxy, "counted-s.b2frame", point) as counter:
        shell("ls -l", point)
        shell("cat *.chunk", point)
        counter.expect("opening, ls -l, and reading all chunks", CHUNKS + 3, lists=1 + CHUNKS // 1000, least=CHUNKS + 1)


def scan_as_a_file(server, proxy, point):
    with Counter(server, proxy, "counted-s.b2frame", point, ["--show", "contiguous"]) as counter:
        shell("cat *", point)
        counter.expect("opening an sframe as a file and reading it", CHUNKS + 3, lists=1 + CHUNKS // 1000, least=CHUNKS + 1)


def scan_of_contiguous(server, proxy, point):
    with Counter(server, proxy, "counted-c.b2frame", point) as counter:
        shell("cat *.chunk", point)
        counter.expect("opening a cframe and reading all chunks", CHUNKS + 3)


def look_at_contiguous(server, proxy, point):
    """The names of all files are in the index; a length is in its chunk."""
    with Counter(server, proxy, "counted-c.b2frame", point) as counter:
        proxy.clear()
        shell("ls; stat 0000000A.chunk", point)
        counter.expect("names, and one length", 1, least=1)


def listing_of_sparse(server, proxy, point):
    with Counter(server, proxy, "counted-s.b2frame", point) as counter:
        shell("ls -l", point)
        # The first two looks may be of somebody who reads.
        counter.expect("opening an sframe and ls -l", 3, lists=1 + CHUNKS // 1000, least=1)


def with_disk_cache(server, proxy, point):
    cache = point.with_name("disk-cache")
    options = ["--disk-cache", str(cache)]
    with Counter(server, proxy, "counted-s.b2frame", point, options):
        shell("cat *.chunk", point)
    with Counter(server, proxy, "counted-s.b2frame", point, options) as counter:
        shell("cat *.chunk", point)
        counter.expect("all chunks again with the disk cache", 1, least=1)
        shell("ls -l", point)
        counter.expect("ls -l with the disk cache", 0, lists=1)


def commands(server, proxy, point):
    """`info` looks at no chunk of so many, `ls` and `check` at each once, and at little of it."""
    environment = server.environment(via=proxy.address)
    # The first request for a cframe is for the index of an sframe, which is not there.
    for word, key, most in (("info", "s", 1), ("info", "c", 4), ("ls", "s", 1 + CHUNKS), ("ls", "c", 24), ("check", "s", 1 + CHUNKS), ("check", "c", 24)):
        proxy.clear()
        b2fuse(word, server.url(f"counted-{key}.b2frame", via=proxy.address), environment=environment)
        lists, sent = len(proxy.lists()), sum(request.sent for request in proxy.requests)
        if len(proxy.requests) - lists > most or lists > 1 + CHUNKS // 1000 or (key == "s" and sent > 5000 * most + 100_000):
            shown = [str(request) for request in proxy.requests[:20]]
            raise Wrong(f"{word} of {key}: {len(proxy.requests) - lists} requests, {lists} lists, {sent} bytes: {shown}")


def refused(server, proxy, point):
    """What a store refuses, or cannot do, is asked for once."""
    environment = server.environment(via=proxy.address)
    url = server.url("counted-s.b2frame", via=proxy.address)
    planted = proxy.fault

    def refuse(request):
        if planted:
            planted(request)
        return Fault(status=403)

    proxy.fault = refuse
    try:
        point.mkdir(exist_ok=True)
        for word, *words in (["info"], ["ls"], ["check"], ["cat", "0"], ["mount", point], ["convert", point.with_name("refused.b2frame")]):
            proxy.clear()
            done = run(word, url, *words, environment=environment)
            expect(f"exit code of {word}: {done.stderr!r}", done.returncode, 1)
            expect(f"requests of {word} that is refused", len(proxy.requests), 1)
    finally:
        proxy.fault = planted


def together(server, proxy, point):
    """A scan asks for many chunks at a time."""
    with Counter(server, proxy, "counted-s.b2frame", point, ["--connections", "16"]):
        proxy.clear()
        with proxy.slower(0.03):
            shell("cat *.chunk", point)
        most = max(request.together for request in proxy.requests)
        if not 8 <= most <= 16:
            raise Wrong(f"a scan with 16 connections: {most} requests at the same time, expected 8 to 16")


def closed_early(server, proxy, point):
    """Who reads one chunk here and one there does not make others be fetched."""
    with Counter(server, proxy, "counted-s.b2frame", point) as counter:
        proxy.clear()
        places = np.random.default_rng(5).permutation(CHUNKS)[:40]
        for n in places:
            with open(point / f"{n:08X}.chunk", "rb", buffering=0) as file:
                os.pread(file.fileno(), 100, 0)
        counter.expect("40 random chunks", 44, least=40)


SPARSE = [open_sparse, one_chunk_of_sparse, scan_of_sparse, scan_after_listing, scan_as_a_file, listing_of_sparse, with_disk_cache]
SPARSE += [together, closed_early, commands, refused]
CONTIGUOUS = [open_contiguous, look_at_contiguous, one_chunk_of_contiguous, scan_of_contiguous]
