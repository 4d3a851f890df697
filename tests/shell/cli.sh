# The command line: options, exit codes, and one line for each thing that can go wrong.

test_wrong_usage() {
    source_from full
    exits 2 "$B2FUSE"
    exits 2 "$B2FUSE" mount
    exits 2 "$B2FUSE" mount "$S"
    exits 2 "$B2FUSE" mount "$S" "$M" extra
    exits 2 "$B2FUSE" mount --no-such-option "$S" "$M"
    exits 2 "$B2FUSE" mount --cache-size much "$S" "$M"
    exits 2 "$B2FUSE" mount --threads none "$S" "$M"
    exits 2 "$B2FUSE" mount -o no_such_option "$S" "$M"
    exits 2 "$B2FUSE" umount
    exits 2 "$B2FUSE" no-such-command
    not_mounted
}

test_help_and_version() {
    exits 0 "$B2FUSE" --help
    has "$(cat "$T/.out")" umount
    exits 0 "$B2FUSE" mount --help
    has "$(cat "$T/.out")" --cache-size
    has "$(cat "$T/.out")" --create
    exits 0 "$B2FUSE" --version
    has "$(cat "$T/.out")" "b2fuse $(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n 1)"
}

# refused WORDS [COMMAND]: mounting SOURCE fails with one line that has these words, and changes nothing.
refused() {
    local before=
    if [ -f "$S" ]; then before=$(sha256sum "$S"); fi
    one_line "$S" "$1" "$B2FUSE" mount "$S" "$M"
    one_line "$S" "$1" "$B2FUSE" mount -f "$S" "$M"
    not_mounted
    if [ -n "$before" ]; then equal "$(sha256sum "$S")" "$before" "SOURCE"; fi
    if grep -qi panic "$T/.err"; then fail "a panic"; fi
    [ ! -e "$S.lost" ]
}
# patch OFFSET BYTES: changes SOURCE.
patch() { printf "$2" | dd of="$S" bs=1 seek="$1" conv=notrunc status=none; }

test_no_such_file() {
    mkdir "$M"
    refused "no such file"
}

test_not_a_frame() {
    mkdir "$M"
    echo "a text, long enough for a header, but no frame at all; a text, long enough for a header, but no frame at all" >"$S"
    refused ""
    : >"$S"
    refused ""
    head -c 100000 /dev/urandom >"$S"
    refused ""
}

test_wrong_magic() {
    source_from full
    patch 2 B2FRAME
    refused magic
}

test_a_truncated_frame() {
    source_from full
    local size cut
    size=$(stat -c %s "$S")
    for cut in 1 50 86 100 1000 $((size / 2)) $((size - 100)) $((size - 1)); do
        head -c "$cut" "$FX/full.b2frame" >"$S"
        refused ""
    done
}

# What lies behind a frame's length, as a crash may leave it, is not part of it.
test_a_file_longer_than_its_frame() {
    source_from full
    head -c 5000 /dev/urandom >>"$S"
    mount_it
    tool same "$M" "$FX/full.b2frame"
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    holds n=6 2="$FX/full/2" 3="$FX/new/0"
}

test_absurd_lengths() {
    mkdir "$M"
    local field
    # header length, frame length, nbytes, cbytes, chunk size; each enormous, and negative.
    for field in 11:4 16:8 30:8 39:8 58:4; do
        cp "$FX/full.b2frame" "$S"
        patch "${field%:*}" '\x7f\xff\xff\xff'
        if [ "${field#*:}" = 8 ]; then patch $((${field%:*} + 4)) '\xff\xff\xff\xff'; fi
        refused ""
        patch "${field%:*}" '\xff'
        refused ""
    done
    # The trailer's length.
    cp "$FX/full.b2frame" "$S"
    patch $(($(stat -c %s "$S") - 22)) '\x7f\xff\xff\xff'
    refused ""
    cp "$FX/full.b2frame" "$S"
    patch $(($(stat -c %s "$S") - 22)) '\x00\x00\x00\x00'
    refused ""
}

