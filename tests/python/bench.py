#!/usr/bin/env python3
"""The benchmark behind scripts/bench: times with their spread, ratios against the native frames of the same run, targets.

read    all chunk files of a frame of 4096 chunks of 128 KiB by `cat`, cold (caches dropped, fresh mount) and again warm
update  100 random chunks of the same frame replaced by the library, with chunks of other sizes
copy    N and 2N small chunk files copied in by `cp`, and the unmount: linear if the second takes at most 2.3 times as long

Of an sframe with the same chunks, shown as one file:

file-read    the file by `cat`, cold and warm, against the native cframe and against `cat` of the chunk files
file-random  4 KiB at random places, warm
file-update  random chunks replaced by the library, and the bytes that one such update writes to SOURCE, counted

The cases of a round follow each other directly, so that a slow spell of the machine meets all of them.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import blosc2
import numpy as np

from anatomy import footprint, written
from frametool import many_chunks
from mounts import ROOT, Mount

CHUNKS, CHUNKSIZE, UPDATES = 4096, 128 * 1024, 100
# The library moves half of a file for each.
FILE_UPDATES, RANDOM_READS = 10, 20_000
TARGETS = {"read cold": 0.6, "read warm": 1.1, "update": 5.0, "copy": 2.3, "file cold": 1.0, "file warm": 1.6, "file writes": 3.0}
CASES = "read,update,copy,file-read,file-random,file-update"


# ---- Frames


def noise(rng, nbytes=CHUNKSIZE, share=1.0):
    """Random bytes for a share of it, zeros for the rest: chunks of sizes in between."""
    cut = int(nbytes * share)
    return rng.bytes(cut) + bytes(nbytes - cut)


def make_frames(data):
    """The same frame in both native layouts and as SOURCE of the mounts: `source` a file, `sparse` a directory."""
    paths = {name: data / f"{name}.b2frame" for name in ("sframe", "cframe", "source", "sparse")}
    if (data / "made-2").exists():
        return paths
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    print(f"making frames of {CHUNKS * CHUNKSIZE >> 20} MiB in {data}", file=sys.stderr)
    frames = [
        blosc2.SChunk(chunksize=CHUNKSIZE, urlpath=str(paths[name]), contiguous=name == "cframe", mode="w", cparams={"typesize": 1})
        for name in ("sframe", "cframe")
    ]
    rng = np.random.default_rng(1)
    for n in range(CHUNKS):
        chunk = blosc2.compress2(noise(rng, share=1 - 0.3 * (n % 7) / 7), typesize=1, clevel=1)
        for frame in frames:
            frame.append_chunk(chunk)
    del frames, frame
    shutil.copyfile(paths["cframe"], paths["source"])
    shutil.copytree(paths["sframe"], paths["sparse"])
    (data / "made-2").touch()
    return paths


# ---- Measuring


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def shell(command, cwd):
    subprocess.run(["sh", "-c", command], cwd=cwd, check=True)


class Times:
    """Seconds by case, one for each round."""

    def __init__(self):
        self.seconds = {}

    def add(self, case, seconds):
        self.seconds.setdefault(case, []).append(seconds)

    def median(self, case):
        return statistics.median(self.seconds[case])

    def best(self, case):
        return min(self.seconds[case])

    def spread(self, case):
        return min(self.seconds[case]), max(self.seconds[case])


def cat_all(directory):
    shell("cat *.chunk >/dev/null", directory)


def read(paths, point, rounds, times, cold):
    def both(case, cat):
        if cold:
            drop_caches()
            times.add(f"read cold, {case}", timed(cat))
        else:
            cat()
        times.add(f"read warm, {case}", min(timed(cat) for _ in range(2)))

    for _ in range(rounds):
        both("native sframe", lambda: cat_all(paths["sframe"]))
        both("native cframe", lambda: shell(f"cat {paths['cframe'].name} >/dev/null", paths["cframe"].parent))
        for case, options in (("read-only mount", ["-o", "ro"]), ("read-write mount", [])):
            with Mount(paths["source"], point, options):
                both(case, lambda: cat_all(point))


def update(paths, point, rounds, times):
    rng = np.random.default_rng()

    def run(case, path, after=lambda: None):
        where = rng.choice(CHUNKS, UPDATES, replace=False)
        chunks = [blosc2.compress2(noise(rng, share=rng.uniform(0.6, 1)), typesize=1, clevel=1) for _ in where]
        frame = blosc2.open(str(path), mode="a")

        def updates():
            for n, chunk in zip(where, chunks):
                frame.update_chunk(int(n), chunk)

        loop = timed(updates)
        del frame
        times.add(f"update, {case}", loop)
        times.add(f"update and sync, {case}", loop + timed(after))

    for _ in range(rounds):
        os.sync()
        run("native sframe", paths["sframe"], os.sync)
        run("native cframe", paths["cframe"], os.sync)
        mount = Mount(paths["source"], point)
        mount.mount()
        try:
            run("read-write mount", point, mount.umount)
        finally:
            mount.umount()


VIEWS = (("read-only view", ["-o", "ro"]), ("read-write view", []))


def file_read(paths, point, rounds, times, cold):
    def measure(case, directory, command):
        cat = lambda: shell(command, directory)  # noqa: E731
        if cold:
            drop_caches()
            times.add(f"file cold, {case}", timed(cat))
        return cat

    def warm(case, cat):
        times.add(f"file warm, {case}", min(timed(cat) for _ in range(2)))

    native, chunks = f"cat {paths['cframe'].name} >/dev/null", "cat *.chunk >/dev/null"
    for _ in range(rounds):
        for case, directory, command in (("chunk files", paths["sframe"], chunks), ("native cframe", paths["cframe"].parent, native)):
            cat = measure(case, directory, command)
            cat()
            warm(case, cat)
        for case, options in VIEWS:
            with Mount(paths["sparse"], point, options):
                cat = measure(case, point, f"cat {paths['sparse'].name} >/dev/null")
                cat()
                warm(case, cat)
            # Nothing in the mount's caches, the chunk files in the machine's.
            with Mount(paths["sparse"], point, options):
                times.add(f"file fresh, {case}", timed(lambda: shell(f"cat {paths['sparse'].name} >/dev/null", point)))


def file_random(paths, point, rounds, times):
    rng = np.random.default_rng(3)

    def run(case, path):
        file = os.open(path, os.O_RDONLY)
        places = rng.integers(0, os.fstat(file).st_size - 4096, RANDOM_READS).tolist()

        def reads():
            for at in places:
                os.pread(file, 4096, at)

        shell(f"cat {path.name} >/dev/null", path.parent)
        times.add(f"random, {case}", timed(reads))
        os.close(file)

    for _ in range(rounds):
        run("native cframe", paths["cframe"])
        for case, options in VIEWS:
            with Mount(paths["sparse"], point, options):
                run(case, point / paths["sparse"].name)


def file_update(paths, point, rounds, times):
    """Returns bytes written for one update, over the new chunk's own, at worst."""
    rng = np.random.default_rng()
    worst = 0

    def chunk():
        return blosc2.compress2(noise(rng, share=rng.uniform(0.6, 1)), typesize=1, clevel=1)

    def run(case, path, after=lambda: None):
        where, chunks = rng.choice(CHUNKS, FILE_UPDATES, replace=False), [chunk() for _ in range(FILE_UPDATES)]
        frame = blosc2.open(str(path), mode="a")

        def updates():
            for n, chunk in zip(where, chunks):
                frame.update_chunk(int(n), chunk)

        loop = timed(updates)
        del frame
        times.add(f"file update, {case}", loop)
        times.add(f"file update and sync, {case}", loop + timed(after))

    view = point / paths["sparse"].name
    for _ in range(rounds):
        os.sync()
        run("native cframe", paths["cframe"], os.sync)
        mount = Mount(paths["sparse"], point)
        mount.mount()
        try:
            before, new = footprint(paths["sparse"]), chunk()
            with open(view) as file:
                blosc2.open(str(view), mode="a").update_chunk(int(rng.integers(CHUNKS)), new)
                os.fsync(file.fileno())
            worst = max(worst, written(before, footprint(paths["sparse"])) / len(new))
            run("read-write view", view, mount.umount)
        finally:
            mount.umount()
    return worst


