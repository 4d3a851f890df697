"""Every view of a remote frame, and every command on it, held against the same frame on disk."""

import random
import re

from frames import difference

from .apart import apart, read
from .mounting import RemoteMount, Wrong, expect, expect_bytes, files_of, read_all, run
from .samples import COMMANDS, SHOWS, said


class Source:
    """A frame on a server, or what stands in for it: what b2fuse is given."""

    def __init__(self, name, environment=None, options=()):
        self.name, self.environment, self.options = name, environment or {}, list(options)


def check_views(sample, source, point, rng, shows=SHOWS):
    """All files of all views, by bytes; and the library on those that it opens."""
    for show in shows:
        if sample.shown[show] is None:
            refused(source, show, point)
            continue
        cache = rng.choice([[], [], ["--cache-size", "1M"], ["--cache-size", "0"]])
        with RemoteMount(source.name, point, ["--show", show, *source.options, *cache], source.environment):
            try:
                check_view(sample, show, point, rng)
            except OSError as error:
                raise Wrong(f"--show {show}: {error}") from error
            except Wrong as wrong:
                raise Wrong(f"--show {show}: {wrong}") from wrong


def refused(source, show, point):
    """A frame that is not shown so is not mounted."""
    point.mkdir(exist_ok=True)
    done = run("mount", "--show", show, *source.options, source.name, point, environment=source.environment)
    expect(f"--show {show}: exit code", done.returncode, 1)


def check_view(sample, show, point, rng):
    expected = dict(sample.shown[show])
    sizes = expected.pop("sizes")
    # Names with sizes may be looked at first, or after all has been read.
    first = rng.random() < 0.5
    if first:
        expect("names and sizes", files_of(point), sizes)
    found = read_all(point, rng)
    expect("names", sorted(found), sorted(expected))
    for name in expected:
        expect_bytes(name, found[name], expected[name])
    expect("names and sizes after reading", files_of(point), sizes)
    if show not in ("npy", "raw") and sample.contents is not None:
        frame = point if (point / "chunks.b2frame").exists() else point / next(iter(sizes))
        found = difference(apart(read, frame), sample.contents)
        if found:
            raise Wrong(f"the library: {found}")


def check_commands(sample, source):
    """What commands write, and their exit codes; errors say something, for they are others."""
    wrong = []
    for words in COMMANDS:
        code, output, _ = sample.said[words]
        found = said((words[0], *source.options, *words[1:]), source.name, source.environment)
        what = " ".join(["b2fuse", *words])
        try:
            if found[0] != code:
                raise Wrong(f"exit code {found[0]}, expected {code}: {found[2].decode(errors='replace').strip()}")
            expect_bytes("output", comparable(found[1]), comparable(output))
            if code:
                expect("something is said", bool(found[2]), True)
        except Wrong as error:
            wrong.append(f"{what}: {error}")
    if wrong:
        raise Wrong("\n    ".join(wrong))


def comparable(output):
    """Without what only a file on disk has: its blocks on disk, its owner and times; and whatever it is called."""
    lines = output.split(b"\n")
    return b"\n".join(line for line in lines if not re.match(rb'\s*"?(modified|on disk|disk|path|frame|name|source)"?\s*:', line, re.IGNORECASE))


def some_shows(rng, count):
    """Views in random order; the two layouts are always among them."""
    return [*rng.sample(["sparse", "contiguous"], 2), *rng.sample(["other", "npy", "raw"], 3)][:count]


def random_of(*words):
    return random.Random(" ".join(map(str, words)))