test_an_index_that_points_outside() {
    mkdir "$M"
    py 'path = sys.argv[1]
make(path, "rr")
frame = bytearray(open(path, "rb").read())
header = int.from_bytes(frame[11:15], "big")
at = header + int.from_bytes(frame[39:47], "big")
# Two offsets are few enough for the index to be a plain copy; check that before changing one.
assert frame[at + 2] & 2 and int.from_bytes(frame[at + 32 : at + 40], "little") == 0
frame[at + 40 : at + 48] = (1 << 40).to_bytes(8, "little")
open(path, "wb").write(frame)' "$S"
    refused ""
}

# damaged_chunk: SOURCE has a damaged chunk at 3; the mount or the read of that chunk gives an error, and nothing else changes.
damaged_chunk() {
    local before
    before=$(sha256sum "$S")
    if mount_it 2>"$T/err"; then
        fails "Input/output error" cat "$(chunk 3)"
        cmp "$(chunk 2)" "$FX/full/2"
        umount_it
    else
        equal "$(wc -l <"$T/err")" 1 "$(cat "$T/err")"
        has "$(cat "$T/err")" "$S"
    fi
    equal "$(sha256sum "$S")" "$before"
}

# nbytes or cbytes beyond all bounds, negative, or nothing. (A smaller nbytes is no lie to be found out: older libraries left
# short chunks in the middle.)
test_a_chunk_header_that_lies() {
    mkdir "$M"
    local at lie
    for at in 4 12; do
        for lie in '\xff\xff\xff\x7f' '\x00\x00\x00\x00' '\xff\xff\xff\xff'; do
            cp "$FX/full.b2frame" "$S"
            patch $(($(py 's = open(sys.argv[1], "rb").read(); print(s.index(open(sys.argv[2], "rb").read()))' "$S" "$FX/full/3") + at)) "$lie"
            damaged_chunk
        done
    done
}

test_the_mount_point() {
    source_from full
    one_line "$T/none" "no such" "$B2FUSE" mount "$S" "$T/none"
    : >"$T/file"
    one_line "$T/file" "is a file" "$B2FUSE" mount "$S" "$T/file"
    mount_it
    cp "$FX/base.b2frame" "$T/b.b2frame"
    one_line "$M" busy "$B2FUSE" mount "$T/b.b2frame" "$M"
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    not_mounted
}

# What is staged in a view, it would take for its own.
test_a_frame_in_another_mount_is_mounted_read_only() {
    source_from full
    mkdir "$T/on"
    mount_it
    local source
    ln -s "$M" "$T/link"
    for source in "$M" "$T/link" "$M/."; do
        one_line "$source" "is in the b2fuse mount" "$B2FUSE" mount "$source" "$T/on"
        has "$(cat "$T/.err")" "$M"
    done
    if mountpoint -q "$T/on"; then fail mounted; fi
    cd "$M"
    one_line . "is in the b2fuse mount" "$B2FUSE" mount . "$T/on"
    one_line .new.b2frame "is in the b2fuse mount" "$B2FUSE" mount --create .new.b2frame "$T/on"
    cd "$T"
    equal "$(ls -A "$M" | wc -l)" "$(ls -A "$FX/sparse/full.b2frame" | wc -l)"
    "$B2FUSE" mount -r "$M" "$T/on"
    cmp "$T/on/mnt.b2frame" "$S"
    "$B2FUSE" umount "$T/on"
    umount_it
    # The other way round, in a file that is a mount too.
    rm "$S"
    sparse_from full
    : >"$T/file.b2frame"
    mkdir "$T/inner"
    for M in "$M" "$T/file.b2frame"; do
        source=$M
        if [ -d "$M" ]; then source=$V; fi
        mount_it
        one_line "$source" "is in the b2fuse mount" "$B2FUSE" mount "$source" "$T/inner"
        "$B2FUSE" mount -o ro "$source" "$T/inner"
        cmp "$T/inner/00000003.chunk" "$FX/full/3"
        "$B2FUSE" umount "$T/inner"
        umount_it
    done
}

