# What a hostile or a careless owner of a mounted directory does below, and what a file system has to refuse.

test_the_directory_is_removed_below() {
    mkdir -p "$D/sub"
    echo file >"$D/file"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    tree
    cmp "$M/a.b2frame/00000003.chunk" "$FX/base/3"
    exec 7<"$M/file"
    rm -r "$D"
    # As in any directory that is removed while somebody is in it.
    await eval '[ -z "$(timeout 10 ls -A "$M" 2>/dev/null)" ]'
    errnos ENOENT 'open(M + "/new", "w")' 'os.mkdir(M + "/new")' 'os.mkdir(M + "/new.b2frame")' 'os.symlink("x", M + "/new")'
    equal "$(cat <&7)" file
    exec 7<&-
    mkdir "$D"
    echo other >"$D/other"
    # Another directory of that name is not what is mounted.
    [ ! -e "$M/other" ]
    down
}

test_the_directory_is_moved_below() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    tree
    mv "$D" "$T/elsewhere"
    ln -s /etc "$D"
    cp "$FX/new/0" "$M/a.b2frame/00000003.chunk"
    cp "$FX/full.b2frame" "$M/b.b2frame"
    cmp "$M/a.b2frame/00000003.chunk" "$FX/new/0"
    down
    tool holds "$T/elsewhere/a.b2frame" 3="$FX/new/0"
    tool same "$T/elsewhere/b.b2frame" "$FX/full.b2frame"
}

# becomes_a_directory SHOW: what is open of a frame goes on or is gone, and then there is what has its name.
becomes_a_directory() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/c.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    tree --show "$1"
    py 'm, d = sys.argv[1:]
def inner(name):
    path = f"{m}/{name}.b2frame"
    return path + "/00000003.chunk" if os.path.isdir(path) else path
files = [os.open(inner(name), os.O_RDONLY) for name in "cs"]
before = [os.pread(file, 1 << 24, 0) for file in files]
for name in "cs":
    os.rename(f"{d}/{name}.b2frame", f"{d}/{name}.away")
    os.mkdir(f"{d}/{name}.b2frame")
    open(f"{d}/{name}.b2frame/inside", "w").write("text")
for file, data in zip(files, before):
    try:
        assert os.pread(file, 1 << 24, 0) == data
    except OSError as error:
        assert error.errno in (errno.ESTALE, errno.EIO), error
    os.close(file)' "$M" "$D"
    await eval '[ "$(cat "$M/c.b2frame/inside" "$M/s.b2frame/inside")" = texttext ]'
    equal "$(ls -A "$M/c.b2frame" "$M/s.b2frame" | grep -c inside)" 2
    echo more >"$M/c.b2frame/more"
    rm -r "$M/s.b2frame"
    [ ! -e "$D/s.b2frame" ]
    equal "$(cat "$D/c.b2frame/more")" more
    # What is elsewhere now is what it was.
    cmp "$D/c.away" "$FX/base.b2frame"
    diff -r "$D/s.away" "$FX/sparse/base.b2frame"
    down
}
test_frames_become_directories_while_open() { becomes_a_directory other; }
test_frames_become_directories_while_open_sparse() { becomes_a_directory sparse; }
test_frames_become_directories_while_open_contiguous() { becomes_a_directory contiguous; }

test_what_file_systems_refuse() {
    mkdir -p "$D"
    : >"$D/file"
    tree
    local long
    long=$(printf 'n%.0s' $(seq 256))
    errnos ENAMETOOLONG "os.mkdir(M + '/$long')" "os.symlink('x', M + '/$long')" "os.mkfifo(M + '/$long')" "os.stat(M + '/$long')" \
        "os.rename(M + '/file', M + '/$long')" "os.link(M + '/file', M + '/$long')" "open(M + '/$long.b2frame', 'w')" \
        "os.mkdir(M + '/$long.b2frame')" "os.symlink('x' * 5000, M + '/link')"
    errnos ENOENT 'os.symlink("", M + "/link")' 'os.unlink(M + "/file2")'
    errnos ENOTDIR 'os.rmdir(M + "/file")' 'os.mkdir(M + "/file/x")' 'os.listdir(M + "/file")'
    errnos EINVAL 'os.rmdir(M + "/.")' 'os.readlink(M + "/file")'
    errnos EXDEV "os.rename(M + '/file', '$D/file2')"
    down
}

