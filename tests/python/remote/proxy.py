"""An HTTP proxy of the tests' own, in front of one server: it counts requests, makes the way to the server long and narrow, and spoils answers.

It passes every request on as it came, so that signatures, which are of the host in it too, stay valid. It runs in a thread of the test.

    with Proxy(server.address, latency=0.03, bandwidth=125e6) as proxy:
        environment = server.environment(via=proxy.address)
        proxy.clear()
        ...
        proxy.gets("/bucket/a.b2frame/")      # what was asked for

- `latency` is from a request's arrival to the first byte of its answer, at least: scheduled, without a thread that sleeps.
- `bandwidth`, in bytes a second, is shared by all answers; the bodies of requests share another link of the same width.
- `fault(request)` gives a `Fault` for this request, or None.
- `between(request)` is called before a request is passed on, while no other is under way: to change an object between any two requests.
- `away()` refuses connections, as a server that is gone does; `silent()` takes them and says nothing; `back()` ends both.
"""

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

PIECE = 1 << 17
# What a link carries at once, however narrow: bytes that are sent late are sent together.
BURST = 0.002


@dataclass
class Request:
    """What was asked, and what became of it."""

    method: str
    path: str
    query: str
    headers: dict
    number: int
    began: float
    ended: float = None
    status: int = None
    # Of the answer's body, as far as it was passed on.
    sent: int = 0
    # Whether it gets no answer.
    hangs: bool = False
    # How many were under way with it, itself included.
    together: int = 0

    @property
    def range(self):
        return self.headers.get("range", "").removeprefix("bytes=")

    @property
    def is_list(self):
        """Whether it asks for names, of S3 or of Azure."""
        words = self.query.split("&")
        return self.method == "GET" and any(word in ("list-type=2", "comp=list") for word in words)

    def __str__(self):
        words = [self.method, self.path + (f"?{self.query}" if self.query else ""), self.range and f"[{self.range}]", str(self.status)]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Fault:
    """What happens to one answer. Places are of bytes of its body."""

    # Instead of the server's own, which is not asked.
    status: int | None = None
    body: bytes = b""
    headers: dict = field(default_factory=dict)
    # The connection is reset before the answer begins.
    reset: bool = False
    # After so many bytes the connection is closed in order.
    cut: int | None = None
    # The same with a length that says that this was all.
    shorten: int | None = None
    # After so many bytes the connection is reset.
    tear: int | None = None
    # One bit of this byte is another.
    flip: int | None = None
    # Seconds before the answer, more than the way takes.
    delay: float = 0.0
    # Bytes a second, of this answer alone.
    pace: float | None = None
    # By path: the ETag and the time that this answer has, which are those of the first one. No condition reaches the server.
    tags: dict | None = None
    # Nothing is answered until the proxy ends or the client goes away.
    hang: bool = False


class Link:
    """What all share that goes one way."""

    def __init__(self, bandwidth):
        self.bandwidth, self.free = bandwidth, 0.0

    async def carry(self, count):
        """Returns when so many bytes have passed."""
        if not self.bandwidth:
            return
        now = time.monotonic()
        self.free = max(self.free, now - BURST) + count / self.bandwidth
        if self.free > now:
            await asyncio.sleep(self.free - now)


class Closed(Exception):
    """The other end is gone."""


