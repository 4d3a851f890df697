#!/usr/bin/env python3
"""A server that sends its answer a byte at a time: -o timeout=3 must end the wait, for the body of an object and for an error.
Exit code 0: it ends within 60 s; 1: it does not."""

import os
import re
import socket
import subprocess
import sys
import threading
import time

BINARY = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse"))
LENGTH = 120000


def serve(connection, is_error):
    try:
        while True:
            head = b""
            while b"\r\n\r\n" not in head:
                data = connection.recv(65536)
                if not data:
                    return
                head += data
            if is_error:
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % LENGTH)
                first, last = 0, LENGTH - 1
            elif head.startswith(b"HEAD"):
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nAccept-Ranges: bytes\r\nETag: "e"\r\n\r\n' % LENGTH)
                continue
            else:
                wanted = re.search(rb"(?i)range: bytes=(\d+)-(\d+)", head)
                first, last = (int(wanted[1]), min(int(wanted[2]), LENGTH - 1)) if wanted else (0, LENGTH - 1)
                line = b'HTTP/1.1 206 P\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\nETag: "e"\r\n\r\n'
                connection.sendall(line % (last - first + 1, first, last, LENGTH))
            for _ in range(last - first + 1):
                connection.sendall(b"\0")
                time.sleep(0.3)
    except OSError:
        pass


def accept(listener, is_error):
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0], is_error), daemon=True).start()


failed = 0
for is_error in (False, True):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(20)
    threading.Thread(target=accept, args=(listener, is_error), daemon=True).start()
    began = time.monotonic()
    info = subprocess.Popen([BINARY, "info", "-o", "timeout=3", f"http://127.0.0.1:{listener.getsockname()[1]}/x.b2frame"])
    try:
        info.wait(60)
        print(f"ended after {time.monotonic() - began:.1f} s")
        failed |= info.returncode != 1
    except subprocess.TimeoutExpired:
        print("still waiting after 60 s, with timeout=3")
        info.kill()
        info.wait()
        failed = 1
sys.exit(failed)
