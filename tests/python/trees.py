#!/usr/bin/env python3
"""The Blosc2 library in a mounted tree and in a native directory, step for step.

One seed makes one sequence. In the mount of a directory DIR and in a native directory beside it, the library makes frames, opens,
changes, saves, renames, replaces, removes and makes them again, in both layouts and in several directories. After each step
everything that was touched is equal, and now and then everything there is. So it is after each unmount in DIR itself, which then
holds each frame in the layout that it is to be stored in and nothing else, and in a second mount that shows DIR otherwise.

    trees.py --seeds 1-6                   six sequences, each mode of --show in turn
    trees.py --seed 3 --show sparse        one of them
    trees.py --seeds 1-6 --kill            the daemon is killed now and then, between two steps and within one
    trees.py --seeds 1-3 --stores          TreeStore, DictStore, EmbedStore, CTable, BatchArray, ObjectArray, indexes
    trees.py --seeds 1-6 --self-test       a native directory in place of the mount: tests this test

A failure names the seed, the step and the difference, and leaves the trees where --keep says. The last line is the count.
"""

import argparse
import faulthandler
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import blosc2
import numpy as np

import stores
from anatomy import header_cbytes
from frames import contents, difference, open_frame
from mounts import Mount, default_binary
from mutate import Difference, copy_frame, fsync, has_ids_beyond_bound, remove_frame, run_all, seeds_of
from mutations import KINDS

STEPS = 60
# More than any sequence takes that goes on.
SECONDS = 600
SHOWS = ["other", "sparse", "contiguous"]
SUFFIXES = [".b2nd", ".b2frame", ".b2f", ".b2", ".b2b", ".caterva"]
# A few names that a shell would stumble over.
STEMS = ["a", "b", "c", "d", "e", "f", "with space", "räksmörgås", "-dash", "new\nline", "n" * 200]
DIRS = ["", "sub", "sub/deep", "other"]
# What stands for a state that nobody can know.
ANY = object()


class Frame:
    """What the model knows of a frame: whether the library made a file, how DIR stores it, and what changes it can have."""

    def __init__(self, kind, contiguous, stored):
        self.kind, self.contiguous, self.stored = kind, contiguous, stored
        self.state = None


def is_frame_in(directory):
    """The frames below a directory, by their relative names; what else there is, as None."""
    found = {}
    for folder, dirs, files in os.walk(directory):
        here = Path(folder)
        for name in list(dirs):
            if (here / name / "chunks.b2frame").exists():
                dirs.remove(name)
                found[str((here / name).relative_to(directory))] = "sframe"
        for name in files:
            found[str((here / name).relative_to(directory))] = "cframe"
    return found


