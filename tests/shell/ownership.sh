# Whose the files are that a daemon of root makes beside what belongs to others.

# may_lock FILE COMMAND...: whoever runs it can write the frame and lock it, as the library does.
may_lock() {
    "${@:2}" "$PY" -c 'import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
os.pwrite(fd, os.pread(fd, 8, 8), 8)' "$1"
}
others_can_run_python() { "${nobody[@]}" "$PY" -c "import blosc2" 2>/dev/null || skip "an ordinary user cannot run $PY"; }
# owned FILE MODE: as the frame is.
owned() { equal "$(stat -c '%u:%g %a' "$1")" "65534:65534 $2" "$1"; }

# locked_by_all LOCK: root mounts with locking, and whoever may write the frame can lock it, during the mount and afterwards.
locked_by_all() {
    local mode how
    for mode in 600 644 664 666; do
        for how in rw ro; do
            rm -f "$1"
            if [ -d "$S" ]; then chmod "$mode" "$S"/* && chmod "$(sed 's/6/7/g; s/4/5/g' <<<"$mode")" "$S"; else chmod "$mode" "$S"; fi
            "$B2FUSE" mount --locking -o "$how" "$S" "$M" </dev/null
            owned "$1" "$mode"
            may_lock "$1" "${nobody[@]}"
            "$B2FUSE" umount "$M"
            owned "$1" "$mode"
            may_lock "$1" "${nobody[@]}"
            if [ "$mode" = 664 ]; then may_lock "$1" setpriv --reuid=65533 --regid=65534 --clear-groups; fi
            if [ "$mode" = 666 ]; then may_lock "$1" "${stranger[@]}"; fi
            if [ "$mode" = 644 ]; then fails "Permission denied" may_lock "$1" "${stranger[@]}"; fi
        done
    done
    # One that is there stays as it is.
    chown root:root "$1" && chmod 644 "$1"
    "$B2FUSE" mount --locking "$S" "$M" </dev/null
    "$B2FUSE" umount "$M"
    equal "$(stat -c '%u:%g %a' "$1")" "0:0 644"
}

test_roots_lock_file_beside_a_users_file() {
    root_only
    others_can_run_python
    source_from full
    chown 65534:65534 "$S"
    chmod 777 "$T"
    umask 077
    locked_by_all "$S.b2lock"
}

test_roots_lock_file_in_a_users_directory() {
    root_only
    others_can_run_python
    sparse_from full
    chown -R 65534:65534 "$S"
    umask 077
    locked_by_all "$S/.b2lock"
}

# The library itself, of the user, with locking on a frame that root had mounted.
test_a_user_writes_with_locking_what_root_had_mounted() {
    root_only
    others_can_run_python
    local layout
    for layout in cframe sframe; do
        rm -rf "$S"
        if [ $layout = cframe ]; then source_from full; else sparse_from full; fi
        chown -R 65534:65534 "$S"
        chmod 777 "$T"
        "$B2FUSE" mount --locking "$S" "$M" </dev/null
        "$B2FUSE" umount "$M"
        BLOSC_LOCKING=1 "${nobody[@]}" "$PY" -c 'import blosc2, sys
schunk = blosc2.open(sys.argv[1], mode="a")
schunk.vlmeta["by"] = "user"' "$S"
        equal "$("$PY" -c 'import blosc2, sys
schunk = blosc2.open(sys.argv[1])
print(schunk.vlmeta["by"])' "$S")" user
    done
}
