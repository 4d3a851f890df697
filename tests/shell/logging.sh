# Where messages go: a log that nobody reads holds nobody up, and a log file is what its name stands for.

# stalled COMMAND...: its stderr is a pipe that is full, and that nobody reads until `go_on`.
stalled() {
    mkfifo "$T/pipe"
    exec 8<>"$T/pipe"
    py 'import os
os.set_blocking(8, False)
try:
    while True: os.write(8, b"." * 4096)
except BlockingIOError:
    os.set_blocking(8, True)'
    "$@" 2>&8 </dev/null &
    PID=$!
}
# What the pipe has now, from the first message on.
go_on() { timeout 1 cat <&8 | tr -d .; }

test_stderr_that_nobody_reads() {
    source_from full
    stalled "$B2FUSE" mount -f -vv "$S" "$M"
    await mountpoint -q "$M"
    # Each is refused with a line in the log.
    local n
    for ((n = 0; n < 300; n++)); do
        timeout 20 "$B2FUSE" --version >"$(chunk 1)" 2>/dev/null && fail "taken for a chunk"
    done
    timeout 20 cmp "$(chunk 3)" "$FX/full/3"
    timeout 20 "$B2FUSE" umount "$M"
    end_of_daemon
    not_mounted
}

test_a_failure_on_stderr_that_nobody_reads() {
    source_from full
    stalled "$B2FUSE" mount -f "$S" "$M"
    await mountpoint -q "$M"
    cp "$FX/new/0" "$(chunk 3)"
    exec 7>>"$S" # another process
    echo more >&7
    cp "$FX/new/1" "$(chunk 3)" || true
    timeout 20 "$B2FUSE" umount "$M" || true
    await not_mounted
    await eval '! kill -0 $PID'
    exec 7>&-
}

test_what_was_dropped_is_counted() {
    source_from full
    stalled "$B2FUSE" mount -f -vv "$S" "$M"
    await mountpoint -q "$M"
    local n
    for ((n = 0; n < 300; n++)); do stat "$M/.$n" >/dev/null 2>&1 || true; done
    has "$(go_on)" "messages before this one were dropped, as nobody read the log"
    umount_it
    end_of_daemon
}

# With a system log of the test's own, which nobody reads.
in_a_system() {
    source_from full
    mknod -m 666 "$T/fuse" c 10 229
    mkdir "$T/dev"
    cp -a /dev/null /dev/urandom "$T/dev/"
    mv "$T/fuse" "$T/dev/fuse"
    ln -s /proc/self/fd "$T/dev/fd"
    "$PY" -c 'import socket, sys, time
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind(sys.argv[1])
while True: time.sleep(1)' "$T/dev/log" &
    local log=$!
    await test -S "$T/dev/log"
    local got=0
    # shellcheck disable=SC2016 # for the inner shell
    unshare -m "$ROOT/tests/shell/alone" bash -c 'set -e
mount --rbind "$1/dev" /dev
"$2" mount --log-level debug "$1/source.b2frame" "$1/mnt"
for ((n = 0; n < 2000; n++)); do timeout 10 stat "$1/mnt/.$n" >/dev/null 2>&1 || [ $? = 1 ] || { echo hangs; exit 9; }; done
timeout 20 cmp "$1/mnt/00000003.chunk" "$3/full/3"
timeout 20 "$2" umount "$1/mnt"' - "$T" "$B2FUSE" "$FX" || got=$?
    kill "$log"
    equal "$got" 0
}
test_a_system_log_that_nobody_reads() {
    root_only
    in_a_system
}

# ---- Log files

# not_a_log WORDS FILE: no mount begins with it, and nothing hangs.
not_a_log() {
    one_line "$2" "$1" timeout 10 "$B2FUSE" mount --log-file "$2" "$S" "$M"
    one_line "$2" "$1" timeout 10 "$B2FUSE" mount -f --log-file "$2" "$S" "$M"
    not_mounted
}

test_a_log_file_that_is_a_pipe() {
    source_from full
    mkfifo "$T/fifo"
    not_a_log "neither a regular file nor a character device" "$T/fifo"
    # Nor with somebody at its other end.
    exec 7<>"$T/fifo"
    not_a_log "neither a regular file nor a character device" "$T/fifo"
    exec 7>&-
}