# As many names of a file as the file system below lets it have.
test_too_many_links() {
    mkdir -p "$D/links"
    : >"$D/file"
    py 'import itertools
d = sys.argv[1]
try:
    for number in itertools.count():
        os.link(f"{d}/file", f"{d}/links/{number}")
        if number > 66_000:
            sys.exit(77)
except OSError as error:
    assert error.errno == errno.EMLINK, error' "$D" || skip "a file can have more names than are tried here"
    tree
    errnos EMLINK 'os.link(M + "/file", M + "/one")' 'os.link(M + "/links/7", M + "/one")'
    rm "$M/links/7"
    ln "$M/file" "$M/one"
    equal "$(stat -c %h "$M/one")" "$(stat -c %h "$D/file")"
    down
}

test_names_at_the_limit_of_frames() {
    mkdir -p "$D"
    local long bytes
    # As long as a name can be, with the longest suffix, and none of it UTF-8.
    long=$(printf '\xff%.0s' $(seq 247)).b2frame
    bytes=$'a\n\xfe\x1b[31m.b2nd'
    tree
    cp -r "$FX/native.b2frame" "$M/$long"
    cp "$FX/full.b2frame" "$M/$bytes"
    # The library takes no such names.
    ln -s "$M/$long" "$T/one" && ln -s "$M/y$bytes" "$T/other"
    tool same "$T/one" "$FX/native.b2frame"
    mv "$M/$long" "$M/x${long:1}"
    cp "$FX/new/0" "$M/x${long:1}/00000003.chunk"
    mv "$M/$bytes" "$M/y$bytes"
    tool twins "$T/other" "$FX/full.b2frame"
    rm -r "$M/x${long:1}" "$M/y$bytes"
    down
    equal "$(ls -A "$D")" ""
    # Whatever names are, a line of the log is one, and says nothing to a terminal.
    if grep -q $'\x1b' "$T/log"; then fail "the log has control characters"; fi
    if grep -vE '^[0-9]{4}-' "$T/log"; then fail "the log has lines of others"; fi
}

# Somebody swaps a directory for a link that leads elsewhere, while it is walked: what is elsewhere is never shown as what is in DIR.
test_a_directory_swapped_for_a_link() {
    mkdir -p "$D/dir/deep" "$T/elsewhere/deep"
    echo inside | tee "$D/dir/file" >"$D/dir/deep/file"
    echo outside | tee "$T/elsewhere/file" >"$T/elsewhere/deep/file"
    cp "$FX/base.b2frame" "$D/dir/a.b2frame"
    cp "$FX/full.b2frame" "$T/elsewhere/a.b2frame"
    ln -s "$T/elsewhere" "$D/link"
    tree
    py 'import ctypes, threading, time
m, d = sys.argv[1:]
libc = ctypes.CDLL(None)
ended = threading.Event()
def swap():
    while not ended.is_set():
        libc.renameat2(-100, f"{d}/dir".encode(), -100, f"{d}/link".encode(), 2)
swapper = threading.Thread(target=swap)
swapper.start()
end, read = time.monotonic() + 2, 0
def look(folder, name):
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        data = os.read(fd, 100)
    finally:
        os.close(fd)
    assert data == b"inside\n", data
    return 1
# On a busy machine two seconds may be none; a minute in which nothing can be read is a failure.
while time.monotonic() < end or not read and time.monotonic() < end + 60:
    for path in (f"{m}/dir", f"{m}/link"):
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        for name in ("file", "deep/file"):
            try:
                read += look(folder, name)
            except OSError:
                pass
        os.close(folder)
ended.set()
swapper.join()
assert read > 0' "$M" "$D"
    down
    equal "$(cat "$T/elsewhere/file")" outside
    cmp "$T/elsewhere/a.b2frame" "$FX/full.b2frame"
}
test_owner_of_a_frame_that_others_may_not_read() {
    root_only
    mkdir -p "$D"
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    chmod 600 "$D/s.b2frame"/*
    chmod 700 "$D/s.b2frame"
    tree -o allow_other
    chown 65534:65533 "$M/s.b2frame"
    "${nobody[@]}" cat "$M/s.b2frame" | cmp - <(cat "$M/s.b2frame")
    equal "$(find "$D/s.b2frame" -printf '%U:%G\n' | sort -u)" 65534:65533
    down
    tree -o allow_other
    "${nobody[@]}" cat "$M/s.b2frame" >/dev/null
    down
}

# Whoever comes second opens what the first has made: the kernel looks again.
test_many_make_the_same_files() {
    tree
    py 'import threading
m = sys.argv[1]
failed, start = [], threading.Barrier(4)
def work(thread):
    for number in range(300):
        start.wait()
        for path in (f"{m}/file{number}", f"{m}/frame{number}.b2frame"):
            try:
                fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                os.write(fd, b"x")
                os.close(fd)
            except OSError as error:
                failed.append((path, error))
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not failed, (len(failed), failed[:3])
for number in range(300):
    assert open(f"{m}/file{number}").read() == "xxxx"' "$M"
    down
}
