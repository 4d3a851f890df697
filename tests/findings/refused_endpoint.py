#!/usr/bin/env python3
"""An endpoint that refuses connections: `mount` must fail at once, in one line. A server that is silent: `mount` says so while it waits.
Exit code 0: both are so."""

import os
import socket
import subprocess
import sys
import tempfile
import time

BINARY = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse"))
# Of a machine under load; a request that is retried takes three quarters of the timeout.
TIMEOUT, SOON = 120, 45
# No name server is asked: a part of a name has 63 characters at most.
NAMELESS = "x" * 64

point = tempfile.mkdtemp()
environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
failed = 0


def wrong(text):
    global failed
    failed = 1
    print(text)


def mount(url, *options, timeout):
    command = [BINARY, "mount", "-o", ",".join((f"timeout={timeout}", *options)), url, point]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


try:
    with socket.socket() as free:
        # Bound and not listening: connections are refused, and nobody else takes the port.
        free.bind(("127.0.0.1", 0))
        there = f"http://127.0.0.1:{free.getsockname()[1]}"
        cases = [(f"{there}/x.b2nd", ()), ("s3://bucket/x.b2nd", (f"endpoint={there}", "anonymous")), (f"http://{NAMELESS}/x.b2nd", ())]
        for url, options in cases:
            began = time.monotonic()
            refused = mount(url, *options, timeout=TIMEOUT)
            said = refused.communicate()[1]
            took = time.monotonic() - began
            print(f"{took:.1f} s: {said.strip()}")
            if refused.returncode != 1 or took > SOON or len(said.splitlines()) != 1 or "cannot be reached" not in said:
                wrong(f"{url}: exit code {refused.returncode} after {took:.1f} s")

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(20)
        waiting = mount(f"http://127.0.0.1:{silent.getsockname()[1]}/x.b2nd", timeout=10)
        first = waiting.stderr.readline()
        print(first.strip())
        if "no response yet" not in first or waiting.poll() is not None:
            wrong("it says nothing while it waits")
        rest = waiting.communicate()[1]
        if waiting.returncode != 1 or "no response yet" in rest:
            wrong(f"exit code {waiting.returncode}: {rest!r}")
finally:
    os.rmdir(point)
sys.exit(failed)
