# Other programs that change SOURCE under a mount: what is opened is up to date, what is open is told, and nothing of others is harmed.

# as_native: what the mount shows is what the library finds in SOURCE: the first chunk at once, and all files as soon as the kernel has
# forgotten what it knew of the directory.
as_native() {
    if [ -z "${READ_ONLY:-}" ]; then cmp "$(chunk 0)" <("$B2FUSE" cat --raw "$S" 0); fi
    await all_as_native
}
all_as_native() {
    local file n
    for file in "$M"/*.chunk; do
        n=$((16#$(basename "$file" .chunk)))
        cmp "$file" <("$B2FUSE" cat --raw "$S" "$n") || return
    done
    tool same "$M" "$S"
}
# stays FD FILE: a version has gone, and what was read of it can be read again; it has the attributes that it had.
stays() {
    py 'fd, before = int(sys.argv[1]), open(sys.argv[2], "rb").read()
assert os.fstat(fd).st_size == len(before), os.fstat(fd)
assert os.pread(fd, len(before) + 1, 0) == before' "$1" "$2"
}
# insert SEED: another program puts a chunk before all others, so that none stays where it was.
insert() { py 's = blosc2.open(sys.argv[1], mode="a"); s.insert_data(0, noise(int(sys.argv[2])), True)' "$S" "$1"; }
# replace NAME: another frame takes SOURCE's place.
replace() {
    if [ -d "$S" ]; then rm -rf "$T/gone" && mv "$S" "$T/gone"; fi
    replace_by "$1"
}
# replace_by NAME: another frame gets SOURCE's name, of the layout that the mount does not show.
replace_by() {
    local shown=
    if [ -e "$M/chunks.b2frame" ]; then shown=sparse; fi
    if [ -n "$shown" ]; then cp "$FX/$1.b2frame" "$T/new.b2frame"; else cp -r "$FX/sparse/$1.b2frame" "$T/new.b2frame"; fi
    mv "$T/new.b2frame" "$S"
}

test_an_idle_mount_for_writing_shows_what_others_write() {
    source_from full
    mount_it
    cat "$M"/* >/dev/null
    exec 7<"$(chunk 3)"
    insert 77
    # Without a pause: who opens a file is up to date.
    as_native
    await eval '[ "$(ls "$M" | wc -l)" = 8 ]'
    stays 7 "$FX/full/3"
    exec 7<&-
    replace base
    as_native
    py 's = blosc2.open(sys.argv[1], mode="a"); s.delete_chunk(0); s.update_data(3, noise(5), True)' "$S"
    as_native
    # And it is written to as if it had always been there.
    cp "$FX/new/0" "$(chunk 0)"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(6)); s.insert_data(2, noise(7), True)' "$M"
    sync "$M"
    holds 0="$FX/new/0" n=11
    "$B2FUSE" check --deep "$S"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(2) == noise(7) and s.decompress_chunk(10) == noise(6)' "$S"
}

test_an_idle_mount_with_locking_shows_what_others_write_without() {
    source_from full
    mount_it --locking
    cat "$M"/* >/dev/null
    insert 77
    as_native
    replace base
    as_native
    cp "$FX/new/0" "$(chunk 0)"
    sync "$M"
    holds 0="$FX/new/0" n=10
    umount_it
}

test_an_idle_mount_of_a_directory_shows_what_others_write() {
    sparse_from full
    mount_it
    cat "$V" >"$T/before"
    exec 7<"$V"
    insert 77
    view "$V" "$S"
    stays 7 "$T/before"
    # A chunk that is replaced in place, and its index with it; and by hand, without.
    py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(3, noise(5), True)' "$S"
    view "$V" "$S"
    cp "$FX/new/0" "$S/00000001.chunk"
    await view "$V" "$S"
    exec 7<&-
    replace base
    view "$V" "$S"
    cp "$FX/many.b2frame" "$V"
    sync "$V"
    tool same "$S" "$FX/many.b2frame"
    umount_it
    tool same "$S" "$FX/many.b2frame"
}

test_a_read_only_mount_shows_what_others_write() {
    source_from full
    mount_it -o ro
    cat "$M"/* >/dev/null
    exec 7<"$(chunk 3)"
    insert 77
    READ_ONLY=1 as_native
    stays 7 "$FX/full/3"
    exec 7<&-
    replace base
    READ_ONLY=1 as_native
    umount_it
    rm -r "$S"
    sparse_from full
    mount_it -o ro
    cat "$V" >"$T/before"
    exec 7<"$V"
    insert 77
    await view "$V" "$S"
    stays 7 "$T/before"
    cp "$FX/new/0" "$S/00000001.chunk"
    await view "$V" "$S"
    exec 7<&-
    replace base
    await view "$V" "$S"
    umount_it
}

# What was read of a map can be read again when its version has gone, and is never another's bytes.
test_what_is_mapped_stays_when_its_version_goes() {
    source_from full
    mount_it
    cat >"$T/mapped.py" <<'EOF'
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
before = mapped[:]
print("mapped", flush=True)
until = time.monotonic() + 60
while not os.path.exists(sys.argv[2]):
    assert time.monotonic() < until
    time.sleep(0.001)
    if mapped[:] != before:
        sys.exit("other bytes")
EOF
    for options in "" "-o ro" "--locking"; do
        umount_it
        # shellcheck disable=SC2086
        mount_it $options
        mkfifo "$T/ready"
        "$PY" "$T/mapped.py" "$(chunk 3)" "$T/end" >"$T/ready" 2>"$T/said" &
        head -n 1 "$T/ready"
        insert 77
        await all_as_native
        chmod 640 "$S"
        await eval '[ "$(stat -c %a "$(chunk 3)")" = 640 ]'
        : >"$T/end"
        local code=0
        wait $! || code=$?
        equal "$code" 0 "$(cat "$T/said")"
        rm "$T/ready" "$T/end"
    done
    umount_it
}

# Whoever follows by name sees what is appended.
test_tail_follows_by_name() {
    sparse_from full
    mount_it -o ro
    tail -c 1 -s 0.05 -F "$V" >"$T/by_name" 2>"$T/said_by_name" &
    local by_name=$!
    await test -s "$T/by_name"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77))' "$S"
    await view "$V" "$S"
    # From the new file's beginning.
    await eval 'tail -c +2 "$T/by_name" | cmp - "$V"'
    kill "$by_name"
    umount_it
}

test_a_source_that_loses_its_name() {
    source_from full
    mount_front
    cat "$M"/* >/dev/null
    local deed
    for deed in 'true' 'ln -s "$T/away" "$S"' 'mkdir "$S"' 'echo "no frame" >"$S"'; do
        : >"$T/log"
        mv "$S" "$T/away"
        eval "$deed"
        await grep -q "still shows the frame\|cannot be shown" "$T/log"
        cmp "$(chunk 3)" "$FX/full/3"
        fails "Stale file handle" cp "$FX/new/0" "$(chunk 3)"
        cmp "$(chunk 3)" "$FX/full/3"
        # One line for each cause: the daemon may have looked between the two commands, or not.
        equal "$(sed -n 's/.*: \(.*; the mount still shows the frame\)/\1/p' "$T/log" | sort | uniq -d)" ""
        if [ -d "$S" ]; then rmdir "$S"; else rm -f "$S"; fi
        # It comes back.
        mv "$T/away" "$S"
        await cp "$FX/new/0" "$(chunk 3)"
        cp "$FX/full/3" "$(chunk 3)"
        sync "$M"
        holds 3="$FX/full/3"
    done
    # The mount ends without it as well, and says so. What was written is saved.
    rm "$S"
    cmp "$(chunk 3)" "$FX/full/3"
    one_line "$M" "another program has removed SOURCE; source.b2frame is saved as" umount_it
    exits 1 end_of_daemon
    [ ! -e "$S" ]
}

# Switching to another version by a link: the mount goes on with what it has.
test_a_source_that_becomes_a_link() {
    local kind
    for kind in source sparse; do
        "${kind}_from" full
        mount_it
        mv "$S" "$T/v1" && ln -s v1 "$S"
        if [ $kind = source ]; then cmp "$(chunk 3)" "$FX/full/3"; else tool same "$V" "$FX/full.b2frame"; fi
        timeout 20 "$B2FUSE" umount "$M"
        rm -r "$S" "$T/v1"
    done
}

test_what_takes_the_name_may_be_another_mounts() {
    source_from full
    cp "$FX/base.b2frame" "$T/new.b2frame"
    mkdir "$T/other"
    "$B2FUSE" mount "$T/new.b2frame" "$T/other"
    mount_front
    ln "$T/new.b2frame" "$T/link"
    mv "$T/link" "$S"
    as_native
    await grep -q "mounted for writing already.*shown read-only" "$T/log"
    fails "Device or resource busy" cp "$FX/new/0" "$(chunk 0)"
    as_native
    # The other one goes on writing to it.
    cp "$FX/new/0" "$T/other/00000000.chunk"
    sync "$T/other"
    as_native
    cmp "$(chunk 0)" "$FX/new/0"
    "$B2FUSE" umount "$T/other"
    cp "$FX/new/1" "$(chunk 0)"
    sync "$M"
    holds 0="$FX/new/1" n=10
    umount_it
    end_of_daemon
}

# What has lost the name is no more of the mount's than any other frame.
test_what_lost_the_name_is_released() {
    local kind
    mkdir "$T/other"
    for kind in source sparse; do
        "${kind}_from" full
        mount_it
        mv "$S" "$T/away.b2frame"
        replace_by base
        await tool same "$M/$([ $kind = source ] || echo source.b2frame)" "$S"
        await "$B2FUSE" mount "$T/away.b2frame" "$T/other"
        "$B2FUSE" umount "$T/other"
        one_line "$S" "mounted for writing already" "$B2FUSE" mount "$S" "$T/other"
        umount_it
        "$B2FUSE" mount "$S" "$T/other"
        "$B2FUSE" umount "$T/other"
        rm -r "$S" "$T/away.b2frame"
    done
}

test_an_idle_mount_waits_and_does_nothing() {
    local layout options switches
    for layout in source sparse; do
        for options in "" "-o ro"; do
            rm -rf "$S"
            "${layout}_from" full
            # shellcheck disable=SC2086
            mount_front $options
            cat "$M"/* >/dev/null
            equal "$(ls -l "/proc/$PID/fd" | grep -c 'anon_inode:inotify')" 1 "inotify instances"
            # switches: how often a thread of the daemon was waited for.
            switches() { cat "/proc/$PID"/task/*/status | awk '/^voluntary_ctxt_switches/ { n += $2 } END { print n }'; }
            sleep 1.5
            local before
            before=$(switches)
            sleep 1.5
            [ $(($(switches) - before)) -le 2 ] || fail "$layout $options: woken $(($(switches) - before)) times"
            umount_it
            end_of_daemon
        done
    done
}