test_umount_of_what_is_not_mounted() {
    mkdir "$M"
    one_line "$M" "nothing mounted" "$B2FUSE" umount "$M"
    one_line "$T/none" "no such file" "$B2FUSE" umount "$T/none"
    root_only
    mount -t tmpfs tmpfs "$M"
    one_line "$M" tmpfs "$B2FUSE" umount "$M"
    mountpoint -q "$M"
    umount "$M"
}

test_umount_after_a_killed_daemon() {
    source_from full
    mount_front
    kill -KILL "$PID"
    wait "$PID" || PID=
    one_line "$M" died "$B2FUSE" mount "$S" "$M"
    exits 3 "$B2FUSE" umount "$M"
    has "$(cat "$T/.err")" "its daemon had died, so it cannot be told"
    not_mounted
    mount_it
    cmp "$(chunk 3)" "$FX/full/3"
}

test_no_fuse() {
    root_only
    source_from full
    unshare -m true 2>/dev/null || skip "no mount namespaces"
    exits 1 unshare -m "$ROOT/tests/shell/alone" bash -c 'mount --bind /dev/null /dev/fuse && exec "$0" mount "$1" "$2"' "$B2FUSE" "$S" "$M"
    equal "$(wc -l <"$T/.err")" 1 "$(cat "$T/.err")"
    has "$(cat "$T/.err")" fuse
    equal "$(sha256sum <"$S")" "$(sha256sum <"$FX/full.b2frame")"
}

test_mount_options() {
    source_from full
    chmod 644 "$S"
    mount_it -o rw,fsname=frame-under-test,default_permissions -o uid=1234,gid=2345,umask=027
    equal "$(findmnt -n -o SOURCE "$M")" frame-under-test
    equal "$(stat -c '%u:%g %a' "$(chunk 3)")" "1234:2345 640"
    has "$(findmnt -n -o OPTIONS "$M")" default_permissions
    umount_it
    mount_it -o ro,noatime,nosuid,nodev
    has "$(findmnt -n -o OPTIONS "$M")" ro,
    fails "Read-only file system" touch "$(chunk 3)"
    umount_it
    mount_it
    has "$(findmnt -n -o FSTYPE "$M")" fuse
    has "$(findmnt -n -o SOURCE "$M")" source.b2frame
    has ",$(findmnt -n -o OPTIONS "$M")," ,rw,
}

# Root's own mounts too: of those whom the kernel takes for root, not all may do what root may.
test_modes_hold_for_processes_of_root_with_fewer_rights() {
    root_only
    source_from full
    chmod 600 "$S"
    mount_it
    # Servers of files take on their clients' ids this way.
    errnos EACCES 'as_user(lambda: open(M + "/00000003.chunk").close())' \
        'as_user(lambda: os.open(M + "/00000003.chunk", os.O_WRONLY | os.O_TRUNC))' \
        'as_user(lambda: os.unlink(M + "/00000003.chunk"))' 'as_user(lambda: os.listdir(M))'
    errnos EPERM 'as_user(lambda: os.chmod(M, 0o777))'
    # Services that give up their capabilities.
    chmod 400 "$(chunk 3)"
    exits 0 setpriv --bounding-set=-all --inh-caps=-all cat "$(chunk 3)"
    fails "Permission denied" setpriv --bounding-set=-all --inh-caps=-all dd if="$FX/new/0" of="$(chunk 3)" conv=notrunc
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    tool holds "$S" n=6 3="$FX/new/0"
}

