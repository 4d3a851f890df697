# Unmounting: what is not in SOURCE is said and saved, the end is waited for and never for ever, and the next mount can begin.

# Who does not get into a mount sees that there is one.
listed() { grep -qF " $M " /proc/self/mountinfo; }
not_listed() { if listed; then fail "$M is still mounted"; fi; }

# ---- What did not reach SOURCE

# left_out NAME COMMAND...: unmounting fails with one line that names where the file is saved, and it is there, whole.
left_out() {
    local name=$1 saved=$2
    shift 2
    one_line "$M" "$S.lost/$name" "$@"
    not_mounted
    cmp "$S.lost/$name" "$saved"
}
# logged_lost NAME: the log says it at error level.
logged_lost() { grep -q " ERROR .*$S.lost/$1" "$T/log"; }

test_a_chunk_without_a_place() {
    source_from full
    mount_it
    cp "$FX/new/1" "$M/00000FFF.chunk"
    left_out 00000FFF.chunk "$FX/new/1" umount_it
    holds n=6
}

test_a_chunk_without_a_place_however_it_is_unmounted() {
    local end
    root_only
    for end in 'umount_it || true' 'fusermount3 -u "$M"' 'umount "$M"' 'kill -TERM $PID' 'kill -INT $PID'; do
        source_from full
        rm -rf "$T/log" "$S.lost"
        mount_front
        cp "$FX/new/1" "$M/00000FFF.chunk"
        eval "$end"
        exits 1 end_of_daemon
        logged_lost 00000FFF.chunk
        cmp "$S.lost/00000FFF.chunk" "$FX/new/1"
    done
}

test_a_chunk_without_a_place_is_saved_once() {
    source_from full
    mount_it
    cp "$FX/new/1" "$M/00000FFF.chunk"
    exec 7<"$M/00000000.chunk"
    one_line "$M" busy umount_it
    one_line "$M" busy umount_it
    exec 7<&-
    left_out 00000FFF.chunk "$FX/new/1" umount_it
    equal "$(ls "$S.lost")" 00000FFF.chunk
}

# What found no place while somebody worked in the mount finds one, and another content of the same name is saved as well.
test_after_an_unmount_that_failed_all_goes_on() {
    source_from full
    mount_it
    cp "$FX/new/1" "$(chunk 7)"
    exec 7<"$M/00000000.chunk"
    one_line "$M" busy umount_it
    cp "$FX/new/2" "$(chunk 6)"
    cp "$FX/new/3" "$M/00000FFF.chunk"
    one_line "$M" busy umount_it
    holds n=8 6="$FX/new/2" 7="$FX/new/1"
    cp "$FX/new/4" "$M/00000FFF.chunk"
    exec 7<&-
    one_line "$M" "$S.lost/00000FFF.chunk" umount_it
    find "$S.lost" -type f -exec cmp -s {} "$FX/new/4" ';' -print | grep -q 00000FFF.chunk
}

test_a_chunk_whose_index_was_taken_away() {
    source_from full
    mount_it
    rm "$M/chunks.b2frame"
    cp "$FX/new/1" "$(chunk 3)"
    left_out 00000003.chunk "$FX/new/1" umount_it
    holds n=6 3="$FX/full/3"
}

