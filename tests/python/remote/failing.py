"""Answers that are errors, that end too early, that are slow, or never come; writes; and secrets where they must not be."""

import errno
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from mounts import default_binary

from . import counting
from .mounting import RemoteMount, Wrong, expect, expect_bytes, read_all, run, taken_away, without_clouds
from .proxy import Fault

# Given with `-o timeout=`, in seconds; how much later an error may come, on a busy machine.
TIMEOUT, LATE = 2, 15
# Of a frame of 4 MB a part is in memory at most.
SMALL = ["--show", "sparse", "--cache-size", "1M"]


def through(server, proxy, sample, point, options=(), **words):
    """A mount of a sample, through the proxy."""
    return RemoteMount(url_of(server, sample, proxy.address), point, list(options), server.environment(via=proxy.address), **words)


def url_of(server, sample, via=None):
    """URLs of web servers have names as RFC 3986 wants them; s3:// and az:// have keys as they are."""
    return server.url(quote(sample.key) if server.kind == "http" else sample.key, via)


def some_of(every, fault):
    """A fault in one of so many answers, the first one of them."""
    seen = [0]

    def pick(request):
        seen[0] += 1
        return fault if seen[0] % every == 1 else None

    return pick


def expect_all(sample, show, point):
    expected = {name: data for name, data in sample.shown[show].items() if name != "sizes"}
    found = read_all(point, random.Random(1))
    expect("names", sorted(found), sorted(expected))
    for name, data in expected.items():
        expect_bytes(name, found[name], data)


def retried(server, proxy, sample, point, show, fault):
    """What goes away by asking again is not seen."""
    proxy.fault = some_of(3, fault)
    try:
        with through(server, proxy, sample, point, ["--show", show, "-o", "timeout=30"]):
            expect_all(sample, show, point)
    finally:
        proxy.fault = None
    if not proxy.requests:
        raise Wrong("nothing was asked for")


def never_wrong(server, proxy, sample, point, show, fault):
    """Whatever comes, bytes are right or there is an error."""
    expected = sample.shown[show]
    errors = right = 0
    try:
        with through(server, proxy, sample, point, ["--show", show, "-o", f"timeout={TIMEOUT}"]):
            proxy.fault = some_of(2, fault)
            for name in sorted(name for name in expected if name != "sizes"):
                try:
                    data = (point / name).read_bytes()
                except OSError as error:
                    errors += 1
                    expect(f"{name}: the error", errno.errorcode[error.errno], "EIO")
                    continue
                expect_bytes(name, data, expected[name])
                right += 1
            # After it all is well again.
            proxy.fault = None
            expect_all(sample, show, point)
    finally:
        proxy.fault = None
    if not right + errors:
        raise Wrong("nothing was read")


def away(server, proxy, sample, point, gone):
    """What is cached is read on; the rest fails with EIO when its time is over; and all is well when the server is back."""
    expected = sample.shown["sparse"]
    names = sorted(name for name in expected if name.endswith(".chunk"))
    with through(server, proxy, sample, point, [*SMALL, "-o", f"timeout={TIMEOUT},refresh=0"]):
        # Out of order, so that nothing is fetched ahead; an open file needs no look-up.
        cached = names[-1]
        expect_bytes(cached, (point / cached).read_bytes(), expected[cached])
        gone()
        try:
            began = time.monotonic()
            expect_bytes(f"{cached}, cached", (point / cached).read_bytes(), expected[cached])
            expect_bytes("the index file", (point / "chunks.b2frame").read_bytes(), expected["chunks.b2frame"])
            if time.monotonic() - began > TIMEOUT + LATE:
                raise Wrong(f"what is cached is read after {time.monotonic() - began:.1f} s")
            began = time.monotonic()
            try:
                (point / names[0]).read_bytes()
            except OSError as error:
                expect("the error while the server is away", errno.errorcode[error.errno], "EIO")
            else:
                raise Wrong(f"{names[0]} is read while the server is away")
            took = time.monotonic() - began
            if not TIMEOUT * 0.5 <= took <= TIMEOUT + LATE:
                raise Wrong(f"the error comes after {took:.1f} s, with timeout={TIMEOUT}")
        finally:
            proxy.back()
        expect_all(sample, "sparse", point)


