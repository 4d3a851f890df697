"""What python-blosc2 keeps in more than one frame, or in frames of its own kinds, in a mounted tree and natively: see trees.py.

A kind of container is a class: `make` writes the first state, `change` makes one change that a seed draws, `read` answers everything
that can be read, as plain values. The library must answer the same in the mount and in a native directory, find the same in DIR and
in a second mount, and in a directory that is a store of its own all frames are files, in the view and in DIR. The second mount shows
archives (.b2z) as directories, which hold what the archives do, and are read as the stores that they are.
"""

import dataclasses
import gc
import hashlib
import os
import pickle
import shutil
import traceback
import zipfile
from pathlib import Path

import blosc2
import numpy as np

from mounts import Mount

STEPS = 40


def values(rng):
    """An array that a store may hold."""
    shape = [int(n) for n in rng.integers(1, 40, int(rng.integers(1, 3)))]
    way = int(rng.integers(3))
    if way == 0:
        return np.arange(int(np.prod(shape)), dtype="i4").reshape(shape)
    if way == 1:
        return rng.random(shape)
    return np.zeros(shape, "u1")


def thing(rng):
    """What python-blosc2 stores under a key: an array of either kind, or a super-chunk."""
    way = int(rng.integers(3))
    if way == 0:
        return values(rng)
    if way == 1:
        return blosc2.asarray(values(rng))
    return blosc2.SChunk(chunksize=4000, data=rng.bytes(4000 * (1 + int(rng.integers(3)))), cparams={"typesize": 1})


def digest(data):
    """Bytes in a form that a message may hold."""
    return f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:16]}"


def plain(value):
    """A stored value as something that compares."""
    if isinstance(value, blosc2.SChunk):
        return ("schunk", digest(value[:]))
    if isinstance(value, (blosc2.NDArray, np.ndarray)):
        array = value[...] if isinstance(value, blosc2.NDArray) else value
        return ("array", array.shape, str(array.dtype), digest(array.tobytes()))
    return ("other", type(value).__name__, str(value))


class Keyed:
    """Stores of named values."""

    SUFFIXES = [".b2d"]
    KEYS = ["/a", "/b", "/group/a", "/group/b", "/group/deep/c", "/with space"]

    def open(self, path, mode):
        return self.TYPE(str(path), mode=mode)

    def close(self, store):
        close = getattr(store, "close", None)
        if close:
            close()

    def make(self, path, rng):
        store = self.open(path, "w")
        for key in self.KEYS[:3]:
            store[key] = thing(rng)
        self.close(store)

    def change(self, path, rng):
        store = self.open(path, "a")
        keys = sorted(key for key in store.keys() if key in self.KEYS)
        for _ in range(1 + int(rng.integers(3))):
            key = self.KEYS[int(rng.integers(len(self.KEYS)))]
            if key in keys:
                # A value is replaced by way of its removal, which all of them have.
                del store[key]
                keys.remove(key)
                if rng.random() < 0.4:
                    continue
            store[key] = thing(rng)
            keys.append(key)
        self.close(store)

    def read(self, path):
        store = self.open(path, "r")
        seen = {key: plain(store[key]) for key in sorted(store.keys()) if key in self.KEYS}
        self.close(store)
        return seen


class Tree(Keyed):
    TYPE = blosc2.TreeStore
    # A store is one by what is in it, too.
    SUFFIXES = [".b2d", "", ".b2z"]


class Dict(Keyed):
    TYPE = blosc2.DictStore
    SUFFIXES = [".b2d", ".b2z"]


class Embed(Keyed):
    TYPE = blosc2.EmbedStore
    SUFFIXES = [".b2e"]


@dataclasses.dataclass
class Row:
    id: int = blosc2.field(blosc2.int64())
    x: float = blosc2.field(blosc2.float64())


class Table:
    SUFFIXES = [".b2d", ".b2z"]

    def make(self, path, rng):
        table = blosc2.CTable(Row, urlpath=str(path), mode="w")
        table.extend(self.rows(rng))
        table.close()

    @staticmethod
    def rows(rng):
        return [(int(n), float(rng.random())) for n in rng.integers(0, 1000, 20)]

    def change(self, path, rng):
        table = blosc2.CTable.open(str(path), mode="a")
        way = int(rng.integers(4))
        if way == 0:
            table.append((int(rng.integers(1000)), 0.5))
        elif way == 1:
            table.extend(self.rows(rng))
        elif way == 2 and table.nrows > 5:
            table.delete(int(rng.integers(table.nrows)))
        else:
            table.rebuild_index("id")
        table.close()

    def read(self, path):
        table = blosc2.CTable.open(str(path), mode="r")
        seen = {"id": table["id"][:].tolist(), "x": table["x"][:].tolist(), "found": table.where(table["id"] < 500).nrows}
        table.close()
        return seen


