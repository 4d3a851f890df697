#!/usr/bin/env python3
"""A process holds a map of an array in a mounted directory, and another program makes another array of it: by `mode="w"`, by a rename over
it, by another width. Right: pages that were read stay as they were, fstat gives the old length, a page that was never read
has the old bytes or ends with SIGBUS, and what is opened from then on is the new array, under another inode."""
import os, signal, subprocess, sys, tempfile, time
import blosc2, numpy
B = os.path.abspath(os.environ.get("B2FUSE", "target/release/b2fuse")); bad = []
ROWS, READ = 300, 200_000
HOLDER = """
import mmap, os, sys
file = open(sys.argv[1], "rb"); m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
read, size = int(sys.argv[2]), os.fstat(file.fileno()).st_size
before, last = m[:read], m[-100:]
print("read", flush=True)
for line in sys.stdin:
    if line.strip() == "unread":
        child = os.fork()
        if child == 0:
            m[read + (1 << 20)]; os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)
    else:
        assert m[:read] == before and m[-100:] == last, "other bytes"
        assert os.fstat(file.fileno()).st_size == size, "another length"
        print("same", flush=True)
"""
def make(path, values, contiguous): blosc2.asarray(values, urlpath=path, mode="w", chunks=(20, 500), blocks=(10, 100), contiguous=contiguous)
def renamed(path, values, contiguous):
    make(path + ".beside", values, contiguous)
    if os.path.isdir(path): os.rename(path, tempfile.mkdtemp(dir=os.path.dirname(path)))
    os.replace(path + ".beside", path)
def in_place(path, values, contiguous):
    # The library changes a shape in many steps. Pages are dropped for those that leave it.
    make(path + ".beside", values, contiguous)
    with open(path + ".beside", "rb") as made, open(path, "r+b", buffering=0) as file: file.truncate(file.write(made.read()))
    os.remove(path + ".beside")
def await_same(path, values, kind):
    deadline = time.monotonic() + 5
    while True:
        try: shown = numpy.load(path) if kind == "npy" else numpy.fromfile(path, values.dtype)
        except (OSError, ValueError) as error: shown = error
        if isinstance(shown, numpy.ndarray) and numpy.array_equal(shown.reshape(-1), values.reshape(-1)): return
        if time.monotonic() > deadline: raise AssertionError(f"a new open does not show the new array: {shown}")
        time.sleep(.02)
def held(kind, contiguous, change, values):
    with tempfile.TemporaryDirectory() as t:
        os.mkdir(t + "/dir"); os.mkdir(t + "/v"); path = t + "/dir/a.b2nd"; view = f"{t}/v/a.b2nd.{kind}"
        old = numpy.arange(ROWS * 1000, dtype="i8").reshape(ROWS, 1000); make(path, old, contiguous)
        subprocess.run([B, "mount", "--show", kind, t + "/dir", t + "/v"], check=True)
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, view, str(READ)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        def ask(what, right):
            print(what, file=holder.stdin, flush=True); got = holder.stdout.readline().strip()
            if got not in right: raise AssertionError(f"{what}: {got or f'exit {holder.wait()}: {holder.stderr.read()[-200:].strip()}'}")
        try:
            assert holder.stdout.readline() == "read\n"
            inode = os.stat(view).st_ino; ask("again", ["same"])
            for turn in range(2):
                change(path, values + turn, contiguous)
                ask("again", ["same"]); await_same(view, values + turn, kind); ask("again", ["same"])
                assert turn or os.stat(view).st_ino != inode, "the same inode"
            if kind == "npy":
                try: os.replace(t + "/v/a.b2nd.npy", t + "/v/b"); bad.append("a client has renamed an array")
                except PermissionError: pass
            # What the kernel is told may come a little later.
            for _ in range(5): time.sleep(.1); ask("again", ["same"])
            ask("unread", ["0", str(int(signal.SIGBUS)), str(int(signal.SIGBUS) | 128)]); ask("again", ["same"])
        finally: holder.kill(); holder.wait(); subprocess.run([B, "umount", t + "/v"])
wide, less, typed = numpy.arange(ROWS * 1500, dtype="i8").reshape(ROWS, 1500), numpy.arange(40.).reshape(8, 5), numpy.arange(ROWS * 1000, dtype="f8").reshape(ROWS, 1000)
changes = {"mode=w": (make, less), "other items": (make, typed), "renamed, smaller": (renamed, less), "renamed, larger": (renamed, wide), "wider": (in_place, wide), "narrower": (in_place, wide[:, :700].copy())}
for kind, contiguous, names in (("npy", True, list(changes)), ("raw", True, ["mode=w", "renamed, larger"]), ("npy", False, ["renamed, smaller", "renamed, larger"]), ("raw", False, ["renamed, smaller"])):
    for name in names:
        try: held(kind, contiguous, *changes[name])
        except AssertionError as error: bad.append(f"{kind}, {'cframe' if contiguous else 'sframe'}, {name}: {error}")
for b in bad: print(b)
print(f"{len(bad)} maps died or were wrong"); sys.exit(bool(bad))
