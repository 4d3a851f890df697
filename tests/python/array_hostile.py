#!/usr/bin/env python3
"""Decompressed views of frames that lie: arrays that cannot be are refused in one line, damaged chunks give EIO for their bytes only.

    array_hostile.py [PATTERN]        only cases whose name matches

Refused: shapes whose product overflows, blocks larger than chunks, dimensions without items, sizes that disagree, item types of a
megabyte, with code in them, or of objects. Each must end soon, within little memory, with exit code 1 and a line that names the frame and
says what was found and what was expected; and in a mounted tree it harms no other frame. Damaged: chunks that decode to less or more
than they say, that are cut, or need a plugin. All pages without a byte of theirs can be read, the others give EIO, and the log has one
line for each such chunk. Where nothing is forged, both pass. The last line is the count.
"""

import argparse
import errno
import functools
import math
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import blosc2
import numpy as np

import libblosc2
from anatomy import Cframe
from arrayframes import metalayer, saved
from mounts import Mount, default_binary

# Most that a refusal may take: KiB of memory, seconds, bytes of message.
MEMORY, TIME, MESSAGE = 96 << 10, 10, 2000
PAGE = 4096
MEGABYTE = 1 << 20


class Wrong(AssertionError):
    pass


# ---- Arrays that cannot be

