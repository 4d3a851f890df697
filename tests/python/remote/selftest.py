"""Whether the tests of remote frames find what they are there for: each fault that is planted here must be found.

Bits are flipped, requests are counted twice, frames are others, servers lie about what they have, or are not away when they should be.
"""

import shutil
import time

from . import caching, changing, converting, counting, failing, reading, samples, trees
from .mounting import Wrong, expect
from .proxy import Fault

# How many frames change, at most, on a server that denies it: some are read whole before or after.
LIES = 20


class Planted:
    """What is tried on one server."""

    def __init__(self, run, seed):
        self.run, self.count, self.seed = run, run.count, seed
        self.server, self.proxy, self.point = run.server, run.proxy, run.point

    def must_fail(self, what, function, *words):
        """A test that is to fail, and to say what it found."""
        try:
            function(*words)
        except (Wrong, OSError) as found:
            print(f"  {what}: found: {str(found).splitlines()[0][:160]}", flush=True)
            self.count.passed += 1
        except RuntimeError as error:
            self.count.fail(what, error)
        else:
            self.count.fail(what, Wrong("is not found"))
        finally:
            self.proxy.fault = self.proxy.between = None

    def all(self):
        parts = [self.bytes, self.requests, self.server_that_is_there, self.lies, self.uploads, self.trees, self.kept, self.judged]
        if self.server.kind == "http":
            parts.remove(self.uploads)
            parts.remove(self.trees)
        for part in parts:
            began = time.monotonic()
            part()
            if self.run.args.times:
                print(f"    {self.run.name}: {part.__name__}: {time.monotonic() - began:.1f} s", flush=True)

    def bytes(self):
        run, proxy, point = self.run, self.proxy, self.point
        sample, other = run.chosen(self.server.kind != "http"), run.chosen(self.server.kind == "http")
        rng = reading.random_of(self.seed, "self-test")
        run.put(sample)
        through = run.source(sample, proxy.address)
        with run.test("no fault"):
            reading.check_views(sample, through, point, rng)
            reading.check_commands(sample, through)

        def flip(request):
            """The bytes that are stored tell of nothing wrong with them."""
            return Fault(flip=40) if request.path.endswith(".chunk") or not sample.is_sparse and request.range else None

        for show in ("sparse", "contiguous", "raw"):
            proxy.fault = flip
            self.must_fail(f"a flipped bit, as {show}", reading.check_views, sample, through, point, rng, [show])
        wrong = samples.Sample(other.path.with_name("one.b2frame"), "another frame")
        self.must_fail("another frame", reading.check_views, wrong, through, point, rng, ["contiguous"])
        self.must_fail("commands on another frame", reading.check_commands, wrong, through)
        run.clear()

    def requests(self):
        """Each is counted twice."""
        counting.make(self.run.directory)
        tests = [counting.open_contiguous, counting.one_chunk_of_contiguous]
        if self.server.kind != "http":
            tests = [test for test in counting.SPARSE if test is not counting.together] + tests
        for frame in sorted(self.run.directory.glob("counted-?.b2frame")):
            if self.server.kind != "http" or not frame.is_dir():
                self.server.copy_in(frame, frame.name)

        def twice(request):
            self.proxy.requests.append(request)

        for test in tests:
            self.proxy.fault = twice
            self.must_fail(f"requests that are too many: {test.__name__.replace('_', ' ')}", test, self.server, self.proxy, self.point)
        if self.server.kind != "http":
            # One is held up until the one before has its answer.
            self.proxy.between = lambda request: None
            self.must_fail("requests that are never together", counting.together, self.server, self.proxy, self.point)
        self.run.clear()

    def server_that_is_there(self):
        sample = self.run.counted(self.server.kind != "http")
        self.run.put(sample)
        self.must_fail("a server that is not away", failing.away, self.server, self.proxy, sample, self.point, lambda: None)
        self.run.clear()

    def lies(self):
        """Objects that others change on a server that shows the ETag of the first, whatever is asked for."""
        def some():
            for turn in range(LIES):
                where = self.run.directory / f"lies{turn}"
                where.mkdir()
                tags = {}
                self.proxy.fault = lambda request, tags=tags: Fault(tags=tags)
                words = [where, self.point, f"lies {turn}", False, "contiguous", "the one object", True, [], 3600, changing.LARGE]
                changing.change(self.server, self.proxy, *words)

        self.must_fail("changes that the server denies", some)
        self.run.clear()

    def uploads(self):
        at = self.run.directory / "uploads"
        at.mkdir()
        self.must_fail("an object that is not what was sent", converting.there_and_back, Spoiling(self.server), self.run.chosen(True), at)
        converting.tidy(at)
        at.rmdir()
        self.run.clear()

    def kept(self):
        """A cache on disk that is not looked at would give what it has."""
        sample = self.run.chosen(self.server.kind != "http")
        self.run.put(sample)
        self.must_fail("a cache that keeps nothing", caching.kept, self.server, self.proxy, sample, self.point, ["--cache-size", "1M"])
        self.run.clear()

    def trees(self):
        top = self.run.directory / "planted"
        top.mkdir()
        (top / "x").write_bytes(b"as uploaded")
        good = {".": ["x", "y"], "x": b"as uploaded", "y": b"shown"}
        with self.run.test("trees that are the same"):
            trees.same("same", good | {"x": b"as uploaded"}, good | {"x": b"as a local view has it"}, top)
        for what, other in {"a byte": {"y": b"showm"}, "a name": {".": ["x"]}, "a kind": {"y": []}, "one more": {"z": b""}}.items():
            self.must_fail(f"{what} of a tree", trees.same, what, good | other, good, top)
        self.must_fail("a byte of an object in a tree", trees.same, "an object", good | {"x": b"as uploadeD"}, good, top)
        shutil.rmtree(top)
        if self.run.args.counted_on == self.server.name:
            chunks, trees.counting.CHUNKS = trees.counting.CHUNKS, trees.counting.CHUNKS - 1
            at = self.run.directory / "planted"
            at.mkdir()
            # One chunk fewer is expected than is there.
            make, frames = counting.make, self.run.counted(True).path.parent
            counting.make = lambda directory: (frames / "counted-s.b2frame", frames / "counted-c.b2frame")
            try:
                self.must_fail("more requests of a tree than are to be", trees.counted, self.server, self.proxy, at, self.point, "")
            finally:
                counting.make, trees.counting.CHUNKS = make, chunks
            shutil.rmtree(at)
            self.run.clear()

    def judged(self):
        """A reader that is given bytes of neither version, or of both at once."""
        where = self.run.directory / "judged"
        where.mkdir()
        old, new = (changing.version(where, word, False, seed, 5) for seed, word in enumerate(("old", "new")))
        judge = changing.Judge(old, new, "contiguous", False)
        name, key = "frame.b2frame", changing.key_of(False)
        one, two = old.objects[key], new.objects[key]
        with self.count.test("bytes of one version"):
            expect("versions", (judge.judge(name, 100, one[100:5000], 4900), judge.judge(name, 100, two[100:5000], 4900)), ({0}, {1}))
        for what, data in {"mixed": one[:3000] + two[3000:], "short": one[:-1], "flipped": one[:99] + b"\xee" + one[100:]}.items():
            self.must_fail(f"bytes that are {what}", judge.judge, name, 0, data, 1 << 40)
        self.must_fail("an open file with the other version", judge.judge, name, 100, two[100:5000], 4900, {0})
        for secret in ("plain/se+cret==", "Vkq7Zt0Yx3PpLm9W"):
            self.must_fail(f"the secret {secret} in a text", failing.look, "a text", f"GET /x?sig={sorted(failing.forms(secret))[0]}&x", [secret])
        shutil.rmtree(where)


class Spoiling:
    """A server of which the objects have one bit that is another."""

    def __init__(self, server):
        self.server = server

    def __getattr__(self, name):
        return getattr(self.server, name)

    def get(self, key):
        data = bytearray(self.server.get(key))
        data[len(data) // 2] ^= 1
        return bytes(data)