class Proxy:
    def __init__(self, upstream, latency=0.0, bandwidth=None, fault=None, between=None):
        self.upstream, self.latency, self.fault, self.between = upstream, latency, fault, between
        self.down, self.up = Link(bandwidth), Link(bandwidth)
        self.port = None
        self.requests = []
        self.under_way = 0
        self.is_silent = False
        self.problems = []

    # ---- Its life

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.connections = set()
        self.call(self.listen())
        return self

    def __exit__(self, kind, error, trace):
        self.call(self.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        if self.problems and kind is None:
            raise self.problems[0]

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def listen(self):
        self.turn, self.speaking = asyncio.Lock(), asyncio.Event()
        self.speaking.set()
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port or 0, limit=1 << 20, backlog=512)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self):
        self.server.close()
        for task in list(self.connections):
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)
        await self.server.wait_closed()

    def away(self):
        self.call(self.stop())

    def silent(self):
        self.loop.call_soon_threadsafe(self.speaking.clear)

    def back(self):
        if self.server.is_serving():
            self.loop.call_soon_threadsafe(self.speaking.set)
        else:
            self.call(self.listen())

    @contextlib.contextmanager
    def slower(self, latency):
        """The way is at least so long, for some time."""
        before, self.latency = self.latency, max(self.latency, latency)
        try:
            yield
        finally:
            self.latency = before

    @property
    def address(self):
        return ("127.0.0.1", self.port)

    # ---- What was asked

    def settle(self):
        """Returns when the server has done what it was asked for, also by who is gone."""
        deadline = time.monotonic() + 60
        while not all(request.ended or request.hangs for request in self.requests):
            if time.monotonic() > deadline:
                raise TimeoutError("the server does not answer")
            time.sleep(0.005)

    def clear(self):
        self.requests = []

    def gets(self, prefix="/"):
        """The objects, or parts of objects, that were asked for, without listings."""
        return [request for request in self.requests if request.method == "GET" and not request.is_list and request.path.startswith(prefix)]

    def lists(self):
        return [request for request in self.requests if request.is_list]

    def others(self):
        return [request for request in self.requests if request.method != "GET"]

    # ---- One connection

    async def serve(self, reader, writer):
        task = asyncio.current_task()
        self.connections.add(task)
        behind = None
        try:
            while True:
                head = await self.head(reader)
                if head is None:
                    break
                if behind is None:
                    behind = await asyncio.open_connection(*self.upstream, limit=1 << 20)
                if not await self.exchange(head, reader, writer, behind):
                    break
        except Ended:
            pass
        except (Closed, ConnectionError, asyncio.IncompleteReadError, TimeoutError, OSError):
            # Who went away knows it.
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
        except Exception as problem:
            self.problems.append(problem)
            writer.transport.abort()
        finally:
            self.connections.discard(task)
            for end in (writer, behind and behind[1]):
                if end:
                    end.close()

    @staticmethod
    async def head(reader):
        """The first lines up to an empty one, as they came; None at an end."""
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise Closed from end
            return None

    async def exchange(self, head, reader, writer, behind):
        """One request and its answer; whether another may follow."""
        first, headers = parse(head)
        method, target = first.split(" ")[:2]
        url = urlsplit(target)
        request = Request(method, unquote(url.path), url.query, headers, len(self.requests), time.monotonic())
        self.requests.append(request)
        async with self.turn if self.between else contextlib.nullcontext():
            if self.between:
                # It may talk to the server, and may wait for it.
                await self.loop.run_in_executor(None, self.between, request)
            fault = (self.fault and self.fault(request)) or Fault()
            self.under_way += 1
            request.together = self.under_way
            try:
                return await self.answer(request, fault, head, reader, writer, behind)
            finally:
                request.ended = time.monotonic()
                self.under_way -= 1

    async def answer(self, request, fault, head, reader, writer, behind):
        due = request.began + self.latency + fault.delay
        await self.speaking.wait()
        if fault.hang:
            request.hangs = True
            await asyncio.Event().wait()
        if fault.status is not None:
            # What the request brings along is taken.
            await self.pass_body(reader, None, framing(request.headers, request.method, None), self.up)
            request.status = fault.status
            await until(due)
            headers = {"Content-Length": len(fault.body), "Content-Type": "text/plain", **fault.headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {fault.status} Fault\r\n{lines}\r\n".encode() + (b"" if request.method == "HEAD" else fault.body))
            await writer.drain()
            return True
        reader_behind, writer_behind = behind
        if fault.tags is not None:
            head = without(without(head, "if-match"), "if-unmodified-since")
        writer_behind.write(head)
        if request.headers.get("expect", "").lower() != "100-continue":
            await self.pass_body(reader, writer_behind, framing(request.headers, request.method, None), self.up)
        await writer_behind.drain()
        while True:
            answer = await self.head(reader_behind)
            if answer is None:
                raise Closed
            first, headers = parse(answer)
            status = int(first.split(" ")[1])
            if status >= 200:
                break
            writer.write(answer)
            if status == 100:
                await self.pass_body(reader, writer_behind, framing(request.headers, request.method, None), self.up)
        request.status = status
        await until(due)
        if fault.reset:
            reset(writer)
            return False
        shape = framing(headers, request.method, status)
        if fault.tags is not None:
            before = fault.tags.setdefault(request.path, headers)
            for name in {"etag", "last-modified"} & headers.keys():
                answer = with_header(without(answer, name), f"{name}: {before[name]}")
        if fault.shorten is not None and isinstance(shape, int):
            answer = with_header(without(answer, "content-length"), f"Content-Length: {min(shape, fault.shorten)}")
        writer.write(answer)
        await self.pass_body(reader_behind, writer, shape, self.down, fault, request)
        await writer.drain()
        # HTTP/1.0 ends with each answer, unless it says otherwise.
        stays = headers.get("connection", "").lower()
        return shape != "end" and stays != "close" and not (first.startswith("HTTP/1.0") and stays != "keep-alive")

    async def pass_body(self, source, target, shape, link, fault=None, request=None):
        """A body from one end to the other, as its head says that it is framed."""
        if shape == 0:
            return
        if shape == "chunked":
            while True:
                line = await source.readuntil(b"\r\n")
                size = int(line.split(b";")[0], 16)
                piece = line + await source.readexactly(size + 2)
                await self.pass_piece(piece, target, link, fault, request)
                if size == 0:
                    return
        left = shape if shape != "end" else float("inf")
        while left:
            piece = await source.read(int(min(left, PIECE)))
            if not piece:
                if shape == "end":
                    return
                raise Closed
            left -= len(piece)
            if not await self.pass_piece(piece, target, link, fault, request):
                return

    async def pass_piece(self, piece, target, link, fault, request):
        """Some bytes, slowed and spoiled; whether the rest is to follow."""
        if target is None:
            return True
        begin = request.sent if request else 0
        stop = None
        if fault:
            if fault.flip is not None and begin <= fault.flip < begin + len(piece):
                at = fault.flip - begin
                piece = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
            ends = [end for end in (fault.cut, fault.tear, fault.shorten) if end is not None]
            stop = min(ends) if ends else None
            if stop is not None and begin + len(piece) >= stop:
                piece = piece[: stop - begin]
            else:
                stop = None
        await link.carry(len(piece))
        if fault and fault.pace:
            for at in range(0, len(piece), 4096):
                await asyncio.sleep(len(piece[at : at + 4096]) / fault.pace)
                target.write(piece[at : at + 4096])
                request.sent += len(piece[at : at + 4096])
        else:
            target.write(piece)
            if request:
                request.sent += len(piece)
        await target.drain()
        if stop is not None:
            if fault.tear is not None:
                reset(target)
            raise Closed if fault.tear is not None else Ended
        return True


class Ended(Closed):
    """The proxy itself ends a connection, in order."""


def parse(head):
    """The first line, and headers by their names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines if line)
    return first, {name.lower(): value.strip() for name, value in pairs}


def framing(headers, method, status):
    """How long a body is, or how its end is found: a number, "chunked" or "end" (of the connection)."""
    if status is not None and (method == "HEAD" or status in (204, 304)):
        return 0
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return "chunked"
    if "content-length" in headers:
        return int(headers["content-length"])
    return 0 if status is None else "end"


def without(head, name):
    """A head that lacks a header."""
    lines = head.decode("latin-1").split("\r\n")
    return "\r\n".join(line for line in lines if not line.lower().startswith(f"{name}:")).encode("latin-1")


def with_header(head, line):
    return head[:-2] + f"{line}\r\n\r\n".encode("latin-1")


async def until(due):
    wait = due - time.monotonic()
    if wait > 0:
        await asyncio.sleep(wait)


def reset(writer):
    """As a machine does that has lost the connection: nothing that waits to be sent is."""
    import socket
    import struct

    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
