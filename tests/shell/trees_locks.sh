# Turns with other processes in a directory mounted whole: --locking, flock(2) of frames and of ordinary files, and where lock files are.

# shellcheck source=locks.bash
. "${FILE%/*}/locks.bash"

# both_ways PATH [OTHER]: a path in the mount and its file in DIR.
both_ways() {
    excludes "$M/$1" "$D/${2:-$1}"
    excludes "$D/${2:-$1}" "$M/$1"
    excludes "$M/$1" "$M/$1"
}
frames() {
    mkdir -p "$D/sub"
    cp "$FX/base.b2frame" "$D/c.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    cp "$FX/base.b2frame" "$D/sub/c.b2nd"
    cp -r "$FX/sparse/base.b2frame" "$D/sub/s.b2nd"
}
# locks DIRECTORY: names of lock files in it, at any depth, as a listing has them.
locks() { (cd "$1" && find . -name '*.b2lock' | LC_ALL=C sort | tr '\n' ' '); }
# put PATH [N]: a program takes the lock of a frame and changes a chunk.
put() { py 's = blosc2.open(sys.argv[1], mode="a", locking=True)
s.update_data(3, noise(int(sys.argv[2])), copy=True)' "$1" "${2:-7}"; }
# sees PATH N
sees() { py 's = blosc2.open(sys.argv[1], mode="r", locking=True)
assert s.decompress_chunk(3) == noise(int(sys.argv[2])), sys.argv' "$1" "$2"; }

# in_places C S: with these options the lock files of the cframe and of the sframe are there in the mount.
in_places() {
    local c=$1 s=$2 n=0 path
    shift 2
    frames
    tree --locking "$@"
    equal "$(locks "$M")" ""
    for path in c.b2frame s.b2frame sub/c.b2nd sub/s.b2nd; do put "$M/$path"; done
    equal "$(locks "$D")" "./c.b2frame.b2lock ./s.b2frame/.b2lock ./sub/c.b2nd.b2lock ./sub/s.b2nd/.b2lock "
    local want
    want=$(printf './%s\n' "c.b2frame$c" "s.b2frame$s" "sub/c.b2nd$c" "sub/s.b2nd$s" | LC_ALL=C sort | tr '\n' ' ')
    # Listed once, with its kind and without.
    equal "$(locks "$M")" "$want"
    equal "$(find "$M" -name '*.b2lock' -type f | wc -l)" 4
    equal "$(py 'print(sum(name.endswith(".b2lock") for _, _, files in os.walk(sys.argv[1]) for name in files))' "$M")" 4
    both_ways "c.b2frame$c" c.b2frame.b2lock
    both_ways "s.b2frame$s" s.b2frame/.b2lock
    both_ways "sub/c.b2nd$c" sub/c.b2nd.b2lock
    both_ways "sub/s.b2nd$s" sub/s.b2nd/.b2lock
    # The other place is not shown.
    if [ "$c" = /.b2lock ]; then errnos ENOENT 'os.stat(M + "/c.b2frame.b2lock")'; fi
    if [ "$s" = .b2lock ]; then errnos ENOTDIR 'os.stat(M + "/s.b2frame/.b2lock")'; fi
    # Its bytes are those below, on whichever side they are written.
    for path in c s; do
        n=$((n + 1))
        put "$M/$path.b2frame" $n
        sees "$D/$path.b2frame" $n
        put "$D/$path.b2frame" 1$n
        sees "$M/$path.b2frame" 1$n
    done
    cmp "$M/c.b2frame$c" "$D/c.b2frame.b2lock"
    cmp "$M/s.b2frame$s" "$D/s.b2frame/.b2lock"
    # Nobody cuts it, and nothing gets its name.
    : >"$M/c.b2frame$c"
    cmp "$M/c.b2frame$c" "$D/c.b2frame.b2lock"
    [ "$(stat -c %s "$D/c.b2frame.b2lock")" = 16 ]
    rm -r "$M/sub"
    [ ! -e "$D/sub" ]
    for path in c s; do rm -r "$M/$path.b2frame"; done
    rm -f "$M"/*.b2lock
    equal "$(ls -A "$D")" ""
    down
}
test_lock_files_of_frames_in_the_other_kind() { in_places /.b2lock .b2lock; }
test_lock_files_of_frames_as_files() { in_places .b2lock .b2lock --show contiguous; }
test_lock_files_of_frames_as_directories() { in_places /.b2lock /.b2lock --show sparse; }

test_flock_of_ordinary_files_reaches_dir() {
    mkdir -p "$D/sub"
    echo text >"$D/sub/file"
    tree -o locking
    both_ways sub/file
    echo made >"$M/made"
    both_ways made
    # One with the name of a frame that is none, and one that has lost its name.
    echo none >"$M/none.b2nd"
    both_ways none.b2nd
    exec 8<>"$M/made" 9<>"$D/made"
    rm "$M/made"
    flock -x 8
    exits 1 flock -n 9
    flock -u 8
    exits 0 flock -n 9
    exec 8<&- 9<&-
    # What a child inherits is one lock, and goes with the last.
    exec 8<>"$M/sub/file"
    flock -x 8
    sleep 1000 &
    exec 8<&-
    excluded "$D/sub/file"
    kill $!
    wait $! || true
    exits 0 flock -w 10 "$D/sub/file" true
    down
}

# Without the option the kernel keeps locks by itself, and nobody else knows of them.
test_without_the_option_locks_stay_in_the_mount() {
    frames
    echo text >"$D/file"
    tree
    local path
    for path in file c.b2frame/chunks.b2frame; do
        excludes "$M/$path" "$M/$path"
    done
    exec 8<>"$M/file"
    flock -x 8
    exits 0 flock -n "$D/file" true
    exec 8<&-
    equal "$(locks "$D")" ""
    down
    BLOSC_LOCKING=0 tree
    ls -lR "$M" >/dev/null
    equal "$(locks "$D")" ""
    down
}

test_the_environment_asks_for_it() {
    frames
    export BLOSC_LOCKING=1
    tree
    unset BLOSC_LOCKING
    echo text >"$D/file"
    both_ways file
    put "$M/c.b2frame"
    both_ways c.b2frame/.b2lock c.b2frame.b2lock
    down
}

test_two_mounts_exclude_each_other() {
    frames
    echo text >"$D/file"
    tree --locking --show contiguous
    mkdir "$T/other"
    "$B2FUSE" mount --locking "$D" "$T/other"
    put "$M/c.b2frame" 1
    excludes "$M/file" "$T/other/file"
    excludes "$M/c.b2frame.b2lock" "$T/other/c.b2frame/.b2lock"
    excludes "$T/other/c.b2frame/.b2lock" "$M/c.b2frame.b2lock"
    # The second reads what the first writes.
    put "$M/c.b2frame" 2
    sees "$T/other/c.b2frame" 2
    sees "$D/c.b2frame" 2
    "$B2FUSE" umount "$T/other"
    down
}

test_what_is_in_the_way_of_a_lock_file_is_shown() {
    frames
    echo "a file of somebody" >"$D/s.b2frame.b2lock"
    echo "another one" >"$D/c.b2frame.b2lock"
    mkdir "$D/sub/s.b2nd.b2lock"
    tree --locking
    equal "$(cat "$M/s.b2frame.b2lock")" "a file of somebody"
    equal "$(cat "$M/c.b2frame.b2lock")" "another one"
    equal "$(find "$M" -maxdepth 1 -name '*.b2lock' | wc -l)" 2
    [ -d "$M/sub/s.b2nd.b2lock" ]
    # A frame that cannot have a lock is shown as what it is, from when somebody looks into it.
    ls "$M/c.b2frame" >/dev/null 2>&1 || true
    await cmp "$M/c.b2frame" "$FX/base.b2frame"
    echo more >>"$M/s.b2frame.b2lock"
    rm "$M/s.b2frame.b2lock"
    put "$M/s.b2frame"
    both_ways s.b2frame.b2lock s.b2frame/.b2lock
    down
    equal "$(cat "$D/c.b2frame.b2lock")" "another one"
}

test_a_lock_that_somebody_has_is_not_lost() {
    frames
    tree --locking
    local path
    for path in c.b2frame s.b2frame; do put "$M/$path"; done
    for path in "$D/s.b2frame/.b2lock" "$D/c.b2frame.b2lock" "$M/s.b2frame.b2lock" "$M/c.b2frame/.b2lock"; do
        exec 8<>"$path"
        flock -s 8
        errnos EBUSY "os.unlink(M + '/$(case $path in *s.b2f*) echo s.b2frame.b2lock ;; *) echo c.b2frame/.b2lock ;; esac)')"
        exec 8<&-
    done
    # Nor does a frame lose its name meanwhile.
    for path in "$D/c.b2frame.b2lock" "$M/c.b2frame/.b2lock"; do
        exec 8<>"$path"
        flock -x 8
        fails "busy" mv "$M/c.b2frame" "$M/moved.b2frame"
        exec 8<&-
    done
    for path in "$D/s.b2frame/.b2lock" "$M/s.b2frame.b2lock"; do
        exec 8<>"$path"
        flock -s 8
        fails "busy" rm "$M/s.b2frame"
        fails "busy" mv "$M/s.b2frame" "$M/moved.b2frame"
        cp "$FX/base.b2frame" "$M/new.b2frame"
        fails "busy" mv -T "$M/new.b2frame" "$M/s.b2frame"
        exec 8<&-
    done
    # Lock files go along with a frame as they do natively.
    mv "$M/c.b2frame" "$M/moved.b2frame"
    mv "$M/s.b2frame" "$M/sub/other.b2frame"
    equal "$(locks "$D")" "./moved.b2frame.b2lock ./sub/other.b2frame/.b2lock "
    both_ways moved.b2frame/.b2lock moved.b2frame.b2lock
    both_ways sub/other.b2frame.b2lock sub/other.b2frame/.b2lock
    rm "$M/sub/other.b2frame"
    equal "$(locks "$M")" "./moved.b2frame/.b2lock ./sub/other.b2frame.b2lock "
    both_ways sub/other.b2frame.b2lock
    rm "$M/sub/other.b2frame.b2lock"
    errnos EPERM 'os.rename(M + "/moved.b2frame/.b2lock", M + "/moved.b2frame/.x")'
    down
}

# The lock file goes along when what a client makes becomes a frame, and so does the count.
test_the_library_makes_frames_under_locks() {
    local show path
    for show in other sparse contiguous; do
        rm -rf "$D"
        tree --locking --show $show
        py 'for contiguous in (True, False):
    path = f"{sys.argv[1]}/made{contiguous}.b2frame"
    for _ in range(2):
        s = blosc2.SChunk(chunksize=CHUNKSIZE, urlpath=path, mode="w", contiguous=contiguous, locking=True)
        for n in range(4):
            s.append_data(noise(n))
        with s.holding_lock():
            s.update_data(2, noise(9), copy=True)
        assert blosc2.open(path, locking=True).decompress_chunk(2) == noise(9)
        s.vlmeta["x"] = 1' "$M"
        sync "$M"
        for path in madeTrue madeFalse; do
            py 's = blosc2.open(sys.argv[1], mode="a", locking=True)
assert [s.decompress_chunk(n) for n in range(4)] == [noise(n) for n in (0, 1, 9, 3)] and s.vlmeta["x"] == 1
s.update_data(2, noise(8), copy=True)' "$D/$path.b2frame"
            py 's = blosc2.open(sys.argv[1], mode="a", locking=True)
assert s.decompress_chunk(2) == noise(8)' "$M/$path.b2frame"
        done
        equal "$(find "$D" -name '*.b2lock' | wc -l)" 2 "$(locks "$D")"
        py 'for contiguous in (True, False):
    blosc2.remove_urlpath(f"{sys.argv[1]}/made{contiguous}.b2frame")' "$M"
        equal "$(ls -A "$M")" ""
        down
        equal "$(ls -A "$D")" ""
    done
}

test_an_empty_directory_that_may_become_a_frame() {
    tree --locking
    mkdir "$M/a.b2frame" "$M/b.b2frame"
    equal "$(ls -A "$M/a.b2frame")" ""
    rmdir "$M/a.b2frame"
    echo x >"$M/b.b2frame/file"
    equal "$(ls -A "$M/b.b2frame")" file
    equal "$(cd "$D" && find . | sort | tr '\n' ' ')" ". ./b.b2frame ./b.b2frame/file "
    down
}

# A store takes turns by the lock of its embedded frame.
test_stores_take_turns() {
    tree --locking
    py 'import numpy as np
M, D = sys.argv[1:]
open_store = lambda where, mode="a": blosc2.TreeStore(where + "/s.b2d", mode=mode, locking=True, threshold=0)
with open_store(M, "w") as store:
    store["/a"], store["/g/b"] = np.arange(5000), np.arange(7)
one, other = open_store(M), open_store(D)
for n in range(6):
    (one, other)[n % 2][f"/m{n}"] = np.full(3000, n)
    for k in range(n + 1):
        assert ((other, one)[n % 2][f"/m{k}"][:] == k).all(), (n, k)
one.close(), other.close()' "$M" "$D"
    equal "$(locks "$M")" "$(locks "$D")"
    both_ways s.b2d/embed.b2e.b2lock
    down
}

# ---- Who waits

waiting() { cat /proc/"$PID"/task/*/comm 2>/dev/null | grep -cx b2fuse-lock || true; }
waits() { [ "$(waiting)" = "$1" ]; }
# interruptible LOCK HELD: who waits for one while somebody has the other can be killed, and goes on when it is given back.
interruptible() {
    local signal status
    exec 8<>"$2"
    flock -x 8
    for signal in KILL INT; do
        env --default-signal=INT flock "$1" true 8<&- &
        await waits 1
        kill -$signal $!
        status=0
        wait $! || status=$?
        equal "$status" $((128 + $(kill -l $signal)))
        await waits 0
    done
    flock "$1" touch "$T/got" 8<&- &
    await waits 1
    [ ! -e "$T/got" ]
    exec 8<&-
    wait $!
    rm "$T/got"
    exits 0 flock -w 10 "$2" true
}
test_who_waits_can_be_interrupted() {
    frames
    echo text >"$D/file"
    : >"$D/c.b2frame.b2lock"
    : >"$D/s.b2frame/.b2lock"
    tree --locking
    interruptible "$M/file" "$D/file"
    # Of frames that nobody has opened yet.
    interruptible "$M/c.b2frame/.b2lock" "$D/c.b2frame.b2lock"
    interruptible "$M/s.b2frame.b2lock" "$D/s.b2frame/.b2lock"
    interruptible "$M/c.b2frame/chunks.b2frame" "$M/c.b2frame/chunks.b2frame"
    interruptible "$M/s.b2frame" "$M/s.b2frame"
    down
}

test_many_locked_frames_with_few_descriptors() {
    mkdir -p "$D"
    local n
    for n in {1..150}; do cp "$FX/base.b2frame" "$D/$n.b2frame"; done
    mkdir -p "$M"
    (ulimit -n 256 && exec "$B2FUSE" mount -f --locking --log-file "$T/log" "$D" "$M" </dev/null) &
    PID=$!
    await mountpoint -q "$M"
    py 'frames = [blosc2.open(f"{sys.argv[1]}/{n}.b2frame", mode="a", locking=True) for n in range(1, 151)]
with frames[0].holding_lock():
    for n, frame in enumerate(frames):
        frame.update_data(3, noise(n), copy=True)
for n, frame in enumerate(frames):
    assert frame.decompress_chunk(3) == noise(n)
    native = blosc2.open(f"{sys.argv[2]}/{n + 1}.b2frame", mode="a", locking=True)
    assert native.decompress_chunk(3) == noise(n)
    native.update_data(2, noise(1000 + n), copy=True)
for n, frame in enumerate(frames):
    assert frame.decompress_chunk(2) == noise(1000 + n)' "$M" "$D"
    down
}

test_a_read_only_mount_takes_turns() {
    frames
    tree -o ro,locking
    # A lock file that is not there is made even so, but not for who only looks.
    find "$M" -type f -exec cat {} + >/dev/null
    equal "$(locks "$D")" ""
    for path in c s; do sees "$M/$path.b2frame" 9 2>/dev/null || true; done
    equal "$(locks "$D")" "./c.b2frame.b2lock ./s.b2frame/.b2lock "
    down
    for path in c s; do put "$D/$path.b2frame" 1; done
    tree -o ro,locking
    both_ways c.b2frame/.b2lock c.b2frame.b2lock
    both_ways s.b2frame.b2lock s.b2frame/.b2lock
    py 'for name in "cs":
    s, m = (blosc2.open(f"{path}/{name}.b2frame", mode=mode, locking=True) for path, mode in zip(sys.argv[1:], "ar"))
    for n in range(5):
        s.update_data(3, noise(n), copy=True)
        assert m.decompress_chunk(3) == noise(n)' "$D" "$M"
    errnos EROFS 'os.unlink(M + "/s.b2frame.b2lock")' 'os.unlink(M + "/c.b2frame/.b2lock")' \
        'os.open(M + "/new.b2lock", os.O_CREAT | os.O_RDWR)' 'os.open(M + "/new", os.O_CREAT | os.O_RDWR)'
    down
}
