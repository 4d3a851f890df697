"""What a program can see of a directory by system calls that the test suites of others leave out: each case runs in a native directory and
in a mount, and must give the same.

A case is a function of a directory; it returns what it saw, or raises an OSError, whose number is compared. Each runs in a process of its
own, as root. `scripts/conformance` runs them."""

import ctypes
import errno
import fcntl
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import stat
import struct
import subprocess
import threading
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = -100, 0x1000, 0x400
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
NOBODY = 65534
PR_SET_CHILD_SUBREAPER = 36
CASES = {}


def case(function):
    CASES[function.__name__.replace("_", " ")] = function
    return function


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def refused(function, *args, **more):
    """The name of the error, or what came of it."""
    try:
        return function(*args, **more)
    except OSError as error:
        return errno.errorcode[error.errno]


def rename2(old, new, flags):
    return checked(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd, mode, offset, length):
    return checked(libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def seen(path):
    """All of a stat that does not depend on when and where."""
    found = os.lstat(path)
    return stat.filemode(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, found.st_size if not stat.S_ISDIR(found.st_mode) else None


def tree(place):
    return sorted((str(path.relative_to(place)), seen(path), path.read_bytes() if path.is_file() and not path.is_symlink() else None) for path in place.rglob("*"))


def as_user(function, uid=NOBODY, gid=NOBODY, groups=()):
    """What a function gives in a process of that user."""

    def run(pipe):
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            pipe.send(function())
        except OSError as error:
            pipe.send(errno.errorcode[error.errno])

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(theirs,))
    process.start()
    answer = ours.recv()
    process.join()
    return answer


@case
def names(place):
    names = [b"n" * 255, b"\xff\xfe not utf-8", b"line\nbreak", b"back\\slash", b" ", b"-rf", b"a.tmp", b".hidden", b"\x01\x7f", "ö".encode(), b"x.b2nd", b"x.b2frame.lost"]
    for name in names:
        with open(os.path.join(os.fsencode(place), name), "wb") as file:
            file.write(name)
    listed = sorted(os.listdir(os.fsencode(place)))
    content = [Path(os.fsdecode(os.path.join(os.fsencode(place), name))).read_bytes() for name in listed]
    too_long = [refused(function, place / ("n" * 256)) for function in (os.mkdir, os.stat, os.unlink, os.rmdir)]
    return listed, content, too_long


@case
def rename_flags(place):
    for name in "abcd":
        (place / name).write_text(name)
    (place / "dir").mkdir()
    (place / "dir" / "inside").write_text("inside")
    results = [
        refused(rename2, place / "a", place / "b", NOREPLACE), refused(rename2, place / "a", place / "new", NOREPLACE),
        refused(rename2, place / "b", place / "c", EXCHANGE), refused(rename2, place / "d", place / "dir", EXCHANGE),
        refused(rename2, place / "d", place / "missing", EXCHANGE), refused(rename2, place / "b", place / "c", EXCHANGE | NOREPLACE),
        refused(rename2, place / "d", place / "d" / "inside", 0), refused(os.rename, place / "d", place / "d" / "sub"), refused(os.rename, place / "b", place / "d"),
        refused(os.rename, place / "d", place / "b"),
    ]  # fmt: skip
    return results, tree(place)


@case
def renames_with_open_files(place):
    (place / "old").write_text("old")
    (place / "new").write_text("new")
    with open(place / "old", "r+") as old, open(place / "new", "r+") as new:
        os.rename(place / "new", place / "old")
        old.seek(0, 2), new.seek(0, 2)
        old.write(" one"), new.write(" one")
        old.flush(), new.flush()
        old.seek(0), new.seek(0)
        return old.read(), new.read(), os.fstat(old.fileno()).st_nlink, os.fstat(new.fileno()).st_nlink, tree(place)


@case
def directory_renamed_while_files_in_it_are_open(place):
    (place / "a" / "b").mkdir(parents=True)
    with open(place / "a" / "b" / "file", "w") as file:
        here = os.open(place / "a" / "b", os.O_RDONLY)
        os.rename(place / "a", place / "z")
        file.write("written after")
        file.flush()
        os.close(os.open("other", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)
    return tree(place)


@case
def unlinked_and_open(place):
    file = os.open(place / "file", os.O_CREAT | os.O_RDWR, 0o640)
    os.write(file, b"0123456789")
    os.unlink(place / "file")
    os.ftruncate(file, 4)
    os.fchmod(file, 0o600)
    os.fchown(file, 5, 6)
    os.pwrite(file, b"xy", 8)
    os.utime(file, (1, 2))
    found = os.fstat(file)
    return os.listdir(place), os.pread(file, 100, 0), stat.filemode(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, found.st_size, found.st_mtime


@case
def unlinked_and_opened_again_by_proc(place):
    file = os.open(place / "file", os.O_CREAT | os.O_RDWR)
    os.write(file, b"still here")
    os.unlink(place / "file")
    again = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
    return os.read(again, 100)


@case
def removed_directory_and_open(place):
    (place / "dir").mkdir()
    here = os.open(place / "dir", os.O_RDONLY)
    os.rmdir(place / "dir")
    return refused(os.listdir, here), refused(os.open, "new", os.O_CREAT, dir_fd=here), refused(os.mkdir, "sub", dir_fd=here), os.fstat(here).st_nlink


@case
def same_name_made_again_while_the_old_file_is_open(place):
    path = place / "file"
    path.write_text("first")
    with open(path) as old:
        path.unlink()
        path.write_text("second")
        return old.read(), path.read_text(), os.fstat(old.fileno()).st_ino != path.stat().st_ino


@case
def tmpfile(place):
    file = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(file, b"nameless")
    before = os.listdir(place)
    checked(libc.linkat(AT_FDCWD, f"/proc/self/fd/{file}".encode(), AT_FDCWD, os.fsencode(place / "named"), AT_SYMLINK_FOLLOW))
    return before, tree(place)


@case
def hard_links(place):
    (place / "a").write_text("a")
    (place / "dir").mkdir()
    os.link(place / "a", place / "dir" / "b")
    (place / "dir" / "b").write_text("written by b")
    os.symlink("a", place / "sym")
    os.link(place / "sym", place / "sym2", follow_symlinks=False)
    same = os.stat(place / "a").st_ino == os.stat(place / "dir" / "b").st_ino
    results = [refused(os.link, place / "dir", place / "dir2"), refused(os.link, place / "a", place / "sym")]
    os.unlink(place / "a")
    return same, results, tree(place)


@case
def links_by_descriptor(place):
    file = os.open(place / "a", os.O_CREAT | os.O_RDWR)
    path = os.open(place / "a", os.O_PATH)
    results = [refused(lambda fd=fd, name=name: checked(libc.linkat(fd, b"", AT_FDCWD, os.fsencode(place / name), AT_EMPTY_PATH))) for fd, name in ((file, "b"), (path, "c"))]
    return results, tree(place)


@case
def symbolic_links(place):
    targets = ["nowhere", "/etc/hostname", "../" * 30 + "etc/hostname", ".", "x" * 4095, "loop"]
    for number, target in enumerate(targets):
        os.symlink(target, place / f"{number}" if target != "loop" else place / "loop")
    results = [os.readlink(place / f"{number}") for number in range(5)]
    return results, refused(os.stat, place / "loop"), refused(os.open, place / "0", os.O_NOFOLLOW), refused(os.open, place / "loop", os.O_RDONLY), refused(os.symlink, "y" * 4096, place / "long"), refused(os.symlink, "", place / "empty")


@case
def holes(place):
    file = os.open(place / "file", os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 1 << 20)
    os.pwrite(file, b"x" * 4096, 512 << 10)
    os.fsync(file)
    results = [refused(os.lseek, file, at, whence) for at, whence in ((0, os.SEEK_DATA), (0, os.SEEK_HOLE), (512 << 10, os.SEEK_HOLE), (600 << 10, os.SEEK_DATA), (2 << 20, os.SEEK_DATA))]
    results.append(refused(fallocate, file, PUNCH_HOLE | KEEP_SIZE, 512 << 10, 4096))
    results.append(os.pread(file, 4096, 512 << 10) == bytes(4096))
    results.append(refused(fallocate, file, KEEP_SIZE, 1 << 20, 1 << 20))
    results.append((os.fstat(file).st_size, os.fstat(file).st_blocks >= (1 << 20) // 512))
    results.append(refused(fallocate, file, ZERO_RANGE, 0, 3 << 20))
    results.append(os.fstat(file).st_size)
    return results


@case
def blocks(place):
    with open(place / "file", "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    (place / "sparse").touch()
    os.truncate(place / "sparse", 1 << 30)
    return [(path.stat().st_blocks, path.stat().st_blksize) for path in (place / "file", place / "sparse")]


@case
def appends_by_many(place):
    """Each line must be whole, as O_APPEND promises on one machine."""

    def run(number):
        file = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for line in range(200):
            os.write(file, f"{number} {line}\n".encode())

    processes = [multiprocessing.get_context("fork").Process(target=run, args=(number,)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sorted((place / "log").read_text().splitlines())


@case
def append_and_pwrite(place):
    file = os.open(place / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.write(file, b"one")
    os.truncate(place / "log", 10)
    os.pwrite(file, b"two", 0)
    fcntl.fcntl(file, fcntl.F_SETFL, 0)
    os.pwrite(file, b"three", 0)
    return (place / "log").read_bytes()


@case
def appending_begins_and_ends(place):
    """F_SETFL changes what an open file does."""
    file = os.open(place / "log", os.O_RDWR | os.O_CREAT)
    os.write(file, b"0123456789")
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    os.pwrite(file, b"end", 0)
    fcntl.fcntl(file, fcntl.F_SETFL, 0)
    os.pwrite(file, b"start", 0)
    return (place / "log").read_bytes()


@case
def maps_and_calls(place):
    file = os.open(place / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 3 * 4096)
    with mmap.mmap(file, 3 * 4096) as shared:
        shared[0:5] = b"mmap!"
        one = os.pread(file, 5, 0)
        os.pwrite(file, b"write", 5000)
        two = bytes(shared[5000:5005])
        other = os.open(place / "file", os.O_RDONLY)
        three = os.pread(other, 5, 0)
        shared[4096:4100] = b"last"
        shared.flush()
    return one, two, three, (place / "file").read_bytes()


@case
def a_map_outlives_its_file(place):
    (place / "file").write_bytes(b"x" * 8192)
    file = os.open(place / "file", os.O_RDWR)
    shared = mmap.mmap(file, 8192)
    os.close(file)
    os.unlink(place / "file")
    shared[0:3] = b"new"
    return bytes(shared[0:10])


@case
def a_program_is_run_from_it(place):
    program = place / "program"
    program.write_text("#!/bin/sh\necho ran $0 | sed 's|.*/||'\n")
    program.chmod(0o755)
    subprocess.run(["cp", "/bin/true", place / "true"], check=True)
    busy = subprocess.Popen([place / "program"], stdout=subprocess.PIPE)
    ran = busy.communicate()[0]
    return ran, subprocess.run([place / "true"]).returncode


@case
def a_running_program_is_not_written(place):
    subprocess.run(["cp", "/bin/sleep", place / "sleep"], check=True)
    running = subprocess.Popen([place / "sleep", "60"])
    try:
        return refused(os.open, place / "sleep", os.O_WRONLY), refused(os.truncate, place / "sleep", 0)
    finally:
        running.kill()
        running.wait()


@case
def attributes(place):
    (place / "file").touch()
    (place / "dir").mkdir()
    os.symlink("file", place / "sym")
    results = []
    for name in ("file", "dir"):
        path = place / name
        for key, value in (("user.one", b"1"), ("user.empty", b""), ("user.big", b"x" * 2000), ("trusted.t", b"t"), ("user." + "n" * 249, b"long"), ("security.ima", b"\x01")):
            results.append(refused(os.setxattr, path, key, value))
        results.append(refused(os.setxattr, path, "user.one", b"2", os.XATTR_CREATE))
        results.append(refused(os.setxattr, path, "user.none", b"2", os.XATTR_REPLACE))
        results.append(refused(os.setxattr, path, "user." + "n" * 251, b"long"))
        results.append(refused(os.setxattr, path, "nonsense", b"long"))
        results.append(refused(os.setxattr, path, "user.huge", b"x" * 65537))
        results.append(refused(os.getxattr, path, "user.none"))
        results.append(refused(os.removexattr, path, "user.none"))
        os.removexattr(path, "user.one")
        results.append(sorted((key, os.getxattr(path, key)) for key in os.listxattr(path)))
    results.append(refused(os.setxattr, place / "sym", "user.one", b"1", follow_symlinks=False))
    results.append(refused(os.setxattr, place / "sym", "trusted.one", b"1", follow_symlinks=False))
    results.append(refused(os.listxattr, place / "sym", follow_symlinks=False))
    return results


def acl(*entries):
    """POSIX ACL of (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 0xFFFFFFFF
LIST = acl((1, 6, NO_ID), (2, 4, NOBODY), (4, 0, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID))


@case
def access_lists(place):
    (place / "file").write_text("secret")
    (place / "file").chmod(0o600)
    before = as_user((place / "file").read_text)
    set_one = refused(os.setxattr, place / "file", "system.posix_acl_access", LIST)
    after = as_user((place / "file").read_text)
    found = refused(os.getxattr, place / "file", "system.posix_acl_access"), stat.filemode((place / "file").stat().st_mode)
    (place / "file").chmod(0o600)
    return before, set_one, after, found, as_user((place / "file").read_text), refused(os.getxattr, place / "file", "system.posix_acl_access")


@case
def access_lists_are_inherited(place):
    (place / "dir").mkdir()
    result = refused(os.setxattr, place / "dir", "system.posix_acl_default", LIST)
    os.umask(0o077)
    (place / "dir" / "file").write_text("secret")
    (place / "dir" / "sub").mkdir()
    return result, [(name, refused(os.getxattr, place / "dir" / name, f"system.posix_acl_{kind}")) for name in ("file", "sub") for kind in ("access", "default")], tree(place), as_user((place / "dir" / "file").read_text)


@case
def umasks(place):
    for mask in (0, 0o022, 0o077, 0o777):
        os.umask(mask)
        os.close(os.open(place / f"f{mask}", os.O_CREAT, 0o666))
        os.mkdir(place / f"d{mask}")
        os.mkfifo(place / f"p{mask}")
    return tree(place)


@case
def who_owns_what_is_made(place):
    place.chmod(0o777)
    (place / "shared").mkdir()
    os.chown(place / "shared", 0, 7)
    (place / "shared").chmod(0o2777)

    def make():
        os.umask(0o022)
        for where in (place, place / "shared"):
            (where / "file").write_text("x")
            (where / "dir").mkdir()
            os.symlink("x", where / "sym")
            os.mkfifo(where / "fifo")
            os.link(where / "file", where / "link")
        return True

    return as_user(make), tree(place)


@case
def groups(place):
    (place / "file").write_text("for the group")
    os.chown(place / "file", 0, 4)
    (place / "file").chmod(0o640)
    read = (place / "file").read_text
    return as_user(read), as_user(read, groups=[4]), as_user(read, gid=4), as_user(lambda: os.access(place / "file", os.R_OK), groups=[4]), as_user(lambda: os.access(place / "file", os.W_OK), groups=[4])


@case
def set_user_id_is_dropped_by_a_write(place):
    results = []
    for name, change in (("write", lambda path: os.write(os.open(path, os.O_WRONLY), b"x")), ("truncate", lambda path: os.truncate(path, 0)), ("nothing", lambda path: None)):
        for mode in (0o6777, 0o4777):
            path = place / f"{name}{mode}"
            path.write_text("program")
            path.chmod(mode)
            as_user(lambda path=path: bool(change(path)))
            results.append((path.name, stat.filemode(path.stat().st_mode)))
    for name, uid in (("chown", 5), ("chown nothing", -1)):
        path = place / name
        path.write_text("program")
        path.chmod(0o6755)
        os.chown(path, uid, -1)
        results.append((name, stat.filemode(path.stat().st_mode)))
    return results


@case
def set_group_id_without_execution_is_dropped_by_a_write(place):
    path = place / "file"
    path.touch()
    path.chmod(0o2767)
    as_user(lambda: os.write(os.open(path, os.O_WRONLY), b"x"))
    return stat.filemode(path.stat().st_mode)


@case
def sticky_directories(place):
    place.chmod(0o1777)
    (place / "roots").write_text("x")
    (place / "roots").chmod(0o666)
    return as_user(lambda: refused(os.unlink, place / "roots")), as_user(lambda: refused(os.rename, place / "roots", place / "mine")), as_user(lambda: (place / "roots").write_text("y"))


@case
def what_others_may(place):
    """Each call of somebody who is neither owner nor in the group, over all modes of a directory and a file."""
    results = []
    directory, file = place / "dir", place / "dir" / "file"
    directory.mkdir()
    file.write_text("x")
    for directory_mode in (0o700, 0o701, 0o704, 0o705, 0o703, 0o707):
        for file_mode in (0o600, 0o604, 0o602, 0o601):
            directory.chmod(directory_mode), file.chmod(file_mode)

            def attempts():
                return [
                    refused(lambda: sorted(os.listdir(directory))), refused(lambda: os.stat(file).st_size), refused(lambda: file.read_text()),
                    refused(lambda: os.close(os.open(file, os.O_WRONLY))), refused(os.access, file, os.X_OK), refused(os.truncate, file, 1),
                    refused(os.chmod, file, 0o777), refused(os.utime, file, None), refused(os.utime, file, (1, 1)), refused(os.chown, file, NOBODY, -1),
                    refused(lambda: (directory / "new").touch()), refused(lambda: (os.rename(file, directory / "other"), os.rename(directory / "other", file))),
                    refused(os.unlink, directory / "new"), refused(os.setxattr, file, "user.a", b"1"), refused(os.getxattr, file, "user.a"),
                ]  # fmt: skip

            results.append((oct(directory_mode), oct(file_mode), as_user(attempts)))
    return results


@case
def record_locks(place):
    (place / "file").write_bytes(bytes(100))

    def other(kind):
        file = os.open(place / "file", os.O_RDWR)
        return refused(fcntl.fcntl, file, fcntl.F_SETLK, struct.pack("hhqqi", kind, 0, 0, 10, 0)) not in ("EAGAIN", "EACCES")

    file = os.open(place / "file", os.O_RDWR)
    results = []
    for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK):
        fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", kind, 0, 5, 10, 0))
        results += [as_user(lambda wanted=wanted: other(wanted), 0, 0) for wanted in (fcntl.F_RDLCK, fcntl.F_WRLCK)]
    fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))
    os.close(os.open(place / "file", os.O_RDONLY))
    # A close of any descriptor gives up the process's locks.
    return results, as_user(lambda: other(fcntl.F_WRLCK), 0, 0)


@case
def whole_file_locks(place):
    first, second = (os.open(place / "file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    results = []
    for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN):
        fcntl.flock(first, kind | fcntl.LOCK_NB)
        for wanted in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            results.append(refused(fcntl.flock, second, wanted | fcntl.LOCK_NB))
            fcntl.flock(second, fcntl.LOCK_UN)
    return results


@case
def a_lock_is_waited_for(place):
    first, second = (os.open(place / "file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)
    got = threading.Event()
    thread = threading.Thread(target=lambda: (fcntl.flock(second, fcntl.LOCK_EX), got.set()))
    thread.start()
    early = got.wait(0.2)
    fcntl.flock(first, fcntl.LOCK_UN)
    thread.join(10)
    return early, got.is_set()


@case
def descriptions_own_their_locks(place):
    first, second = (os.open(place / "file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
    results = [refused(fcntl.fcntl, file, 37, lock) in ("EAGAIN", "EACCES") for file in (first, second)]
    os.close(first)
    return results, refused(fcntl.fcntl, second, 37, lock) in ("EAGAIN", "EACCES")


@case
def sockets_and_pipes(place):
    os.mkfifo(place / "fifo")
    reader = os.open(place / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(place / "fifo", os.O_WRONLY)
    os.write(writer, b"through a pipe")
    os.chdir(place)
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("socket")
    client.send(b"through a socket")
    return os.read(reader, 100), server.accept()[0].recv(100), tree(place), refused(os.open, place / "socket", os.O_RDONLY)


@case
def devices(place):
    for name, mode, device in (("null", stat.S_IFCHR | 0o666, os.makedev(1, 3)), ("zero", stat.S_IFCHR | 0o600, os.makedev(1, 5)), ("block", stat.S_IFBLK | 0o600, os.makedev(7, 250)), ("white", stat.S_IFCHR, 0)):
        os.mknod(place / name, mode, device)
    zero = os.read(os.open(place / "zero", os.O_RDONLY), 3)
    return zero, [(seen(place / name), os.lstat(place / name).st_rdev) for name in ("null", "zero", "block", "white")]


@case
def times(place):
    path = place / "file"
    path.write_text("x")
    results = []
    for moment in ((0, 0), (1_500_000_000_123_456_789, 999_999_999), (-1, -2_000_000_000), (5_000_000_000 * 10**9, 10**9)):
        os.utime(path, ns=moment)
        results.append((path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.symlink("file", place / "sym")
    os.utime(place / "sym", ns=(7, 8), follow_symlinks=False)
    results.append((place / "sym").lstat().st_mtime_ns)
    (place / "dir").mkdir()
    os.utime(place / "dir", ns=(7, 8))
    results.append((place / "dir").stat().st_mtime_ns)
    (place / "dir" / "new").touch()
    results.append((place / "dir").stat().st_mtime_ns > 8)
    return results


@case
def times_change_when_they_should(place):
    path = place / "file"
    path.write_text("x")
    (place / "dir").mkdir()

    def after(function):
        for target in (path, place / "dir"):
            os.utime(target, ns=(10**9, 10**9))
        before = [os.stat(target) for target in (path, place / "dir")]
        function()
        return [(new.st_mtime_ns != old.st_mtime_ns, new.st_ctime_ns != old.st_ctime_ns) for old, new in zip(before, [os.stat(target) for target in (path, place / "dir")])]

    file = os.open(path, os.O_RDWR)

    def mapped():
        with mmap.mmap(file, 1) as shared:
            shared[0:1] = b"z"
            shared.flush()

    return [
        after(lambda: os.write(file, b"")), after(lambda: os.write(file, b"y")), after(lambda: os.ftruncate(file, os.fstat(file).st_size)),
        after(lambda: os.truncate(path, 1)), after(mapped), after(lambda: path.chmod(0o600)), after(lambda: os.link(path, place / "dir" / "l")),
        after(lambda: os.unlink(place / "dir" / "l")), after(lambda: os.read(file, 1)), after(lambda: os.listdir(place / "dir")),
        after(lambda: os.setxattr(path, "user.a", b"1")), after(lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))), after(lambda: os.fsync(file)),
    ]  # fmt: skip


@case
def listings_while_names_change(place):
    """What stays is listed once; what goes or comes may be or not."""
    for number in range(3000):
        (place / f"stays{number}").touch()
        (place / f"goes{number}").touch()
    found = []
    with os.scandir(place) as entries:
        for count, entry in enumerate(entries):
            if entry.name.startswith("stays"):
                found.append(entry.name)
            if count % 3 == 0 and count // 3 < 3000:
                os.unlink(place / f"goes{count // 3}")
                (place / f"comes{count // 3}").touch()
    return len(found), len(set(found)), len(os.listdir(place))


@case
def a_listing_begun_again(place):
    for number in range(500):
        (place / f"{number}").touch()
    here = os.open(place, os.O_RDONLY)
    one = len(os.listdir(here))
    (place / "new").touch()
    os.lseek(here, 0, os.SEEK_SET)
    return one, len(os.listdir(here))


@case
def kinds_in_a_listing(place):
    (place / "file").touch(), (place / "dir").mkdir(), os.symlink("x", place / "sym"), os.mkfifo(place / "fifo"), os.mknod(place / "dev", stat.S_IFCHR, 0)
    with os.scandir(place) as entries:
        return sorted((entry.name, entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False), entry.is_symlink(), entry.inode() == os.lstat(entry.path).st_ino) for entry in entries)


@case
def links_of_directories(place):
    for number in range(5):
        (place / "dir" / f"{number}").mkdir(parents=True)
    one = (place / "dir").stat().st_nlink
    (place / "dir" / "0").rmdir()
    os.rename(place / "dir" / "1", place / "out")
    return one, (place / "dir").stat().st_nlink, place.stat().st_nlink


@case
def copies_in_the_kernel(place):
    (place / "a").write_bytes(os.urandom(100_000))
    source, target = os.open(place / "a", os.O_RDONLY), os.open(place / "b", os.O_RDWR | os.O_CREAT)
    copied = os.copy_file_range(source, target, 60_000, 1000, 5)
    sent = os.sendfile(target, source, 0, 1000)
    same = os.pread(target, copied, 5) == os.pread(source, copied, 1000)
    return copied, sent, same, refused(os.copy_file_range, source, source, 10, 0, 5), refused(os.copy_file_range, target, source, 10)


@case
def open_flags(place):
    (place / "file").write_text("x")
    (place / "dir").mkdir()
    results = []
    for name in ("file", "dir", "missing", "file/", "dir/", "file/x"):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_DIRECTORY, os.O_CREAT | os.O_EXCL, os.O_TRUNC | os.O_RDONLY, os.O_PATH, os.O_DIRECT, os.O_SYNC | os.O_RDWR, os.O_NOATIME, os.O_CREAT | os.O_DIRECTORY):
            if name == "missing" and (place / name).exists():
                (place / name).unlink() if not (place / name).is_dir() else (place / name).rmdir()
            opened = refused(os.open, f"{place}/{name}", flags, 0o600)
            results.append((name, flags, opened if isinstance(opened, str) else "opened"))
    return results


@case
def direct_reads_and_writes(place):
    file = os.open(place / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    page = mmap.mmap(-1, 8192)
    page[:] = b"d" * 8192
    results = [os.pwritev(file, [page], 0), os.pwritev(file, [page], 16384)]
    page[:] = bytes(8192)
    results += [os.preadv(file, [page], 0), bytes(page[:3]), os.preadv(file, [page], 8192), bytes(page[:3]), os.preadv(file, [page], 20480), os.preadv(file, [page], 1 << 20)]
    (place / "file").write_bytes(b"through the cache")
    return results, os.fstat(file).st_size


@case
def large_offsets(place):
    file = os.open(place / "file", os.O_RDWR | os.O_CREAT)
    results = [refused(os.pwrite, file, b"x", at) for at in (1 << 31, 1 << 32, 1 << 40, (1 << 44) - 4096, 1 << 45, (1 << 63) - 1)]
    return results, os.fstat(file).st_size, [os.pread(file, 1, at) for at in (1 << 31, 1 << 40, 5)], refused(os.ftruncate, file, 1 << 45), refused(os.ftruncate, file, -1)


@case
def sizes_are_limited(place):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    file = os.open(place / "file", os.O_RDWR | os.O_CREAT)
    return refused(os.pwrite, file, b"x" * 20_000, 0), refused(os.pwrite, file, b"x", 10_000), refused(os.ftruncate, file, 10_001), refused(fallocate, file, 0, 0, 20_000), os.fstat(file).st_size


@case
def truncations(place):
    path = place / "file"
    path.write_bytes(b"x" * 10_000)
    results = []
    for size in (5000, 9000, 0, 1 << 33, 1):
        os.truncate(path, size)
        results.append(path.stat().st_size)
        if size < 10**6:
            results.append(path.read_bytes())
    return results


@case
def handles(place):
    """An open by a number, as NFS servers do it."""
    (place / "file").write_text("x")
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    checked(libc.name_to_handle_at(AT_FDCWD, os.fsencode(place / "file"), handle, ctypes.byref(mount), 0))
    here = os.open(place, os.O_RDONLY)
    file = checked(libc.open_by_handle_at(here, handle, os.O_RDONLY))
    return os.read(file, 10)


@case
def flags_of_files(place):
    """`lsattr` and `chattr`, for whom the file can be open for reading only."""
    (place / "file").touch()
    file = os.open(place / "file", os.O_RDONLY)
    get, put = 0x80086601, 0x40086602
    flags = struct.unpack("l", fcntl.ioctl(file, get, bytes(8)))[0]
    results = [refused(fcntl.ioctl, file, put, struct.pack("l", flags | 0x40)), struct.unpack("l", fcntl.ioctl(file, get, bytes(8)))[0] & 0x40]
    return results


@case
def a_file_system_is_told(place):
    found = os.statvfs(place)
    return found.f_namemax, found.f_frsize, found.f_blocks, found.f_files


@case
def everything_is_synced(place):
    (place / "dir").mkdir()
    results = []
    for path in (place, place / "dir"):
        here = os.open(path, os.O_RDONLY)
        results += [refused(os.fsync, here), refused(os.fdatasync, here), refused(lambda here=here: checked(libc.syncfs(here)))]
    return results


@case
def names_that_are_taken(place):
    (place / "file").touch(), (place / "dir").mkdir(), (place / "full").mkdir(), (place / "full" / "x").touch()
    calls = []
    for name in ("file", "dir", "full", "missing", "file/x", ".", "..", "full/."):
        path = f"{place}/{name}"
        for function in (os.mkdir, os.rmdir, os.unlink, lambda path: os.symlink("t", path), lambda path: os.mkfifo(path), lambda path: os.link(place / "file", path), lambda path: os.rename(place / "full", path)):
            if name == ".." and function is os.rmdir or name == "missing" and function not in (os.rmdir, os.unlink) or (name, function) in (("file", os.unlink), ("dir", os.rmdir)):
                continue
            calls.append((name, refused(function, path)))
            if not (place / "full").exists():
                for moved in ("dir", "file"):
                    if (place / moved / "x").exists():
                        os.rename(place / moved, place / "full")
                        (place / "dir").mkdir(exist_ok=True)
    return calls


@case
def inotify(place):
    watch = libc.inotify_init1(os.O_NONBLOCK)
    checked(libc.inotify_add_watch(watch, os.fsencode(place), 0xFFF))
    (place / "file").write_text("x")
    os.rename(place / "file", place / "other")
    (place / "other").chmod(0o600)
    os.unlink(place / "other")
    (place / "dir").mkdir()
    events, at, found = os.read(watch, 1 << 16), 0, []
    while at < len(events):
        _, mask, _, length = struct.unpack_from("iIII", events, at)
        found.append((hex(mask), events[at + 16 : at + 16 + length].rstrip(b"\0")))
        at += 16 + length
    return found


@case
def two_processes_make_the_same_name(place):
    """Exactly one wins, each time."""
    wins = 0
    for number in range(100):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            other = pool.apply_async(made_first, (place / f"{number}",)) if number % 10 == 0 else None
            mine = made_first(place / f"{number}")
            wins += mine + (other.get() if other else 0)
    return wins


def made_first(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def answer(function, place):
    """What a case gave, as text that can be compared, from a process of its own."""

    def run(pipe):
        try:
            os.setsid()
            # A pool ends its processes by this.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.umask(0o022)
            place.mkdir()
            said = repr(function(place))
        except OSError as error:
            said = f"OSError {errno.errorcode.get(error.errno, error.errno)}"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        pipe.send(said.replace(str(place), "PLACE"))

    # Whose parent has ended is ours to wait for.
    checked(libc.prctl(PR_SET_CHILD_SUBREAPER, 1))
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=run, args=(theirs,))
    process.start()
    theirs.close()
    try:
        said = ours.recv() if ours.poll(60) else "no answer in 60 s"
    except EOFError:
        said = "ended without an answer"
    # Threads that wait for ever would be waited for.
    process.join(10)
    process.kill()
    process.join()
    # Nothing of it is left that has files open.
    try:
        os.killpg(process.pid, signal.SIGKILL)
        while os.waitpid(-process.pid, 0):
            pass
    except (ProcessLookupError, ChildProcessError):
        pass
    return said
