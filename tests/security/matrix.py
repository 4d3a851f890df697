#!/usr/bin/env python3
"""Names that b2fuse makes or opens in somebody else's directory, taken beforehand by something else, while root works there.

    matrix.py squats LAYOUT OPERATION        each name as each kind of thing; to be run by matrix.sh
    matrix.py storm LAYOUT OPERATION ...     names exchanged at random with such things, for some seconds, while each is done in turn
    matrix.py frames DIR                     makes what the others copy from $FRAMES

After every run the victims (victims.py) are as they were, nothing is new where the attacker may not go, no secret is in what was
printed or shown, and everything came to an end in time.
"""

import fcntl
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from squats import FULL, GID, KINDS, T, U, UID, V, chown_all, disk_of_secrets, rounds, take
from victims import SECRET, make, manifest, secret

B2FUSE, FX, FRAMES = os.environ["B2FUSE"], Path(os.environ["FX"]), Path(os.environ["FRAMES"])
ATTACK, SEED = os.environ["ATTACK"], int(os.environ.get("SEED", "1"))
M = T / "mnt"
# Whatever takes longer hangs: a run takes milliseconds.
PATIENCE = 20
STORM_SECONDS = 30 if FULL else 2.5
# Hangs and harms after which a test ends.
ENOUGH = 3
MARK = SECRET.encode()

blosc2 = None  # takes longer to load than most runs


class Harm(Exception):
    """What must not happen."""


# ---- Processes


def state_of(pid):
    try:
        return next(line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("State"))
    except (OSError, StopIteration):
        return "?"


def mount_device():
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(M):
            return fields[2].split(":")[1]
    return None


class Case:
    """One run: SOURCE in the attacker's directory, and what is to take which names, and when."""

    def __init__(self, layout, squats=(), locking=False, storm=None):
        self.layout, self.squats, self.locking, self.storm = layout, list(squats), locking, storm
        # Some storms come up when all is mounted.
        self.calm = storm is not None and storm.random() < 0.5
        self.source = U / ("c.b2frame" if layout == "cframe" else "s.b2frame")
        self.daemon, self.attack, self.outputs, self.done = None, None, 0, False
        shutil.rmtree(U, ignore_errors=True)
        U.mkdir()
        self.copy(FX / "full.b2frame" if layout == "cframe" else FX / "sparse" / "full.b2frame", self.source)
        os.chown(U, UID, GID)

    def copy(self, what, where):
        if what.is_dir():
            shutil.copytree(what, where)
        else:
            shutil.copy(what, where)
        chown_all(where)

    def squat(self, pid):
        for name, kind in self.squats:
            take(name.replace("PID", str(pid)), kind)

    def give_up(self):
        """Ends the daemon and the mount without a look at it: whoever hangs in there is freed."""
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None
        if mount_device() is not None:
            subprocess.run(["umount", "-l", M], capture_output=True)

    def wait(self, process, words):
        """Its exit code."""
        end = time.monotonic() + PATIENCE
        while process.poll() is None:
            if self.daemon:
                # One that has ended is seen to, as by a shell.
                self.daemon.poll()
            if time.monotonic() > end:
                state = state_of(process.pid)
                self.give_up()
                process.kill()
                process.wait()
                raise Harm(f"not ended after {PATIENCE} s (state {state}): {words}")
            time.sleep(0.001)
        if process.returncode not in (0, 1, 2):
            raise Harm(f"exit code {process.returncode}: {words}")
        return process.returncode

    def begin(self):
        """The storm comes up; all that is made by root without care has been made."""
        if self.storm is None or self.attack:
            return
        for number, kind in enumerate([*KINDS, *KINDS]):
            if kind != "link to its like":
                take(f".squat-{number}", kind)
        take(".squat-chunk", "link to its like")
        pause, seed = self.storm.choice((50, 300, 2000, 10_000)), self.storm.randrange(1 << 31)
        command = [ATTACK, "storm", U, ".squat-", str(pause), str(seed), *self.storm_names()]
        self.attack = subprocess.Popen(command, user=UID, group=GID, extra_groups=(), stdout=subprocess.PIPE)
        self.attack.stdout.readline()

    def storm_names(self):
        return [self.source.name, *STORM_NAMES]

    def output(self):
        self.outputs += 1
        return open(T / f"output-{self.outputs}", "w+b")

    def tool(self, *arguments, late=False):
        """A command of root's. Its names are taken when its process id is known, unless that is late."""
        with self.output() as out:
            prepare = None if late else lambda: self.squat(os.getpid())
            command = [B2FUSE, *map(str, arguments)]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=prepare, start_new_session=True
            )
            return self.wait(process, " ".join(command))

    def mount(self, *options, late=False):
        """In front. False if it is refused."""
        if self.locking:
            options = (*options, "--locking")
        prepare = None if late else lambda: self.squat(os.getpid())
        command = [B2FUSE, "mount", "-f", "-o", "allow_other", *options, str(self.source), str(M)]
        with self.output() as out:
            self.daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=prepare, start_new_session=True
            )
        end = time.monotonic() + PATIENCE
        while mount_device() is None:
            if self.daemon.poll() is not None:
                self.wait(self.daemon, "mount")
                return False
            if time.monotonic() > end:
                raise Harm(f"neither mounted nor ended after {PATIENCE} s (state {state_of(self.daemon.pid)})")
            time.sleep(0.002)
        if late:
            self.squat(self.daemon.pid)
        self.begin()
        return True

    def umount(self):
        """However it ends, it ends."""
        for command in ((B2FUSE, "umount", M), (B2FUSE, "umount", "-z", M), ("umount", "-l", M)):
            with self.output() as out:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
                self.wait(process, " ".join(map(str, command)))
            if mount_device() is None:
                break
        self.wait(self.daemon, "the daemon, after it was unmounted")
        self.daemon = None

    def child(self, function, root=False):
        """Has a process of the attacker's, or of root's, do something with the mount, where it may be refused anything."""
        with self.output() as out:
            pid = os.fork()
            if pid == 0:
                code = 0
                try:
                    os.setsid()
                    os.dup2(out.fileno(), 1)
                    os.dup2(out.fileno(), 2)
                    if not root:
                        os.setgroups([])
                        os.setresgid(GID, GID, GID)
                        os.setresuid(UID, UID, UID)
                    function(self)
                except OSError as error:
                    print(error, flush=True)
                except BaseException:
                    traceback.print_exc()
                    code = 3
                os._exit(code)
        end = time.monotonic() + PATIENCE
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                state = state_of(pid)
                self.give_up()
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise Harm(f"not ended after {PATIENCE} s (state {state}): {function.__name__} {'as root' if root else ''}")
            time.sleep(0.001)

    def end(self):
        """Nothing is left over from it."""
        if self.attack:
            self.attack.kill()
            self.attack.wait()
            self.attack.stdout.close()
        self.give_up()

    def leaks(self):
        """Which outputs have a secret."""
        found = []
        for number in range(1, self.outputs + 1):
            path = T / f"output-{number}"
            data = path.read_bytes()
            if MARK in data:
                at = data.index(MARK)
                found.append(f"a secret was shown: {data[max(0, at - 300):at + 60]!r}")
            if b"panicked" in data:
                found.append(f"a panic: {data!r}")
            path.unlink()
        return found


