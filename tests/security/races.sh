# Attacks that need luck, and have as many tries as they like: names are exchanged while root's tool is at work. Numbers are those of
# findings.sh.

# shellcheck source=common.bash
. "$SECURITY/common.bash"

# tool_of_root ARGUMENT...: b2fuse by root, in two rounds of three with a pause at each call that looks a name up, as on a slow disk.
tool_of_root() {
    local slowly=()
    if ((round % 3)); then
        slowly=(strace --follow-forks --seccomp-bpf --output /dev/null
            --inject=openat,openat2,newfstatat,statx,renameat2,unlinkat,fchown,fchmod:delay_enter=200)
    fi
    within 20 "${slowly[@]}" "$B2FUSE" "$@"
}

# ---- 2: compact gives away what it did not make

# A frame that has something to be compacted, in $T/loose.b2frame.
loose() {
    cp -r "$1" "$T/loose.b2frame"
    py 'blosc2.open(sys.argv[1], mode="a").reorder_offsets(np.array([5, 4, 3, 2, 1, 0]))' "$T/loose.b2frame"
    theirs "$T/loose.b2frame"
}

# bait TARGET: a link of the attacker's, to be copied to wherever it is of use.
bait() { ln -s "$1" "$T/bait" && theirs "$T/bait"; }

compact_is_swapped() {
    rm -rf "$U/f" "$U/other"
    cp -a "$T/loose.b2frame" "$U/f"
    cp -a "$T/bait" "$U/other"
    attack swap "$U" f other
    tool_of_root compact "$U/f"
    attack_ends
}
test_finding_02_compact_gives_a_file_away() {
    scene
    loose "$FX/full.b2frame"
    bait "$V/private"
    rounds compact_is_swapped
}
test_finding_02_compact_of_a_directory_gives_files_away() {
    scene
    loose "$FX/sparse/full.b2frame"
    mkdir "$T/bait"
    local n
    for n in 0 1 2 3 4 5; do ln -s "$V/private" "$T/bait/0000000$n.chunk"; done
    ln -s "$V/public" "$T/bait/chunks.b2frame"
    theirs "$T/bait"
    rounds compact_is_swapped
}

# ---- 6: repair writes to what it did not look at

