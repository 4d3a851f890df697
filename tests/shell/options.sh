# Mount options as fstab spells them, and what is said of those that are wrong.

# shows FILES DIRECTORIES -o OPTIONS: what modes a mount shows, in both layouts.
shows() {
    local files=$1 directories=$2 layout file
    for layout in cframe sframe; do
        rm -rf "$S"
        if [ $layout = cframe ]; then source_from full; file=$(chunk 3); else sparse_from full; file=$V; fi
        chmod -R u=rwX,go=rX "$S"
        mount_it "${@:3}"
        equal "$(stat -c %a "$file" "$M" | tr '\n' ' ')" "$files $directories " "$layout ${*:3}"
        umount_it
    done
}
test_masks() {
    shows 644 755 -o umask=022
    shows 640 750 -o umask=027
    shows 666 777 -o umask=0
    shows 600 755 -o fmask=077
    shows 644 700 -o dmask=077
    shows 600 750 -o fmask=0177,dmask=027
    shows 640 700 -o dmask=077,umask=027
    shows 600 750 -o umask=027 -o fmask=177
    : >"$T/file"
    "$B2FUSE" mount -o dmask=0,fmask=077 "$S" "$T/file"
    equal "$(stat -c %a "$T/file")" 600
    "$B2FUSE" umount "$T/file"
    exits 2 "$B2FUSE" mount -o fmask=8 "$S" "$M"
    exits 2 "$B2FUSE" mount -o dmask "$S" "$M"
}

test_names_of_users_and_groups() {
    source_from full
    local user group
    user=$(getent passwd 65534 | cut -d: -f1) group=$(getent group 65534 | cut -d: -f1)
    [ -n "$user" ] && [ -n "$group" ] || skip "nobody is 65534"
    mount_it -o "uid=$user,gid=$group"
    equal "$(stat -c %u:%g "$(chunk 3)")" 65534:65534
    umount_it
    exits 2 "$B2FUSE" mount -o uid=nobody-of-this-name "$S" "$M"
    has "$(cat "$T/.err")" "'uid=nobody-of-this-name': expected a user's name or number"
    exits 2 "$B2FUSE" mount -o gid=nobody-of-this-name "$S" "$M"
    not_mounted
}

test_words_that_change_nothing() {
    source_from full
    mount_it -o lazytime,nolazytime,strictatime,relatime,nofail,_netdev
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
}

test_the_level_of_the_log_as_an_option() {
    source_from full
    mount_it -o "log_level=debug,log_file=$T/one"
    umount_it
    has "$(cat "$T/one")" DEBUG
    mount_it -o "log_level=error,log_file=$T/two"
    umount_it
    equal "$(cat "$T/two")" ""
    # The long option says it as well.
    mount_it --log-level info -o "log_level=error,log_file=$T/three"
    umount_it
    has "$(cat "$T/three")" "mounted on"
    exits 2 "$B2FUSE" mount -o log_level=loud "$S" "$M"
}

test_levels_are_listed_and_completed() {
    has "$("$B2FUSE" mount --help)" "possible values: error, warn, info, debug, trace"
    "$B2FUSE" completions bash >"$T/bash"
    # shellcheck disable=SC2016 # for the inner shell
    has "$(bash -c '. "$1"; COMP_WORDS=(b2fuse mount --log-level d) COMP_CWORD=3; _b2fuse b2fuse d --log-level; echo "${COMPREPLY[@]}"' - "$T/bash")" debug
    source_from full
    exits 2 "$B2FUSE" mount --log-level loud "$S" "$M"
    has "$(cat "$T/.err")" "error, warn, info, debug, trace"
}

# ---- What is wrong

