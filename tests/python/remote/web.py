#!/usr/bin/env python3
"""A small web server of files with what others do not let one choose: which validators its answers have, and whether it knows ranges.

    web.py [--validator strong|weak|modified|none] [--whole] DIRECTORY      says `listening on PORT` when it does

It keeps to RFC 9110: If-Match compares strongly, so that a weak ETag never matches; a range that cannot be is answered with 416. Objects are
replaced by renaming: an answer is of one object from its first byte to its last.
"""

import argparse
import hashlib
import os
import re
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PIECE = 1 << 22


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Small answers wait for nothing.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, *words):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def refuse(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def find(self, key):
        """An object: its length, how to read a part of it, what tells it from others, when it was changed. None if there is none."""
        directory = self.server.options.directory
        path = (directory / key).resolve()
        if not path.is_relative_to(directory) or not path.is_file():
            return None
        with open(path, "rb") as file:
            content, modified = memoryview(file.read()), int(os.fstat(file.fileno()).st_mtime)
        return len(content), lambda first, end: content[first:end], hashlib.sha256(content).hexdigest()[:32], modified

    def answer(self, body):
        options = self.server.options
        found = self.find(unquote(urlsplit(self.path).path).lstrip("/"))
        if found is None:
            return self.refuse(404)
        length, read, digest, modified = found
        tag = {"strong": f'"{digest}"', "weak": f'W/"{digest}"'}.get(options.validator)
        headers = {"Accept-Ranges": "none" if options.whole else "bytes", "Content-Type": "application/octet-stream"}
        if tag:
            headers["ETag"] = tag
        if options.validator != "none":
            headers["Last-Modified"] = formatdate(modified, usegmt=True)
        wanted = self.headers.get("If-Match")
        if wanted is not None and options.validator in ("strong", "weak") and wanted != "*":
            # A weak tag matches none.
            if options.validator == "weak" or tag not in [word.strip() for word in wanted.split(",")]:
                return self.refuse(412)
        since = self.headers.get("If-Unmodified-Since")
        if wanted is None and since is not None and options.validator != "none" and modified > parsedate_to_datetime(since).timestamp():
            return self.refuse(412)
        status, first, end = 200, 0, length
        range_ = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "").strip())
        if range_ and not options.whole and any(range_.groups()):
            begin, last = range_.groups()
            if begin:
                first, end = int(begin), min(int(last) + 1, length) if last else length
            else:
                first = max(length - int(last), 0)
            if first >= end:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{length}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            status = 206
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{length}"
        headers["Content-Length"] = str(end - first)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        while body and first < end:
            # Of an object of any size a piece at a time.
            piece = read(first, min(end, first + PIECE))
            self.wfile.write(piece)
            first += len(piece)
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, address):
        """Clients go away; that is no fault."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--validator", choices=["strong", "weak", "modified", "none"], default="strong")
    parser.add_argument("--whole", action="store_true", help="know no ranges")
    parser.add_argument("directory", type=lambda text: Path(text).resolve())
    options = parser.parse_args()
    server = Server(("127.0.0.1", 0), Handler)
    server.options = options
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
