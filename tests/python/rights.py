#!/usr/bin/env python3
"""Rights in a mounted directory, held against the same calls in a native directory: set-group-ID bits of files that a user makes and
changes, with a group of theirs and without, and names of attributes that only an administrator sees.

    rights.py

Needs root. The last line is the count.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mounts import Mount

USER, GROUP, OTHER_GROUP = 31001, 32001, 32002


def make(directory):
    directory.mkdir()
    directory.chmod(0o777)
    for name, group in (("file", GROUP), ("of another group", OTHER_GROUP)):
        (directory / name).touch()
        os.chown(directory / name, USER, group)
    for name, owner, mode in (("own", USER, 0o755), ("shared", 0, 0o2777)):
        (directory / name).mkdir()
        os.chown(directory / name, owner, GROUP)
        (directory / name).chmod(mode)


def change(directory):
    """What the user does; each step is undone by none of the later ones."""
    os.umask(0)
    os.chmod(directory / "file", 0o2755)
    os.chmod(directory / "of another group", 0o2755)
    os.chmod(directory / "own", 0o2755)
    os.close(os.open(directory / "shared" / "made", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o2755))
    os.mknod(directory / "shared" / "node", 0o102755)
    os.mkdir(directory / "shared" / "directory", 0o755)


def as_user(groups, work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups(groups)
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            work()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("the user's process failed")


def modes(directory):
    return {str(path.relative_to(directory)): oct(path.stat().st_mode) for path in directory.rglob("*")}


def listed(path, prefix=()):
    """The names of attributes that a process sees, started by `prefix`."""
    script = "import os, sys; print(sorted(os.listxattr(sys.argv[1])))"
    return subprocess.run([*prefix, sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True).stdout


def main():
    place = Path(tempfile.mkdtemp(prefix="b2fuse-rights-"))
    place.chmod(0o755)
    results = {}
    try:
        for groups in ([GROUP], []):
            for name in ("native", "d"):
                make(place / name)
            as_user(groups, lambda: change(place / "native"))
            with Mount(place / "d", place / "m", ["-o", "allow_other"]):
                as_user(groups, lambda: change(place / "m"))
            results[f"set-group-ID bits of a user with the groups {groups}"] = modes(place / "native"), modes(place / "d")
            for name in ("native", "d"):
                if groups:
                    shutil.rmtree(place / name)
        file = place / "d" / "file"
        try:
            os.setxattr(file, "trusted.b2fuse", b"1")
        except OSError:
            print("trusted.* attributes cannot be set here: not tested")
        else:
            os.setxattr(file, "user.b2fuse", b"1")
            without = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
            with Mount(place / "d", place / "m", ["-o", "allow_other"]):
                for who, prefix in (("root", []), ("root without the capability", without), ("a user", ["setpriv", "--reuid", str(USER)])):
                    results[f"names of attributes that {who} sees"] = listed(file, prefix), listed(place / "m" / "file", prefix)
    finally:
        subprocess.run(["umount", "-l", str(place / "m")], capture_output=True)
        shutil.rmtree(place)
    failed = 0
    for what, (native, mounted) in results.items():
        if native != mounted:
            failed += 1
            print(f"{what}: natively {native}, in the mount {mounted}")
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("rights.py: only root can be other users")
    sys.exit(main())
