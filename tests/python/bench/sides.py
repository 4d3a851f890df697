"""What is compared: native frames, b2fuse's mounts of them, and mounts of archives by other tools."""

import shutil
import subprocess
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Callable

from mounts import Mount

from .harness import shell


@dataclass(frozen=True)
class Side:
    name: str
    # A context that gives the frame's path: a directory of chunks, or a file.
    open: Callable

    def cat(self, path):
        """Reads all chunks, or the file."""
        if path.is_dir():
            shell("cat *.chunk >/dev/null", path)
        else:
            shell(f"cat {path.name} >/dev/null", path.parent)


def native(name, path):
    return Side(name, lambda: nullcontext(path))


VIEWS = (("ro", ["-o", "ro"]), ("rw", []))


def view(bench, name, source, options=(), in_front=False):
    """A mount; the path is that of the frame in it."""

    @contextmanager
    def opened():
        with Mount(source, bench.point, options, in_front=in_front):
            yield bench.point / source.name if source.is_dir() else bench.point

    return Side(name, opened)


def views(bench, source):
    """Read-only and read-write."""
    return [view(bench, name, source, options) for name, options in VIEWS]


def squashfuse(bench, frame):
    """The native sframe in a squashfs image, if that is installed. Nothing is compressed again."""
    pack = ["mksquashfs", frame.sframe, "IMAGE", "-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet"]
    return archive(bench, "squashfuse", frame, pack, ["squashfuse_ll", "IMAGE"])


def archivemount(bench, frame):
    """The same in a tar archive."""
    pack = ["tar", "-C", frame.sframe, "-cf", "IMAGE", "."]
    return archive(bench, "archivemount", frame, pack, ["archivemount", "-o", "readonly,nobackup", "IMAGE"])


def archive(bench, name, frame, pack, mount):
    missing = [tool for tool in (pack[0], mount[0]) if not shutil.which(tool)]
    if missing:
        bench.note(name, f"not measured: {' and '.join(missing)} not installed")
        return []
    image = frame.directory / f"{name}.image"
    new = image.with_suffix(".new")
    if not image.exists():
        subprocess.run([new if word == "IMAGE" else word for word in pack], check=True, stdout=subprocess.DEVNULL)
        new.rename(image)
    return [Side(name, lambda: other_mount([image if word == "IMAGE" else word for word in mount], bench.point))]


@contextmanager
def other_mount(command, point):
    point.mkdir(exist_ok=True)
    subprocess.run([*command, point], check=True, stdout=subprocess.DEVNULL)
    try:
        yield point
    finally:
        subprocess.run(["fusermount3", "-u", point], check=True)
