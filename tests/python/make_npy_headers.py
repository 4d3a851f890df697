"""Writes names of types and the .npy headers that NumPy makes of them, and slices and what it takes, for tests/npy.rs.

    make_npy_headers.py DIRECTORY [SEED]

DIRECTORY/cases.bin   cases of five fields, each with its length (u32, little endian):
                      the text that names the type, as b2nd holds it or as a user writes it;
                      the shape (u64 each);
                      what np.save writes in front of the items, empty where NumPy refuses the type;
                      str(dtype) of the text, or dtype.str of what is no structure;
                      the same of the type that np.load makes of the header

DIRECTORY/slices.bin  slices of three fields: the text between the brackets, the shape of an array (u64 each), and what NumPy takes
                      of numpy.arange: the dimensions of the result, their sizes, and its items (i64 each); empty where it refuses

Types are single names, and random structures: nested, aligned, padded, with titles, with fields that overlap. Where python-blosc2
can hold an array of the type, text and header are those of its own metalayer and of its `array[()]`.
"""

import ast
import io
import pathlib
import random
import struct
import sys
import warnings

import blosc2
import numpy as np

# Where it is since NumPy 2.3, and where it was.
npy = getattr(np.lib, "_format_impl", np.lib.format)
warnings.simplefilter("ignore")

NAMES = """
    ? b B h H i I l L q Q p P n N e f d g F D G c S U V M m
    bool bool_ byte ubyte short ushort intc uintc int uint int_ intp uintp long ulong longlong ulonglong half single double
    float longdouble csingle cdouble complex clongdouble str bytes void str_ bytes_ unicode
    int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 float128 complex64 complex128 complex256
    b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 f16 c8 c16 c32 S5 U7 V9 a3 S05 U0 V300 S2147483647 U536870911
    M8 m8 datetime64 timedelta64 M8[Y] M8[M] M8[W] M8[D] M8[h] M8[m] M8[s] M8[ms] M8[us] M8[ns] M8[ps] M8[fs] M8[as]
    M8[25s] m8[10Y] m8[0s] m8[1s] M8[generic] M8[2147483647s] datetime64[ns] timedelta64[2D] M8[μs]
    i3 f12 c24 M4 i16 u3 b2 ?1 c1 x Float32 int0 bool8 void64 bytes8 str32 S-1 Sx f4x 4 S2147483648 U536870912 V99999999999
    M8[ M8[] M8[x] M8[-1s] M8[1.5s] M8[2147483648s] m8[ns M8ns M8[B] > < <> <<i4
""".split()
ORDERS = ["", "<", ">", "=", "|"]
# Those of structures, and what is no literal.
TEXTS = r"""
    [('a', '<i4'), ('', '<f8')]
    [('f1', '<i4'), ('', '<f8')]
    [('', '<i4'), ('f0', '<f8')]
    [('a', '<i4'), ('a', '<f8')]
    [(('t', 'a'), '<i4'), ('t', '<f8')]
    [(('', 'a'), '<i4')]
    [(('t', ''), '<i4')]
    [('a', 'i4', 1), ('b', 'i4', 3), ('c', 'i4', ()), ('d', 'i4', (0,)), ('e', 'i4', [2, 3])]
    [('a', 'i4', -1)]
    [('a', ('i4', (2,)), (3,))]
    [('a', ('S', 5)), ('b', ('U', 3)), ('c', ('V', 2))]
    [('a', 'S'), ('b', 'U'), ('c', 'V'), ('d', 'i1')]
    [('a', 'i4', (2,), 'x')]
    [('a',)]
    ['a']
    []
    {'names': [], 'formats': [], 'offsets': [], 'itemsize': 10}
    {'names': [], 'formats': []}
    {'names': ['a'], 'formats': ['i4'], 'offsets': [3]}
    {'names': ['a'], 'formats': ['i4'], 'offsets': [-1]}
    {'names': ['a'], 'formats': ['i4'], 'itemsize': 10}
    {'names': ['a'], 'formats': ['i4'], 'itemsize': 2}
    {'names': ['a'], 'formats': ['i4'], 'itemsize': 5, 'aligned': True}
    {'names': ['a'], 'formats': ['i4'], 'offsets': [2], 'aligned': True}
    {'names': ['a', 'b'], 'formats': ['i1', 'f8'], 'aligned': True}
    {'names': ['a', 'b'], 'formats': ['i1', [('x', 'i1'), ('y', 'i4')]], 'aligned': True}
    {'names': ['a', 'b'], 'formats': ['i1', [('x', 'i1'), ('y', 'c16', (2,))]], 'aligned': False}
    {'names': ['', 'b'], 'formats': ['i1', 'i1']}
    {'names': ['a', 'a'], 'formats': ['i1', 'i1']}
    {'names': ['a', 'b'], 'formats': ['i1', 'i1'], 'titles': ['t', None]}
    {'names': ['a', 'b'], 'formats': ['i1', 'i1'], 'titles': ['b', None]}
    {'names': ('a',), 'formats': ('i1',), 'offsets': (5,)}
    {'names': ['a'], 'formats': ['i4'], 'offsets': [2147483640]}
    {'names': ['a'], 'formats': ['i4'], 'offsets': [2147483644]}
    {'names': ['a'], 'formats': ['i4'], 'itemsize': 4294967296}
    {'names': ['a']}
    ('<i4', (3,))
    ('<i4', (1,))
    ('<i4', ())
    ('<i4', 2)
    ('<i4', (2, 0))
    (('<i4', (2,)), (3,))
    ('<f8', (65536, 65536))
    ([('x', '<f8')], (2, 2))
    ('i4',)
    ()
    [('a\x41\u00e9\U0001f600\n\'"\\', 'i4')]
    [("q'q", 'i4'), ('q"q', 'i4'), ('q\'"q', 'i4')]
    [(u'a', u'<i4')]
    [('a', 'i4'),]
    [ ( 'a' , 'i4' ) , ]
    [('a', 'i4')
    [('a', 'i4'))
    [('a', __import__('os').system('true'))]
    [('a', 'i' + '4')]
    [('a', i4)]
    ['i4' for a in (1, 2)]
    [None, True]
    {1: 2}
    [('a', 'i4') ('b', 'i4')]
""".strip().splitlines()
LETTERS = "abcXYZ09_ '\"\\\n\t\r\x00\x7f\x80\xa0\xad\xe9\xff\u0101\u200b\u2028\u3000\u65e5\ufeff\U0001f600\U000e0041"


