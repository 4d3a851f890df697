"""Tests of file systems on the ordinary files of a mounted directory: pjdfstest, fsx, stress-ng and fio, and calls that these leave out.

    conformance.py TOOLS [--quick] [--only SUITE,...]

What passes in a native directory must pass in the mount. What cannot is in tests/conformance/exceptions.txt, case by case. Whatever was
written must be the same in the native directory after the unmount. TOOLS is the directory that has pjdfstest and fsx. The last line is
the count; --self-test mounts so that every suite must fail, and fails where one does not. `scripts/conformance` calls this.
"""

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import calls
from mounts import ROOT, Mount

HERE = ROOT / "tests" / "conformance"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
# pjdfstest becomes other users, and makes devices and set-user-ID files.
OTHERS = ("-o", "allow_other,suid,dev")
# A program that takes longer hangs.
LIMIT = 600


@dataclass(frozen=True)
class Outcome:
    state: str
    why: str = ""


@dataclass
class Run:
    """Where a suite runs, how much of it, and what it leaves to be looked at after an unmount."""

    where: Path
    # A native directory for comparison.
    beside: Path
    scratch: Path
    tools: Path
    quick: bool
    # Whether all of the file system may become read-only for a while.
    remount: bool
    # Only these cases, if any are named.
    wanted: set | None = None
    # Words before a command.
    before: tuple = ()

    def wants(self, case):
        return self.wanted is None or case in self.wanted


