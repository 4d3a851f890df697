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

# ---- Memory for frames that say more than they hold

hostile() { "$PY" "$ROOT/tests/python/hostile.py" "$@"; }
# within KIB COMMAND...: runs it; then $CODE is its exit code, $T/out and $T/err are what it said, and it held no more memory than that.
# A command is never seen to hold less than the Python that starts it, about 40 MiB.
within() {
    local limit=$1 most
    shift
    hostile peak 0 "$@" >"$T/out" 2>"$T/err" </dev/null
    read -r CODE most < <(tail -n 1 "$T/out")
    sed -i '$d' "$T/out"
    [ "$most" -le "$limit" ] || fail "held $most KiB, expected at most $limit: $*"
}

# 200 bytes of frame, and something wrong with each of 200,000 chunks.
test_findings_are_counted_and_not_all_held() {
    local kind
    for kind in misfits misfits_in_a_directory; do
        hostile $kind "$T/$kind" 200000
        within 80000 "$B2FUSE" check --json "$T/$kind"
        equal "$CODE" 1
        py 'import json
report = json.load(open(sys.argv[1]))
assert len(report["findings"]) == 10_000 and report["findings_left_out"] == 190_000, (len(report["findings"]), report["findings_left_out"])
assert not report["sound"] and report["chunks"] == 200_000' "$T/out"
        within 80000 "$B2FUSE" repair "$T/$kind"
        equal "$CODE" 1
        has "$(cat "$T/out")" ": and 199000 more"
        has "$(cat "$T/out")" ": lost: and 199000 more"
        [ "$(wc -l <"$T/out")" -lt 2100 ]
    done
    # Lines, in contrast, are printed as they are found, all of them.
    within 80000 "$B2FUSE" check "$T/misfits"
    equal "$(wc -l <"$T/out")" 200001
}

# Lengths of 2 GiB in files of 8 KiB: header, trailer, index.
test_lengths_of_what_is_a_hole_are_refused() {
    local kind command
    mkdir "$M"
    for kind in long_header long_trailer hollow_index; do
        hostile $kind "$T/$kind"
        for command in info ls check repair "mount -r"; do
            # shellcheck disable=SC2086,SC2046 # words
            within 80000 "$B2FUSE" $command "$T/$kind" $([[ $command == mount* ]] && echo "$M")
            [ "$CODE" = 1 ] || fail "exit code $CODE of $command $kind"
            [ "$(wc -l <"$T/err")" -le 1 ] || fail "$(cat "$T/err")"
            [[ -s $T/out || $(cat "$T/err") == "$T/$kind: "* ]] || fail "$command $kind said nothing: $(cat "$T/err")"
            not_mounted
        done
    done
    within 80000 "$B2FUSE" convert "$T/hollow_index" "$T/copy"
    equal "$CODE" 1
    has "$(cat "$T/err")" "in holes, expected at most 67108864"
}

# The largest that an index of a few bytes may stand for opens, at 8 bytes a chunk.
test_a_frame_of_2_24_chunks_opens() {
    hostile specials "$T/specials"
    within 165000 "$B2FUSE" info "$T/specials"
    equal "$CODE" 0
    has "$(cat "$T/out")" "16777216"
    hostile equal_chunks "$S"
    mkdir "$M"
    "$B2FUSE" mount -f -r "$S" "$M" 2>"$T/err" &
    PID=$!
    while ! mountpoint -q "$M"; do kill -0 "$PID" && sleep 0.1; done
    equal "$(stat -c %s "$M/00FFFFFF.chunk")" 33
    local most
    most=$(awk '/VmHWM/ { print $2 }' "/proc/$PID/status")
    umount_it
    end_of_daemon
    [ "$most" -le 600000 ] || fail "the daemon held $most KiB"
}

# with_memory KIB COMMAND...: it has at most that much address space.
with_memory() { (ulimit -c 0 && ulimit -v "$1" && exec "${@:2}" </dev/null); }

# Prints the least address space, in KiB, in which the program starts: with less, neither the kernel nor the linker loads it.
starts_within() {
    local limit=4000
    until with_memory $limit "$B2FUSE" --version >/dev/null 2>&1; do
        limit=$((limit + 500))
        [ $limit -lt 200000 ] || fail "b2fuse does not start"
    done
    echo $limit
}

# However little memory there is: all goes well, or there is one line that begins with the path.
test_too_little_memory_is_one_line() {
    local least more limit command code refused=0
    hostile specials "$T/specials" $((1 << 19))
    mkdir "$M"
    least=$(starts_within)
    for more in 500 1000 2000 3000 4000 6000 8000 12000 16000; do
        limit=$((least + more))
        for command in info "cat -f" check repair; do
            # shellcheck disable=SC2086,SC2046 # words
            with_memory $limit "$B2FUSE" $command "$T/specials" $([ "$command" = "cat -f" ] && echo 7) >"$T/out" 2>"$T/err" && continue
            code=$?
            refused=$((refused + 1))
            [ "$code" = 1 ] || fail "exit code $code of $command with $limit KiB: $(cat "$T/err")"
            equal "$(wc -l <"$T/err")" 1 "$command with $limit KiB: $(cat "$T/err")"
            [[ $(cat "$T/err") == "$T/specials: "* ]] || fail "$(cat "$T/err")"
        done
    done
    [ $refused -gt 0 ] || fail "there was memory enough each time"
    # Too little for the daemon, which says so through the command that started it.
    with_memory $((least + 4000)) "$B2FUSE" mount "$T/specials" "$M" 2>"$T/err" && fail "there was memory enough"
    equal $? 1
    equal "$(cat "$T/err")" "$T/specials: needs more memory than there is"
    not_mounted
}
