# The guard: a process that frees clients when the daemon has been killed.

# guard_of PID: the guard of a daemon.
guard_of() {
    local guard
    for guard in $(pgrep -x b2fuse-guard); do
        if [ "$(tr '\0' ' ' <"/proc/$guard/cmdline")" = "b2fuse-guard $1 " ]; then echo "$guard"; fi
    done
}
has_guard() { GUARD=$(guard_of "$PID") && [ -n "$GUARD" ]; }
has_left() { [ "$(ps -o sid= -p "$GUARD" | tr -d ' ')" = "$GUARD" ] && [ "$(readlink "/proc/$GUARD/cwd")" = / ] && grep -q '^SigBlk:.*[1-9a-f]' "/proc/$GUARD/status"; }
is_gone() { [ ! -d "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }
is_dead() { [[ $(stat "$M" 2>&1) == *"not connected"* ]]; }

test_it_holds_nothing_and_goes_with_the_mount() {
    root_only
    source_from full
    exec 9>"$T/lock"
    mount_front
    exec 9>&-
    await has_guard
    await has_left
    local name open=()
    for name in "/proc/$GUARD/fd/"*; do open+=("$(readlink "$name")"); done
    for name in "${open[@]}"; do
        [[ $name == /dev/fuse || $name == /dev/null || $name == socket:* || $name == *pidfd* || $name == /sys/fs/fuse/connections/*/abort ]] ||
            fail "it holds $name"
    done
    kill -TERM "$GUARD"
    kill -HUP "$GUARD"
    kill -USR2 "$GUARD"
    cat "$(chunk 0)" >/dev/null
    is_gone "$GUARD" && fail "a signal ended it"
    umount_it
    end_of_daemon
    [ ! -d "/proc/$GUARD" ] || fail "it is still there"
}

test_a_mount_that_lost_its_daemon_stays_and_fails() {
    root_only
    source_from full
    mount_front
    await has_guard
    await has_left
    kill -KILL "$PID"
    wait "$PID" 2>/dev/null || true
    await is_dead
    await is_gone "$GUARD"
    findmnt "$M" >/dev/null || fail "it was unmounted"
    umount "$M"
    mount_front
    cat "$(chunk 0)" >/dev/null
    umount_it
    end_of_daemon
}

# /proc is of another PID namespace: it knows the daemon by another number, and somebody else by this one.
test_a_foreign_proc() {
    root_only
    source_from full
    # shellcheck disable=SC2016 # for the inner shell
    unshare --pid --fork --kill-child sh -c '"$@" & wait; exec sleep 60' - "$B2FUSE" mount -f "$S" "$M" </dev/null &
    PID=$!
    await mountpoint -q "$M"
    cat "$(chunk 0)" >/dev/null
    local daemon
    daemon=$(pgrep -f "^$B2FUSE mount -f $S ")
    await eval 'GUARD=$(pgrep -x b2fuse-guard -P '"$daemon"')'
    await has_left
    kill -KILL "$daemon"
    await is_dead
    await is_gone "$GUARD"
    umount "$M"
    kill -KILL "$PID"
    wait "$PID" 2>/dev/null || true
    PID=
}
