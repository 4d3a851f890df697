# Turns with other processes, by the lock file of SOURCE: --locking.

# shellcheck source=locks.bash
. "${FILE%/*}/locks.bash"

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

# ---- Who waits for a lock

# The lock of a path, held by this shell until `let_go`.
hold() { exec 8<>"$1" && flock -x 8; }
let_go() { exec 8<&-; }
# wait_for COMMAND...: in the background, as $WAITER; returns when the daemon $PID waits for the lock that it asks for.
wait_for() {
    local before
    before=$(waiting)
    "$@" 8<&- &
    WAITER=$!
    await waits $((before + 1))
}
waiting() { cat /proc/"$PID"/task/*/comm 2>/dev/null | grep -cx b2fuse-lock || true; }
waits() { [ "$(waiting)" = "$1" ]; }
# ends EXIT-CODE: $WAITER ends now, though others have the lock.
ends() {
    local status=0
    timeout 5 tail -s 0.05 --pid="$WAITER" -f /dev/null || fail "still there: $(grep State: "/proc/$WAITER/status")" || return
    wait "$WAITER" || status=$?
    equal "$status" "$1" "exit code of who waited"
}

# interruptible LOCK HELD: of who waits for a lock while somebody has another, or the same by another name.
interruptible() {
    local signal began
    hold "$2"
    began=$SECONDS
    exits 1 flock -w 1 "$1" true 8<&-
    [ $((SECONDS - began)) -le 4 ]
    for signal in KILL TERM INT KILL HUP; do
        # In the background, a shell's commands ignore SIGINT.
        wait_for env --default-signal=INT flock "$1" true
        kill -"$signal" "$WAITER"
        ends $((128 + $(kill -l "$signal")))
    done
    await waits 0
    # None of them gets it when it is given back, which a close does soon.
    let_go
    exits 0 flock -w 10 "$1" true
    exits 0 flock -w 10 "$2" true
}

test_who_waits_for_a_lock_can_be_interrupted() {
    source_from base
    mount_front --locking
    interruptible "$M/.b2lock" "$S.b2lock"
    # Of a client of this mount, and of another file of it.
    interruptible "$M/.b2lock" "$M/.b2lock"
    interruptible "$M/chunks.b2frame" "$M/chunks.b2frame"
    umount_it
    end_of_daemon
    rm -rf "$S"
    sparse_from base
    mount_front -o ro,locking
    interruptible "$V.b2lock" "$S/.b2lock"
    umount_it
}

# A signal that does not end it, and with or without a handler of its own, leaves a client what it would have natively.
test_signals_that_who_waits_for_a_lock_does_not_die_of() {
    source_from base
    mount_front --locking
    cat >"$T/client.py" <<'EOF'
import fcntl, os, signal, sys, threading, time

path, how = sys.argv[1:]
handled = []
signal.signal(signal.SIGUSR1, lambda *_: (handled.append(1), print("handled", flush=True)))
if how == "blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
elif how == "ignored":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

def lock():
    file = os.open(path, os.O_RDWR)
    # Python asks again after EINTR, and no other errno comes.
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    os.close(file)

if how == "thread":
    thread = threading.Thread(target=lock)
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
else:
    lock()
EOF
    local how n
    for how in handler thread blocked ignored; do
        hold "$S.b2lock"
        : >"$T/said"
        wait_for "$PY" "$T/client.py" "$M/.b2lock" $how >"$T/said" 2>&1
        for n in 1 2 3; do
            kill -USR1 "$WAITER"
            if [ $how = handler ] || [ $how = thread ]; then await said handled $n; fi
            # Another round of looks.
            sleep 0.2
            kill -0 "$WAITER"
            equal "$(grep -c locked "$T/said")" 0
        done
        await waits 1
        let_go
        ends 0
        equal "$(tail -n 1 "$T/said")" locked "$(cat "$T/said")"
    done
    umount_it
}
said() { [ "$(grep -c "$1" "$T/said")" = "$2" ]; }

# A client in a PID namespace of its own is one that the daemon sees.
test_who_waits_for_a_lock_in_another_pid_namespace() {
    root_only
    unshare --pid --fork true 2>/dev/null || skip "no PID namespaces"
    source_from base
    mount_front --locking
    hold "$S.b2lock"
    wait_for unshare --pid --fork --kill-child flock -w 1 "$M/.b2lock" true
    ends 1
    let_go
    umount_it
    end_of_daemon
    # A daemon in one, with its own /proc or not, does not see who waits outside: that goes on, and nothing else is taken for it.
    local proc enter
    for proc in --mount-proc --mount; do
        unshare --pid --fork --kill-child $proc "$ROOT/tests/shell/alone" "$B2FUSE" mount -f --locking "$S" "$M" </dev/null &
        PID=$!
        await pgrep -P "$PID"
        enter=(nsenter --mount -t "$(pgrep -P "$PID")")
        await "${enter[@]}" mountpoint -q "$M"
        hold "$S.b2lock"
        "${enter[@]}" flock "$M/.b2lock" touch "$T/got" 8<&- &
        WAITER=$!
        # Some rounds of looks.
        sleep 0.5
        kill -0 "$WAITER"
        [ ! -e "$T/got" ]
        let_go
        ends 0
        rm "$T/got"
        kill -TERM "$(pgrep -P "$PID")"
        end_of_daemon
    done
}