# ---- What is done


def read_all(case):
    for name in sorted(os.listdir(M)):
        try:
            file = os.open(M / name, os.O_RDONLY)
        except OSError as error:
            print(name, error)
            continue
        try:
            data = b"".join(iter(lambda: os.read(file, 1 << 20), b""))
            if MARK in data:
                # With what is around it, for who reads the output.
                print(name, data[data.index(MARK) :][:100])
        except OSError as error:
            print(name, error)
        finally:
            os.close(file)


def shown_file(case):
    return M if case.layout == "cframe" else M / case.source.name


def by_hand(case):
    """Copies and renames, as an owner may."""
    if case.layout == "cframe":
        steps = [
            lambda: shutil.copyfile(FX / "new" / "0", M / "00000001.chunk"),
            lambda: (shutil.copyfile(FX / "new" / "1", M / ".new"), os.rename(M / ".new", M / "00000003.chunk")),
            lambda: shutil.copyfile(FX / "new" / "2", M / "00000006.chunk"),
            lambda: shutil.copyfile(FX / "new" / "3", M / "00000FFF.chunk"),
            lambda: os.rename(M / "00000002.chunk", M / ".bash_profile"),
        ]
    else:
        steps = [
            lambda: shutil.copyfile(FX / "base.b2frame", shown_file(case)),
            lambda: (shutil.copyfile(FX / "full.b2frame", M / ".new"), os.rename(M / ".new", shown_file(case))),
        ]
    if case.locking:
        steps.append(lambda: lock_and_write(case))
    for step in steps:
        try:
            step()
        except OSError as error:
            print(error, flush=True)


