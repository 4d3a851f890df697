"""What clients do to frames in a mounted tree, and what of it a power cut may leave: scenes for tree_crashes.py.

A scene is a generator. Up to its `yield` it makes frames natively in its directory of DIR; then it works through the mount, in steps.
"""

import os
import shutil

import blosc2

from crash_scene import exchange, needs, run
from mutate import fsync

SCENES = {}
# Scenes that scripts/test plays; all are played by scripts/crash-soak.
FEW = set()
# Scenes in which the daemon may be killed: the library does not outlive its file system.
KILLED = {"removed", "renamed_over", "renamed_over_the_other_layout", "rsynced_over", "copied_over", "exchanged", "gets_a_name", "becomes_a_store"}


def scene(play):
    SCENES[play.__name__] = play
    return play


def few(play):
    FEW.add(play.__name__)
    return play


# ---- Frames that come

@scene
@few
def made_as_file(s):
    """The library makes a frame as a file."""
    s.put("other.b2nd", "O")
    yield
    with s.step({"new.b2nd": "N"}, loose={"new.b2nd"}):
        s.build(s.view / "new.b2nd", "N", True)
    s.sync("new.b2nd")


@scene
@few
def made_as_directory(s):
    """The library makes a frame as a directory."""
    s.put("other.b2nd", "O")
    yield
    with s.step({"new.b2nd": "N"}, loose={"new.b2nd"} if s.show == "contiguous" else (), grows={"new.b2nd": "N"}):
        s.build(s.view / "new.b2nd", "N", False)
    s.sync("new.b2nd")


@scene
@few
def copied_directory(s):
    """cp -r of a sparse frame."""
    yield
    with s.step({"new.b2nd": "N"}, loose={"new.b2nd"} if s.show == "contiguous" else (), grows={"new.b2nd": "N"}):
        run("cp", "-r", s.know_directory("N"), s.view / "new.b2nd")
    s.sync("new.b2nd")


@scene
def extracted(s):
    """tar -x of a sparse frame, below a new directory."""
    source = s.know_directory("W")
    yield
    run("tar", "-C", source.parent, "-cf", source.parent / f"{source.name}.tar", "--transform", "s,^[^/]*,new.b2nd,", source.name)
    with s.step({"new.b2nd": "W"}, loose={"new.b2nd"} if s.show == "contiguous" else (), grows={"new.b2nd": "W"}):
        run("tar", "-C", s.view, "-xf", source.parent / f"{source.name}.tar")
    s.sync("new.b2nd")


@scene
def appended_to(s):
    """A frame that the library has just made, not synced, is changed."""
    yield
    with s.step({"new.b2nd": "N"}, loose={"new.b2nd"}):
        s.build(s.view / "new.b2nd", "N", s.layout == "cframe")
    with s.step({"new.b2nd": "N2"}, loose={"new.b2nd"}):
        s.change("new.b2nd", "N", "N2")
    s.sync("new.b2nd")


@scene
@few
def only_the_file_synced(s):
    """A frame that a client has made is synced by an fsync of one file in it, which is to have its name on disk as well."""
    needs(s.show == "other" or s.layout == "cframe", "the same as with the other layout")
    yield
    with s.step({"file.b2nd": "N"}, loose={"file.b2nd"}):
        s.build(s.view / "file.b2nd", "N", True)
    if s.show != "sparse":
        s.settle()
        with s.step(durable=True):
            fsync(s.view / "file.b2nd")
    if s.show != "contiguous":
        with s.step({"dir.b2nd": "W"}, loose={"dir.b2nd", "file.b2nd"}):
            s.build(s.view / "dir.b2nd", "W", False)
        with s.step({}, loose={"file.b2nd"} if s.show == "sparse" else (), durable=True):
            fsync(s.view / "dir.b2nd/chunks.b2frame")


