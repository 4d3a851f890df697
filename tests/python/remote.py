#!/usr/bin/env python3
"""Remote frames, on servers that others wrote, held against the same frames on disk.

    views      every view of random frames of both layouts, and the library on them
    commands   info, ls, cat and check of URLs
    counts     how many requests are made, counted by a proxy
    changes    objects that others change between any two requests
    faults     errors, resets, torn and slow bodies, servers that are away or silent
    caches     what is kept on disk from mount to mount
    refusals   writes, and sources whose changes could not be noticed
    trees      prefixes of many frames, mounted whole
    converts   uploads and downloads, whole, interrupted and spoiled
    secrets    keys and presigned queries, looked for in logs, process lists and messages

    remote.py                          a few frames on each server: ten minutes
    remote.py --quick                  each promise once, on the servers that need no compiler: two minutes
    remote.py --count 60 --seed 7      as many random frames as you like on each; changes and faults are tried more often too
    remote.py --servers moto,nginx --parts views
    remote.py --latency 30             all servers so many milliseconds away
    remote.py --self-test              with bytes that are flipped, requests that are too many, and frames that are others: all must be found

Run it with the Python of `need_servers` in scripts/lib.sh. Servers that are not installed are skipped, and said to be. Interrupted, it leaves
no server, mount or file. The last line is the count.
"""

import argparse
import contextlib
import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import blosc2

from remote import caching, changing, converting, counting, failing, reading, samples, trees
from remote.mounting import Wrong, expect, run, taken_away
from remote.proxy import Fault, Proxy
from remote.selftest import Planted
from remote.servers import SERVERS, Unavailable

PARTS = ["views", "commands", "counts", "changes", "faults", "caches", "refusals", "trees", "converts", "secrets"]
# Where all kinds of frames are tried; on others two, which show whether the server is understood.
THOROUGH = ["moto", "s3s-fs", "web-strong"]
# The same with --quick, and what that leaves out.
THOROUGH_QUICKLY, NOT_QUICK = ["moto"], ["s3s-fs"]
# Requests are counted where all can be put: no server makes a difference.
COUNTED = ["s3s-fs", "moto", "web-strong"]
# Frames of a tree.
TREE = 30
FAULTS = {
    "500": Fault(status=500, body=b"error"),
    "503": Fault(status=503, body=b"slow down", headers={"Retry-After": "0"}),
    "a reset": Fault(reset=True),
    "a body that is cut off": Fault(cut=700),
    "a body that is torn": Fault(tear=700),
    "a slow body": Fault(pace=400_000),
}
SPOILED = {"a body that is too short": Fault(shorten=700), "403": Fault(status=403), "404": Fault(status=404)}


class Count:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def skip(self, what, why):
        self.skipped += 1
        print(f"skipped: {what}: {why}", flush=True)

    def fail(self, what, error):
        self.failed += 1
        trace = "" if isinstance(error, Wrong) else f"\n{''.join(traceback.format_exception(error))}"
        print(f"FAILED: {what}: {error}{trace}", flush=True)

    @contextlib.contextmanager
    def test(self, what, point=None):
        try:
            yield
            self.passed += 1
        except (Wrong, OSError, RuntimeError, subprocess.SubprocessError, AssertionError, ValueError) as error:
            self.fail(what, error)
            if point:
                # Whatever a failure has left.
                taken_away(point)


