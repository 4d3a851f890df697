# Frames in a directory mounted whole that get another name while somebody has them open, or lose their suffix by it.

# shellcheck source=trees.bash
. "${FILE%/*}/trees.bash"

# has_chunk SFRAME FILE: one of its chunks is that.
has_chunk() {
    local file
    for file in "$1"/*.chunk; do if cmp -s "$file" "$2"; then return; fi; done
    fail "$1: no chunk is $2"
}

test_frames_renamed_while_they_are_written() {
    local show name
    for show in other sparse contiguous; do
        rm -rf "$D"
        of_both_layouts
        tree --show "$show"
        py 'm, new, full = sys.argv[1:]
halves = lambda path: (lambda data: (data[:len(data) // 2], data[len(data) // 2:]))(open(path, "rb").read())
def write(path, source, move, becomes):
    first, second = halves(source)
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(fd, first)
    os.rename(*move)
    assert not os.path.exists(move[0])
    os.write(fd, second)
    os.close(fd)
    assert open(becomes, "rb").read() == open(source, "rb").read(), becomes
os.mkdir(m + "/other")
for name in ("c", "s"):
    old, now = f"{m}/{name}.b2frame", f"{m}/other/{name}.b2frame"
    if os.path.isdir(old):
        write(old + "/00000003.chunk", new, (old, now), now + "/00000003.chunk")
    else:
        write(old, full, (old, now), now)' "$M" "$FX/new/0" "$FX/full.b2frame"
        down
        equal "$(kinds "$D" c.b2frame s.b2frame other/c.b2frame other/s.b2frame)" --fd
        for name in c s; do
            case $show$name in
            otherc | sparsec) tool holds "$D/other/$name.b2frame" 3="$FX/new/0" ;;
            # The changed chunk has another file now.
            sparses) has_chunk "$D/other/$name.b2frame" "$FX/new/0" ;;
            *) tool same "$D/other/$name.b2frame" "$FX/full.b2frame" ;;
            esac
        done
        clean
    done
}

test_frames_exchanged_while_they_are_written() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/b.b2frame"
    tree --show sparse
    py 'import ctypes
m, one, two = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
path = lambda name: os.fsencode(f"{m}/{name}.b2frame")
data = [open(file, "rb").read() for file in (one, two)]
fds = [os.open(f"{m}/{name}.b2frame/00000003.chunk", os.O_WRONLY | os.O_TRUNC) for name in "ab"]
for fd, text in zip(fds, data): os.write(fd, text[:10])
assert libc.renameat2(-100, path("a"), -100, path("b"), 2) == 0, os.strerror(ctypes.get_errno())
for fd, text in zip(fds, data): os.write(fd, text[10:])
for fd in fds: os.close(fd)
for name, text in zip("ba", data):
    assert open(f"{m}/{name}.b2frame/00000003.chunk", "rb").read() == text, name' "$M" "$FX/new/0" "$FX/new/1"
    down
    equal "$(kinds "$D" a.b2frame b.b2frame)" df
    tool holds "$D/b.b2frame" 3="$FX/new/0"
    has_chunk "$D/a.b2frame" "$FX/new/1"
    clean
}

test_what_is_replaced_goes_on_being_read() {
    local name
    mkdir -p "$D"
    for name in c d; do cp "$FX/base.b2frame" "$D/$name.b2frame"; done
    for name in s t; do cp -r "$FX/sparse/base.b2frame" "$D/$name.b2frame"; done
    cp "$FX/full.b2frame" "$D/n.b2frame"
    cp -r "$FX/sparse/full.b2frame" "$D/o.b2frame"
    tree --show contiguous
    # By a file, and by another frame of either layout.
    py 'm, full = sys.argv[1:]
new = open(full, "rb").read()
open(m + "/1.tmp", "wb").write(new)
open(m + "/2.tmp", "wb").write(new)
held = []
for source, target in (("1.tmp", "c"), ("2.tmp", "s"), ("n.b2frame", "t"), ("o.b2frame", "d")):
    fd = os.open(f"{m}/{target}.b2frame", os.O_RDONLY)
    held.append((target, fd, os.pread(fd, 1 << 24, 0)))
    os.rename(f"{m}/{source}", f"{m}/{target}.b2frame")
for target, fd, before in held:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        assert os.pread(fd, 1 << 24, 0) == before, target
    except OSError as error:
        sys.exit(f"{target}: {error}")
    assert os.fstat(fd).st_nlink == 0, target
    os.close(fd)' "$M" "$FX/full.b2frame"
    for name in c s t d; do tool twins "$M/$name.b2frame" "$FX/full.b2frame"; done
    down
    equal "$(kinds "$D" c.b2frame s.b2frame t.b2frame d.b2frame)" fdfd
    for name in c s t d; do tool same "$D/$name.b2frame" "$FX/full.b2frame"; done
    clean
}

# loses SHOW KINDS: what c.b2frame and s.b2frame are in DIR when their suffix is taken away.
loses() {
    of_both_layouts
    chmod 640 "$D/c.b2frame"
    tree --show "$1"
    touch -d '2001-02-03 04:05:06' "$M/s.b2frame"
    local before
    before=$(stat -c %Y "$M/s.b2frame")
    mv "$M/c.b2frame" "$M/c"
    echo text >"$M/s"
    if [ -f "$M/s.b2frame" ]; then mv "$M/s.b2frame" "$M/s"; else rm "$M/s" && mv "$M/s.b2frame" "$M/s"; fi
    equal "$(kinds "$M" c.b2frame s.b2frame)" --
    if [ -f "$M/s" ]; then equal "$(stat -c %Y "$M/s")" "$before"; fi
    for name in c s; do tool same "$M/$name" "$FX/base.b2frame"; done
    down
    equal "$(kinds "$D" c s)" "$2"
    for name in c s; do tool same "$D/$name" "$FX/base.b2frame"; done
    equal "$(find "$D/c" -maxdepth 0 -perm /007)" ""
    clean
}
test_the_suffix_taken_away_with_other() { loses other df; }
test_the_suffix_taken_away_with_sparse() { loses sparse dd; }
test_the_suffix_taken_away_with_contiguous() { loses contiguous ff; }

test_the_suffix_taken_away_and_given_back() {
    of_both_layouts
    tree
    for name in c s; do
        mv "$M/$name.b2frame" "$M/$name.bak"
        mv "$M/$name.bak" "$M/$name.b2frame"
        tool same "$M/$name.b2frame" "$FX/base.b2frame"
    done
    down
    for name in c s; do tool same "$D/$name.b2frame" "$FX/base.b2frame"; done
    clean
}

test_an_empty_directory_renamed_before_a_frame_is_made_in_it() {
    tree
    mkdir "$M/x.b2frame" "$M/plain" "$M/sub"
    mv "$M/x.b2frame" "$M/sub/y.b2frame"
    mv "$M/plain" "$M/z.b2frame"
    cp "$FX/native.b2frame"/* "$M/sub/y.b2frame/"
    cp "$FX/native.b2frame"/* "$M/z.b2frame/"
    for name in sub/y z; do tool same "$M/$name.b2frame" "$FX/native.b2frame"; done
    mkdir "$M/u.b2frame"
    mv "$M/u.b2frame" "$M/directory"
    echo text >"$M/directory/file"
    down
    for name in sub/y z; do tool same "$D/$name.b2frame" "$FX/native.b2frame"; done
    equal "$(kinds "$D" sub/y.b2frame)" f
    equal "$(cat "$D/directory/file")" text
    clean
}

# What others have put into the directory of a frame does not go with it unseen.
test_a_frame_that_holds_something_else_keeps_its_suffix() {
    mkdir -p "$D"
    cp -r "$FX/sparse/base.b2frame" "$D/x.b2frame"
    echo precious >"$D/x.b2frame/notes.txt"
    tree
    fails "Directory not empty" mv "$M/x.b2frame" "$M/y"
    equal "$(cat "$D/x.b2frame/notes.txt")" precious
    [ ! -e "$D/y" ]
    rm "$D/x.b2frame/notes.txt"
    mv "$M/x.b2frame" "$M/y"
    down
    equal "$(ls "$D")" y
}