@scene
@few
def rsynced(s):
    """rsync -a of a file onto a free name: written under another, and renamed."""
    yield
    with s.step({"new.b2nd": "N"}, loose={"new.b2nd"} if s.show != "other" else ()):
        run("rsync", "-a", s.know("N"), s.view / "new.b2nd")
    s.sync("new.b2nd")


# ---- In place of others

@scene
@few
def rsynced_over(s):
    """rsync -a of a file over a frame that is shown as one."""
    s.put("a.b2nd", "A")
    yield
    needs(s.is_file("a.b2nd"), "it is shown as a directory")
    with s.step({"a.b2nd": "N"}):
        run("rsync", "-a", s.know("N"), s.view / "a.b2nd")
    s.sync("a.b2nd")


@scene
@few
def replaced(s):
    """A file written under a temporary name, not synced, in place of a frame: os.replace."""
    s.put("a.b2nd", "A")
    yield
    needs(s.is_file("a.b2nd"), "it is shown as a directory")
    with s.step(loose={"a.b2nd.123.tmp"}):
        s.build(s.view / "a.b2nd.123.tmp", "N", True)
    with s.step({"a.b2nd": "N"}, loose={"a.b2nd.123.tmp"}):
        os.replace(s.view / "a.b2nd.123.tmp", s.view / "a.b2nd")
    s.sync("a.b2nd")


@scene
def replaced_elsewhere(s):
    """The same, from another directory, of a name without a suffix."""
    s.put("sub/a.b2nd", "A")
    yield
    needs(s.is_file("sub/a.b2nd"), "it is shown as a directory")
    with s.step(loose={"download"}):
        shutil.copyfile(s.know("N"), s.view / "download")
    with s.step({"sub/a.b2nd": "N"}, loose={"download"}):
        os.replace(s.view / "download", s.view / "sub/a.b2nd")
    s.sync("sub/a.b2nd", "download")


@scene
@few
def copied_over(s):
    """cp of a file over a frame that is shown as one."""
    s.put("a.b2nd", "A")
    yield
    needs(s.is_file("a.b2nd"), "it is shown as a directory")
    with s.step({"a.b2nd": "N"}, grows={"a.b2nd": "N"}):
        shutil.copyfile(s.know("N"), s.view / "a.b2nd")
    s.sync("a.b2nd")


@scene
@few
def new_over_old(s):
    """A frame that a client has just made under a frame's name, not synced, renamed over another."""
    s.put("a.b2nd", "A")
    yield
    as_file = s.is_file("a.b2nd")
    with s.step({"b.b2nd": "N"}, loose={"b.b2nd"}):
        s.build(s.view / "b.b2nd", "N", as_file)
    if not as_file:
        with s.step({"a.b2nd": None}):
            shutil.rmtree(s.view / "a.b2nd")
    with s.step({"a.b2nd": "N", "b.b2nd": None}, loose={"b.b2nd"}):
        os.rename(s.view / "b.b2nd", s.view / "a.b2nd")
    s.sync("a.b2nd", "b.b2nd")


@scene
@few
def directory_over_old(s):
    """The same, of a directory that the library has made where they stay directories."""
    s.put("a.b2nd", "A")
    yield
    needs(s.show == "contiguous", "a directory becomes a frame at once")
    with s.step({"b.b2nd": "N"}, loose={"b.b2nd"}):
        s.build(s.view / "b.b2nd", "N", False)
    s.forget("b.b2nd")
    with s.step({"a.b2nd": "N", "b.b2nd": None}, loose={"b.b2nd"}):
        os.rename(s.view / "b.b2nd", s.view / "a.b2nd")
    s.sync("a.b2nd", "b.b2nd")


@scene
@few
def directory_synced(s):
    """A frame that the library has made where they stay directories is changed as a file, and only that file is synced."""
    yield
    needs(s.show == "contiguous", "a directory becomes a frame at once")
    with s.step({"new.b2nd": "N"}, loose={"new.b2nd"}):
        s.build(s.view / "new.b2nd", "N", False)
    s.forget("new.b2nd")
    with s.step({"new.b2nd": "N2"}, loose={"new.b2nd"}):
        s.change("new.b2nd", "N", "N2")
    with s.step(durable=True):
        fsync(s.view / "new.b2nd")