def text_of(dtype):
    return str(dtype) if dtype.kind == "V" else dtype.str


def read(text):
    """As python-blosc2 does."""
    try:
        return np.dtype(text)
    except (ValueError, TypeError):
        return np.dtype(ast.literal_eval(text))


def header_of(dtype, shape):
    """What np.save writes in front of the items of numpy.empty(shape, dtype)."""
    whole, shape = dtype, tuple(shape)
    if whole.kind in "Mm":
        # Without a unit, it becomes little endian.
        whole = np.empty((), whole).dtype
    while whole.subdtype:
        whole, more = whole.subdtype
        shape += more
    try:
        descr = npy.dtype_to_descr(whole)
    except ValueError as error:
        # NumPy has no words for these.
        assert "overlapping" in str(error), error
        descr = f"|V{whole.itemsize}"
    file = io.BytesIO()
    npy._write_array_header(file, {"descr": descr, "shape": shape, "fortran_order": False})
    return file.getvalue()


def random_name(rng):
    if rng.random() < 0.7:
        return rng.choice("xyzvwrgb") + str(rng.randrange(1000))
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 6)))


def random_scalar(rng):
    kind = rng.choice("biufcSUVMm")
    sizes = {"b": [1], "i": [1, 2, 4, 8], "u": [1, 2, 4, 8], "f": [2, 4, 8, 16], "c": [8, 16, 32], "M": [8], "m": [8]}
    size = rng.choice(sizes.get(kind) or [1, 2, 3, 5, 17, 255, 300])
    unit = ""
    if kind in "Mm" and rng.random() < 0.8:
        unit = f"[{rng.choice(['', 1, 25, 1000])}{rng.choice('Y M W D h m s ms us ns ps fs as'.split())}]"
    return np.dtype(rng.choice("<>") + kind + str(size) + unit)


def random_shape(rng, dims, size):
    return tuple(rng.randrange(1, size) for _ in range(rng.randrange(1, dims)))


def random_dtype(rng, depth=0):
    roll = rng.random()
    if depth > 3 or roll < (0.15 if depth == 0 else 0.6):
        return random_scalar(rng)
    if roll < (0.25 if depth == 0 else 0.7):
        return np.dtype((random_dtype(rng, depth + 1), random_shape(rng, 4, 4)))
    count = rng.randrange(0, 6) if depth else rng.randrange(1, 7)
    names = list(dict.fromkeys(random_name(rng) for _ in range(count)))
    formats = [random_dtype(rng, depth + 1) for _ in names]
    fields = {"names": names, "formats": formats}
    if rng.random() < 0.2:
        fields["titles"] = [f"title {name}" if rng.random() < 0.7 else None for name in names]
    way = rng.random()
    if way < 0.3:
        fields["aligned"] = True
    elif way < 0.6:
        offset, fields["offsets"] = 0, []
        for dtype in formats:
            offset += rng.choice([0, 0, 1, 3, 8])
            fields["offsets"].append(offset)
            offset += dtype.itemsize
        fields["itemsize"] = offset + rng.choice([0, 0, 1, 7])
    elif way < 0.65:
        fields["offsets"] = [rng.randrange(0, 16) for _ in names]
    elif way < 0.7:
        return np.dtype((np.void, np.dtype(fields)))
    return np.dtype(fields)


