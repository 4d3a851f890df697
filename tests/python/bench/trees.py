"""A mounted directory: what passes through it, beside the native directory and other passthrough mounts, and the frames in it."""

import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from mounts import ROOT, Mount, is_mounted

from .harness import Case, Row, Skip, drop_caches, shell, timed
from .library import change
from .sides import Side, native, other_mount, view

# With its header and options; scripts/bench builds it.
PASSTHROUGH_HP = ROOT / "target" / "tools" / "bin" / "passthrough_hp"
RANDOM_READS = 20_000
# Their names, in the order of the table. Cold and warm.
WALKS = {
    "find": "find . -size +100k >/dev/null",
    "ls -lR": "ls -lR >/dev/null",
    # GNU tar reads nothing for an archive that is /dev/null itself.
    "tar c": "tar c files | cat >/dev/null",
}
PEERS = ("bindfs", "passthrough_hp")


def mounted(bench, source, options=(), name="b2fuse"):
    @contextmanager
    def opened():
        with Mount(source, bench.point, options):
            yield bench.point

    return Side(name, opened)


def peers(bench, source):
    """Passthrough mounts by others, where they are installed."""
    found = []
    if shutil.which("bindfs"):
        found.append(Side("bindfs", lambda: other_mount(["bindfs", source], bench.point)))
    else:
        bench.note("bindfs", "not measured: not installed")
    if PASSTHROUGH_HP.exists():
        found.append(Side("passthrough_hp", lambda: passthrough_hp(source, bench.point)))
    else:
        bench.note("passthrough_hp", "not measured: could not be built")
    return found


@contextmanager
def passthrough_hp(source, point):
    """It goes to the background before it mounts, and holds a descriptor for every file that the kernel knows: so few are in the tree."""
    point.mkdir(exist_ok=True)
    process = subprocess.Popen([PASSTHROUGH_HP, "--foreground", source, point], stdout=subprocess.DEVNULL)
    try:
        while not is_mounted(point):
            if process.poll() is not None:
                raise RuntimeError(f"passthrough_hp: exit code {process.returncode}")
            time.sleep(0.01)
        yield point
    finally:
        subprocess.run(["fusermount3", "-u", point], check=process.poll() is None)
        process.wait()


def best(bench, series, sides):
    """The better of the others, round by round."""
    values = [bench.series[series.format(side.name)][-1] for side in sides if side.name in PEERS]
    if values:
        bench.add(series.format("best"), min(values))


def tree(bench):
    """All sides in turn in each round; what is written goes again."""
    for tool in ("rsync", "git"):
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")
    made = bench.data.tree()
    source, copy = made / "tree", made / "copy"
    sides = [native("native", source), mounted(bench, source), *peers(bench, source)]
    warm = {
        "rsync -a": lambda path: shell(f"rsync -a files/ {copy}/", path),
        # Others' numbers of inodes are in git's index after the first.
        "git status": lambda path: shell("git status --short >/dev/null", path),
    }
    for _ in bench.rounds:
        for side in sides:
            with side.open() as path:
                for name, command in WALKS.items():
                    bench.cold_and_warm(f"tree/{name}/{side.name}", lambda: shell(command, path))
                for name, run in warm.items():
                    run(path)
                    bench.add(f"tree/{name}/{side.name}/warm", min(timed(lambda: run(path)) for _ in range(2)))
                bench.cold_and_warm(f"tree/cat/{side.name}", lambda: shell("cat large >/dev/null", path))
                random_reads(bench, f"tree/reads/{side.name}", path / "large")
                copied(bench, f"tree/cp/{side.name}/warm", path)
        for what, states in MEASURED.items():
            for state in states if bench.cold else ("warm",):
                best(bench, f"tree/{what}/{{}}/{state}", sides)


MEASURED = {
    **{name: ("cold", "warm") for name in WALKS}, "rsync -a": ("warm",), "git status": ("warm",), "cp": ("warm",), "cat": ("cold", "warm"),
    "reads": ("cold", "warm"),
}  # fmt: skip


