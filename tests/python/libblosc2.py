"""The Blosc2 library that python-blosc2 carries, called directly: what its Python functions do not expose is needed here."""

import ctypes
import os
import pathlib

import blosc2

CODECS = {"blosclz": 0, "lz4": 1, "lz4hc": 2, "zlib": 4, "zstd": 5}
NOFILTER, SHUFFLE, BITSHUFFLE, DELTA, TRUNC_PREC = range(5)
ALWAYS_SPLIT, NEVER_SPLIT, AUTO_SPLIT, FORWARD_COMPAT_SPLIT = range(1, 5)
OVERHEAD = 32
REFUSED = -1


class CParams(ctypes.Structure):
    """blosc2_cparams of C-Blosc2 3."""

    _fields_ = [
        ("compcode", ctypes.c_uint8),
        ("compcode_meta", ctypes.c_uint8),
        ("clevel", ctypes.c_uint8),
        ("use_dict", ctypes.c_int),
        ("typesize", ctypes.c_int32),
        ("nthreads", ctypes.c_int16),
        ("blocksize", ctypes.c_int32),
        ("splitmode", ctypes.c_int32),
        ("schunk", ctypes.c_void_p),
        ("filters", ctypes.c_uint8 * 6),
        ("filters_meta", ctypes.c_uint8 * 6),
        ("prefilter", ctypes.c_void_p),
        ("preparams", ctypes.c_void_p),
        ("tuner_params", ctypes.c_void_p),
        ("tuner_id", ctypes.c_int),
        ("instr_codec", ctypes.c_bool),
        ("codec_params", ctypes.c_void_p),
        ("filter_params", ctypes.c_void_p * 6),
    ]


class DParams(ctypes.Structure):
    """blosc2_dparams of C-Blosc2 3."""

    _fields_ = [
        ("nthreads", ctypes.c_int16),
        ("schunk", ctypes.c_void_p),
        ("postfilter", ctypes.c_void_p),
        ("postparams", ctypes.c_void_p),
        ("typesize", ctypes.c_int32),
    ]


def _load():
    folder = pathlib.Path(blosc2.__file__).parent
    for name in ["lib/libblosc2.so", "lib64/libblosc2.so", "lib/libblosc2.dylib"]:
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise SystemExit(f"{folder}: no libblosc2 found, expected lib/libblosc2.so")


_lib = _load()
_lib.blosc2_init()
_lib.blosc2_create_cctx.argtypes = [CParams]
_lib.blosc2_create_cctx.restype = ctypes.c_void_p
_lib.blosc2_create_dctx.argtypes = [DParams]
_lib.blosc2_create_dctx.restype = ctypes.c_void_p
_lib.blosc2_free_ctx.argtypes = [ctypes.c_void_p]
_lib.blosc2_compress_ctx.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32]
_lib.blosc2_decompress_ctx.argtypes = _lib.blosc2_compress_ctx.argtypes
_lib.blosc2_vlcompress_ctx.argtypes = [
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_int32), ctypes.c_int32,
    ctypes.c_char_p, ctypes.c_int32,
]
_lib.blosc1_compress.argtypes = [
    ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t,
]
_lib.blosc2_meta_add.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32]
_lib.blosc2_vlmeta_add.argtypes = [*_lib.blosc2_meta_add.argtypes, ctypes.c_void_p]
for _name in ["zeros", "nans", "uninit", "repeatval"]:
    _function = getattr(_lib, f"blosc2_chunk_{_name}")
    _function.argtypes = [CParams, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32]
    if _name == "repeatval":
        _function.argtypes = [*_function.argtypes, ctypes.c_char_p]