def from_library(dtype, shape):
    """Text and header as python-blosc2 has them; None where it cannot have an array of the type."""
    try:
        if read(text_of(dtype)).itemsize != dtype.itemsize:
            # str() loses which structure is aligned: the library would write more into an array than there is room for.
            return None
        array = blosc2.zeros(shape, dtype=dtype)
        array = blosc2.ndarray_from_cframe(array.to_cframe(), copy=True)
        text, whole = array.schunk.meta["b2nd"][6], array[()]
    except (ZeroDivisionError, TypeError, ValueError, RuntimeError, SyntaxError, AttributeError):
        return None
    file = io.BytesIO()
    try:
        np.save(file, whole)
    except ValueError as error:
        assert "overlapping" in str(error), error
        return text, header_of(array.dtype, shape)
    return text, file.getvalue()[: len(file.getvalue()) - whole.nbytes]


def random_slice(rng, shape):
    def number(size):
        return rng.choice(["", "", rng.randrange(-size - 3, size + 4), 2**70, -(2**70)][: 5 if rng.random() < 0.1 else 3])

    parts = []
    for size in shape[: rng.randrange(1, len(shape) + 1) if rng.random() < 0.7 and shape else None]:
        roll = rng.random()
        if roll < 0.25:
            parts.append(str(rng.randrange(-size - 1, size + 1) if size else 0))
        elif roll < 0.4:
            parts.append(":")
        else:
            step = "" if rng.random() < 0.4 else f":{rng.choice([*range(-4, 5), 2**63, -(2**63)])}"
            parts.append(f"{number(size)}:{number(size)}{step}")
    if rng.random() < 0.3 or not parts:
        at = rng.randrange(len(parts) + 1)
        parts[at : at + rng.randrange(2)] = ["..."]
    if rng.random() < 0.05:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(["0", ":", "...", ""]))
    return rng.choice([",", ", "]).join(parts) + ("," if rng.random() < 0.05 else "")


def write_slices(out, rng):
    for _ in range(4000):
        shape = tuple(rng.choice([0, 1, 2, 3, 5, 8]) if rng.random() < 0.9 else 13 for _ in range(rng.randrange(5)))
        text, array = random_slice(rng, shape), np.arange(np.prod(shape, dtype=int)).reshape(shape)
        try:
            taken = np.asarray(eval(f"array[{text}]"))
            taken = struct.pack(f"<{1 + taken.ndim + taken.size}q", taken.ndim, *taken.shape, *taken.ravel())
        except (IndexError, ValueError, SyntaxError):
            taken = b""
        for field in [text.encode(), struct.pack(f"<{len(shape)}Q", *shape), taken]:
            out.write(struct.pack("<I", len(field)) + field)


def main():
    directory, rng = pathlib.Path(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 17)
    count = {"by the library": 0, "refused": 0, "in all": 0}
    with open(directory / "cases.bin", "wb") as out:

        def case(text, shape, header=None):
            try:
                dtype = read(text)
                if dtype.hasobject or dtype.isbuiltin == 2 or dtype == np.dtypes.StringDType():
                    raise TypeError("not held")
                header = header or header_of(dtype, shape)
                back = io.BytesIO(header)
                version = npy.read_magic(back)
                back = npy._read_array_header(back, version, max_header_size=1 << 20)[2]
                texts = [text_of(dtype), text_of(back)]
            except (TypeError, ValueError, SyntaxError, OverflowError):
                header, texts = b"", ["", ""]
                count["refused"] += 1
            for field in [text.encode(), struct.pack(f"<{len(shape)}Q", *shape), header, *map(str.encode, texts)]:
                out.write(struct.pack("<I", len(field)) + field)
            count["in all"] += 1

        for name in NAMES:
            for order in ORDERS:
                case(order + name, (3,))
        for text in TEXTS:
            case(text.strip(), (2,))
        for _ in range(1500):
            shape = tuple(rng.choice([0, 1, 2, 3, 10, 11]) for _ in range(rng.randrange(0, 9)))
            try:
                dtype = random_dtype(rng)
                if dtype.itemsize > 1 << 20:
                    continue
            except ValueError:
                continue
            small = tuple(min(size, 2) for size in shape[:4])
            found = from_library(dtype, small)
            if found:
                count["by the library"] += 1
                case(found[0], small, found[1])
            case(text_of(dtype), shape)
        # Lengths around those where a version ends, and where a line of spaces is full.
        for length in [*range(1, 70), *range(65440, 65490)]:
            case(f"[('{'n' * length}', '<i4')]" if length < 1000 else f"[('{'n' * (length - 10)}', '<i4')]", (7, 3))
        for size in [0, 9, 10, 10**9, 2**31, 2**59]:
            case("<f4", (size, 3))
            case("<f4", (size,))
    with open(directory / "slices.bin", "wb") as out:
        write_slices(out, rng)
    print(", ".join(f"{number} {what}" for what, number in count.items()))


main()
