"""A directory as a power cut leaves it: the images that are possible after each operation of a trace (crash_trace.py).

As strict as tests/store/disk.rs:

- A file holds what it held at its last fsync, and any part of what was written since, in sectors of 512 bytes.
- A change of names is there as a whole or not at all since the last fsync of a directory that it touches, whatever became of the
  others. The fsync of a new file does not make its name durable, though ext4 does that.
- As on every file system with a journal, a rename is one change, of two directories as well: an fsync of either has both.
- A sync covers what had ended when it began, and counts from when it ends.
"""

import hashlib
import os
import random
from pathlib import Path

from crash_trace import Op, apply, change_names

SECTOR = 512
# How deep a directory may be that got into itself, when its renames are there in part.
DEEPEST = 8


class Image:
    """What a cut leaves of a directory: a path for each file with the digest of what is in it, and for each directory with None."""

    def __init__(self, cuts, at, way, entries):
        self.cuts, self.at, self.way, self.entries = cuts, at, way, entries

    def __str__(self):
        last = self.cuts.ops[self.at - 1] if self.at else None
        return f"{self.way}, after operation {self.at} of {len(self.cuts.ops)} ({last})"

    def digest(self, top=""):
        """Of all, or of what is at a name: None if there is nothing."""
        below = top + "/"
        part = [(path[len(top) :], what) for path, what in self.entries.items() if not top or path == top or path.startswith(below)]
        return hashlib.sha1(repr(sorted(part, key=lambda entry: entry[0])).encode()).hexdigest() if part or not top else None

    def write(self, path, top=""):
        """Puts it on disk, all or what is at a name."""
        path, below = Path(path), top + "/"
        if not top:
            path.mkdir()
        for name, what in sorted(self.entries.items()):
            if top and name != top and not name.startswith(below):
                continue
            target = path / name[len(below) :] if top and name != top else path if top else path / name
            if what is None:
                target.mkdir(exist_ok=True)
            elif what[0] == "link":
                os.symlink(what[1], target)
            else:
                target.write_bytes(self.cuts.bytes_by_digest[what[1]])


