"""The library's own tests in mounts of directories: python-blosc2's test suite, and the test programs of C-Blosc2.

    library.py PLACE [--quick] [--only FILE,...] [--modes MODE,...] [--jobs N] [--self-test]

Each test that passes in a native directory must pass in a mount with each mode of `--show`; working directory and temporary files are in the
mount. tests/conformance/library.txt lists the exceptions, five at most. PLACE has
a virtual environment and the source packages; --build builds the programs in it. The last line is the count. `scripts/conformance library` calls this.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance import FAILED, PASSED, SKIPPED, Outcome, clear, exceptions, execute, last_lines, made
from mounts import Mount

MODES = ("other", "sparse", "contiguous")
MOST_EXCEPTIONS = 5
# The longest test takes 20 s natively; one that takes longer than this hangs.
TEST_LIMIT, SUITE_LIMIT = 400, 3 * 3600
# The files of a short run: those that write and share most frames in the least time.
QUICK = (
    "test_attrs test_batch_array test_dict_store test_embed_store test_locking test_mmap test_objectarray test_open test_proxy_schunk "
    "test_schunk_delete test_schunk_insert test_schunk_update test_swmr test_tree_store test_vlmeta test_table_persistency "
    "test_resize test_save test_delete_chunk test_frame_lock test_insert_chunk test_update_chunk test_reorder_offsets test_stale_sframe "
    "test_udio test_vlblocks test_b2nd_append test_b2nd_persistency test_b2nd_resize test_b2nd_save"
).split()


class Library:
    """The tests, and how they run in a directory."""

    def __init__(self, place, jobs, only):
        self.place, self.jobs = place, jobs
        tests = place / "blosc2" / "tests"
        self.files = [path.relative_to(place / "blosc2") for path in sorted(tests.rglob("test_*.py")) if wanted(path.stem, only)]
        self.programs = [path for path in sorted((place / "bin").iterdir()) if wanted(path.name, only)]

    def copy_into(self, where):
        """Copies the suite's files: some tests write beside their own."""
        for name in ("tests", "examples", "conftest.py", "pytest.ini"):
            source = self.place / "blosc2" / name
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            copy(source, where / name)

    def python(self, where, scratch):
        """Runs the suite; returns the outcome of each test."""
        if not self.files:
            return {}
        report = scratch / "report.xml"
        report.unlink(missing_ok=True)
        settings = [f"TMPDIR={where}", "PYTHONDONTWRITEBYTECODE=1", f"PYTEST_DEADMAN_SECONDS={TEST_LIMIT}"]
        command = [self.place / "venv" / "bin" / "python", "-m", "pytest", "-q", "-n", self.jobs, "-p", "no:cacheprovider"]
        more = ["--basetemp", where / "base", "--junitxml", report, *self.files]
        _, said = execute(["env", *settings, *command, *more], where, SUITE_LIMIT)
        if not report.exists():
            return {"python to its end": Outcome(FAILED, last_lines(said, 30))}
        return {f"python {case.get('classname')}::{case.get('name')}": judged(case) for case in ElementTree.parse(report).iter("testcase")}

    def c(self, where):
        """Runs the programs, each in a directory of its own."""

        def run(program):
            try:
                process, said = execute([program], made(where / program.name), TEST_LIMIT)
            except OSError as why:
                return f"c {program.name}", Outcome(FAILED, str(why))
            why = f"exit code {process.returncode}: {last_lines(said)[-400:]}"
            return f"c {program.name}", Outcome(PASSED) if process.returncode == 0 else Outcome(FAILED, why)

        with ThreadPoolExecutor(self.jobs) as pool:
            return dict(pool.map(run, self.programs))

    def run(self, where, scratch):
        """All outcomes in a directory that has the suite's files, and the seconds that Python and C took."""
        began = time.monotonic()
        cases = self.python(where, scratch)
        between = time.monotonic()
        cases |= self.c(where)
        return cases, between - began, time.monotonic() - between


def wanted(name, only):
    return only is None or any(name == word.removesuffix(".py").removesuffix(".c").rpartition("/")[2] for word in only)


def judged(case):
    """The outcome of a test in pytest's report."""
    for child in case:
        if child.tag in ("failure", "error"):
            return Outcome(FAILED, last_lines(child.text or child.get("message") or "", 12))
        if child.tag == "skipped":
            return Outcome(SKIPPED, child.get("message") or "")
    return Outcome(PASSED)


