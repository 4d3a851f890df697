"""Every mutation that the Blosc2 library makes to a frame, drawn at random so that it can be done.

A kind of frame is a class: `build` writes the first state, `choose` draws a [`Mutation`] that the frame's present state
allows. What the library itself cannot do on a native frame is not drawn, and the reason stands beside it.
"""

import ctypes
import os
from pathlib import Path

import blosc2
import msgpack
import numpy as np

ZERO, NAN, VALUE, UNINIT = (blosc2.SpecialValue[name] for name in ("ZERO", "NAN", "VALUE", "UNINIT"))
CODECS = [blosc2.Codec.BLOSCLZ, blosc2.Codec.LZ4, blosc2.Codec.LZ4HC, blosc2.Codec.ZLIB, blosc2.Codec.ZSTD]
FILTERS = [blosc2.Filter.NOFILTER, blosc2.Filter.SHUFFLE, blosc2.Filter.BITSHUFFLE, blosc2.Filter.DELTA]


class Mutation:
    """One change, applicable to any number of handles (or paths, if it opens the frame itself)."""

    def __init__(self, text, apply, on_path=False, composite=False, other_bytes=False):
        self.text, self.apply, self.on_path = text, apply, on_path
        # A mount makes other bytes of it than the library.
        self.other_bytes = other_bytes
        # Made of several changes, each of which leaves a whole frame.
        self.composite = composite

    def __str__(self):
        return self.text


def chunk_sizes(state):
    """Uncompressed size of each chunk, from the chunk headers."""
    return [int.from_bytes(state[f"chunk {n}"][4:8], "little") for n in range(state["nchunks"])]


def specials(state):
    """Special code of each chunk, 0 for none."""
    return [(state[f"chunk {n}"][31] >> 4) & 7 for n in range(state["nchunks"])]


