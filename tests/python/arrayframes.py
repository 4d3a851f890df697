"""Random frames for the tests of decompressed views, and what each view of them must show, by the library and NumPy.

Arrays of all item types that b2nd holds, of 0 to 8 dimensions with edges that do not divide, of every codec and filter, with special
chunks in between; Caterva arrays; frames that are no arrays, with chunks and blocks of varying size.
"""

import io
import math
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

import blosc2
import numpy as np

import libblosc2
from frames import UNINIT, chunk_is_vl, regions, schunk_of, special_of

F, S, V = blosc2.Filter, blosc2.SplitMode, blosc2.SpecialValue
CODECS = [blosc2.Codec.BLOSCLZ, blosc2.Codec.LZ4, blosc2.Codec.LZ4HC, blosc2.Codec.ZLIB, blosc2.Codec.ZSTD]
PIPELINES = [
    ([F.NOFILTER], [0]),
    ([F.SHUFFLE], [0]),
    ([F.SHUFFLE], [2]),
    ([F.BITSHUFFLE], [0]),
    ([F.DELTA], [0]),
    ([F.DELTA, F.SHUFFLE], [0, 0]),
    ([F.DELTA, F.BITSHUFFLE], [0, 0]),
    ([F.SHUFFLE, F.SHUFFLE], [0, 0]),
]
LOSSY = [([F.TRUNC_PREC, F.SHUFFLE], [12, 0]), ([F.TRUNC_PREC, F.DELTA, F.BITSHUFFLE], [10, 0, 0])]
DTYPES = [
    "?", "i1", "u1", "<i2", ">i2", "<u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8", "<f2", ">f2", "<f4", ">f4", "<f8", ">f8",
    "<c8", ">c8", "<c16", ">c16", "g", ">g", "G", "S1", "S7", "S300", "<U1", "<U5", ">U5", "<U80", "V1", "V3", "V16", "V1000", "<M8", "<M8[ns]",
    ">M8[us]", "<M8[25D]", "<m8[s]", ">m8[h]",
    [("a", "<i4"), ("b", "S3"), ("c", "<f8", (2,))],
    [("a", ">i4"), ("b", "<U3"), ("c", "?")],
    [("p", [("x", "<f4"), ("y", ">f4")]), ("q", "?")],
    [("p", [("x", "<f4", (2, 3)), ("y", [("z", "<M8[ms]")], (2,))]), ("q", "<c8")],
    [(("a title", "a"), "<i4"), ("b", "<i2")],
    [("größe", "<i4"), ("b", "V3")],
    [("大きさ", "<f4")],
    [("it's a \"name\" \\ [('x', '<i4')]", "<i4"), ("", "<i2")],
    [(f"field{n}", "<i2") for n in range(40)],
    # A header that version 1.0 cannot hold.
    [(f"{n:05}{'x' * 200}", "u1") for n in range(350)],
    np.dtype([("a", "i1"), ("b", "<f8")], align=True),
    {"names": ["a", "b"], "formats": ["<i4", "<f8"], "offsets": [4, 16], "itemsize": 32},
    {"names": ["b", "a"], "formats": ["<i4", "<f8"], "offsets": [16, 0], "itemsize": 24},
]  # fmt: skip
WORDS = {name: np.dtype(name).str for name in ("float32", "float64", "int16", "int32", "uint8", "complex64", "f4", "i8", "<u2", ">f8", "S5", "<M8[ns]")}


@dataclass(frozen=True)
class Made:
    """A frame, and the bytes of its views."""

    path: Path
    what: str
    # None for a frame that is no array.
    array: np.ndarray | None
    raw: bytes
    # For `-o dtype=`, and the array that it makes of the frame.
    word: str | None = None
    typed: np.ndarray | None = None

    @property
    def npy(self):
        return saved(self.array)


def saved(array):
    """The file that NumPy makes of an array."""
    file = io.BytesIO()
    try:
        array.dtype.descr
    except ValueError:
        # Fields out of order, which it refuses to describe, are shown as void.
        array = array.view(f"V{array.itemsize}")
    with warnings.catch_warnings():
        # Header versions that few programs read.
        warnings.simplefilter("ignore", UserWarning)
        np.save(file, array)
    return file.getvalue()


