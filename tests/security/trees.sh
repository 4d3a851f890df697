# A directory mounted whole that another user owns: he gives its names to other things, and those of others other names, while root and
# he himself work through the mount.

# shellcheck source=common.bash
. "$SECURITY/common.bash"

# owner ATTACK: see owners.py; nothing that only root may read is in what it prints, and the daemon goes on.
owner() {
    scene
    S=$U/d
    mkdir "$S"
    theirs "$S"
    B2FUSE=${slow:-$B2FUSE} try_mount -o allow_other "${options[@]}"
    "$PY" "$SECURITY/owners.py" "$1" "$S" "$M" "$PID" >"$T/.told" 2>&1 || fail "$(cat "$T/.told")"
    no_secret "$T/.told"
    sed -n 's/^rounds/note: rounds/p' "$T/.told"
    kill -0 "$PID" || fail "the daemon has ended"
    end_mount
    if grep -q panicked "$T/log"; then fail "a panic: $(cat "$T/log")"; fi
    unharmed
    rm -rf "$S"
}
options=() slow=
# slowly ATTACK: the same with a pause at each call that looks a name up, as on a slow disk.
slowly() {
    slow=$T/slow
    printf '#!/bin/sh\nexec strace --follow-forks --seccomp-bpf --output /dev/null --inject=%s:delay_enter=%s "%s" "$@"\n' \
        openat,renameat2,unlinkat 150 "$B2FUSE" >"$slow"
    chmod 755 "$slow"
    owner "$1"
}

test_create_finds_a_file() { owner create_finds_a_file; }
test_access_list_of_another() { owner access_list_of_another; }
test_attribute_of_another() { owner attribute_of_another; }
test_truncated_another() { owner truncated_another; }
test_opened_another_frame() { slowly opened_another_frame; }
test_held_while_another_comes() { owner held_while_another_comes; }
test_held_while_another_comes_contiguous() { options=(--show contiguous) && owner held_while_another_comes; }
test_mode_of_another() { owner mode_of_another; }
test_mode_of_anothers_directory() { owner mode_of_anothers_directory; }
test_shut_directory() { owner shut_directory; }
test_programs_of_others() { owner programs_of_others; }
test_everybody_at_once() { owner everybody_at_once; }
test_called_like_ours() { owner called_like_ours; }
test_removed_another() { owner removed_another; }
test_replaced_another() { owner replaced_another; }
test_removed_in_a_sticky_directory() { owner removed_in_a_sticky_directory; }
# What these need luck for, the unit tests of the tree do without.
with_luck() { [ -n "$FULL" ] || skip "only with --full"; }
test_stored_another() { with_luck && options=(--show contiguous) && owner stored_another; }
test_stored_another_in_a_store() { with_luck && owner stored_another_in_a_store; }
test_made_like_another() { with_luck && owner made_like_another; }
test_large_directories() { owner large_directories; }

# ---- All names at once, and in turn

names() { "$PY" "$SECURITY/trees.py" "$@"; }
test_squats_other() { names squats other; }
test_squats_sparse() { names squats sparse; }
test_squats_contiguous() { names squats contiguous; }
test_storm_other() { names storm other; }
test_storm_sparse() { names storm sparse; }
test_storm_contiguous() { names storm contiguous; }
