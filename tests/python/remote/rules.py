#!/usr/bin/env python3
"""A server of frames that nobody has: each is a rule that says which bytes are where, however large the frame.

    rules.py big:cframe:8192:134217728 many:sframe:1000000:1048576       says `listening on PORT` when it does

A frame is an array of 64-bit integers, of so many chunks of so many bytes; each item is the number of its chunk, stored without compression.
It is there for S3 without a signature (/bucket/NAME, with lists), which is HTTP too.
"""

import argparse
import re
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import blosc2
import numpy as np

# As a script, and as a module of the tests.
try:
    from .web import Handler, Server
except ImportError:
    from web import Handler, Server

HEAD = 32
BUCKET = "bucket"
TIME = 1_750_000_000


@dataclass(frozen=True)
class Rule:
    """A frame; positions are of bytes."""

    name: str
    layout: str
    count: int
    chunksize: int

    @property
    def items(self):
        return self.chunksize // 8

    @property
    def cbytes(self):
        """Of a chunk."""
        return HEAD + self.chunksize

    @cached_property
    def blocksize(self):
        return min(self.chunksize, 1 << 18)

    @cached_property
    def parts(self):
        """Header, and index with trailer: what the library writes for an array of zeros, with another index."""
        # A chunk more or less than the memory of this machine: it is of zeros.
        array = blosc2.zeros((self.count * self.items,), dtype="<i8", chunks=(self.items,), blocks=(self.blocksize // 8,), contiguous=True)
        data = array.to_cframe()
        header, trailer = bytearray(data[: int.from_bytes(data[11:15], "big")]), data[-int.from_bytes(data[-22:-18], "big") :]
        numbers = np.arange(self.count, dtype="<i8")
        index = blosc2.compress2(numbers * self.cbytes if self.layout == "cframe" else numbers, typesize=8, codec=blosc2.Codec.BLOSCLZ)
        total = self.count * self.cbytes
        header[16:24] = (len(header) + (total if self.layout == "cframe" else 0) + len(index) + len(trailer)).to_bytes(8, "big")
        header[39:47] = total.to_bytes(8, "big")
        # The kind of layout, as the library has it: 1 for a directory.
        if self.layout == "sframe":
            header[FRAME_TYPE] |= 1
        return bytes(header), index + trailer

    @cached_property
    def head(self):
        """What every chunk begins with."""
        data = np.random.default_rng(0).bytes(1 << 19)
        head = bytearray(blosc2.compress2(data, typesize=8, clevel=0)[:HEAD])
        for at, value in ((4, self.chunksize), (8, self.blocksize), (12, self.cbytes)):
            head[at : at + 4] = value.to_bytes(4, "little")
        return bytes(head)

    def chunk(self, number, first, end):
        """Some bytes of a chunk."""
        data = self.head[first:end]
        begin, end = max(first - HEAD, 0), max(end - HEAD, 0)
        if begin < end:
            word = number.to_bytes(8, "little")
            at = begin % 8
            data += (word * ((end - begin) // 8 + 2))[at : at + end - begin]
        return data

    # ---- The one object of a cframe

    @property
    def length(self):
        header, rest = self.parts
        return len(header) + self.count * self.cbytes + len(rest)

    def read(self, first, end):
        header, rest = self.parts
        data, at = [header[first:end]], max(first, len(header))
        chunks_end = len(header) + self.count * self.cbytes
        while at < min(end, chunks_end):
            number, offset = divmod(at - len(header), self.cbytes)
            piece = self.chunk(number, offset, min(self.cbytes, offset + end - at))
            data.append(piece)
            at += len(piece)
        data.append(rest[max(at - chunks_end, 0) : max(end - chunks_end, 0)])
        return b"".join(data)

    # ---- The objects of an sframe

    @property
    def index_file(self):
        header, rest = self.parts
        return header + rest

    def object(self, name):
        """Length, and how to read, of an object by its name; None if there is none."""
        if self.layout == "cframe":
            return (self.length, self.read) if not name else None
        if name == "chunks.b2frame":
            return len(self.index_file), lambda first, end: self.index_file[first:end]
        match = re.fullmatch(r"([0-9A-F]{8})\.chunk", name)
        if match and int(match.group(1), 16) < self.count:
            number = int(match.group(1), 16)
            return self.cbytes, lambda first, end: self.chunk(number, first, end)
        return None

    def names_after(self, name, most):
        """Some names with their lengths, in the order of a list."""
        if name >= "chunks.b2frame":
            return []
        first = int(name[:8], 16) + 1 if name else 0
        found = [(f"{n:08X}.chunk", self.cbytes) for n in range(first, min(first + most, self.count))]
        if len(found) < most:
            found.append(("chunks.b2frame", len(self.index_file)))
        return found


# In a frame's header: the byte of its kind.
FRAME_TYPE = 26


class RuleHandler(Handler):
    def find(self, key):
        key = key.removeprefix(f"{BUCKET}/")
        name, _, rest = key.partition("/")
        rule = self.server.rules.get(name)
        found = rule and rule.object(rest)
        return found and (*found, f"rule-{name}-{rest}", TIME)

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if query.get("list-type") == "2":
            return self.list(query)
        self.answer(body=True)

    def list(self, query):
        """The names of one frame."""
        prefix, most = query.get("prefix", ""), min(int(query.get("max-keys", 1000)), 1000)
        name, _, rest = prefix.partition("/")
        rule = self.server.rules.get(name)
        after = (query.get("continuation-token") or query.get("start-after") or "").removeprefix(f"{name}/")
        found = rule.names_after(after, most) if rule and rule.layout == "sframe" and not rest else []
        entries = "".join(
            f"<Contents><Key>{escape(f'{name}/{key}')}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;rule-{escape(f'{name}-{key}')}&quot;</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, size in found
        )
        more = bool(found) and found[-1][0] != "chunks.b2frame"
        token = f"<NextContinuationToken>{found[-1][0]}</NextContinuationToken>" if more else ""
        text = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{token}{entries}</ListBucketResult>"
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.wfile.flush()


def rule(text):
    name, layout, count, chunksize = text.split(":")
    return Rule(name, layout, int(count), int(chunksize))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("rules", nargs="+", type=rule, metavar="NAME:LAYOUT:COUNT:CHUNKSIZE")
    rules = parser.parse_args().rules
    blosc2.set_nthreads(1)
    for made in rules:
        # Before anybody waits for it.
        assert made.parts and made.head
    server = Server(("127.0.0.1", 0), RuleHandler)
    server.options = argparse.Namespace(validator="strong", whole=False)
    server.rules = {made.name: made for made in rules}
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
