#!/usr/bin/env python3
"""Objects that python-blosc2 stores as frames: expressions, functions, caches, references, stores, arrays of objects. Each kind is made by the
library itself, in both layouts where it can be.

What their chunks hold is not what a reader of the object gets. So decompressed views, `convert` to .npy and `cat --npy` refuse each kind by its
class, in one line that says what helps; a directory shows it as it is on disk; `info` says what it is; layouts are converted all the same. Arrays
beside them are shown. What the lines advise in Python is tried.

Then item types: arrays whose type has another size than their items, or none that NumPy knows, are refused with what helps, and shown with it.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import blosc2
import numpy as np
from blosc2 import b2objects

from mounts import Mount, default_binary

B2FUSE = default_binary()
VALUES = np.arange(1.0, 2001.0)
passed = failed = 0


def check(what, got, expected=True):
    global passed, failed
    if got == expected:
        passed += 1
    else:
        failed += 1
        print(f"{what}: got {got!r}, expected {expected!r}")


def run(*command, **options):
    return subprocess.run([B2FUSE, *map(str, command)], capture_output=True, timeout=60, **options)


@blosc2.dsl_kernel
def twice(x):
    return x * 2


def doubled(inputs, output, offset):
    output[:] = inputs[0] * 2


@dataclass
class Row:
    number: int = blosc2.field(blosc2.int64())


def carrier(kind, path):
    """As the library saves a reference to what is elsewhere, without a server."""
    array = b2objects.make_b2object_carrier(kind, (2000,), np.float64, urlpath=path, mode="w")
    b2objects.write_b2object_payload(array, {"kind": kind, "version": 1})


def older(number, path):
    """As older versions save expressions."""
    blosc2.empty((2000,), np.float64, urlpath=path, mode="w", meta={"LazyArray": number})


def make():
    """Objects: path to class. Frames that are none: path to values."""
    array = blosc2.asarray(VALUES, urlpath="array.b2nd", mode="w", chunks=(500,), blocks=(100,))
    (array * 2).save("expression.b2nd")
    (array + array).save("expression.sparse.b2nd", contiguous=False)
    blosc2.lazyudf(doubled, (array,), array.dtype).save("function.b2nd")
    blosc2.lazyudf(twice, (array,), array.dtype).save("kernel.b2nd")
    blosc2.Proxy(array, urlpath="proxy.b2nd", mode="w").fetch(slice(0, 600))
    blosc2.Proxy(array, urlpath="proxy.sparse.b2nd", mode="w", contiguous=False)
    chunks = blosc2.SChunk(chunksize=8000, data=VALUES.tobytes(), urlpath="super.b2frame", mode="w", cparams={"typesize": 8})
    blosc2.Proxy(chunks, urlpath="super.proxy.b2frame", mode="w")
    carrier("remote_array", "remote.b2nd")
    carrier("c2array", "c2array.b2nd")
    carrier("newer", "newer.b2nd")
    older(0, "older.expression.b2nd")
    older(1, "older.function.b2nd")
    store = blosc2.EmbedStore("embed.b2e", mode="w")
    store["/x"] = VALUES
    del store
    with blosc2.DictStore("dict.b2d", mode="w") as store:
        store["/x"] = VALUES
    with blosc2.TreeStore("tree.b2d", mode="w") as store:
        store["/g/x"] = VALUES
    with blosc2.CTable(Row, urlpath="table.b2d", mode="w") as table:
        table.append((1,))
    blosc2.ObjectArray(urlpath="object.b2frame", mode="w").extend([{"a": 1}, [1, 2]])
    blosc2.BatchArray(urlpath="batch.b2b", mode="w").append([1, 2, 3])
    with blosc2.ListArray(item_spec=blosc2.int64(), urlpath="list.b2b", mode="w") as lists:
        lists.append([1, 2])
    fields = np.zeros(50, dtype=[("a", "<i4"), ("b", "<f8")])
    blosc2.asarray(fields, urlpath="fields.b2nd", mode="w")["b"]
    blosc2.asarray(VALUES, urlpath="mine.b2nd", mode="w", meta={"proxy": {}, "b2": 1})
    blosc2.asarray(VALUES, urlpath="sparse.b2nd", mode="w", contiguous=False)
    blosc2.blosc2_ext.open("expression.b2nd", "r", 0).copy(urlpath="copied.b2nd", mode="w")
    objects = {
        "expression.b2nd": "LazyExpr",
        "expression.sparse.b2nd": "LazyExpr",
        "copied.b2nd": "LazyExpr",
        "function.b2nd": "LazyUDF",
        "kernel.b2nd": "LazyUDF",
        "proxy.b2nd": "Proxy",
        "proxy.sparse.b2nd": "Proxy",
        "super.proxy.b2frame": "Proxy",
        "remote.b2nd": "RemoteArray",
        "c2array.b2nd": "C2Array",
        "newer.b2nd": "object",
        "older.expression.b2nd": "LazyExpr",
        "older.function.b2nd": "LazyUDF",
        "embed.b2e": "EmbedStore",
        "dict.b2d/embed.b2e": "DictStore",
        "tree.b2d/embed.b2e": "TreeStore",
        "table.b2d/embed.b2e": "TreeStore",
        "object.b2frame": "ObjectArray",
        "batch.b2b": "BatchArray",
        "list.b2b": "ListArray",
    }
    plain = {name: VALUES for name in ("array.b2nd", "mine.b2nd", "sparse.b2nd", "dict.b2d/x.b2nd", "tree.b2d/g/x.b2nd")}
    plain["fields.b2nd"] = fields
    return objects, plain


def refused(what, done, path, words):
    """One line that begins with the path."""
    said = done.stderr.decode()
    check(f"{what}: exit code", done.returncode, 1)
    check(f"{what}: {said!r} is one line that begins with the path", said.count("\n") == 1 and said.startswith(path))
    for word in words:
        check(f"{what}: {said!r} has {word!r}", word in said)
    check(f"{what}: bytes written", len(done.stdout or b""), 0)


def everywhere(path, words):
    """Every way to the values."""
    for show in ("npy", "raw") if words[0] != "dtype" else ("npy",):
        refused(f"mount --show {show} {path}", run("mount", "-r", "--show", show, path, "../v"), path, words)
        subprocess.run(["umount", "-l", "../v"], capture_output=True)
    refused(f"convert {path}", run("convert", path, "../out.npy"), path, words)
    check(f"convert {path}: made", [name for name in os.listdir("..") if "out" in name], [])
    refused(f"cat --npy {path}", run("cat", "--npy", path), path, words)


def bytes_of(path):
    path = Path(path)
    if path.is_dir():
        return {entry.name: entry.read_bytes() for entry in path.iterdir()}
    return path.read_bytes()


def main():
    with tempfile.TemporaryDirectory() as top:
        os.chdir(top)
        os.mkdir("frames")
        os.mkdir("v")
        os.chdir("frames")
        objects, plain = make()
        for path, name in objects.items():
            everywhere(path, [name, "metalayer b2o" if name == "object" else "Python-Blosc2", "in Python"])
            info = json.loads(run("info", "--json", path).stdout)
            check(f"info --json {path}", info["object"], name)
            check(f"info {path}", f"{name} of Python-Blosc2" in run("info", path).stdout.decode() or name == "object")
            check(f"convert {path} to the other layout", run("convert", path, "../other").returncode, 0)
            subprocess.run(["rm", "-r", "../other"], check=True)
        for path in plain:
            check(f"info --json {path}", json.loads(run("info", "--json", path).stdout)["object"], None)
        for show in ("npy", "raw"):
            with Mount(Path.cwd(), "../v", ["-r", "--show", show]):
                for path in objects:
                    check(f"{path} in a directory with --show {show}", bytes_of(f"../v/{path}"), bytes_of(path))
                    check(f"{path}.{show} in a directory", os.path.lexists(f"../v/{path}.{show}"), False)
                for path, values in plain.items():
                    got = Path(f"../v/{path}.{show}")
                    got = np.load(got) if show == "npy" else np.frombuffer(got.read_bytes(), values.dtype)
                    check(f"{path} in a directory with --show {show}", got.tobytes(), values.tobytes())
        remedies()
        item_types()
        os.chdir("/")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


def remedies():
    for name, values in [("expression", VALUES * 2), ("kernel", VALUES * 2), ("function", VALUES * 2)]:
        blosc2.open(f"{name}.b2nd", mode="r", deserialize="full").compute(urlpath="new.b2nd", mode="w")
        check(f"convert what {name} computes", run("convert", "new.b2nd", "new.npy").returncode, 0)
        check(f"what {name} computes", np.load("new.npy").tobytes(), values.tobytes())
        os.remove("new.npy")
        os.remove("new.b2nd")
    blosc2.asarray(blosc2.open("proxy.b2nd", mode="r", deserialize="full")[:], urlpath="new.b2nd")
    check("what a cache fetches", blosc2.open("new.b2nd", mode="r")[:].tobytes(), VALUES.tobytes())
    os.remove("new.b2nd")
    blosc2.DictStore("dict.b2d", mode="r")["/x"].save("new.b2nd")
    check("what a store saves", blosc2.open("new.b2nd", mode="r")[:].tobytes(), VALUES.tobytes())
    check("what an array of objects holds", blosc2.open("object.b2frame", mode="r")[:], [{"a": 1}, [1, 2]])


def item_types():
    array = Path("array.b2nd").read_bytes()
    assert array.count(b"\xdb\0\0\0\x03<f8") == 1
    for text, words in [
        (b"<f4", ["dtype", "'<f4' of 4 bytes", "one of 8 bytes"]),
        (b"bf2", ["dtype", '"bf2"', "a type that NumPy knows"]),
        (b"|O8", ["dtype", "Python objects", "items with values"]),
    ]:
        path = "typed.b2nd"
        Path(path).write_bytes(array.replace(b"\xdb\0\0\0\x03<f8", b"\xdb\0\0\0\x03" + text))
        everywhere(path, [*words, "-o dtype=TYPE", "--show raw"])
        with Mount(path, "../v", ["-r", "--show", "npy", "-o", "dtype=<f8"]):
            check(f"{text} with a type that is named", np.load("../v/typed.b2nd.npy").tobytes(), VALUES.tobytes())
        with Mount(path, "../v", ["-r", "--show", "raw"]):
            check(f"{text} without a type", Path("../v/typed.b2nd.raw").read_bytes(), VALUES.tobytes())
        named = run("mount", "-r", "--show", "npy", "-o", "dtype=<i2", path, "../v")
        refused(f"{text} with a type that does not fit", named, path, ["'<i2' of 2 bytes", "one of 8 bytes"])
        check(f"convert {text} to the other layout", run("convert", path, "../other").returncode, 0)
        subprocess.run(["rm", "-r", "../other"], check=True)
    with Mount("array.b2nd", "../v", ["-r", "--show", "npy", "-o", "dtype=<i8"]):
        check("an array's own type stays", np.load("../v/array.b2nd.npy").dtype, np.dtype("<f8"))


if __name__ == "__main__":
    main()
