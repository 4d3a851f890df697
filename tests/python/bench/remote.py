"""Remote frames, over a link of 1 Gbit/s and 30 ms to a server of S3, beside what others read there with, on the same link in the same run."""

import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import blosc2
import numpy as np

from mounts import is_mounted
from remote.mounting import RemoteMount, b2fuse, without_clouds
from remote.proxy import Proxy
from remote.rules import Rule
from remote.servers import BUCKET, RuleServer, S3sFs, Unavailable

from .data import CHUNKS, CHUNKSIZE, noise
from .harness import Case, Row, Skip, drop_caches, shell, timed

LATENCY, BANDWIDTH = 0.03, 125e6
# Which others read, at one or two round trips each; their time is multiplied.
OTHERS = 256
RANDOM = 100
MILLION = 1_000_000
# The same address for the proxy of all cases.
KEYS = {"sframe": "sframe.b2nd", "cframe": "cframe.b2nd"}


def frames(bench):
    """4096 chunks of 128 KiB of noise, some with some zeros in it, as an array, which alone python-blosc2 reads remotely."""

    def make(frame):
        rng = np.random.default_rng(9)
        values = np.frombuffer(b"".join(noise(rng, share=1 - 0.3 * (n % 7) / 7) for n in range(CHUNKS)), "u1")
        for path, contiguous in ((frame.sframe, False), (frame.cframe, True)):
            blosc2.asarray(
                values, chunks=(CHUNKSIZE,), blocks=(CHUNKSIZE // 4,), urlpath=str(path), contiguous=contiguous, mode="w", cparams={"clevel": 1, "typesize": 1}
            )  # fmt: skip

    return bench.data._made("remote-1", make)


def size_of(frame):
    return frame.cframe.stat().st_size


@contextmanager
def stored(bench, upload=True):
    """A server with the frame in both layouts, and the link to it."""
    frame = frames(bench)
    try:
        with S3sFs() as server, Proxy(server.address) as proxy:
            if upload:
                server.copy_in(frame.sframe, KEYS["sframe"])
                server.copy_in(frame.cframe, KEYS["cframe"])
            proxy.latency, proxy.down.bandwidth, proxy.up.bandwidth = LATENCY, BANDWIDTH, BANDWIDTH
            yield frame, server, proxy
    except Unavailable as why:
        raise Skip(str(why)) from why


def mount(bench, server, proxy, layout, *options):
    """Nothing that an earlier mount has read is known."""
    url, environment = server.url(KEYS[layout], via=proxy.address), server.environment(via=proxy.address)
    return RemoteMount(url, bench.point, ["--show", "sparse", *options], environment)


def link_time(nbytes):
    return nbytes / BANDWIDTH


def opening(bench):
    """Until the mount is there and one chunk is read, in round trips."""
    with stored(bench) as (frame, server, proxy):
        for _ in bench.rounds:
            for layout in KEYS:
                proxy.clear()
                began = time.perf_counter()
                with mount(bench, server, proxy, layout):
                    name = f"{int(bench.rng.integers(CHUNKS)):08X}.chunk"
                    (bench.point / name).read_bytes()
                    took = time.perf_counter() - began
                    bench.add(f"remote-open/{layout}/requests", len(proxy.requests))
                bench.add(f"remote-open/{layout}/trips", took / LATENCY)


def cat_all(point):
    shell("cat *.chunk >/dev/null", point)


def cat(bench):
    with stored(bench) as (frame, server, proxy):
        bench.sizes["others"] = OTHERS
        total = sum(path.stat().st_size for path in frame.sframe.glob("*.chunk"))
        for _ in bench.rounds:
            bench.add("remote-cat/link", link_time(total))
            for layout in KEYS:
                proxy.clear()
                with mount(bench, server, proxy, layout) as mounted:
                    bench.time(f"remote-cat/{layout}", lambda: cat_all(bench.point))
                    bench.add(f"remote-cat/{layout}/memory", mounted.memory() / 2**20)
                bench.add(f"remote-cat/{layout}/requests", len(proxy.requests))
            for tool, opened in (("rclone", rclone), ("s3fs", s3fs)):
                if shutil.which(tool) is None:
                    bench.note(tool, "not measured: it is not installed")
                    continue
                names = " ".join(f"{n:08X}.chunk" for n in bench.rng.choice(CHUNKS - OTHERS) + np.arange(OTHERS))
                with opened(bench, server, proxy) as point:
                    bench.add(f"remote-cat/{tool}", timed(lambda: shell(f"cat {names} >/dev/null", point)) * CHUNKS / OTHERS)
            bench.time("remote-cat/blosc2", lambda: lazily(server, proxy))


def lazily(server, proxy):
    """The library's own way: it reads lazily what is asked for, here all of it, as many chunks at a time as it does by default."""
    host, port = proxy.address
    options = {
        "key": server.key_id, "secret": server.secret,
        "client_kwargs": {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}, "config_kwargs": {"s3": {"addressing_style": "path"}},
    }  # fmt: skip
    program = f"import blosc2; a = blosc2.open('s3://{BUCKET}/{KEYS['cframe']}', lazy=True, storage_options={options!r}); assert a[:].nbytes == {CHUNKS * CHUNKSIZE}"
    done = subprocess.run([sys.executable, "-c", program], env=without_clouds(os.environ), capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"python-blosc2 does not read lazily: {done.stderr[-500:]}")


@contextmanager
def other_mount(bench, command, environment, log):
    """A tool's mount, in front; gone afterwards."""
    bench.point.mkdir(exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=without_clouds(os.environ) | environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        while not is_mounted(bench.point):
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
            raise Skip(f"{command[0]} does not mount: {Path(log).read_text()[-500:]}")
        yield bench.point
    finally:
        subprocess.run(["umount", "-l", bench.point], capture_output=True)
        process.terminate()
        process.wait()


@contextmanager
def rclone(bench, server, proxy):
    host, port = proxy.address
    settings = {
        "TYPE": "s3", "PROVIDER": "Other", "ACCESS_KEY_ID": server.key_id, "SECRET_ACCESS_KEY": server.secret, "ENDPOINT": f"http://{host}:{port}",
        "FORCE_PATH_STYLE": "true", "REGION": "us-east-1",
    }  # fmt: skip
    environment = {f"RCLONE_CONFIG_LINK_{name}": value for name, value in settings.items()} | {"RCLONE_CONFIG": "/dev/null"}
    command = ["rclone", "mount", "--read-only", f"link:{BUCKET}/{KEYS['sframe']}", bench.point]
    with other_mount(bench, command, environment, bench.point.with_name("rclone.log")) as point:
        yield point


@contextmanager
def s3fs(bench, server, proxy):
    host, port = proxy.address
    with tempfile.TemporaryDirectory() as directory:
        passwords = Path(directory, "passwords")
        passwords.touch(0o600)
        passwords.write_text(f"{server.key_id}:{server.secret}\n")
        options = f"url=http://{host}:{port},use_path_request_style,passwd_file={passwords},endpoint=us-east-1,ro"
        command = ["s3fs", "-f", f"{BUCKET}:/{KEYS['sframe']}", bench.point, "-o", options]
        with other_mount(bench, command, {}, bench.point.with_name("s3fs.log")) as point:
            yield point


def disk_cache(bench):
    """The second time, in a mount of its own."""
    with stored(bench) as (frame, server, proxy):
        cache = bench.data.root / "remote-disk-cache"
        for _ in bench.rounds:
            shutil.rmtree(cache, ignore_errors=True)
            options = ["--disk-cache", str(cache)]
            with mount(bench, server, proxy, "sframe", *options):
                cat_all(bench.point)
            for state in ("cold", "warm"):
                if state == "cold" and not bench.cold:
                    continue
                prepare = drop_caches if state == "cold" else (lambda: None)
                proxy.clear()
                with mount(bench, server, proxy, "sframe", *options):
                    prepare()
                    bench.time(f"remote-disk/{state}", lambda: cat_all(bench.point))
                bench.add(f"remote-disk/{state}/requests", len(proxy.requests))
                if state == "warm":
                    cat_all(frame.sframe)
                prepare()
                bench.time(f"remote-disk/native/{state}", lambda: cat_all(frame.sframe))
        shutil.rmtree(cache, ignore_errors=True)


def random(bench):
    with stored(bench) as (frame, server, proxy):
        for _ in bench.rounds:
            for layout in KEYS:
                with mount(bench, server, proxy, layout):
                    places = bench.rng.choice(CHUNKS, RANDOM, replace=False).tolist()
                    proxy.clear()

                    def reads():
                        return sum(len((bench.point / f"{n:08X}.chunk").read_bytes()) for n in places)

                    began = time.perf_counter()
                    nbytes = reads()
                    bench.add(f"remote-random/{layout}", time.perf_counter() - began)
                    bench.add(f"remote-random/{layout}/link", RANDOM * LATENCY + link_time(nbytes))
                    bench.add(f"remote-random/{layout}/requests", len(proxy.requests))
            # As many of one chunk, signed once.
            target = server.presigned(f"{KEYS['sframe']}/{places[0]:08X}.chunk", via=proxy.address)
            bench.time("remote-random/plain", lambda: plain_gets(proxy, target))


def plain_gets(proxy, target):
    """The same by one connection of Python's own."""
    connection = http.client.HTTPConnection(*proxy.address)
    for _ in range(RANDOM):
        connection.request("GET", target.removeprefix(f"http://{proxy.address[0]}:{proxy.address[1]}"))
        connection.getresponse().read()
    connection.close()


def upload(bench):
    """And back, as the other layout."""
    with stored(bench, upload=False) as (frame, server, proxy):
        environment = server.environment(via=proxy.address)
        for n in bench.rounds:
            bench.add("remote-convert/link", link_time(size_of(frame)))
            url = server.url(f"up-{n}.b2nd", via=proxy.address)
            bench.time("remote-convert/up", lambda: b2fuse("convert", frame.cframe, url, environment=environment, timeout=600))
            with bench.data.copies() as _:
                target = bench.data.root / "copies" / "down.b2nd"
                bench.time("remote-convert/down", lambda: b2fuse("convert", url, target, environment=environment, timeout=600))


def million(bench):
    """The index alone is fetched: 32 KiB here, for its chunks lie in order."""
    rule = Rule("many.b2nd", "sframe", MILLION, 1 << 20)
    try:
        with RuleServer(f"{rule.name}:{rule.layout}:{rule.count}:{rule.chunksize}") as server, Proxy(server.address, LATENCY, BANDWIDTH) as proxy:
            for _ in bench.rounds:
                proxy.clear()
                mounted = RemoteMount(server.url(rule.name, via=proxy.address), bench.point, [], server.environment(via=proxy.address))
                bench.time("remote-million", mounted.__enter__)
                with nullcontext(mounted):
                    bench.add("remote-million/requests", len(proxy.requests))
                    bench.add("remote-million/memory", mounted.memory() / 2**20)
                mounted.__exit__(None, None, None)
    except Unavailable as why:
        raise Skip(str(why)) from why


CASES = [
    Case(
        "remote-open", "a remote frame mounted, and one chunk of it read: 30 ms to the store", opening,
        [
            *(Row(f"open and read one chunk, {layout}", f"remote-open/{layout}/requests", at_most=most, unit="requests") for layout, most in (("sframe", 2), ("cframe", 4))),
            *(Row(f"the same, in times of 30 ms, {layout}", f"remote-open/{layout}/trips", unit="trips") for layout in KEYS),
        ],
        rounds=5, full=True,
    ),
    Case(
        "remote-cat", f"all of {CHUNKS} remote chunks of 128 KiB, 30 ms and 1 Gbit/s to the store, beside rclone, s3fs and python-blosc2", cat,
        [
            *(Row(f"all chunks, {layout}, over the link's own time", f"remote-cat/{layout}", "remote-cat/link", at_least=0.8) for layout in KEYS),
            *(Row(f"requests for them, {layout}", f"remote-cat/{layout}/requests", unit="requests") for layout in KEYS),
            *(Row(f"memory at its peak, {layout}", f"remote-cat/{layout}/memory", at_most=256, unit="MiB") for layout in KEYS),
            Row("all chunks, rclone mount ({others} read)", "remote-cat/sframe", "remote-cat/rclone", at_least=3),
            Row("all chunks, s3fs ({others} read)", "remote-cat/sframe", "remote-cat/s3fs"),
            Row("all of an array, python-blosc2's lazy reading", "remote-cat/cframe", "remote-cat/blosc2", at_least=5),
        ],
        rounds=2, full=True,
    ),
    Case(
        "remote-disk", "the same again with the disk cache, over the frame on disk", disk_cache,
        [
            *(Row(f"all chunks again, {state}", f"remote-disk/{state}", f"remote-disk/native/{state}", at_most=1.5) for state in ("cold", "warm")),
            Row("requests for them", "remote-disk/warm/requests", at_most=1, unit="requests"),
        ],
        rounds=3, full=True,
    ),
    Case(
        "remote-random", f"{RANDOM} random remote chunks, one client, over plain GETs of a kept connection", random,
        [
            *(Row(f"random chunks, {layout}", f"remote-random/{layout}", "remote-random/plain", at_most=1.1) for layout in KEYS),
            Row("plain GETs, over the link's own time", "remote-random/plain", "remote-random/sframe/link"),
            *(Row(f"requests for them, {layout}", f"remote-random/{layout}/requests", at_most=RANDOM, unit="requests") for layout in KEYS),
        ],
        rounds=3, full=True,
    ),
    Case(
        "remote-convert", "a frame uploaded, and downloaded again, over the link's own time", upload,
        [
            Row("upload", "remote-convert/up", "remote-convert/link", at_least=0.8),
            Row("download", "remote-convert/down", "remote-convert/link", at_least=0.8),
        ],
        rounds=3, full=True,
    ),
    Case(
        "remote-million", "a remote sframe of a million chunks, mounted", million,
        [
            Row("mount", "remote-million", at_most=1 + LATENCY),
            Row("requests for it", "remote-million/requests", at_most=1, unit="requests"),
            Row("memory", "remote-million/memory", at_most=256, unit="MiB"),
        ],
        rounds=3, full=True,
    ),
]  # fmt: skip
