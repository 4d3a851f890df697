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
