#!/usr/bin/env python3
"""Lives of names in a mounted directory, beside the same lives in a native one.

    tree_lives.py [--rounds N] [--seed S] [--show MODE]      N lives (300) in each mode of --show, or in one
    tree_lives.py --seed S --show MODE --first K --rounds 1  the life of number K alone
    tree_lives.py --logs DIR ...                             with what each daemon did whose lives failed, in DIR

Three processes make files, write, close, duplicate, map, rename, replace, copy, append to with the library, remove and make them again,
under names of frames, of temporary files and of others. Handles and maps stay open over many steps. During most steps the other
processes open and read the names. After each step each name, handle and map reads as natively, and no length differs from its bytes.
After the unmount DIR holds the same, each frame in the layout that it is to be stored in, and no other name. Frames are compared by
what they hold: holes are left out of them.
The last line is the count.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from lives_clients import NATIVE, NEW, PATIENCE, VIEW, Clients, Wrong, new_frame
from lives_compared import Compared, File, Handle, differences
from mounts import Mount

SHOWS = ["other", "sparse", "contiguous"]
BATCH = 25  # lives in one mount


class Life(Compared):
    """Steps at random, each of which a native directory takes."""

    def play(self):
        steps = [self.make] * 3 + [self.open] * 4 + [self.write] * 5 + [self.close] * 5 + [self.rename, self.replace, self.race] * 3
        steps += [self.map, self.remove, self.rewrite] * 2 + [self.dup, self.unmap, self.written_by_map, self.copy, self.append]
        for _ in range(self.dice.randrange(10, 30)):
            while self.dice.choice(steps)() is False:
                pass
            self.check()
        for file in [*self.files.values(), *self.gone]:
            for handle in list(file.handles):
                while handle.count:
                    self.end(handle)
            file.maps = []
        self.check()

    def opened(self, file, flags):
        self.serial += 1
        handle = Handle(self.client(), self.serial, file, flags & os.O_ACCMODE != os.O_RDONLY)
        self.both(handle.client, "open", handle.key, file.name, flags, atomic=not flags & os.O_TRUNC)
        file.handles.append(handle)
        if flags & os.O_TRUNC:
            file.rest, file.whole = (handle, True, []), False

    def make(self):
        name = self.free(self.names)
        return self.opened(self.made(name), NEW | os.O_EXCL) if name else False

    def open(self):
        file = self.some()
        if not file:
            return False
        flags = self.dice.choice([os.O_RDONLY] * 3 + [os.O_RDWR] * 2 + [os.O_RDWR | os.O_TRUNC] * (file.rest is None))
        return self.opened(file, flags)

    def write(self):
        is_mine = lambda handle: handle.file.rest is None or handle.file.rest[0] is handle
        handle = self.handle(lambda handle: handle.write and is_mine(handle) and not (handle.file in self.gone and handle.file.framed))
        return self.wrote(handle) if handle else False

    def wrote(self, handle, halves=True):
        file = handle.file
        if file.rest and file.rest[2]:
            cut, pieces, whole = False, file.rest[2], True
        else:
            in_place = file not in self.gone and not file.rest and self.is_same(file) and self.dice.random() < 0.6
            data, whole = (new_frame(self.dice, "plain"), True) if in_place else self.content(file)
            at = self.dice.randrange(1, len(data)) if len(data) > 1 else 0
            cut, pieces = not in_place, [(0, data[:at]), (at, data[at:])] if self.dice.random() < 0.5 else [(0, data)]
            if halves and whole and len(pieces) == 2 and self.dice.random() < 0.4:
                file.rest, file.whole, handle.writing = (handle, False, pieces[1:]), False, True
                return self.both(handle.client, "write", handle.key, cut, pieces[:1], False, atomic=False)
        file.rest, file.whole, handle.writing = None, whole, True
        return self.both(handle.client, "write", handle.key, cut, pieces, whole and self.dice.random() < 0.2, atomic=False)

    def close(self):
        handle = self.handle()
        return self.end(handle) if handle else False

    def end(self, handle):
        """A frame is whole again before it is closed."""
        file, gone = handle.file, handle.file in self.gone
        if file.rest and file.rest[0] is handle and not (gone and file.framed):
            self.wrote(handle, halves=False)
        handle.count, handle.writing = handle.count - 1, False
        if not handle.count:
            file.handles.remove(handle)
        self.both(handle.client, "close", handle.key, lenient=gone)
        self.settle(file)

    def dup(self):
        handle = self.handle(lambda handle: handle.count < 3)
        if not handle:
            return False
        handle.count += 1
        return self.both(handle.client, "dup", handle.key)

    def map(self):
        file = self.some(lambda file: self.now()[file.name] and file.rest is None)
        if not file:
            return False
        self.serial, client = self.serial + 1, self.client()
        file.maps.append((client, self.serial))
        return self.both(client, "map", self.serial, file.name)

    def unmap(self):
        file = self.some(lambda file: file.maps)
        if not file:
            return False
        client, key = file.maps.pop()
        return self.both(client, "unmap", key)

    def written_by_map(self):
        name = self.free(self.names)
        if not name:
            return False
        file, first, then = self.made(name), self.dice.choice([None, new_frame(self.dice, "plain")]), new_frame(self.dice, "plain")
        file.whole = True
        self.both(self.client(), "write_by_map", name, first, then, atomic=False)
        return self.settle(file)

    def rename(self, file=None, name=None):
        file = file or self.some()
        name = name or self.dice.choice([name for name in self.names if not file or name != file.name])
        target = self.files.get(name)
        if not file:
            return False
        if file.framed and name not in self.frames and (target and target.framed or any(handle.write for handle in file.handles)):
            return False
        self.both(self.client(), "rename", file.name, name)
        stored = {"cframe"} | file.stored | self.before.get(file.name, set())
        if file.framed:
            if file.name not in self.frames:
                # It was an ordinary file, and is stored as what had the name.
                file.stored = self.before.get(name, {"cframe"})
            elif name not in self.frames:
                # Without its suffix it is stored as it is shown.
                file.stored = stored
            self.before[file.name] = stored
        if target:
            self.forget(target)
            if file.framed and target.framed:
                file.stored |= target.stored
        del self.files[file.name]
        self.files[name], file.name = file, name
        return self.settle(file)

    def forget(self, file):
        self.gone.append(file)
        file.is_torn = file.framed and file.rest is not None
        if file.framed:
            self.before[file.name] = file.stored

    def remove(self):
        file = self.some()
        if not file:
            return False
        self.both(self.client(), "remove", file.name)
        self.forget(self.files.pop(file.name))
        return None

    def replace(self):
        """As tools do that write beside a file."""
        name = self.dice.choice(self.others)
        if name in self.files:
            return False
        self.rewrote(self.client(), name, NEW)
        return self.rename(self.files[name], self.dice.choice(self.frames))

    def copy(self):
        file = self.some(lambda file: file.rest is None)
        name = self.dice.choice([name for name in self.names if not file or name != file.name])
        target = self.files.get(name)
        if not file or target and (target.rest or target.framed and not file.whole):
            return False
        target = self.made(name)
        target.whole = file.whole
        self.note("cp", file.name, name)
        for root in (self.native, self.view):
            # Not by a client: its child would close what it has open.
            subprocess.run(["cp", root / file.name, root / name], check=True)
        return self.settle(target)

    def rewrote(self, client, name, flags, data=None):
        file = self.made(name)
        data, file.whole = (data, True) if data else self.content(file)
        self.both(client, "rewrite", name, flags, data, atomic=False)
        self.settle(file)

    def rewrite(self):
        name = self.dice.choice(self.names)
        file = self.files.get(name)
        if file and file.rest:
            return False
        if file and self.is_same(file) and self.dice.random() < 0.5:
            return self.rewrote(self.client(), name, os.O_RDWR, new_frame(self.dice, "plain"))
        return self.rewrote(self.client(), name, NEW | os.O_TRUNC)

    def append(self):
        is_idle = lambda file: file.rest is None and not any(handle.write for handle in file.handles)
        file = self.some(lambda file: file.whole and file.name in self.frames and is_idle(file))
        if not file:
            return False
        self.both(self.client(), "append", file.name, self.dice.randbytes(8000), atomic=False)
        return self.settle(file)

    def race(self):
        """A close, while another process writes the file anew: that is what stays."""
        is_there = lambda file: file.whole and not file.rest and file not in self.gone
        handle = self.handle(lambda handle: handle.write and handle.count == 1 and is_there(handle.file))
        if not handle:
            return False
        file, other = handle.file, (handle.client + self.dice.randrange(1, 3)) % 3
        flags, data = os.O_RDWR | (0 if self.is_same(file) else os.O_TRUNC), new_frame(self.dice, "plain")
        self.note("race", handle.client, "close", handle.key, other, "rewrite", file.name, flags)
        file.handles.remove(handle)
        messages = [(handle.client, "close", handle.key), (other, "rewrite", file.name, flags, data)]
        for client, what, *given in messages:
            self.clients.ask(client, what, NATIVE, *given)
        for client, what, *given in messages:
            self.clients.tell(client, what, VIEW, *given)
        answers = [self.clients.hear(client) for client, *_ in messages]
        if answers != [(0, None)] * 2:
            raise Wrong(f"close and rewrite give {answers}")
        return self.settle(file)


def batch(show, seed, numbers, clients, log):
    """Lives in one mount, up to the first failure. Answers how many were lived, and what was wrong."""
    options = ["--show", show, *(["--log-level", "trace", "--log-file", log] if log else [])]
    with tempfile.TemporaryDirectory(prefix="b2fuse-lives-") as scratch:
        native, directory, point = [Path(scratch) / name for name in ("native", "dir", "mnt")]
        for path in (native / "sub", directory / "sub", point):
            path.mkdir(parents=True)
        lives, mount = [], Mount(directory, point, options, timeout=PATIENCE)
        for number in numbers:
            lives.append(Life(random.Random(f"{seed} {show} {number}"), number, show, clients, native, point))
            lives[-1].seeded(directory)
        try:
            with mount:
                for client in range(3):
                    clients.ask(client, "begin", NATIVE, str(native), str(point))
                for at, life in enumerate(lives):
                    try:
                        life.play()
                    except Wrong as wrong:
                        clients.kill()
                        return at + 1, [(life, wrong)]
                for client in range(3):
                    clients.ask(client, "begin", NATIVE)
        except RuntimeError as error:
            return len(lives), [(None, error)]
        return len(lives), differences(lives, native, directory, show)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", choices=SHOWS)
    parser.add_argument("--logs", type=Path)
    options = parser.parse_args()
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    passed = failed = 0
    clients = Clients()
    for show in [options.show] if options.show else SHOWS:
        at, end = options.first, options.first + options.rounds
        while at < end:
            log = options.logs and options.logs / f"{show}-{options.seed}-{at}.log"
            count, wrong = batch(show, options.seed, range(at, min(at + BATCH, end)), clients, log)
            for life, what in wrong:
                number, steps = (life.number, life.steps) if life else (f"{at} to {at + count - 1}", [])
                print(f"--show {show} --seed {options.seed} --first {number}: {what}", *steps, sep="\n    ", flush=True)
            if log and not wrong:
                log.unlink()
            failed, passed = failed + len(wrong), passed + count - len(wrong)
            at += count
            if any(not process.is_alive() for process in clients.processes) or wrong:
                clients.kill()
                clients = Clients()
    clients.kill()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
