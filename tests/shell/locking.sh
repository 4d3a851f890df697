# Turns with other processes, by the lock file of SOURCE: --locking.

# excludes ONE OTHER: an exclusive lock on one of two paths keeps everybody from the other; a shared one does not keep readers.
excludes() {
    exec 8<>"$1"
    flock -x 8
    exits 1 flock -n "$2" true
    exits 1 flock -sn "$2" true
    exits 1 flock -n "$1" true
    flock -s 8
    exits 0 flock -sn "$2" true
    exits 1 flock -n "$2" true
    flock -x 8
    flock "$2" touch "$T/got" &
    flock -u 8
    wait $!
    [ -e "$T/got" ] && rm "$T/got"
    # A close gives it back as well.
    flock -x 8
    exec 8<&-
    exits 0 flock -w 10 "$2" true
}

test_a_lock_on_one_side_is_a_lock_on_the_other() {
    source_from base
    mount_it --locking
    excludes "$M/.b2lock" "$S.b2lock"
    excludes "$S.b2lock" "$M/.b2lock"
    excludes "$M/.b2lock" "$M/.b2lock"
    umount_it
    rm -rf "$S"
    sparse_from base
    mount_it -o locking
    excludes "$V.b2lock" "$S/.b2lock"
    excludes "$S/.b2lock" "$V.b2lock"
    umount_it
}

test_what_is_written_under_a_lock_is_there_for_the_next() {
    source_from full
    mount_it --locking
    local n before
    for n in 0 1 2; do
        before=$(od -An -tu8 -j8 "$S.b2lock")
        flock "$M/.b2lock" cp "$FX/new/$n" "$(chunk 3)"
        flock -s "$S.b2lock" "$PY" "$ROOT/tests/python/frametool.py" holds "$S" 3="$FX/new/$n"
        # Who looks at the count sees that something has changed.
        [ "$(od -An -tu8 -j8 "$S.b2lock")" -gt "$before" ]
    done
    umount_it
}

test_what_is_written_without_a_lock_waits_for_those_who_have_one() {
    source_from full
    mount_it --locking
    exec 8<>"$S.b2lock"
    flock -s 8
    cp "$FX/new/0" "$(chunk 3)" &
    local before
    before=$(sha256sum <"$S")
    cmp "$(chunk 4)" "$FX/full/4"
    equal "$(sha256sum <"$S")" "$before"
    flock -u 8
    wait $!
    sync "$(chunk 3)"
    holds 3="$FX/new/0"
    exec 8<&-
    umount_it
}

test_the_environment_asks_for_locking() {
    source_from base
    local value
    for value in "" 0; do
        BLOSC_LOCKING=$value mount_it
        umount_it
        [ ! -e "$S.b2lock" ]
    done
    BLOSC_LOCKING=1 mount_it
    excludes "$M/.b2lock" "$S.b2lock"
    umount_it
}

test_read_only_mounts_take_turns_too() {
    source_from base
    mount_it -o ro,locking
    errnos EROFS \
        'os.open(M + "/00000003.chunk", os.O_RDWR)' \
        'os.open(M + "/00000003.chunk", os.O_RDONLY | os.O_TRUNC)' \
        'os.open(M + "/0000000A.chunk", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/.other", os.O_WRONLY | os.O_CREAT)' \
        'os.unlink(M + "/00000003.chunk")' \
        'os.rename(M + "/00000003.chunk", M + "/00000004.chunk")' \
        'os.truncate(M + "/00000003.chunk", 10)' \
        'os.chmod(M + "/00000003.chunk", 0o600)'
    excludes "$S.b2lock" "$M/.b2lock"
    # What the library writes to SOURCE is seen by the next who locks.
    py 's, m = (blosc2.open(path, mode=mode, locking=True) for path, mode in zip(sys.argv[1:], "ar"))
for n in range(5):
    s.update_data(3, noise(n), copy=True)
    assert m.decompress_chunk(3) == noise(n)' "$S" "$M"
    umount_it
}

test_the_lock_file_stays() {
    source_from base
    mount_it --locking
    errnos EPERM 'os.unlink(M + "/.b2lock")' 'os.rename(M + "/.b2lock", M + "/.x")' \
        'os.rename(M + "/00000003.chunk", M + "/.b2lock")'
    py 's = blosc2.open(sys.argv[1], mode="a", locking=True); s.update_data(3, noise(7), copy=True)' "$M"
    local count
    count=$(od -An -tu8 -j8 "$S.b2lock")
    : >"$M/.b2lock"
    equal "$(od -An -tu8 -j8 "$S.b2lock")" "$count"
    equal "$(od -An -tu8 -j8 "$M/.b2lock")" "$count"
    umount_it
    [ -e "$S.b2lock" ]
}

test_locks_on_other_files_of_the_mount() {
    source_from base
    mount_it --locking
    excludes "$M/chunks.b2frame" "$M/chunks.b2frame"
    exec 8<>"$M/chunks.b2frame"
    flock -x 8
    exits 0 flock -n "$M/00000003.chunk" true
    exits 0 flock -n "$M/.b2lock" true
    exec 8<&-
    umount_it
}

test_an_end_with_locks_held() {
    source_from full
    mount_front --locking
    exec 8<>"$M/.b2lock"
    flock -x 8
    cp "$FX/new/0" "$(chunk 3)"
    umount -l "$M"
    kill -TERM "$PID"
    end_of_daemon
    exits 0 flock -n "$S.b2lock" true
    holds 3="$FX/new/0"
    exec 8<&-
}
