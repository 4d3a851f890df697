# Mounts that autofs makes when somebody comes, and takes away when nobody has come for a while.

# with_automount FUNCTION: in a mount namespace where mount(8) finds b2fuse, and an automounter has a directory for what it notes.
with_automount() {
    root_only
    command -v automount >/dev/null && [ -c /dev/autofs ] || skip "no autofs"
    [ -e /sbin/mount.fuse ] || [ -e /sbin/mount.fuse3 ] || skip "no mount.fuse3"
    unshare -m true 2>/dev/null || skip "no mount namespaces"
    mkdir "$T/bin"
    cp "$B2FUSE" "$T/bin/b2fuse"
    # What answers it does not see these mounts.
    unset TOOLS
    trap - EXIT ERR
    export T
    # shellcheck disable=SC2016 # for the inner shell
    exec unshare -m bash -c 'mount --bind "$T/bin" /usr/local/bin && mount -t tmpfs tmpfs /run && exec bash "$@"' - \
        "$ROOT/tests/shell/harness.sh" "$FILE" "$1"
}

# automounter MAP KEY POINT: begins, with a frame as what is mounted at POINT, for as long as somebody is there and a second longer.
automounter() {
    helper
    echo "$2 -fstype=fuse.b2fuse,rw :$S" >"$T/map"
    echo "$1 file:$T/map --timeout 1" >"$T/master"
    automount -f -d -C --pid-file "$T/pid" "$T/master" >"$T/automount" 2>&1 </dev/null &
    AUTOMOUNTER=$!
    trap 'kill $AUTOMOUNTER; rm -f $MADE; finish' EXIT
    await eval 'grep -q " autofs .*pgrp=" /proc/self/mounts'
}
# helper: mount(8) asks for mount.fuse, which not every package has.
helper() {
    MADE=
    if [ ! -e /sbin/mount.fuse ]; then
        ln -s mount.fuse3 /sbin/mount.fuse
        MADE=/sbin/mount.fuse
    fi
}
is_mounted() { grep -q " $1 fuse.b2fuse " /proc/self/mounts; }
is_gone() { ! is_mounted "$1"; }

# comes_and_goes POINT: what is mounted there is what somebody sees who comes, and what it takes is in SOURCE when it has gone.
comes_and_goes() {
    local round daemon
    for round in 0 1; do
        timeout 20 cmp "$1/00000003.chunk" "$FX/full/3" || fail "$(cat "$T/automount")"
        is_mounted "$1"
        timeout 20 cp "$FX/new/$round" "$1/00000004.chunk"
        # It has a session of its own, so that what is sent to the automounter's process group does not end it.
        daemon=$(pgrep -f "^[^ ]*b2fuse $S ")
        equal "$(ps -o sid= -p "$daemon" | tr -d ' ')" "$daemon" "session"
        equal "$(readlink "/proc/$daemon/cwd" /proc/"$daemon"/fd/[012] | sort -u | tr '\n' ' ')" "/ /dev/null "
        await is_gone "$1"
        await eval "! kill -0 $daemon"
        holds n=6 3="$FX/full/3" 4="$FX/new/$round"
    done
}

test_a_frame_in_an_indirect_map() { with_automount indirect; }
indirect() {
    source_from full
    automounter "$T/auto" frame
    comes_and_goes "$T/auto/frame"
}

test_a_frame_in_a_direct_map() { with_automount direct; }
direct() {
    source_from full
    automounter /- "$T/frame"
    comes_and_goes "$T/frame"
}

test_a_daemon_that_is_ended_under_autofs() { with_automount ended; }
ended() {
    source_from full
    automounter "$T/auto" frame
    timeout 20 cp "$FX/new/0" "$T/auto/frame/00000004.chunk"
    local daemon
    daemon=$(pgrep -f "^[^ ]*b2fuse $S ")
    kill -TERM "$daemon"
    await is_gone "$T/auto/frame"
    await eval "! kill -0 $daemon"
    holds n=6 4="$FX/new/0"
}

# Of what cannot be mounted, the automounter hears why.
test_what_cannot_be_mounted_under_autofs() { with_automount refused; }
refused() {
    mkdir "$M"
    echo "no frame" >"$S"
    automounter "$T/auto" frame
    fails "No such file" timeout 20 ls "$T/auto/frame"
    has "$(cat "$T/automount")" "$S: "
    is_gone "$T/auto/frame"
}