ARRAY = {"shape": (40, 30), "chunks": (16, 10), "blocks": (4, 5), "dtype": b"<f8"}
NCHUNKS, CHUNKSIZE = 9, 16 * 10 * 8
# What is forged, and a word of which one must be in the message.
REFUSED = {
    "a product that overflows": ({"shape": (1 << 40, 1 << 40)}, "shape|items|overflow|product|chunks"),
    "a product that overflows to nothing": ({"shape": (1 << 33, 1 << 31)}, "shape|items|overflow|product|chunks"),
    "a product that overflows to what it was": ({"shape": ((1 << 63) - 1, (1 << 63) - 1)}, "shape|items|overflow|product|chunks"),
    "bytes that overflow": ({"shape": (1 << 61, 1)}, "shape|items|overflow|product|chunks"),
    "a negative size": ({"shape": (-40, 30)}, "shape"),
    "two negative sizes": ({"shape": (-40, -30)}, "shape"),
    "chunks of no items": ({"chunks": (0, 10)}, "chunk"),
    "chunks of a negative size": ({"chunks": (-16, -10)}, "chunk"),
    "blocks of no items": ({"blocks": (0, 5)}, "block"),
    "blocks of a negative size": ({"blocks": (-4, -5)}, "block"),
    "blocks larger than chunks": ({"blocks": (32, 5)}, "block"),
    "blocks larger than chunks, of as many items": ({"blocks": (1, 20)}, "block"),
    "more chunks than there are": ({"shape": (4000, 30)}, "chunks"),
    "fewer chunks than there are": ({"shape": (16, 10)}, "chunks"),
    "no items, and yet chunks": ({"shape": (0, 30)}, "chunks|shape"),
    "chunks of another size than the frame's": ({"chunks": (15, 10), "blocks": (5, 5)}, "chunk"),
    "items of another size than the frame's": ({"dtype": b"<f4"}, "type|item|dtype|chunk"),
    "seventeen dimensions": ({"shape": (1,) * 17, "chunks": (1,) * 17, "blocks": (1,) * 17}, "dim|b2nd|metalayer"),
    "more dimensions than sizes": ({"ndim": 3}, "dim|shape|b2nd|metalayer"),
    "fewer dimensions than sizes": ({"ndim": 1}, "dim|shape|b2nd|metalayer"),
    "chunks of fewer dimensions": ({"chunks": (160,)}, "dim|chunk|b2nd|metalayer"),
    "a type of a megabyte": ({"dtype": b"<f8" + b" " * MEGABYTE}, "type"),
    "a type of a megabyte of fields": ({"dtype": b"[" + b"('a', '<f8'), " * (MEGABYTE // 14) + b"]"}, "type"),
    "a type of brackets": ({"dtype": b"[" * 60_000}, "type"),
    "a type of nested fields": ({"dtype": b"[('a', " * 8000 + b"'<f8'" + b")]" * 8000}, "type"),
    "a type of nested tuples": ({"dtype": b"(" * 8000 + b"'<f8'" + b",)" * 8000}, "type"),
    "a type that is a call": ({"dtype": b"__import__('os').system('touch CODE')"}, "type"),
    "a type that is a call in a field": ({"dtype": b"[('a', __import__('os').system('touch CODE'))]"}, "type"),
    "a type that is a long calculation": ({"dtype": b"[('a', '<f8')] * 10 ** 10"}, "type"),
    "a type that is a large power": ({"dtype": b"9 ** 9 ** 9"}, "type"),
    "objects": ({"dtype": b"|O"}, "type"),
    "objects in a field": ({"dtype": b"[('a', 'O')]"}, "type"),
    "items of more bytes than there are": ({"dtype": b"|V99999999999999999999"}, "type"),
    "items of 2 GiB": ({"dtype": b"|S2147483648"}, "type|item"),
    "fields of more bytes than there are": ({"dtype": b"[('a', '<f8', (1073741824, 1073741824, 1073741824))]"}, "type"),
    "fields of a negative count": ({"dtype": b"[('a', '<f8', (-1, -1))]"}, "type"),
    "a type that is no text": ({"dtype": b"\xff\xfe<f8"}, "type|utf|text"),
    "a type with a zero": ({"dtype": b"<f8\0"}, "type"),
    "a type that nobody knows": ({"dtype": b"<q8"}, "type"),
    "a format of types that nobody knows": ({"format": 77}, "type|format"),
}


# What the library reads all the same may be shown as it reads it.
TOLERATED = ["fewer chunks than there are", "no items, and yet chunks", "a type with a zero"]


def forged(path, what, contiguous=True):
    """A frame of nine chunks with a metalayer that says what it is."""
    frame = blosc2.SChunk(
        chunksize=CHUNKSIZE, urlpath=str(path), contiguous=contiguous, mode="w",
        cparams={"typesize": 8, "blocksize": 4 * 5 * 8, "nthreads": 1, "codec": blosc2.Codec.LZ4},
    )  # fmt: skip
    libblosc2.add_metalayer(frame, "b2nd", metalayer("b2nd", **{**ARRAY, **what}))
    for n in range(NCHUNKS):
        frame.append_data(np.arange(n * 160, (n + 1) * 160, dtype="<f8"))


def limited():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def ended(*command, directory):
    """Exit code, message, KiB of memory and seconds of a command that is to end by itself."""
    with tempfile.TemporaryFile() as said:
        began = time.monotonic()
        process = subprocess.Popen([default_binary(), *map(str, command)], stdout=subprocess.DEVNULL, stderr=said, cwd=directory, preexec_fn=limited)
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() - began > 60:
                process.kill()
                raise Wrong(f"{command[0]} hangs")
            time.sleep(0.005)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return process.returncode, said.read().decode(errors="replace"), used.ru_maxrss, time.monotonic() - began


def expect_refusal(path, words, *command, directory):
    code, said, memory, seconds = ended(*command, directory=directory)
    if code == 0:
        subprocess.run(["umount", "-l", str(command[-1])], capture_output=True)
    lines = said.splitlines()
    for fine, what in (
        (code == 1, f"exit code {code}, expected 1"),
        (len(lines) == 1, f"{len(lines)} lines, expected 1"),
        (said.startswith(str(path)), f"does not begin with {path}"),
        (len(said) < MESSAGE, f"a message of {len(said)} bytes"),
        (re.search(words, said.removeprefix(str(path)), re.I), f"no word of {words}"),
        ("expected" in said, "does not say what was expected"),
        (memory < MEMORY, f"{memory >> 10} MiB of memory"),
        (seconds < TIME, f"{seconds:.1f} s"),
        (not Path(directory, "CODE").exists(), "code was run"),
    ):
        if not fine:
            raise Wrong(f"{command[0]}: {what}: {said[:500]!r}")


def shown_as_read(path, point):
    """Whether a frame is shown, and then as the library reads it."""
    try:
        with Mount(path, point, ["--show", "npy"]):
            if (point / f"{path.name}.npy").read_bytes() != saved(blosc2.open(str(path))[()]):
                raise Wrong("it is shown, and not as the library reads it")
    except RuntimeError:
        return False
    return True


def refused_by_mount(directory, name):
    path, point = directory / "forged.b2nd", directory / "mount"
    point.mkdir()
    what, words = REFUSED[name]
    forged(path, what)
    if name in TOLERATED and shown_as_read(path, point):
        return
    expect_refusal(path, words, "mount", "--show", "npy", path, point, directory=directory)
    # As bytes it may be shown or not.
    code, said, memory, seconds = ended("mount", "--show", "raw", path, point, directory=directory)
    if code == 0:
        subprocess.run(["timeout", "20", "sh", "-c", f"cat {point}/* | head -c 1000000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run([default_binary(), "umount", point], check=True, timeout=60, capture_output=True)
    elif code != 1 or len(said.splitlines()) != 1 or not said.startswith(str(path)):
        raise Wrong(f"mount --show raw: exit code {code}: {said[:500]!r}")
    if memory > MEMORY or seconds > TIME:
        raise Wrong(f"mount --show raw: {memory >> 10} MiB, {seconds:.1f} s")


def refused_by_cat(directory, name):
    what, words = REFUSED[name]
    forged(directory / "forged.b2nd", what)
    if name not in TOLERATED:
        expect_refusal(directory / "forged.b2nd", words, "cat", "--npy", directory / "forged.b2nd", directory=directory)


def refused_by_convert(directory, name):
    what, words = REFUSED[name]
    forged(directory / "forged.b2nd", what)
    if name not in TOLERATED:
        expect_refusal(directory / "forged.b2nd", words, "convert", directory / "forged.b2nd", directory / "out.npy", directory=directory)
        if sorted(os.listdir(directory)) != ["forged.b2nd"]:
            raise Wrong(f"it leaves {os.listdir(directory)}")


def in_a_tree(directory):
    """All of them beside one that is as it says."""
    top, point = directory / "tree", directory / "mount"
    top.mkdir()
    for n, (what, _) in enumerate(REFUSED.values()):
        forged(top / f"forged-{n}.b2nd", what, n % 3 > 0)
    values = np.arange(1000.0)
    blosc2.asarray(values, urlpath=str(top / "good.b2nd"), mode="w")
    with Mount(top, point, ["--show", "npy", "--log-file", str(directory / "log")]):
        begun = time.monotonic()
        names = os.listdir(point)
        for name in names:
            # Whatever they are shown as, to look at them does not hang, nor end the daemon.
            path = point / name
            try:
                (os.listdir if path.is_dir() else lambda file: Path(file).open("rb").read(10_000))(path)
            except OSError as error:
                if error.errno not in (errno.EIO, errno.EINVAL):
                    raise Wrong(f"{name}: {error}") from error
        if "good.b2nd.npy" not in names or (point / "good.b2nd.npy").read_bytes() != saved(values):
            raise Wrong(f"the good one is not there, or not what it must be: {names}")
        if len(names) != len(REFUSED) + 1:
            raise Wrong(f"{len(names)} names, expected {len(REFUSED) + 1}")
        if (directory / "CODE").exists() or Path("CODE").exists():
            raise Wrong("code was run")
        if time.monotonic() - begun > 3 * TIME:
            raise Wrong("to look at them takes long")


# ---- Damaged chunks

DAMAGED = 2


def along():
    """Chunks of 120,000 bytes one after the other."""
    return (200, 300), (50, 300), (10, 300)


def across():
    """Chunks of 8 KiB of each row."""
    return (20, 4096), (20, 1024), (5, 512)


def chunk_of(nbytes, blocksize, stream, codec=1, user=0, cbytes=None):
    """A chunk whose first block is a stream, and whose others are too."""
    blocks = -(-nbytes // blocksize)
    starts = [32 + 4 * blocks] * blocks
    body = struct.pack(f"<{blocks}i", *starts) + struct.pack("<i", len(stream)) + stream
    # Both bits that mean Blosc2, no split; no filter.
    flags = 0x05 | 0x10 | codec << 5
    head = struct.pack("<BBBBiii", 5, 1, flags, 8, nbytes, blocksize, 32 + len(body) if cbytes is None else cbytes)
    return head + bytes(6) + bytes([user, 0]) + bytes(8) + body


def header_gone(chunk, nbytes, blocksize):
    return bytes(32)


def streams_anywhere(chunk, nbytes, blocksize):
    """Blocks begin where there is nothing."""
    return chunk[:32] + b"\xff\xff\xff\x7f" * (nbytes // blocksize)


def streams_before(chunk, nbytes, blocksize):
    return chunk[:32] + b"\0\0\0\x80" * (nbytes // blocksize)


def less(chunk, nbytes, blocksize):
    """An LZ4 stream of ten bytes."""
    return chunk_of(nbytes, blocksize, b"\xa0" + bytes(10))


def nothing(chunk, nbytes, blocksize):
    return chunk_of(nbytes, blocksize, b"\0")


def more(chunk, nbytes, blocksize):
    """An LZ4 stream of a byte that is repeated for ever so long."""
    return chunk_of(nbytes, blocksize, b"\x1f\x07\x01\x00" + b"\xff" * 5000 + b"\0\x50" + bytes(5))


def half(chunk, nbytes, blocksize):
    return chunk[:4] + (nbytes // 2).to_bytes(4, "little") + chunk[8:]


def double(chunk, nbytes, blocksize):
    return chunk[:4] + (nbytes * 2).to_bytes(4, "little") + chunk[8:]


def negative(chunk, nbytes, blocksize):
    return chunk[:4] + b"\xff\xff\xff\xff" + chunk[8:]


def other_blocks(chunk, nbytes, blocksize):
    return chunk[:8] + (blocksize * 2).to_bytes(4, "little") + chunk[12:]


def no_blocks(chunk, nbytes, blocksize):
    return chunk[:8] + bytes(4) + chunk[12:]


def longer_than_the_frame(chunk, nbytes, blocksize):
    return chunk[:12] + (1 << 30).to_bytes(4, "little") + chunk[16:]


def shorter_than_its_header(chunk, nbytes, blocksize):
    return chunk[:12] + (7).to_bytes(4, "little") + chunk[16:]


def codec_of_a_plugin(chunk, nbytes, blocksize):
    return chunk_of(nbytes, blocksize, bytes(100), codec=6, user=33)


def codec_of_nobody(chunk, nbytes, blocksize):
    return chunk_of(nbytes, blocksize, bytes(100), codec=6, user=250)


def filter_of_a_plugin(chunk, nbytes, blocksize):
    data = np.arange(nbytes // 8, dtype="<i8").tobytes()
    params = {"filters": [blosc2.Filter.SHUFFLE, blosc2.Filter.BYTEDELTA], "filters_meta": [0, 8], "blocksize": blocksize}
    return blosc2.compress2(data, typesize=8, codec=blosc2.Codec.ZSTD, nthreads=1, **params)


DAMAGES = [
    header_gone, streams_anywhere, streams_before, less, nothing, more, half, double, negative, other_blocks, no_blocks,
    longer_than_the_frame, shorter_than_its_header, codec_of_a_plugin, codec_of_nobody, filter_of_a_plugin,
]  # fmt: skip


def damaged(directory, damage, places, contiguous):
    """One chunk in the middle is another; without a damage, all is well."""
    shape, chunks, blocks = places()
    path = directory / "damaged.b2nd"
    # As long as any of the chunks above.
    values = np.random.default_rng(3).integers(0, 1 << 40, math.prod(shape)).reshape(shape)
    params = {"codec": blosc2.Codec.LZ4, "filters": [blosc2.Filter.NOFILTER], "filters_meta": [0], "nthreads": 1}
    array = blosc2.asarray(values, chunks=chunks, blocks=blocks, urlpath=str(path), contiguous=contiguous, mode="w", cparams=params)
    chunk, nbytes, blocksize = array.schunk.get_chunk(DAMAGED), array.schunk.chunksize, array.schunk.blocksize
    nchunks = array.schunk.nchunks
    del array
    if damage:
        new = damage(chunk, nbytes, blocksize)
        assert len(new) <= len(chunk) and new != chunk[: len(new)], damage.__name__
        if contiguous:
            start, _ = Cframe.read(path).stored[DAMAGED]
            with open(path, "r+b") as file:
                file.seek(start)
                file.write(new)
        elif damage is longer_than_the_frame:
            (path / f"{DAMAGED:08X}.chunk").unlink()
        else:
            (path / f"{DAMAGED:08X}.chunk").write_bytes(new)
    assert nchunks == 4
    bad = np.zeros(shape, "?")
    if damage:
        corner = [(n * size, (n + 1) * size) for n, size in zip(np.unravel_index(DAMAGED, [-(-s // c) for s, c in zip(shape, chunks)]), chunks)]
        bad[tuple(slice(*ends) for ends in corner)] = True
    content = saved(values)
    touched = np.concatenate([np.zeros(len(content) - values.nbytes, "?"), np.repeat(bad.ravel(), 8)])
    log, point = directory / "log", directory / "mount"
    mount = Mount(path, point, ["--show", "npy", "--log-file", str(log)], in_front=True)
    with mount:
        read_pages(point / f"{path.name}.npy", content, touched)
        status = Path(f"/proc/{mount.daemon.pid}/status").read_text()
        memory = int(re.search(r"VmHWM:\s+(\d+)", status)[1])
    if memory > 256 << 10:
        raise Wrong(f"the daemon took {memory >> 10} MiB")
    lines = [line for line in log.read_text().splitlines() if re.search(r"WARN|ERROR", line)] if log.exists() else []
    if len(lines) != (damage is not None):
        raise Wrong(f"{len(lines)} lines of the log, expected {int(damage is not None)}: {lines[:3]}")
    if damage and (path.name not in lines[0] or not re.search(rf"\b{DAMAGED}\b", lines[0])):
        raise Wrong(f"the log does not say which chunk of what: {lines[0]}")


def read_pages(path, content, touched):
    """Every page, twice, in random order: those without a byte of the damaged chunk are right, the others cannot be read."""
    starts = list(range(0, len(content), PAGE))
    order = np.random.default_rng(1).permutation(starts).tolist()
    seen = [0, 0]
    fd = os.open(path, os.O_RDONLY)
    try:
        for at in order + starts:
            is_bad = touched[at : at + PAGE]
            try:
                got = os.pread(fd, PAGE, at)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise Wrong(f"at {at}: {error}, expected EIO") from error
                if not is_bad.any():
                    raise Wrong(f"at {at}, {min(abs(np.flatnonzero(touched) - at))} bytes from the damaged chunk: {error}") from error
                seen[1] += 1
                continue
            if is_bad.all() or is_bad.any() and got != content[at : at + PAGE]:
                raise Wrong(f"at {at}, in the damaged chunk: {len(got)} bytes {got[:16].hex(' ')}, expected EIO")
            if got != content[at : at + PAGE]:
                raise Wrong(f"at {at}, outside of the damaged chunk: other bytes")
            seen[0] += 1
    finally:
        os.close(fd)
    assert seen[0] and (seen[1] or not touched.any())


def hollow_block(directory):
    """A block of 512 MiB of which there are ten bytes: nothing is made for it that stays."""
    path, size = directory / "hollow.b2nd", 536_866_816
    frame = blosc2.SChunk(chunksize=size, urlpath=str(path), mode="w", cparams={"typesize": 8, "blocksize": size, "nthreads": 1})
    libblosc2.add_metalayer(frame, "b2nd", metalayer("b2nd", (size // 8,), (size // 8,), (size // 8,), b"<f8"))
    frame.append_chunk(chunk_of(size, size, b"\xa0" + bytes(10)))
    del frame
    point = directory / "mount"
    mount = Mount(path, point, ["--show", "npy", "--log-file", str(directory / "log")], in_front=True)
    with mount, open(point / f"{path.name}.npy", "rb", buffering=0) as file:
        began = time.monotonic()
        for at in (5 * PAGE, size // 2, 7 * PAGE):
            file.seek(at)
            try:
                raise Wrong(f"at {at}: {len(file.read(PAGE))} bytes, expected EIO")
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
        memory = int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{mount.daemon.pid}/status").read_text())[1])
        if memory > 128 << 10 or time.monotonic() - began > TIME:
            raise Wrong(f"the daemon holds {memory >> 10} MiB, and took {time.monotonic() - began:.1f} s")


def nothing_forged(directory):
    path, point = directory / "good.b2nd", directory / "mount"
    forged(path, {})
    with Mount(path, point, ["--show", "npy"]):
        expected = saved(blosc2.open(str(path))[()])
        if (point / "good.b2nd.npy").read_bytes() != expected:
            raise Wrong("what is not forged is not shown as it is")


def cases():
    yield "nothing is forged", nothing_forged
    for case in (refused_by_mount, refused_by_cat, refused_by_convert):
        for name in REFUSED:
            yield f"{case.__name__.replace('_', ' ')}: {name}", functools.partial(case, name=name)
    yield "refused: all of them in a tree", in_a_tree
    for damage in [None, *DAMAGES]:
        for places in (along, across):
            name = damage.__name__.replace("_", " ") if damage else "none"
            for contiguous in (True, False) if damage in (None, less, header_gone, longer_than_the_frame) else (True,):
                yield (
                    f"damage: {name}, {places.__name__}, {'cframe' if contiguous else 'sframe'}",
                    functools.partial(damaged, damage=damage, places=places, contiguous=contiguous),
                )
    yield "damage: a block of 512 MiB", hollow_block


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="")
    args = parser.parse_args()
    blosc2.set_nthreads(1)
    passed = failed = 0
    for name, case in cases():
        if not re.search(args.pattern, name):
            continue
        with tempfile.TemporaryDirectory(prefix="b2fuse-hostile-") as directory:
            try:
                case(Path(directory))
                passed += 1
            except (Wrong, RuntimeError, OSError, subprocess.SubprocessError) as wrong:
                failed += 1
                print(f"FAILED: {name}: {wrong if isinstance(wrong, Wrong) else repr(wrong)}", flush=True)
            finally:
                subprocess.run(["umount", "-l", str(Path(directory, "mount"))], capture_output=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