class Run:
    """One server, with what is tried on it."""

    def __init__(self, args, server, proxy, directory, count, frames):
        self.args, self.server, self.proxy, self.directory, self.count = args, server, proxy, directory, count
        self.frames, self.is_thorough = frames, server.name in (THOROUGH_QUICKLY if args.quick else THOROUGH)
        proxy.latency = args.latency / 1000
        self.point = directory / "mount"
        # A source with nothing that tells its states apart is to be asked for.
        self.options = ["-o", "unsafe-immutable"] if server.validator == "none" else []

    @property
    def name(self):
        return self.server.name

    def test(self, what):
        return self.count.test(f"{self.name}: {what}", self.point)

    def usable(self, sample):
        """A web server has no directories of objects."""
        return self.server.kind != "http" or not sample.is_sparse

    def put(self, sample):
        self.server.copy_in(sample.path, sample.key)

    def clear(self):
        for key in self.server.keys():
            self.server.delete(key)

    def source(self, sample, via=None):
        via = via or (self.proxy.address if self.args.latency else None)
        return reading.Source(failing.url_of(self.server, sample, via), self.server.environment(via), self.options)

    def some_frames(self):
        frames = [sample for sample in self.frames if self.usable(sample)]
        if self.is_thorough and not self.args.quick:
            return frames
        rng = reading.random_of(self.args.seed, self.name)
        mixed = [sample for sample in frames if sample.path.name == "mixed.b2frame"]
        array = rng.choice([sample for sample in frames if sample.path.suffix == ".b2nd" and sample.path.parent == mixed[0].path.parent])
        others = [sample for sample in frames if sample not in (*mixed, array)]
        return [*mixed, array, *rng.sample(others, min(3 if self.is_thorough else 1, len(others)))]

    def views(self):
        if not self.server.ranges:
            return
        for n, sample in enumerate(self.some_frames()):
            rng = reading.random_of(self.args.seed, self.name, sample.path)
            self.put(sample)
            shows = samples.SHOWS if self.args.long else reading.some_shows(rng, 3)
            for show in shows:
                with self.test(f"{sample.what}: --show {show}"):
                    reading.check_views(sample, self.source(sample), self.point, rng, [show])
            self.clear()

    def commands(self):
        if not self.server.ranges:
            return
        for sample in self.some_frames():
            self.put(sample)
            with self.test(f"commands on {sample.what}"):
                reading.check_commands(sample, self.source(sample))
            self.clear()

    def counts(self):
        if not self.args.counted_on == self.name:
            return
        counting.make(self.directory)
        tests = counting.CONTIGUOUS if self.server.kind == "http" else counting.SPARSE + counting.CONTIGUOUS
        for frame in sorted(self.directory.glob("counted-?.b2frame")):
            if self.server.kind != "http" or not frame.is_dir():
                self.server.copy_in(frame, frame.name)
        for test in tests:
            with self.test(f"requests: {test.__name__.replace('_', ' ')}"):
                test(self.server, self.proxy, self.point)
        self.clear()

    def changes(self):
        if self.server.validator == "none" or not self.server.ranges:
            return
        rng = reading.random_of(self.args.seed, self.name, "changes")
        whole = self.is_thorough or self.args.long or self.server.validator != "strong"
        # Of one object there is one change.
        times = 12 if self.args.long else 1 if self.server.kind != "http" else 3
        reads = errors = 0
        for sparse in (False,) if self.server.kind == "http" else (True, False):
            for order in changing.ORDERS if sparse else ["the one object"]:
                for in_place in (False, True) if sparse else (True,):
                    for show in changing.SHOWS if whole else [rng.choice(changing.SHOWS)]:
                        for turn in range(times):
                            where = self.directory / "changes"
                            where.mkdir()
                            kind = f"{'sframe' if sparse else 'cframe'} as {show}, {order}, {'the same keys' if in_place else 'new keys'}, {turn}"
                            seed = f"{self.args.seed} {self.name} {turn}"
                            with self.test(f"changes of a {kind}, --seed {self.args.seed}"):
                                judge = changing.change(
                                    self.server, self.proxy, where, self.point, seed, sparse, show, order, in_place, self.options
                                )  # fmt: skip
                                reads, errors = reads + judge.reads, errors + judge.errors
                            self.proxy.between = None
                            shutil.rmtree(where)
                            self.clear()
        print(f"  {self.name}: {reads} reads of frames that change, and {errors} errors", flush=True)
        with self.test("reads of frames that change: most must be possible"):
            if errors > reads:
                raise Wrong(f"{errors} errors and {reads} reads")

    def chosen(self, sparse):
        """The frame with special chunks, or an array, for what is not about frames."""
        return next(sample for sample in self.frames if sample.path.name == "mixed.b2frame" and sample.is_sparse == sparse)

    def counted(self, sparse):
        """The frame that requests are counted on."""
        where = self.directory / "counted"
        if not where.exists():
            where.mkdir()
            counting.make(where)
        return samples.Sample(where / f"counted-{'s' if sparse else 'c'}.b2frame", f"{counting.CHUNKS} chunks")

    def faults(self):
        if not self.is_thorough:
            return
        for sparse in (False,) if self.server.kind == "http" else (True, False):
            sample = self.chosen(sparse)
            layout = "sframe" if sparse else "cframe"
            self.put(sample)
            shows = ["sparse", "contiguous", "raw"]
            # Quickly, each is tried on one of both layouts.
            turns = itertools.count()

            def test(what, function, sample, *words):
                turn = next(turns)
                if not self.args.quick or (turn + turn // 2) % 2 == sparse:
                    with self.test(f"{what}, {layout}"):
                        function(self.server, self.proxy, sample, self.point, *words)

            for number, (what, fault) in enumerate(FAULTS.items()):
                for show in shows if self.args.long else [shows[number % 3]]:
                    test(f"{what} in one of three answers, as {show}", failing.retried, sample, show, fault)
                    test(f"{what} in every second answer, as {show}", failing.never_wrong, sample, show, fault)
            for what, fault in SPOILED.items():
                test(f"{what} in every second answer", failing.never_wrong, sample, "sparse", fault)
            self.clear()
            # More than is fetched ahead.
            sample = self.counted(sparse)
            self.put(sample)
            test("the server goes away", failing.away, sample, self.proxy.away)
            test("the server is silent", failing.away, sample, self.proxy.silent)
            test("many wait for a silent server", failing.crowded, sample)
            test("a read that waits is interrupted", failing.interrupted, sample)
            test("unmounted while the server is silent", failing.unmounted_while_silent, sample)
            test("ended while the server is silent at the opening", failing.ended_while_opening, sample)
            test("no server, no frame", failing.no_mount, sample)
            self.put(sample)
            with self.test(f"an object is deleted, {layout}"):
                failing.deleted(self.server, sample, self.point)
            self.clear()
        if self.server.kind != "http":
            with self.test("an object is deleted in a tree"):
                failing.deleted_in_a_tree(self.server, self.point)
            self.clear()

    def caches(self):
        if not self.server.ranges or self.server.validator == "none" or not (self.is_thorough or self.server.kind == "azure"):
            return
        for sparse in (False,) if self.server.kind == "http" else (True, False):
            layout = "sframe" if sparse else "cframe"
            tests = [("kept on disk", caching.kept, self.chosen(sparse), []),
                     ("damaged on disk", caching.damaged, self.chosen(sparse), [self.args.seed]),
                     ("bounded on disk", caching.bounded, self.counted(sparse), [])]  # fmt: skip
            for what, test, sample, words in tests:
                self.put(sample)
                with self.test(f"{what}, {layout}"):
                    test(self.server, self.proxy, sample, self.point, *words)
                self.clear()
            where = self.directory / "replaced"
            where.mkdir()
            with self.test(f"kept on disk, and replaced, {layout}"):
                caching.replaced(self.server, self.proxy, where, self.point, self.args.seed, sparse)
            shutil.rmtree(where)
            self.clear()

    def refusals(self):
        sample = self.chosen(self.server.kind != "http")
        self.put(sample)
        self.point.mkdir(exist_ok=True)
        if self.server.validator == "none":
            with self.test("nothing tells states apart: refused"):
                for words in (["mount", self.source(sample).name, self.point], ["info", self.source(sample).name]):
                    done = run(*words)
                    expect("exit code", done.returncode, 1)
                    if b"unsafe-immutable" not in done.stderr:
                        raise Wrong(f"no word of unsafe-immutable: {done.stderr!r}")
        if not self.server.ranges:
            with self.test("no ranges: refused"):
                done = run("mount", self.source(sample).name, self.point)
                expect("exit code", done.returncode, 1)
                if b"range requests" not in done.stderr:
                    raise Wrong(f"no word of range requests: {done.stderr!r}")
        if self.is_thorough:
            with self.test("writes are refused"):
                failing.read_only(self.server, sample, self.point)
        self.clear()

    def trees(self):
        if self.server.kind == "http":
            return
        server, proxy, point = self.server, self.proxy, self.point
        # A server that is a directory of files answers no GET of a directory.
        prefix = "" if self.name == "s3s-fs" else "some/of them 100%/"
        tests = []
        if self.name == "moto" or self.args.long:
            count = len(self.frames) if self.args.quick else TREE
            chosen = [*self.frames, *samples.some(self.directory, max(0, count - len(self.frames)), f"{self.args.seed} tree")]
            rng = reading.random_of(self.args.seed, self.name, "tree")
            tests.append(("a tree of frames is the local one", lambda at: trees.compare(server, chosen, at, point, prefix, rng)))
        if self.name != "s3s-fs" or self.args.long:
            tests.append(("frames of a tree that are replaced", lambda at: trees.replaced(server, at, point, prefix)))
        if self.name != "s3s-fs":
            tests.append(("a prefix beside an object", lambda at: trees.beside_an_object(server, point, prefix)))
        if self.name == "moto":
            tests.append(("names that no file can have", lambda at: trees.strange(server, point, prefix)))
            if not self.args.quick:
                tests.append((f"{trees.OPEN} frames open", lambda at: trees.bounded(server, at, point, prefix)))
        if self.args.counted_on == self.name:
            names = 1100 if self.args.quick else trees.MANY
            tests.append((f"{names} names", lambda at: trees.many(server, proxy, point, prefix, names)))
            tests.append(("requests of a tree", lambda at: trees.counted(server, proxy, at, point, prefix)))
        for what, act in tests:
            at = self.directory / "trees"
            at.mkdir()
            began = time.monotonic()
            with self.test(what):
                act(at)
            if self.args.times:
                print(f"      {what}: {time.monotonic() - began:.1f} s", flush=True)
            shutil.rmtree(at)
            self.clear()

    def converts(self):
        if self.server.kind == "http":
            return
        server, proxy, at = self.server, self.proxy, self.directory / "converts"
        at.mkdir()
        whole = self.chosen(True)

        def test(what, function, *words):
            began = time.monotonic()
            with self.test(what):
                function(*words)
            if self.args.times:
                print(f"      {what}: {time.monotonic() - began:.1f} s", flush=True)
            proxy.fault = None
            converting.tidy(at)
            self.clear()

        frames = self.some_frames()
        if self.is_thorough and not self.args.long:
            others = [sample for sample in frames if sample is not whole]
            frames = [whole, *reading.random_of(self.args.seed, self.name, "converts").sample(others, 1 if self.args.quick else 3)]
        for sample in frames:
            test(f"there and back: {sample.what}", converting.there_and_back, server, sample, at)
        test("layouts that are kept", converting.kept, server, whole, at)
        test("replaced", converting.replaced, server, whole, self.frames[0], at)
        test("replaced by more", converting.replaced, server, self.frames[0], whole, at)
        test("arrays", converting.arrays, server, at)
        test("requests of an upload", converting.counted, server, proxy, whole)
        if self.is_thorough or self.args.long:
            for what in ("a reset",) if self.args.quick else ("500", "503", "a reset"):
                test(f"{what} in one of three answers", converting.spoiled, server, proxy, whole, at, FAULTS[what])
            test("a server that fails", converting.given_up, server, proxy, whole, at)
            test("an upload that goes on after what is there was spoiled", converting.spoiled_rest, server, proxy, whole, at)
            for number in converting.SIGNALS:
                test(f"stopped by {number.name}", converting.stopped, server, proxy, whole, at, number)
            test("secrets of uploads that fail", converting.hidden, server, proxy, whole, at)
        if self.name in ("moto", "azurite"):
            test("killed", converting.killed, server, proxy, whole, at)
        at.rmdir()

    def secrets(self):
        if self.server.kind == "http":
            if not self.server.ranges or self.server.validator != "strong" or self.args.quick:
                return
            with self.test("a query of a plain URL is a secret"):
                sample = self.chosen(False)
                self.put(sample)
                url = f"{self.source(sample, self.proxy.address).name}?token=Vkq7Zt0Yx3PpLm9W&sig=aB%2Bc%2FdEfGh12345678%3D"
                hidden = ["Vkq7Zt0Yx3PpLm9W", "aB+c/dEfGh12345678="]
                failing.hidden(url, {}, hidden, self.proxy, sample, self.point, background=True)
            self.clear()
            return
        sample = self.chosen(True)
        self.put(sample)
        for background in (False, True) if self.args.long else (self.server.kind == "s3",):
            if self.args.quick and not background:
                continue
            with self.test(f"secrets of a mount {'in the background' if background else 'in front'}"):
                url, environment = self.source(sample, self.proxy.address).name, self.server.environment(self.proxy.address)
                failing.hidden(url, environment, self.server.secrets(), self.proxy, sample, self.point, background)
        self.clear()
        if self.server.kind == "s3":
            sample = self.chosen(False)
            self.put(sample)
            with self.test("a presigned URL"):
                url = self.server.presigned(sample.key, self.proxy.address)
                secrets = failing.secrets_of_query(url)
                expect("secrets in a presigned URL", len(secrets) >= 2, True)
                telling = failing.TELLING[:: 3 if self.args.quick else 1]
                failing.hidden(url, {}, secrets, self.proxy, sample, self.point, True, telling)
            self.clear()


def on_servers(args, count, frames, act):
    """Starts one server after the other, with a proxy in front."""
    for name in args.servers:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="b2fuse-remote-") as directory:
            try:
                with SERVERS[name]() as server, Proxy(server.address) as proxy:
                    act(Run(args, server, proxy, Path(directory), count, frames))
            except Unavailable as why:
                count.skip(name, why)
                continue
            except RuntimeError as error:
                count.fail(name, error)
                continue
        print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)


