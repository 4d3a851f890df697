"""What is known of files in a mount and in a native directory, and how the two are compared. For tree_lives.py."""

import blosc2

from lives_clients import NATIVE, PLAIN, VIEW, Wrong, held_by, is_frame, meaning, new_frame


class File:
    """What the model knows of a file beside its bytes: whether it is a frame in the mount by now, and how DIR may store that."""

    def __init__(self, name):
        self.name, self.whole, self.framed, self.stored = name, False, False, {"cframe"}
        self.handles, self.maps, self.rest = [], [], None
        # Replaced or removed while it was no whole frame: what is read of it then is nobody's promise.
        self.is_torn = False


class Handle:
    def __init__(self, client, key, file, write):
        self.client, self.key, self.file, self.write = client, key, file, write
        self.writing, self.count = write, 1


class Compared:
    """Names on both sides, which three clients use."""

    def __init__(self, dice, number, show, clients, native, view):
        self.dice, self.number, self.show, self.clients, self.native, self.view = dice, number, show, clients, native, view
        self.frames = [f"a{number}.b2nd", f"sub/b{number}.b2frame"]
        self.others = [dice.choice([f"a{number}.b2nd.123.tmp", f".a{number}.b2nd.Ab12", f".b{number}.tmp"]), f"sub/p{number}.dat"]
        self.names = self.frames + self.others
        self.files, self.gone, self.before, self.shown, self.uneven = {}, [], {}, {}, set()
        self.serial, self.steps, self.meanwhile = 0, [], []

    def seeded(self, directory):
        """Some names are files in the mount from the beginning."""
        for name in self.frames:
            stored = self.dice.choice([None, *{"other": ["sframe"], "contiguous": ["cframe", "sframe"]}.get(self.show, [])])
            if stored:
                data = new_frame(self.dice, "plain")
                (self.native / name).write_bytes(data)
                if stored == "cframe":
                    (directory / name).write_bytes(data)
                else:
                    held = held_by(blosc2.schunk_from_cframe(data))[0][0]
                    blosc2.SChunk(chunksize=800, contiguous=False, data=held, urlpath=str(directory / name), cparams={"clevel": 0})
                file = self.made(name)
                file.whole, file.framed, file.stored = True, True, {stored}

    def some(self, want=lambda _: True):
        found = [file for file in self.files.values() if want(file)]
        return self.dice.choice(found) if found else None

    def free(self, names):
        names = [name for name in names if name not in self.files]
        return self.dice.choice(names) if names else None

    def handle(self, want=lambda _: True):
        handles = [handle for file in [*self.files.values(), *self.gone] for handle in file.handles if want(handle)]
        return self.dice.choice(handles) if handles else None

    def client(self):
        return self.dice.randrange(3)

    def content(self, file):
        """New bytes, and whether they are a frame: what is one stays one."""
        if not file.framed and self.dice.random() < 0.15:
            return self.dice.randbytes(self.dice.choice([0, 10, 5000])), False
        return new_frame(self.dice, self.dice.choice(["plain", "plain", "plain", "chunks", "holes"])), True

    def is_same(self, file):
        data = self.now()[file.name]
        return file.rest is None and data == self.shown.get(file.name) and is_frame(data) and len(data) == PLAIN

    def settle(self, file):
        """A whole frame that no client can write to is a frame from now on."""
        if file.name in self.frames and file.whole and not file.framed and not any(handle.writing for handle in file.handles):
            file.framed, file.stored = True, self.before.get(file.name, {"cframe"})

    def made(self, name):
        return self.files.setdefault(name, File(name))

    def note(self, *step):
        self.steps.append(" ".join(str(part) if not isinstance(part, bytes | list) else f"<{len(part)}>" for part in step))

    def both(self, client, what, *given, atomic=True, lenient=False):
        """Does the same on both sides, while others look at the names in the mount."""
        self.note(client, what, *given)
        before = self.now()
        expected = self.clients.ask(client, what, NATIVE, *given)
        watchers = [other for other in range(3) if other != client and self.dice.random() < 0.4]
        for watcher in watchers:
            self.clients.ask(watcher, "probe", VIEW, self.names)
        found = self.clients.ask(client, what, VIEW, *given)
        for watcher in watchers:
            self.clients.tell(watcher, "enough")
        seen = set().union(*[self.clients.hear(watcher)[1] for watcher in watchers])
        if found != expected and not lenient:
            raise Wrong(f"{what} gives {found}, natively {expected}")
        self.meanwhile.append((seen, before, self.now(), atomic))

    def now(self):
        return {name: (self.native / name).read_bytes() if (self.native / name).exists() else None for name in self.names}

    def judge(self):
        """What was seen during a step was there before it or after it."""
        for seen, before, after, atomic in self.meanwhile:
            for name, errno, data in seen:
                both = [before[name], after[name]]
                if errno and (errno != 2 or None not in both):
                    raise Wrong(f"{name}: meanwhile errno {errno}")
                if errno or not atomic:
                    continue
                # The length of one with holes changes when it becomes a frame.
                uneven = [meaning(after[other]) for other in self.uneven if after[other] is not None]
                both = [meaning(one) for one in both if one is not None]
                if meaning(data) not in both and not any(one in uneven for one in both):
                    raise Wrong(f"{name}: meanwhile {len(data)} bytes that are neither the old nor the new ones")
        self.meanwhile = []

    def check(self):
        """All that can be read is as natively."""
        now = self.now()
        for client in range(3):
            names = self.names if client == self.serial % 3 else []
            files = [*self.files.values(), *[file for file in self.gone if not file.is_torn]]
            keys = [handle.key for file in files for handle in file.handles if handle.client == client]
            maps = [(key, file.name) for file in self.files.values() for one, key in file.maps if one == client]
            expected = self.clients.ask(client, "see", NATIVE, [], keys, [])[1] | {name: (0, (now[name], 0)) for name in names}
            found = self.clients.ask(client, "see", VIEW, names, keys, maps)[1]
            for name in names:
                errno, got = found[name]
                self.shown[name] = got and got[0]
                if now[name] is None:
                    if errno != 2:
                        raise Wrong(f"{name} is there: {errno}")
                    continue
                self.same(f"{name}, opened anew", found[name], expected[name])
                (self.uneven.discard if got[0] == now[name] else self.uneven.add)(name)
            for file in files:
                for handle in [handle for handle in file.handles if handle.client == client]:
                    by = f"{'written' if handle.write else 'read'} by {handle.key}"
                    what = f"{file.name}, {by}{', replaced' if file in self.gone else ''}"
                    self.same(what, found[handle.key], expected[handle.key])
            for key, name in maps:
                errno, got = found[key, name]
                if errno or got is not None and meaning(got) != meaning(now[name]):
                    raise Wrong(f"{name}, mapped by {key}: {errno or 'other bytes'}")
        self.judge()

    def same(self, what, found, expected):
        errno, got = found
        if errno:
            raise Wrong(f"{what}: errno {errno}")
        if len(got[0]) != got[1]:
            raise Wrong(f"{what}: {got[1]} bytes by stat, {len(got[0])} read")
        if meaning(got[0]) != meaning(expected[1][0]):
            raise Wrong(f"{what}: {len(got[0])} bytes that are other than the {len(expected[1][0])} natively")


def stored(path):
    """How DIR stores a name, and what that holds."""
    if path.is_dir():
        return "sframe", held_by(blosc2.open(str(path), mode="r"))
    return "cframe", meaning(path.read_bytes())


def differences(lives, native, directory, show):
    """Of DIR, by life."""
    names, more = [{path.relative_to(root) for at in (root, root / "sub") for path in at.iterdir()} for root in (native, directory)]
    wrong = [(None, f"names in DIR: {sorted(map(str, names ^ more))}")] if names != more else []
    for life in lives:
        for name, file in life.files.items():
            expected = ({"sframe"} if show == "other" else file.stored) if file.framed and name in life.frames else {"cframe"}
            try:
                (way, held), natively = stored(directory / name), meaning((native / name).read_bytes())
                if way not in expected or held != natively:
                    wrong.append((life, f"{name} in DIR: {way}, is to be {expected}, same: {held == natively}"))
            except (OSError, RuntimeError) as error:
                wrong.append((life, f"{name} in DIR: {error}"))
    return wrong