def lock_and_write(case):
    name = M / ".b2lock" if case.layout == "cframe" else M / f"{case.source.name}.b2lock"
    with open(name, "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(bytes(16))


def by_library(case):
    try:
        frame = blosc2.open(str(shown_file(case)), mode="a")
        frame.update_data(0, os.urandom(frame.chunksize), copy=True)
        frame.append_data(os.urandom(frame.chunksize))
        frame.vlmeta["written"] = "by root"
        del frame
    except Exception as error:
        # Whatever the library makes of a refusal.
        print(error, flush=True)
    for path in (M, shown_file(case)):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def look(case):
    """Reads everything, as the attacker and as root."""
    case.child(read_all)
    case.child(read_all, root=True)


def op_read(case):
    if case.mount("-r"):
        look(case)
        case.umount()
        case.done = True


def op_read_late(case):
    if case.mount("-r", late=True):
        look(case)
        case.umount()
        case.done = True


def op_write(case, late=False):
    if case.mount(late=late):
        case.child(by_hand)
        case.child(by_library, root=True)
        look(case)
        case.umount()
        case.done = True


def op_write_late(case):
    op_write(case, late=True)


def op_create(case):
    """A frame that does not exist yet, of a directory that is copied into its mount."""
    case.source = U / "new.b2frame"
    if case.mount("--create"):
        case.child(fill, root=True)
        look(case)
        case.umount()
        case.done = True


def fill(case):
    for path in sorted((FX / "sparse" / "base.b2frame").iterdir()):
        shutil.copyfile(path, M / path.name)
    file = os.open(M, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def change_source(case):
    """As another process would, who knows nothing of the mount."""
    if case.layout == "cframe":
        shutil.copyfile(FX / "base.b2frame", U / "next")
        os.rename(U / "next", case.source)
    else:
        os.utime(case.source / "chunks.b2frame")


def op_lost(case):
    """What was accepted cannot be committed any more, and is saved somewhere."""
    if case.mount(late=True):
        case.child(by_hand)
        case.child(change_source)
        case.child(by_hand)
        case.child(by_library, root=True)
        case.umount()
        case.done = True


def op_info(case):
    case.done = case.tool("info", "--all", case.source) == 0


def op_ls(case):
    case.done = case.tool("ls", case.source) == 0


def op_cat(case):
    case.done = case.tool("cat", "--raw", case.source, "0-") == 0


def op_check(case):
    case.done = case.tool("check", "--deep", "--threads", "2", case.source) == 0


def op_repair(case):
    case.done = case.tool("repair", "--yes", case.source) == 0


def op_compact(case):
    case.done = case.tool("compact", case.source) == 0


def op_convert(case):
    case.done = case.tool("convert", case.source, U / "new.b2frame") == 0


def op_convert_force(case):
    case.done = case.tool("convert", "--force", case.source, U / "new.b2frame") == 0


def broken(case):
    """Something for repair to do."""
    if case.layout == "cframe":
        os.truncate(case.source, case.source.stat().st_size - 100)
    else:
        (case.source / "00000003.chunk").unlink()


def loose(case):
    """Something for compact to do."""
    shutil.rmtree(case.source) if case.layout == "sframe" else case.source.unlink()
    case.copy(FRAMES / f"loose-{case.layout}", case.source)


def target(case):
    """Something for convert to replace, of the layout that it makes."""
    case.copy(FX / "base.b2frame" if case.layout == "sframe" else FX / "sparse" / "base.b2frame", U / "new.b2frame")


MOUNTS = {"read": op_read, "read_late": op_read_late, "write": op_write, "write_late": op_write_late, "lost": op_lost,
          "create": op_create}  # fmt: skip
TOOLS = {"info": op_info, "ls": op_ls, "cat": op_cat, "check": op_check, "repair": op_repair, "compact": op_compact,
         "convert": op_convert, "convert_force": op_convert_force}  # fmt: skip
BEFORE = {"repair": broken, "compact": loose, "convert_force": target}
STORM_NAMES = ["c.b2frame.lost", "s.b2frame.lost", "c.b2frame.b2lock", "new.b2frame"]


# ---- Victims


class Victims:
    def __init__(self):
        # What was made for an earlier one.
        shutil.rmtree(V, ignore_errors=True)
        make(V)
        twins = V / "twins"
        twins.mkdir(mode=0o700)
        shutil.copy(FRAMES / "secret-cframe", twins / "c.b2frame")
        shutil.copytree(FRAMES / "secret-sframe", twins / "s.b2frame")
        shutil.copy(twins / "s.b2frame" / "00000001.chunk", twins / "chunk")
        shutil.copy(twins / "s.b2frame" / "chunks.b2frame", twins / "chunks.b2frame")
        (twins / "lock").write_bytes(secret(16))
        for path in twins.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        self.before = self.all()
        self.around = self.listing()

    @staticmethod
    def all():
        return [*manifest(V), f"the disk {hashlib.sha256((T / 'disk').read_bytes()).hexdigest()}"]

    @staticmethod
    def listing():
        return sorted(name for name in os.listdir(T) if not name.startswith("output-"))

    def harm(self):
        now = self.all()
        changed = [f"- {line}" for line in self.before if line not in now] + [f"+ {line}" for line in now if line not in self.before]
        changed += [f"new: {name}" for name in self.listing() if name not in self.around]
        return changed


def load_library():
    global blosc2
    import blosc2 as library

    blosc2 = library
    blosc2.set_nthreads(1)


def make_frames(where):
    """Frames that only root may read, whose chunks show what they hold; and frames that are not compact."""
    load_library()
    where.mkdir()
    for layout, contiguous in (("cframe", True), ("sframe", False)):
        frame = blosc2.SChunk(
            chunksize=40_000, urlpath=str(where / f"secret-{layout}"), contiguous=contiguous, mode="w",
            cparams={"typesize": 4, "clevel": 0, "nthreads": 1},
        )  # fmt: skip
        for _ in range(6):
            frame.append_data(secret(40_000))
        frame.vlmeta["secret"] = SECRET
        path = where / f"loose-{layout}"
        if contiguous:
            shutil.copy(FX / "full.b2frame", path)
        else:
            shutil.copytree(FX / "sparse" / "full.b2frame", path)
        blosc2.open(str(path), mode="a").reorder_offsets(list(range(5, -1, -1)))


# ---- Runs


def run(operation, case, operations=None):
    """Does it once; answers what harm was done."""
    harm = []
    try:
        if operation in BEFORE:
            BEFORE[operation](case)
        if not (case.calm and operation in MOUNTS):
            case.begin()
        (operations or {**MOUNTS, **TOOLS})[operation](case)
    except Harm as found:
        harm.append(str(found))
    finally:
        case.end()
    return harm + case.leaks()


class Tally:
    def __init__(self, operations=None):
        self.operations = operations
        self.victims, self.tried, self.runs, self.done, self.harmed, self.said = None, 0, 0, 0, 0, []

    def add(self, operation, case, words):
        self.victims = self.victims or Victims()
        harm = run(operation, case, self.operations)
        self.runs += 1
        self.done += case.done
        self.tried += len(case.squats)
        changed = self.victims.harm()
        if changed:
            self.harmed += 1
            self.victims = None
        if harm or changed:
            self.said.append("\n    ".join([f"{operation} {case.layout} {'--locking' if case.locking else ''} {words}:", *harm, *changed]))
        return len(self.said) < ENOUGH or FULL


def squats(layout, operation):
    tally = Tally()
    for locking in (False, True) if operation in MOUNTS else (False,):
        for taken in rounds(operation, layout, locking):
            if not tally.add(operation, Case(layout, taken, locking), ", ".join(f"{name}: {kind}" for name, kind in taken)):
                break
    if not tally.done:
        tally.said.append("none of the runs came to its end")
    return tally, f"{tally.tried} squats tried, {tally.harmed} changes, {tally.runs} runs of which {tally.done} were done"


def storm(layout, *operations):
    tally = Tally()
    chance = random.Random(f"{SEED} {layout} {operations}")
    end = time.monotonic() + STORM_SECONDS
    while time.monotonic() < end:
        operation = operations[tally.runs % len(operations)]
        case = Case(layout, locking=operation in MOUNTS and chance.random() < 0.5, storm=chance)
        if not tally.add(operation, case, "in a storm"):
            break
    return tally, f"{tally.runs} storms, {tally.done} runs done in spite of them, {tally.harmed} harmed"


def main():
    what, *arguments = sys.argv[1:]
    os.umask(0o022)
    if what == "frames":
        make_frames(Path(*arguments))
        return
    M.mkdir(exist_ok=True)
    disk_of_secrets()
    if {"write", "write_late", "lost"} & set(arguments):
        load_library()
    tally, words = (squats if what == "squats" else storm)(*arguments)
    print(f"note: {words}")
    print("\n".join(tally.said))
    sys.exit(bool(tally.said))


if __name__ == "__main__":
    main()
