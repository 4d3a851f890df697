# A sparse frame as SOURCE: what is durable when, kills, others who have or change SOURCE, full disks, memory.

append() { py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(int(sys.argv[2])))' "$V" "$1"; }
# opens: every chunk of SOURCE opens and decompresses, natively.
opens() { py 's = blosc2.open(sys.argv[1]); s.vlmeta.getall(); assert s.nchunks >= 6 and len(s[:]) == s.nbytes' "$S"; }

# contiguous_ends_cleanly COMMAND...: a change made just before is in SOURCE after the daemon has ended, with exit code 0.
contiguous_ends_cleanly() {
    sparse_from full
    mount_front
    append 300
    append 301
    "$@"
    end_of_daemon
    not_mounted
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks == 8 and s.decompress_chunk(6) == noise(300) and s.decompress_chunk(7) == noise(301)' "$S"
    equal "$(ls -A "$S" | wc -l)" 9
}
test_contiguous_umount_by_b2fuse() { contiguous_ends_cleanly umount_it; }
test_contiguous_umount_by_fusermount3() { contiguous_ends_cleanly fusermount3 -u "$M"; }
test_contiguous_umount_by_umount() { root_only; contiguous_ends_cleanly umount "$M"; }
test_contiguous_end_by_sigterm() { contiguous_ends_cleanly eval 'kill -TERM $PID'; }

test_contiguous_fsync_makes_it_durable() {
    sparse_from full
    mount_front
    append 300
    sync "$V"
    crash
    holds n=7
    mount_front
    append 301
    sync "$M"
    crash
    holds n=8
    opens
    mount_it
    tool same "$V" "$S"
}

test_contiguous_close_publishes() {
    sparse_from full
    mount_it
    cp "$FX/many.b2frame" "$V"
    tool same "$S" "$FX/many.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a")
for n in range(5): s.append_data(noise(300 + n))' "$V"
    await tool same "$S" "$V"
}

# The next mount takes away what the killed one left.
test_contiguous_killed_under_a_writer() {
    sparse_from full
    local round
    for round in 1 2 3 4 5 6 7 8; do
        mount_front
        py 'import threading, os, signal, random
s = blosc2.open(sys.argv[1], mode="a")
n = 0
threading.Timer(random.Random(int(sys.argv[3])).uniform(0.02, 0.4), lambda: os.kill(int(sys.argv[2]), signal.SIGKILL)).start()
try:
    while True:
        s.update_data(n % s.nchunks, noise(n), copy=True)
        if n % 3 == 0: s.append_data(noise(n))
        if n % 7 == 0: s.insert_data(2, noise(n), True)
        if s.nchunks > 20: s.delete_chunk(5)
        s.vlmeta["n"] = n
        n += 1
except Exception:
    print("killed at mutation", n)' "$V" "$PID" "$round"
        wait "$PID" 2>/dev/null || true
        PID=
        umount -l "$M"
        opens
    done
    mount_it
    tool same "$V" "$S"
    append 300
    umount_it
    opens
}

test_contiguous_killed_under_cp() {
    sparse_from full
    local round
    for round in 1 2 3 4 5 6; do
        mount_front
        py 'import os, random, shutil, signal, threading
view, pid, seed, *frames = sys.argv[1:]
threading.Timer(random.Random(int(seed)).uniform(0.005, 0.1), lambda: os.kill(int(pid), signal.SIGKILL)).start()
try:
    while True:
        for frame in frames:
            shutil.copyfile(frame, view)
except OSError as error:
    print(error)' "$V" "$PID" "$round" "$FX/many.b2frame" "$FX/full.b2frame"
        wait "$PID" 2>/dev/null || true
        PID=
        umount -l "$M"
        tool same "$S" "$FX/many.b2frame" 2>/dev/null || tool same "$S" "$FX/full.b2frame"
    done
}