def copy(data, point, rounds, times, count):
    """A whole sframe into an empty mount, and chunk files alone behind the end of a frame of one chunk."""
    directories = [data / f"small-{n}" for n in (count, 2 * count)]
    for directory, n in zip(directories, (count, 2 * count)):
        many_chunks(directory, n)
    first = data / "first.b2frame"
    target = data / "copied.b2frame"

    def run(case, n, options, command):
        # umount returns when all is on disk: the time until then is what counts.
        mount = Mount(target, point, options)
        mount.mount()
        try:
            times.add(case, timed(lambda: (shell(command, data), mount.umount())))
        finally:
            mount.umount()
        found = blosc2.open(str(target)).nchunks
        if found != n:
            sys.exit(f"{case}: {target} has {found} chunks, expected {n}")
        target.unlink()
        shutil.rmtree(f"{target}.lost", ignore_errors=True)

    blosc2.remove_urlpath(str(first))
    frame = blosc2.SChunk(chunksize=1024, urlpath=str(first), mode="w", cparams={"typesize": 1})
    frame.append_chunk((directories[0] / "00000000.chunk").read_bytes())
    del frame
    target.unlink(missing_ok=True)
    for _ in range(rounds):
        for directory, n, name in zip(directories, (count, 2 * count), ("N", "2N")):
            run(f"copy an sframe of {name}", n, ["--create"], f"cp -r {directory.name}/. {point}/")
            shutil.copyfile(first, target)
            run(f"append {name} files", n, [], f"find {directory.name} -name '*.chunk' -print0 | sort -z | xargs -0 cp -t {point}")


# ---- Reporting


