"""What a process does to a directory, as operations on files and names, from an strace of it.

The data of every write has to be in the trace (-xx, and -s of more than any write), and all that CALLS names.
"""

import os
import re
import stat
from pathlib import Path

CALLS = (
    "openat,openat2,open,creat,close,dup,dup2,dup3,fcntl,lseek,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,"
    "copy_file_range,sendfile,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,mknodat,link,linkat,symlinkat,fsync,fdatasync,"
    "syncfs,sync,sync_file_range,statx,clone,clone3,fork,vfork"
)


class Node:
    """A file, a directory or a link: what it was at first."""

    def __init__(self, number, kind, data=b"", text=None):
        self.number, self.kind, self.data, self.text = number, kind, data, text
        self.names = {}

    def __repr__(self):
        return f"{self.kind}{self.number}"


class Op:
    """One operation. Of names: `changes` of (directory, name, node or None, node that must be there to be taken away or None)."""

    def __init__(self, at, what, node=None, **rest):
        self.at, self.what, self.node = at, what, node
        self.changes, self.upto = rest.get("changes", ()), rest.get("upto", at)
        self.offset, self.data, self.length = rest.get("offset", 0), rest.get("data", b""), rest.get("length", 0)
        self.text = rest.get("text", "")

    @property
    def dirs(self):
        return {change[0] for change in self.changes}

    def __str__(self):
        if self.changes:
            return f"{self.text} " + ", ".join(f"{name!r} in {dir} {'to ' + str(node) if node else 'away'}" for dir, name, node, _ in self.changes)
        words = {"write": f" {self.offset}+{len(self.data)}", "length": f" {self.length}", "mark": f" {self.text}"}
        return f"{self.what} {self.node or ''}{words.get(self.what, '')}"


def scan(path, known=None):
    """The tree at a path, as nodes; two names of one file are one node."""
    known = {} if known is None else known
    status = os.lstat(path)
    key = (status.st_dev, status.st_ino)
    if key in known:
        return known[key]
    if stat.S_ISDIR(status.st_mode):
        node = known[key] = Node(len(known), "dir")
        for name in sorted(os.listdir(path)):
            node.names[name] = scan(os.path.join(path, name), known)
    elif stat.S_ISREG(status.st_mode):
        node = known[key] = Node(len(known), "file", Path(path).read_bytes())
    else:
        text = os.readlink(path) if stat.S_ISLNK(status.st_mode) else None
        node = known[key] = Node(len(known), "link" if text is not None else "other", text=text)
    return node