class Cuts:
    """The images that power cuts leave of one directory of a trace."""

    def __init__(self, start, ops, seed=1, chances=2):
        self.start, self.seed, self.chances = start, seed, chances
        self.members, self.dirs = set(), {}
        self.join(start)
        self.ops = [op for op in ops if self.is_ours(op)]
        # The first operation after which each is on disk whatever happens.
        self.durable = {}
        by_node, synced_all = {}, []
        for at, op in enumerate(self.ops):
            if op.what == "sync":
                by_node.setdefault(op.node, []).append((op.upto, at + 1))
            elif op.what == "syncfs":
                synced_all.append((op.upto, at + 1))
        for op in self.ops:
            syncs = list(synced_all)
            for node in op.dirs or {op.node}:
                syncs += by_node.get(node, [])
            self.durable[op.at] = min((after for upto, after in syncs if op.at < upto), default=len(self.ops) + 1)
        self.names = [(at, op) for at, op in enumerate(self.ops) if op.changes]
        self.made = {change[2]: at for at, op in self.names if op.text == "create" for change in op.changes if change[2].kind == "dir"}
        self.writes = {}
        for at, op in enumerate(self.ops):
            if op.what in ("write", "length", "punch"):
                self.writes.setdefault(op.node, []).append((at, op))
        self.versions, self.bytes_by_digest, self.digests = {}, {}, {}

    def join(self, node):
        if node in self.members:
            return
        self.members.add(node)
        if node.kind == "dir":
            self.dirs[node] = node.names
            for inside in node.names.values():
                self.join(inside)

    def is_ours(self, op):
        if op.changes:
            if not op.dirs & self.members:
                return False
            for _, _, node, _ in op.changes:
                if node is not None:
                    self.join(node)
            return True
        return op.what in ("syncfs", "mark") or op.node in self.members

    # ---- What files hold

    def version(self, node, count):
        """A file after so many of its operations."""
        if (node, count) not in self.versions:
            if count == 0:
                data = bytearray(node.data)
            else:
                data = bytearray(self.version(node, count - 1))
                apply(data, self.writes[node][count - 1][1])
            self.versions[node, count] = bytes(data)
        return self.versions[node, count]

    def keep(self, data, key=None):
        if key in self.digests:
            return self.digests[key]
        digest = hashlib.sha1(data).hexdigest()
        self.bytes_by_digest[digest] = data
        if key:
            self.digests[key] = digest
        return digest

    def span(self, node, at):
        """How many of a file's operations are on disk when the power goes, and how many were done."""
        writes = self.writes.get(node, [])
        done = [op for when, op in writes if when < at]
        safe = [number + 1 for number, op in enumerate(done) if self.durable[op.at] <= at]
        return max(safe, default=0), len(done)

    def held(self, node, at, data):
        """The digest of what a file holds: by `data`, "all" or "none" of what was not synced, the last write torn, or by chance."""
        safe, done = self.span(node, at)
        if data == "all" or safe == done:
            return self.keep(self.version(node, done), (node, done))
        if data == "none":
            return self.keep(self.version(node, safe), (node, safe))
        if isinstance(data, random.Random):
            return self.keep(self.mixed(node, safe, done, data))
        # Torn: the first sectors of the last write, or all but those.
        when, op = self.writes[node][done - 1]
        middle = (op.offset + len(op.data) // 2 + SECTOR - 1) // SECTOR * SECTOR - op.offset
        if when != at - 1 or op.what != "write" or not 0 < middle < len(op.data):
            return self.keep(self.version(node, done), (node, done))
        whole = bytearray(self.version(node, done - 1))
        first = data == "torn"
        part = op.data[:middle] if first else op.data[middle:]
        apply(whole, Op(op.at, "write", node, offset=op.offset + (0 if first else middle), data=part))
        return self.keep(bytes(whole))

    def mixed(self, node, safe, done, rng):
        versions = [self.version(node, count) for count in range(safe, done + 1)]
        base, is_mixed = rng.randrange(len(versions)), rng.random() < 0.6

        def pick():
            return versions[rng.randrange(len(versions)) if is_mixed and rng.random() < 0.5 else base]

        out = bytearray(len(pick()))
        for sector in range(0, len(out), SECTOR):
            piece = pick()[sector : min(sector + SECTOR, len(out))]
            out[sector : sector + len(piece)] = piece
        return bytes(out)

    # ---- Images

    def with_directories(self, chosen):
        """What goes from one directory to another brings the creation of both with it: it is nowhere otherwise."""
        chosen = set(chosen)
        for when in tuple(chosen):
            if len(self.ops[when].dirs) > 1:
                for dir in self.ops[when].dirs:
                    self.bring(dir, chosen)
        return chosen

    def bring(self, dir, chosen):
        made = self.made.get(dir)
        if made is not None and made not in chosen:
            chosen.add(made)
            for above in self.ops[made].dirs:
                self.bring(above, chosen)

    def image(self, at, way, chosen, data):
        dirs = {node: dict(names) for node, names in self.dirs.items()}
        for _, op in self.names:
            for dir, _, node, _ in op.changes:
                dirs.setdefault(dir, {})
                if node is not None and node.kind == "dir":
                    dirs.setdefault(node, {})
        chosen = self.with_directories(chosen)
        for when, op in self.names:
            if when in chosen:
                change_names(dirs, op.changes)
        entries = {}
        self.list(self.start, "", dirs, entries, at, data)
        return Image(self, at, way, entries)

    def list(self, dir, path, dirs, entries, at, data):
        for name, node in dirs[dir].items():
            inside = f"{path}/{name}" if path else name
            if node.kind == "dir":
                entries[inside] = None
                if inside.count("/") < DEEPEST:
                    self.list(node, inside, dirs, entries, at, data)
            elif node.kind == "file":
                entries[inside] = ("file", self.held(node, at, data))
            else:
                entries[inside] = ("link", node.text)

    def images(self, at):
        """The images of a cut after so many operations, most of them once."""
        done = [when for when, op in self.names if when < at]
        safe = {when for when in done if self.durable[self.ops[when].at] <= at}
        open_ = [when for when in done if when not in safe]
        all_names = frozenset(done)
        ways = {("all names", all_names)}
        ways.add(("no names", frozenset(safe)))
        for count in range(1, len(open_)):
            ways.add((f"the first {count} of {len(open_)} names", frozenset(safe | set(open_[:count]))))
        for one in open_[-10:]:
            ways.add((f"of names only {self.ops[one]}", frozenset(safe | {one})))
            ways.add((f"of names all but {self.ops[one]}", all_names - {one}))
        last = self.ops[at - 1] if at else None
        for words, chosen in sorted(ways, key=lambda way: way[0]):
            yield self.image(at, f"{words}, all data", chosen, "all")
            yield self.image(at, f"{words}, no data", chosen, "none")
        if last is not None and last.what == "write":
            for torn in ("torn", "torn, its end"):
                yield self.image(at, f"all names, the last write {torn}", all_names, torn)
        pending = any(self.span(node, at)[0] != self.span(node, at)[1] for node in self.writes)
        for chance in range(self.chances if pending or len(open_) > 1 else 0):
            rng = random.Random(f"{self.seed} {at} {chance}")
            likely = rng.choice([0.1, 0.5, 0.9, 1.0])
            chosen = frozenset(safe | {when for when in open_ if rng.random() < likely})
            yield self.image(at, f"by chance {chance}", chosen, rng)