# wrong HINT USAGE ARGUMENTS...: exit code 2, with what may have been meant, and how the command is used.
wrong() {
    local hint=$1 usage=$2
    shift 2
    exits 2 "$B2FUSE" "$@"
    has "$(cat "$T/.err")" "$hint"
    grep -q "^Usage: b2fuse $usage" "$T/.err" || fail "no usage of $usage: $(cat "$T/.err")"
    equal "$(grep -c '^error: ' "$T/.err")" 1
}
test_wrong_words_have_a_hint_and_the_usage_of_their_command() {
    source_from full
    wrong "did you mean 'ro'?" "mount " mount -o readonly "$S" "$M"
    wrong "did you mean 'ro'?" "mount " mount -o noatime,read-only "$S" "$M"
    wrong "did you mean 'allow_other'?" "mount " mount -o allow-others "$S" "$M"
    wrong "did you mean 'uid='?" "mount " mount -o user=me "$S" "$M"
    wrong "'ro' takes no value" "mount " mount -o ro=1 "$S" "$M"
    wrong "unknown mount option 'nonsense'" "mount " mount -o nonsense "$S" "$M"
    wrong "cannot be used with" "mount " mount -o nodefault_permissions,allow_other "$S" "$M"
    wrong "'--read-only'" "mount " mount --readonly "$S" "$M"
    wrong "such as 256M" "mount " mount --cache-size much "$S" "$M"
    wrong "<MOUNTPOINT>" "mount " mount "$S"
    wrong "<MOUNTPOINT>" "umount " umount
    wrong "'--lazy'" "umount " unmount --laz "$M"
    wrong "such as 3" "cat " cat "$S" x
    wrong "possible values" "completions " completions tcsh
    wrong "'mount'" "<COMMAND>" mout "$S" "$M"
    not_mounted
}

# What can be seen from the words alone is wrong usage; what depends on what SOURCE is fails.
test_words_that_cannot_stand_together() {
    source_from full
    wrong "'--create' cannot be used with" "mount " mount --create -o ro "$S" "$M"
    wrong "'show=npy' cannot be used with '--show raw'" "mount " mount -o show=npy --show raw "$S" "$M"
    wrong "'--spill' needs" "mount " mount --spill none "$S" "$M"
    wrong "found 7 filters" "convert " convert --filters none,none,none,none,none,none,none "$S" "$T/new"
    one_line "$S" "is not a directory of frames" "$B2FUSE" mount -o b2z=dir "$S" "$M"
    one_line "$S" "is not a NumPy file" "$B2FUSE" convert --codec lz4 "$S" "$T/new"
    not_mounted
}

# What is shown read-only by its kind takes the words of fstab, and says so in the log.
test_words_that_have_no_effect_are_logged() {
    cp "$FX/array.b2nd" "$S"
    mkdir "$M"
    mount_it -o "rw,show=npy,dtype=<f4,log_file=$T/log"
    umount_it
    has "$(cat "$T/log")" "-o rw is ignored"
    has "$(cat "$T/log")" "-o dtype= is ignored"
}

# ---- Mounted already

# flags: those that hold for the mount point.
flags() { findmnt -n -o VFS-OPTIONS "$M"; }
test_remount() {
    root_only
    source_from full
    mount_it -o exec,noatime
    cp "$FX/new/0" "$(chunk 3)"
    cp "$FX/new/1" "$(chunk 4)"
    "$B2FUSE" mount -o remount,ro "$S" "$M"
    has ",$(flags)," ,ro,
    has ",$(flags)," ,noatime
    # What was written before is in SOURCE.
    holds 3="$FX/new/0" 4="$FX/new/1"
    fails "Read-only file system" cp "$FX/new/2" "$(chunk 3)"
    fails "Read-only file system" touch "$M/.x"
    cmp "$(chunk 3)" "$FX/new/0"
    "$B2FUSE" mount -o remount,rw,noexec "$S" "$M"
    has ",$(flags)," ,rw,
    has ",$(flags)," ,noexec
    cp "$FX/new/2" "$(chunk 3)"
    "$B2FUSE" mount -r -o remount "$S" "$M"
    has ",$(flags)," ,ro,
    umount_it
    holds 3="$FX/new/2"
    # A daemon that takes no writes goes on like that.
    mount_it -o ro
    one_line "$M" "was mounted read-only" "$B2FUSE" mount -o remount,rw "$S" "$M"
    has ",$(flags)," ,ro,
    umount_it
    one_line "$M" "nothing mounted there" "$B2FUSE" mount -o remount,ro "$S" "$M"
    mount -t tmpfs tmpfs "$M"
    one_line "$M" "tmpfs" "$B2FUSE" mount -o remount,ro "$S" "$M"
    umount "$M"
}