class Trace:
    """The operations that an strace tells, or several of one process after another, on `root`, which was `start` when they began."""

    def __init__(self, root, start, texts, mark):
        self.root, self.start, self.mark = str(root), start, mark
        self.ops, self.count = [], 0
        # What names and lengths are now.
        self.now, self.lengths, self.contents = {}, {}, {}
        self.remember(start)
        for text in texts:
            self.files = {}
            self.aliens = self.children(text)
            for call in self.calls(text):
                self.call(*call)

    def remember(self, node):
        self.count = max(self.count, node.number + 1)
        if node.kind == "dir":
            self.now[node] = dict(node.names)
            for inside in node.names.values():
                self.remember(inside)
        elif node.kind == "file":
            self.contents[node] = bytearray(node.data)

    @staticmethod
    def children(text):
        """Processes, other than threads, that it started: what they do is not its own."""
        found, begun = set(), {}
        for line in text.splitlines():
            thread, _, line = line.partition(" ")
            line = line.lstrip()
            if not re.match(r"(clone3?|fork|vfork)\(|<\.\.\. (clone3?|fork|vfork) resumed>", line):
                continue
            if line.endswith("<unfinished ...>"):
                begun[thread] = line
                continue
            line = begun.pop(thread, "") + line
            result = re.search(r"= (\d+)$", line)
            if result and ("CLONE_THREAD" not in line or thread in found):
                found.add(result[1])
        return found

    def calls(self, text):
        """Each call, its result, and how many operations there were when it began. A close counts from then on."""
        begun = {}
        for line in text.splitlines():
            thread, _, line = line.partition(" ")
            line = line.lstrip()
            if thread in self.aliens:
                continue
            at = len(self.ops)
            if line.endswith("<unfinished ...>"):
                line = line.removesuffix("<unfinished ...>").rstrip()
                begun[thread] = line, at
                if line.startswith("close("):
                    self.files.pop(int(line[6:].rstrip(" )")), None)
                continue
            if resumed := re.match(r"<\.\.\. (\w+) resumed>", line):
                before, at = begun.pop(thread, (None, at))
                if before is None or resumed[1] == "close":
                    continue
                line = before + line[resumed.end() :]
            call = re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", line)
            if call:
                yield call[1], call[2], int(call[3]), at

    def call(self, name, args, result, began):
        if name == "statx":
            found = re.search(r'"([^"]+)"', args)
            text = unquote(found[1]) if found else ""
            if text.startswith(self.mark):
                self.ops.append(Op(len(self.ops), "mark", text=text[len(self.mark) :]))
            return
        if result < 0 or name in ("clone", "clone3", "fork", "vfork"):
            return
        if name in ("openat", "openat2", "open", "creat"):
            self.open(name, args, result)
            return
        if name in ("write", "writev", "pwrite64", "pwritev", "pwritev2"):
            fd = int(args.split(",", 1)[0])
            if fd in self.files and self.files[fd][0]:
                self.write(name, fd, args, result)
            return
        words = split(args)
        if name == "close":
            self.files.pop(int(words[0]), None)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in words[1]):
            if int(words[0]) in self.files:
                self.files[result] = list(self.files[int(words[0])])
        elif name == "lseek":
            if int(words[0]) in self.files:
                self.files[int(words[0])][2] = result
        elif name == "ftruncate":
            self.set_length(self.node_of(words[0]), int(words[1]))
        elif name == "truncate":
            self.set_length(self.walk(None, unquote_word(words[0]))[0], int(words[1]))
        elif name == "fallocate":
            self.allocate(words)
        elif name == "copy_file_range":
            self.copy_range(words, result)
        elif name == "sendfile":
            if self.node_of(words[0]):
                raise RuntimeError("sendfile to a file is not followed")
        elif name in ("fsync", "fdatasync"):
            node = self.node_of(words[0])
            if node:
                self.add("sync", node, upto=began)
        elif name in ("syncfs", "sync"):
            self.add("syncfs", upto=began)
        elif name == "sync_file_range":
            pass  # promises nothing
        elif name in ("rename", "renameat", "renameat2"):
            if name == "rename":
                words = ["AT_FDCWD", words[0], "AT_FDCWD", words[1]]
            self.rename(words, words[4] if len(words) > 4 else "0")
        elif name in ("unlink", "rmdir"):
            self.remove("AT_FDCWD", words[0])
        elif name == "unlinkat":
            self.remove(words[0], words[1])
        elif name in ("mkdir", "mkdirat"):
            words = words if name == "mkdirat" else ["AT_FDCWD", *words]
            self.create(words[0], words[1], "dir")
        elif name == "mknodat":
            self.create(words[0], words[1], "file" if "S_IFREG" in words[2] else "other")
        elif name == "symlinkat":
            self.create(words[1], words[2], "link", unquote_word(words[0]))
        elif name == "linkat":
            self.link(words)
        elif name == "link":
            self.link(["AT_FDCWD", words[0], "AT_FDCWD", words[1]])

    # ---- Files

    def add(self, what, node=None, **rest):
        self.ops.append(Op(len(self.ops), what, node, **rest))

    def new_node(self, kind, text=None):
        node = Node(self.count, kind, text=text)
        self.count += 1
        if kind == "dir":
            self.now[node] = {}
        elif kind == "file":
            self.contents[node] = bytearray()
        return node

    def node_of(self, word):
        return self.files.get(int(word), (None, None))[0]

    def at(self, word):
        """What a descriptor of a directory stands for: a node, or a path elsewhere."""
        if word == "AT_FDCWD":
            return None, "/"
        return self.files.get(int(word), (None, None))[:2]

    def walk(self, base, path):
        """A node, or None, and the directory with the name if it is in `root`; and the path elsewhere."""
        node, where = base or (None, "/")
        if path.startswith("/"):
            if own := re.fullmatch(r"/proc/self/fd/(\d+)(/.*)?", path):
                node, where = self.files.get(int(own[1]), (None, None))[:2]
                path = (own[2] or "/.")[1:]
            elif path == self.root or path.startswith(self.root + "/"):
                node, path = self.start, path[len(self.root) + 1 :]
            else:
                return None, None, None, path
        if node is None:
            whole = os.path.normpath(os.path.join(where or "/?", path))
            if whole == self.root or whole.startswith(self.root + "/"):
                return self.walk(None, whole)
            return None, None, None, whole
        parent, name = None, None
        for part in path.split("/"):
            if part in ("", "."):
                continue
            if node is None or node.kind != "dir" or part == "..":
                return None, None, None, "/?"
            parent, name = node, part
            node = self.now[node].get(part)
        return node, parent, name, None

    def open(self, name, args, fd):
        words = split(args)
        if name in ("open", "creat"):
            words = ["AT_FDCWD", *words]
        path = unquote_word(words[1])
        flags = "O_CREAT|O_TRUNC" if name == "creat" else words[2]
        node, parent, name, where = self.walk(self.at(words[0]), path)
        if "O_TMPFILE" in flags:
            node = self.new_node("file") if node else None
        elif parent and node is None and "O_CREAT" in flags:
            node = self.new_node("file")
            self.change("create", [(parent, name, node, None)])
        elif node and node.kind == "file" and "O_TRUNC" in flags:
            self.set_length(node, 0)
        self.files[fd] = [node, where, 0]

    def set_length(self, node, length):
        if node and node.kind == "file":
            self.add("length", node, length=length)
            apply(self.contents[node], self.ops[-1])

    def put(self, node, offset, data):
        if node and data:
            self.add("write", node, offset=offset, data=bytes(data))
            apply(self.contents[node], self.ops[-1])

    def write(self, name, fd, args, result):
        node, _, position = self.files[fd]
        data = b"".join(bytes_of(part) for part in args.split('"')[1::2])[:result]
        last = args.rsplit(",", 2)
        if name in ("write", "writev"):
            offset = position
            self.files[fd][2] += result
        elif name == "pwritev2":
            offset = len(self.contents[node]) if "RWF_APPEND" in last[2] else int(last[1])
        else:
            offset = int(last[2])
        self.put(node, offset, data)

    def copy_range(self, words, result):
        source, target = self.node_of(words[0]), self.node_of(words[2])
        if not target or not result:
            return
        if not source or "[" not in words[1] or "[" not in words[3]:
            raise RuntimeError("a copy from elsewhere is not followed")
        start, to = (int(re.search(r"\d+", words[at])[0]) for at in (1, 3))
        self.put(target, to, self.contents[source][start : start + result])

    def allocate(self, words):
        node, mode, offset, length = self.node_of(words[0]), words[1], int(words[2]), int(words[3])
        if not node:
            return
        if "PUNCH_HOLE" in mode or "ZERO_RANGE" in mode:
            self.add("punch", node, offset=offset, length=length)
            apply(self.contents[node], self.ops[-1])
        elif "KEEP_SIZE" not in mode and offset + length > len(self.contents[node]):
            self.set_length(node, offset + length)

    # ---- Names

    def change(self, text, changes):
        self.ops.append(Op(len(self.ops), "names", changes=changes, text=text))
        change_names(self.now, changes)

    def create(self, base, path, kind, text=None):
        _, parent, name, _ = self.walk(self.at(base), unquote_word(path))
        if parent:
            self.change("create", [(parent, name, self.new_node(kind, text), None)])

    def link(self, words):
        node = self.walk(self.at(words[0]), unquote_word(words[1]))[0]
        _, parent, name, _ = self.walk(self.at(words[2]), unquote_word(words[3]))
        if parent and node:
            self.change("link", [(parent, name, node, None)])

    def remove(self, base, path):
        _, parent, name, _ = self.walk(self.at(base), unquote_word(path))
        if parent:
            self.change("remove", [(parent, name, None, None)])

    def rename(self, words, flags):
        one, one_dir, one_name, _ = self.walk(self.at(words[0]), unquote_word(words[1]))
        other, to_dir, to_name, _ = self.walk(self.at(words[2]), unquote_word(words[3]))
        if not one_dir and not to_dir:
            return
        if one is None or to_dir is None:
            raise RuntimeError("a rename into or out of the directory is not followed")
        if "EXCHANGE" in flags:
            self.change("exchange", [(one_dir, one_name, other, None), (to_dir, to_name, one, None)])
        elif one is not other:
            self.change("rename", [(one_dir, one_name, None, one), (to_dir, to_name, one, None)])

    def is_now(self, path):
        """The first name that is not as a directory has it; None if all were followed."""
        return differs(self.start, scan(path), self.now, self.contents)


