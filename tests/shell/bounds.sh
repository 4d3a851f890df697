# What one client, or one frame, can take of the machine: descriptors, memory, disk.

# Begins MANY temporary files of MORE than is held in memory, and keeps them open until $T/enough is there.
hog() {
    "$PY" -c 'import os, sys, time
mount, many, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
files, errors = [], {}
for n in range(many):
    try:
        files.append(os.open(f"{mount}/.hog{n}", os.O_RDWR | os.O_CREAT))
        for piece in range(6): os.write(files[-1], bytes([n % 256]) * (256 << 10))
    except OSError as error:
        errors[error.errno] = errors.get(error.errno, 0) + 1
print("holding", len(files), errors, flush=True)
while not os.path.exists(stop): time.sleep(0.05)
# What was taken is what is there.
for n, file in enumerate(files):
    data = os.pread(file, 2 << 20, 0)
    assert data == bytes([n % 256]) * len(data)' "$M" "$1" "$T/enough" >"$T/hog" 2>&1 &
    HOG=$!
    await grep -q holding "$T/hog"
}
end_of_hog() { : >"$T/enough"; wait "$HOG" || fail "$(cat "$T/hog")"; }

# few_descriptors COMMAND...: it, and what it starts, may have 64 files open.
few_descriptors() { (ulimit -n 64 && exec "$@"); }

test_many_temporary_files_take_no_descriptors() {
    source_from full
    few_descriptors "$B2FUSE" mount "$S" "$M"
    hog 200
    local n
    # Others read, make such files themselves, and write.
    for n in 0 1 2 3 4 5; do
        cmp "$(chunk $n)" "$FX/full/$n"
        head -c 3000000 /dev/zero >"$M/.other$n"
        cp "$FX/new/$n" "$(chunk $n)"
    done
    end_of_hog
    umount_it
    holds 0="$FX/new/0" 5="$FX/new/5"
}

test_many_temporary_files_beside_readers_of_a_sparse_source() {
    sparse_from many
    few_descriptors "$B2FUSE" mount "$S" "$M"
    hog 200
    tool same "$V" "$FX/many.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a")
for n in range(20): s.update_data(n, noise(500 + n), copy=True)' "$V"
    end_of_hog
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert all(s.decompress_chunk(n) == noise(500 + n) for n in range(20))' "$S"
}

test_many_locks_leave_descriptors_to_others() {
    source_from full
    few_descriptors "$B2FUSE" mount --locking "$S" "$M"
    cp "$FX/new/0" "$M/.some"
    "$PY" -c 'import errno, fcntl, os, sys, time
files, refused = [], 0
for n in range(200):
    files.append(os.open(sys.argv[1] + ("/.b2lock" if n % 2 else "/.some"), os.O_RDWR))
    try:
        fcntl.flock(files[-1], fcntl.LOCK_SH)
    except OSError as error:
        assert error.errno == errno.ENOLCK, error
        refused += 1
print("holding", refused, flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.05)' "$M" "$T/enough" >"$T/hog" 2>&1 &
    HOG=$!
    await grep -q . "$T/hog"
    grep -q holding "$T/hog" || fail "$(cat "$T/hog")"
    cmp "$(chunk 3)" "$FX/full/3"
    head -c 3000000 /dev/zero >"$M/.other"
    end_of_hog
    umount_it
}

# The daemon asks for as many as it may have; what it runs gets what it had.
test_the_limit_of_descriptors_is_raised() {
    source_from full
    (ulimit -Sn 100 && ulimit -Hn 4000 && exec "$B2FUSE" mount -f "$S" "$M" </dev/null 2>"$T/err") &
    PID=$!
    await mountpoint -q "$M"
    equal "$(awk '/open files/ { print $4, $5 }' "/proc/$PID/limits")" "4000 4000"
    umount_it
    end_of_daemon
}
the_helper_has_the_limit_of_before() {
    mkdir "$T/bin"
    local helper
    helper=$(command -v fusermount3)
    printf '#!/bin/sh\nulimit -Sn >>%q\nexec %q "$@"\n' "$T/limits" "$helper" >"$T/bin/fusermount3"
    chmod 755 "$T/bin/fusermount3"
    chmod 777 "$T"
    source_from full
    chmod 777 "$M" "$S"
    (ulimit -Sn 100 && PATH=$T/bin:$PATH exec "${as[@]}" "$B2FUSE" mount "$S" "$M")
    PATH=$T/bin:$PATH "${as[@]}" "$B2FUSE" umount "$M"
    equal "$(head -n 1 "$T/limits")" 100
}
test_the_helper_has_the_limit_of_before() { as_a_user the_helper_has_the_limit_of_before; }