@scene
@few
def renamed_over(s):
    """A frame renamed over another of the same layout."""
    s.put("a.b2nd", "A")
    s.put("b.b2nd", "B")
    yield
    needs(s.is_file("a.b2nd"), "a directory that is not empty is not replaced")
    with s.step({"a.b2nd": "B", "b.b2nd": None}, swaps={"b.b2nd": "A"}):
        os.rename(s.view / "b.b2nd", s.view / "a.b2nd")
    s.sync("a.b2nd", "b.b2nd")


@scene
@few
def renamed_over_the_other_layout(s):
    """A frame renamed over one of the other layout."""
    s.put("a.b2nd", "A")
    s.put("b.b2nd", "B", s.other())
    yield
    needs(s.is_file("a.b2nd") and s.is_file("b.b2nd"), "they are not both shown as files")
    with s.step({"a.b2nd": "B", "b.b2nd": None}, swaps={"b.b2nd": "A"}):
        os.rename(s.view / "b.b2nd", s.view / "a.b2nd")
    s.sync("a.b2nd", "b.b2nd")


@scene
@few
def renamed_over_in_another_directory(s):
    """A frame renamed over one in another directory."""
    s.put("a.b2nd", "A")
    s.put("sub/b.b2nd", "B", s.other() if s.show == "contiguous" else s.layout)
    yield
    needs(s.is_file("a.b2nd"), "a directory that is not empty is not replaced")
    with s.step({"a.b2nd": "B", "sub/b.b2nd": None}, swaps={"sub/b.b2nd": "A"}):
        os.rename(s.view / "sub/b.b2nd", s.view / "a.b2nd")
    s.sync("a.b2nd", "sub/b.b2nd")


@scene
def changed_and_renamed_over(s):
    """A frame that was changed, not synced, renamed over another, of which somebody reads."""
    s.put("a.b2nd", "A")
    s.put("b.b2nd", "B")
    yield
    needs(s.is_file("a.b2nd"), "a directory that is not empty is not replaced")
    with s.step({"b.b2nd": "B2"}):
        s.change("b.b2nd", "B", "B2")
    with open(s.view / "a.b2nd", "rb") as reader:
        reader.read(100)
        with s.step({"a.b2nd": "B2", "b.b2nd": None}, swaps={"b.b2nd": "A"}):
            os.rename(s.view / "b.b2nd", s.view / "a.b2nd")
    s.sync("a.b2nd", "b.b2nd")


@scene
@few
def exchanged(s):
    """Two frames of different layouts change places: RENAME_EXCHANGE."""
    s.put("a.b2nd", "A")
    s.put("sub/b.b2nd", "B", s.other())
    yield
    with s.step({"a.b2nd": "B", "sub/b.b2nd": "A"}):
        exchange(s.view / "a.b2nd", s.view / "sub/b.b2nd")
    s.sync("a.b2nd", "sub/b.b2nd")


@scene
def exchanged_with_a_new_one(s):
    """A frame that a client has just made, not synced, and another change places."""
    s.put("a.b2nd", "A")
    yield
    needs(s.is_file("a.b2nd"), "it is shown as a directory")
    with s.step(loose={"new.b2nd"}):
        shutil.copyfile(s.know("W"), s.view / "new.b2nd")
    with s.step({"a.b2nd": "W", "new.b2nd": "A"}, loose={"new.b2nd"}):
        exchange(s.view / "a.b2nd", s.view / "new.b2nd")
    s.sync("a.b2nd", "new.b2nd")


@scene
def emptied_and_renamed_over(s):
    """A frame shown as a directory, renamed over one of which all files were removed."""
    s.put("a.b2nd", "A")
    s.put("b.b2nd", "B")
    yield
    needs(not s.is_file("a.b2nd"), "it is shown as a file")
    with s.step({"a.b2nd": "B", "b.b2nd": None}, swaps={"b.b2nd": "A"}):
        for path in (s.view / "a.b2nd").iterdir():
            path.unlink()
        os.rename(s.view / "b.b2nd", s.view / "a.b2nd")
    s.sync("a.b2nd", "b.b2nd")