test_links_to_a_log_file() {
    root_only
    source_from full
    mkdir "$T/own" "$T/theirs" "$T/all"
    echo precious >"$T/own/precious"
    local dir
    for dir in own theirs all; do
        ln -s "$T/own/precious" "$T/$dir/link"
        ln -s "$T/own/new" "$T/$dir/dangling"
    done
    ln "$T/own/precious" "$T/theirs/hard"
    chown 65534 "$T/theirs"
    chmod 1777 "$T/all"
    not_a_log "a link in a directory that others may write to" "$T/theirs/link"
    not_a_log "a link in a directory that others may write to" "$T/theirs/dangling"
    not_a_log "a link in a directory that others may write to" "$T/all/link"
    not_a_log "several names" "$T/theirs/hard"
    equal "$(cat "$T/own/precious")" precious
    [ ! -e "$T/own/new" ]
    # A link that only root can have made is one that root wants followed.
    mount_it --log-file "$T/own/dangling"
    umount_it
    has "$(cat "$T/own/new")" "mounted on"
    mount_it --log-file "$T/all/new"
    umount_it
    has "$(cat "$T/all/new")" "mounted on"
}

test_standard_files_and_devices_as_log_files() {
    source_from full
    local file
    for file in /dev/stdout /dev/fd/1 /proc/self/fd/1; do
        "$B2FUSE" mount --log-file "$file" "$S" "$M" </dev/null | cat >"$T/out" &
        PID=$!
        await mountpoint -q "$M"
        umount_it
        wait "$PID"
        PID=
        has "$(cat "$T/out")" "mounted on"
    done
    mount_it --log-file /dev/stderr 2>"$T/err"
    umount_it
    has "$(cat "$T/err")" "mounted on"
    mount_it --log-file /dev/null
    umount_it
}

# As logrotate does it.
test_sighup_opens_the_log_file_again() {
    source_from full
    cd "$T"
    "$B2FUSE" mount -f --log-file mount.log "$S" "$M" </dev/null &
    PID=$!
    await mountpoint -q "$M"
    has "$(cat mount.log)" "mounted on"
    mv mount.log mount.log.1
    local size
    size=$(stat -c %s mount.log.1)
    kill -HUP $PID
    await test -e mount.log
    echo "no chunk" >"$(chunk 3)" || true
    await grep -q "00000003.chunk" mount.log
    equal "$(stat -c %s mount.log.1)" "$size"
    # Where there can be none, the old one is good enough.
    mv mount.log mount.log.2
    mkdir mount.log
    kill -HUP $PID
    await grep -q "cannot open the log file again: Is a directory" mount.log.2
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    end_of_daemon
    has "$(cat mount.log.2)" unmounted
    holds 3="$FX/new/0"
}

# From the background it is found as well, by a name that was relative.
test_sighup_in_the_background() {
    source_from full
    cd "$T"
    mount_it --log-file mount.log
    local daemon
    daemon=$(pgrep -f "^$B2FUSE mount --log-file mount.log $S ")
    rm mount.log
    kill -HUP "$daemon"
    await test -e mount.log
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    has "$(cat mount.log)" unmounted
}

test_sighup_without_a_log_file() {
    source_from full
    "$B2FUSE" mount -f "$S" "$M" </dev/null 2>"$T/err" &
    PID=$!
    await mountpoint -q "$M"
    kill -HUP $PID
    kill -USR1 $PID
    await grep -q "reads answered" "$T/err"
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    end_of_daemon
    # A standard file of a daemon is not opened again: it has none any more.
    "$B2FUSE" mount --log-file /dev/stdout "$S" "$M" >"$T/out" </dev/null
    kill -HUP "$(pgrep -f "^$B2FUSE mount --log-file /dev/stdout $S ")"
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    has "$(cat "$T/out")" unmounted
}