test_contiguous_umount_with_an_open_writer() {
    sparse_from full
    mount_front
    exec 7<>"$V"
    printf 'X' | dd bs=1 seek=3 conv=notrunc status=none >&7 || true
    one_line "$M" busy umount_it
    "$B2FUSE" umount -z "$M"
    not_mounted
    # The file that is still open goes on being readable and writable; with its close the daemon ends.
    py 'import os
new = open(sys.argv[1], "rb").read()
os.pwrite(7, new, 0)
os.ftruncate(7, len(new))' "$FX/many.b2frame"
    cmp - "$FX/many.b2frame" </proc/self/fd/7 || true
    exec 7<&-
    end_of_daemon
    tool same "$S" "$FX/many.b2frame"
}

# ---- Others

test_contiguous_one_read_write_mount_at_a_time() {
    sparse_from full
    mount_it
    mkdir "$T/second"
    one_line "$S" mounted "$B2FUSE" mount "$S" "$T/second"
    : >"$T/file"
    one_line "$S" mounted "$B2FUSE" mount "$S" "$T/file"
    ln -s source.b2frame "$T/link"
    one_line "$T/link" mounted "$B2FUSE" mount "$T/link" "$T/second"
    # A read-only one is welcome, and shows what is committed.
    "$B2FUSE" mount -o ro "$S" "$T/second"
    tool same "$T/second/source.b2frame" "$V"
    append 300
    sync "$V"
    await tool same "$T/second/source.b2frame" "$V"
    "$B2FUSE" umount "$T/second"
    umount_it
    "$B2FUSE" mount "$S" "$T/second"
    "$B2FUSE" umount "$T/second"
}

# untouched: every file of $T/theirs is in SOURCE as it was. (What is besides are files of the daemon's that nobody names: from the
# moment others write, it removes nothing.)
untouched() {
    local file
    for file in "$T/theirs"/*; do cmp "$file" "$S/${file##*/}"; done
    tool same "$S" "$T/theirs"
}

test_a_sparse_source_changed_by_others_is_not_overwritten() {
    sparse_from full
    mount_front
    cat "$V" >/dev/null
    begin_writing "$V" "$FX/many.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77)); s.vlmeta["other"] = "process"' "$S"
    cp -a "$S" "$T/theirs"
    await fails "Stale file handle" cat "$V"
    fails "Stale file handle" eval 'cp "$FX/many.b2frame" "$V" && sync "$V"'
    fails "Stale file handle" sync "$M"
    end_writing
    umount_it || true
    end_of_daemon || true
    untouched
    # What the mount held is a frame of its own.
    local saved
    saved=$(find "$S.lost" -type f)
    tool same "$saved" "$FX/many.b2frame"
}

# A frame whose chunks are partly those of SOURCE is saved whole as well.
test_what_is_saved_is_a_whole_frame() {
    sparse_from many
    mount_front
    append 300
    sync "$V"
    cp "$V" "$T/shown.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(301))' "$T/shown.b2frame"
    begin_writing "$V" "$T/shown.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.delete_chunk(0)' "$S"
    cp -a "$S" "$T/theirs"
    fails "Stale file handle" sync "$V"
    end_writing
    umount_it || true
    end_of_daemon || true
    untouched
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks in (65, 66)
assert [n for n in range(1, 64) if s.decompress_chunk(n) != noise(n)] == [], "chunks are missing"
assert s.decompress_chunk(s.nchunks - 1) == noise(301)' "$(find "$S.lost" -type f)"
}

# The library takes the largest id and one for a new chunk, whatever stands there: a chunk of the daemon's that no index names yet,
# as here. The file is then the library's, and must not be taken away.
test_a_chunk_file_that_the_library_took_over_stays() {
    sparse_from full
    mount_front
    py 'new = open(sys.argv[3], "rb").read()
with open(sys.argv[1], "r+b") as file:
    # A valid frame at a close that is not the last: staged, and with the one after it superseded.
    file.write(new)
    file.truncate()
    file.flush()
    os.close(os.dup(file.fileno()))
    s = blosc2.open(sys.argv[2], mode="a")
    for n in range(3): s.append_data(noise(400 + n))
    s.vlmeta["other"] = "process"
    file.seek(0)
    file.write(b"x")' "$V" "$S" "$FX/many.b2frame" || true
    umount_it || true
    end_of_daemon || true
    py 's = blosc2.open(sys.argv[1])
assert s.nchunks == 9 or s.nchunks == 67, s.nchunks
assert all(s.decompress_chunk(s.nchunks - 3 + n) == noise(400 + n) for n in range(3)) and s.vlmeta["other"] == "process"' "$S"
}