def some_bytes(rng, nbytes, itemsize=8):
    """Bytes as programs have them: a ramp, noise, few values, hardly anything, a constant."""
    numpy = np.random.default_rng(rng.getrandbits(32))
    kind = rng.randrange(6)
    if kind == 0:
        data = (np.arange(nbytes // 4 + 1, dtype="<i4") * rng.choice([1, 3, 1000])).tobytes()
    elif kind == 1:
        data = numpy.bytes(nbytes)
    elif kind == 2:
        data = np.cumsum(numpy.normal(0, 1, nbytes // 8 + 1)).tobytes()
    elif kind == 3:
        data = numpy.choice(np.array([0, 0, 0, 1, 7, 255], "u1"), nbytes).tobytes()
    elif kind == 4:
        data = np.where(numpy.random(nbytes) < 0.001, 9, 0).astype("u1").tobytes()
    else:
        data = numpy.bytes(itemsize) * (nbytes // itemsize + 1)
    return data[:nbytes]


def some_array(rng, dtype, shape):
    """Random items. Of text and truth values, such as there are."""
    count = math.prod(shape)
    data = np.frombuffer(some_bytes(rng, count * dtype.itemsize, dtype.itemsize), "u1").copy()
    if dtype.kind == "b":
        data &= 1
    if dtype.kind == "U":
        points = data[: len(data) // 4 * 4].view(dtype.byteorder + "u4" if dtype.byteorder in "<>" else "u4")
        points %= 0x3000
    return np.ndarray(shape, dtype, data) if count else np.zeros(shape, dtype)


def some_shapes(rng, ndim, items):
    """Shape, chunk shape, block shape: edges of all kinds, at most about so many items."""
    shape = [1] * ndim
    side = max(items ** (1 / max(ndim, 1)), 1)
    for axis in range(ndim):
        shape[axis] = max(1, round(side * rng.uniform(0.3, 1.4)))
    if ndim > 1 and rng.random() < 0.3:
        # Long in one direction.
        axis = rng.randrange(ndim)
        shape = [max(1, size // 3) for size in shape]
        shape[axis] = max(1, min(items // math.prod(shape), 5000))
    if ndim and rng.random() < 0.08:
        shape[rng.randrange(ndim)] = 0
    # Not so many chunks that making them takes long.
    least = max(math.prod(shape), 1) / 200
    for _ in range(20):
        chunks = [rng.randint(1, max(size, 1)) for size in shape]
        if rng.random() < 0.3:
            chunks = [max(size, 1) if n else rng.randint(1, max(size, 1)) for n, size in enumerate(shape)]
        if math.prod(chunks) >= least:
            break
    else:
        chunks = [max(size, 1) for size in shape]
    blocks = [rng.randint(max(1, chunk // 6), chunk) for chunk in chunks]
    return tuple(shape), tuple(chunks), tuple(blocks)


def some_cparams(rng, dtype=None, typesize=8):
    pipelines = PIPELINES + (LOSSY * 2 if dtype is not None and dtype.kind == "f" and dtype.itemsize in (4, 8) else [])
    filters, metas = rng.choice(pipelines)
    params = {
        "nthreads": 1, "codec": rng.choice(CODECS), "clevel": rng.choice([0, 1, 5, 5, 9]), "filters": filters, "filters_meta": metas,
        "splitmode": rng.choice([S.ALWAYS_SPLIT, S.NEVER_SPLIT, S.AUTO_SPLIT, S.FORWARD_COMPAT_SPLIT]),
    }  # fmt: skip
    if params["codec"] in (blosc2.Codec.ZSTD, blosc2.Codec.LZ4) and rng.random() < 0.15:
        params["use_dict"] = True
    return params


def in_words(params):
    filters = "+".join(filter.name.lower() for filter in params["filters"])
    dictionary = ", dictionary" if params.get("use_dict") else ""
    return f"{params['codec'].name.lower()} {params['clevel']}, {filters}, {params['splitmode'].name.lower()}{dictionary}"


def by_chunks(opened):
    """The bytes of an array, put together of its chunks. What is not initialised is zeros."""
    size, ndim = opened.schunk.typesize, opened.ndim
    whole = np.zeros(opened.shape, f"V{size}")
    grid = [-(-chunk // block) for chunk, block in zip(opened.chunks, opened.blocks)]
    # From blocks one after the other to blocks side by side.
    order = [axis for pair in zip(range(ndim), range(ndim, 2 * ndim)) for axis in pair]
    for n, region in enumerate(regions(opened) if opened.size else []):
        if special_of(opened.schunk.get_chunk(n)) != UNINIT:
            data = np.frombuffer(opened.schunk.decompress_chunk(n), whole.dtype).reshape((*grid, *opened.blocks)).transpose(order)
            padded = data.reshape([count * block for count, block in zip(grid, opened.blocks)])
            whole[region] = padded[tuple(slice(0, size) for size in whole[region].shape)]
    return whole.tobytes()


def as_read(path):
    """What the library's arr[()] is, and in any case what its chunks hold.

    Of arrays with delta, and with a dictionary, arr[()] may have other items than what was written, where it leaves out blocks at the edge
    that are padding alone.
    """
    opened = blosc2.open(str(path), mode="r", dparams={"nthreads": 1})
    array, held = opened[()], by_chunks(opened)
    uninit = any(special_of(opened.schunk.get_chunk(n)) == UNINIT for n in range(opened.schunk.nchunks))
    cparams = opened.schunk.cparams
    is_wrong = uninit or cparams.use_dict or F.DELTA in cparams.filters
    assert is_wrong or array.tobytes() == held, "arr[()] is not what the chunks hold"
    return np.ndarray(array.shape, array.dtype, held) if array.size else array


def described(dtype):
    text = str(dtype)
    return text if len(text) < 60 else f"{text[:57]}..."


def b2nd(rng, path, contiguous, dtype=None, ndim=None, items=None):
    dtype = np.dtype(rng.choice(DTYPES) if dtype is None else dtype)
    ndim = rng.randrange(9) if ndim is None else ndim
    items = items or min(rng.choice([20, 400, 3000, 30_000]), (1 << 20) // dtype.itemsize)
    shape, chunks, blocks = some_shapes(rng, ndim, items)
    params = some_cparams(rng, dtype)
    places = {"chunks": chunks, "blocks": blocks} if ndim else {}
    values = some_array(rng, dtype, shape)
    blosc2.asarray(values, urlpath=str(path), contiguous=contiguous, mode="w", cparams=params, **places)
    what = f"{described(dtype)} {shape} in {chunks} in {blocks}, {in_words(params)}"
    read = as_read(path)
    assert F.TRUNC_PREC in params["filters"] or read.tobytes() == values.tobytes(), "the library reads other items than were written"
    return Made(path, what, read, read.tobytes())


def special(rng, path, contiguous):
    """Zeros, NaN, one value, or nothing at all; some of it written over, or made so afterwards."""
    kind = rng.choice(["zeros", "nans", "uninit", "full"])
    dtype = np.dtype(rng.choice(["<f4", "<f8", ">f8"] if kind == "nans" else DTYPES))
    shape, chunks, blocks = some_shapes(rng, rng.randrange(1, 5), min(3000, (1 << 20) // dtype.itemsize))
    params = {"nthreads": 1, "codec": rng.choice(CODECS)}
    value = [some_array(rng, dtype, (1,))[0]] if kind == "full" else []
    array = getattr(blosc2, kind)(
        shape, *value, dtype=dtype, chunks=chunks, blocks=blocks, urlpath=str(path), contiguous=contiguous, mode="w", cparams=params
    )
    what = f"{kind}, {described(dtype)} {shape} in {chunks} in {blocks}"
    if array.size and rng.random() < 0.7:
        places = list(regions(array))
        for region in rng.sample(places, min(len(places), 3)):
            array[region] = some_array(rng, dtype, array[region].shape)
        kinds = [V.ZERO, V.UNINIT] + [V.NAN] * (dtype.kind == "f" and dtype.itemsize in (4, 8))
        for n in rng.sample(range(len(places)), min(len(places), 3)):
            array.schunk.update_special(n, rng.choice(kinds))
        what += ", mixed"
    del array
    read = as_read(path)
    return Made(path, what, read, read.tobytes())


def caterva(rng, path, contiguous):
    """The chunks of a b2nd array beneath a metalayer of Caterva's, which has an item size only."""
    word = rng.choice(sorted(WORDS))
    dtype = np.dtype(WORDS[word])
    shape, chunks, blocks = some_shapes(rng, rng.randrange(9), 2000)
    params = some_cparams(rng)
    places = {"chunks": chunks, "blocks": blocks} if shape else {}
    array = blosc2.asarray(some_array(rng, dtype, shape), cparams=params, **places)
    frame = blosc2.SChunk(
        chunksize=array.schunk.chunksize, urlpath=str(path), contiguous=contiguous, mode="w", cparams={**params, "typesize": dtype.itemsize}
    )
    libblosc2.add_metalayer(frame, "caterva", metalayer("caterva", shape, array.chunks, array.blocks))
    for n in range(array.schunk.nchunks):
        frame.append_chunk(array.schunk.get_chunk(n))
    typed = array[()]
    typed = np.ndarray(typed.shape, dtype, by_chunks(array)) if typed.size else typed
    void = np.ndarray(typed.shape, f"V{dtype.itemsize}", typed.tobytes()) if typed.size else np.zeros(typed.shape, f"V{dtype.itemsize}")
    what = f"Caterva of {dtype.str} {shape} in {tuple(array.chunks)} in {tuple(array.blocks)}, {in_words(params)}"
    return Made(path, what, void, typed.tobytes(), word, typed)


def metalayer(kind, shape, chunks, blocks, dtype=None, version=0, ndim=None, format=0):
    """A metalayer's bytes: of b2nd with a type's description (bytes), of Caterva without."""
    content = bytes([0x97 if kind == "b2nd" else 0x95, version, len(shape) if ndim is None else ndim])
    content += bytes([0x90 + len(shape)]) + b"".join(b"\xd3" + struct.pack(">q", size) for size in shape)
    for part in (chunks, blocks):
        content += bytes([0x90 + len(part)]) + b"".join(b"\xd2" + struct.pack(">i", size) for size in part)
    if kind == "b2nd":
        content += bytes([format]) + b"\xdb" + struct.pack(">I", len(dtype)) + dtype
    return content


def with_metalayer(path, name, content):
    """Puts a metalayer into the header of a contiguous frame that has none."""
    data = Path(path).read_bytes()
    length = int.from_bytes(data[11:15], "big")
    names = b"\xde\0\1" + bytes([0xA0 + len(name)]) + name.encode() + b"\xd2"
    size = 4 + len(names) + 4
    # The place of the content, in the header: behind the map of names.
    index = b"\x93\xcd" + size.to_bytes(2, "big") + names + (87 + size + 3).to_bytes(4, "big")
    body = b"\xdc\0\1\xc6" + len(content).to_bytes(4, "big") + content
    header = bytearray(data[:87] + index + body)
    header[11:15] = len(header).to_bytes(4, "big")
    header[16:24] = (len(header) + len(data) - length).to_bytes(8, "big")
    Path(path).write_bytes(bytes(header) + data[length:])


def schunk(rng, path, contiguous):
    """A frame that is no array: chunks of one size, the last one short, some of them special."""
    typesize = rng.choice([1, 2, 3, 4, 8, 8, 16, 25, 300])
    params = some_cparams(rng)
    chunksize = typesize * rng.randint(1, max(1, rng.choice([100, 3000, 100_000]) // typesize))
    frame = blosc2.SChunk(chunksize=chunksize, urlpath=str(path), contiguous=contiguous, mode="w", cparams={**params, "typesize": typesize})
    count = rng.randrange(12)
    for n in range(count):
        short = n + 1 == count and rng.random() < 0.6
        nbytes = typesize * rng.randint(1, chunksize // typesize) if short else chunksize
        frame.append_data(some_bytes(rng, nbytes, typesize))
    whole = count - 1
    kinds = [V.ZERO, V.UNINIT] + [V.NAN] * (typesize in (4, 8))
    for n in rng.sample(range(max(whole, 0)), max(whole, 0) // 3):
        frame.update_special(n, rng.choice(kinds))
    del frame
    return Made(path, f"{count} chunks of {chunksize}, type size {typesize}, {in_words(params)}", None, chunks_of(path))


def filled(rng, path, contiguous):
    """A frame of special chunks only."""
    kind = rng.choice([V.ZERO, V.NAN, V.UNINIT, V.VALUE])
    frame = blosc2.SChunk(chunksize=800, urlpath=str(path), contiguous=contiguous, mode="w", cparams={"typesize": 4, "nthreads": 1})
    count = rng.randrange(1, 30_000)
    frame.fill_special(count, kind, 0x01020304 if kind == V.VALUE else None)
    del frame
    return Made(path, f"{count} items of {kind.name}", None, chunks_of(path))


def varying(rng, path, contiguous):
    """Chunks of varying size."""
    frame = blosc2.SChunk(chunksize=400, urlpath=str(path), contiguous=contiguous, mode="w", cparams={"typesize": 4, "nthreads": 1})
    raw = b""
    # Of one size, they would be taken for what they are not.
    for n, size in enumerate([100, 30] + [rng.randint(1, 20_000) for _ in range(rng.randrange(8))]):
        data = some_bytes(rng, 4 * size)
        frame.append_chunk(blosc2.compress2(data, typesize=4, codec=rng.choice(CODECS), nthreads=1))
        raw += data
    del frame
    # Of a chunk of zeros among them the library forgets how long it is, and reads it no more.
    assert chunks_of(path) == raw
    return Made(path, f"chunks of varying size, {len(raw)} bytes", None, raw)


def vlblocks(rng, path, contiguous):
    """Chunks of blocks of varying size, the chunks themselves of one size or not."""
    fixed = rng.random() < 0.5
    total = rng.randrange(10, 3000)
    frame = blosc2.SChunk(
        chunksize=total, urlpath=str(path), contiguous=contiguous, mode="w", cparams={"typesize": 1, "nthreads": 1, "codec": blosc2.Codec.LZ4}
    )
    raw = b""
    for n in range(rng.randrange(1, 7)):
        size = total if fixed or n == 0 else rng.randrange(10, 3000)
        cuts = sorted(rng.sample(range(1, size), rng.randrange(0, 6)))
        blocks = [some_bytes(rng, end - start) for start, end in zip([0, *cuts], [*cuts, size])]
        codec = rng.choice([blosc2.Codec.LZ4, blosc2.Codec.ZSTD, blosc2.Codec.BLOSCLZ])
        frame.append_chunk(blosc2.blosc2_ext.vlcompress(blocks, typesize=1, codec=codec, clevel=5, nthreads=1))
        raw += b"".join(blocks)
    return Made(path, f"blocks of varying size, chunks of {'one size' if fixed else 'varying size'}, {len(raw)} bytes", None, raw)


def chunks_of(path):
    """All chunks decompressed, one after the other."""
    opened = blosc2.open(str(path), mode="r", dparams={"nthreads": 1})
    frame = schunk_of(opened)
    data = []
    for n in range(frame.nchunks):
        chunk = frame.get_chunk(n)
        assert not chunk_is_vl(chunk)
        data.append(bytes(int.from_bytes(chunk[4:8], "little")) if special_of(chunk) == UNINIT else frame.decompress_chunk(n))
    return b"".join(data)


KINDS = [b2nd] * 12 + [special] * 4 + [caterva] * 2 + [schunk] * 3 + [filled, varying, vlblocks]


def some_frame(rng, directory, name, turn=None):
    """A frame of a random kind; by turns all item types come, and all kinds."""
    kind = rng.choice(KINDS) if turn is None else KINDS[turn * 5 % len(KINDS)]
    path = Path(directory) / f"{name}{'.b2nd' if kind in (b2nd, special) else '.b2frame'}"
    for _ in range(5):
        try:
            if kind is b2nd and turn is not None:
                return b2nd(rng, path, rng.random() < 0.6, DTYPES[turn * 7 % len(DTYPES)])
            return kind(rng, path, rng.random() < 0.6)
        except RuntimeError:
            # Of some combinations, such as a dictionary and data that do not compress, the library does not read what it wrote.
            blosc2.remove_urlpath(str(path))
    raise RuntimeError(f"{path}: the library makes no such frame")