class Objects:
    """Arrays of Python objects: one frame each, in either layout."""

    SUFFIXES = [".b2frame", ".b2b"]
    TYPE = blosc2.ObjectArray

    def item(self, rng):
        return [int(rng.integers(100)), "text" * int(rng.integers(50)), {"n": int(rng.integers(9))}, None][int(rng.integers(4))]

    def make(self, path, rng):
        array = self.TYPE(urlpath=str(path), mode="w", contiguous=bool(rng.random() < 0.5))
        for _ in range(5):
            array.append(self.item(rng))

    def change(self, path, rng):
        array = blosc2.open(str(path), mode="a")
        way, n = int(rng.integers(5)), int(rng.integers(len(array)))
        if way == 0:
            array.append(self.item(rng))
        elif way == 1:
            array.insert(n, self.item(rng))
        elif way == 2:
            array[n] = self.item(rng)
        elif way == 3:
            array.extend([self.item(rng) for _ in range(3)])
        elif len(array) > 2:
            array.pop(n)

    def read(self, path):
        return {"items": [self.plain(item) for item in blosc2.open(str(path))]}

    @staticmethod
    def plain(item):
        return item


class Batches(Objects):
    SUFFIXES = [".b2b", ".b2frame"]
    TYPE = blosc2.BatchArray

    def item(self, rng):
        return [super(Batches, self).item(rng) for _ in range(1 + int(rng.integers(6)))]

    @staticmethod
    def plain(item):
        return list(item)


class Indexed:
    """An array with an index, which the library keeps in the frame and in frames beside it, by their whole paths: not to be moved."""

    SUFFIXES = [".b2nd"]
    INDEXES = ["SUMMARY", "BUCKET", "PARTIAL", "FULL"]
    # What the library can do with a contiguous array alone: it cannot open another at an offset.
    OF_FILES = "found"
    OF_ITS_PLACE = ["sorted", "indexes"]

    def make(self, path, rng):
        array = blosc2.asarray(rng.permutation(20_000), urlpath=str(path), mode="w", contiguous=bool(rng.random() < 0.5), chunks=(5000,))
        array.create_index(kind=self.kind(rng))

    def kind(self, rng):
        return blosc2.IndexKind[self.INDEXES[int(rng.integers(4))]]

    def change(self, path, rng):
        array = blosc2.open(str(path), mode="a")
        way = int(rng.integers(3))
        if way == 0:
            array[int(rng.integers(20_000))] = int(rng.integers(20_000))
            array.rebuild_index()
        elif way == 1:
            array.drop_index()
            array.create_index(kind=self.kind(rng))
        else:
            array.append(rng.integers(0, 20_000, 100))
            array.rebuild_index()

    def read(self, path, elsewhere=False):
        array = blosc2.open(str(path), mode="r")
        if elsewhere:
            return {"array": digest(array[:].tobytes())}
        seen = {"array": digest(array[:].tobytes()), "sorted": digest(blosc2.sort(array)[:].tobytes()), "indexes": [str(index["kind"]) for index in array.indexes]}
        if array.schunk.contiguous:
            seen[self.OF_FILES] = sorted(blosc2.lazyexpr("a < 50", {"a": array}).where(array).compute()[:].tolist())
        return seen


KINDS = [Tree, Dict, Embed, Table, Objects, Batches, Indexed]


def is_store(path):
    return path.suffix == ".b2d" or (path.is_dir() and (path / "embed.b2e").exists())


