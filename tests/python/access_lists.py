#!/usr/bin/env python3
"""Access lists of SOURCE: what users and groups may do in a mount, held against what they may do on SOURCE.

    access_lists.py [--lists N] [--seed S] [-v]

SOURCE gets random lists, of named users and groups that are granted or denied what the owning group or others have. Processes of each kind
of user open all files for reading and for writing, natively and in every view: of single frames in both layouts, and of a directory of
frames. In a mount that shows lists they get exactly what they get natively, and in one that shows none never more.

Needs root. The last line is the count.
"""

import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount

NOBODY = 0xFFFFFFFF
OWNER, GROUP = 31001, 32001
NAMED, NAMED_GROUP = 31002, 32002
# Who tries: user, groups.
USERS = {
    "owner": (OWNER, [31001]),
    "member": (31003, [GROUP]),
    "member by a second group": (31004, [31004, GROUP]),
    "named": (NAMED, [31002]),
    "named member": (NAMED, [GROUP]),
    "member of the named group": (31005, [NAMED_GROUP]),
    "member of both groups": (31006, [GROUP, NAMED_GROUP]),
    "stranger": (31007, [31007]),
}
# Options, and whether the mount shows lists.
SHOWN = [([], True)]
WITHOUT = [(["-o", "nouser_xattr"], False), (["-o", f"uid={OWNER},gid={GROUP}"], False)]
SINGLE = [(name, show) for name in ("a.b2nd", "s.b2nd") for show in ("sparse", "contiguous", "npy", "raw")]
TREES = [["--show", show, "-o", "b2z=dir"] for show in ("other", "sparse", "contiguous", "npy")]
# The fixed ones are those of the first report: a mask that the owning group has not.
FIXED = [{"group": 0, "named": 6, "named_group": None, "others": 0}, {"group": 4, "named": 6, "named_group": None, "others": 0}]


def list_of(rights, directory):
    """The value of the attribute. A directory lets through who may read."""
    perm = (lambda bits: bits | (bits & 4) >> 2) if directory else (lambda bits: bits)
    named = [(2, rights["named"], NAMED), (4, rights["group"], NOBODY), (8, rights["named_group"], NAMED_GROUP)]
    entries = [(tag, perm(bits), who) for tag, bits, who in named if bits is not None]
    all_of_them = 0
    for _, bits, _ in entries:
        all_of_them |= bits
    mask = perm(rights["mask"]) if "mask" in rights else all_of_them
    entries = [(1, 7 if directory else 6, NOBODY), *entries, (16, mask, NOBODY), (32, perm(rights["others"]), NOBODY)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def give(path, rights):
    for place in [path, *(path.iterdir() if path.is_dir() else [])]:
        os.chown(place, OWNER, GROUP)
        os.setxattr(place, "system.posix_acl_access", list_of(rights, place.is_dir()))


def make(directory):
    directory.mkdir()
    numbers = np.arange(1000, dtype="<i4")
    blosc2.asarray(numbers, urlpath=str(directory / "a.b2nd"), mode="w", chunks=(400,))
    blosc2.asarray(numbers, urlpath=str(directory / "s.b2nd"), mode="w", chunks=(400,), contiguous=False)
    (directory / "plain").write_text("text")
    with blosc2.DictStore(str(directory / "z.b2z"), mode="w") as store:
        store["/node"] = numbers


def frame_of(name):
    """What a name stands for, in DIR or in a mount that shows its data."""
    return name.removesuffix(".npy").removesuffix(".raw")


def opened(root):
    """What this process may do with the files below each name: read, write."""
    got = {}
    try:
        names = os.listdir(root) if os.path.isdir(root) else [root]
    except OSError:
        return got
    for name in names:
        top = os.path.join(root, name)
        try:
            inside = [os.path.join(top, inner) for inner in os.listdir(top)] if os.path.isdir(top) else [top]
        except OSError:
            # It may not list them, and may still know what they are called.
            inside = [os.path.join(top, inner) for inner in ("chunks.b2frame", "00000000.chunk", "node.b2nd")]
        for path in inside:
            for how, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
                try:
                    os.close(os.open(path, flags))
                    got.setdefault(frame_of(os.path.basename(name)), set()).add(how)
                except OSError:
                    pass
    return got


def tries(root):
    """The same for each of the users, in processes of theirs."""
    got = {}
    for who, (uid, groups) in USERS.items():
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups(groups)
                os.setresgid(groups[0], groups[0], groups[0])
                os.setresuid(uid, uid, uid)
                os.write(write, repr(opened(str(root))).encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as said:
            got[who] = eval(said.read() or b"None")
        os.waitpid(child, 0)
        if got[who] is None:
            raise RuntimeError(f"{who} could not try")
    return got


def random_rights(dice):
    perm = lambda: dice.choice([0, 0, 4, 4, 6, 6, 2])
    rights = {"group": perm(), "others": perm(), "named": perm(), "named_group": dice.choice([None, perm()])}
    if dice.random() < 0.4:
        rights["mask"] = perm()
    return rights


def differences(native, got, frames, is_exact):
    """What users get that they do not get natively; with `is_exact`, also what they do not get."""
    for who, of_frames in native.items():
        for frame in frames:
            right, mine = of_frames.get(frame, set()), got[who].get(frame, set())
            if mine - right:
                yield f"{who} may {' and '.join(sorted(mine - right))} {frame}"
            # A directory lets nobody through who may only write, and what is only read takes no writes.
            if is_exact and "read" in right and "read" not in mine:
                yield f"{who} may not read {frame}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=4, metavar="N", help="how many lists, with the fixed ones (4)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    place = Path(tempfile.mkdtemp(prefix="b2fuse-lists-"))
    place.chmod(0o755)
    passed = failed = 0
    try:
        make(place / "d")
        for number in range(options.lists):
            rights = FIXED[number] if number < len(FIXED) else random_rights(dice)
            for name in sorted(os.listdir(place / "d")):
                give(place / "d" / name, rights)
            native = tries(place / "d")
            mounts = [(place / "d" / name, ["--show", show], [name]) for name, show in SINGLE]
            mounts += [(place / "d", tree, ["a.b2nd", "s.b2nd", "z.b2z", "plain"]) for tree in TREES]
            for source, show, frames in mounts:
                # What is cut is cut in one place, so each list has one of the options that show none.
                for extra, is_exact in [*SHOWN, WITHOUT[number % len(WITHOUT)]]:
                    with Mount(source, place / "m", ["-o", "allow_other", *show, *extra]):
                        got = tries(place / "m")
                    wrong = list(differences(native, {who: names(of, frames) for who, of in got.items()}, frames, is_exact))
                    passed, failed = passed + (not wrong), failed + bool(wrong)
                    what = f"{rights}: mount {' '.join([*show, *extra])} {source.name}"
                    if wrong:
                        print(f"{what}: {'; '.join(wrong)}")
                    elif options.verbose:
                        print(f"{what}: {got}")
    finally:
        subprocess.run(["umount", "-l", str(place / "m")], capture_output=True)
        shutil.rmtree(place)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def names(of, frames):
    """Of a mount of one frame, every file is of that frame."""
    if len(frames) > 1:
        return of
    return {frames[0]: set().union(*of.values())}


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("access_lists.py: only root can be other users")
    sys.exit(main())