# Where the system does not tell of changes: each open and read looks, and the mount now and then.
test_without_inotify_others_are_followed_all_the_same() { as_a_user without_inotify; }
without_inotify() {
    mkdir -m 777 "$T/u"
    S=$T/u/source.b2frame M=$T/u/mnt
    local options
    # All instances that this user may have.
    cat >"$T/take.py" <<'EOF'
import ctypes, signal
libc = ctypes.CDLL(None)
while libc.inotify_init() >= 0:
    pass
print("taken", flush=True)
signal.pause()
EOF
    mkfifo "$T/ready"
    "${as[@]}" "$PY" "$T/take.py" >"$T/ready" &
    local taker=$!
    head -n 1 "$T/ready"
    for options in "" "-o ro"; do
        cp "$FX/full.b2frame" "$S"
        "${as[@]}" mkdir -p "$M"
        if [ "$(id -u)" = 0 ]; then chown 65534:65534 "$S"; fi
        # shellcheck disable=SC2086
        "${as[@]}" "$B2FUSE" mount $options --log-file "$T/u/log" "$S" "$M"
        grep -q "inotify is not available" "$T/u/log"
        "${as[@]}" cat "$M/00000003.chunk" >/dev/null
        cp "$FX/base.b2frame" "$T/u/new" && chown 65534:65534 "$T/u/new" && mv "$T/u/new" "$S"
        "$B2FUSE" cat --raw "$S" 3 >"$T/u/expected"
        if [ -z "$options" ]; then
            "${as[@]}" cmp "$M/00000003.chunk" "$T/u/expected"
        else
            await "${as[@]}" cmp "$M/00000003.chunk" "$T/u/expected"
        fi
        "${as[@]}" "$B2FUSE" umount "$M"
        rm "$T/u/log"
    done
    kill $taker
}