class Kind:
    """What all kinds share: data, compression parameters, vlmetalayers."""

    def __init__(self, rng):
        self.rng = rng
        # The header still counts bytes of chunks. C-Blosc2 keeps them in a contiguous frame that was emptied, and then cannot fill it.
        self.spoiled = False
        self.meta = {"fixed": rng.bytes(int(rng.integers(1, 40))), "other": b"x" * 12}
        self.vlmeta = {"first": rng.bytes(50), "second": {"a": 1, "b": [1, 2, 3]}} if rng.random() < 0.5 else {}

    def pick(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def upto(self, n):
        """0 to n, n included."""
        return int(self.rng.integers(n + 1))

    def data(self, nbytes):
        """Bytes of every compressibility: nothing, one value, a ramp, noise, and mixtures."""
        rng = self.rng
        way = self.pick("zeros", "value", "ramp", "noise", "noise", "few", "mixed", "nan")
        if way == "zeros":
            return bytes(nbytes)
        if way == "value":
            item = rng.bytes(self.typesize)
            return (item * (nbytes // self.typesize + 1))[:nbytes]
        if way == "nan" and self.typesize in (4, 8):
            return np.full(nbytes // self.typesize + 1, np.nan, f"f{self.typesize}").tobytes()[:nbytes]
        if way == "ramp":
            return (np.arange(nbytes // 4 + 1, dtype="<i4") * self.upto(1000)).tobytes()[:nbytes]
        if way == "few":
            return rng.integers(0, 3, nbytes, dtype=np.uint8).tobytes()
        noise = rng.bytes(nbytes)
        return noise if way != "mixed" else noise[: nbytes // 2] + bytes(nbytes - nbytes // 2)

    def cparams(self):
        filters = [blosc2.Filter.NOFILTER] * 5 + [self.pick(*FILTERS)]
        return {
            "codec": self.pick(*CODECS), "clevel": self.upto(9), "typesize": self.typesize, "nthreads": 1,
            "filters": filters, "filters_meta": [0] * 6,
        }  # fmt: skip

    def vlmeta_change(self, state):
        names = [key.split()[1] for key in state if key.startswith("vlmetalayer ")]
        by_attribute = self.rng.random() < 0.3
        if names and self.rng.random() < 0.3:
            name = self.pick(*names)
            if by_attribute:
                return self.attribute(name, None)
            return Mutation(f"del vlmeta[{name!r}]", lambda frame: frame.vlmeta.__delitem__(name))
        name = self.pick(f"vl{self.upto(10**6)}", *names[:1], *names[-1:])
        size = self.pick(0, 1, 10, 1000, 60_000)
        value = self.pick(self.rng.bytes(size), "word" * (size // 4), {"n": size}, [1.5] * (size // 9), None)
        if by_attribute:
            return self.attribute(name, msgpack.packb(value))
        return Mutation(f"vlmeta[{name!r}] = {type(value).__name__} of {size}", lambda frame: frame.vlmeta.__setitem__(name, value))

    @staticmethod
    def attribute(name, value):
        """A vlmetalayer set or, for None, removed: on a mount by its extended attribute, natively by the library."""
        attribute = f"user.b2frame.vlmeta.{name}"

        def is_mount(path):
            try:
                return bool(os.getxattr(path, "user.b2frame.layout"))
            except OSError:
                return False

        def apply(path):
            if is_mount(path):
                os.setxattr(path, attribute, b"" if value is None else value)
                return
            frame = blosc2.open(path, mode="a")
            vlmeta = getattr(frame, "schunk", frame).vlmeta
            if value is None:
                del vlmeta[name]
            else:
                vlmeta[name] = msgpack.unpackb(value)

        what = "removed" if value is None else f"set to {len(value)} bytes"
        return Mutation(f"attribute {attribute} {what}", apply, on_path=True, other_bytes=True)

    def meta_change(self):
        # A metalayer keeps its size for ever.
        name = self.pick(*self.meta)
        value = self.rng.bytes(len(self.meta[name]))

        def apply(frame):
            getattr(frame, "schunk", frame).meta[name] = value

        return Mutation(f"meta[{name!r}] = {len(value)} bytes", apply)

    def order(self, nchunks):
        order = self.rng.permutation(nchunks)
        return Mutation(f"reorder_offsets({order.tolist()})", lambda frame: getattr(frame, "schunk", frame).reorder_offsets(order))


class Chunked(Kind):
    """Changes of whole chunks in a super-chunk; subclasses say how long a chunk may be."""

    MOST = 40

    def chunk(self, nbytes):
        """A compressed chunk with parameters of its own."""
        data = self.data(nbytes)
        if not data:
            return blosc2.compress2(b"", **self.cparams())
        return blosc2.compress2(data, **self.cparams())

    def storing(self, verb, n, nbytes):
        """append, insert or update, of data or of a chunk."""
        at = [] if verb == "append" else [n]
        place = f"{n}, " if at else ""
        if self.rng.random() < 0.5:
            chunk = self.chunk(nbytes)
            text = f"{verb}_chunk({place}{len(chunk)} bytes for {nbytes})"
            return Mutation(text, lambda frame: getattr(frame, f"{verb}_chunk")(*at, chunk))
        data = self.data(nbytes)
        if verb == "append":
            return Mutation(f"append_data({nbytes} bytes)", lambda frame: frame.append_data(data))
        return Mutation(f"{verb}_data({n}, {nbytes} bytes)", lambda frame: getattr(frame, f"{verb}_data")(n, data, copy=True))

    def delete(self, nchunks):
        n = self.upto(nchunks - 1)
        return Mutation(f"delete_chunk({n})", lambda frame: frame.delete_chunk(n))


class Plain(Chunked):
    """A super-chunk with chunks of one size, but for a shorter last one."""

    NAME = "plain"

    def __init__(self, rng):
        super().__init__(rng)
        self.typesize = self.pick(1, 2, 4, 4, 8, 8, 3, 16)
        self.items = int(rng.integers(1, 3000))
        self.chunksize = self.items * self.typesize

    def build(self, path, contiguous):
        rng = np.random.default_rng(self.items)
        frame = blosc2.SChunk(
            chunksize=self.chunksize, urlpath=path, contiguous=contiguous, mode="w", meta=self.meta,
            cparams={"typesize": self.typesize, "nthreads": 1, "codec": CODECS[self.items % 5], "clevel": self.items % 7},
        )  # fmt: skip
        for n in range(self.items % 12):
            frame.append_data(bytes(self.chunksize) if n % 5 == 3 else rng.bytes(self.chunksize))
        for name, value in self.vlmeta.items():
            frame.vlmeta[name] = value

    def choose(self, frame, state):
        nchunks, sizes = state["nchunks"], chunk_sizes(state)
        if nchunks == 0 and self.spoiled:
            return self.storing("append", 0, self.chunksize)
        if nchunks == 0:
            return self.pick(self.fill, lambda: self.storing("append", 0, self.chunksize))()
        whole = sizes[-1] == self.chunksize
        ways = [lambda: self.vlmeta_change(state), self.meta_change, lambda: self.delete(nchunks), lambda: self.special(state)]
        ways += [lambda: self.update(nchunks), lambda: self.update(nchunks), lambda: self.slice(state)]
        if whole:
            # With a short last chunk the library would turn the frame into one of varying chunk sizes.
            ways += [lambda: self.order(nchunks)]
            if nchunks < self.MOST:
                ways += [lambda: self.append(nchunks)] * 3
                ways += [lambda: self.storing("insert", self.upto(nchunks), self.chunksize)] * 2
        elif self.rng.random() < 0.3:
            return self.storing("update", nchunks - 1, self.chunksize)
        if nchunks > self.MOST - 5 and self.rng.random() < 0.05:
            return Mutation("delete_chunk(0) until empty", lambda frame: [frame.delete_chunk(0) for _ in range(nchunks)], composite=True)
        return self.pick(*ways)()

    def append(self, nchunks):
        short = self.items > 1 and self.rng.random() < 0.15
        return self.storing("append", nchunks, (1 + self.upto(self.items - 2)) * self.typesize if short else self.chunksize)

    def update(self, nchunks):
        n = self.upto(nchunks - 1)
        short = n == nchunks - 1 and self.items > 1 and self.rng.random() < 0.3
        return self.storing("update", n, (1 + self.upto(self.items - 2)) * self.typesize if short else self.chunksize)

    def special_value(self):
        if self.rng.random() < 0.3:
            item = self.rng.bytes(self.typesize)
            return VALUE, item
        return self.pick(ZERO, UNINIT, *([NAN] if self.typesize in (4, 8) else [])), None

    def special(self, state):
        n = self.upto(state["nchunks"] - 1)
        kind, value = self.special_value()
        return Mutation(f"update_special({n}, {kind.name})", lambda frame: frame.update_special(n, kind, value))

    def fill(self):
        kind, value = self.special_value()
        nitems = 1 + self.upto(self.items * 20)
        return Mutation(f"fill_special({nitems}, {kind.name})", lambda frame: frame.fill_special(nitems, kind, value), composite=True)

    def slice(self, state):
        """schunk[start:stop] = data, over the end too; uninitialised chunks are filled first, as reading them gives anything."""
        blanks = [n for n, code in enumerate(specials(state)) if code == 4]
        if blanks:
            n, size = blanks[0], chunk_sizes(state)[blanks[0]]
            return self.storing("update", n, size)
        have = state["nbytes"] // self.typesize
        start = self.upto(have)
        # Beyond a short last chunk C-Blosc2 writes over its own heap.
        room = 0 if have % self.items else max(0, self.MOST * self.items - have)
        stop = min(start + 1 + self.upto(3 * self.items), have + room)
        if stop <= start:
            start, stop = 0, 1
        data = self.data((stop - start) * self.typesize)

        def apply(frame):
            frame[start:stop] = data

        return Mutation(f"[{start}:{stop}] = data, of {have} items", apply, composite=True)


class Varying(Chunked):
    """A super-chunk with chunks of any size. Only whole chunks change: the library's slices need one size, and so do its
    special chunks, which it cannot make out of an index entry without that size."""

    NAME = "varying"

    def __init__(self, rng):
        super().__init__(rng)
        self.typesize = self.pick(1, 2, 4, 8)
        self.sizes = [int(n) * self.typesize for n in rng.integers(1, 4000, 8)]

    def data(self, nbytes):
        # Noise at both ends: no special chunk.
        noise = self.rng.bytes(nbytes)
        return noise if self.rng.random() < 0.5 else noise[:40] + bytes(max(0, nbytes - 80)) + noise[-40:]

    def size(self):
        return max(80, (1 + self.upto(4000)) * self.typesize) // self.typesize * self.typesize

    def build(self, path, contiguous):
        rng = np.random.default_rng(self.sizes[0])
        frame = blosc2.SChunk(
            chunksize=self.sizes[0], urlpath=path, contiguous=contiguous, mode="w", meta=self.meta,
            cparams={"typesize": self.typesize, "nthreads": 1},
        )  # fmt: skip
        for size in self.sizes[:1] + [self.sizes[0] + self.typesize] + self.sizes[1:]:
            frame.append_data(rng.bytes(size))
        for name, value in self.vlmeta.items():
            frame.vlmeta[name] = value

    def choose(self, frame, state):
        nchunks = state["nchunks"]
        ways = [lambda: self.vlmeta_change(state), self.meta_change, lambda: self.order(nchunks)]
        ways += [lambda: self.storing("update", self.upto(nchunks - 1), self.size())] * 2
        if nchunks < self.MOST:
            ways += [lambda: self.storing("append", nchunks, self.size()), lambda: self.storing("insert", self.upto(nchunks), self.size())]
        if nchunks > 2:
            ways += [lambda: self.delete(nchunks)]
        return self.pick(*ways)()


class Blocks(Varying):
    """A super-chunk of VL-block chunks, as batch and object arrays have them."""

    NAME = "vlblocks"

    def chunk(self, _nbytes):
        blocks = [self.rng.bytes(1 + self.upto(900)) + bytes(self.upto(500)) for _ in range(1 + self.upto(12))]
        return blosc2.blosc2_ext.vlcompress(blocks, codec=self.pick(*CODECS), clevel=1 + self.upto(8), typesize=1, nthreads=1)

    def storing(self, verb, n, nbytes):
        chunk = self.chunk(nbytes)
        at = [] if verb == "append" else [n]
        return Mutation(f"{verb}_chunk({', '.join(map(str, [*at, len(chunk)]))} bytes)", lambda frame: getattr(frame, f"{verb}_chunk")(*at, chunk))

    def build(self, path, contiguous):
        state = self.rng.bit_generator.state
        frame = blosc2.SChunk(chunksize=-1, urlpath=path, contiguous=contiguous, mode="w", meta=self.meta, cparams={"typesize": 1, "nthreads": 1})
        for _ in range(6):
            frame.append_chunk(self.chunk(0))
        self.rng.bit_generator.state = state
        for name, value in self.vlmeta.items():
            frame.vlmeta[name] = value


class Array(Kind):
    """A b2nd array."""

    NAME = "b2nd"

    def __init__(self, rng):
        super().__init__(rng)
        self.dtype = np.dtype(self.pick("u1", "i2", "i4", "f4", "f8", "S5"))
        self.typesize = self.dtype.itemsize
        self.ndim = int(rng.integers(1, 4))
        longest = {1: 400, 2: 40, 3: 12}[self.ndim]
        self.longest = 2 * longest
        self.shape = [int(n) for n in rng.integers(1, longest, self.ndim)]
        # At most ten chunks along an axis: see Exhausted in mutate.py.
        self.chunks = [int(rng.integers(max(2, longest // 5), longest)) for _ in self.shape]
        self.blocks = [int(rng.integers(1, n + 1)) for n in self.chunks]
        self.start = self.pick("zeros", "array")
        self.first = self.values(self.shape)

    def values(self, shape):
        count = int(np.prod(shape))
        return np.frombuffer(self.data(count * self.typesize), self.dtype, count).reshape(shape)

    def build(self, path, contiguous):
        options = {
            "urlpath": path, "contiguous": contiguous, "mode": "w", "chunks": self.chunks, "blocks": self.blocks,
            "meta": self.meta, "cparams": {"nthreads": 1, "typesize": self.typesize},
        }  # fmt: skip
        if self.start == "zeros":
            array = blosc2.zeros(self.shape, dtype=self.dtype, **options)
        else:
            array = blosc2.asarray(self.first, **options)
        for name, value in self.vlmeta.items():
            array.vlmeta[name] = value

    def choose(self, array, state):
        shape = list(state["shape"])
        ways = [lambda: self.vlmeta_change(state), self.meta_change]
        ways += [lambda: self.resize(shape)] * 3 + [lambda: self.insert(shape), lambda: self.remove(shape)]
        if 0 not in shape:
            ways += [lambda: self.slice(shape)] * 4
        if self.ndim == 1:
            ways += [lambda: self.append(shape)] * 2
        if state["nchunks"] > 0:
            ways += [lambda: self.whole(state), lambda: self.special(state), lambda: self.order(state["nchunks"])]
        return self.pick(*ways)()

    def slice(self, shape):
        key = []
        for n in shape:
            start = self.upto(n - 1)
            key.append(slice(start, start + 1 + self.upto(n - start - 1)))
        key = tuple(key)
        values = self.values([s.stop - s.start for s in key])

        def apply(array):
            array[key] = values

        return Mutation(f"[{', '.join(f'{s.start}:{s.stop}' for s in key)}] = values", apply, composite=True)

    def resize(self, shape):
        new = list(shape)
        for axis in range(self.ndim):
            if self.rng.random() < 0.7:
                new[axis] = self.upto(self.longest) if self.rng.random() < 0.9 else 0
        while np.prod(new) > 8000:
            new[int(np.argmax(new))] //= 2

        def apply(array):
            array.resize(new)
            # New chunks are uninitialised, and reading those gives anything.
            for info in list(array.schunk.iterchunks_info()):
                if info.special == UNINIT:
                    array.schunk.update_special(info.nchunk, ZERO)

        return Mutation(f"resize({shape} -> {new})", apply, composite=True)

    def append(self, shape):
        values = self.values([1 + self.upto(50)])
        if shape[0] + len(values) > self.longest * 2:
            return self.resize(shape)
        return Mutation(f"append({len(values)} values)", lambda array: array.append(values), composite=True)

    # insert and delete along an axis have no Python call; the library of the same wheel does them.

    def insert(self, shape):
        axis = self.upto(self.ndim - 1)
        # In the middle, whole chunks only; at the end any number.
        step = self.chunks[axis]
        aligned = self.rng.random() < 0.5
        at = self.upto(shape[axis] // step) * step if aligned else shape[axis]
        count = step if at != shape[axis] else 1 + self.upto(step)
        buffer = self.values([count if n == axis else size for n, size in enumerate(shape)]).tobytes()
        if not buffer or shape[axis] + count > self.longest * 2:
            return self.resize(shape)

        def apply(path):
            return library.on_array(path, "b2nd_insert", buffer, ctypes.c_int64(len(buffer)), ctypes.c_int8(axis), ctypes.c_int64(at))

        return Mutation(f"b2nd_insert({count} along axis {axis} at {at} of {shape})", apply, on_path=True, composite=True)

    def remove(self, shape):
        axis = self.upto(self.ndim - 1)
        step = self.chunks[axis]
        whole = shape[axis] // step
        if whole < 2:
            return self.resize(shape)
        at = self.upto(whole - 2) * step

        def apply(path):
            return library.on_array(path, "b2nd_delete", ctypes.c_int8(axis), ctypes.c_int64(at), ctypes.c_int64(step))

        return Mutation(f"b2nd_delete({step} along axis {axis} at {at} of {shape})", apply, on_path=True, composite=True)

    def whole(self, state):
        n = self.upto(state["nchunks"] - 1)
        data = self.data(chunk_sizes(state)[n])
        return Mutation(f"schunk.update_data({n})", lambda array: array.schunk.update_data(n, data, copy=True))

    def special(self, state):
        n = self.upto(state["nchunks"] - 1)
        kind = self.pick(ZERO, *([NAN] if self.typesize in (4, 8) else []))
        return Mutation(f"schunk.update_special({n}, {kind.name})", lambda array: array.schunk.update_special(n, kind))


class Library:
    """The C library of the blosc2 wheel."""

    def __init__(self):
        self.lib = None

    def on_array(self, path, function, *arguments):
        if self.lib is None:
            self.lib = ctypes.CDLL(str(Path(blosc2.__file__).parent / "lib" / "libblosc2.so"))
            self.lib.blosc2_init()
        array = ctypes.c_void_p()
        rc = self.lib.b2nd_open(path.encode(), ctypes.byref(array))
        if rc < 0:
            raise RuntimeError(f"b2nd_open: {rc}")
        try:
            rc = getattr(self.lib, function)(array, *arguments)
        finally:
            self.lib.b2nd_free(array)
        if rc < 0:
            raise RuntimeError(f"{function}: {rc}")
        return rc


library = Library()
KINDS = {kind.NAME: kind for kind in (Plain, Varying, Blocks, Array)}