def crowded(server, proxy, sample, point):
    """However many wait for a silent server, what is cached is read, and the mount can be asked."""
    expected = sample.shown["sparse"]
    names = sorted(name for name in expected if name.endswith(".chunk"))
    # Not one behind the other, which would have the store list them.
    cached, others = names[-1], names[:-1:3]
    with through(server, proxy, sample, point, [*SMALL, "-o", "timeout=60"]) as mount:
        expect_bytes(cached, (point / cached).read_bytes(), expected[cached])
        proxy.silent()
        readers = [threading.Thread(target=read_or_not, args=(point / name,)) for name in others]
        try:
            for reader in readers:
                reader.start()
            deadline = time.monotonic() + LATE
            while not has_more_threads(mount.daemon.pid):
                if time.monotonic() > deadline:
                    raise Wrong(f"{len(others)} readers wait on the event loops")
                time.sleep(0.005)
            began = time.monotonic()
            expect_bytes(f"{cached}, cached", (point / cached).read_bytes(), expected[cached])
            os.statvfs(point)
            if time.monotonic() - began > LATE:
                raise Wrong(f"what is cached is read after {time.monotonic() - began:.1f} s while {len(others)} wait")
        finally:
            proxy.back()
            for reader in readers:
                reader.join()
        expect_all(sample, "sparse", point)


def has_more_threads(pid):
    """Whether more requests wait than may do so on event loops."""
    return any(name.read_text().strip() == "b2fuse-far" for name in Path(f"/proc/{pid}/task").glob("*/comm"))


def read_or_not(path):
    try:
        path.read_bytes()
    except OSError:
        pass