def random_reads(bench, series, path):
    """4 KiB each; few of them cold, because each waits for the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        places = bench.rng.integers(0, os.fstat(file).st_size - 4096, RANDOM_READS).tolist()

        def reads(count):
            for at in places[:count]:
                os.pread(file, 4096, at)

        if bench.cold:
            drop_caches()
            bench.time(f"{series}/cold", lambda: reads(RANDOM_READS // 20))
        shell(f"cat {path.name} >/dev/null", path.parent)
        bench.add(f"{series}/warm", min(timed(lambda: reads(RANDOM_READS)) for _ in range(2)))
    finally:
        os.close(file)


def copied(bench, series, path):
    """From a warm file, beside it; what the disk still has to do is done by the next."""
    try:
        bench.time(series, lambda: shell("cp large large.copy", path))
    finally:
        (path / "large.copy").unlink(missing_ok=True)
    os.sync()


def frames(bench):
    """Shown as what they are and as the other: the native ones have the kind that is shown."""
    made = bench.data.frames()
    files, directories = made / "cframes", made / "sframes"
    groups = {
        "contiguous": [native("native", files), mounted(bench, files, ["--show", "contiguous"]), *peers(bench, files)],
        "other": [native("native", directories), mounted(bench, files)],
    }
    heads = "find . -name '*.b2frame' -exec head -qc 87 {} + >/dev/null"
    for _ in bench.rounds:
        bench.cold_and_warm("tree-frames/heads", lambda: shell(heads, files))
        for group, sides in groups.items():
            for side in sides:
                with side.open() as path:
                    bench.cold_and_warm(f"tree-frames/{group}/{side.name}", lambda: shell("ls -lR >/dev/null", path))


def crowd(bench):
    """Names alone, and with attributes, of more than the kernel or the daemon would hold at once."""
    source = bench.data.crowd()
    sides = [native("native", source), mounted(bench, source), *peers(bench, source)]
    for _ in bench.rounds:
        for side in sides:
            with side.open() as path:
                for what, command in CROWD.items():
                    bench.cold_and_warm(f"tree-crowd/{what}/{side.name}", lambda: shell(command, path))
                if side.name == "native":
                    bench.cold_and_warm("tree-crowd/heads", lambda: shell(HEADS, path))
                if side.name == "b2fuse":
                    bench.add("tree-crowd/memory", memory_of("b2fuse", path))


CROWD = {"find files": "find files >/dev/null", "find files -size": "find files -size +1M", "ls -l frames": "ls -l frames/* >/dev/null"}
# What a cold listing of frames is held against.
HEADS = "find frames -name '*.b2frame' -exec head -qc 87 {} + >/dev/null"


def inside(bench):
    """One frame in a mounted directory, and the same in a mount of its own: all chunk files by cat, and changes by the library."""
    frame = bench.data.plain()
    with bench.data.copies(frame.cframe, frame.cframe) as (alone, source):
        directory = source.parent / "tree"
        directory.mkdir()
        try:
            source = source.rename(directory / source.name)
            sides = [(view(bench, "own", alone), alone), (inside_of(bench, directory, source.name), source)]
            for _ in bench.rounds:
                for side, _ in sides:
                    with side.open() as path:
                        bench.cold_and_warm(f"tree-inside/{side.name}/cat", lambda: shell("cat *.chunk >/dev/null", path))
            change(bench, "tree-inside", sides, appends=50, inserts=20)
        finally:
            shutil.rmtree(directory)


def inside_of(bench, directory, name):
    """A frame in the mount of its directory."""

    @contextmanager
    def opened():
        with Mount(directory, bench.point):
            yield bench.point / name

    return Side("tree", opened)


def inside_rows():
    for what in ("cat/cold", "cat/warm", "update", "append", "insert", "delete"):
        yield Row(f"{what.replace('/', ', ')}, over a mount of its own", f"tree-inside/tree/{what}", f"tree-inside/own/{what}", at_most=1.1)


def memory_of(name, path):
    """Of the process that serves a mount, at its peak, in MiB."""
    command = [name, "mount"]
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_text(errors="replace").split("\0")
            if [os.path.basename(words[0]), *words[1:2]] == command and str(path) in words:
                return int(re.search(r"VmHWM:\s+(\d+)", (entry / "status").read_text())[1]) / 1024
    raise RuntimeError(f"{path}: nobody serves it")


def rows():
    labels = {"cp": "cp of 1 GiB in the mount", "cat": "cat of 1 GiB", "reads": "reads of 4 KiB at random in 1 GiB"}
    aims = ("find", "rsync -a", "git status", "tar c")
    for what, states in MEASURED.items():
        for state in states:
            label = f"{labels.get(what, what)}, {state}"
            series = f"tree/{what}/{{}}/{state}".format
            yield Row(label, series("b2fuse"), series("native"))
            for peer in PEERS:
                yield Row(f"  {peer}", series(peer), series("native"))
            yield Row("  over the better of the two", series("b2fuse"), series("best"), at_most=1.5 if what in aims else None)


def frame_rows():
    for state in ("cold", "warm"):
        for group, native_kind in (("contiguous", "cframes"), ("other", "sframes")):
            series = f"tree-frames/{group}/{{}}/{state}".format
            # A frame is known by its beginning, and then by what is remembered of it.
            aim = 2 if (group, state) == ("contiguous", "warm") else None
            yield Row(f"--show {group}, over {native_kind}, {state}", series("b2fuse"), series("native"), at_most=aim)
            if state == "cold":
                yield Row("  over head -c 87 of each", series("b2fuse"), "tree-frames/heads/cold", at_most=2 if group == "contiguous" else None)
            if group == "contiguous":
                for peer in PEERS:
                    yield Row(f"  {peer}", series(peer), series("native"))


def crowd_rows():
    for state in ("cold", "warm"):
        for what in CROWD:
            series = f"tree-crowd/{what}/{{}}/{state}".format
            warm_frames = what == "ls -l frames" and state == "warm"
            yield Row(f"{what}, {state}", series("b2fuse"), series("native"), at_most=2 if warm_frames else None)
            for peer in PEERS:
                yield Row(f"  {peer}", series(peer), series("native"))
    yield Row("ls -l frames, cold, over head -c 87 of each", "tree-crowd/ls -l frames/b2fuse/cold", "tree-crowd/heads/cold", at_most=2)
    yield Row("the daemon's memory at its peak", "tree-crowd/memory", at_most=128, unit="MiB")


CASES = [
    Case(
        "tree", "a mounted directory of 18,000 small files and one of 1 GiB, beside bindfs and libfuse's passthrough_hp", tree,
        list(rows()), rounds=3,
    ),
    Case("tree-frames", "ls -lR of a directory of 2,000 small frames", frames, list(frame_rows()), rounds=3),
    Case("tree-inside", "a frame in a mounted directory, over a mount of its own", inside, list(inside_rows()), rounds=3),
    Case("tree-crowd", "a mounted directory of a million files and 100,000 frames", crowd, list(crowd_rows()), rounds=1, full=True),
]  # fmt: skip
