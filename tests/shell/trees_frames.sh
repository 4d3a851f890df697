# Frames in a directory mounted whole: shown, written, made, replaced, renamed and removed, in all modes of --show.

# shellcheck source=trees.bash
. "${FILE%/*}/trees.bash"

# A directory with something in it is replaced by nothing, and a rename loses nothing of it.
test_no_frame_replaces_a_directory_that_is_not_empty() {
    local show name
    for show in other:c sparse:s; do
        name=${show#*:}.b2frame
        rm -rf "$D"
        of_both_layouts
        mkdir -p "$D/full.b2frame/deep" "$D/full" "$D/empty.b2frame"
        echo precious | tee "$D/full.b2frame/file" "$D/full.b2frame/deep/file" "$D/full/file" >/dev/null
        tree --show "${show%:*}"
        errnos ENOTEMPTY "os.rename(M + '/$name', M + '/full.b2frame')"
        fails "" rename2 0 "$M/$name" "$M/full"
        equal "$(cat "$D/full.b2frame/file" "$D/full.b2frame/deep/file" "$D/full/file" | uniq -c | xargs)" "3 precious"
        tool same "$M/$name" "$FX/base.b2frame"
        rename2 0 "$M/$name" "$M/empty.b2frame"
        tool same "$M/empty.b2frame" "$FX/base.b2frame"
        down
        tool same "$D/empty.b2frame" "$FX/base.b2frame"
        clean
    done
}

# The log names the file whose close was refused.
test_the_log_names_what_was_refused() {
    mkdir -p "$D/deep"
    cp "$FX/base.b2frame" "$D/deep/a.b2frame"
    tree
    fails "Invalid argument" cp "$FX/base.b2frame" "$M/deep/a.b2frame/00000000.chunk"
    await grep -q "WARN .* deep/a.b2frame/00000000.chunk: close: " "$T/log"
    down
}

# ---- Reading

# reads_as KINDS [OPTION ...]: with these the two frames are shown as such, in the first listing.
reads_as() {
    local want=$1
    of_both_layouts
    tree "${@:2}"
    # The listing says it, before anybody has looked at a name.
    equal "$(find "$M" -maxdepth 1 -name '?.b2frame' -printf '%f %y\n' | sort | cut -d' ' -f2 | tr -d '\n')" "$want"
    equal "$(kinds "$M" c.b2frame s.b2frame sub/c.b2nd sub/s.b2nd)" "$want$want"
    equal "$(kinds "$M" plain.txt no.b2frame otherwise.dat)" fff
    local name
    for name in c.b2frame s.b2frame; do
        tool same "$M/$name" "$FX/base.b2frame"
        # In its own layout, a directory's files keep their names.
        if [ -d "$M/$name" ] && [ -d "$D/$name" ]; then
            diff -r "$M/$name" "$D/$name"
        elif [ -d "$M/$name" ]; then
            cmp "$M/$name/00000003.chunk" "$FX/base/3"
        else
            tool twins "$M/$name" "$FX/base.b2frame"
        fi
    done
    for name in c s; do tool same "$M/sub/$name.b2nd" "$FX/array.b2nd"; done
    equal "$(cat "$M/no.b2frame")" "no frame"
    cmp "$M/otherwise.dat" "$FX/base.b2frame"
    equal "$(ls "$M")" "$(ls "$D")"
    down
    clean
    cmp "$D/c.b2frame" "$FX/base.b2frame"
    diff -r "$D/s.b2frame" "$FX/sparse/base.b2frame"
}
test_other() { reads_as df; }
test_sparse() { reads_as dd --show sparse; }
test_contiguous() { reads_as ff --show contiguous; }

# Frames that are files in DIR have their own bytes, dead space included.
test_contiguous_frames_as_they_are() {
    mkdir -p "$D"
    cp "$ROOT"/tests/data/cframe/* "$D"
    tree --show contiguous
    equal "$(cd "$M" && stat -c '%n %s' -- *)" "$(cd "$D" && stat -c '%n %s' -- *)"
    diff -r "$D" "$M"
    # A file with holes that becomes a frame at its close keeps length and bytes.
    cp "$ROOT/tests/data/cframe/holes.b2frame" "$M/new.b2frame"
    cmp "$M/new.b2frame" "$ROOT/tests/data/cframe/holes.b2frame"
    down
    diff -r "$D" "$ROOT/tests/data/cframe" >"$T/out" || true
    equal "$(cat "$T/out")" "Only in $D: new.b2frame"
}

test_which_files_are_frames() {
    mkdir -p "$D/a" "$D/b"
    local suffix
    for suffix in b2frame b2f b2eframe b2nd b2 b2e b2b caterva; do cp "$FX/base.b2frame" "$D/x.$suffix"; done
    cp "$FX/base.b2frame" "$D/x.mine"
    cp "$FX/base.b2frame" "$D/.b2frame"
    cp "$FX/base.b2frame" "$D/a/y.b2nd"
    cp "$FX/base.b2frame" "$D/b/y.b2nd"
    # A directory with an index is a frame whatever its name.
    cp -r "$FX/sparse/base.b2frame" "$D/dir"
    tree --show sparse
    equal "$(kinds "$M" x.b2frame x.b2f x.b2eframe x.b2nd x.b2 x.b2b x.caterva x.mine .b2frame dir a/y.b2nd)" dddddddffdd
    down
    tree
    equal "$(kinds "$M" dir)" f
    down
    tree -o suffixes=.mine
    equal "$(kinds "$M" x.b2frame x.mine)" fd
    down
    tree -o noframes='a/*' -o noframes='*.b2f'
    equal "$(kinds "$M" a/y.b2nd b/y.b2nd x.b2f x.b2)" fdfd
    down
    tree -o frames='**.b2nd' -o noframes='b/**'
    equal "$(kinds "$M" a/y.b2nd b/y.b2nd x.b2nd x.b2)" dfdf
    down
}

test_broken_frames_are_what_they_are() {
    mkdir -p "$D"
    head -c 3000 "$FX/base.b2frame" >"$D/cut.b2frame"
    head -c 20 "$FX/base.b2frame" >"$D/shorter.b2frame"
    : >"$D/empty.b2frame"
    cp "$FX/base.b2frame" "$D/index.b2frame"
    # The bytes in front of the trailer are the end of the index chunk.
    dd if=/dev/urandom of="$D/index.b2frame" bs=1 seek=$(($(stat -c %s "$D/index.b2frame") - 900)) count=500 conv=notrunc status=none
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    truncate -s 100 "$D/s.b2frame/chunks.b2frame"
    mkdir "$D/none.b2frame"
    : >"$D/none.b2frame/chunks.b2frame"
    cp "$FX/base.b2frame" "$D/good.b2frame"
    tree
    ls -l "$M" >/dev/null 2>&1 || true
    local name
    for name in cut shorter empty; do cmp "$M/$name.b2frame" "$D/$name.b2frame"; done
    await cmp "$M/s.b2frame/00000003.chunk" "$D/s.b2frame/00000003.chunk"
    [ -f "$M/none.b2frame/chunks.b2frame" ]
    # Found when it is opened: it is a file from then on, and the log has a line.
    ls "$M/index.b2frame" >/dev/null 2>&1 || true
    await cmp "$M/index.b2frame" "$D/index.b2frame"
    equal "$(grep -c 'index.b2frame.*shown as it is' "$T/log")" 1
    cmp "$M/good.b2frame/00000003.chunk" "$FX/base/3"
    rm "$M/cut.b2frame" "$M/index.b2frame" "$M/empty.b2frame" "$M/shorter.b2frame"
    rm -r "$M/s.b2frame" "$M/none.b2frame"
    equal "$(ls "$D")" good.b2frame
    down
    clean
}

test_a_frame_with_two_names_is_shown_in_its_own_kind() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/one.b2frame"
    ln "$D/one.b2frame" "$D/two.b2frame"
    tree
    equal "$(kinds "$M" one.b2frame two.b2frame)" ff
    tool same "$M/one.b2frame" "$FX/base.b2frame"
    equal "$(stat -c '%h %i' "$M/one.b2frame")" "$(stat -c '%h %i' "$D/two.b2frame")"
    # A frame that is shown gets no second name: a commit would break it off.
    cp "$FX/base.b2frame" "$D/three.b2frame"
    fails "" ln "$M/three.b2frame/00000003.chunk" "$M/x"
    down
    tree --show contiguous
    [ -f "$M/one.b2frame" ] && [ -f "$M/two.b2frame" ]
    tool same "$M/two.b2frame" "$FX/base.b2frame"
    rm "$M/two.b2frame"
    tool same "$M/one.b2frame" "$FX/base.b2frame"
    down
    equal "$(ls "$D")" "one.b2frame
three.b2frame"
}

test_attributes_set_before_a_frame_is_made() {
    tree
    mkdir "$M/x.b2frame"
    setfattr -n user.mine -v 1 "$M/x.b2frame"
    setfattr -n user.other -v 2 "$M/x.b2frame"
    setfattr -x user.other "$M/x.b2frame"
    chmod 750 "$M/x.b2frame"
    cp "$FX/native.b2frame"/* "$M/x.b2frame/"
    down
    equal "$(kinds "$D" x.b2frame)" f
    equal "$(getfattr --only-values -n user.mine "$D/x.b2frame")" 1
    fails "" getfattr -n user.other "$D/x.b2frame"
    equal "$(stat -c %a "$D/x.b2frame")" 640
    tool same "$D/x.b2frame" "$FX/native.b2frame"
}

test_attributes_of_frames() {
    of_both_layouts
    chmod 640 "$D/c.b2frame"
    tree
    equal "$(stat -c '%a %u' "$M/c.b2frame")" "750 $(id -u)"
    chmod 700 "$M/c.b2frame"
    equal "$(stat -c %a "$D/c.b2frame")" 600
    chmod 600 "$M/s.b2frame"
    equal "$(stat -c %a "$M/s.b2frame")" 600
    setfattr -n user.mine -v 1 "$M/c.b2frame"
    equal "$(getfattr --only-values -n user.mine "$D/c.b2frame")" 1
    equal "$(getfattr --only-values -n user.b2frame.layout "$M/c.b2frame")" sparse
    equal "$(getfattr --only-values -n user.b2frame.layout "$M/s.b2frame")" contiguous
    fails "" getfattr -n user.b2frame.layout "$D/c.b2frame"
    setfattr -n user.b2frame.vlmeta.unit -v 0xa46d696c65 "$M/c.b2frame"
    fails "" getfattr -n user.b2frame.vlmeta.unit "$D/c.b2frame"
    touch -d '2001-02-03' "$M/s.b2frame"
    equal "$(stat -c %Y "$M/s.b2frame")" "$(date -d 2001-02-03 +%s)"
    if [ "$(id -u)" = 0 ]; then
        chown 65534:65533 "$M/c.b2frame" "$M/s.b2frame"
        equal "$(stat -c '%u:%g' "$D/c.b2frame" "$D/s.b2frame" "$D/s.b2frame/chunks.b2frame" | sort -u)" 65534:65533
    fi
    # Later commits keep them.
    cp "$FX/new/0" "$M/c.b2frame/00000003.chunk"
    sync "$M/c.b2frame/chunks.b2frame"
    equal "$(stat -c %a "$D/c.b2frame")" 600
    equal "$(getfattr --only-values -n user.mine "$D/c.b2frame")" 1
    down
    py 's = blosc2.open(sys.argv[1]); assert s.vlmeta["unit"] == "mile", s.vlmeta["unit"]' "$D/c.b2frame"
}

# ---- Writing inside

# writes_by_hand NAME: chunks copied, removed and renamed in the directory of a frame.
writes_by_hand() {
    cp "$FX/new/0" "$M/$1/00000003.chunk"
    cp "$FX/new/1" "$M/$1/00000009.chunk"
    cp "$FX/new/2" "$M/$1/0000000A.chunk"
    cmp "$M/$1/00000003.chunk" "$FX/new/0"
    cp "$FX/new/3" "$M/$1/.temporary"
    mv "$M/$1/.temporary" "$M/$1/00000000.chunk"
    rm "$M/$1/00000001.chunk"
    fails "Invalid argument" cp "$FX/new/longer" "$M/$1/00000006.chunk"
    fails "Operation not permitted" touch "$M/$1/other"
    fails "Operation not permitted" mkdir "$M/$1/other"
    sync "$M/$1/chunks.b2frame"
}
wrote_by_hand() { tool holds "$1" n=11 0="$FX/new/3" 1=uninit 3="$FX/new/0" 6="$FX/base/6" 9="$FX/new/1" 10="$FX/new/2"; }

test_writing_into_a_cframe() {
    of_both_layouts
    tree
    writes_by_hand c.b2frame
    wrote_by_hand "$D/c.b2frame"
    wrote_by_hand "$M/c.b2frame"
    down
    wrote_by_hand "$D/c.b2frame"
    [ -f "$D/c.b2frame" ]
    clean
}

test_writing_into_frames_shown_as_directories() {
    of_both_layouts
    # One whose files are named by position.
    cp -r "$FX/sparse/full.b2frame" "$D/full.b2frame"
    tree --show sparse
    writes_by_hand c.b2frame
    cp "$FX/new/0" "$M/full.b2frame/00000003.chunk"
    cp "$FX/new/1" "$M/full.b2frame/00000006.chunk"
    rm "$M/full.b2frame/00000001.chunk"
    down
    wrote_by_hand "$D/c.b2frame"
    tool holds "$D/full.b2frame" n=7 0="$FX/full/0" 1=uninit 3="$FX/new/0" 6="$FX/new/1"
    equal "$(kinds "$D" c.b2frame full.b2frame)" fd
    clean
}

test_writing_into_frames_shown_as_files() {
    of_both_layouts
    tree --show contiguous
    local name
    for name in c.b2frame s.b2frame; do
        cp "$FX/full.b2frame" "$M/$name"
        tool twins "$M/$name" "$FX/full.b2frame"
        fails "Invalid argument" cp "$FX/new/0" "$M/$name"
        tool twins "$M/$name" "$FX/full.b2frame"
        py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(1)); s.vlmeta["x"] = 1' "$M/$name"
    done
    down
    equal "$(kinds "$D" c.b2frame s.b2frame)" fd
    for name in c.b2frame s.b2frame; do
        tool holds "$D/$name" n=7 3="$FX/full/3"
    done
    clean
}

test_many_frames_at_once() {
    mkdir -p "$D"
    local n
    for n in $(seq 40); do cp "$FX/base.b2frame" "$D/$n.b2frame"; done
    tree
    for n in $(seq 40); do cp "$FX/new/$((n % 8))" "$M/$n.b2frame/00000003.chunk" & done
    wait $(jobs -p | grep -vx "$PID")
    for n in $(seq 40); do cmp "$M/$n.b2frame/00000003.chunk" "$FX/new/$((n % 8))"; done
    down
    for n in 1 17 40; do tool holds "$D/$n.b2frame" n=10 3="$FX/new/$((n % 8))" 6="$FX/base/6"; done
    clean
}

# ---- Making

test_a_thousand_frames_open_with_few_descriptors() {
    mkdir -p "$D" "$M"
    py 'd, file, folder = sys.argv[1:]
import shutil
for i in range(500):
    shutil.copy(file, f"{d}/c{i}.b2frame")
    shutil.copytree(folder, f"{d}/s{i}.b2frame")' "$D" "$FX/array.b2nd" "$FX/sparse/array.b2nd"
    (ulimit -n 256 && exec "$B2FUSE" mount -f --log-file "$T/log" "$D" "$M" </dev/null) &
    PID=$!
    await mountpoint -q "$M"
    py 'import resource
m = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
chunks = sorted(os.listdir(m + "/c0.b2frame"))
held = []
for i in range(500):
    held.append((os.open(f"{m}/c{i}.b2frame/{chunks[i % len(chunks)]}", os.O_RDONLY), chunks[i % len(chunks)]))
    held.append((os.open(f"{m}/s{i}.b2frame", os.O_RDONLY), None))
want = {name: open(f"{m}/c499.b2frame/{name}", "rb").read() for name in chunks}
want[None] = open(m + "/s499.b2frame", "rb").read()
for fd, name in held:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, 1 << 24, 0) == want[name], name' "$M"
    down
    clean
}

test_frames_that_nobody_uses_give_their_descriptors_up() {
    mkdir -p "$D/dir" "$M"
    py 'd, file, folder = sys.argv[1:]
import shutil
for i in range(300):
    shutil.copy(file, f"{d}/c{i}.b2frame")
for i in range(150):
    shutil.copytree(folder, f"{d}/s{i}.b2nd")' "$D" "$FX/base.b2frame" "$FX/sparse/array.b2nd"
    for show in contiguous sparse; do
        (ulimit -n 256 && exec "$B2FUSE" mount -f --show $show --log-file "$T/log" "$D" "$M" </dev/null) &
        PID=$!
        await mountpoint -q "$M"
        # A file and a frame stored as one cost a descriptor each, a frame stored as a directory two.
        py 'import errno
m = sys.argv[1]
def open_all(names, flags):
    held = []
    try:
        for name in names: held.append(os.open(f"{m}/{name}", flags))
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    return held
index = "/chunks.b2frame" if os.path.isdir(m + "/s1.b2nd") else ""
files = [f"c{n}.b2frame{index}" for n in range(300)]
folders = [f"s{n}.b2nd{index}" for n in range(150)]
plain = [f"plain{n}" for n in range(300)]
for names, flags, least in ((files, os.O_RDWR, 180), (folders, os.O_RDWR, 90), (plain, os.O_RDWR | os.O_CREAT, 90)):
    held = open_all(names, flags)
    assert least < len(held) < len(names), (names[0], len(held))
    # What is left is for who is at work.
    open(m + "/c299.b2frame" + index, "rb").read(1)
    assert len(os.listdir(m)) >= 450
    os.makedirs(f"{m}/dir/{len(held)}/sub", exist_ok=True)
    for fd in held: os.close(fd)' "$M"
        down
    done
    clean
}

test_a_directory_copied_in() {
    tree
    mkdir "$M/a.b2frame"
    equal "$(ls -A "$M/a.b2frame")" ""
    cp "$FX/native.b2frame/"* "$M/a.b2frame/"
    cp -r "$FX/native.b2frame" "$M/b.b2nd"
    rsync -a "$FX/native.b2frame/" "$M/c.b2/"
    mkdir "$M/d.b2f"
    tar -C "$FX/native.b2frame" -c . | tar -C "$M/d.b2f" -x
    mkdir "$M/dir"
    cp -a "$FX/native.b2frame" "$M/dir"
    cp -r "$FX/native.b2frame" "$M/no-suffix"
    local name
    for name in a.b2frame b.b2nd c.b2 d.b2f dir/native.b2frame; do tool same "$M/$name" "$FX/native.b2frame"; done
    equal "$(kinds "$M" a.b2frame b.b2nd c.b2 d.b2f dir dir/native.b2frame)" dddddd
    down
    equal "$(kinds "$D" a.b2frame b.b2nd c.b2 d.b2f dir dir/native.b2frame no-suffix)" ffffdfd
    for name in a.b2frame b.b2nd c.b2 d.b2f dir/native.b2frame no-suffix; do tool same "$D/$name" "$FX/native.b2frame"; done
    clean
}

test_a_file_copied_in() {
    tree
    cp "$FX/full.b2frame" "$M/a.b2frame"
    cat "$FX/full.b2frame" >"$M/b.b2nd"
    rsync -a "$FX/full.b2frame" "$M/c.b2frame"
    cp "$FX/full.b2frame" "$M/d.b2frame.4711.tmp"
    mv "$M/d.b2frame.4711.tmp" "$M/d.b2frame"
    install -m 640 "$FX/full.b2frame" "$M/e.b2"
    local name
    for name in a.b2frame b.b2nd c.b2frame d.b2frame e.b2; do tool twins "$M/$name" "$FX/full.b2frame"; done
    equal "$(kinds "$M" a.b2frame b.b2nd c.b2frame d.b2frame e.b2)" fffff
    equal "$(stat -c %a "$M/e.b2")" 640
    equal "$(rsync -a --itemize-changes "$FX/full.b2frame" "$M/c.b2frame")" ""
    down
    equal "$(kinds "$D" a.b2frame b.b2nd c.b2frame d.b2frame e.b2)" ddddd
    for name in a.b2frame b.b2nd c.b2frame d.b2frame e.b2; do tool same "$D/$name" "$FX/full.b2frame"; done
    clean
}

# What is no frame after all is an ordinary file or directory, as natively.
test_what_is_no_frame_after_all() {
    tree
    echo text >"$M/a.b2frame"
    equal "$(cat "$M/a.b2frame")" text
    mkdir "$M/b.b2frame"
    echo text >"$M/b.b2frame/file"
    mkdir "$M/b.b2frame/dir"
    mkdir "$M/c.b2frame"
    rmdir "$M/c.b2frame"
    mkdir "$M/d.b2frame"
    head -c 5000 "$FX/full.b2frame" >"$M/e.b2frame"
    tail -c +5001 "$FX/full.b2frame" >>"$M/e.b2frame"
    tool same "$M/e.b2frame" "$FX/full.b2frame"
    mkdir "$M/f.b2frame"
    ln -s ../x "$M/f.b2frame/link"
    down
    equal "$(cat "$D/a.b2frame" "$D/b.b2frame/file")" "text
text"
    equal "$(ls -A "$D")" "a.b2frame
b.b2frame
d.b2frame
e.b2frame
f.b2frame"
    equal "$(ls -A "$D/d.b2frame")" ""
    tool same "$D/e.b2frame" "$FX/full.b2frame"
    equal "$(kinds "$D" b.b2frame/dir e.b2frame)" dd
    clean
}

# made_and_kept KIND STORED: what the library makes in the mount, contiguous or not, is stored so.
made_by_the_library() {
    py 'for contiguous, name in ((True, "f"), (False, "d")):
    s = blosc2.SChunk(chunksize=CHUNKSIZE, urlpath=f"{sys.argv[1]}/{name}.b2frame", contiguous=contiguous, mode="w")
    for n in range(5):
        s.append_data(noise(n))
    a = blosc2.asarray(np.arange(5000.0), urlpath=f"{sys.argv[1]}/{name}.b2nd", contiguous=contiguous, mode="w")
    assert (blosc2.open(f"{sys.argv[1]}/{name}.b2nd")[:] == np.arange(5000.0)).all()' "$M"
    equal "$(kinds "$M" f.b2frame d.b2frame f.b2nd d.b2nd)" "$1"
    down
    equal "$(kinds "$D" f.b2frame d.b2frame f.b2nd d.b2nd)" "$2"
    py 'for name in "fd":
    s = blosc2.open(f"{sys.argv[1]}/{name}.b2frame")
    assert s.nchunks == 5 and s.decompress_chunk(4) == noise(4)
    assert (blosc2.open(f"{sys.argv[1]}/{name}.b2nd")[:] == np.arange(5000.0)).all()' "$D"
    clean
}
test_made_by_the_library_other() { tree && made_by_the_library fdfd dfdf; }
test_made_by_the_library_sparse() { tree --show sparse && made_by_the_library fdfd fdfd; }
test_made_by_the_library_contiguous() { tree --show contiguous && made_by_the_library fdfd fdfd; }

# The index says only after the chunks that they are of any size, and a chunk file is closed before.
test_a_directory_with_chunks_of_varying_size_made_by_the_library() {
    tree
    py 'path = sys.argv[1] + "/varying.b2frame"
sizes = [4000, 4004, 800, 1200, 8000]
s = blosc2.SChunk(chunksize=4000, urlpath=path, mode="w", contiguous=False, cparams={"typesize": 4})
for n in sizes:
    s.append_data(noise(n, n))
got = blosc2.open(path)
assert [got.decompress_chunk(n) for n in range(got.nchunks)] == [noise(n, n) for n in sizes]
items = [1, "text", {"a": 2}, ["x"] * 500]
for kind, name, stored in ((blosc2.ObjectArray, "objects", items), (blosc2.BatchArray, "batches", [items, items[:1], items[2:]])):
    array = kind(urlpath=f"{sys.argv[1]}/{name}.b2b", mode="w", contiguous=False)
    for item in stored:
        array.append(item)
    assert len(list(blosc2.open(f"{sys.argv[1]}/{name}.b2b"))) == len(stored)' "$M"
    down
    equal "$(kinds "$D" varying.b2frame objects.b2b batches.b2b)" fff
    py 'sizes = [4000, 4004, 800, 1200, 8000]
got = blosc2.open(sys.argv[1] + "/varying.b2frame")
assert [got.decompress_chunk(n) for n in range(got.nchunks)] == [noise(n, n) for n in sizes]
assert list(blosc2.open(sys.argv[1] + "/objects.b2b")) == [1, "text", {"a": 2}, ["x"] * 500]
assert [list(batch) for batch in blosc2.open(sys.argv[1] + "/batches.b2b")][1] == [1]' "$D"
    clean
}

test_the_layout_is_kept_with_sparse() {
    of_both_layouts
    tree --show sparse
    rm -r "$M/c.b2frame" "$M/s.b2frame"
    [ ! -e "$D/c.b2frame" ] && [ ! -e "$D/s.b2frame" ]
    cp -r "$FX/sparse/full.b2frame" "$M/c.b2frame"
    cp -r "$FX/sparse/full.b2frame" "$M/s.b2frame"
    cp -r "$FX/sparse/full.b2frame" "$M/new.b2frame"
    rm -r "$M/sub/s.b2nd"
    # In the other kind there is nothing to keep: what is made is left as it is.
    cp "$FX/full.b2frame" "$M/sub/s.b2nd"
    down
    equal "$(kinds "$D" c.b2frame s.b2frame new.b2frame sub/s.b2nd)" fddf
    local name
    for name in c.b2frame s.b2frame new.b2frame sub/s.b2nd; do tool same "$D/$name" "$FX/full.b2frame"; done
    clean
}

test_the_layout_is_kept_with_contiguous() {
    of_both_layouts
    tree --show contiguous
    rm "$M/c.b2frame"
    cp "$FX/full.b2frame" "$M/c.b2frame"
    cp "$FX/full.b2frame" "$M/s.b2frame"
    # By rename, as rsync does it.
    cp "$FX/full.b2frame" "$M/sub/.c.b2nd.Ab12"
    mv "$M/sub/.c.b2nd.Ab12" "$M/sub/c.b2nd"
    rsync -a "$FX/full.b2frame" "$M/sub/s.b2nd"
    cp "$FX/full.b2frame" "$M/new.b2frame"
    rm "$M/s.b2frame"
    cp "$FX/full.b2frame" "$M/s.b2frame"
    cp -r "$FX/sparse/full.b2frame" "$M/directory.b2frame"
    local name
    for name in c.b2frame s.b2frame sub/c.b2nd sub/s.b2nd new.b2frame; do tool twins "$M/$name" "$FX/full.b2frame"; done
    down
    equal "$(kinds "$D" c.b2frame s.b2frame sub/c.b2nd sub/s.b2nd new.b2frame directory.b2frame)" fdfdfd
    for name in c.b2frame s.b2frame sub/c.b2nd sub/s.b2nd new.b2frame directory.b2frame; do tool same "$D/$name" "$FX/full.b2frame"; done
    clean
}

# ---- Replacing and renaming

test_frames_renamed() {
    of_both_layouts
    tree
    cmp "$M/c.b2frame/00000003.chunk" "$FX/base/3"
    cp "$FX/new/0" "$M/c.b2frame/00000003.chunk"
    mv "$M/c.b2frame" "$M/sub/renamed.b2frame"
    cmp "$M/sub/renamed.b2frame/00000003.chunk" "$FX/new/0"
    [ ! -e "$M/c.b2frame" ]
    mv "$M/s.b2frame" "$M/moved.b2"
    tool twins "$M/moved.b2" "$FX/base.b2frame"
    mv "$M/sub" "$M/directory"
    cmp "$M/directory/renamed.b2frame/00000003.chunk" "$FX/new/0"
    cp "$FX/new/1" "$M/directory/renamed.b2frame/00000006.chunk"
    fails "File exists" rename2 1 "$M/moved.b2" "$M/directory/renamed.b2frame"
    rename2 1 "$M/moved.b2" "$M/again.b2frame"
    rename2 2 "$M/again.b2frame" "$M/directory/renamed.b2frame"
    equal "$(kinds "$M" again.b2frame directory/renamed.b2frame)" df
    cmp "$M/again.b2frame/00000006.chunk" "$FX/new/1"
    # The suffix is taken away, and given back.
    mv "$M/directory/renamed.b2frame" "$M/plain"
    tool same "$M/plain" "$FX/base.b2frame"
    mv "$M/plain" "$M/back.b2frame"
    tool same "$M/back.b2frame" "$FX/base.b2frame"
    mv "$M/again.b2frame" "$M/directory-now"
    tool holds "$M/directory-now" 3="$FX/new/0" 6="$FX/new/1"
    down
    tool holds "$D/directory-now" 3="$FX/new/0" 6="$FX/new/1"
    tool same "$D/back.b2frame" "$FX/base.b2frame"
    clean
}

test_frames_renamed_while_open() {
    of_both_layouts
    tree
    py 'm, base, new = sys.argv[1:]
held = os.open(m + "/c.b2frame/00000003.chunk", os.O_RDONLY)
folder = os.open(m + "/c.b2frame", os.O_RDONLY)
file = os.open(m + "/s.b2frame", os.O_RDONLY)
want = open(base, "rb").read()
before = os.pread(file, 1 << 24, 0)
os.rename(m + "/c.b2frame", m + "/sub/c2.b2frame")
os.rename(m + "/s.b2frame", m + "/s2.b2frame")
os.rename(m + "/sub", m + "/sub2")
assert os.pread(held, 1 << 20, 0) == want
assert "00000003.chunk" in os.listdir(folder)
assert os.pread(file, 1 << 24, 0) == before == open(m + "/s2.b2frame", "rb").read()
fd = os.open("00000003.chunk", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
os.write(fd, open(new, "rb").read())
os.close(fd)
assert open(m + "/sub2/c2.b2frame/00000003.chunk", "rb").read() == open(new, "rb").read()' "$M" "$FX/base/3" "$FX/new/0"
    down
    tool holds "$D/sub2/c2.b2frame" 3="$FX/new/0"
    clean
}

test_a_frame_renamed_over_another() {
    local name
    mkdir -p "$D"
    for name in a b c d; do cp "$FX/base.b2frame" "$D/$name.b2frame"; done
    for name in t u v w; do cp -r "$FX/sparse/full.b2frame" "$D/$name.b2frame"; done
    tree
    # Files, as natively: stored as directories.
    mv "$M/t.b2frame" "$M/u.b2frame"
    cp "$FX/base.b2frame" "$M/new.tmp"
    mv "$M/new.tmp" "$M/v.b2frame"
    tool same "$M/u.b2frame" "$FX/full.b2frame"
    tool same "$M/v.b2frame" "$FX/base.b2frame"
    # Directories: only onto one that is empty.
    fails "not empty" mv -T "$M/a.b2frame" "$M/b.b2frame"
    rm -r "$M/b.b2frame"
    mv -T "$M/a.b2frame" "$M/b.b2frame"
    fails "" mv -T "$M/c.b2frame" "$M/w.b2frame"
    fails "" mv -T "$M/w.b2frame" "$M/c.b2frame"
    rename2 2 "$M/c.b2frame" "$M/d.b2frame"
    # A text, and nothing at all, in place of a frame.
    echo text >"$M/text"
    mv "$M/text" "$M/w.b2frame"
    equal "$(cat "$M/w.b2frame")" text
    down
    equal "$(ls "$D")" "b.b2frame
c.b2frame
d.b2frame
u.b2frame
v.b2frame
w.b2frame"
    equal "$(kinds "$D" b.b2frame u.b2frame v.b2frame w.b2frame)" fddf
    tool same "$D/u.b2frame" "$FX/full.b2frame"
    tool same "$D/v.b2frame" "$FX/base.b2frame"
    tool same "$D/b.b2frame" "$FX/base.b2frame"
    clean
}

test_a_frame_replaced_while_it_is_read() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/c.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    tree --show contiguous
    py 'm, base, full = sys.argv[1:]
for name in ("c", "s"):
    path = f"{m}/{name}.b2frame"
    held = os.open(path, os.O_RDONLY)
    before = os.pread(held, 1 << 24, 0)
    open(path + ".tmp", "wb").write(open(full, "rb").read())
    os.replace(path + ".tmp", path)
    try:
        assert os.pread(held, 1 << 24, 0) == before
    except OSError as error:
        assert error.errno == errno.ESTALE, error
    os.close(held)' "$M" "$FX/base.b2frame" "$FX/full.b2frame"
    tool twins "$M/c.b2frame" "$FX/full.b2frame"
    tool twins "$M/s.b2frame" "$FX/full.b2frame"
    down
    equal "$(kinds "$D" c.b2frame s.b2frame)" fd
    clean
}

test_moved_in_and_out() {
    tree
    cp -r "$FX/native.b2frame" "$T/x.b2frame"
    mv "$T/x.b2frame" "$M/x.b2frame"
    tool same "$M/x.b2frame" "$FX/native.b2frame"
    mv "$M/x.b2frame" "$T/y.b2frame"
    diff -r "$T/y.b2frame" "$FX/native.b2frame" >/dev/null || tool same "$T/y.b2frame" "$FX/native.b2frame"
    [ ! -e "$M/x.b2frame" ] && [ ! -e "$D/x.b2frame" ]
    cp "$FX/full.b2frame" "$T/z.b2frame"
    mv "$T/z.b2frame" "$M/z.b2frame"
    mv "$M/z.b2frame" "$T/z2.b2frame"
    tool twins "$T/z2.b2frame" "$FX/full.b2frame"
    # What somebody has open is removed with its last close, of which the kernel tells a moment later.
    await eval '[ -z "$(ls -A "$D")" ]'
    down
    clean
}

# ---- Removing

test_frames_removed() {
    of_both_layouts
    tree --show sparse
    cmp "$M/c.b2frame/00000003.chunk" "$FX/base/3"
    fails "not empty" rmdir "$M/c.b2frame"
    fails "Is a directory" py 'os.unlink(sys.argv[1])' "$M/c.b2frame"
    # Taken apart name by name, DIR keeps the frame until the last step.
    local name
    for name in $(ls "$M/c.b2frame"); do rm "$M/c.b2frame/$name"; done
    tool same "$D/c.b2frame" "$FX/base.b2frame"
    rmdir "$M/c.b2frame"
    [ ! -e "$D/c.b2frame" ]
    rm -r "$M/s.b2frame" "$M/sub"
    equal "$(ls "$D")" "no.b2frame
otherwise.dat
plain.txt"
    down
    clean
    equal "$(ls -A "$D")" "no.b2frame
otherwise.dat
plain.txt"
}

test_frames_removed_while_open() {
    of_both_layouts
    tree --show contiguous
    py 'm, base = sys.argv[1:]
for name in ("c", "s"):
    fd = os.open(f"{m}/{name}.b2frame", os.O_RDONLY)
    before = os.pread(fd, 1 << 24, 0)
    os.unlink(f"{m}/{name}.b2frame")
    assert not os.path.exists(f"{m}/{name}.b2frame")
    assert os.pread(fd, 1 << 24, 0) == before
    assert os.fstat(fd).st_nlink == 0 and os.fstat(fd).st_size == len(before)
    os.close(fd)' "$M" "$FX/base.b2frame"
    [ ! -e "$D/c.b2frame" ] && [ ! -e "$D/s.b2frame" ]
    down
    clean
}

test_removed_and_something_else_in_its_place() {
    of_both_layouts
    tree
    rm -r "$M/c.b2frame"
    echo text >"$M/c.b2frame"
    equal "$(cat "$M/c.b2frame")" text
    rm "$M/s.b2frame"
    mkdir "$M/s.b2frame"
    echo text >"$M/s.b2frame/file"
    rm "$M/c.b2frame"
    ln -s sub "$M/c.b2frame"
    equal "$(ls "$M/c.b2frame")" "c.b2nd
s.b2nd"
    down
    equal "$(readlink "$D/c.b2frame")" sub
    equal "$(cat "$D/s.b2frame/file")" text
    clean
}

# ---- Names of ours

test_names_of_ours_are_hidden_and_refused() {
    of_both_layouts
    echo secret >"$D/.b2fuse-mine"
    mkdir "$D/.b2fuse-dir"
    mkdir "$D/x.b2frame.lost"
    tree
    equal "$(ls -A "$M" | grep -c b2fuse || true)" 0
    errnos ENOENT 'os.stat(M + "/.b2fuse-mine")' 'os.unlink(M + "/.b2fuse-mine")' 'os.rmdir(M + "/.b2fuse-dir")' \
        'os.rename(M + "/.b2fuse-mine", M + "/x")'
    errnos EPERM 'open(M + "/.b2fuse-new", "w")' 'os.mkdir(M + "/.b2fuse-new")' 'os.rename(M + "/plain.txt", M + "/.b2fuse-new")' \
        'os.symlink("x", M + "/.b2fuse-new")' 'os.link(M + "/plain.txt", M + "/.b2fuse-new")'
    [ -d "$M/x.b2frame.lost" ]
    down
    equal "$(cat "$D/.b2fuse-mine")" secret
}

# ---- Locks

test_locks_of_frames() {
    of_both_layouts
    tree
    py 'import fcntl
m, d = sys.argv[1:]
with open(m + "/c.b2frame/.b2lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
with open(m + "/s.b2frame.b2lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
for name in ("c", "s"):
    s = blosc2.open(f"{m}/{name}.b2frame", mode="a", locking=True)
    s.append_data(noise(3))
    del s
names = os.listdir(m)
assert len(names) == len(set(names)), names' "$M" "$D"
    rm -r "$M/c.b2frame"
    rm "$M/s.b2frame"
    down
    clean
}

# ---- Killed

test_a_killed_daemon_and_the_next_mount() {
    of_both_layouts
    tree
    cp "$FX/new/0" "$M/c.b2frame/00000003.chunk"
    sync "$M/c.b2frame/chunks.b2frame"
    mkdir "$M/begun.b2frame"
    cp "$FX/native.b2frame/00000000.chunk" "$M/begun.b2frame/"
    # Removed while somebody has it open: it lives under a name of ours.
    exec 7<"$M/s.b2frame"
    rm "$M/s.b2frame"
    cp "$FX/full.b2frame" "$M/file.b2frame"
    await test -d "$D/file.b2frame"
    head -c 4000 "$FX/full.b2frame" >"$M/half.b2frame"
    crash
    exec 7<&-
    # Or what follows tests nothing.
    [ -n "$(find "$D" -name '.b2fuse-*')" ]
    tool holds "$D/c.b2frame" 3="$FX/new/0"
    tree
    ls -R "$M" >/dev/null
    clean_after_a_crash
    [ ! -e "$M/s.b2frame" ]
    cmp "$M/half.b2frame" <(head -c 4000 "$FX/full.b2frame")
    equal "$(ls -A "$D/begun.b2frame")" ""
    rmdir "$M/begun.b2frame"
    tool same "$M/file.b2frame" "$FX/full.b2frame"
    cmp "$M/c.b2frame/00000003.chunk" "$FX/new/0"
    down
    clean_after_a_crash
}

# Killed at any moment of a storm of making, replacing and removing: what was not touched is as it was, and every frame is whole.
test_killed_in_a_storm() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/still.b2frame"
    local round after
    for round in 1 2 3 4; do
        tree
        (
            set +e
            while :; do
                rm -rf "$M"/?.b2frame
                cp "$FX/full.b2frame" "$M/a.b2frame"
                cp -r "$FX/native.b2frame" "$M/b.b2frame"
                cp "$FX/base.b2frame" "$M/.t" && mv "$M/.t" "$M/a.b2frame"
                mv "$M/a.b2frame" "$M/c.b2frame"
                rm -r "$M/b.b2frame"
                rm -f "$M/c.b2frame"
            done
        ) >/dev/null 2>&1 &
        local storm=$!
        sleep "0.$((round * 2))"
        kill -KILL "$PID"
        kill -KILL "$storm"
        wait "$PID" "$storm" 2>/dev/null || true
        PID=
        umount -l "$M"
        cmp "$D/still.b2frame" "$FX/base.b2frame"
        py 'from pathlib import Path
d = Path(sys.argv[1])
for path in d.glob("?.b2frame"):
    if path.is_dir() and not any(path.iterdir()):
        continue
    if path.is_file():
        # Still being copied, as natively.
        data, whole = path.read_bytes(), [Path(p).read_bytes() for p in sys.argv[2:]]
        assert any(one.startswith(data) for one in whole) or blosc2.open(str(path)).nchunks == 6, path
        continue
    frame = blosc2.open(str(path))
    assert frame.nchunks in (6, 10), (path, frame.nchunks)
    [frame.decompress_chunk(n) for n in range(frame.nchunks) if special_of(frame.get_chunk(n)) != 4]' "$D" "$FX/base.b2frame" "$FX/full.b2frame"
    done
    tree
    ls -R "$M" >/dev/null
    clean_after_a_crash
    rm -rf "$M"/?.b2frame
    rm -f "$M/.t"
    down
    equal "$(ls -A "$D")" still.b2frame
}

# ---- Stores of python-blosc2

test_stores_are_files_in_view_and_directory() {
    mkdir -p "$D/other.b2d" "$D/by-name"
    cp "$FX/array.b2nd" "$D/other.b2d/leaf.b2nd"
    cp -r "$FX/sparse/array.b2nd" "$D/other.b2d/sparse.b2nd"
    cp "$FX/array.b2nd" "$D/by-name/leaf.b2nd"
    cp "$FX/base.b2frame" "$D/by-name/embed.b2e"
    tree
    equal "$(kinds "$M" other.b2d other.b2d/leaf.b2nd other.b2d/sparse.b2nd by-name/leaf.b2nd by-name/embed.b2e)" dffff
    py 'm = sys.argv[1]
store = blosc2.TreeStore(m + "/t.b2d", mode="w")
store["/a"], store["/g/b"] = np.arange(1000), blosc2.arange(5000)
store.close()
assert sorted(blosc2.TreeStore(m + "/t.b2d", mode="r").keys()) == ["/a", "/g", "/g/b"]' "$M"
    equal "$(find "$M/t.b2d" -name '*.b2*' -type d)" "$M/t.b2d"
    equal "$(find "$D/t.b2d" -name '*.b2*' -type d)" "$D/t.b2d"
    down
    py 'store = blosc2.TreeStore(sys.argv[1] + "/t.b2d", mode="r")
assert (store["/g/b"][:] == np.arange(5000)).all()' "$D"
    clean
}

# What was stored as a directory before a directory became a store of Python-Blosc2 is a file when the close returns that made it one.
test_a_directory_becomes_a_store() {
    tree
    mkdir -p "$M/s/deep"
    cp "$FX/full.b2frame" "$M/s/a.b2nd"
    cp "$FX/base.b2frame" "$M/s/deep/b.b2frame"
    await [ -d "$D/s/a.b2nd" ]
    await [ -d "$D/s/deep/b.b2frame" ]
    cp "$FX/base.b2frame" "$M/s/embed.b2e"
    [ -f "$D/s/a.b2nd" ]
    [ -f "$D/s/deep/b.b2frame" ]
    tool same "$M/s/a.b2nd" "$FX/full.b2frame"
    tool same "$D/s/deep/b.b2frame" "$FX/base.b2frame"
    cp "$FX/full.b2frame" "$M/s/c.b2nd"
    down
    [ -f "$D/s/c.b2nd" ] && [ -f "$D/s/embed.b2e" ]
    tool same "$D/s/a.b2nd" "$FX/full.b2frame"
}
