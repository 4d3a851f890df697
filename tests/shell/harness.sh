# The frame of one shell test: `harness.sh FILE FUNCTION` in the empty directory $T, for tests/shell/run.
# A test is a function that ends well or stops at its first failing command, which is then printed.
# What a test has at hand is below; $FX holds the frames and chunks that frametool.py makes.

set -Eeuo pipefail
export LC_ALL=C
S=$T/source.b2frame
M=$T/mnt
PID=

FILE=$1
trap where ERR
trap finish EXIT

# Where a test stopped: the lines of its own file, innermost first.
where() {
    local command=$BASH_COMMAND n
    for ((n = 1; n < ${#BASH_SOURCE[@]}; n++)); do
        if [ "${BASH_SOURCE[n]}" != "${BASH_SOURCE[-1]}" ]; then
            echo "${BASH_SOURCE[n]##*/}:${BASH_LINENO[n - 1]}: $(sed -n "${BASH_LINENO[n - 1]}{s/^ *//;p}" "${BASH_SOURCE[n]}")"
        fi
    done >&2
    [ "${#BASH_SOURCE[@]}" -gt 2 ] || echo "failed: $command" >&2
}

finish() {
    if [ -s "$T/log" ]; then sed 's/^/log: /' "$T/log"; fi
    if [ -n "$PID" ]; then kill -KILL "$PID" 2>/dev/null || true; fi
    while mountpoint -q "$M"; do umount -l "$M" 2>/dev/null || fusermount3 -uz "$M" || break; done
}

skip() { echo "$*"; exit 77; }
fail() { echo "$*" >&2; return 1; }

# ---- Frames

# source_from NAME: a copy of a fixture as SOURCE.
source_from() { cp "$FX/$1.b2frame" "$S" && mkdir -p "$M"; }
# sparse_from NAME: the same as a sparse frame, which the mount shows as the file $V.
sparse_from() { cp -r "$FX/sparse/$1.b2frame" "$S" && mkdir -p "$M" && V=$M/source.b2frame; }
# prints [FIND ARGUMENTS]: what the files of a sparse SOURCE are: name, inode, length, time of change. What differs was written.
prints() { find "$S" "$@" -printf '/%P %i %s %T@\n' | sort; }
chunk_prints() { prints -name '*.chunk'; }
# kept PRINTS: how many of these are still as they were.
kept() { comm -12 <(echo "$1") <(prints) | wc -l; }
# tool COMMAND...: see frametool.py, of which one that has loaded the library already waits for such requests.
tool() {
    local ask=$T/.ask.$BASHPID answer status
    if [ -z "${TOOLS:-}" ]; then
        "$PY" "$ROOT/tests/python/frametool.py" "$@"
        return
    fi
    kill -0 "$TOOLS_PID" 2>/dev/null || fail "frametool.py has ended" || return
    printf '%s\0' "$BASHPID" "$ask.answer" "$PWD" "$@" >"$ask"
    mkfifo "$ask.answer"
    exec {answer}<>"$ask.answer"
    # In a shell of its own and by a number of its own: the standard files of this one are taken over meanwhile.
    (echo "$ask" >"$TOOLS")
    read -r -u "$answer" status
    exec {answer}>&-
    rm "$ask" "$ask.answer"
    return "$status"
}
py() { tool run "$@"; }
# twins ONE OTHER, view FILE SOURCE: see frametool.py.
twins() { tool twins "$@" >/dev/null; }
view() { tool view "$@" >/dev/null; }
# holds 3=FILE 2=zeros n=10: what SOURCE holds, by the library.
holds() { tool holds "$S" "$@"; }
chunk() { printf '%s/%08X.chunk' "$M" "$1"; }

# ---- Mounts

mount_it() { "$B2FUSE" mount "$@" "$S" "$M" </dev/null; }
# mount_front: in front, as a child whose id is $PID, with a log in $T/log.
mount_front() {
    "$B2FUSE" mount -f --log-file "$T/log" "$@" "$S" "$M" </dev/null &
    PID=$!
    await mountpoint -q "$M"
}
umount_it() { "$B2FUSE" umount "$M"; }
not_mounted() { if mountpoint -q "$M"; then fail "$M is still mounted"; fi; }
# end_of_daemon: waits for $PID and answers its exit code.
end_of_daemon() {
    local pid=$PID
    PID=
    wait "$pid"
}
# crash: the daemon is killed and its mount taken away.
crash() {
    kill -KILL "$PID"
    wait "$PID" 2>/dev/null || true
    PID=
    umount -l "$M"
}

# begin_writing FILE BYTES: a process writes the bytes into the file of the mount, and keeps it open until `end_writing`.
begin_writing() {
    mkfifo "$T/begun" "$T/end"
    "$PY" -c 'import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
os.pwrite(fd, open(sys.argv[2], "rb").read()[:int(sys.argv[3])], 0)
open(sys.argv[4], "w").close()
open(sys.argv[5]).read()' "$1" "$2" "${3:-1000000000}" "$T/begun" "$T/end" &
    cat "$T/begun"
}
end_writing() {
    : >"$T/end"
    wait $! || true
}

# await COMMAND...: until it succeeds, at most 20 seconds.
await() {
    local end=$((SECONDS + 20))
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $end ]; then fail "waited in vain for: $*: $("$@" 2>&1)" || return; fi
        sleep 0.02
    done
}

# ---- A directory mounted whole

D=$T/dir
# tree [OPTION ...]: the directory $D, mounted in front.
tree() {
    mkdir -p "$D" "$M"
    tree_front "$@"
}
tree_front() {
    "$B2FUSE" mount -f --log-file "$T/log" "$@" "$D" "$M" </dev/null &
    PID=$!
    await mountpoint -q "$M"
}
# down: unmounted, and the daemon's exit code.
down() {
    umount_it
    end_of_daemon
}

# ---- Expectations

equal() { [ "$1" = "$2" ] || fail "got '$1', expected '$2'${3:+ ($3)}"; }
has() { [[ $1 == *"$2"* ]] || fail "no '$2' in '$1'"; }
# exits CODE COMMAND...
exits() {
    local want=$1 got=0
    shift
    "$@" >"$T/.out" 2>"$T/.err" </dev/null || got=$?
    equal "$got" "$want" "exit code of: $*: $(cat "$T/.out" "$T/.err")"
}
# fails WORDS COMMAND...: it fails and says these words (an errno as strerror has it).
fails() {
    local words=$1 got=0
    shift
    "$@" >"$T/.out" 2>"$T/.err" </dev/null || got=$?
    [ "$got" != 0 ] || fail "succeeded: $*"
    has "$(cat "$T/.err")" "$words"
}
# one_line PATH WORDS COMMAND...: exit code 1, and one line on stderr that begins with the path and has the words.
one_line() {
    local path=$1 words=$2
    shift 2
    exits 1 "$@"
    equal "$(wc -l <"$T/.err")" 1 "lines on stderr: $(cat "$T/.err")"
    local line
    line=$(cat "$T/.err")
    [[ $line == "$path"* ]] || fail "does not begin with $path: $line"
    has "${line,,}" "${words,,}"
}
# errnos ERRNO 'python expression' ...: each raises OSError of that errno; M is the mount point, as_user(work) works as a process of
# root that has taken on the ids of an ordinary user for files.
errnos() {
    py 'import ctypes, errno
M, want = sys.argv[1:3]
def as_user(work):
    libc = ctypes.CDLL(None)
    libc.setfsgid(65534), libc.setfsuid(65534)
    try:
        return work()
    finally:
        libc.setfsuid(0), libc.setfsgid(0)
wrong = []
for code in sys.argv[3:]:
    try:
        eval(code)
        wrong.append(f"{code}: succeeded")
    except OSError as error:
        if errno.errorcode[error.errno] != want:
            wrong.append(f"{code}: {errno.errorcode[error.errno]}")
if wrong:
    sys.exit(f"expected {want}:\n" + "\n".join(wrong))' "$M" "$@"
}

# ---- Users

nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
# Another ordinary user.
stranger=(setpriv --reuid=65533 --regid=65533 --clear-groups)
# What stands before a command of an ordinary user.
as=()
if [ "$(id -u)" = 0 ]; then as=("${nobody[@]}"); fi
# as_a_user FUNCTION: with the daemon and /dev/fuse where an ordinary user may use them.
as_a_user() {
    if [ "$(id -u)" = 0 ]; then
        "${nobody[@]}" test -x "$B2FUSE" || skip "an ordinary user cannot run $B2FUSE"
        if ! "${nobody[@]}" test -w /dev/fuse; then
            # A machine whose /dev/fuse is root's alone. Others give it to all, as a mount namespace can have it here.
            mknod -m 666 "$T/fuse" c 10 229
            trap - EXIT ERR
            export T
            # What answers it does not see these mounts.
            unset TOOLS
            # shellcheck disable=SC2016 # for the inner shell
            exec unshare -m "$ROOT/tests/shell/alone" bash -c 'mount --bind "$T/fuse" /dev/fuse && exec bash "$@"' - \
                "$ROOT/tests/shell/harness.sh" "$FILE" "$1"
        fi
    fi
    "$1"
}
# as_a_user_who_may_let_others_in FUNCTION: the same, where fuse.conf has user_allow_other; in a mount namespace, so that it has it here alone.
as_a_user_who_may_let_others_in() {
    root_only
    [ -e /etc/fuse.conf ] || skip "no /etc/fuse.conf"
    "${nobody[@]}" test -x "$B2FUSE" || skip "an ordinary user cannot run $B2FUSE"
    mknod -m 666 "$T/fuse" c 10 229
    echo user_allow_other >"$T/fuse.conf"
    trap - EXIT ERR
    export T
    # What answers it does not see these mounts.
    unset TOOLS
    # shellcheck disable=SC2016 # for the inner shell
    exec unshare -m "$ROOT/tests/shell/alone" bash -c 'mount --bind "$T/fuse" /dev/fuse && mount --bind "$T/fuse.conf" /etc/fuse.conf && exec bash "$@"' - \
        "$ROOT/tests/shell/harness.sh" "$FILE" "$1"
}
root_only() { [ "$(id -u)" = 0 ] || skip "needs root"; }

. "$FILE"
"$2"
