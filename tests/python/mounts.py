"""Real mounts as values that unmount when they end. Used by the mutation test and the benchmark."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def default_binary():
    """The daemon under test: $B2FUSE, or the release build of this checkout."""
    return os.environ.get("B2FUSE") or str(ROOT / "target" / "release" / "b2fuse")


def is_mounted(point):
    """Whether something is mounted at a path, which may be a file's."""
    return os.stat(point).st_dev != os.stat(point.parent).st_dev


class Mount:
    """`b2fuse mount OPTIONS source point`, undone by `b2fuse umount` at the end of a `with` block."""

    # Options of every mount, before its own.
    always = []

    def __init__(self, source, point, options=(), binary=None, timeout=300, in_front=False, on_file=False):
        self.source, self.point = Path(source), Path(point)
        self.options, self.binary, self.timeout = [*self.always, *options], binary or default_binary(), timeout
        self.mounted = False
        # The mount point is made: a directory, or a file.
        self.on_file = on_file
        # A daemon in front is a child, which can be killed.
        self.in_front, self.daemon = in_front, None

    def _run(self, *args):
        done = subprocess.run([self.binary, *map(str, args)], capture_output=True, text=True, timeout=self.timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, args))}: exit code {done.returncode}: {done.stderr.strip()}")

    def mount(self):
        if self.on_file:
            self.point.touch()
        else:
            self.point.mkdir(exist_ok=True)
        if self.in_front:
            self._start()
        else:
            self._run("mount", *self.options, self.source, self.point)
        self.mounted = True
        return self

    def _start(self):
        command = [self.binary, "mount", "-f", "--log-level", "error", *self.options, str(self.source), str(self.point)]
        self.daemon = subprocess.Popen(command)
        while not is_mounted(self.point):
            if self.daemon.poll() is not None:
                raise RuntimeError(f"{' '.join(command)}: exit code {self.daemon.returncode}")
            time.sleep(0.01)

    def umount(self):
        if self.mounted:
            self._run("umount", self.point)
            self.mounted = False
            if self.daemon and self.daemon.wait(self.timeout) != 0:
                raise RuntimeError(f"the daemon of {self.point} ended with {self.daemon.returncode}")

    def umount_at_once(self):
        """Without an fsync before; returns when the daemon has let SOURCE go."""
        subprocess.run(["fusermount3", "-u", str(self.point)], check=True, timeout=self.timeout)
        self.mounted = False
        source = os.open(self.source, os.O_RDONLY)
        try:
            fcntl.flock(source, fcntl.LOCK_EX)
        finally:
            os.close(source)

    def kill(self):
        """SIGKILL for a daemon in front, and its mount taken away."""
        self.daemon.kill()
        self.daemon.wait()
        self.mounted = False
        subprocess.run(["umount", "-l", str(self.point)], check=True)

    def __enter__(self):
        return self.mount()

    def __exit__(self, kind, error, trace):
        try:
            self.umount()
        except Exception as failure:
            # Whatever is reported, the mount is not left behind.
            subprocess.run(["umount", "-l", str(self.point)], capture_output=True)
            if kind is None:
                raise
            # The first failure is the one to report.
            print(f"while unmounting: {failure}", file=sys.stderr)
