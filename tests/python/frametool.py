#!/usr/bin/env python3
"""Frames for the shell tests: makes them, looks into them, compares them. All through the Blosc2 library."""

import ctypes
import errno
import fcntl
import os
import signal
import sys
import traceback
from pathlib import Path

import blosc2
import numpy as np

from anatomy import Cframe, Sframe, footprint, parts, same_parts, written
from bigframes import many_chunks
from frames import contents, difference, open_frame, schunk_of, special_of

CHUNKSIZE = 40_000
TYPESIZE = 4
# Zeros at 2, uninitialised at 4, NaN at 5; at 7 a repeated value, which is a stored chunk; the others noise.
BASE = "rrzrunrvrr"
NAMES = {1: "zeros", 2: "nan", 3: "value", 4: "uninit", 0: "stored"}


def noise(seed, nbytes=CHUNKSIZE):
    """Reproducible, and compressible to about two thirds, as measured data are."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(nbytes) < 0.6, rng.integers(0, 256, nbytes), 0).astype(np.uint8).tobytes()


def compress(data):
    return blosc2.compress2(data, typesize=TYPESIZE, nthreads=1)


def make(path, spec=BASE, contiguous=True, seed=0):
    """A frame by a letter for each chunk: r noise, z zeros, u uninitialised, n NaN, v a repeated value, s a short noise."""
    frame = blosc2.SChunk(
        chunksize=CHUNKSIZE, urlpath=str(path), contiguous=contiguous, mode="w", meta={"made": b"by the tests"},
        cparams={"typesize": TYPESIZE, "nthreads": 1},
    )  # fmt: skip
    special = {"z": "ZERO", "u": "UNINIT", "n": "NAN", "v": "VALUE"}
    for n, letter in enumerate(spec):
        frame.append_data(noise(seed + n, CHUNKSIZE // 2 if letter == "s" else CHUNKSIZE))
        if letter in special:
            value = b"\x01\x02\x03\x04" if letter == "v" else None
            frame.update_special(n, blosc2.SpecialValue[special[letter]], value)
    frame.vlmeta["unit"] = "metre"
    frame.vlmeta["history"] = {"steps": list(range(200))}


def fixtures(where):
    """Everything that the tests copy from, made once a run. Those in `sparse` are the same frames, written as directories."""
    where = Path(where)
    (where / "sparse").mkdir()
    specs = {"base": BASE, "full": "r" * 6, "short": "rrrs", "empty": "", "many": "r" * 64}
    for folder, contiguous in ((where, True), (where / "sparse", False)):
        for name, spec in specs.items():
            make(folder / f"{name}.b2frame", spec, contiguous)
        blosc2.asarray(
            np.arange(60 * 70, dtype="f8").reshape(60, 70), chunks=(20, 30), blocks=(10, 10), urlpath=str(folder / "array.b2nd"),
            mode="w", contiguous=contiguous,
        )  # fmt: skip
    make(where / "native.b2frame", "r" * 6, contiguous=False, seed=50)
    for name in ("base", "full"):
        (where / name).mkdir()
        frame = open_frame(where / f"{name}.b2frame")
        for n in range(frame.nchunks):
            (where / name / str(n)).write_bytes(frame.get_chunk(n))
    (where / "new").mkdir()
    for n in range(8):
        (where / "new" / str(n)).write_bytes(compress(noise(100 + n)))
    (where / "new" / "zeros").write_bytes(compress(bytes(CHUNKSIZE)))
    (where / "new" / "short").write_bytes(compress(noise(200, CHUNKSIZE // 2)))
    (where / "new" / "longer").write_bytes(compress(noise(201, CHUNKSIZE + TYPESIZE)))
    (where / "new" / "holes").write_bytes(blosc2.compress2(noise(203, 8000) + bytes(24_000) + noise(204, 8000), typesize=4, clevel=0))
    (where / "new" / "plain").write_bytes(blosc2.compress2(noise(202), typesize=TYPESIZE, clevel=0))


def same(one, other):
    """Fails with the first difference of two frames; cbytes is left out, as the layouts count it differently."""
    found = difference(contents(open_frame(one), cbytes=False), contents(open_frame(other), cbytes=False))
    if found:
        sys.exit(f"{one} is not as {other}: {found}")


def twins(one, other):
    """Fails unless two frames are the same, and agree in every byte but for places and lengths. Prints how many chunks are stored."""
    same(one, other)
    same_parts(one, other)
    print(sum(isinstance(chunk, bytes) for chunk in parts(one)[2]))


def view(path, source):
    """Fails unless a file is what a mount of a sparse frame first shows, or a contiguous frame made by another way."""
    twins(path, source)
    Cframe.read(path).check_canonical()


def holds(path, *expected):
    """Checks positions: `3=FILE` for a chunk's bytes, `2=zeros` (or nan, uninit) for a special one, `n=12` for their number."""
    frame = schunk_of(open_frame(path))
    for word in expected:
        place, _, want = word.partition("=")
        if place == "n":
            if frame.nchunks != int(want):
                sys.exit(f"{path}: {frame.nchunks} chunks, expected {want}")
            continue
        chunk = frame.get_chunk(int(place))
        kind = NAMES[special_of(chunk)]
        if want in NAMES.values():
            if kind != want:
                sys.exit(f"{path}: chunk {place} is {kind}, expected {want}")
        elif chunk != Path(want).read_bytes():
            sys.exit(f"{path}: chunk {place} ({len(chunk)} bytes, {kind}) is not {want}")