# ---- Elsewhere

@scene
def loses_its_name(s):
    """A frame gets a name without a suffix, and its own again."""
    s.put("a.b2nd", "A")
    yield
    needs(s.is_file("a.b2nd"), "it is shown as a directory")
    with s.step({"a.b2nd": None, "plain": "A"}):
        os.rename(s.view / "a.b2nd", s.view / "plain")
    s.sync("a.b2nd", "plain")
    with s.step({"a.b2nd": "A", "plain": None}):
        os.rename(s.view / "plain", s.view / "a.b2nd")
    s.sync("a.b2nd", "plain")


@scene
def made_in_a_directory_that_moves(s):
    """Frames that a client has just made, not synced, move with their directory, in place of an empty one."""
    (s.dir / "target").mkdir()
    yield
    with s.step({"new/f.b2nd": "N", "new/d.b2nd": "M"}, loose={"new/f.b2nd", "new/d.b2nd"}):
        (s.view / "new").mkdir()
        s.build(s.view / "new/f.b2nd", "N", True)
        s.build(s.view / "new/d.b2nd", "M", False)
    names = {"new/f.b2nd": None, "new/d.b2nd": None, "target/f.b2nd": "N", "target/d.b2nd": "M"}
    with s.step(names, loose=set(names)):
        os.rename(s.view / "new", s.view / "target")
    s.sync("new/f.b2nd", "new/d.b2nd", "target/f.b2nd", "target/d.b2nd")


@scene
@few
def moved(s):
    """A frame renamed, into another directory, and with its directory."""
    s.put("a.b2nd", "A")
    s.put("sub/other.b2nd", "O")
    yield
    with s.step({"a.b2nd": None, "c.b2nd": "A"}):
        os.rename(s.view / "a.b2nd", s.view / "c.b2nd")
    s.sync("a.b2nd", "c.b2nd")
    with s.step({"c.b2nd": None, "sub/c.b2nd": "A"}):
        os.rename(s.view / "c.b2nd", s.view / "sub/c.b2nd")
    s.sync("c.b2nd", "sub/c.b2nd")
    with s.step({"sub/c.b2nd": None, "moved/c.b2nd": "A", "sub/other.b2nd": None, "moved/other.b2nd": "O"}):
        os.rename(s.view / "sub", s.view / "moved")
    s.sync("moved/c.b2nd", "moved/other.b2nd")


@scene
def changed_and_moved(s):
    """A frame that was changed, not synced, and renamed."""
    s.put("a.b2nd", "A")
    yield
    with s.step({"a.b2nd": "A2"}):
        s.change("a.b2nd", "A", "A2")
    with s.step({"a.b2nd": None, "sub.b2nd": "A2"}):
        os.rename(s.view / "a.b2nd", s.view / "sub.b2nd")
    s.sync("a.b2nd", "sub.b2nd")


@scene
@few
def gets_a_name(s):
    """A file that is a frame gets a frame's name."""
    yield
    with s.step(loose={"plain"}):
        shutil.copyfile(s.know("N"), s.view / "plain")
        fsync(s.view / "plain")
        fsync(s.view)
    with s.step({"new.b2nd": "N"}, loose={"plain"}):
        os.rename(s.view / "plain", s.view / "new.b2nd")
    s.sync("new.b2nd")


# ---- Frames that go

@scene
@few
def removed(s):
    """A frame removed: rm -r, or unlink of what is shown as a file."""
    s.put("a.b2nd", "A")
    s.put("other.b2nd", "O")
    yield
    with s.step({"a.b2nd": None}):
        run("rm", "-r", s.view / "a.b2nd")
    s.sync("a.b2nd")


