"""Processes that do the same in a mount and in a native directory, and what they put there. For tree_lives.py."""

import gc
import mmap
import multiprocessing
import os
import random

import blosc2
import numpy as np

PATIENCE = 120  # seconds until a call is taken for one that hangs
NATIVE, VIEW = 0, 1
NEW = os.O_CREAT | os.O_RDWR


class Wrong(Exception):
    """A difference from the native directory."""


def new_frame(dice, kind):
    rng = np.random.default_rng(dice.randrange(1 << 30))
    if kind == "plain":  # all of one length
        return blosc2.SChunk(chunksize=800, contiguous=True, data=rng.bytes(800), cparams={"clevel": 0}).to_cframe()
    schunk = blosc2.SChunk(chunksize=8000, contiguous=True, data=rng.integers(0, 9, 1000 * dice.randrange(1, 6)), cparams={"nthreads": 1})
    schunk.vlmeta["life"] = int(rng.integers(1 << 30))
    if kind == "holes":
        schunk.append_data(np.arange(1000))
        schunk.update_data(0, rng.random(1000), True)
        schunk.delete_chunk(1)
    return schunk.to_cframe()


PLAIN = len(new_frame(random.Random(0), "plain"))


def is_frame(data):
    return data[2:9] == b"b2frame" and int.from_bytes(data[16:24], "big") == len(data)


def held_by(schunk):
    schunk = getattr(schunk, "schunk", schunk)
    return [schunk.decompress_chunk(n) for n in range(schunk.nchunks)], sorted(schunk.vlmeta.getall().items()), schunk.typesize


def meaning(data):
    """What a frame holds; other bytes as they are."""
    try:
        return held_by(blosc2.schunk_from_cframe(data)) if is_frame(data) else data
    except RuntimeError as error:
        return str(error)


class Client:
    """What a process has open, on both sides."""

    def __init__(self):
        self.roots, self.files, self.maps = None, {}, {}

    def begin(self, _side, *roots):
        for file in [file for files in self.files.values() for file in files]:
            os.close(file)
        self.roots, self.files, self.maps = roots, {}, {}
        gc.collect()

    def path(self, side, name):
        return f"{self.roots[side]}/{name}"

    def open(self, side, key, name, flags):
        self.files[side, key] = [os.open(self.path(side, name), flags, 0o644)]

    def dup(self, side, key):
        self.files[side, key].append(os.dup(self.files[side, key][0]))

    def write(self, side, key, cut, pieces, sync):
        file = self.files[side, key][0]
        if cut:
            os.ftruncate(file, 0)
        for offset, data in pieces:
            os.pwrite(file, data, offset)
        if sync:
            os.fsync(file)

    def close(self, side, key):
        os.close(self.files[side, key].pop())

    def read(self, side, key):
        file = self.files[side, key][0]
        return os.pread(file, 1 << 20, 0), os.fstat(file).st_size

    def map(self, side, key, name):
        with open(self.path(side, name), "rb") as file:
            self.maps[side, key] = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)

    def read_map(self, side, key, name):
        """Nothing beyond the end: that is a signal, natively too."""
        mapped = self.maps[side, key]
        return bytes(mapped) if os.stat(self.path(side, name)).st_size == len(mapped) else None

    def unmap(self, side, key):
        self.maps.pop((side, key)).close()

    def write_by_map(self, side, name, first, then):
        """A map holds a file after its close."""
        file = os.open(self.path(side, name), NEW, 0o644)
        os.ftruncate(file, len(then))
        with mmap.mmap(file, len(then)) as mapped:
            if first:
                mapped[:] = first
            os.close(file)
            mapped[:] = then
            mapped.flush()

    def look(self, side, name):
        """What a new open reads, and the length by stat. A file with holes may become a frame when the last of others is closed."""
        path, size = self.path(side, name), None
        while size != (size := os.stat(path).st_size):
            with open(path, "rb", buffering=0) as file:
                data = file.readall()
        return data, size

    def rename(self, side, name, other):
        os.replace(self.path(side, name), self.path(side, other))

    def remove(self, side, name):
        os.unlink(self.path(side, name))

    def rewrite(self, side, name, flags, data):
        file = os.open(self.path(side, name), flags, 0o644)
        try:
            os.pwrite(file, data, 0)
        finally:
            os.close(file)

    def append(self, side, name, data):
        schunk = blosc2.open(self.path(side, name), mode="a")
        schunk.append_data(data[: schunk.chunksize])

    def probe(self, pipe, names):
        """All that names are seen to hold, from now until a message comes."""
        seen = set()
        for turn in range(1 << 30):
            for name in names:
                try:
                    seen.add((name, 0, self.look(VIEW, name)[0]))
                except OSError as error:
                    seen.add((name, error.errno, None))
            if turn == 0:
                pipe.send("begun")
            if pipe.poll():
                pipe.recv()
                return seen

    def see(self, side, names, keys, maps):
        """What names, open files and maps hold now."""
        seen = {}
        for way, given in [(self.look, names), (self.read, keys), (self.read_map, maps)]:
            for one in given:
                try:
                    seen[one] = 0, way(side, *(one if isinstance(one, tuple) else [one]))
                except OSError as error:
                    seen[one] = error.errno, None
        return seen


def work(pipe):
    client = Client()
    blosc2.set_nthreads(1)
    while True:
        what, side, *given = pipe.recv()
        try:
            pipe.send((0, client.probe(pipe, *given) if what == "probe" else getattr(client, what)(side, *given)))
        except OSError as error:
            pipe.send((error.errno or -1, error.strerror))
        except (RuntimeError, ValueError) as error:
            pipe.send((-1, str(error)))


class Clients:
    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(3):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=work, args=(theirs,), daemon=True))
            self.processes[-1].start()
            theirs.close()
            self.pipes.append(ours)

    def tell(self, client, *message):
        try:
            self.pipes[client].send(message)
        except BrokenPipeError as error:
            raise Wrong("a client is dead") from error

    def hear(self, client):
        if not self.pipes[client].poll(PATIENCE):
            raise Wrong("a call does not return")
        try:
            return self.pipes[client].recv()
        except EOFError as error:
            self.processes[client].join()
            raise Wrong(f"a client died: {self.processes[client].exitcode}") from error

    def ask(self, client, *message):
        self.tell(client, *message)
        return self.hear(client)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()