# How often the kernel asked is of interest to those who look for it.
test_statistics_at_unmount_are_for_debugging() {
    local layout
    for layout in cframe sframe; do
        rm -rf "$S" "$T/log"
        if [ $layout = cframe ]; then source_from full; else sparse_from full; fi
        mount_it --log-file "$T/log"
        umount_it
        equal "$(grep -cE "mounted on|unmounted" "$T/log")" "$(wc -l <"$T/log")" "$(cat "$T/log")"
        mount_it --log-file "$T/log" --log-level debug
        umount_it
        has "$(cat "$T/log")" "reads answered"
        has "$(cat "$T/log")" "hits"
    done
}

# on_a_terminal COMMAND...: which closes a second after the frame is mounted.
on_a_terminal() {
    "$PY" -c 'import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
while not os.path.ismount(sys.argv[1]):
    time.sleep(0.02)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))' "$M" "$@"
}
# Of a mount in front, whose messages nobody sees any more.
test_a_terminal_that_closes() {
    source_from full
    exits 0 on_a_terminal "$B2FUSE" mount -f "$S" "$M"
    equal "$(cat "$T/.out")" 0
    not_mounted
}
test_a_terminal_that_closes_behind_nohup() {
    source_from full
    cd "$T" # for nohup.out
    on_a_terminal "$(command -v nohup)" "$B2FUSE" mount -f "$S" "$M" >"$T/out" 2>"$T/err" </dev/null &
    await mountpoint -q "$M"
    local daemon
    daemon=$(pgrep -f "^$B2FUSE mount -f $S ")
    await eval "! ls -l /proc/$daemon/fd | grep -q /dev/pts/.*[0-9]\$"
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    await grep -qx 0 "$T/out"
}

# ---- Without a log of the system

# without_a_system_log FUNCTION: in a mount namespace that has no /dev/log, and an empty /run.
without_a_system_log() {
    root_only
    unshare -m true 2>/dev/null || skip "no mount namespaces"
    unset TOOLS
    trap - EXIT ERR
    export T
    mkdir "$T/dev"
    cp -a /dev/null /dev/zero /dev/urandom "$T/dev/"
    mknod -m 666 "$T/dev/fuse" c 10 229
    ln -s /proc/self/fd "$T/dev/fd"
    # shellcheck disable=SC2016 # for the inner shell
    exec unshare -m "$ROOT/tests/shell/alone" bash -c 'mount --rbind "$T/dev" /dev && mount -t tmpfs tmpfs /run && exec bash "$@"' - \
        "$ROOT/tests/shell/harness.sh" "$FILE" "$1"
}

test_a_log_of_its_own() { without_a_system_log own_log; }
own_log() {
    source_from full
    local log
    log=/run/b2fuse/$(tr / - <<<"${M#/}").log
    mount_it >"$T/out" 2>&1
    equal "$(cat "$T/out")" ""
    has "$(cat "$log")" "mounted on"
    equal "$(stat -c '%a %U' "$log" /run/b2fuse)" "$(printf '600 root\n700 root')"
    umount_it
    # There was nothing to tell.
    [ ! -e "$log" ]
    mount_it
    echo "no chunk" >"$(chunk 3)" || true
    umount_it
    has "$(cat "$log")" "refused"
    # The next goes on in it, and leaves it.
    mount_it
    umount_it
    has "$(cat "$log")" "refused"
    equal "$(grep -c "mounted on" "$log")" 2
}

# Those of daemons that were killed.
test_old_logs_are_removed() { without_a_system_log old_logs; }
old_logs() {
    source_from full
    cp "$S" "$T/second.b2frame"
    mkdir "$T/second"
    "$B2FUSE" mount "$T/second.b2frame" "$T/second" </dev/null
    local living n
    living=/run/b2fuse/$(tr / - <<<"${T#/}/second").log
    touch -d "90 days ago" "$living"
    for ((n = 0; n < 20; n++)); do touch -d "$((n + 2)) days ago" "/run/b2fuse/old$n.log"; done
    touch -d "20 hours ago" /run/b2fuse/young.log
    mount_it
    [ -s "$living" ] || fail "the log of a living daemon was removed"
    # The last sixteen, of which the young one is the first.
    equal "$(cd /run/b2fuse && echo old*.log | tr ' ' '\n' | sort -V | tail -n 1)" old14.log
    equal "$(cd /run/b2fuse && echo old*.log | wc -w)" 15
    [ -e /run/b2fuse/young.log ]
    umount_it
    "$B2FUSE" umount "$T/second"
}

