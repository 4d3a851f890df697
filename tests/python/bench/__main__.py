"""The command line: which cases, how often; a table, and JSON. `CASES` is where a case is registered."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import blosc2

from mounts import ROOT, Mount

from . import arrays, copying, decoding, encoding, library, listing, mounting, parallel, permissions, reading, remote, slopes, trees
from .data import Data
from .harness import Bench, Skip, result

# Each has a list CASES of its own.
MODULES = (reading, library, copying, listing, mounting, parallel, slopes, decoding, encoding, arrays, permissions, trees, remote)
CASES = [case for module in MODULES for case in module.CASES]


def main():
    options = arguments()
    Mount.always = ["-o", options.mount_options] if options.mount_options else []
    data = options.data.resolve()
    data.mkdir(parents=True, exist_ok=True)
    bench = Bench(options, Data(data), data / "mnt")
    blosc2.set_nthreads(1)
    began, load = time.time(), os.getloadavg()
    shown = []
    print(f"{'':46} {'median':>9} {'against':>9}  {'ratio':>7} {'of the rounds':>15}  target")
    for case in options.cases:
        bench.rounds = range(options.rounds or case.rounds)
        if case in options.chosen:
            run(bench, case)
        elif case.full:
            bench.note(case.name, "not measured: only with --full or --only")
        rows = [{"case": case.name, **result(row, bench)} for row in case.rows]
        rows = [row for row in rows if row["value"] is not None or row["target"]]
        # As soon as they are there.
        table(case.name, rows)
        shown += rows
    for what, why in bench.notes.items():
        print(f"{what}: {why}")
    loads = f"load {load[0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    print(f"{os.cpu_count()} cores, {loads}, {platform.release()}, {time.time() - began:.0f} s")
    if options.json:
        about = {
            "cores": os.cpu_count(), "kernel": platform.release(), "load": [load, os.getloadavg()], "notes": bench.notes,
            "blosc2": blosc2.__version__, "mount options": options.mount_options, "began": began, "ended": time.time(), "commit": commit(),
        }  # fmt: skip
        options.json.write_text(json.dumps({"about": about, "rows": shown, "series": bench.series}, indent=1) + "\n")
    return 1 if options.check and any(row["met"] is False or row["value"] is None for row in shown) else 0


def run(bench, case):
    print(f"{case.name}: {case.about}", file=sys.stderr)
    began = time.perf_counter()
    try:
        case.run(bench)
    except Skip as why:
        bench.note(case.name, f"not measured: {why}")
    print(f"{case.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)


def commit():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or None


def table(name, rows):
    print(name)
    for row in rows:
        line = f"  {row['what']:44} "
        if row["value"] is None:
            line += f"{'-':>9} {'':35}"
        else:
            second = f"{row['against value']:9.3f}" if row["against"] else f"{row['unit']:>9}"
            low, high = row["ratios"]
            line += f"{row['value']:9.3f} {second}  {row['ratio']:7.2f} {low:7.2f}-{high:<7.2f}"
        if row["target"]:
            line += f"  {row['target']:8} {'' if row['met'] is None else 'met' if row['met'] else 'MISSED'}"
        print(line, flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Mounted frames against the native ones: a table of ratios, each the median of the rounds' own ratios.",
        epilog="cases:\n" + "\n".join(f"  {case.name:14} {case.about}{' (--full)' if case.full else ''}" for case in CASES),
    )  # fmt: skip
    parser.add_argument("--only", help="cases, or what their names begin with, with commas between (default: all that need no --full)")
    parser.add_argument("--rounds", type=int, help="rounds of each case (default: 3 to 5)")
    parser.add_argument("--full", action="store_true", help="a million chunks, 100,000 files to copy; takes half an hour")
    parser.add_argument("--count", type=int, help="files that are copied")
    parser.add_argument("-o", dest="mount_options", metavar="OPTION,...", help="of every mount, as of `b2fuse mount`")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--assert", dest="check", action="store_true", help="fail if a target is missed")
    parser.add_argument("--data", type=Path, default=ROOT / "target" / "bench-data", help="where the frames are kept")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else []
    known = [case.name for case in CASES]
    # What is no case stands for those whose names begin so.
    names = [case for name in names for case in ([name] if name in known else [case for case in known if case.startswith(f"{name}-")] or [name])]
    unknown = set(names) - set(known)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    # With --only the table is of these cases; otherwise targets that are not measured are rows too.
    options.cases = [case for case in CASES if case.name in names] if names else CASES
    options.chosen = [case for case in options.cases if names or options.full or not case.full]
    return options


if __name__ == "__main__":
    sys.exit(main())