# Of a mount whose one user does without.
test_a_mount_where_modes_are_not_looked_at() {
    source_from full
    chmod 644 "$S"
    mount_it -o nodefault_permissions
    equal "$(findmnt -n -o OPTIONS "$M" | grep -c default_permissions)" 0
    cd "$M"
    [ -r 00000003.chunk ]
    [ -w 00000003.chunk ]
    [ ! -x 00000003.chunk ]
    [ -x . ]
    fails "Permission denied" ./00000003.chunk
    chmod 400 00000003.chunk
    cp "$FX/new/0" 00000003.chunk
    cd "$T"
    umount_it
    tool holds "$S" n=6 3="$FX/new/0"
    mount_it -o nodefault_permissions,umask=022
    [ ! -x "$(chunk 3)" ]
    [ -x "$M" ]
    umount_it
    for word in rw default_permissions nodefault_permissions,default_permissions; do
        mount_it -o "$word"
        has "$(findmnt -n -o OPTIONS "$M")" default_permissions
        umount_it
    done
    for word in allow_other allow_root; do
        exits 2 "$B2FUSE" mount -o "nodefault_permissions,$word" "$S" "$M"
        exits 2 "$B2FUSE" mount -o "$word" -o nodefault_permissions "$S" "$M"
        has "$(cat "$T/.err")" "$word"
        not_mounted
    done
}
test_a_mount_of_an_ordinary_user_where_modes_are_not_looked_at() { as_a_user modes_of_a_user; }
modes_of_a_user() {
    source_from full
    [ "$(id -u)" != 0 ] || chown 65534:65534 "$T" "$S" "$M"
    "${as[@]}" "$B2FUSE" mount "$S" "$M" </dev/null
    has "$(findmnt -n -o OPTIONS "$M")" default_permissions
    "${as[@]}" "$B2FUSE" umount "$M"
    "${as[@]}" "$B2FUSE" mount -o nodefault_permissions "$S" "$M" </dev/null
    equal "$(findmnt -n -o OPTIONS "$M" | grep -c default_permissions)" 0
    "${as[@]}" cmp "$(chunk 3)" "$FX/full/3"
    "${as[@]}" "$B2FUSE" umount "$M"
}

# Whoever runs it would read and write with its owner's rights whatever a command can name.
test_a_program_file_that_gives_rights_is_refused() {
    root_only
    local program=$T/u/b2fuse command
    mkdir -m 755 "$T/u" "$T/u/m"
    cp "$FX/full.b2frame" "$T/u/f.b2frame"
    chown 65534:65534 "$T/u/f.b2frame" "$T/u/m"
    # refused_to_all: to an ordinary user, whatever the command.
    refused_to_all() {
        for command in "" --help --version nonsense "mount $T/u/f.b2frame $T/u/m" "umount $T/u/m" "info $T/u/f.b2frame" \
            "cat $T/u/f.b2frame 0" "convert $T/u/f.b2frame $T/u/new" "completions bash"; do
            # shellcheck disable=SC2086 # words
            one_line b2fuse: "set-user-ID" "${nobody[@]}" "$program" $command
            [ ! -s "$T/.out" ]
        done
        if mountpoint -q "$T/u/m"; then fail "mounted"; fi
    }
    install -m 4755 "$B2FUSE" "$program"
    if [ "$("${nobody[@]}" findmnt -n -o OPTIONS -T "$program" | grep -cw nosuid)" != 0 ]; then skip "a file system with nosuid"; fi
    refused_to_all
    # To root it gives nothing.
    exits 0 "$program" --version
    install -m 2755 "$B2FUSE" "$program"
    refused_to_all
    install -m 755 "$B2FUSE" "$program"
    exits 0 "${nobody[@]}" "$program" --version
    command -v setcap >/dev/null || return 0
    setcap cap_dac_read_search+ep "$program"
    refused_to_all
}

