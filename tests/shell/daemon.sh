# The daemon's life: how mounts begin and end, what is durable when, who else may have SOURCE.

# ends_cleanly COMMAND...: a change made just before is in SOURCE after the daemon has ended, with exit code 0.
ends_cleanly() {
    source_from full
    mount_front
    cp "$FX/new/0" "$(chunk 3)"
    cp "$FX/new/1" "$(chunk 6)"
    "$@"
    end_of_daemon
    not_mounted
    holds n=7 3="$FX/new/0" 6="$FX/new/1"
}

test_umount_by_b2fuse() { ends_cleanly umount_it; }
test_umount_by_fusermount3() { ends_cleanly fusermount3 -u "$M"; }
test_umount_by_umount() { root_only; ends_cleanly umount "$M"; }
test_end_by_sigterm() { ends_cleanly eval 'kill -TERM $PID'; }
test_end_by_sigint() { ends_cleanly eval 'kill -INT $PID'; }

test_umount_returns_when_everything_is_in_source() {
    source_from many
    local n
    mount_it
    for n in 0 1 2 3 4 5 6 7; do cp "$FX/new/$n" "$(chunk $((8 * n)))"; done
    umount_it
    # No daemon holds SOURCE any more, and what was copied is there.
    holds 0="$FX/new/0" 8="$FX/new/1" 56="$FX/new/7"
    if command -v fuser >/dev/null; then exits 1 fuser "$S"; fi
    mount_it
    umount_it
}

test_a_busy_mount() {
    source_from full
    mount_front
    exec 7<"$(chunk 3)"
    one_line "$M" busy umount_it
    cmp "$(chunk 4)" "$FX/full/4"
    cp "$FX/new/0" "$(chunk 0)"
    "$B2FUSE" umount -z "$M"
    not_mounted
    # The file that is still open goes on being readable; with its close the daemon ends.
    cmp - "$FX/full/3" <&7
    exec 7<&-
    end_of_daemon
    holds 0="$FX/new/0"
}

test_the_background_daemon_answers_at_once() {
    source_from full
    mount_it
    # No waiting: the mount is there when the command returns.
    mountpoint -q "$M"
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    not_mounted
}

# ---- Durability

test_fsync_makes_it_durable() {
    source_from full
    mount_front
    cp "$FX/new/0" "$(chunk 3)"
    cp "$FX/new/1" "$(chunk 6)"
    py 'import os
fd = os.open(sys.argv[1], os.O_RDONLY)
os.fsync(fd)' "$(chunk 3)"
    crash
    holds n=7 3="$FX/new/0" 6="$FX/new/1"
    mount_it
    cmp "$(chunk 3)" "$FX/new/0"
    cmp "$(chunk 6)" "$FX/new/1"
}

test_fsync_of_the_directory_makes_it_durable() {
    source_from full
    mount_front
    cp "$FX/new/0" "$(chunk 3)"
    sync "$M"
    crash
    holds n=6 3="$FX/new/0"
}

test_a_close_publishes() {
    source_from full
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    # The first close after a pause is in SOURCE when cp returns; in a burst it may take a second.
    holds n=6 3="$FX/new/0"
    local n
    for n in 0 1 2 3 4 5; do cp "$FX/new/$n" "$(chunk $n)"; done
    await holds 0="$FX/new/0" 1="$FX/new/1" 2="$FX/new/2" 3="$FX/new/3" 4="$FX/new/4" 5="$FX/new/5"
}

test_a_killed_daemon_leaves_a_frame() {
    source_from full
    local round
    for round in 1 2 3 4 5; do
        mount_front
        py 'import threading, os, signal
s = blosc2.open(sys.argv[1], mode="a")
threading.Timer(0.15, lambda: os.kill(int(sys.argv[2]), signal.SIGKILL)).start()
n = 0
try:
    while True:
        s.update_data(n % s.nchunks, noise(n), copy=True)
        if n % 3 == 0: s.append_data(noise(n))
        s.vlmeta["n"] = n
        n += 1
except Exception:
    print("killed at mutation", n)' "$M" "$PID"
        wait "$PID" 2>/dev/null || true
        PID=
        umount -l "$M"
        # Every chunk of what is left opens and decompresses.
        py 's = blosc2.open(sys.argv[1]); s.vlmeta.getall(); assert s.nchunks >= 6 and len(s[:]) == s.nbytes' "$S"
    done
}