def everything(args, count, frames):
    def act(run):
        for part in args.parts:
            began = time.monotonic()
            getattr(run, part)()
            if args.times:
                print(f"    {run.name}: {part}: {time.monotonic() - began:.1f} s", flush=True)

    on_servers(args, count, frames, act)


def self_test(args, count, frames):
    args.servers = [name for name in args.servers if name in THOROUGH]
    on_servers(args, count, frames, lambda run: Planted(run, args.seed).all())


def ended(number, frame):
    """All that was begun is undone, as after an interruption."""
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--count", type=int, default=4, help="random frames")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--long", action="store_true", help="every view of every frame; changes and faults more often")
    parser.add_argument("--quick", action="store_true", help="each promise once")
    parser.add_argument("--latency", type=int, default=0, metavar="MS", help="from a request to its answer, at least")
    parser.add_argument("--times", action="store_true", help="say how long each part takes")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    known = [name for name in SERVERS if not (args.quick and name in NOT_QUICK)]
    args.servers, args.parts = args.servers.split(",") if args.servers else known, args.parts.split(",")
    for words, known in ((args.servers, SERVERS), (args.parts, PARTS)):
        if set(words) - set(known):
            parser.error(f"unknown: {', '.join(sorted(set(words) - set(known)))}; known: {', '.join(known)}")
    args.counted_on = next((name for name in COUNTED if name in args.servers), None)
    blosc2.set_nthreads(1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    count = Count()
    with tempfile.TemporaryDirectory(prefix="b2fuse-remote-frames-") as directory:
        frames = samples.fixed(Path(directory)) + samples.some(Path(directory), args.count, args.seed, args.first)
        (self_test if args.self_test else everything)(args, count, frames)
    print(f"{count.passed} passed, {count.failed} failed, {count.skipped} skipped")
    sys.exit(1 if count.failed else 0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted")