test_a_source_that_others_have_changed() {
    source_from full
    mount_front
    cat "$M"/* >/dev/null
    cp "$FX/new/1" "$(chunk 99)"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77))' "$S"
    cp "$S" "$T/theirs"
    left_out 00000063.chunk "$FX/new/1" umount_it
    has "$(cat "$T/.err")" "changed by another process"
    exits 1 end_of_daemon
    logged_lost 00000063.chunk
    cmp "$S" "$T/theirs"
}

test_a_sparse_source_that_others_have_changed() {
    sparse_from full
    mount_front
    cat "$V" >/dev/null
    begin_writing "$V" "$FX/many.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77))' "$S"
    end_writing
    one_line "$M" "$S.lost/source.b2frame" umount_it
    has "$(cat "$T/.err")" "changed by another process"
    exits 1 end_of_daemon
    logged_lost source.b2frame
    tool same "$S.lost/source.b2frame" "$FX/many.b2frame"
}

# Programs that write until the very moment: what a close accepted is saved and counted, and nobody hears of an unmount that failed.
test_writers_until_the_mount_is_gone() {
    source_from full
    py 'import random, re, subprocess, threading, time
b2fuse, source, mount, chunk = sys.argv[1:]
data = open(chunk, "rb").read()
total = 0
for round in range(20):
    subprocess.run([b2fuse, "mount", source, mount], check=True, stdin=subprocess.DEVNULL)
    accepted, unexpected, gone = [], [], threading.Event()
    def write(writer):
        for n in range(writer << 12, writer + 1 << 12):
            try:
                with open(f"{mount}/{n:08X}.chunk", "xb") as file:
                    file.write(data)
                accepted.append(f"{n:08X}.chunk")
            except OSError as error:
                unexpected.append(error)
            if gone.wait(random.random() / 10):
                return
    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(1, 4)]
    for writer in writers: writer.start()
    said = "busy"
    while "busy" in said:
        time.sleep(random.random() / 20)
        ended = subprocess.run([b2fuse, "umount", mount], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        said = ended.stderr
    gone.set()
    for writer in writers: writer.join()
    below = set(os.listdir(mount))
    lost = set(os.listdir(f"{source}.lost")) if os.path.exists(f"{source}.lost") else set()
    assert set(accepted) - below == lost, (round, sorted(set(accepted) - below), sorted(lost), said)
    more = re.search(r"and (\d+) more", said)
    assert len(re.findall(r"chunk has no place", said)) + int(more[1] if more else 0) == len(lost), (said, lost)
    assert ended.returncode == (1 if lost else 0) and not unexpected, (said, unexpected)
    total += len(lost)
    for name in below: os.unlink(f"{mount}/{name}")
    for name in lost: os.unlink(f"{source}.lost/{name}")
assert total > 0' "$B2FUSE" "$S" "$M" "$FX/new/1"
}

# full_disk: a mount with a chunk that has no place, on a disk that has no room.
full_disk() {
    root_only
    mkdir -p "$T/disk"
    mount -t tmpfs -o size=1M tmpfs "$T/disk"
    S=$T/disk/source.b2frame
    source_from full
    mount_it
    cp "$FX/new/1" "$M/00000FFF.chunk"
    ! head -c 64M /dev/zero 2>/dev/null >"$T/disk/ballast"
}

test_what_cannot_be_saved_keeps_the_mount() {
    full_disk
    one_line "$M" "still mounted" umount_it
    has "$(cat "$T/.err")" 00000FFF.chunk
    has "$(cat "$T/.err")" "No space left on device"
    mountpoint -q "$M"
    cmp "$M/00000FFF.chunk" "$FX/new/1"
    cp "$M/00000000.chunk" "$M/.still-writable"
    rm "$T/disk/ballast"
    # Where a part of it was saved may stay in the way of the name.
    one_line "$M" "$S.lost/00000FFF.chunk" umount_it
    not_mounted
    find "$S.lost" -type f -exec cmp -s {} "$FX/new/1" ';' -print | grep -q 00000FFF.chunk
    umount "$T/disk"
}

test_what_cannot_be_saved_is_named_when_it_has_to_go() {
    full_disk
    one_line "$M" 00000FFF.chunk "$B2FUSE" umount -z "$M"
    has "$(cat "$T/.err")" "No space left on device"
    not_mounted
    umount "$T/disk"
}

test_a_lazy_unmount_says_what_is_not_in_source() {
    source_from full
    mount_front
    exec 7<"$(chunk 0)"
    cp "$FX/new/0" "$(chunk 3)"
    cp "$FX/new/1" "$M/00000FFF.chunk"
    left_out 00000FFF.chunk "$FX/new/1" "$B2FUSE" umount -z "$M"
    holds n=6 3="$FX/new/0"
    cmp - "$FX/full/0" <&7
    exec 7<&-
    exits 1 end_of_daemon
    equal "$(ls "$S.lost")" 00000FFF.chunk
}

# ---- The end is waited for

test_a_daemon_that_was_killed() {
    source_from full
    mount_front
    cp "$FX/new/1" "$(chunk 3)"
    kill -KILL "$PID"
    wait "$PID" || PID=
    exits 3 umount_it
    has "$(cat "$T/.err")" "$M: unmounted, but its daemon had died, so it cannot be told whether everything"
    not_mounted
}

test_nothing_is_left_of_the_daemon() {
    root_only
    local n
    mkdir "$T/disk"
    mount -t tmpfs -o size=4M tmpfs "$T/disk"
    S=$T/disk/source.b2frame
    for n in $(seq 20); do
        source_from full
        if ((n % 2)); then mount_it; else mount_it -o ro; fi
        if ((n % 2)); then cp "$FX/new/1" "$(chunk 3)"; fi
        umount_it
        umount "$T/disk"
        mount -t tmpfs -o size=4M tmpfs "$T/disk"
    done
    umount "$T/disk"
}

test_a_mount_that_another_namespace_has_as_well() {
    root_only
    source_from full
    mount_it
    unshare --mount "$ROOT/tests/shell/alone" sh -c 'echo "$$" >"$0" && exec sleep 100' "$T/there" &
    PID=$!
    await test -s "$T/there"
    cp "$FX/new/0" "$(chunk 3)"
    exits 0 timeout 20 "$B2FUSE" umount "$M"
    has "$(cat "$T/.err")" "another mount namespace"
    not_mounted
    holds n=6 3="$FX/new/0"
    # What is there goes on to be one, a little later.
    nsenter --mount="/proc/$PID/ns/mnt" timeout 60 cp "$FX/new/1" "$(chunk 4)"
    nsenter --mount="/proc/$PID/ns/mnt" "$B2FUSE" umount "$M"
    holds n=6 3="$FX/new/0" 4="$FX/new/1"
    flock -n "$S" true
}

# in_another_namespace: mounts, and is process 1 or so there.
in_another_namespace() {
    # shellcheck disable=SC2016 # for the inner shell
    setsid unshare --pid --fork sh -c '"$1" mount "$2" "$3" && exec sleep 100' - "$B2FUSE" "$S" "$M" </dev/null &
    PID=$!
    await mountpoint -q "$M"
}

test_a_daemon_in_another_pid_namespace() {
    root_only
    source_from full
    in_another_namespace
    cp "$FX/new/0" "$(chunk 3)"
    exits 0 timeout 20 "$B2FUSE" umount "$M"
    equal "$(cat "$T/.err")" ""
    not_mounted
    flock -n "$S" true
    holds n=6 3="$FX/new/0"
    kill -KILL -- -"$PID"
    wait "$PID" || PID=
    in_another_namespace
    cp "$FX/new/1" "$M/00000FFF.chunk"
    left_out 00000FFF.chunk "$FX/new/1" timeout 20 "$B2FUSE" umount "$M"
    kill -KILL -- -"$PID"
    wait "$PID" || PID=
}

# without_pidfds COMMAND...: as on a kernel that has none.
without_pidfds() {
    "$PY" -c 'import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
call = {"x86_64": 434, "aarch64": 434}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}

test_a_kernel_without_pidfds() {
    root_only
    source_from full
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    exits 0 without_pidfds "$B2FUSE" umount "$M"
    flock -n "$S" true
    holds n=6 3="$FX/new/0"
    mount_it
    cp "$FX/new/1" "$M/00000FFF.chunk"
    left_out 00000FFF.chunk "$FX/new/1" without_pidfds "$B2FUSE" umount "$M"
}

# ---- Whoever says that he is b2fuse

# fake USER HOW...: see fakefs.py.
fake() {
    mkdir -p "$M"
    rm -f "$T/fake"
    "$PY" "$ROOT/tests/python/fakefs.py" "$M" "$@" >"$T/fake" &
    PID=$!
    await grep -q mounted "$T/fake"
}

test_a_file_system_that_lies_about_its_process() {
    root_only
    fake 0 pid $$
    one_line "$M" "another program" timeout 20 "$B2FUSE" umount "$M"
    mountpoint -q "$M"
    exits 3 timeout 20 "$B2FUSE" umount -z "$M"
    has "$(cat "$T/.err")" "not known"
    not_mounted
    end_of_daemon
}

test_a_file_system_that_answers_with_garbage() {
    root_only
    local n
    for n in 1 2 3 4 5; do
        fake 0 garbage
        one_line "$M" "$M" timeout 20 "$B2FUSE" umount "$M"
        umount -l "$M"
        end_of_daemon
    done
}

# What it calls SOURCE may be anything: a file that is not to be opened, or one that others have marked.
test_a_file_system_that_lies_about_its_source() {
    root_only
    local source
    mkfifo "$T/fifo"
    for source in "$T/fifo" /dev/null /etc/passwd; do
        fake 65534 ready "$source"
        exits 0 timeout 20 "$B2FUSE" umount "$M"
        not_mounted
        end_of_daemon
    done
}

test_a_file_system_that_never_answers() {
    root_only
    local how status=0
    local -A fakes=() asked=()
    for how in mute silent working; do
        M=$T/$how
        fake 65534 $how
        fakes[$how]=$PID
        timeout 60 "$B2FUSE" umount "$M" >"$T/$how.out" 2>"$T/$how.err" &
        asked[$how]=$!
    done
    PID=
    for how in "${!asked[@]}"; do
        status=0
        wait "${asked[$how]}" || status=$?
        equal "$status" 1 "$how"
        has "$(cat "$T/$how.err")" "still mounted"
        M=$T/$how
        listed
        kill -KILL "${fakes[$how]}"
        wait "${fakes[$how]}" || true
        umount -l "$M"
    done
}

# ---- Whose mount it is

test_root_unmounts_a_users_mount() { root_only; as_a_user users_mount; }
users_mount() {
    mkdir -m 700 "$T/u"
    mkdir "$T/u/m"
    cp "$FX/full.b2frame" "$T/u/f.b2frame"
    chown -R 65534:65534 "$T/u"
    M=$T/u/m S=$T/u/f.b2frame
    "${as[@]}" "$B2FUSE" mount "$S" "$M"
    "${as[@]}" cp "$FX/new/0" "$(chunk 3)"
    # Another user is kept out.
    local other=(setpriv --reuid=65533 --regid=65533 --clear-groups)
    chmod 755 "$T/u"
    one_line "$M" "another user's" "${other[@]}" "$B2FUSE" umount "$M"
    one_line "$M" "" "${other[@]}" "$B2FUSE" umount -z "$M"
    listed
    exits 0 "$B2FUSE" umount "$M"
    not_listed
    flock -n "$S" true
    tool holds "$S" n=6 3="$FX/new/0"
    # What is not in SOURCE is said to root as well.
    "${as[@]}" "$B2FUSE" mount "$S" "$M"
    "${as[@]}" cp "$FX/new/1" "$M/00000FFF.chunk"
    one_line "$M" "$S.lost/00000FFF.chunk" "$B2FUSE" umount "$M"
    not_listed
}

# Where others are let in, they are not to make the mount wait.
test_others_who_are_let_in_do_not_unmount() {
    root_only
    source_from full
    chmod 755 "$T"
    mount_it -o allow_other
    one_line "$M" "another user" "${nobody[@]}" "$B2FUSE" umount "$M"
    mountpoint -q "$M"
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    holds n=6 3="$FX/new/0"
}

# ---- The next mount

# again_after COMMAND...: a mount is ended so, changed before, and SOURCE mounted again at once, 50 times.
again_after() {
    local n from
    for n in $(seq 50); do
        mount_it
        if [ -d "$S" ]; then from=$FX/$([ $((n % 2)) = 0 ] && echo full || echo base).b2frame && cp "$from" "$V"; else cp "$FX/new/$((n % 8))" "$(chunk 3)"; fi
        if ! { "$@" && mount_it; }; then fail "round $n of $*"; fi
        umount_it
    done
}

test_mounted_again_after_b2fuse_umount() { source_from many; again_after umount_it; }
test_mounted_again_after_umount() { root_only; source_from many; again_after umount "$M"; }
test_mounted_again_after_fusermount3() { source_from many; again_after fusermount3 -u "$M"; }
test_sparse_mounted_again_after_b2fuse_umount() { sparse_from full; again_after umount_it; }
test_sparse_mounted_again_after_umount() { root_only; sparse_from full; again_after umount "$M"; }
test_sparse_mounted_again_after_fusermount3() { sparse_from full; again_after fusermount3 -u "$M"; }

# terminated: the mount ends by a signal; it is gone before its daemon is.
terminated() {
    kill -TERM "$PID"
    until ! listed; do :; done
}
test_mounted_again_after_a_signal() {
    source_from many
    local n pid
    for n in $(seq 50); do
        mount_front
        cp "$FX/new/$((n % 8))" "$(chunk 3)"
        terminated
        pid=$PID
        mount_it
        umount_it
        PID=
        wait "$pid"
    done
}

# A new frame, of which there was nothing when it was mounted, and one that is replaced.
test_a_new_frame_mounted_again_after_umount() {
    root_only
    local n
    mkdir "$M"
    for n in $(seq 20); do
        rm -f "$S"
        mount_it --create
        cp "$FX/sparse/full.b2frame"/* "$M"
        umount "$M"
        mount_it
        cmp "$(chunk 3)" "$FX/full/3"
        umount "$M"
        "$B2FUSE" convert --force "$FX/sparse/base.b2frame" "$S"
        holds n=10
    done
}

# Its mount is gone, but it does not get on with releasing SOURCE: others have their turn.
test_a_daemon_that_ends_is_waited_for() {
    root_only
    source_from full
    mount_front --locking
    exec 8<>"$S.b2lock"
    flock 8
    umount "$M"
    local old=$PID began=$SECONDS
    # Not for longer than one likes to.
    one_line "$S" "not released by process $old within 1 s" "$B2FUSE" mount -o wait=1 "$S" "$M"
    one_line "$S" "process $old" "$B2FUSE" mount -o wait=0 "$S" "$M"
    mount_it 2>"$T/err" &
    PID=$!
    await grep -q "waiting until it is released by process $old" "$T/err"
    equal "$(grep -c "waiting until" "$T/err")" 1
    flock -u 8
    end_of_daemon
    wait "$old"
    [ $((SECONDS - began)) -lt 25 ]
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
}

test_a_daemon_that_lives_is_not_waited_for() {
    local began=$EPOCHREALTIME
    source_from full
    mkdir "$T/second"
    mount_front
    one_line "$S" "mounted for writing already by process $PID, on $M;" "$B2FUSE" mount "$S" "$T/second"
    # Called as its user likes.
    umount_it
    end_of_daemon
    mount_front -o fsname=mine
    one_line "$S" "mounted for writing already by process $PID, on $M;" "$B2FUSE" mount "$S" "$T/second"
    # Gone by name only.
    exec 7<"$(chunk 0)"
    "$B2FUSE" umount -z "$M"
    one_line "$S" "mounted for writing already by process $PID, detached" "$B2FUSE" mount "$S" "$T/second"
    exec 7<&-
    end_of_daemon
    awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { exit !(b - a < 20) }'
}