test_a_sparse_source_replaced_by_others_is_not_overwritten() {
    sparse_from full
    mount_front
    begin_writing "$V" "$FX/many.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$T/new"
    mv "$S" "$T/old"
    mv "$T/new" "$S"
    await fails "Stale file handle" cat "$V"
    fails "Stale file handle" eval 'cp "$FX/many.b2frame" "$V" && sync "$V"'
    end_writing
    umount_it || true
    end_of_daemon || true
    diff -r "$S" "$FX/sparse/base.b2frame"
    diff -r "$T/old" "$FX/sparse/full.b2frame"
    tool same "$S.lost/source.b2frame" "$FX/many.b2frame"
}

# ---- Space and memory

# A file system of two MiB: what does not fit is refused, what is there stays good.
test_a_full_disk_under_a_sparse_source() {
    root_only
    local disk=$T/disk n
    mkdir "$disk" "$M"
    mount -t tmpfs -o size=2M tmpfs "$disk"
    S=$disk/source.b2frame V=$M/source.b2frame
    cp -r "$FX/sparse/full.b2frame" "$S"
    mount_front
    n=$(py 'for n in range(100):
    try:
        blosc2.open(sys.argv[1], mode="a").append_data(noise(300 + n))
        with open(sys.argv[1], "rb") as file: os.fsync(file)
    except (OSError, RuntimeError) as error:
        print(f"{n} chunks: {error}", file=sys.stderr)
        break
print(n)' "$V")
    [ "$n" -gt 10 ]
    [ "$n" -lt 99 ]
    opens
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks >= int(sys.argv[2]) and s.decompress_chunk(6) == noise(300), s.nchunks' "$S" $((6 + n))
    # A copy that does not fit.
    py 'make(sys.argv[1], "r" * 100)' "$T/large.b2frame"
    fails "No space left on device" eval 'cp "$T/large.b2frame" "$V" && sync "$V"'
    opens
    # Unmounting is refused as long as something is not in SOURCE, which room cures.
    umount_it 2>"$T/err" || has "$(cat "$T/err")" "still mounted"
    mount -o remount,size=20M "$disk"
    if mountpoint -q "$M"; then umount_it; fi
    end_of_daemon
    opens
    mount_it
    cp "$T/large.b2frame" "$V"
    umount_it
    tool same "$S" "$T/large.b2frame"
    umount "$disk"
}

test_contiguous_memory_is_bounded() {
    sparse_from full
    py 's = blosc2.SChunk(chunksize=1 << 20, urlpath=sys.argv[1], mode="w", cparams={"typesize": 1, "clevel": 0})
for n in range(256): s.append_data(np.random.default_rng(n).bytes(1 << 20))' "$T/large.b2frame"
    mount_front --cache-size 16M
    cp "$T/large.b2frame" "$V"
    cmp "$V" "$T/large.b2frame"
    # The library moves everything behind the first chunk.
    py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(0, bytes(1000) + noise(1, (1 << 20) - 1000), copy=True)' "$V"
    local peak
    peak=$(awk '/VmHWM/ { print $2 }' "/proc/$PID/status")
    [ "$peak" -lt 131072 ] || fail "$peak KiB resident for a file of 256 MiB and a cache of 16 MiB"
    umount_it
    end_of_daemon
    equal "$(find "$S" -type f | wc -l)" 257
    py 's = blosc2.open(sys.argv[1]); n = blosc2.open(sys.argv[2])
assert s.nchunks == 256 and s.decompress_chunk(0)[1000:] == noise(1, (1 << 20) - 1000) and all(s.get_chunk(i) == n.get_chunk(i) for i in range(1, 256))' "$S" "$T/large.b2frame"
}

test_contiguous_sigusr1_logs_the_cache() {
    sparse_from full
    mount_front
    cat "$V" >/dev/null
    kill -USR1 "$PID"
    await grep -qiE 'hits?.*miss|miss.*hit' "$T/log"
    umount_it
    end_of_daemon
}

# ---- An ordinary user

test_an_ordinary_user_with_a_sparse_source() {
    as_a_user user_with_a_sparse_source
}
user_with_a_sparse_source() {
    mkdir "$T/u" "$T/u/m"
    cp -r "$FX/sparse/full.b2frame" "$T/u/f.b2frame"
    : >"$T/u/file"
    if [ "$(id -u)" = 0 ]; then chown -R 65534:65534 "$T/u"; fi
    S=$T/u/f.b2frame
    local point
    for point in "$T/u/m" "$T/u/file"; do
        M=$point
        V=$M
        if [ -d "$M" ]; then V=$M/f.b2frame; fi
        "${as[@]}" "$B2FUSE" mount "$S" "$M"
        "${as[@]}" cat "$V" | cmp - "$FX/full.b2frame"
        "${as[@]}" cp "$FX/many.b2frame" "$V"
        "${as[@]}" "$B2FUSE" umount "$M"
        tool same "$S" "$FX/many.b2frame"
        "${as[@]}" "$B2FUSE" mount "$S" "$M"
        "${as[@]}" cp "$FX/full.b2frame" "$V"
        "${as[@]}" "$B2FUSE" umount "$M"
        tool same "$S" "$FX/full.b2frame"
    done
    # What may not be read cannot be mounted, and what may not be written only read-only.
    if [ "$(id -u)" = 0 ]; then
        chown -R root:root "$S"
        chmod 755 "$S"
        one_line "$S" "permission denied" "${as[@]}" "$B2FUSE" mount "$S" "$T/u/m"
        M=$T/u/m
        "${as[@]}" "$B2FUSE" mount -o ro "$S" "$M"
        "${as[@]}" cat "$M/f.b2frame" | cmp - "$FX/full.b2frame"
        "${as[@]}" fusermount3 -u "$M"
        chmod 700 "$S"
        one_line "$S" "permission denied" "${as[@]}" "$B2FUSE" mount -o ro "$S" "$M"
    fi
}

# The kernel repeats a rename that was answered ESTALE, and must not hear that there is no such file.
test_a_rename_over_a_sparse_source_changed_by_others() {
    sparse_from full
    mount_front
    cat "$V" >/dev/null
    cp "$FX/many.b2frame" "$M/.t"
    begin_writing "$V" "$FX/many.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77))' "$S"
    cp -a "$S" "$T/theirs"
    await fails "Stale file handle" cat "$V"
    errnos ESTALE 'os.rename(f"{M}/.t", f"{M}/source.b2frame")'
    # Nothing has happened to either name.
    equal "$(ls -A "$M")" ".t
source.b2frame"
    end_writing
    umount_it || true
    end_of_daemon || true
    untouched
}

# Writing goes on when what was in the way has gone.
test_a_directory_in_the_place_of_the_unfinished_index() {
    sparse_from full
    mount_front
    mkdir "$S/.b2fuse-chunks.tmp"
    cp "$FX/many.b2frame" "$M/.t"
    errnos EEXIST 'os.rename(f"{M}/.t", f"{M}/source.b2frame")'
    one_line "$M" "exists" umount_it
    holds n=6
    rmdir "$S/.b2fuse-chunks.tmp"
    umount_it
    end_of_daemon
    tool same "$S" "$FX/many.b2frame"
}

test_a_sparse_source_that_was_removed() {
    sparse_from empty
    mount_front
    rm -r "$S"
    fails "Stale file handle" eval 'cp "$FX/many.b2frame" "$M/.t" && mv "$M/.t" "$V"'
    fails "Stale file handle" eval 'cp "$FX/many.b2frame" "$M/.t" && mv "$M/.t" "$V"'
    "$B2FUSE" umount -z "$M" || true
    end_of_daemon || true
    if grep "nothing more is written" "$T/log"; then fail "all writing has ended"; fi
}
