#!/usr/bin/env python3
"""Frames of a terabyte that exist as rules: opened, listed in part, read at random through every view, in bounded memory.

A server makes up the bytes of a contiguous frame of 8192 chunks of 128 MiB, and of a sparse one of a million chunks of 1 MiB. Both are
arrays of which each item is the number of its chunk, so that every read can be judged.

    terabyte.py [--reads N] [--only REGEX] [--list N]

To show the sparse one as one file, and the contiguous one so, takes a minute each.

The last line is the count.
"""

import argparse
import itertools
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import blosc2  # noqa: E402

from remote.apart import apart, items  # noqa: E402
from remote.mounting import RemoteMount, Wrong, b2fuse, expect, expect_bytes  # noqa: E402
from remote.proxy import Proxy  # noqa: E402
from remote.rules import HEAD, Rule  # noqa: E402
from remote.servers import RuleServer, Unavailable  # noqa: E402

RULES = {"big": Rule("big.b2nd", "cframe", 8192, 1 << 27), "many": Rule("many.b2nd", "sframe", 1_000_000, 1 << 20)}
# What a daemon may take, whatever is read.
MEMORY = 256 << 20
# Processor time until a mount of a million chunks is there, of a release build.
SOON = 1.0


class Judge:
    """What the bytes of each view are, by the rule."""

    def __init__(self, rule):
        self.rule = rule

    def item(self, place):
        """The 8 bytes of an item in the array."""
        return (place // self.rule.items).to_bytes(8, "little")

    def values(self, first, end):
        """Bytes of the decompressed array."""
        words = b"".join(self.item(place) for place in range(first // 8, -(-end // 8)))
        return words[first % 8 : first % 8 + end - first]


def npy(path, judge, rng, reads):
    """The file of NumPy's, or raw bytes."""
    size = judge.rule.count * judge.rule.chunksize
    header = path.stat().st_size - size
    expect("the header's length is that of NumPy's or none", header in (0, 128), True)
    with open(path, "rb", buffering=0) as file:
        for n in range(reads):
            length = rng.choice([8, 100, 4096, 70_000])
            # Here and there over the boundary of two chunks.
            at = rng.randrange(1, judge.rule.count) * judge.rule.chunksize - length // 2 if n % 3 == 0 else rng.randrange(size - length)
            expect_bytes(f"{length} bytes at {at}", os.pread(file.fileno(), length, header + at), judge.values(at, at + length))


def contiguous(path, judge, rng, reads):
    """The one file, which a server of a contiguous frame has, or a view makes of a sparse one."""
    rule = judge.rule
    whole = Rule(rule.name, "cframe", rule.count, rule.chunksize)
    begin = len(whole.parts[0])
    with open(path, "rb", buffering=0) as file:
        for n in range(reads):
            length = rng.choice([8, 100, 4096, 70_000])
            at = begin + rng.randrange(1, rule.count) * rule.cbytes - length // 2 if n % 3 == 0 else rng.randrange(begin, begin + rule.count * rule.cbytes - length)
            expect_bytes(f"{length} bytes at {at}", os.pread(file.fileno(), length, at), whole.read(at, at + length))
    expect("its size", abs(path.stat().st_size - whole.length) < 1 << 20, True)


def sparse(point, judge, rng, reads, listed):
    """Chunk files, some of the names, and the library on the directory."""
    rule = judge.rule
    for _ in range(reads):
        number = rng.randrange(rule.count)
        path = point / f"{number:08X}.chunk"
        expect(f"the size of {path.name}", path.stat().st_size, rule.cbytes)
        with open(path, "rb", buffering=0) as file:
            for _ in range(3):
                length = rng.choice([HEAD, 100, 4096, 70_000])
                at = rng.choice([0, rng.randrange(rule.cbytes - length), rule.cbytes - length])
                expect_bytes(f"{path.name}: {length} bytes at {at}", os.pread(file.fileno(), length, at), rule.chunk(number, at, at + length))
    with os.scandir(point) as entries:
        names = [entry.name for entry in itertools.islice(entries, listed)]
    expect("listed in part", len(set(names)), listed)
    library(point, judge, rng)


def library(path, judge, rng):
    """The Blosc2 library takes items at random."""
    count = judge.rule.count * judge.rule.items
    places = [rng.randrange(count) for _ in range(3)]
    shape, found = apart(items, path, places)
    expect("shape", shape, (count,))
    expect(f"items {places}", found, [place // judge.rule.items for place in places])


def view(name, kind, show, server, proxy, point, rng, reads, listed):
    rule = RULES[name]
    judge = Judge(rule)
    source, environment = server.url(rule.name, via=proxy.address, kind=kind), server.environment(via=proxy.address)
    proxy.clear()
    began = time.monotonic()
    with RemoteMount(source, point, ["--show", show, "-o", "refresh=3600"], environment) as mount:
        took = time.monotonic() - began
        # To show a frame of a sparse one as one file, every chunk's size has to be known.
        if rule.layout == "sframe" and show == "sparse":
            expect("requests to mount", [str(request) for request in proxy.requests[1:]], [])
            if "debug" not in Path(mount.binary).parts and mount.processor_time() > SOON:
                raise Wrong(f"mounted after {mount.processor_time():.1f} s of processor time, expected {SOON}")
        elif rule.layout == "cframe":
            expect("requests to mount: 3 at most", [str(request) for request in proxy.requests[3:]], [])
        if show == "sparse":
            sparse(point, judge, rng, reads, listed)
        elif show == "contiguous":
            contiguous(point / rule.name, judge, rng, reads)
            if rule.layout == "cframe":
                library(point / rule.name, judge, rng)
        else:
            npy(point / f"{rule.name}.{show}", judge, rng, reads)
        memory = mount.memory()
    sent = sum(request.sent for request in proxy.requests)
    print(
        f"  {name} by {kind} as {show}: mounted in {took:.2f} s, {memory >> 20} MiB of memory, {len(proxy.requests)} requests, {sent >> 20} MiB, "
        f"{time.monotonic() - began:.1f} s", flush=True,
    )  # fmt: skip
    if memory > MEMORY:
        raise Wrong(f"{memory >> 20} MiB of memory, expected at most {MEMORY >> 20}")


def commands(name, kind, server):
    """info, a part of a chunk's list, one chunk."""
    rule = RULES[name]
    source, environment = server.url(rule.name, kind=kind), server.environment()
    expect("info has its chunks", f"{rule.count}".encode() in b2fuse("info", source, environment=environment).replace(b",", b""), True)
    if name == "many":
        chunk = b2fuse("cat", source, "77", environment=environment)
        expect_bytes("cat of a chunk", chunk, (77).to_bytes(8, "little") * rule.items)
    first = rule.count // 2 * rule.items
    array = b2fuse("cat", "--npy", source, f"{first - 5}:{first + 5}", environment=environment)
    expect_bytes("cat --npy of a slice", array[-80:], Judge(rule).values(8 * (first - 5), 8 * (first + 5)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=40)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="what its line has")
    parser.add_argument("--list", type=int, default=5000, metavar="N", help="names of a directory")
    args = parser.parse_args()
    blosc2.set_nthreads(1)
    passed = failed = 0
    cases = [("big", "http"), ("big", "s3"), ("many", "s3")]
    rules = [f"{rule.name}:{rule.layout}:{rule.count}:{rule.chunksize}" for rule in RULES.values()]
    with tempfile.TemporaryDirectory(prefix="b2fuse-terabyte-") as directory, RuleServer(*rules) as server, Proxy(server.address) as proxy:
        for name, kind in cases:
            tests = {f"{name} by {kind}: commands": lambda: commands(name, kind, server)}
            for show in ("sparse", "contiguous", "npy", "raw"):
                rng = random.Random(f"{args.seed} {name} {kind} {show}")
                point = Path(directory, f"{name}-{kind}-{show}")
                tests[f"{name} by {kind} as {show}"] = lambda show=show, rng=rng, point=point: view(
                    name, kind, show, server, proxy, point, rng, args.reads, args.list
                )  # fmt: skip
            for what, test in tests.items():
                if not args.only.search(what):
                    continue
                try:
                    test()
                    passed += 1
                except (Wrong, OSError, RuntimeError) as error:
                    failed += 1
                    print(f"FAILED: {what}: {type(error).__name__}: {error}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    try:
        main()
    except Unavailable as why:
        print(f"skipped: {why}\n0 passed, 0 failed, 1 skipped")
    except KeyboardInterrupt:
        sys.exit("interrupted")