# A setting of the whole machine, which a daemon that is stopped would keep.
test_cores_are_kept_awake_on_request_only() {
    root_only
    local device=/dev/cpu_dma_latency driver=/sys/devices/system/cpu/cpuidle/current_driver
    [ -w $device ] && [ "$(nproc --all)" -le 8 ] && grep -qx haltpoll $driver || skip "not in such a machine"
    source_from full
    mount_front
    ls "$M" >/dev/null # What has been answered has begun.
    equal "$(readlink /proc/"$PID"/fd/* | grep -c $device)" 0 "by default"
    umount_it
    end_of_daemon
    mount_front -o low_latency
    ls "$M" >/dev/null
    has "$(readlink /proc/"$PID"/fd/*)" $device
}

# As fstab does it.
test_mount_8() {
    root_only
    command -v mount.fuse3 >/dev/null || skip "no mount.fuse3"
    source_from full
    mount -t fuse -o ro,allow_other "$B2FUSE#$S" "$M"
    cmp "$(chunk 3)" "$FX/full/3"
    fails "Read-only file system" touch "$(chunk 3)"
    umount "$M"
}

test_allow_other() {
    root_only
    source_from full
    mount_it
    fails "Permission denied" setpriv --reuid=65534 --regid=65534 --clear-groups cat "$(chunk 3)"
    umount_it
    mount_it -o allow_other
    chmod 755 "$T"
    setpriv --reuid=65534 --regid=65534 --clear-groups cmp "$(chunk 3)" "$FX/full/3"
    umount_it
}

