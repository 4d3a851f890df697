"""Mounts of URLs, and commands on them, with what a server's clients need in their environment."""

import os
import random
import subprocess
import time
from pathlib import Path

from mounts import Mount, default_binary, is_mounted

from .servers import without_proxies

# How long a command may take before it counts as one that hangs.
LONG = 120


class Wrong(AssertionError):
    """What is seen is not what it must be."""


def expect(what, got, expected):
    if got != expected:
        raise Wrong(f"{what}: {brief(got)}, expected {brief(expected)}")


def brief(value):
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:600]}... ({len(text)} characters)"


def expect_bytes(what, got, expected):
    if got == expected:
        return
    at = next((n for n, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
    raise Wrong(f"{what}: {len(got)} bytes, expected {len(expected)}; from {at} on {got[at : at + 24]!r}, expected {expected[at : at + 24]!r}")


def without_clouds(environment):
    """Nothing of the machine's own accounts."""
    clouds = ("AWS_", "AZURE_", "GOOGLE_", "MSI_", "IDENTITY_")
    own = {name: value for name, value in without_proxies(environment).items() if not name.startswith(clouds)}
    return own | {"HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"}


def b2fuse(*words, environment=None, code=0, timeout=LONG):
    """What a command writes. Its exit code is what is expected, or anything with None."""
    done = run(*words, environment=environment, timeout=timeout)
    if code is not None and done.returncode != code:
        raise Wrong(f"{in_words(words)}: exit code {done.returncode}, expected {code}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def run(*words, environment=None, timeout=LONG):
    command = [default_binary(), *map(str, words)]
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout, env=without_clouds(os.environ) | (environment or {}))
    except subprocess.TimeoutExpired as error:
        raise Wrong(f"{in_words(words)} hangs") from error


def in_words(words):
    return " ".join(["b2fuse", *map(str, words)])


class RemoteMount(Mount):
    """`b2fuse mount` of a URL or a path, in front, so that its log and its memory can be looked at."""

    def __init__(self, source, point, options=(), environment=None, level="info"):
        super().__init__("/", point, options)
        self.source, self.env, self.level = source, without_clouds(os.environ) | (environment or {}), level
        self.log = self.point.with_name(f"{self.point.name}.log")

    def mount(self):
        self.point.mkdir(exist_ok=True)
        command = [self.binary, "mount", "-f", "--log-level", self.level, *map(str, self.options), str(self.source), str(self.point)]
        with open(self.log, "wb") as log:
            self.daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env)
        try:
            self.wait(time.monotonic() + LONG)
        except BaseException:
            # Nobody leaves what was not entered.
            self.end()
            raise
        self.mounted = True
        return self

    def wait(self, deadline):
        while not is_mounted(self.point):
            try:
                code = self.daemon.wait(0.005)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise Wrong(f"mount of {self.source} hangs: {self.said()[-2000:].strip()}") from None
                continue
            raise Wrong(f"mount of {self.source}: exit code {code}: {self.said()[-2000:].strip()}")

    def end(self):
        """Neither the mount nor its daemon is left."""
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        taken_away(self.point)

    def said(self):
        """The log so far."""
        return self.log.read_text(errors="replace")

    def memory(self):
        """The most that the daemon took, in bytes."""
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) << 10

    def processor_time(self):
        """What the daemon took of it, in seconds."""
        fields = Path(f"/proc/{self.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, kind, error, trace):
        try:
            super().__exit__(kind, error, trace)
        finally:
            if self.daemon and self.daemon.poll() is None:
                self.end()


def taken_away(point):
    """Whatever is mounted there is no longer. A mount of nobody's has no more to say than that it is none."""
    while subprocess.run(["umount", "-l", str(point)], capture_output=True).returncode == 0:
        pass


def files_of(point):
    """All files beneath a directory, by name, with their sizes."""
    return {str(path.relative_to(point)): path.stat().st_size for path in sorted(point.rglob("*")) if path.is_file()}


def read_all(point, rng=None):
    """The bytes of all files, in random order; `rng` also decides how each is read."""
    names = sorted(files_of(point))
    rng = rng or random.Random(0)
    return {name: read_somehow(point / name, rng) for name in rng.sample(names, len(names))}


def read_somehow(path, rng):
    """A file's bytes: at once, in small pieces, from the end on, or at random places first."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        way = rng.randrange(4)
        step = max(rng.choice([4096, 100_000, 1 << 20]), size // 100 + 1)
        if way == 1:
            places = range(0, size + 1, step)
        elif way == 2:
            places = reversed(range(0, size + 1, step))
        elif way == 3:
            places = rng.sample(range(0, size + 1, step), size // step + 1)
        else:
            with open(fd, "rb", closefd=False) as file:
                return file.read()
        pieces = {at: os.pread(fd, step, at) for at in places}
        return b"".join(pieces[at] for at in sorted(pieces))
    finally:
        os.close(fd)