def run(code, *arguments):
    """A few lines of Python with blosc2, numpy and this module's functions at hand."""
    sys.argv = ["-c", *arguments]
    exec(code, globals())


def serve(requests):
    """Runs commands for tests/shell/harness.sh, each in a fork of this process: blosc2 takes longer to load than most of them to run.

    A line that comes out of the fifo `requests` names a file: of its fields, each with a NUL behind it, the first is the caller's
    process, whose files are used, the second a fifo that is to have the exit code, then its directory and the command.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # For writing as well, or there would be an end when nobody asks.
    with open(os.open(requests, os.O_RDWR)) as lines:
        for line in lines:
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                caller, answer, directory, *command = Path(line[:-1]).read_bytes().decode().split("\0")[:-1]
                worker = os.fork()
                if worker == 0:
                    os._exit(answered(int(caller), directory, command))
                # Only now has it closed everything.
                status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
                Path(answer).write_text(f"{status if status >= 0 else 128 - status}\n")
                os._exit(0)


def answered(caller, directory, command):
    """The exit code of a command that was run with another process's files."""
    try:
        take_files(caller)
        os.chdir(directory)
        perform(command)
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
    except OSError:
        code = code or 1
    sys.stderr.flush()
    return code or 0


def take_files(process):
    """Makes the files of another process ours, as far as a shell's redirections number them."""
    # Above those numbers.
    pidfd = fcntl.fcntl(os.pidfd_open(process), fcntl.F_DUPFD_CLOEXEC, 10)
    os.closerange(0, 10)
    free = []
    for fd in range(10):
        # pidfd_getfd(2), on every architecture of Linux, which takes the first free number: a file that was moved from there would
        # have to be closed, and who closes a file of a mount is told things.
        if libc.syscall(438, pidfd, fd, 0) < 0:
            if ctypes.get_errno() != errno.EBADF:
                raise OSError(ctypes.get_errno(), f"file {fd} of process {process}")
            free.append(os.open(os.devnull, os.O_RDONLY))
        os.set_inheritable(fd, True)
    for fd in [*free, pidfd]:
        os.close(fd)


def perform(command):
    blosc2.set_nthreads(1)
    COMMANDS[command[0]](*command[1:])


libc = ctypes.CDLL(None, use_errno=True)
COMMANDS = {f.__name__: f for f in (make, fixtures, same, twins, view, holds, many_chunks, run, serve)}

if __name__ == "__main__":
    perform(sys.argv[1:])