# shows_nobody_else_anything OWNER...: mounts with allow_root, of which OWNER... and root see everything, and others nothing, though the
# kernel has all in its caches.
shows_nobody_else_anything() {
    local layout how what name other
    for layout in cframe sframe; do
        rm -rf "$S"
        if [ $layout = cframe ]; then source_from full; else sparse_from full; fi
        chmod -R a+rX "$S"
        touch -d 2001-02-03 "$S"
        [ $# = 0 ] || chown -R 65534:65534 "$T" "$S" "$M"
        for how in ro rw ro,umask=0,gid=65533 rw,umask=000,gid=65533; do
            "$@" "$B2FUSE" mount -o "allow_root,$how" "$S" "$M" </dev/null
            # Into the caches, by both who may.
            for other in owner root; do
                if [ $other = owner ]; then what=("$@"); else what=(); fi
                "${what[@]}" ls -la "$M" >"$T/listed"
                "${what[@]}" find "$M" -type f -exec cat {} + >"$T/read"
                [ -s "$T/read" ]
            done
            if [ $layout = cframe ]; then name=00000003.chunk; else name=source.b2frame; fi
            has "$(cat "$T/listed")" $name
            for other in "${stranger[*]}" "${stranger[*]} unshare -r"; do
                if ! $other true 2>/dev/null; then continue; fi
                fails "Permission denied" $other ls "$M"
                fails "Permission denied" $other ls "$M/"
                fails "Permission denied" $other cat "$M/$name"
                fails "Permission denied" $other stat "$M/$name"
                fails "Permission denied" $other stat --cached=always "$M/$name"
                fails "" $other env -C "$M" true
                fails "Permission denied" $other stat -f "$M"
                fails "Permission denied" $other touch "$M/.new"
                fails "Permission denied" $other getfattr -d "$M"
                # The mount's root itself.
                exits 0 $other stat --cached=always -c '%a %s %b %x %y %z' "$M"
                has "$(cat "$T/.out")" "700 0 0 "
                equal "$(grep -c 2001-02-03 "$T/.out")" 0 "$layout $how: $(cat "$T/.out")"
            done
            "$@" "$B2FUSE" umount "$M"
        done
    done
    # A file has attributes for everybody.
    : >"$T/file"
    [ $# = 0 ] || chown 65534 "$T/file"
    one_line "$T/file" "allow_root" "$@" "$B2FUSE" mount -o allow_root "$S" "$T/file"
    exits 2 "$@" "$B2FUSE" mount -o allow_root,uid=65533 "$S" "$M"
    exits 2 "$@" "$B2FUSE" mount -o uid=65533 -o allow_root "$S" "$M"
    not_mounted
}
test_allow_root_shows_nobody_else_anything() {
    root_only
    shows_nobody_else_anything
}
test_allow_root_of_an_ordinary_user_shows_nobody_else_anything() { as_a_user_who_may_let_others_in allow_root_of_a_user; }
allow_root_of_a_user() { shows_nobody_else_anything "${nobody[@]}"; }

# What takes the mount away must see that its daemon is gone.
test_allow_root_with_auto_unmount() { as_a_user_who_may_let_others_in auto_unmount_of_a_user; }
auto_unmount_of_a_user() {
    source_from full
    chown -R 65534:65534 "$T"
    "${nobody[@]}" "$B2FUSE" mount -f -o allow_root,auto_unmount "$S" "$M" </dev/null &
    PID=$!
    await mountpoint -q "$M"
    cmp "$(chunk 3)" "$FX/full/3"
    kill -KILL "$PID"
    wait "$PID" || PID=
    await not_mounted
}

# What is set shows no more.
test_allow_root_is_not_opened_by_modes_that_are_set() {
    root_only
    source_from full
    mount_it -o allow_root
    chmod 777 "$M"
    chmod 666 "$(chunk 3)"
    chown 65533:65533 "$M" "$(chunk 3)"
    equal "$(stat -c '%a %u' "$M" "$(chunk 3)")" "$(printf '700 0\n600 0')"
    fails "Permission denied" "${stranger[@]}" cat "$(chunk 3)"
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    holds 3="$FX/new/0"
}

test_a_log_file() {
    source_from full
    mount_it --log-file "$T/log"
    cat "$M"/* >/dev/null
    umount_it
    [ -s "$T/log" ]
    has "$(cat "$T/log")" source.b2frame
}

test_names_with_spaces_and_relative_paths() {
    source_from full
    mkdir "$T/a dir"
    cp "$S" "$T/a dir/the, frame.b2frame"
    mkdir "$T/a dir/the mount"
    cd "$T/a dir"
    "$B2FUSE" mount "the, frame.b2frame" "the mount"
    cmp "the mount/00000003.chunk" "$FX/full/3"
    cp "$FX/new/0" "the mount/00000003.chunk"
    "$B2FUSE" umount "./the mount/"
    cd "$T"
    tool holds "$T/a dir/the, frame.b2frame" n=6 3="$FX/new/0"
}

test_a_small_cache_and_threads() {
    source_from many
    mount_it --cache-size 64K --threads 1
    tool same "$M" "$S"
    umount_it
    mount_it --cache-size 0 --threads 4
    tool same "$M" "$S"
    umount_it
}

# ---- One failure, one line

# Overlayfs renames no directory of its lower layer (EXDEV).
test_compact_says_one_line_on_overlayfs() {
    root_only
    mkdir "$T/lower" "$T/upper" "$T/work" "$M"
    cp -r "$FX/sparse/full.b2frame" "$T/lower/f.b2frame"
    py 'schunk = blosc2.open(sys.argv[1], mode="a"); schunk.reorder_offsets(np.arange(schunk.nchunks)[::-1])' "$T/lower/f.b2frame"
    mount -t overlay overlay -o "lowerdir=$T/lower,upperdir=$T/upper,workdir=$T/work" "$M" || skip "no overlayfs here"
    local before
    before=$(find "$M/f.b2frame" -type f -exec sha256sum {} + | sort)
    one_line "$M/f.b2frame" "cross-device" "$B2FUSE" compact "$M/f.b2frame"
    equal "$(find "$M/f.b2frame" -type f -exec sha256sum {} + | sort)" "$before"
    equal "$(ls -A "$M")" f.b2frame
    umount "$M"
}