def rows_of(times, options):
    """(what, case, reference, ratio, target, kept) for each comparison; a ratio is time over time unless it says faster."""
    rows = []

    def row(what, case, reference, target=None, faster=False, of=times.median):
        if case not in times.seconds or reference not in times.seconds:
            return
        ratio = of(case) / of(reference)
        if faster:
            ratio = 1 / ratio
        kept = None if target is None else (ratio >= target if faster else ratio <= target)
        rows.append({
            "what": what, "case": case, "reference": reference, "ratio": round(ratio, 3), "target": target, "kept": kept,
            "seconds": of(case), "spread": times.spread(case), "reference seconds": of(reference),
        })  # fmt: skip

    for state in ("cold", "warm"):
        for mount in ("read-only", "read-write"):
            target = TARGETS[f"read {state}"] if mount == "read-only" else None
            row(f"read all, {state}, {mount}", f"read {state}, {mount} mount", f"read {state}, native sframe", target)
        row(f"read all, {state}, cframe", f"read {state}, native cframe", f"read {state}, native sframe")
    view = "read-write mount"
    row(f"{UPDATES} updates, times faster", f"update, {view}", "update, native cframe", TARGETS["update"], faster=True)
    row(f"{UPDATES} updates, synced, faster", f"update and sync, {view}", "update and sync, native cframe", faster=True)
    row(f"{UPDATES} updates", f"update, {view}", "update, native sframe")
    row(f"{UPDATES} updates, synced", f"update and sync, {view}", "update and sync, native sframe")
    for case, _ in VIEWS:
        row(f"file, cold, {case}", f"file cold, {case}", "file cold, chunk files", TARGETS["file cold"])
        row(f"file, cold, {case}", f"file cold, {case}", "file cold, native cframe")
        row(f"file, warm, {case}", f"file warm, {case}", "file warm, native cframe", TARGETS["file warm"])
        row(f"file, fresh mount, {case}", f"file fresh, {case}", "file warm, chunk files")
        row(f"file, random 4 KiB, {case}", f"random, {case}", "random, native cframe")
    row(f"file, {FILE_UPDATES} updates", "file update, read-write view", "file update, native cframe")
    row(f"file, {FILE_UPDATES} updates, synced", "file update and sync, read-write view", "file update and sync, native cframe")
    # Whether time is linear is a question to the program, not to the machine's other work: the best times answer it.
    row(f"copy an sframe, {2 * options.count}, best", "copy an sframe of 2N", "copy an sframe of N", TARGETS["copy"], of=times.best)
    row(f"append files, {2 * options.count}, best", "append 2N files", "append N files", TARGETS["copy"], of=times.best)
    return rows


def table(rows):
    print(f"{'':36} {'seconds':>8} {'spread':>15}  {'against':<28} {'seconds':>8} {'ratio':>7}  target")
    for row in rows:
        low, high = row["spread"]
        target = ""
        if row["target"] is not None:
            sign = ">=" if "faster" in row["what"] else "<="
            target = f"{sign} {row['target']} {'kept' if row['kept'] else 'MISSED'}"
        against = row["reference"].split(", ")[-1]
        print(
            f"{row['what']:36} {row['seconds']:8.3f} {low:7.3f}-{high:.3f}  {against:<28} {row['reference seconds']:8.3f} "
            f"{row['ratio']:7.2f}  {target}"
        )


def main():
    parser = argparse.ArgumentParser(description="A mounted frame against the native ones: a table of ratios.")
    parser.add_argument("--only", default=CASES, help="cases, with commas between (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: 5)")
    parser.add_argument("--full", action="store_true", help="copy 100,000 and 200,000 files")
    parser.add_argument("--count", type=int, help="N of the copies (default: 4,000)")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--assert", dest="check", action="store_true", help="fail if a target is missed")
    parser.add_argument("--data", type=Path, default=ROOT / "target" / "bench-data", help="where the frames are kept")
    options = parser.parse_args()
    options.count = options.count or (100_000 if options.full else 4_000)
    only = options.only.split(",")
    data = options.data.resolve()
    point = data / "mnt"
    times = Times()
    cold = os.geteuid() == 0 and os.access("/proc/sys/vm/drop_caches", os.W_OK)
    if {"read", "file-read"} & set(only) and not cold:
        print("not root: no cold reads", file=sys.stderr)
    if set(only) - {"copy"}:
        paths = make_frames(data)
    data.mkdir(parents=True, exist_ok=True)
    if "read" in only:
        read(paths, point, options.rounds, times, cold)
    if "update" in only:
        update(paths, point, options.rounds, times)
    if "copy" in only:
        copy(data, point, options.rounds, times, options.count)
    if "file-read" in only:
        file_read(paths, point, options.rounds, times, cold)
    if "file-random" in only:
        file_random(paths, point, options.rounds, times)
    worst = file_update(paths, point, options.rounds, times) if "file-update" in only else 0
    rows = rows_of(times, options)
    table(rows)
    if worst:
        target = TARGETS["file writes"]
        rows.append({"what": "one update writes", "ratio": round(worst, 3), "target": target, "kept": worst < target})
        verdict = "kept" if worst < target else "MISSED"
        print(f"one update through the file writes {worst:.2f} times its chunk's bytes to SOURCE at worst, target < {target} {verdict}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "seconds": times.seconds}, indent=1) + "\n")
    missed = [row["what"] for row in rows if row["kept"] is False]
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