repair_is_flipped() {
    rm -rf "$U/f" "$U"/*before-repair* "$U/other"
    cp -a "$T/broken.b2frame" "$U/f"
    cp -a "$T/bait" "$U/other"
    attack flip "$U" f other 60
    local _
    for _ in 1 2 3 4; do tool_of_root repair --yes "$U/f"; done
    attack_ends
}
test_finding_06_repair_writes_to_another_file() {
    scene
    # Something like what a killed library leaves: the trailer is gone.
    head -c -100 "$FX/full.b2frame" >"$T/broken.b2frame"
    theirs "$T/broken.b2frame"
    bait "$V/large"
    rounds repair_is_flipped
}
test_finding_06_repair_writes_to_another_directory() {
    scene
    py 'make(sys.argv[1], "rrr", False)' "$T/broken.b2frame"
    # The other frame has no such file either, and needs none.
    py 'make(sys.argv[1], "rr", False)' "$V/frame"
    rm "$T/broken.b2frame/00000002.chunk"
    theirs "$T/broken.b2frame"
    chmod -R go= "$V/frame"
    before=$(py_alone manifest "$V")
    bait "$V/frame"
    rounds repair_is_flipped
}

# ---- 7: what compact and convert replace is not what they remove

# The name of what is being made is exchanged with a link all the time, or from when it stands for what root removes at the end.
flipped_when_new() {
    rm -rf "$U"/f "$U/other" "$U"/.b2fuse-*
    cp -a "$T/loose.b2frame" "$U/f"
    cp -a "$T/bait" "$U/other"
    attack flip-new "$U" .b2fuse- other 40 "${late[@]}"
    tool_of_root "${arguments[@]}" "$U/f"
    attack_ends
}
compact_is_flipped() {
    scene
    loose "$FX/sparse/full.b2frame"
    bait "$V/emptied"
    arguments=(compact) late=("$@")
    rounds flipped_when_new
}
convert_is_flipped() {
    scene
    loose "$FX/sparse/full.b2frame"
    cp "$FX/base.b2frame" "$T/new.b2frame"
    bait "$V/emptied"
    arguments=(convert --force "$T/new.b2frame") late=("$@")
    rounds flipped_when_new
}
test_finding_07_compact_writes_to_a_directory() { compact_is_flipped; }
test_finding_07_compact_empties_a_directory() { compact_is_flipped f; }
test_finding_07_convert_writes_to_a_directory() { convert_is_flipped; }
test_finding_07_convert_empties_a_directory() { convert_is_flipped f; }

# ---- 22: convert takes the right to write from what it made, and from nothing else

convert_is_swapped() {
    rm -rf "$U/f" "$U/other"
    cp -a "$T/bait" "$U/other"
    attack swap "$U" f other
    tool_of_root convert "$T/readonly.b2frame" "$U/f"
    attack_ends
}
test_finding_22_convert_changes_the_mode_of_another_file() {
    scene
    cp -r "$FX/sparse/full.b2frame" "$T/readonly.b2frame"
    chmod 0444 "$T/readonly.b2frame"/*
    bait "$V/private"
    rounds convert_is_swapped
}

# ---- commands that go through a directory look at nothing outside of it

# A directory of the attacker's changes places with a link to the victims' while root's tools go through the one above.
tree_is_flipped() {
    rm -rf "$U/d" "$U/other" "$T/copy"
    mkdir -p "$U/d/deep"
    cp "$T/loose.b2frame" "$U/d/a.b2nd"
    cp -r "$FX/sparse/full.b2frame" "$U/d/frame"
    echo mine | tee "$U/d/private" "$U/d/public" >"$U/d/deep/one"
    cp -a "$T/bait" "$U/other"
    theirs "$U"
    attack flip "$U" d other 60
    case ${arguments[0]} in
    convert) tool_of_root "${arguments[@]}" "$U" "$T/copy" ;;
    *) tool_of_root "${arguments[@]}" "$U" ;;
    esac
    attack_ends
    no_secret "$T/copy" "$T/.said"
}
tree_flips() {
    scene
    loose "$FX/full.b2frame"
    mkdir "$V/deep"
    cp "$V/private" "$V/deep/one"
    cp "$T/loose.b2frame" "$V/a.b2nd"
    cp -r "$FX/sparse/full.b2frame" "$V/frame"
    chmod -R go= "$V"
    before=$(py_alone manifest "$V")
    bait "$V"
    arguments=("$@")
    rounds tree_is_flipped
}
test_convert_of_a_directory_copies_another() { tree_flips convert --show contiguous; }
test_convert_of_a_directory_to_sparse_copies_another() { tree_flips convert --show sparse; }
test_compact_of_a_directory_compacts_another() { tree_flips compact; }

# What root makes in a directory of the attacker's is given to whom it belonged to, and nothing else is. The directory is empty at first, so
# the attacker begins when there is something in it.
target_is_flipped() {
    rm -rf "$U/new"
    mkdir "$U/new"
    theirs "$U/new"
    # shellcheck disable=SC2016 # for the inner shell
    "${attacker[@]}" bash -c 'until [ -e "$1/a00" ]; do :; done; ln -s "$2" "$1/.other"; exec "$ATTACK" flip-new "$1" n .other 20' \
        - "$U/new" "$V/private" >/dev/null 2>&1 &
    attack_pid=$!
    tool_of_root convert --show sparse "$T/tree" "$U/new"
    kill -KILL "$attack_pid" 2>/dev/null || true
    wait "$attack_pid" 2>/dev/null || true
    no_secret "$U/new"
}
test_convert_into_a_directory_of_others_gives_a_file_away() {
    local n
    scene
    mkdir "$T/tree"
    for n in {00..29}; do echo mine >"$T/tree/a$n"; done
    for n in {00..19}; do mkfifo "$T/tree/n$n" && cp "$FX/base.b2frame" "$T/tree/n$n.b2nd" && ln "$T/tree/a$n" "$T/tree/n${n}l"; done
    theirs "$T/tree"
    rounds target_is_flipped
}