def execute(command, cwd, limit=LIMIT):
    """The process, whose exit status is None if it had to be killed, and all that was said."""
    process = subprocess.Popen(
        list(map(str, command)), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace", start_new_session=True, env=os.environ | {"NO_COLOR": "1", "LC_ALL": "C", "RUST_BACKTRACE": "0", "PATH": f"{cwd / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
    try:
        return process, process.communicate(timeout=limit)[0]
    except BaseException as why:
        os.killpg(process.pid, signal.SIGKILL)
        if not isinstance(why, subprocess.TimeoutExpired):
            raise
        try:
            said = process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            # The mount answers no more, and nothing after this would.
            sys.exit(f"{' '.join(map(str, command))}: not even SIGKILL ends it")
        process.returncode = None
        return process, f"still running after {limit} s\n{said}"


def complaints(said):
    lines = [line for line in said.splitlines() if re.search(r"\bfail|error|unexpected|unrecognized", line)]
    return "\n".join(lines[:6]) or last_lines(said)


def last_lines(said, count=6):
    return "\n".join(line for line in said.splitlines()[-count:] if line.strip())


# pjdfstest: what each system call answers, by the hundreds.


def pjdfstest(run):
    """Each test is a case. Natively all take five seconds, so nothing is left out."""
    place = made(run.where / "p")
    if place.stat().st_mode & 0o777 not in (0o755, 0o777):
        place.chmod(0o755)
    # One process for those that want a read-only file system, because the others leave files open.
    cases = pjdfstests(run, place, "false", run.wanted)
    read_only = {case for case in cases if "::erofs_" in case}
    if run.remount and read_only:
        cases |= pjdfstests(run, place, "true", read_only)
    clear(place)
    return cases


def pjdfstests(run, place, remount, wanted):
    cases = {}
    configuration = run.scratch / "pjdfstest.toml"
    configuration.write_text((HERE / "pjdfstest.toml").read_text().replace("REMOUNT", remount))
    command = [*run.before, run.tools / "pjdfstest", "-c", configuration, "-p", place, "-s", "/dev/shm"]
    if wanted is not None:
        # Exact names are compared with the path of the module before them.
        command += ["-e", "--", *(case.replace("pjdfstest ", "pjdfstest::tests::") for case in sorted(wanted))]
    process, said = execute(command, run.scratch)
    last = None
    for line in said.splitlines():
        found = re.fullmatch(r"(\S+::\S+) +(ok|FAILED|skipped)", line)
        if found:
            last = f"pjdfstest {found[1]}"
            cases[last] = Outcome({"ok": PASSED, "FAILED": FAILED, "skipped": SKIPPED}[found[2]])
        elif line.startswith(("\t", " ")) and last and cases[last].state != PASSED and cases[last].why.count("\n") < 2:
            cases[last] = Outcome(cases[last].state, f"{cases[last].why}\n{line.strip()}".strip())
    total = re.search(r"(\d+) total", said)
    if not total or int(total[1]) != len(cases):
        cases["pjdfstest to its end"] = Outcome(FAILED, last_lines(said))
    return cases


# stress-ng: many operations at once. Stressors of the class `filesystem`, without those that do nothing to the files of a directory:
# bind-mount and procfs (other file systems), binderfs, dup, eventfd and ioprio (no file system).
STRESSORS = (
    "access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify fallocate fanotify fcntl fiemap file-ioctl filename flock "
    "fpunch fsize fstat getdent handle hdd inode-flags inotify io iomix lease link locka lockf lockofd mknod open rename symlink sync-file "
    "touch utime verity xattr aio aiol fault mmap msync readahead revio seek sendfile"
).split()
QUICK_STRESSORS = "access chmod chown copy-file dentry dirdeep fallocate fcntl flock fpunch getdent hdd iomix link lockofd mknod open rename utime xattr".split()


def stress_ng(run):
    cases = {}
    for stressor in QUICK_STRESSORS if run.quick else STRESSORS:
        case = f"stress-ng {stressor}"
        if not run.wants(case):
            continue
        place = made(run.where / "stress-ng")
        amount = ["1", "--timeout", "1"] if run.quick else ["2", "--timeout", "1"]
        command = ["stress-ng", f"--{stressor}", *amount, "--verify", "--metrics-brief", "--no-rand-seed", "--temp-path", place]
        process, said = execute(command, run.scratch, 120)
        skipped = re.search(r"skipp(?:ing|ed) (?:stress|stressor)|not (?:implemented|supported)", said)
        if process.returncode == 0 and not skipped and not re.search(r"\bfail\b|\bfailed\b", said):
            cases[case] = Outcome(PASSED)
        elif process.returncode in (0, 3, 4) and skipped:
            cases[case] = Outcome(SKIPPED, re.sub(r"^.*?\] *", "", said[: skipped.end()].splitlines()[-1]))
        else:
            cases[case] = Outcome(FAILED, f"exit code {process.returncode}: {complaints(said)}")
        clear(place)
    return cases


# fsx: one file, held against a copy in memory after each operation.

# Ordinary names, and those that may become frames: what is staged for them must be no less of a file.
FSX_NAMES = ("plain", ".dot", "new.tmp", "odd.b2nd")


def fsx(run):
    cases = {}
    place = made(run.where / "fsx")
    count, seeds = (4_000, (1,)) if run.quick else (8_000, (1, 2))
    rounds = [(name, seed) for name in FSX_NAMES for seed in seeds]
    for name, seed in rounds:
        case = f"fsx {name} {seed}"
        if run.wants(case):
            left = run.scratch / "fsx-artifacts"
            left.mkdir(exist_ok=True)
            path = place / f"{seed}{name}" if not name.startswith(".") else place / f"{name}{seed}"
            process, said = execute([run.tools / "fsx", "-f", HERE / "fsx.toml", "-N", count, "-S", seed, "-P", left, path], run.scratch)
            cases[case] = judged(process, said)
    return cases


# fio: random writes whose blocks carry their own checksums.

FIO = {
    "buffered": ["--ioengine=psync", "--bs=4k"],
    "direct": ["--ioengine=psync", "--direct=1", "--bs=4k"],
    "direct, 16 at once": ["--ioengine=libaio", "--direct=1", "--iodepth=16", "--bs=8k"],
    "mmap": ["--ioengine=mmap", "--bs=4k"],
    "odd sizes": ["--ioengine=psync", "--bsrange=512-68k", "--bs_unaligned=1"],
    "vectors, 4 processes": ["--ioengine=pvsync", "--bs=4k", "--numjobs=4"],
    "mixed": ["--ioengine=psync", "--rw=randrw", "--bs=4k"],
}
QUICK_FIO = ("buffered", "direct", "direct, 16 at once", "mmap")


def fio_command(run, kind, place, *more):
    size = "16m" if run.quick else "96m"
    common = ["--rw=randwrite", f"--size={size}", "--verify=crc32c", "--verify_fatal=1", "--randseed=7", "--group_reporting", "--output-format=terse"]
    name = re.sub(r"\W+", "-", kind)
    return ["fio", f"--name={name}", f"--directory={place}", *common, *FIO[kind], *more]


def fio(run):
    cases = {}
    place = made(run.where / "fio")
    for kind in QUICK_FIO if run.quick else FIO:
        case = f"fio {kind}"
        if run.wants(case):
            process, said = execute(fio_command(run, kind, place, "--do_verify=1", "--end_fsync=1"), run.scratch)
            cases[case] = judged(process, said)
    return cases


def fio_again(run):
    """The blocks that the last run wrote are read again and verified."""
    cases = {}
    place = run.where / "fio"
    for kind in QUICK_FIO if run.quick else FIO:
        case = f"fio {kind}, after the unmount"
        # Without its writes the order of a mixed run cannot be told.
        if run.wants(case) and kind != "mixed":
            process, said = execute(fio_command(run, kind, place, "--verify_only=1"), run.scratch)
            cases[case] = judged(process, said)
    return cases


# Calls that the others leave out, natively and here: what they give must be the same.


def our_calls(run):
    cases = {}
    for name, function in calls.CASES.items():
        case = f"calls {name}"
        if run.wants(case):
            answers = []
            for directory in (run.beside, run.where):
                answers.append(calls.answer(function, directory / "calls"))
                clear(directory / "calls")
            expected, found = answers
            at = next((n for n, pair in enumerate(zip(expected, found)) if pair[0] != pair[1]), 0)
            start = max(0, at - 60)
            differs = f"expected ...{expected[start : at + 200]}\nfound    ...{found[start : at + 200]}"
            # More than DIR's file system has is no fault.
            cases[case] = Outcome(PASSED) if expected in (found, "OSError ENOTSUP") else Outcome(FAILED, differs)
    return cases


def judged(process, said):
    if process.returncode == 0:
        return Outcome(PASSED)
    panicked = re.search(r"panicked at [^\n]*\n[^\n]*", said)
    if panicked:
        return Outcome(FAILED, panicked[0])
    return Outcome(FAILED, f"exit code {process.returncode}: {last_lines(said)}")


SUITES = {"pjdfstest": pjdfstest, "calls": our_calls, "stress-ng": stress_ng, "fsx": fsx, "fio": fio}


@dataclass(frozen=True)
class Mode:
    """A mount, the suites that run in it, and those of a short run. With default options root is alone."""

    title: str
    options: tuple
    suites: tuple = tuple(SUITES)
    quick: tuple = ()
    # A directory in the mount in which all happens.
    within: str = "."
    # DIR is on an overlay, with which the kernel passes nothing through: every byte goes by the daemon.
    overlaid: bool = False

    @property
    def others(self):
        return "-o" in self.options


# A directory with a frame's name that gets other names in it is an ordinary one.
ODD = "odd.b2nd"
MODES = (
    Mode("allow_other", OTHERS, quick=("pjdfstest", "calls", "stress-ng")),
    Mode("default options", (), ("pjdfstest", "stress-ng", "fsx", "fio"), quick=("fsx", "fio")),
    Mode("nothing passed through", OTHERS, ("calls", "stress-ng", "fsx", "fio"), quick=("fsx", "fio"), overlaid=True),
    *(Mode(f"--show {kind}, in {ODD}", (*OTHERS, "--show", kind), ("pjdfstest", "calls", "fsx"), within=ODD) for kind in ("other", "sparse", "contiguous")),
)


def made(path):
    if not path.is_dir():
        path.mkdir()
    return path


def clear(path):
    """What a failed test left goes as well, where it can."""
    shutil.rmtree(path, ignore_errors=True)


def contents(directory):
    """The hash of every file, and the kind of everything else."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                found[str(path.relative_to(directory))] = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            found[str(path.relative_to(directory))] = f"mode {path.lstat().st_mode:o}"
    return found


class Conformance:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch
        self.counts = {PASSED: 0, FAILED: 0, SKIPPED: 0}
        self.exceptions = exceptions()
        # Which of them passed in every mount so far, and which did not.
        self.excepted = {}
        # What native directories answered, by case.
        self.native = {}
        self.remount = False
        self.began = time.monotonic()

    def run_at(self, where, wanted=None, before=(), beside=None):
        return Run(where, made(beside or self.files / "beside"), self.scratch, self.options.tools, self.options.quick, self.remount, wanted, before)

    def say(self, line):
        print(f"{line}  [{time.monotonic() - self.began:.0f} s]", flush=True)

    def natively(self, suite, wanted=None):
        """Everything, or what did not pass on a mount: a short run saves the time of the rest."""
        where = made(self.files / "native")
        where.chmod(0o755)
        found = SUITES[suite](self.run_at(where, wanted))
        for case, outcome in found.items():
            # It tells nothing of a mount, and so it is said.
            if outcome.state != PASSED and case not in self.exceptions:
                print(f"natively {outcome.state}: {case}: {outcome.why}")
        self.say(f"natively: {suite}: {sum(outcome.state == PASSED for outcome in found.values())} of {len(found)} passed")
        self.native |= found
        clear(where)

    @contextmanager
    def disk(self):
        """An ext4 of its own where there are loop devices, which tests may make read-only; else the directory that is there."""
        # Short, as all here: the path of a socket has at most 107 bytes.
        self.files = made(self.scratch / "disk")
        image = self.scratch / "image"
        with open(image, "wb") as file:
            file.truncate(8 << 30)
        mkfs = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", image]
        self.remount = all(subprocess.run(command, capture_output=True).returncode == 0 for command in (mkfs, ["mount", "-o", "loop", image, self.files]))
        if not self.remount:
            self.say("no loop devices: the tests of read-only file systems are skipped")
        self.files.chmod(0o755)
        # mount(8) is to change a FUSE mount's flags without a helper, which need not be installed. It looks for the mount in a list that
        # the kernel may cut short while others mount and unmount.
        made(self.scratch / "bin")
        remount = f'{shutil.which("mount")} -i "$@"'
        (self.scratch / "bin" / "mount").write_text("#!/bin/sh\n" + " || ".join([remount] * 5) + "\n")
        (self.scratch / "bin" / "mount").chmod(0o755)
        try:
            yield
        finally:
            if self.remount and subprocess.run(["umount", self.files], capture_output=True).returncode != 0:
                self.say("something still runs in the files that were tested")
                self.counts[FAILED] += 1
                subprocess.run(["umount", "-l", self.files])

    def mode(self, mode, suites):
        """A mount, suites in it, and what they left in DIR once it is unmounted."""
        below, point = self.files / "below", self.scratch / "mnt"
        for path in (made(below), made(point)):
            path.chmod(0o755)
        with self.overlay(below) if mode.overlaid else nullcontext(True) as there, ExitStack() as stack:
            if not there:
                self.say(f"{mode.title}: no overlay can be mounted: skipped")
                self.counts[SKIPPED] += len(suites)
                return
            mount = stack.enter_context(Mount(below, point, mode.options))
            where = made(point / mode.within)
            # What an overlay gives is another file system's.
            beside = below / "beside" if mode.overlaid else None
            for suite in suites:
                wanted = None if mode.others or suite != "pjdfstest" else self.without_others()
                self.judge(mode.title, suite, SUITES[suite](self.run_at(where, wanted, beside=beside)), wanted)
            clear(below / "beside")
            seen = contents(point)
            mount.umount()
            self.judge(mode.title, "the unmount", {"everything is in DIR as it was seen": same(seen, contents(below))})
            if "fio" in suites:
                self.judge(mode.title, "fio after the unmount", fio_again(self.run_at(below / mode.within)))
        clear(below)

    @contextmanager
    def overlay(self, below):
        parts = [made(self.files / part) for part in ("lower", "upper", "work")]
        options = "lowerdir={},upperdir={},workdir={}".format(*parts)
        there = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, below], capture_output=True).returncode == 0
        try:
            yield there
        finally:
            if there:
                subprocess.run(["umount", "-l", below], check=True)
            for part in parts:
                clear(part)

    def without_others(self):
        """The cases of pjdfstest that need neither root nor other users: those that it does not skip for an ordinary user."""
        where = made(self.files / "nobody")
        made(where / "p").chmod(0o777)
        where.chmod(0o777)
        nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        cases = pjdfstest(self.run_at(where, before=nobody))
        clear(where)
        return {case for case, outcome in cases.items() if outcome.state == PASSED}

    def judge(self, title, suite, outcomes, wanted=None):
        doubtful = {case for case, outcome in outcomes.items() if outcome.state != PASSED and case not in self.native}
        if doubtful and suite in SUITES and not self.options.self_test:
            self.natively(suite, doubtful)
        counts = {PASSED: 0, FAILED: 0, SKIPPED: 0}
        for case, outcome in outcomes.items():
            state, why = self.verdict(case, outcome)
            counts[state] += 1
            if state == FAILED:
                print(f"FAILED: {title}: {case}\n    " + why.replace("\n", "\n    "))
            elif outcome.state != PASSED and not self.options.quick:
                print(f"{state}: {title}: {case}: {why}")
        # A native case that the mount did not come to.
        for case in wanted or self.native:
            if suite in SUITES and case.split()[0] == suite and case not in outcomes and self.native[case].state == PASSED and case not in doubtful:
                counts[FAILED] += 1
                print(f"FAILED: {title}: {case}\n    did not run")
        self.say(f"{title}: {suite}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
        for state, count in counts.items():
            self.counts[state] += count
        return counts

    def verdict(self, case, outcome):
        """What an outcome on a mount counts as, and why."""
        if case in self.exceptions:
            self.excepted[case] = self.excepted.get(case, True) and outcome.state == PASSED
            if outcome.state == PASSED:
                return PASSED, ""
            return SKIPPED, f"an exception: {self.exceptions[case]}"
        if outcome.state == PASSED:
            return PASSED, ""
        native = self.native.get(case)
        if native and native.state != PASSED:
            return SKIPPED, f"natively as well: {native.state}: {native.why}"
        return FAILED, f"{outcome.state}, passes natively: {outcome.why}" if native else f"{outcome.state}: {outcome.why}"


def same(seen, found):
    names = [name for name in sorted(seen.keys() | found.keys()) if seen.get(name) != found.get(name)]
    if names:
        return Outcome(FAILED, "\n".join(f"{name}: {seen.get(name)} in the mount, {found.get(name)} in DIR" for name in names[:10]))
    return Outcome(PASSED)


def exceptions(name="exceptions.txt"):
    found = {}
    for number, line in enumerate((HERE / name).read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            case, colon, why = line.partition(": ")
            if not colon or not why.strip():
                sys.exit(f"tests/conformance/{name}, line {number}: a case, `: ` and a reason are expected, found {line!r}")
            found[case] = why
    return found


def self_test(conformance):
    """On a mount that takes no writes every suite must fail; so must what differs in DIR."""
    below, point = conformance.files / "below", conformance.scratch / "mnt"
    wrong = []
    made(below)
    for name in ("p", "stress-ng", "fsx", "fio"):
        made(below / name)
    with Mount(below, point, ["-o", "ro"]):
        for suite in SUITES:
            outcomes = SUITES[suite](conformance.run_at(point))
            if not any(conformance.verdict(case, outcome)[0] == FAILED for case, outcome in outcomes.items()):
                wrong.append(suite)
    if same({"a": "1"}, {"a": "2"}).state != FAILED or same({}, {"a": "2"}).state != FAILED:
        wrong.append("comparison")
    for suite in wrong:
        print(f"{suite}: finds nothing on a mount that takes no writes")
    print(f"{len(SUITES) + 1 - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(prog="scripts/conformance", description="pjdfstest, calls, fsx, stress-ng and fio on the mount of a directory.")
    parser.add_argument("tools", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a fixed part, in at most 100 seconds")
    parser.add_argument("--only", default=",".join(SUITES), help=f"suites, with commas between: {', '.join(SUITES)}")
    parser.add_argument("--self-test", action="store_true", help="on a mount that takes no writes every suite must fail")
    options = parser.parse_args()
    suites = options.only.split(",")
    if set(suites) - SUITES.keys():
        parser.error(f"no such suite: {', '.join(sorted(set(suites) - SUITES.keys()))}")
    # What is mounted is unmounted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="b2c-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        scratch.chmod(0o755)
        conformance = Conformance(options, scratch)
        with conformance.disk():
            if options.self_test:
                return self_test(conformance)
            # What a daemon holds open would keep the disk below from becoming read-only.
            for suite in suites if not options.quick else {"pjdfstest"} & set(suites):
                conformance.natively(suite)
            for mode in MODES:
                chosen = [suite for suite in (mode.quick if options.quick else mode.suites) if suite in suites]
                if chosen:
                    conformance.mode(mode, chosen)
        for case in sorted(case for case, passed in conformance.excepted.items() if passed):
            print(f"FAILED: {case}\n    passes, and is listed in tests/conformance/exceptions.txt")
            conformance.counts[FAILED] += 1
    counts = conformance.counts
    print(f"{counts[PASSED]} passed, {counts[FAILED]} failed, {counts[SKIPPED]} skipped")
    return 1 if counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