def interrupted(server, proxy, sample, point):
    """A read that waits for a server can be ended."""
    name = sorted(name for name in sample.shown["sparse"] if name.endswith(".chunk"))[0]
    with through(server, proxy, sample, point, [*SMALL, "-o", "timeout=60"]):
        asked = len(proxy.requests)
        proxy.silent()
        try:
            reader = subprocess.Popen(["cat", point / name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            deadline = time.monotonic() + LATE
            while len(proxy.requests) == asked:
                if reader.poll() is not None:
                    raise Wrong("a read of a silent server ends")
                if time.monotonic() > deadline:
                    reader.kill()
                    raise Wrong("a read asks for nothing")
                time.sleep(0.005)
            reader.send_signal(signal.SIGINT)
            try:
                reader.wait(LATE)
            except subprocess.TimeoutExpired as hangs:
                reader.kill()
                raise Wrong(f"cat that waits for a silent server has not ended {LATE} s after SIGINT") from hangs
        finally:
            proxy.back()
        expect_all(sample, "sparse", point)


def unmounted_while_silent(server, proxy, sample, point):
    """A mount of a silent server can be unmounted."""
    with through(server, proxy, sample, point, ["--show", "sparse", "-o", f"timeout={TIMEOUT}"]) as mount:
        proxy.silent()
        try:
            began = time.monotonic()
            mount.umount()
            if time.monotonic() - began > TIMEOUT + LATE:
                raise Wrong(f"umount takes {time.monotonic() - began:.0f} s while the server is silent")
        finally:
            proxy.back()


def ended_while_opening(server, proxy, sample, point):
    """A signal ends a mount whose server is silent before it is there, in front and in the background."""
    environment = without_clouds(os.environ) | server.environment(via=proxy.address)
    point.mkdir(exist_ok=True)
    url = url_of(server, sample, proxy.address)
    for words, number in ((["-f"], signal.SIGTERM), ([], signal.SIGINT)):
        proxy.silent()
        try:
            asked = len(proxy.requests)
            # As in a terminal, all processes of the group get the signal.
            command = [default_binary(), "mount", *words, "-o", "timeout=60", url, str(point)]
            mount = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
            while len(proxy.requests) == asked:
                if mount.poll() is not None:
                    raise Wrong(f"a mount of a silent server ends: {mount.stdout.read()!r}")
                time.sleep(0.005)
            os.killpg(mount.pid, number)
            began = time.monotonic()
            try:
                said = mount.communicate(timeout=LATE)[0]
            except subprocess.TimeoutExpired as hangs:
                os.killpg(mount.pid, signal.SIGKILL)
                raise Wrong(f"a mount that is being opened has not ended {LATE} s after {number.name}") from hangs
            if time.monotonic() - began > 2:
                raise Wrong(f"a mount that is being opened ends {time.monotonic() - began:.1f} s after {number.name}")
            if mount.returncode == 0 or b"panicked" in said:
                raise Wrong(f"exit code {mount.returncode}: {said!r}")
        finally:
            proxy.back()


def no_mount(server, proxy, sample, point):
    """Without a server the mount fails, in time and in one line; so it does without the frame."""
    environment = server.environment(via=proxy.address)
    point.mkdir(exist_ok=True)
    url = url_of(server, sample, proxy.address)
    proxy.away()
    try:
        began = time.monotonic()
        done = run("mount", "-o", f"timeout={TIMEOUT}", url, point, environment=environment)
        took = time.monotonic() - began
    finally:
        proxy.back()
    expect("exit code without a server", done.returncode, 1)
    if took > TIMEOUT + LATE:
        raise Wrong(f"mount without a server fails after {took:.0f} s")
    one_line(done)
    done = run("mount", server.url("no such frame", via=proxy.address), point, environment=environment)
    expect("exit code without such a frame", done.returncode, 1)
    one_line(done)


def one_line(done):
    text = done.stderr.decode(errors="replace").strip()
    if not text or len(text.splitlines()) > 2 or "panicked" in text:
        raise Wrong(f"an error that is not one line (and a hint): {text!r}")


def deleted(server, sample, point):
    """The log tells once of an object that is deleted under a mount, however often it is read."""
    key = f"{sample.key}/00000097.chunk" if sample.is_sparse else sample.key
    offset = 0x97 * counting.CHUNKSIZE
    deleted_while_read(server, url_of(server, sample), ["--show", "raw"], f"{sample.path.name}.raw", (key, offset), point, "EIO")


def deleted_in_a_tree(server, point):
    """The same of a file in a prefix."""
    server.put("tree/notes.bin", bytes(4 << 20))
    deleted_while_read(server, server.url("tree"), [], "notes.bin", ("tree/notes.bin", 3 << 20), point, "ESTALE")


def deleted_while_read(server, url, options, name, lost, point, error):
    key, offset = lost
    with RemoteMount(url, point, options, server.environment()) as mount:
        file = os.open(point / name, os.O_RDONLY)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            server.delete(key)
            for _ in range(4):
                try:
                    os.pread(file, 4096, offset)
                except OSError as refused:
                    expect("the error", errno.errorcode[refused.errno], error)
                else:
                    raise Wrong("what was deleted is read")
        finally:
            os.close(file)
        deadline = time.monotonic() + LATE
        while "deleted" not in mount.said() and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = [line for line in mount.said().splitlines() if "mounted" not in line]
    if len(lines) != 1 or "deleted" not in lines[0] or key not in lines[0]:
        raise Wrong(f"expected one line, of {key}: {mount.said()}")


def read_only(server, sample, point):
    """Every call that would write is refused."""
    url, environment = url_of(server, sample), server.environment()
    with RemoteMount(url, point, ["--show", "sparse"], environment):
        name = sorted(path for path in point.iterdir() if path.suffix == ".chunk")[0]
        calls = {
            "open for writing": lambda: os.open(name, os.O_WRONLY),
            "open to append": lambda: os.open(name, os.O_RDWR | os.O_APPEND),
            "create": lambda: os.open(point / "000000FF.chunk", os.O_CREAT | os.O_WRONLY),
            "truncate": lambda: os.truncate(name, 0),
            "unlink": lambda: os.unlink(name),
            "rename": lambda: os.rename(name, point / "000000FE.chunk"),
            "mkdir": lambda: os.mkdir(point / "x"),
            "symlink": lambda: os.symlink("x", point / "y"),
            "link": lambda: os.link(name, point / "000000FD.chunk"),
            "chmod": lambda: os.chmod(name, 0o600),
            "utime": lambda: os.utime(name),
            "setxattr": lambda: os.setxattr(name, "user.x", b"y"),
        }
        for what, call in calls.items():
            try:
                call()
            except OSError as error:
                expect(what, errno.errorcode[error.errno], "EROFS")
            else:
                raise Wrong(f"{what} is not refused")
    with RemoteMount(url, point, ["--show", "contiguous"], environment):
        try:
            os.open(point / sample.path.name, os.O_RDWR)
        except OSError as error:
            expect("open for writing of the one file", errno.errorcode[error.errno], "EROFS")
        else:
            raise Wrong("open for writing of the one file is not refused")


# ---- Secrets

# All kinds of failures, each of which leads to messages.
TELLING = [
    Fault(status=403, body=b"denied"), Fault(status=404), Fault(status=400), Fault(status=412), Fault(status=500), Fault(cut=10), Fault(reset=True),
    Fault(status=301, headers={"Location": "/elsewhere"}),
]  # fmt: skip


def forms(secret):
    """How a secret may be written."""
    return {secret, quote(secret, safe=""), quote(secret)}


def look(what, text, secrets):
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    for secret in secrets:
        for form in forms(secret):
            if form in text:
                at = text.index(form)
                shown = text[max(at - 100, 0) : at] + "<SECRET>" + text[at + len(form) : at + len(form) + 100]
                raise Wrong(f"{what} has a secret: ...{shown}...")


def daemons(point):
    """The processes that serve a mount, by what they were called with."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(str(point)) in (directory / "cmdline").read_bytes():
                yield directory
        except OSError:
            pass


def hidden(url, environment, secrets, proxy, sample, point, background, telling=TELLING):
    """Secrets in nothing that others see of a mount: log, process list, table of mounts, what commands say, also of failures."""
    point.mkdir(exist_ok=True)
    log = point.with_name("secrets.log")
    words = ["--show", "sparse", "-o", "timeout=1,refresh=0", "--log-level", "trace"]
    expected = sample.shown["sparse"]
    mount = None
    try:
        if background:
            # Lists of mounts may call it by its URL.
            named = url.replace(",", "\\,")
            done = run("mount", *words, "-o", f"fsname={named}", "--log-file", log, url, point, environment=environment)
            look("what mount says", done.stdout + done.stderr, secrets)
            expect(f"mount: {done.stderr!r}", done.returncode, 0)
        else:
            mount = RemoteMount(url, point, words[:-2], environment, level="trace").mount()
        found = list(daemons(point))
        if not found:
            raise Wrong("no daemon is found")
        for directory in found:
            look(f"the command line of {(directory / 'comm').read_text().strip()}", (directory / "cmdline").read_bytes(), secrets)
        look("the table of mounts", Path("/proc/self/mountinfo").read_text(), secrets)
        names = sorted(expected.keys() - {"sizes"})
        expect_bytes(names[0], (point / names[0]).read_bytes(), expected[names[0]])
        for number, fault in enumerate(telling, 1):
            proxy.fault = lambda request, fault=fault: fault
            try:
                (point / names[number]).read_bytes()
            except OSError:
                pass
            done = run("info", "-o", "timeout=1", url, environment=environment)
            look(f"what info says of {fault}", done.stdout + done.stderr, secrets)
        proxy.away()
        # What a program reads, what a check finds, and a scheme that is spelled wrong.
        wrong = url.replace("://", "x://", 1)
        try:
            for words in (["info"], ["info", "--json"], ["check"], ["check", "--json"], ["ls", "--json"]):
                for name in (url, wrong):
                    options = ["-o", "timeout=0.2"] if name == url else []
                    done = run(*words, *options, name, environment=environment)
                    look(f"what {' '.join(words)} says without a server", done.stdout + done.stderr, secrets)
                    if not done.stderr:
                        raise Wrong(f"{' '.join(words)} says nothing without a server")
        finally:
            proxy.back()
            proxy.fault = None
    finally:
        proxy.fault = None
        if mount:
            mount.__exit__(None, None, None)
        else:
            taken_away(point)
    text = (mount.log if mount else log).read_text(errors="replace")
    if not text:
        raise Wrong("the log is empty")
    look("the log", text, secrets)


def secrets_of_query(url):
    """The values of a query that are long enough to be secrets."""
    return [value for _, value in parse_qsl(urlsplit(url).query) if len(value) > 12 and not re.fullmatch(r"[0-9TZ]+|AWS4-HMAC-SHA256", value)]