# A mount point that is a file has one inode for ever: there, handles tell versions apart.
test_a_mount_point_that_is_a_file() {
    local options
    for options in "" "-o ro"; do
        rm -rf "$S"
        cp -r "$FX/sparse/full.b2frame" "$S"
        M=$T/point.b2frame
        : >"$M"
        # shellcheck disable=SC2086
        mount_it $options
        exec 7<"$M"
        cmp "$M" <(cat <&7)
        replace base
        await tool same "$M" "$S"
        exec 5<"$M"
        py 'import errno
try:
    os.pread(7, 100, 0)
    sys.exit("the old version is still there")
except OSError as error:
    assert error.errno == errno.ESTALE, error
os.pread(5, 100, 0)'
        view "$M" "$S"
        cmp "$M" <(cat "$M")
        exec 7<&- 5<&-
        view "$M" "$S"
        umount_it
    done
}

test_attributes_follow_and_refuse_nothing() {
    source_from full
    mount_it
    cp "$FX/new/0" "$(chunk 99)"
    cat "$M"/* >/dev/null
    chmod 600 "$S"
    ln "$S" "$T/second"
    await eval '[ "$(stat -c %a "$(chunk 3)")" = 600 ]'
    cmp "$(chunk 3)" "$FX/full/3"
    cp "$FX/new/1" "$(chunk 3)"
    sync "$M"
    holds 3="$FX/new/1"
    umount_it || true
}