def apart(act):
    """Does something in a process of its own: the library keeps files of indexes and stores open, for as long as it runs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            try:
                answer = (act(), None)
            except Exception as error:
                answer = (None, error)
            gc.collect()
            with open(writing, "wb") as pipe:
                pickle.dump(answer, pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    answer, error = pickle.loads(data)
    if error is not None:
        raise error
    return answer


class Play:
    """One sequence, on the sides of a `trees.Sequence`."""

    def __init__(self, sequence):
        self.sequence, self.rng = sequence, sequence.rng
        self.there = {}
        # The library opens an index's frames at an offset, which directories have none of: see src/view/views.md, what a changed kind breaks.
        self.kinds = [kind for kind in KINDS if kind is not Indexed or sequence.show != "sparse"]
        self.numbers = iter(range(10**6))

    def run(self):
        steps = [self.make] * 3 + [self.change] * 8 + [self.remake, self.rename, self.remove] + [self.remount] * (not self.sequence.options.self_test)
        for kind in self.kinds:
            self.make(kind)
        for step in range(min(STEPS, self.sequence.options.steps)):
            self.sequence.step = step
            self.sequence.pick(*steps)()
        self.remount() if not self.sequence.options.self_test else self.compare_all()

    def some(self):
        return self.sequence.pick(*sorted(self.there))

    def both(self, text, name, act):
        """Both sides answer alike, with numbers of their own from the same seed."""
        seed = int(self.rng.integers(2**31))
        self.sequence.both(text, lambda side: apart(lambda: act(side / name, np.random.default_rng(seed))))

    def make(self, kind=None):
        kind = kind or self.sequence.pick(*self.kinds)
        folder = self.sequence.pick("", "sub/", "sub/deep/")
        self.make_at(f"{folder}{kind.__name__.lower()}{next(self.numbers)}{self.sequence.pick(*kind.SUFFIXES)}", kind)

    def make_at(self, name, kind):
        self.both(f"make {kind.__name__} {name}", name, lambda path, rng: kind().make(path, rng))
        self.there[name] = kind
        self.compare(name)

    def remake(self):
        name = self.some()
        self.make_at(name, self.there[name])

    def change(self):
        name = self.some()
        kind = self.there[name]
        self.both(f"change {kind.__name__} {name}", name, lambda path, rng: kind().change(path, rng))
        self.compare(name)

    def remove(self):
        name = self.some()
        if self.there[name] is Indexed:
            return
        self.both(f"remove {name}", name, lambda path, rng: blosc2.remove_urlpath(str(path)))
        del self.there[name]

    def rename(self):
        name = self.some()
        if self.there[name] is Indexed:
            # The index's frames have the array's name in theirs.
            return
        path = Path(name)
        new = f"{self.sequence.pick('', 'sub/', 'other/')}{path.stem}-{next(self.numbers)}{path.suffix}"
        self.sequence.both(f"rename {name} to {new}", lambda side: os.rename(side / name, side / new))
        self.there[new] = self.there.pop(name)
        self.compare(new)

    def compare(self, name):
        kind = self.there[name]
        self.sequence.last = f"read {kind.__name__} {name}"
        native, shown = (apart(lambda: kind().read(side / name)) for side in self.sequence.sides)
        self.alike(shown, native, "the mount", name)
        if is_store(self.sequence.native / name):
            self.sequence.both(f"list {name}", lambda side: self.names(side / name))
            if not self.sequence.options.self_test:
                self.sequence.both(f"list {name} in DIR", lambda side: self.names((self.sequence.dir if side == self.sequence.view else side) / name))

    @staticmethod
    def names(path):
        # While DIR is mounted there may be unfinished files of b2fuse in it.
        names = [one for one in path.rglob("*") if ".b2fuse-" not in str(one)]
        return {str(one.relative_to(path)): "directory" if one.is_dir() else "file" for one in names}

    def compare_all(self):
        for name in sorted(self.there):
            self.compare(name)

    def remount(self):
        sequence = self.sequence
        sequence.last = "unmount"
        sequence.mount.umount()
        natively = {name: apart(lambda: kind().read(sequence.native / name)) for name, kind in self.there.items()}
        self.expect(natively, sequence.dir, "DIR")
        left = [str(path) for path in sequence.dir.rglob("*") if ".b2fuse-" in path.name or path.name.endswith(".lost")]
        if left:
            raise AssertionError(f"left behind in DIR: {left}")
        show = sequence.pick("other", "sparse", "contiguous")
        second = sequence.directory / "second"
        with Mount(sequence.dir, second, ["--show", show, "-o", "ro,b2z=dir"], sequence.options.b2fuse, timeout=60):
            self.expect(natively, second, f"a second mount with --show {show}")
            self.expect_archives(natively, second)
        sequence.mount.mount()
        self.compare_all()

    def expect(self, natively, directory, where):
        for name, kind in sorted(self.there.items()):
            path = self.as_store(directory / name)
            seen = apart(lambda: kind().read(path, True) if kind is Indexed else kind().read(path))
            self.alike(seen, natively[name], where, name)

    def as_store(self, path):
        """An archive that is shown as a directory, by a path in which the library does not take it for a remote archive."""
        if path.suffix != ".b2z" or not path.is_dir():
            return path
        link = self.sequence.directory / f"link-{next(self.numbers)}.b2d"
        link.symlink_to(path)
        return link

    def expect_archives(self, natively, directory):
        """An archive that is shown holds the members to the byte, and a copy of it is the store."""
        for name in sorted(name for name in self.there if name.endswith(".b2z")):
            shown = directory / name
            if not shown.is_dir():
                raise AssertionError(f"{name} is not shown as a directory")
            files = {str(path.relative_to(shown)): path.read_bytes() for path in shown.rglob("*") if path.is_file()}
            with zipfile.ZipFile(self.sequence.dir / name) as archive:
                members = {member: archive.read(member) for member in archive.namelist() if not member.endswith("/")}
            if files != members:
                wrong = [key for key in files.keys() | members.keys() if files.get(key) != members.get(key)]
                raise AssertionError(f"{name} as a directory: {wrong} differ from the members")
            copy = self.sequence.directory / f"copy-{next(self.numbers)}.b2d"
            shutil.copytree(shown, copy)
            self.alike(apart(lambda: self.there[name]().read(copy)), natively[name], "a copy of an archive", name)

    @staticmethod
    def alike(seen, expected, where, name):
        if (seen.keys() ^ expected.keys()) - {Indexed.OF_FILES, *Indexed.OF_ITS_PLACE}:
            raise AssertionError(f"{where}: {name} holds {sorted(seen)}, expected {sorted(expected)}")
        for key in expected.keys() & seen.keys():
            if seen[key] != expected[key]:
                raise AssertionError(f"{where}: {name}: {key}: {str(seen[key])[:100]}, expected {str(expected[key])[:100]}")


def play(sequence):
    Play(sequence).run()