def build(place):
    """Builds each test program of C-Blosc2 against the library of the wheel. Programs with a table of arguments use no files."""
    source, library = place / "hdf5plugin" / "lib" / "c-blosc2", next((place / "venv").glob("lib/python*/site-packages/blosc2/lib/libblosc2.a"))
    made(place / "bin")
    (place / "config.h").write_text("#define HAVE_ZLIB 1\n#define HAVE_ZSTD 1\n")
    folders = [f"-I{folder}" for folder in (place, source / "include", source / "blosc", source / "tests")]

    def compiled(path):
        # This one interrupts an open by a hook that the wheel's library does not have.
        hooked = [source / "blosc" / "frame.c"] if path.stem == "test_frame_lock" else []
        command = ["cc", "-w", "-O1", "-DBLOSC_TESTING", *folders, "-o", place / "bin" / path.stem, path, *hooked, library, "-lpthread", "-lm", "-ldl"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        return f"{path.name}: {done.stderr[:300]}" if done.returncode != 0 else ""

    programs = [path for path in sorted((source / "tests").rglob("test_*.c")) if not path.with_suffix(".csv").exists()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failures = list(filter(None, pool.map(compiled, programs)))
    for failure in failures:
        print(f"cannot be built: {failure}", file=sys.stderr)
    return 1 if len(failures) == len(programs) else 0


def verdict(case, native, found, excepted):
    """What the outcome of a case in a mount counts as, and why. `found` is None if it did not run."""
    if native.state != PASSED:
        return SKIPPED, ""
    if found and found.state == PASSED:
        return PASSED, ""
    if case in excepted:
        return SKIPPED, f"an exception: {excepted[case]}"
    return FAILED, f"{found.state}, passes natively: {found.why}" if found else "did not run"


def mounted(library, mode, scratch, writable=True):
    """The outcomes in a mount, the seconds, and what went wrong with the unmount."""
    below, point = made(scratch / f"{mode}.d"), made(scratch / mode)
    if not writable:
        library.copy_into(below)
    with Mount(below, point, ["--show", mode, *(() if writable else ("-o", "ro"))]) as mount:
        if writable:
            library.copy_into(point)
        cases, python, c = library.run(point, scratch)
        try:
            mount.umount()
            wrong = ""
        except RuntimeError as why:
            wrong = str(why)
    clear(below)
    return cases, python, c, wrong


def self_test(library, scratch):
    """On a mount that takes no writes both suites must fail, and so must a test that did not run."""
    cases = mounted(library, "other", scratch, writable=False)[0]
    failing = {kind: any(case.startswith(kind) and outcome.state == FAILED for case, outcome in cases.items()) for kind in ("python", "c")}
    failing["a test that does not run"] = verdict("c x", Outcome(PASSED), None, {})[0] == FAILED
    failing["a test that fails"] = verdict("c x", Outcome(PASSED), Outcome(SKIPPED), {})[0] == FAILED
    for kind in (kind for kind, fails in failing.items() if not fails):
        print(f"{kind}: nothing is found")
    print(f"{sum(failing.values())} passed, {len(failing) - sum(failing.values())} failed")
    return 0 if all(failing.values()) else 1


def compare(library, modes, scratch):
    """Runs everything natively and in each mode; prints a table."""
    excepted = exceptions("library.txt")
    if len(excepted) > MOST_EXCEPTIONS:
        sys.exit(f"tests/conformance/library.txt: {MOST_EXCEPTIONS} exceptions at most are expected, found {len(excepted)}")
    where = made(scratch / "native")
    library.copy_into(where)
    native, *seconds = library.run(where, scratch)
    clear(where)
    passing = {case for case, outcome in native.items() if outcome.state == PASSED}
    for case, outcome in native.items():
        if outcome.state == FAILED:
            print(f"natively failed: {case}: {outcome.why.splitlines()[-1] if outcome.why else ''}")
    print(f"natively: {len(passing)} of {len(native)} passed in {sum(seconds):.0f} s", flush=True)
    table = [("mode", "natively", "in the mount", "exceptions", "python s", "ratio", "C s", "ratio")]
    counts, never = {PASSED: 0, FAILED: 0, SKIPPED: 0}, set(excepted) & passing
    for mode in modes:
        cases, python, c, wrong = mounted(library, mode, scratch)
        states = {case: verdict(case, native[case], cases.get(case), excepted) for case in native}
        for case, (state, why) in states.items():
            counts[state] += 1
            if state == FAILED:
                print(f"FAILED: {mode}: {case}\n    " + why.replace("\n", "\n    "))
        never -= {case for case, (state, _) in states.items() if state == SKIPPED}
        counts[FAILED if wrong else PASSED] += 1
        if wrong:
            print(f"FAILED: {mode}: the unmount\n    {wrong}")
        passed = sum(state == PASSED for state, _ in states.values())
        ratios = [f"{mount / max(beside, 0.1):.2f}" for mount, beside in zip((python, c), seconds)]
        missing = sum(state == SKIPPED and case in passing for case, (state, _) in states.items())
        table.append((mode, len(passing), passed, missing, f"{python:.0f}", ratios[0], f"{c:.0f}", ratios[1]))
        print(f"{mode}: {passed} of {len(passing)} passed in {python + c:.0f} s", flush=True)
    for case in sorted(never):
        print(f"FAILED: {case}\n    passes, and is listed in tests/conformance/library.txt")
        counts[FAILED] += 1
    for row in table:
        print("  ".join(f"{cell!s:>12}" for cell in row))
    print(f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped")
    return 1 if counts[FAILED] or not passing else 0


def main():
    parser = argparse.ArgumentParser(prog="scripts/conformance library", description="The library's own tests in mounts of directories.")
    parser.add_argument("place", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a fixed part")
    parser.add_argument("--only", metavar="FILE,...", help="test files and programs: test_open.py, test_sframe.c")
    parser.add_argument("--modes", default=",".join(MODES), help="modes of --show, with commas between")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once (default: one for each processor)")
    parser.add_argument("--self-test", action="store_true", help="on a mount that takes no writes both suites must fail")
    options = parser.parse_args()
    modes = options.modes.split(",")
    if set(modes) - set(MODES):
        parser.error(f"no such mode: {', '.join(sorted(set(modes) - set(MODES)))}")
    if options.build:
        return build(options.place)
    only = options.only.split(",") if options.only else QUICK if options.quick or options.self_test else None
    library = Library(options.place.resolve(), options.jobs, only)
    # What is mounted is unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="b2l-", ignore_cleanup_errors=True) as name:
        return self_test(library, Path(name)) if options.self_test else compare(library, modes, Path(name))


if __name__ == "__main__":
    sys.exit(main())