test_rewriting_reuses_space() {
    source_from full
    mount_it
    local round n
    for round in $(seq 40); do
        for n in 0 1 2 3 4 5; do cp "$FX/new/$(((n + round) % 8))" "$(chunk $n)"; done
    done
    sync "$(chunk 0)"
    local live
    live=$(cat "$M"/* | wc -c)
    equal "$(ls "$M" | wc -l)" 7
    [ "$(stat -c %s "$S")" -le $((live * 3 / 2 + 3 * 4096)) ] || fail "$(stat -c %s "$S") bytes for $live live ones"
    umount_it
    [ "$(stat -c %s "$S")" -le $((live * 3 / 2 + 3 * 4096)) ] || fail "$(stat -c %s "$S") bytes for $live live ones, unmounted"
}

# A file system of one MiB: what does not fit is refused, what is there stays good.
test_a_full_disk() {
    root_only
    local disk=$T/disk n=6 status=0
    mkdir "$disk" "$M"
    mount -t tmpfs -o size=1M tmpfs "$disk"
    S=$disk/source.b2frame
    cp "$FX/full.b2frame" "$S"
    mount_front
    while [ $n -lt 60 ] && cp "$FX/new/$((n % 8))" "$(chunk $n)" 2>"$T/err" && sync "$(chunk $n)" 2>"$T/err"; do n=$((n + 1)); done
    [ $n -lt 60 ]
    has "$(cat "$T/err")" "No space left on device"
    # What was committed is readable through the mount and natively, to the last byte.
    cmp "$(chunk 3)" "$FX/full/3"
    cmp "$(chunk 6)" "$FX/new/6"
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks >= int(sys.argv[2]) and len(s[:]) == s.nbytes, s.nchunks' "$S" "$n"
    # Unmounting is refused as long as something is not in SOURCE, which room cures.
    if ! umount_it; then
        mount -o remount,size=4M "$disk"
        umount_it
    fi
    end_of_daemon || status=$?
    echo "$n chunks; the daemon ended with $status"
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks >= int(sys.argv[2]) and len(s[:]) == s.nbytes, s.nchunks' "$S" "$n"
    # With room made, writing goes on.
    mount -o remount,size=4M "$disk"
    mount_it
    n=$(py 'print(blosc2.open(sys.argv[1]).nchunks)' "$S")
    cp "$FX/new/0" "$(chunk "$n")"
    umount_it
    holds n=$((n + 1)) 3="$FX/full/3" "$n=$FX/new/0"
    umount "$disk"
}

test_readers_and_writers_at_once() {
    source_from full
    mount_it
    py 'import multiprocessing, os, random
M, new, full, T = sys.argv[1:]
chunks = [open(f"{new}/{n}", "rb").read() for n in range(8)]

def write(n):
    # Half of the chunks by renaming, the others in place.
    rng = random.Random(n)
    for _ in range(60):
        data = rng.choice(chunks)
        name = f"{M}/.part{n}" if n < 3 else f"{M}/{n:08X}.chunk"
        with open(name, "wb") as f:
            f.write(data)
        if n < 3:
            os.rename(name, f"{M}/{n:08X}.chunk")
    open(f"{T}/want{n}", "wb").write(data)

def read(seed):
    # What is renamed into place is always there, and always whole.
    rng = random.Random(seed)
    for _ in range(300):
        n = rng.randrange(3)
        with open(f"{M}/{n:08X}.chunk", "rb") as f:
            data = f.read()
        assert data in chunks or data == open(f"{full}/{n}", "rb").read(), f"chunk {n}: {len(data)} bytes that nobody wrote"

with multiprocessing.Pool(9) as pool:
    readers = pool.map_async(read, range(3))
    pool.map(write, range(6))
    readers.get()' "$M" "$FX/new" "$FX/full" "$T"
    local n
    for n in 0 1 2 3 4 5; do cmp "$(chunk $n)" "$T/want$n"; done
    umount_it
    holds n=6 0="$T/want0" 1="$T/want1" 2="$T/want2" 3="$T/want3" 4="$T/want4" 5="$T/want5"
}

test_source_behind_a_symbolic_link() {
    source_from full
    mv "$S" "$T/real"
    ln -s real "$S"
    local inode
    inode=$(stat -c %i "$T/real")
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    [ -L "$S" ]
    equal "$(stat -c %i "$T/real")" "$inode" "inode of SOURCE"
    holds n=6 3="$FX/new/0"
}

test_auto_unmount() {
    source_from full
    mount_front -o auto_unmount
    kill -KILL "$PID"
    wait "$PID" || PID=
    await not_mounted
    mount_it
    cmp "$(chunk 3)" "$FX/full/3"
}

test_memory_is_bounded_by_the_cache() {
    source_from full
    mount_front --cache-size 16M
    head -c 256M /dev/zero >"$M/.big"
    equal "$(stat -c %s "$M/.big")" $((256 << 20))
    cat "$M/.big" | cmp -n $((256 << 20)) - /dev/zero
    local peak
    peak=$(awk '/VmHWM/ { print $2 }' "/proc/$PID/status")
    [ "$peak" -lt 131072 ] || fail "$peak KiB resident for a file of 256 MiB and a cache of 16 MiB"
}

# ---- Others

test_one_read_write_mount_at_a_time() {
    source_from full
    mount_it
    mkdir "$T/second"
    one_line "$S" mounted "$B2FUSE" mount "$S" "$T/second"
    # The same file by another name.
    ln "$S" "$T/other.b2frame"
    one_line "$T/other.b2frame" mounted "$B2FUSE" mount "$T/other.b2frame" "$T/second"
    # A read-only one is welcome, and shows what is committed.
    "$B2FUSE" mount -o ro "$S" "$T/second"
    tool same "$T/second" "$M"
    cp "$FX/new/0" "$(chunk 3)"
    sync "$(chunk 3)"
    await cmp "$T/second/00000003.chunk" "$FX/new/0"
    "$B2FUSE" umount "$T/second"
    umount_it
    "$B2FUSE" mount "$S" "$T/second"
    "$B2FUSE" umount "$T/second"
}

# What has no place is held until the end. The library appends where the mount has put it.
test_a_source_changed_by_others_is_not_overwritten() {
    source_from full
    mount_front
    cat "$M"/* >/dev/null
    cp "$FX/new/0" "$(chunk 99)"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77)); s.vlmeta["other"] = "process"' "$S"
    cp "$S" "$T/theirs"
    fails "Stale file handle" eval 'cp "$FX/new/0" "$(chunk 3)" && sync "$(chunk 3)"'
    await fails "Stale file handle" cat "$(chunk 3)"
    fails "Stale file handle" cat "$(chunk 99)"
    fails "Stale file handle" sync "$M"
    umount_it || true
    end_of_daemon || true
    cmp "$S" "$T/theirs"
    equal "$(ls "$S.lost")" 00000063.chunk
    cmp "$S.lost/00000063.chunk" "$FX/new/0"
}

test_a_source_replaced_by_others_is_not_overwritten() {
    source_from full
    mount_front
    cp "$FX/new/0" "$(chunk 99)"
    cp "$FX/base.b2frame" "$T/new"
    mv "$T/new" "$S"
    fails "Stale file handle" eval 'cp "$FX/new/0" "$(chunk 3)" && sync "$(chunk 3)"'
    umount_it || true
    end_of_daemon || true
    cmp "$S" "$FX/base.b2frame"
    cmp "$S.lost/00000063.chunk" "$FX/new/0"
}

# ---- The log

test_sigusr1_logs_the_cache() {
    source_from full
    mount_front --log-level debug
    cat "$M"/* >/dev/null
    kill -USR1 "$PID"
    await grep -qiE 'hits?.*miss|miss.*hit' "$T/log"
    : >"$T/log"
    umount_it
    end_of_daemon
    grep -qiE 'hits?.*miss|miss.*hit' "$T/log"
}

# ---- An ordinary user

test_an_ordinary_user() { as_a_user user_with_a_contiguous_source; }
user_with_a_contiguous_source() {
    mkdir "$T/u" "$T/u/m"
    cp "$FX/full.b2frame" "$T/u/f.b2frame"
    if [ "$(id -u)" = 0 ]; then chown -R 65534:65534 "$T/u"; fi
    M=$T/u/m
    "${as[@]}" "$B2FUSE" mount "$T/u/f.b2frame" "$M"
    "${as[@]}" cmp "$M/00000003.chunk" "$FX/full/3"
    "${as[@]}" cp "$FX/new/0" "$M/00000003.chunk"
    "${as[@]}" "$B2FUSE" umount "$M"
    tool holds "$T/u/f.b2frame" n=6 3="$FX/new/0"
    # What may not be read cannot be mounted, and what may not be written only read-only.
    chmod 444 "$T/u/f.b2frame"
    if [ "$(id -u)" = 0 ]; then
        chown root:root "$T/u/f.b2frame"
        one_line "$T/u/f.b2frame" "permission denied" "${as[@]}" "$B2FUSE" mount "$T/u/f.b2frame" "$M"
        "${as[@]}" "$B2FUSE" mount -o ro "$T/u/f.b2frame" "$M"
        "${as[@]}" cmp "$M/00000003.chunk" "$FX/new/0"
        "${as[@]}" fusermount3 -u "$M"
        chmod 400 "$T/u/f.b2frame"
        one_line "$T/u/f.b2frame" "permission denied" "${as[@]}" "$B2FUSE" mount -o ro "$T/u/f.b2frame" "$M"
    fi
}

test_a_mount_over_files_says_that_it_hides_them() {
    source_from base
    equal "$(mount_it 2>&1)" ""
    umount_it
    echo hidden >"$M/file"
    equal "$(mount_it 2>&1)" "$M: warning: is not empty; what is in it is hidden until the unmount"
    [ ! -e "$M/file" ]
    umount_it
    equal "$(cat "$M/file")" hidden
    # A directory that is mounted on itself hides nothing.
    mkdir "$T/frames"
    cp "$FX/base.b2frame" "$T/frames"
    equal "$("$B2FUSE" mount "$T/frames" "$T/frames" 2>&1)" ""
    "$B2FUSE" umount "$T/frames"
}