def params(codec="blosclz", clevel=5, typesize=8, blocksize=0, splitmode=FORWARD_COMPAT_SPLIT, filters=(), metas=(), use_dict=0,
           nthreads=1, instr=False):
    """Compression parameters; `filters` fill the pipeline from its end, as the library's own defaults do."""
    filters, metas = list(filters), list(metas) or [0] * len(filters)
    pad = [0] * (6 - len(filters))
    return CParams(
        compcode=CODECS[codec], clevel=clevel, typesize=typesize, blocksize=blocksize, splitmode=splitmode, use_dict=use_dict,
        nthreads=nthreads, filters=(ctypes.c_uint8 * 6)(*pad, *filters), filters_meta=(ctypes.c_uint8 * 6)(*pad, *metas),
        instr_codec=instr,
    )


def _with_context(cparams, call, room):
    context = _lib.blosc2_create_cctx(cparams)
    if not context:
        raise ValueError("blosc2_create_cctx refused the parameters")
    out = ctypes.create_string_buffer(room)
    size = call(context, out, room)
    _lib.blosc2_free_ctx(context)
    return out.raw[:size] if size > 0 else None


def compress(data, cparams):
    """One chunk of `data`, or None where the library makes none with these parameters."""
    room = len(data) + OVERHEAD + (1 << 20 if cparams.instr_codec else 0)
    return _with_context(cparams, lambda ctx, out, n: _lib.blosc2_compress_ctx(ctx, data, len(data), out, n), room)


def vlcompress(blocks, cparams):
    """One chunk of VL-blocks."""
    pointers, sizes = (ctypes.c_char_p * len(blocks))(*blocks), (ctypes.c_int32 * len(blocks))(*map(len, blocks))
    room = sum(map(len, blocks)) * 2 + 1024 + 16 * len(blocks)
    return _with_context(cparams, lambda ctx, out, n: _lib.blosc2_vlcompress_ctx(ctx, pointers, sizes, len(blocks), out, n), room)


def compress_blosc1(data, clevel, shuffle, typesize, codec, splitmode=FORWARD_COMPAT_SPLIT, delta=False):
    """One chunk with the header of Blosc1."""
    out = ctypes.create_string_buffer(len(data) + OVERHEAD)
    _lib.blosc1_set_compressor(codec.encode())
    _lib.blosc1_set_splitmode(splitmode)
    _lib.blosc2_set_delta(int(delta))
    os.environ["BLOSC_BLOSC1_COMPAT"] = "1"
    size = _lib.blosc1_compress(clevel, shuffle, typesize, len(data), data, out, len(out))
    del os.environ["BLOSC_BLOSC1_COMPAT"]
    _lib.blosc2_set_delta(0)
    return out.raw[:size] if size > 0 else None


def special(name, cparams, nbytes, value=b""):
    """A chunk that is a run of zeros, nans, uninit or repeatval."""
    out = ctypes.create_string_buffer(OVERHEAD + len(value))
    call = getattr(_lib, f"blosc2_chunk_{name}")
    size = call(cparams, nbytes, out, len(out), *([value] if value else []))
    return out.raw[:size] if size > 0 else None


def decompress(chunk, nbytes):
    """What the library reads from a chunk, or its (negative) error code."""
    # A fresh context each time: a used one keeps the filters' metadata for a Blosc1 chunk that has none.
    context = _lib.blosc2_create_dctx(DParams(nthreads=1))
    out = ctypes.create_string_buffer(max(nbytes, 1))
    size = _lib.blosc2_decompress_ctx(context, chunk, len(chunk), out, nbytes)
    _lib.blosc2_free_ctx(context)
    return out.raw[:size] if size >= 0 else size


def add_metalayer(schunk, name, content):
    """A metalayer of any bytes, where python-blosc2 packs what it is given. Before the first chunk only."""
    assert _lib.blosc2_meta_add(schunk.c_schunk, name.encode(), content, len(content)) >= 0, name


def add_vlmetalayer(schunk, name, content):
    """Likewise, compressed."""
    assert _lib.blosc2_vlmeta_add(schunk.c_schunk, name.encode(), content, len(content), None) >= 0, name
