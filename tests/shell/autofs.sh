# Mounts of fstab, autofs and systemd: made by mount(8), or when somebody comes, and taken away when nobody has come for a while.

# in_a_namespace FUNCTION [WORD...]: in a mount namespace where mount(8) finds b2fuse, and where nothing that is noted in /run stays.
# WORDs are what the shell in it does first.
in_a_namespace() {
    root_only
    [ -e /sbin/mount.fuse ] || [ -e /sbin/mount.fuse3 ] || skip "no mount.fuse3"
    unshare -m true 2>/dev/null || skip "no mount namespaces"
    mkdir "$T/bin"
    cp "$B2FUSE" "$T/bin/b2fuse"
    # What answers it does not see these mounts.
    unset TOOLS
    trap - EXIT ERR
    export T
    # shellcheck disable=SC2016 # for the inner shell
    exec unshare -m "$ROOT/tests/shell/alone" bash -c 'mount --bind "$T/bin" /usr/local/bin && mount -t tmpfs tmpfs /run && '"${*:2} "'exec bash "$@"' - \
        "$ROOT/tests/shell/harness.sh" "$FILE" "$1"
}

# ---- fstab

test_a_line_of_fstab() { in_a_namespace line_of_fstab; }
line_of_fstab() {
    helper
    source_from full
    echo "$S $M fuse.b2fuse ro,allow_other,noauto,nofail,user,x-systemd.automount,_netdev 0 0" >"$T/fstab"
    mount -T "$T/fstab" "$M"
    has "$(findmnt -n -o FSTYPE,OPTIONS "$M")" "fuse.b2fuse ro,"
    "${nobody[@]}" cmp "$(chunk 3)" "$FX/full/3"
    umount "$M"
    # What went wrong is said, and is an error of mount(8) as well.
    echo "no frame" >"$S"
    fails "$S: " mount -T "$T/fstab" "$M"
    not_mounted
}

# mount(8) has its helper do that as well, with all that it finds in its list of mounts.
test_remount_by_mount_8() { in_a_namespace remount_by_mount; }
remount_by_mount() {
    helper
    source_from full
    mount -t fuse.b2fuse -o rw,allow_other "$S" "$M"
    mount -o remount,ro "$M"
    has ",$(findmnt -n -o VFS-OPTIONS "$M")," ,ro,
    fails "Read-only file system" touch "$(chunk 3)"
    mount -o remount,rw "$M"
    cp "$FX/new/0" "$(chunk 3)"
    umount "$M"
    await holds 3="$FX/new/0"
}

# ---- autofs

with_automount() {
    command -v automount >/dev/null && [ -c /dev/autofs ] || skip "no autofs"
    in_a_namespace "$1"
}

# automounter MAP KEY POINT: begins, with a frame as what is mounted at POINT, for as long as somebody is there and a second longer.
automounter() {
    helper
    echo "$2 -fstype=fuse.b2fuse,rw :$S" >"$T/map"
    echo "$1 file:$T/map --timeout 1" >"$T/master"
    automount -f -d -C --pid-file "$T/pid" "$T/master" >"$T/automount" 2>&1 </dev/null &
    AUTOMOUNTER=$!
    trap 'kill $AUTOMOUNTER; finish' EXIT
    await eval 'grep -q " autofs .*pgrp=" /proc/self/mounts'
}
# helper: mount(8) asks for mount.fuse, which not every package has. /usr/sbin gets it in this namespace alone: other tests run beside
# this one.
helper() {
    [ ! -e /sbin/mount.fuse ] || return 0
    mkdir /run/sbin /run/usr.sbin
    mount --bind -o ro /usr/sbin /run/usr.sbin
    ln -s /run/usr.sbin/* /run/sbin/
    ln -s mount.fuse3 /run/sbin/mount.fuse
    mount --bind /run/sbin /usr/sbin
}
is_mounted() { grep -q " $1 fuse.b2fuse " /proc/self/mounts; }
is_gone() { ! is_mounted "$1"; }

# comes_and_goes POINT: what is mounted there is what somebody sees who comes, and what it takes is in SOURCE when it has gone.
comes_and_goes() {
    local round daemon
    for round in 0 1; do
        timeout 20 cmp "$1/00000003.chunk" "$FX/full/3"
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

# ---- systemd

# As on a machine that systemd has booted, as far as its manager for a user, here root, does the same. It makes control groups, and moves
# all processes of its own one into another: so it gets one of this test's.
test_fstab_by_systemd() {
    [ -x /lib/systemd/systemd ] && [ -x /lib/systemd/system-generators/systemd-fstab-generator ] && [ -c /dev/autofs ] || skip "no systemd"
    root_only
    GROUP=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)/b2fuse-test-$$
    mkdir "$GROUP" 2>/dev/null || skip "no control groups"
    trap 'echo 1 >"$GROUP/cgroup.kill"; await eval "find $GROUP -depth -type d -exec rmdir {} +"; finish' EXIT
    (
        echo "$BASHPID" >"$GROUP/cgroup.procs" || skip "cannot enter a control group"
        # What is above it is not to be seen.
        in_a_namespace fstab_by_systemd 'exec unshare -C bash -c '\''umount -l /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec bash "$@"'\'' - "$@"; '
    )
}
fstab_by_systemd() {
    helper
    source_from full
    mkdir -p "$T/units" "$T/units/e" "$T/units/l" "$T/runtime" /run/systemd/system
    echo "$S $M fuse.b2fuse rw,x-systemd.automount,x-systemd.idle-timeout=1 0 0" >"$T/fstab"
    SYSTEMD_FSTAB=$T/fstab /lib/systemd/system-generators/systemd-fstab-generator "$T/units" "$T/units/e" "$T/units/l"
    local target
    for target in default basic shutdown umount local-fs-pre; do
        printf '[Unit]\nDefaultDependencies=no\n' >"$T/units/$target.target"
    done
    printf '[Unit]\nDefaultDependencies=no\nWants=%s\n' "$(cd "$T/units" && ls -- *.automount)" >"$T/units/default.target"
    XDG_RUNTIME_DIR=$T/runtime SYSTEMD_UNIT_PATH=$T/units /lib/systemd/systemd --user --unit=default.target >"$T/systemd" 2>&1 </dev/null &
    SYSTEMD=$!
    trap 'kill -KILL $SYSTEMD; finish' EXIT
    await eval 'grep -q " $M autofs " /proc/self/mounts'
    comes_and_goes "$M"
}
