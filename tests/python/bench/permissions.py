"""What it costs that the kernel holds everybody to the modes of files: mounts with default_permissions and without, by turns."""

import shutil

from .copying import Target, count_of, warm
from .harness import Case, Row, timed
from .library import change
from .sides import view

SIDES = (("on", ["-o", "default_permissions"]), ("off", ["-o", "nodefault_permissions"]))


def turns(bench):
    """Each round begins with the other."""
    for n in bench.rounds:
        yield from SIDES if n % 2 == 0 else SIDES[::-1]


def permissions(bench):
    count = count_of(bench, 20_000, 100_000)
    bench.sizes["copies"] = f"{count:,}"
    directory, target = bench.data.many(count).sframe, Target(bench)
    target.remove()
    warm(directory)
    for tool, command in (("cp", "cp -r"), ("rsync", "rsync -a")):
        if not shutil.which(tool):
            bench.note(tool, "not measured: not installed")
            continue
        for name, options in turns(bench):
            target.into(f"permissions/{tool}/{name}", count, ["--create", *options], f"{command} {directory}/. {bench.point}/")
    frame = bench.data.plain()
    with bench.data.copies(frame.cframe, frame.cframe) as copies:
        sides = [(view(bench, name, source, options, in_front=True), source) for source, (name, options) in zip(copies, SIDES)]
        rounds = bench.rounds
        for n in rounds:
            bench.rounds = range(1)
            change(bench, "permissions", sides if n % 2 == 0 else sides[::-1])
        bench.rounds = rounds
    for what, read_only in (("ro", ["-o", "ro"]), ("rw", [])):
        for name, options in turns(bench):
            side = view(bench, name, frame.cframe, [*read_only, *options], in_front=True)
            with side.open() as path:
                side.cat(path)
                bench.add(f"permissions/read-{what}/{name}", min(timed(lambda: side.cat(path)) for _ in range(3)))


def row(what, series):
    """Times with, over times without; a change of the library is under on/ or off/."""
    on, off = (series.format(name) for name in ("on", "off"))
    return Row(what, f"permissions/{on}", f"permissions/{off}")


CASES = [
    Case(
        "permissions", "mounts with default_permissions, over mounts without: copying in, the library's changes, warm reading", permissions,
        [
            row("cp -r {copies} files in", "cp/{}"),
            row("cp -r {copies} files in, on disk", "cp/{}/on-disk"),
            row("rsync -a {copies} files in", "rsync/{}"),
            row("rsync -a {copies} files in, on disk", "rsync/{}/on-disk"),
            *[row(f"library {what}s", f"{{}}/{what}") for what in ("update", "append", "insert", "delete")],
            row("all chunk files by cat, warm, read-only", "read-ro/{}"),
            row("all chunk files by cat, warm, read-write", "read-rw/{}"),
        ],
        full=True,
    ),
]  # fmt: skip
