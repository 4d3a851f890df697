"""What can take a name before b2fuse does, and which names it uses."""

import os
import socket
import stat
import subprocess
from pathlib import Path

from victims import secret

T, FULL = Path(os.environ.get("T", "/")), os.environ.get("FULL")
UID, GID = map(int, os.environ["ATTACKER"].split(":"))
# The attacker's directory, and what is not to be touched.
U, V = T / "u", T / "victims"


def link_to(*names):
    return lambda path, _: os.symlink(V.joinpath(*names), path)


def twin(path, name):
    """A link to what would do as what the name is for, if only root had not kept it to itself."""
    kind = "chunk" if name.endswith(".chunk") else "lock" if name.endswith(".b2lock") else name if "/" not in name else Path(name).name
    os.symlink(V / "twins" / (kind if (V / "twins" / kind).exists() else "chunk"), path)


def full_directory(path, _):
    path.mkdir()
    for name in ("00000000.chunk", "00000001.chunk", "00000FFF.chunk", "chunks.b2frame", "c.b2frame", "s.b2frame", ".b2lock"):
        os.symlink(V / "private", path / name)
    (path / "directory").mkdir()


def a_socket(path, _):
    # Its name may be too long for an address.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


KINDS = {
    "link": link_to("private"),
    "link to its like": twin,
    "link to a directory": link_to("open"),
    "link to an empty directory": link_to("empty"),
    "dangling link": link_to("home", "new"),
    "pipe": lambda path, _: os.mkfifo(path),
    "directory": lambda path, _: path.mkdir(),
    "full directory": full_directory,
    "device": lambda path, _: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3)),
    "socket": a_socket,
    # As an owner can make one where fs.protected_hardlinks is 0.
    "hard link": lambda path, _: os.link(V / "twice", path),
}


# What belongs to others, and stays theirs.
KEPT = {"hard link"}


def disk_of_secrets():
    """A block device, where there are loop devices; it goes when this process ends."""
    image = T / "disk"
    image.write_bytes(secret(1 << 20))
    image.chmod(0o600)
    made = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
    if made.returncode == 0:
        device = made.stdout.strip()
        disk_of_secrets.held = open(device, "rb")
        # Takes effect when nobody has it open any more.
        subprocess.run(["losetup", "--detach", device], check=True)
        number = os.stat(device).st_rdev
        KINDS["disk"] = lambda path, _: os.mknod(path, stat.S_IFBLK | 0o666, number)


def take(name, kind):
    """Puts something where a name is; what was there is moved aside."""
    path = U / name
    if path.parent != U and not os.path.lexists(path.parent):
        path.parent.mkdir()
        os.chown(path.parent, UID, GID)
    if os.path.lexists(path):
        os.rename(path, U / f".aside-{len(os.listdir(U))}")
    KINDS[kind](path, str(name))
    if kind not in KEPT:
        chown_all(path)


def chown_all(path):
    os.lchown(path, UID, GID)
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            chown_all(inner)


def names(operation, layout):
    """The names that it makes or opens: those that stand in nobody's way, and those without which nothing goes."""
    source = "c.b2frame" if layout == "cframe" else "s.b2frame"
    aside = [".b2fuse-PID-0.tmp", ".b2fuse-PID-1.tmp", ".b2fuse-PID-0", ".b2fuse-PID-repair.tmp"]
    aside += [f"{source}.lost", f"{source}.lost.1", f"{source}.before-repair", f"{source}.before-repair.1"]
    first = [source]
    if layout == "cframe":
        aside.append(f"{source}.b2lock")
    else:
        aside += [f"{source}/.b2fuse-chunks.tmp", f"{source}/.b2fuse-PID-repair.tmp", f"{source}/.b2lock"]
        aside += [f"{source}/00000006.chunk", f"{source}/00000007.chunk"]
        aside += [f"{source}/.b2fuse-ids.tmp", f"{source}/.b2fuse-00000006.tmp"]
        first += [f"{source}/chunks.b2frame", f"{source}/00000001.chunk"]
    if operation in ("convert", "create"):
        first.append("new.b2frame")
    if operation == "convert_force":
        first.append("new.b2frame")
        first += ["new.b2frame/chunks.b2frame", "new.b2frame/00000001.chunk", "new.b2frame/.b2lock"] if layout == "cframe" else []
    if operation == "create":
        aside += ["new.b2frame.lost", "new.b2frame.b2lock"]
    if operation == "lost":
        first.append(f"{source}.lost/00000FFF.chunk")
        first.append(f"{source}.lost/{source}")
    return aside, first


def rounds(operation, layout, locking):
    """What takes which names in each run: those that stand in nobody's way all at once, the others one at a time."""
    aside, first = names(operation, layout)
    kinds = list(KINDS)
    if locking:
        lock = [name for name in aside if name.endswith(".b2lock")][-1]
        aside.remove(lock)
        # The others have been tried without.
        first = [*(first if FULL else first[:1]), lock]
    for turn in range(len(kinds)):
        yield [(name, kinds[(place + turn) % len(kinds)]) for place, name in enumerate(aside)]
    for name in [*first, *(aside if FULL else ())]:
        for kind in kinds:
            # Who names SOURCE by a link to another frame means that frame.
            late = operation in ("read_late", "write_late", "lost")
            if kind == "link to its like" and not late and "/" not in name and not name.endswith(".b2lock"):
                continue
            yield [(name, kind)]
    if operation == "lost":
        source = "c.b2frame" if layout == "cframe" else "s.b2frame"
        for kind in kinds:
            yield [(f"{source}.lost{end}", kind) for end in ("", *(f".{n}" for n in range(1, 10)))]