test_remount_while_a_file_is_open_for_writing() {
    root_only
    source_from full
    mount_it
    exec 7>>"$(chunk 3)"
    one_line "$M" "busy" "$B2FUSE" mount -o remount,ro "$S" "$M"
    has "$(cat "$T/.err")" "bash ($$)"
    has ",$(flags)," ,rw,
    exec 7>&-
    "$B2FUSE" mount -o remount,ro "$S" "$M"
    umount_it
}

test_remount_says_what_stays() {
    root_only
    source_from full
    mount_it
    exits 0 "$B2FUSE" mount -o remount,ro,cache_size=1G,uid=5,fsname=x,allow_other "$S" "$M"
    has "$(cat "$T/.err")" "cache_size=1G,uid=5 cannot be changed"
    has ",$(flags)," ,ro,
    exits 0 "$B2FUSE" mount -o remount,rw "$S" "$M"
    equal "$(cat "$T/.err")" ""
    umount_it
}

test_remount_of_an_ordinary_user() { as_a_user users_remount; }
users_remount() {
    source_from full
    [ "$(id -u)" != 0 ] || chown 65534:65534 "$T" "$S" "$M"
    "${as[@]}" "$B2FUSE" mount "$S" "$M" </dev/null
    one_line "$M" "only root can" "${as[@]}" "$B2FUSE" mount -o remount,ro "$S" "$M"
    "${as[@]}" cmp "$(chunk 3)" "$FX/full/3"
    # Root can, though the mount shows it nothing.
    if [ "$(id -u)" = 0 ]; then
        "$B2FUSE" mount -o remount,ro "$S" "$M"
        fails "Read-only" "${as[@]}" touch "$(chunk 3)"
    fi
    "${as[@]}" "$B2FUSE" umount "$M"
}

# ---- By mount(8)

# As mount(8) calls a helper: what it says to all of them means something else to b2fuse.
test_as_a_helper_of_mount_8() {
    source_from full
    ln -s "$B2FUSE" "$T/mount.fuse.b2fuse"
    "$T/mount.fuse.b2fuse" "$S" "$M" -n -s -v -o ro -t fuse.b2fuse </dev/null
    fails "Read-only file system" touch "$(chunk 3)"
    umount_it
    "$T/mount.fuse.b2fuse" "$S" "$M" -f -o rw
    not_mounted
    exits 1 "$T/mount.fuse.b2fuse" "$S.none" "$M" -f -o rw
}

# ---- Who keeps it busy

test_who_keeps_a_mount_busy_is_named() {
    source_from full
    mount_it
    sleep 60 7<"$(chunk 3)" &
    local user=$!
    await grep -qx sleep /proc/$user/comm
    one_line "$M" "is busy: sleep ($user) has a file open there" umount_it
    (cd "$M" && exec sleep 60) &
    local other=$!
    await grep -qx sleep /proc/$other/comm
    one_line "$M" "is busy: sleep (" umount_it
    has "$(cat "$T/.err")" "sleep ($user)"
    has "$(cat "$T/.err")" "sleep ($other)"
    kill $user $other
    wait $user $other || true
    # A file that is mapped, and not open any more.
    mkfifo "$T/go"
    "$PY" -c 'import mmap, sys
with open(sys.argv[1], "rb") as f:
    mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
open(sys.argv[2], "w").close()
open(sys.argv[2]).read()' "$(chunk 3)" "$T/go" &
    local mapper=$!
    : <"$T/go"
    one_line "$M" "($mapper) " umount_it
    : >"$T/go" && wait $mapper
    umount_it
}

test_a_mount_in_a_mount_keeps_it_busy() {
    root_only
    source_from full
    mount_it
    # On a file, as it has no directories.
    mount --bind "$FX/new/0" "$(chunk 3)"
    one_line "$M" "something is mounted on $(chunk 3)" umount_it
    umount "$(chunk 3)"
    umount_it
}