@scene
def removed_by_library(s):
    s.put("a.b2nd", "A")
    yield
    with s.step({"a.b2nd": None}):
        blosc2.remove_urlpath(str(s.view / "a.b2nd"))
    s.sync("a.b2nd")


@scene
@few
def removed_while_open(s):
    """A frame shown as a file is removed while somebody reads it."""
    s.put("a.b2nd", "A")
    yield
    needs(s.is_file("a.b2nd"), "it is shown as a directory")
    with open(s.view / "a.b2nd", "rb") as reader:
        reader.read(100)
        with s.step({"a.b2nd": None}):
            os.unlink(s.view / "a.b2nd")
        s.sync("a.b2nd")
        reader.read()


@scene
@few
def removed_and_made_again(s):
    """mode="w" over what is there, in the kind that is shown."""
    s.put("a.b2nd", "A")
    yield
    as_file = s.is_file("a.b2nd")
    with s.step({"a.b2nd": None}):
        blosc2.remove_urlpath(str(s.view / "a.b2nd"))
    with s.step({"a.b2nd": "N"}, loose={"a.b2nd"} if as_file or s.show != "other" else (), grows={"a.b2nd": "N"}):
        s.build(s.view / "a.b2nd", "N", as_file)
    s.sync("a.b2nd")


# ---- Stores

@scene
@few
def becomes_a_store(s):
    """embed.b2e comes into a directory of frames."""
    s.put("st/a.b2nd", "A", "sframe")
    s.put("st/sub/b.b2nd", "B", "sframe")
    s.put("st/c.b2nd", "C", "cframe")
    yield
    with s.step({"st/embed.b2e": "E"}, loose={"st/embed.b2e"}):
        shutil.copyfile(s.know("E"), s.view / "st/embed.b2e")
    with s.step(loose={"st/embed.b2e"}, durable=True):
        for name in ("st/a.b2nd", "st/sub/b.b2nd"):
            if not (s.dir / name).is_file():
                raise RuntimeError(f"{name} is no file in DIR")
    s.sync("st/embed.b2e")


@scene
def made_in_a_store(s):
    """The library makes and replaces frames in a store."""
    s.put("st.b2d/a.b2nd", "A", "cframe")
    yield
    with s.step({"st.b2d/n.b2nd": "N"}, loose={"st.b2d/n.b2nd"}):
        s.build(s.view / "st.b2d/n.b2nd", "N", True)
    s.sync("st.b2d/n.b2nd")
    with s.step({"st.b2d/a.b2nd": "M"}, loose={"st.b2d/.m.tmp"}):
        s.build(s.view / "st.b2d/.m.tmp", "M", True)
        os.replace(s.view / "st.b2d/.m.tmp", s.view / "st.b2d/a.b2nd")
    s.sync("st.b2d/a.b2nd", "st.b2d/.m.tmp")


# ---- What is on disk without an fsync

@scene
@few
def left_to_the_unmount(s):
    """Names that come, change and go in several directories, of which nobody syncs any before the unmount."""
    for name in ("sub/a.b2nd", "sub/deep/b.b2nd", "sub/c.b2nd"):
        s.put(name, name[-6].upper())
    yield
    with s.step({"sub/n.b2nd": "N"}, loose={"sub/n.b2nd"}):
        s.build(s.view / "sub/n.b2nd", "N", True)
    with s.step({"sub/m.b2nd": "M"}, loose={"sub/m.b2nd"}):
        s.build(s.view / "sub/m.b2nd", "M", False)
    with s.step({"sub/a.b2nd": None, "sub/deep/a.b2nd": "A"}):
        os.rename(s.view / "sub/a.b2nd", s.view / "sub/deep/a.b2nd")
    with s.step({"sub/deep/b.b2nd": None, "sub/new/b.b2nd": "B"}):
        (s.view / "sub/new").mkdir()
        os.rename(s.view / "sub/deep/b.b2nd", s.view / "sub/new/b.b2nd")
    with s.step({"sub/c.b2nd": None}):
        run("rm", "-r", s.view / "sub/c.b2nd")