def differs(node, other, now, contents, at=""):
    if node.kind != other.kind:
        return f"{at}: {node.kind}, expected {other.kind}"
    if node.kind == "file" and bytes(contents[node]) != other.data:
        return f"{at}: {len(contents[node])} bytes, expected {len(other.data)}, or others"
    if node.kind == "dir":
        if now[node].keys() != other.names.keys():
            return f"{at}: {sorted(now[node])}, expected {sorted(other.names)}"
        for name in now[node]:
            if found := differs(now[node][name], other.names[name], now, contents, f"{at}/{name}"):
                return found
    return None


def change_names(dirs, changes):
    for dir, name, node, only in changes:
        names = dirs[dir]
        if node is not None:
            names[name] = node
        elif only is None or names.get(name) is only:
            names.pop(name, None)


def apply(data, op):
    """A change of a file's bytes."""
    if op.what == "length":
        if op.length < len(data):
            del data[op.length :]
        else:
            data.extend(bytes(op.length - len(data)))
        return
    end = op.offset + (len(op.data) if op.what == "write" else op.length)
    if op.what == "punch":
        end = min(end, len(data))
        data[op.offset : end] = bytes(max(0, end - op.offset))
        return
    if len(data) < op.offset:
        data.extend(bytes(op.offset - len(data)))
    data[op.offset : end] = op.data


def bytes_of(text):
    return bytes.fromhex(text.replace("\\x", ""))


def unquote(text):
    return os.fsdecode(bytes_of(text))


def unquote_word(word):
    return unquote(word.strip().strip('"'))


def split(args):
    """Arguments, at the commas that are in no brackets."""
    words, depth, start = [], 0, 0
    for found in re.finditer(r'"[^"]*"|[,\[\]{}()]', args):
        sign = found[0]
        if sign in "[{(":
            depth += 1
        elif sign in "]})":
            depth -= 1
        elif sign == "," and depth == 0:
            words.append(args[start : found.start()].strip())
            start = found.end()
    words.append(args[start:].strip())
    return words