class Sequence:
    def __init__(self, seed, options):
        self.seed, self.options = seed, options
        self.rng = np.random.default_rng(seed)
        self.show = options.show or SHOWS[seed % 3]
        self.frames = {}
        # How frames were stored that the present mount has seen removed; ANY where it cannot be known.
        self.before = {}
        # With --kill: what each name may stand for in DIR, since it was last made durable.
        self.allowed = {}
        self.kills = 0
        # Where a step is told that runs in a process of its own.
        self.told = None
        self.step, self.last = 0, "the beginning"

    # ---- The two sides

    def start(self, directory):
        self.directory = Path(directory)
        self.native, self.dir = self.directory / "native", self.directory / "DIR"
        self.native.mkdir()
        self.dir.mkdir()
        for name in DIRS[1:]:
            (self.native / name).mkdir()
            (self.dir / name).mkdir()
        self.seeded()
        if self.options.self_test:
            self.view = self.dir
            return
        self.view = self.directory / "mnt"
        arguments = ["--show", self.show, *self.options.mount_option]
        self.mount = Mount(self.dir, self.view, arguments, self.options.b2fuse, timeout=60, in_front=True)
        self.mount.mount()

    def seeded(self):
        """Frames of both layouts that are there before anything is mounted."""
        for number, contiguous in enumerate((True, False, True, False)):
            stored = "cframe" if contiguous else "sframe"
            name = f"{self.pick(*DIRS)}/old{number}{self.pick(*SUFFIXES)}".lstrip("/")
            # The library would have made what the mount shows.
            as_file = not contiguous if self.show == "other" else self.show == "contiguous"
            if self.options.self_test:
                as_file = contiguous
            frame = Frame(self.new_kind(), as_file, stored)
            frame.kind.build(str(self.native / name), as_file)
            frame.kind.build(str(self.dir / name), contiguous)
            self.frames[name] = frame
            self.look(name)

    @property
    def sides(self):
        return (self.native, self.view)

    def pick(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def new_kind(self):
        return KINDS[self.options.kind or self.pick(*sorted(KINDS))](self.rng)

    def is_stable(self, frame):
        """Whether the mount shows what the library made: then all is as natively, by whatever means."""
        if self.options.self_test or self.show == "other":
            return True
        return frame.contiguous == (self.show == "contiguous")

    def stored_anew(self, name, contiguous):
        """How DIR is to store what is made under a name."""
        if self.options.self_test:
            return "cframe" if contiguous else "sframe"
        if self.show == "other":
            return "sframe" if contiguous else "cframe"
        if self.show == "sparse" and contiguous:
            return "cframe"
        if self.show == "contiguous" and not contiguous:
            return "sframe"
        return self.before.get(name, "cframe" if contiguous else "sframe")

    # ---- Steps

    def play(self):
        self.compare_all("the trees as found")
        self.durable()
        ways = [self.create] * 4 + [self.mutate] * 8 + [self.remove] * 2 + [self.rename] * 2 + [self.replace] * 2
        ways += [self.recreate] * 2 + [self.replace_by_temporary] * 2 + [self.save] * 2 + [self.copy] * 2 + [self.overwrite]
        ways += [self.move_directory, self.listing, self.make_durable, self.open_modes]
        ways += [self.remount] * (not self.options.self_test)
        ways += [self.kill] * (2 * self.options.kill)
        for self.step in range(self.options.steps):
            way = self.pick(*ways)
            self.last = way.__name__
            if way == self.create or len(self.frames) > 2:
                self.note()
                way()
            if self.step % 15 == 14:
                self.compare_all("all frames")
        self.last = "the end"
        if self.options.self_test:
            self.compare_all("the end")
        else:
            self.remount()

    def some(self, *wanted):
        names = sorted(name for name, frame in self.frames.items() if all(want(name, frame) for want in wanted))
        return self.pick(*names) if names else None

    def stable(self, _name, frame):
        return self.is_stable(frame)

    def free(self):
        for _ in range(100):
            name = f"{self.pick(*DIRS)}/{self.pick(*STEMS)}{self.pick(*SUFFIXES)}".lstrip("/")
            if name not in self.frames:
                return name
        raise RuntimeError("no free name")

    def both(self, text, act):
        """Does the same on both sides; the answers are equal."""
        self.last = text
        self.note()
        answers = []
        for side in self.sides:
            try:
                answer = act(side)
                answers.append(("returned", None if isinstance(answer, Path) else answer))
            except Exception as error:
                errno = getattr(error, "errno", None)
                answers.append(("raised", type(error).__name__, errno if errno else str(error).replace(str(side), "")))
        if answers[0] != answers[1]:
            raise Difference(f"{text}: {answers[1]}, natively {answers[0]}")
        if answers[0][0] == "raised":
            raise Difference(f"{text}: {answers[0]}, natively as well: the test asked for what cannot be")
        return answers[0][1]

    def create(self):
        self.make(self.free())

    def make(self, name):
        kind, contiguous = self.new_kind(), bool(self.rng.random() < 0.5)
        self.both(f"make {name!r}, {kind.NAME}, contiguous={contiguous}", lambda side: kind.build(str(side / name), contiguous))
        self.frames[name] = Frame(kind, contiguous, self.stored_anew(name, contiguous))
        self.changed(name, between=True)

    def recreate(self):
        """mode="w" over what is there, in either layout: the library removes it first."""
        name = self.some()
        self.forgotten(name)
        self.make(name)

    def forgotten(self, name):
        frame = self.frames.pop(name)
        # A name keeps the layout of what was shown as frames are there.
        if frame.contiguous == (self.show == "contiguous"):
            self.before[name] = frame.stored

    def mutate(self):
        name = self.some()
        frame = self.frames[name]
        paths = [side / name for side in self.sides]
        handles = [open_frame(path, "a") for path in paths]
        for _ in range(1 + int(self.rng.integers(4))):
            # An empty frame may not say how long its chunks are, and then it cannot be filled either.
            frame.kind.spoiled = frame.state["chunksize"] <= 0 or any(header_cbytes(path) for path in paths)
            mutation = frame.kind.choose(handles[0], frame.state)
            if mutation.on_path:
                handles = None
                gc.collect()
            apply = (lambda side: mutation.apply(str(side / name))) if mutation.on_path else (lambda side: mutation.apply(handles[side == self.view]))
            self.both(f"{name!r}: {mutation}", apply)
            frame.state = contents(handles[0] if handles else open_frame(paths[0]), cbytes=False)
            if any(path.is_dir() and has_ids_beyond_bound(path) for path in paths) or mutation.on_path:
                break
        handles = None
        gc.collect()
        if any(path.is_dir() and has_ids_beyond_bound(path) for path in paths):
            # The library cannot open its own frame any more.
            self.take_away(name)
            return
        self.changed(name, between=True)

    def remove(self):
        name = self.some()
        self.take_away(name)

    def take_away(self, name):
        if self.rng.random() < 0.5:
            self.both(f"remove_urlpath({name!r})", lambda side: blosc2.remove_urlpath(str(side / name)))
        else:
            self.both(f"rm -r {name!r}", lambda side: remove_frame(side / name))
        self.forgotten(name)
        self.changed(name)

    def rename(self):
        """Onto a free name, of any frame, in any directory."""
        name, new = self.some(), self.free()
        self.both(f"rename {name!r} to {new!r}", lambda side: os.rename(side / name, side / new))
        self.frames[new] = self.frames.pop(name)
        self.before[name] = self.before[new] = ANY
        self.changed(name)
        self.changed(new)

    def replace(self):
        """One frame in place of another, both shown alike."""
        name = self.some(self.stable)
        target = name and self.some(self.stable, lambda other, frame: other != name and frame.contiguous == self.frames[name].contiguous)
        if not target:
            return
        if not self.frames[name].contiguous:
            self.both(f"rm -r {target!r}", lambda side: shutil.rmtree(side / target))
        self.both(f"replace {target!r} by {name!r}", lambda side: os.replace(side / name, side / target))
        frame = self.frames[target] = self.frames.pop(name)
        frame.stored = frame.stored if self.show == "other" else ANY
        self.before[name] = self.before[target] = ANY
        self.changed(name)
        self.changed(target)

    def replace_by_temporary(self):
        """A frame written under a temporary name that is renamed onto a frame's, or onto a free name."""
        name = self.some(self.stable, lambda _, frame: frame.contiguous)
        if name is None or self.rng.random() < 0.5:
            if self.show == "sparse":
                return
            name = self.free()
        temporary = self.pick(f"{name}.4711.tmp", str(Path(name).parent / f".{Path(name).name}.Xy12Ab"))
        if len(Path(temporary).name.encode()) > 255:
            return
        kind = self.new_kind()
        self.both(f"make {temporary!r}, {kind.NAME}", lambda side: kind.build(str(side / temporary), True))
        self.both(f"replace {name!r} by {temporary!r}", lambda side: os.replace(side / temporary, side / name))
        # What is replaced keeps its layout.
        stored = self.frames[name].stored if name in self.frames and self.show != "other" else self.stored_anew(name, True)
        self.frames[name] = Frame(kind, True, stored)
        self.changed(temporary)
        self.changed(name, between=True)

    def save(self):
        """The library's own ways to write a whole frame: save, copy, to_cframe."""
        source, new = self.some(), self.free()
        frame, contiguous = self.frames[source], bool(self.rng.random() < 0.5)

        def act(side):
            opened = open_frame(side / source)
            if isinstance(opened, blosc2.NDArray) and way == "save":
                opened.save(str(side / new), contiguous=contiguous)
            elif way == "copy" and isinstance(opened, blosc2.NDArray):
                opened.copy(urlpath=str(side / new), contiguous=contiguous)
            else:
                (side / new).write_bytes(opened.to_cframe())

        way = self.pick("save", "copy", "to_cframe")
        if frame.kind.NAME != "b2nd" or way == "to_cframe":
            way, contiguous = "to_cframe", True
        self.both(f"{way} of {source!r} as {new!r}, contiguous={contiguous}", act)
        self.frames[new] = Frame(frame.kind, contiguous, self.stored_anew(new, contiguous))
        self.changed(new, between=True)

    def copy(self):
        """A frame's file or directory copied onto a free name."""
        source, new = self.some(self.stable), self.free()
        if not source:
            return
        frame = self.frames[source]
        self.both(f"cp -r {source!r} {new!r}", lambda side: copy_frame(side / source, side / new))
        self.frames[new] = Frame(frame.kind, frame.contiguous, self.stored_anew(new, frame.contiguous))
        self.changed(new, between=True)

    def overwrite(self):
        """A frame's file copied onto another, which keeps its layout."""
        source = self.some(self.stable, lambda _, frame: frame.contiguous)
        target = source and self.some(self.stable, lambda other, frame: other != source and frame.contiguous)
        if not target:
            return
        self.both(f"cp {source!r} {target!r}", lambda side: copy_frame(side / source, side / target))
        frame = self.frames[source]
        self.frames[target] = Frame(frame.kind, True, self.frames[target].stored)
        self.changed(target, between=True)

    def move_directory(self):
        """A directory with all that is in it, there and back, with files of it open."""
        name = self.pick(*DIRS[1:])
        inside = [frame for frame in sorted(self.frames) if frame.startswith(f"{name}/")]
        readers = [(frame, open_frame(self.view / frame)) for frame in inside[:2]]
        before = {frame: contents(reader, cbytes=False) for frame, reader in readers}
        self.both(f"rename the directory {name!r}", lambda side: os.rename(side / name, side / "moved"))
        for frame in inside[:4]:
            self.look(frame, f"moved{frame[len(name) :]}")
        self.both(f"rename it back to {name!r}", lambda side: os.rename(side / "moved", side / name))
        for frame, reader in readers:
            self.expect(contents(reader, cbytes=False), before[frame], f"{frame!r} through a handle that was open meanwhile")
        # The library, which goes by the path, may have kept nothing open.
        del readers
        self.before.clear()
        for frame in inside:
            self.before[frame] = ANY
        for frame in inside:
            self.changed(frame)

    def listing(self):
        def act(side):
            return {
                str(path.relative_to(side)): self.kind_of(path, side)
                for path in sorted(side.rglob("*")) if path.parent.suffix not in SUFFIXES
            }  # fmt: skip

        self.both("list all", act)

    def kind_of(self, path, side):
        frame = self.frames.get(str(path.relative_to(side)))
        if frame is not None and not self.is_stable(frame):
            return "a frame, in whatever kind"
        return "directory" if path.is_dir() else "file"

    def open_modes(self):
        """A reader cannot write; "a" of a name that is not there makes a frame."""
        name = self.some()

        def write(side):
            try:
                frame = open_frame(side / name)
                getattr(frame, "schunk", frame).vlmeta["no"] = 1
            except Exception as error:
                return type(error).__name__
            return "written"

        self.both(f"write to {name!r}, opened for reading", write)
        new = self.free()
        contiguous = bool(self.rng.random() < 0.5)

        def append(side):
            frame = blosc2.SChunk(urlpath=str(side / new), mode="a", contiguous=contiguous, chunksize=400, cparams={"typesize": 4})
            frame.append_data(bytes(range(200)) * 2)
            open_frame(side / new, "a").append_data(bytes(range(100)) * 4)

        self.both(f"mode='a' on {new!r}, contiguous={contiguous}", append)
        kind = KINDS["plain"](self.rng)
        kind.typesize, kind.items, kind.chunksize, kind.meta = 4, 100, 400, {}
        frame = self.frames[new] = Frame(kind, contiguous, self.stored_anew(new, contiguous))
        self.look(new)
        if frame.state["nchunks"] != 2:
            raise Difference(f"{new!r}: {frame.state['nchunks']} chunks, expected 2")
        # It has no metalayers that could be changed, so it goes again.
        self.take_away(new)

    def make_durable(self):
        self.durable()
        self.compare_dir("DIR after fsync", whole=False)

    # ---- Comparisons

    def changed(self, name, between=False):
        """A name was written to, or is gone. `between`: a daemon that is killed may have committed what the library had half made."""
        if name in self.frames:
            self.look(name)
        else:
            self.both(f"{name!r} is gone", lambda side: os.path.lexists(side / name))
            for side in self.sides:
                if os.path.lexists(side / name):
                    raise Difference(f"{side / name} is still there")
        if self.options.kill:
            states = self.allowed.setdefault(name, [None])
            if between:
                states.append(ANY)
            states.append(self.frames[name].state if name in self.frames else None)

    def look(self, name, at=None):
        """Both sides show the same frame under a name, which is as the model says."""
        frame = self.frames[name]
        expected = contents(open_frame(self.native / (at or name)), cbytes=False)
        if self.directory and hasattr(self, "view"):
            self.expect(contents(open_frame(self.view / (at or name)), cbytes=False), expected, f"{name!r} in the mount")
            if self.is_stable(frame) and (self.view / (at or name)).is_dir() == frame.contiguous:
                raise Difference(f"{name!r} is shown as a {'directory' if frame.contiguous else 'file'}")
        frame.state = expected

    def compare_all(self, where):
        self.listing()
        self.last = where
        for name in sorted(self.frames):
            self.look(name)

    def compare_dir(self, where, whole=True):
        """DIR, read natively: all frames, in the layouts that they should have, and nothing else."""
        found = is_frame_in(self.dir)
        for name, frame in sorted(self.frames.items()):
            if name not in found:
                raise Difference(f"{where}: {name!r} is missing; there are {sorted(found)}")
            layout = found.pop(name)
            if frame.stored is not ANY and layout != frame.stored:
                raise Difference(f"{where}: {name!r} is stored as {layout}, expected {frame.stored}")
            frame.stored = layout
            if whole and layout == "sframe":
                self.check_parts(self.dir / name)
            if frame.state is not None and not (layout == "sframe" and has_ids_beyond_bound(self.dir / name)):
                self.expect(contents(open_frame(self.dir / name), cbytes=False), frame.state, f"{where}: {name!r}")
        left = [name for name in found if whole or not Path(name).name.startswith(".b2fuse-")]
        if left:
            raise Difference(f"{where}: left behind: {left}")
        # What a killed daemon left within a frame goes with the frame's next change.
        left = [path for path in self.dir.rglob("*") if ".b2fuse-" in path.name or path.name.endswith(".lost")]
        left = [path for path in left if not self.kills or not (path.parent / "chunks.b2frame").exists()]
        if whole and left:
            raise Difference(f"{where}: left behind: {left}")

    def check_parts(self, directory):
        names = {path.name for path in directory.iterdir()} - {"chunks.b2frame"}
        state = self.frames[str(directory.relative_to(self.dir))].state
        stored = sum(1 for key in state or () if key.startswith("chunk ") and (state[key][31] >> 4) & 7 not in (1, 2, 4))
        if state is not None and not self.kills and len(names) != stored:
            raise Difference(f"{directory}: {len(names)} files beside the index, expected {stored}")

    @staticmethod
    def expect(got, expected, where):
        found = difference(got, expected)
        if found:
            raise Difference(f"{where}: {found}")

    # ---- Mounts

    def remount(self):
        self.last = "unmount"
        self.note()
        gc.collect()
        self.mount.umount()
        self.compare_dir("DIR after the unmount")
        self.second_mount()
        self.mount.mount()
        self.before.clear()
        self.mounted_anew()

    def mounted_anew(self):
        """What had the kind that the library made is shown as the mount shows all, from now on."""
        for frame in self.frames.values():
            if self.show != "other":
                frame.contiguous = self.show == "contiguous"
        # The native side follows: only kinds that are alike can be renamed onto each other.
        for name, frame in self.frames.items():
            path = self.native / name
            if path.is_file() != frame.contiguous:
                self.rewrite_natively(path, frame)
        self.compare_all("the next mount")
        self.allowed.clear()
        self.durable()

    def rewrite_natively(self, path, frame):
        """The native frame in the other layout, by a copy of what DIR holds: the library cannot convert all kinds without a change."""
        other = self.directory / "rewritten"
        layout = "contiguous" if frame.contiguous else "sparse"
        subprocess.run([self.options.b2fuse, "convert", path, other], check=True, capture_output=True, timeout=60)
        if other.is_file() != frame.contiguous:
            raise RuntimeError(f"{path}: not converted to {layout}")
        remove_frame(path)
        other.rename(path)

    def second_mount(self):
        """The same through a mount that shows DIR otherwise."""
        self.last = "a second mount"
        show = self.pick(*[show for show in SHOWS if show != self.show])
        point = self.directory / "second"
        with Mount(self.dir, point, ["--show", show, "-o", "ro"], self.options.b2fuse, timeout=60):
            for name, frame in sorted(self.frames.items()):
                path = point / name
                stored_as_file = (self.dir / name).is_file()
                wanted = not stored_as_file if show == "other" else show == "contiguous"
                if path.is_file() != wanted:
                    stored = "file" if stored_as_file else "directory"
                    raise Difference(f"--show {show}: {name!r}, stored as a {stored}, is shown as a {'file' if path.is_file() else 'directory'}")
                if frame.state is not None and not (path.is_dir() and has_ids_beyond_bound(path)):
                    self.expect(contents(open_frame(path), cbytes=False), frame.state, f"{name!r} with --show {show}")

    def durable(self):
        """Everything that was touched is on disk."""
        if self.options.self_test:
            return
        self.last += ", fsync"
        folders = {""}
        for name in self.frames:
            path = self.view / name
            fsync(path / "chunks.b2frame" if path.is_dir() else path)
            folders.add(str(Path(name).parent))
        for folder in folders:
            fsync(self.view / folder)
        self.allowed = {name: [frame.state] for name, frame in self.frames.items()}

    def kill(self):
        if self.rng.random() < 0.5:
            self.kill_between()
        else:
            self.kill_within()

    def kill_between(self):
        """SIGKILL between two steps: each name stands for something that it stood for since all was durable."""
        if self.rng.random() < 0.4:
            self.durable()
        self.last += ", SIGKILL"
        self.note()
        gc.collect()
        self.mount.kill()
        self.after_kill({})

    def kill_within(self):
        """SIGKILL at any moment of a step, of which DIR then holds any part. Of what it does not touch, nothing is lost."""
        self.durable()
        way = self.pick(self.create, self.mutate, self.recreate, self.remove, self.rename, self.replace, self.copy, self.replace_by_temporary)
        after = float(self.pick(0.0, 0.002, 0.005, 0.01, 0.02, 0.05))
        killer = subprocess.Popen(["sh", "-c", f"sleep {after}; kill -KILL {self.mount.daemon.pid}"])
        told = self.apart(way)
        killer.wait()
        self.last = f"{told}, SIGKILL after {after} s"
        self.note()
        gc.collect()
        self.mount.kill()
        # What it changed natively, or was about to.
        found, touched = is_frame_in(self.native), set()
        for name in {*self.frames, *found, *is_frame_in(self.dir)}:
            if name not in self.frames or name not in found or repr(name) in told:
                touched.add(name)
            elif self.differs(name):
                touched.add(name)
        self.after_kill(dict.fromkeys(touched, ANY))

    def differs(self, name):
        try:
            return bool(difference(contents(open_frame(self.native / name), cbytes=False), self.frames[name].state))
        except Exception:
            # The step ended in the middle of it.
            return True

    def apart(self, way):
        """A step in a process of its own, as the library does not outlive a file system that dies beneath it. Answers the last it did."""
        told = self.directory / "told"
        told.write_text("")
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self.told = told
            try:
                way()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return told.read_text()

    def after_kill(self, touched):
        """DIR as the killed daemon left it, each name a state that it may have. What is not the last one goes, on both sides."""
        self.kills += 1
        for name in {*self.frames, *self.allowed, *touched}:
            path = self.dir / name
            now = self.frames[name].state if name in self.frames else None
            # What the mount passes on is the library's own, half made as natively.
            is_passed_on = name not in self.frames or not self.is_stable(self.frames[name])
            is_passed_on = is_passed_on or (name in touched and self.show == "contiguous" and path.is_dir())
            state = self.state_in_dir(path, is_passed_on)
            allowed = [ANY] if name in touched else self.allowed.get(name, [now])
            if ANY not in [one if one is ANY else None for one in allowed] and not self.is_among(state, allowed):
                what = "gone" if state is None else difference(state, now) if now else "there, expected to be gone"
                raise Difference(f"{name!r} in DIR after SIGKILL is none of the {len(allowed)} states since it was durable: {what}")
            if name in touched or state is None or now is None or difference(state, now):
                for side in (self.dir, self.native):
                    if os.path.lexists(side / name):
                        remove_frame(side / name)
                self.frames.pop(name, None)
        # What a half-made step has left natively.
        for name in is_frame_in(self.native):
            if name not in self.frames:
                remove_frame(self.native / name)
        # Other names that the step had begun, such as temporary ones; those that are b2fuse's own are for the next mount.
        for name in is_frame_in(self.dir):
            if name not in self.frames and ".b2fuse-" not in name:
                remove_frame(self.dir / name)
        for folder in ("moved",):
            for side in (self.dir, self.native):
                shutil.rmtree(side / folder, ignore_errors=True)
        self.mount.mount()
        self.before.clear()
        for frame in self.frames.values():
            frame.stored = ANY
        self.mounted_anew()

    @staticmethod
    def is_among(state, allowed):
        return any(one is state or (one and state and difference(state, one) is None) for one in allowed)

    def state_in_dir(self, path, is_passed_on):
        """What a name is in DIR: a frame's contents, or None for nothing. An empty directory stands where one was begun."""
        if not os.path.lexists(path) or (path.is_dir() and not any(path.iterdir())):
            return None
        try:
            return contents(open_frame(path), cbytes=False)
        except Exception as error:
            if is_passed_on or path.is_file() or not (path / "chunks.b2frame").exists():
                # A file or directory that is not yet a frame is as far as the library had come.
                return {"not a frame": str(error)}
            raise Difference(f"{path} is no frame after SIGKILL: {error}") from error

    def note(self):
        """For the case that the library takes this process down."""
        if self.told:
            with open(self.told, "a") as file:
                print(self.last, file=file)
        if self.options.log:
            with open(self.options.log, "a") as log:
                print(f"seed {self.seed} step {self.step}: {self.last}", file=log)

    # ---- One sequence

    def run(self, directory):
        self.start(directory)
        try:
            if self.options.stores:
                stores.play(self)
            else:
                self.play()
            gc.collect()
            if not self.options.self_test:
                self.mount.umount()
        except BaseException:
            gc.collect()
            if not self.options.self_test:
                subprocess.run(["umount", "-l", str(self.view)], capture_output=True)
                # A daemon that cannot end any more would stay.
                if self.mount.daemon and self.mount.daemon.poll() is None:
                    self.mount.daemon.kill()
                subprocess.run(["umount", "-l", str(self.directory / "second")], capture_output=True)
            raise

    def reproduce(self):
        extra = "".join(f" --{name.replace('_', '-')}" for name in ("self_test", "kill", "stores") if getattr(self.options, name))
        return f"{sys.argv[0]} --seed {self.seed} --show {self.show} --steps {self.options.steps}{extra} --keep DIR"


def run_here(seed, options):
    sequence = Sequence(seed, options)
    with tempfile.TemporaryDirectory(prefix="b2fuse-trees-", ignore_cleanup_errors=True) as scratch:
        directory = options.keep or scratch
        Path(directory).mkdir(parents=True, exist_ok=True)
        try:
            sequence.run(directory)
        except Exception as error:
            print(f"seed {seed} --show {sequence.show} step {sequence.step}: {sequence.last}")
            print(f"    {error}")
            if not isinstance(error, Difference):
                traceback.print_exc(file=sys.stdout)
            print(f"    reproduce: {sequence.reproduce()}")
            return False
    kills = f"; killed {sequence.kills} times" if options.kill else ""
    done = "stores" if options.stores else f"{options.steps} steps"
    print(f"seed {seed} --show {sequence.show}: {done}, all equal{kills}")
    return True


def main():
    parser = argparse.ArgumentParser(description="The Blosc2 library in a mounted tree and in a native directory, step for step.")
    parser.add_argument("--seed", type=int, help="one sequence, in this process")
    parser.add_argument("--seeds", type=seeds_of, help="a range such as 1-6, a process for each")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="of a range, so many at once (default: all cores)")
    parser.add_argument("--kind", choices=sorted(KINDS), help="frames of this kind only")
    parser.add_argument("--show", choices=SHOWS, help="what the mount shows; default: in turn by seed")
    parser.add_argument("--kill", action="store_true", help="now and then the daemon is killed, and all goes on from what it left")
    parser.add_argument("--stores", action="store_true", help="what the library keeps in stores, tables and arrays of objects")
    parser.add_argument("--self-test", action="store_true", help="a native directory in place of the mount")
    parser.add_argument("--b2fuse", default=default_binary(), help="the daemon")
    parser.add_argument("--mount-option", action="append", default=[], metavar="ARG", help="one more argument for mount")
    parser.add_argument("--keep", metavar="DIR", help="work here and leave the trees")
    parser.add_argument("--log", help=argparse.SUPPRESS)
    return run_all(__file__, parser.parse_args(), run_here, seeds_of("1-3"), SECONDS)


if __name__ == "__main__":
    sys.exit(main())