test_its_own_log_is_named() { without_a_system_log named_log; }
named_log() {
    source_from full
    local log
    log=/run/b2fuse/$(tr / - <<<"${M#/}").log
    mount_it
    kill -KILL "$(pgrep -f "^$B2FUSE mount $S ")"
    exits 3 umount_it
    has "$(cat "$T/.err")" "see the daemon's log, $log"
    # What does not reach SOURCE.
    mount_it
    cp "$FX/new/0" "$M/00000077.chunk"
    one_line "$M" "$log" umount_it
    has "$(cat "$log")" 00000077.chunk
}

test_its_own_log_is_never_behind_a_link() { without_a_system_log no_link; }
no_link() {
    source_from full
    echo precious >"$T/precious"
    local log
    log=/run/b2fuse/$(tr / - <<<"${M#/}").log
    mkdir /run/b2fuse
    ln -s "$T/precious" "$log"
    mount_it
    umount_it
    rm -r /run/b2fuse
    mkdir "$T/there"
    ln -s "$T/there" /run/b2fuse
    mount_it
    umount_it
    rm /run/b2fuse
    mkdir -m 777 /run/b2fuse
    chown 65534 /run/b2fuse
    mount_it
    umount_it
    equal "$(cat "$T/precious")" precious
    equal "$(ls -A /run/b2fuse "$T/there")" "$(printf '/run/b2fuse:\n\n%s:' "$T/there")"
}

# For an ordinary user, in $XDG_RUNTIME_DIR. Root, who unmounts it, is told as well.
test_a_users_own_log() { without_a_system_log users_log; }
users_log() {
    source_from full
    local log
    mkdir -p /run/user/65534
    chown -R 65534:65534 "$T" /run/user/65534
    log=b2fuse/$(tr / - <<<"${M#/}").log
    mkdir "$T/elsewhere"
    chown 65534 "$T/elsewhere"
    XDG_RUNTIME_DIR=$T/elsewhere "${nobody[@]}" "$B2FUSE" mount "$S" "$M" </dev/null
    has "$(cat "$T/elsewhere/$log")" "mounted on"
    equal "$(stat -c '%a %u' "$T/elsewhere/$log")" "600 65534"
    "${nobody[@]}" "$B2FUSE" umount "$M"
    env -u XDG_RUNTIME_DIR "${nobody[@]}" "$B2FUSE" mount "$S" "$M" </dev/null
    kill -KILL "$(pgrep -f "^$B2FUSE mount $S ")"
    exits 3 umount_it
    has "$(cat "$T/.err")" "see the daemon's log, /run/user/65534/$log"
}

# Until the daemon has left it, stderr is where messages go.
test_messages_go_to_stderr_at_first() { without_a_system_log stderr_first; }
stderr_first() {
    sparse_from full
    : >"$T/file"
    "$B2FUSE" mount --locking -o ro "$S" "$T/file" >"$T/out" 2>"$T/err" </dev/null
    "$B2FUSE" umount "$T/file"
    has "$(cat "$T/err")" "the lock file lies outside of the mount"
    equal "$(wc -l <"$T/err")" 1
    # What went wrong is said once.
    source_from_nothing
    one_line "$S" "" mount_it
}
source_from_nothing() {
    rm -rf "$S"
    head -c 5000 "$FX/full.b2frame" >"$S"
}

test_its_own_log_is_bounded() { without_a_system_log bounded_log; }
bounded_log() {
    source_from full
    local log
    log=/run/b2fuse/$(tr / - <<<"${M#/}").log
    mkdir -m 700 /run/b2fuse
    head -c 1048000 /dev/zero | tr '\0' . >"$log"
    mount_it --log-level trace
    ls -l "$M" >/dev/null
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    [ "$(stat -c %s "$log")" -lt 1048576 ]
    has "$(cat "$log")" unmounted
}
