"""Processes that tests fork, in namespaces of their own, and how they end. Needs root, and pgrep."""

import ctypes
import os
import signal
import stat
import subprocess
import tempfile
import time
import traceback
from pathlib import Path

NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
NOBODY = 65534
LIBC = ctypes.CDLL(None, use_errno=True)


def forked(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def ended(child, until, well):
    """How a child ended, in words, if not well."""
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            return "hangs"
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(found[1])
    return None if code in well else f"ended with {code}"


def processes(*words):
    return [int(word) for word in subprocess.run(["pgrep", *words], capture_output=True, text=True).stdout.split()]


def gone(process, until):
    """Whether a process ends in time. That nobody has waited for it does not matter."""
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def enter(where, work):
    """A mount namespace of its own, and what else belongs to it. Returns in the process that is to go on."""

    def unshare(flags):
        if LIBC.unshare(flags):
            raise OSError(ctypes.get_errno(), "unshare")

    unshare(NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    if where == "pid":
        unshare(NEWPID)
        if child := os.fork():
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
        LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: with it all that it has started ends
        subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    if where in ("user", "fusermount"):
        device = work / "fuse"
        os.mknod(device, stat.S_IFCHR, os.makedev(10, 229))
        device.chmod(0o666)
        subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
        os.chown(work, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        LIBC.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, for its own files in /proc
    if where == "user":
        unshare(NEWUSER | NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {NOBODY} 1"), ("gid_map", f"0 {NOBODY} 1")):
            Path(f"/proc/self/{name}").write_text(text)


def possible(where):
    """Whether such a place can be entered here, and mounts can be made there."""

    def run():
        enter(where, work)
        if where == "fusermount":
            subprocess.run(["fusermount3", "--version"], stdout=subprocess.DEVNULL, check=True)
            os.close(os.open("/dev/fuse", os.O_RDWR))
        else:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", work], check=True)

    with tempfile.TemporaryDirectory(prefix="b2fuse-possible-") as name:
        work = Path(name)
        return not ended(forked(run), time.monotonic() + 20, (0,))
