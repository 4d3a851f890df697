# Attacks that need no luck. Each test is named after what it repeats, in the numbering of the first review; what is called `held` was
# tried then, or is a variant, and did no harm.

# shellcheck source=common.bash
. "$SECURITY/common.bash"

# ---- 1: links where lost things are saved

# kept_things [FIND ARGUMENT...]: beside SOURCE, and where root keeps such things.
kept_things() { find "$U" "$LOST" "$@" 2>/dev/null || true; }
# saved_somewhere FILE: what was accepted is kept.
saved_somewhere() {
    local file
    while read -r file; do
        if cmp -s "$file" "$1"; then return; fi
    done < <(kept_things -type f)
    fail "nothing that was saved is $1: $(kept_things)"
}
room_taken() { kept_things -printf '%k\n' | awk '{ sum += $1 } END { print sum + 0 }'; }

test_finding_01_lost_is_a_link_to_a_home() {
    scene
    cframe full
    "${attacker[@]}" ln -s "$V/home" "$S.lost"
    try_mount -o allow_other
    "${attacker[@]}" mv "$M/00000001.chunk" "$M/.bash_profile"
    end_mount
    unharmed
    saved_somewhere "$FX/full/1"
}

test_finding_01_lost_is_a_link_to_a_home_of_a_chunk_without_a_place() {
    scene
    cframe full
    "${attacker[@]}" ln -s "$V/empty" "$S.lost"
    try_mount -o allow_other
    "${attacker[@]}" cp "$FX/new/0" "$M/00000FFF.chunk"
    end_mount
    unharmed
    saved_somewhere "$FX/new/0"
}

test_finding_01_lost_of_a_sparse_frame_is_a_link() {
    scene
    sframe full
    "${attacker[@]}" ln -s "$V/home" "$S.lost"
    try_mount -o allow_other
    # The whole of another frame, which cannot be committed any more.
    begin_writing "$M/s.b2frame" "$FX/many.b2frame"
    "${attacker[@]}" touch "$S/chunks.b2frame"
    end_writing
    end_mount
    unharmed
}

test_finding_01_lost_is_a_dangling_link() {
    scene
    cframe full
    "${attacker[@]}" ln -s "$V/home/new" "$S.lost"
    try_mount -o allow_other
    "${attacker[@]}" cp "$FX/new/0" "$M/00000FFF.chunk"
    end_mount
    unharmed
    saved_somewhere "$FX/new/0"
}

# ---- 3: set-user-ID bits

# no_such_bits WHERE: nobody's program here runs as somebody else.
no_such_bits() {
    local found
    found=$(find "$1" ! -type d -perm /7000 -printf '%M %U %p\n')
    equal "$found" "" "files that run as their owner"
}

# bits_of LAYOUT COMMAND...: a frame with all bits, which somebody else has to do with.
bits_of() {
    local layout=$1
    shift
    scene
    chmod 777 "$U"
    "$layout" base
    py 'blosc2.open(sys.argv[1], mode="a").reorder_offsets(np.array([9, 8, 7, 6, 5, 4, 3, 2, 1, 0]))' "$S"
    theirs "$S"
    # The attacker's own doing, which nobody takes away.
    chmod -R 777 "$S"
    find "$S" -type f -exec chmod 6777 {} +
    find "$U" -type f -perm /7000 -printf '%i %U\n' | sort >"$T/before"
    "${other[@]}" "$@" || true
    # What is not the attacker's old file.
    find "$U" -type f -perm /7000 -printf '%i %U\n' | sort >"$T/after"
    equal "$(comm -13 "$T/before" "$T/after")" "" "new files that run as their owner: $(ls -lR "$U")"
}

test_finding_03_compact_makes_programs() { bits_of cframe "$B2FUSE" compact "$U/c.b2frame"; }
test_finding_03_compact_of_a_sparse_frame_makes_programs() { bits_of sframe "$B2FUSE" compact "$U/s.b2frame"; }
test_held_03_convert_makes_programs() { bits_of sframe "$B2FUSE" convert "$U/s.b2frame" "$U/new"; }
test_held_03_convert_of_a_file_makes_programs() { bits_of cframe "$B2FUSE" convert "$U/c.b2frame" "$U/new"; }

test_finding_03_compact_by_root_copies_no_such_bits() {
    scene
    local layout
    for layout in cframe sframe; do
        "$layout" base
        py 'blosc2.open(sys.argv[1], mode="a").reorder_offsets(np.array([9, 8, 7, 6, 5, 4, 3, 2, 1, 0]))' "$S"
        theirs "$S"
        find "$S" -type f -exec chmod 6755 {} +
        "$B2FUSE" compact "$S"
        no_such_bits "$U"
    done
}

# ---- 4: chunk files that are links

# shown OPTION...: what is in the mount is read by the attacker and by root; nothing of it is a secret.
shown() {
    local file
    for file in "$M"/*; do
        within 20 "${attacker[@]}" cat "$file"
        no_secret "$T/.said"
        within 20 cat "$file"
        no_secret "$T/.said"
    done
}

test_finding_04a_a_chunk_is_a_link_when_it_is_mounted() {
    scene
    S=$U/s.b2frame
    tool many_chunks "$S" 3000
    theirs "$S"
    # Not one of those whose headers are looked at.
    "${attacker[@]}" ln -sf "$V/private" "$S/00000001.chunk"
    try_mount -o allow_other -r
    if [ -n "$PID" ]; then shown; fi
    end_mount
    within 20 "$B2FUSE" cat --raw "$S" 1
    no_secret "$T/.said"
    unharmed
}

test_finding_04b_a_chunk_becomes_a_link_under_a_mount() {
    scene
    local options
    for options in ro rw; do
        sframe full
        try_mount -o "allow_other,$options"
        "${attacker[@]}" ln -sf "$V/private" "$S/00000003.chunk"
        shown
        end_mount
        rm -r "$S"
    done
    unharmed
}

test_finding_04_a_chunk_becomes_a_link_to_a_chunk() {
    scene
    # Of the same size, so that nothing else gives it away; a chunk that is stored as it is.
    "$PY" - "$FX/new/plain" "$SECURITY" "$V/chunk" <<'END'
import sys
sys.path.insert(0, sys.argv[2])
from victims import secret
chunk = bytearray(open(sys.argv[1], "rb").read())
chunk[32:] = secret(len(chunk) - 32)
open(sys.argv[3], "wb").write(chunk)
END
    before=$(py_alone manifest "$V")
    local options
    for options in ro rw; do
        sframe full
        cp "$FX/new/plain" "$S/00000003.chunk"
        theirs "$S"
        try_mount -o "allow_other,$options"
        "${attacker[@]}" ln -sf "$V/chunk" "$S/00000003.chunk"
        shown
        end_mount
        rm -r "$S"
    done
    unharmed
}

# ---- 5: lock files that are links

# lock_is_a_link VICTIM OPTION...: a link where the lock file goes, before a mount and after it.
lock_is_a_link() {
    local victim=$1 layout lock
    shift
    scene
    for layout in cframe sframe; do
        "$layout" full
        lock=$S.b2lock
        if [ $layout = sframe ]; then lock=$S/.b2lock; fi
        "${attacker[@]}" ln -s "$victim" "$lock"
        try_mount "$@"
        if [ -n "$PID" ]; then
            within 10 "${attacker[@]}" cat "$M"/*.b2lock "$M/.b2lock"
            no_secret "$T/.said"
            within 10 "${attacker[@]}" sh -c 'for file; do echo "ALL: ALL" >"$file"; done' - "$M"/*.b2lock "$M/.b2lock"
            "${attacker[@]}" sh -c "$COPY_IN" - "$FX" "$M" || true
        fi
        end_mount
        # The same while it is mounted.
        rm -f "$lock"
        try_mount "$@"
        "${attacker[@]}" ln -sf "$victim" "$lock"
        within 20 "${attacker[@]}" sh -c "$COPY_IN" - "$FX" "$M"
        within 10 "${attacker[@]}" cat "$M"/*.b2lock "$M/.b2lock"
        no_secret "$T/.said"
        end_mount
        unharmed "$layout"
        rm -r "$S" "$lock" 2>/dev/null || true
    done
}
# In either view.
# shellcheck disable=SC2016 # for a shell of the attacker's
COPY_IN='if [ -e "$2/s.b2frame" ]; then cp "$1/base.b2frame" "$2/s.b2frame"; else cp "$1/new/0" "$2/00000003.chunk"; fi'

test_finding_05_the_lock_file_is_a_link() { lock_is_a_link "$V/private" --locking -o allow_other; }
test_finding_05_the_lock_file_is_a_link_and_all_may_write() { lock_is_a_link "$V/private" --locking -o allow_other,umask=0; }
test_finding_05_the_lock_file_is_a_link_to_a_short_file() { lock_is_a_link "$V/short" --locking -o allow_other; }
test_held_05_the_lock_file_is_a_link_to_nothing() { lock_is_a_link "$V/home/new" --locking -o allow_other; }
test_finding_05_the_environment_asks_for_locking() {
    export BLOSC_LOCKING=1
    lock_is_a_link "$V/private" -o allow_other
}

# ---- 8: SOURCE becomes a link

# source_becomes_a_link LAYOUT TARGET OPTION...: reading, writing and the end come in time, and nothing is spun away.
source_becomes_a_link() {
    local layout=$1 target=$2 lock shown_lock
    shift 2
    scene
    "$layout" full
    # The attacker's own lock file, as the library makes it.
    if [ "$layout" = sframe ]; then lock=$S/.b2lock shown_lock=$M/s.b2frame.b2lock; else lock=$S.b2lock shown_lock=$M/.b2lock; fi
    if [[ " $* " = *" --locking "* ]]; then "${attacker[@]}" truncate -s 16 "$lock"; fi
    try_mount -o allow_other "$@"
    if [[ " $* " = *" --locking "* ]]; then
        "${attacker[@]}" "$PY" -c "$UNDER_LOCK" "$lock" sh -c "$BECOMES" - "$S" "$target"
    else
        # Something that has not been committed.
        if [ "$layout" = cframe ]; then "${attacker[@]}" cp "$FX/new/0" "$M/00000FFF.chunk" 2>/dev/null || true; fi
        "${attacker[@]}" sh -c "$BECOMES" - "$S" "$target"
    fi
    # Longer than what the daemon looks after now and then takes to come round.
    local _
    for _ in 1 2 3; do
        # Who gets the lock sees what SOURCE is now.
        if [[ " $* " = *" --locking "* ]]; then within 10 "${attacker[@]}" flock -s "$shown_lock" true; fi
        within 10 ls -l "$M"
        within 10 sh -c 'cat "$1"/* "$1"/.b2lock' - "$M"
        no_secret "$T/.said"
        within 10 "${attacker[@]}" sh -c "$COPY_IN" - "$FX" "$M"
        within 10 sync "$M"
        sleep 0.5
    done
    local used
    used=$(awk '{ print $14 + $15 }' "/proc/$PID/stat")
    [ "$used" -lt $(($(getconf CLK_TCK) * 3 / 2)) ] || fail "the daemon has been at work for $used ticks"
    kill -TERM "$PID"
    daemon_ends
    if mounted; then fail "still mounted"; fi
    unharmed
}
# shellcheck disable=SC2016 # for a shell of the attacker's
BECOMES='cp -r "$1" "$1.v2" && mv "$1" "$1.v1" && ln -s "$2" "$1"'
# Who changes a frame under its lock counts that there.
UNDER_LOCK='
import fcntl, subprocess, sys
with open(sys.argv[1], "r+b") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    subprocess.run(sys.argv[2:], check=True)
    lock.seek(8)
    count = int.from_bytes(lock.read(8), sys.byteorder) + 1
    lock.seek(8)
    lock.write(count.to_bytes(8, sys.byteorder))
'

test_held_08_source_becomes_a_link_to_its_next_version() { source_becomes_a_link cframe c.b2frame.v2 -r; }
test_finding_08_a_directory_becomes_a_link_to_its_next_version() { source_becomes_a_link sframe s.b2frame.v1 -r; }
test_finding_08_source_becomes_a_link_under_its_lock() { source_becomes_a_link cframe c.b2frame.v2 --locking; }
test_held_08_a_directory_becomes_a_link_under_its_lock() { source_becomes_a_link sframe s.b2frame.v2 --locking; }
test_held_08_source_becomes_a_link_while_it_may_be_written() { source_becomes_a_link cframe c.b2frame.v2; }
test_held_08_a_directory_becomes_a_link_while_it_may_be_written() { source_becomes_a_link sframe s.b2frame.v2; }
test_held_08_source_becomes_a_link_to_a_secret() { source_becomes_a_link cframe "$V/private"; }
test_held_08_a_directory_becomes_a_link_to_a_secret() { source_becomes_a_link sframe "$V/open"; }
test_held_08_source_becomes_a_dangling_link() { source_becomes_a_link cframe "$V/home/new" --locking; }
test_held_08_a_directory_becomes_a_dangling_link() { source_becomes_a_link sframe "$V/home/new" --locking; }

# The directory that SOURCE is in becomes a link: what was opened at the beginning is what is written to.
directory_becomes_a_link() {
    scene
    mkdir "$U/d"
    "$1" full d/f
    theirs "$U"
    try_mount -o allow_other
    "${attacker[@]}" mv "$U/d" "$U/d.v1"
    "${attacker[@]}" ln -s "$V/open" "$U/d"
    within 10 cat "$M"/*
    no_secret "$T/.said"
    local n
    for n in 1 2 3; do
        if [ "$1" = cframe ]; then
            "${attacker[@]}" cp "$FX/new/$n" "$M/0000000$n.chunk" 2>/dev/null || true
            "${attacker[@]}" cp "$FX/new/$n" "$M/00000FF$n.chunk" 2>/dev/null || true
        else
            "${attacker[@]}" cp "$FX/base.b2frame" "$M/f.b2frame" 2>/dev/null || true
        fi
        within 10 sync "$M"
    done
    end_mount
    unharmed
}
test_held_08_the_directory_of_source_becomes_a_link() { directory_becomes_a_link cframe; }
test_held_08_the_directory_of_a_directory_becomes_a_link() { directory_becomes_a_link sframe; }

# ---- 13: what is saved has the holes that it had, and is whole or not there

test_finding_13_an_endless_index_fills_no_disk() {
    scene
    # A file system of its own, and not large.
    mount -t tmpfs -o size=48m,mode=755 b2fuse-test "$U"
    theirs "$U"
    cframe full
    try_mount -o allow_other
    truncate -s 4E "$M/.t"
    within 20 mv "$M/.t" "$M/chunks.b2frame"
    within 20 sync "$M"
    # It may have to be told twice, when there is something that it cannot keep.
    within 30 "$B2FUSE" umount "$M"
    if mounted; then within 30 "$B2FUSE" umount -z "$M"; fi
    daemon_ends
    local used
    used=$(room_taken)
    umount "$U"
    [ "$used" -lt 8192 ] || fail "$used KiB are used"
    unharmed
}

test_finding_13_an_index_of_holes_takes_no_time() {
    scene
    cframe full
    try_mount -o allow_other
    truncate -s 64G "$M/.t"
    within 20 mv "$M/.t" "$M/chunks.b2frame"
    within 30 "$B2FUSE" umount "$M"
    if mounted; then within 30 "$B2FUSE" umount -z "$M"; fi
    daemon_ends
    local used
    used=$(room_taken)
    [ "$used" -lt 65536 ] || fail "$used KiB are used"
}

test_finding_13_holes_are_saved_as_holes() {
    scene
    cframe full
    try_mount -o allow_other
    # As long as an index may be, and none.
    truncate -s 1G "$M/.t"
    printf 'the end' >>"$M/.t"
    mv "$M/.t" "$M/chunks.b2frame"
    within 60 "$B2FUSE" umount "$M"
    if mounted; then within 60 "$B2FUSE" umount -z "$M"; fi
    daemon_ends
    local file
    file=$(kept_things -size +1048575k -print -quit)
    [ -n "$file" ] || fail "it was taken, and is not saved: $(kept_things)"
    equal "$(stat -c %s "$file")" $(((1 << 30) + 7)) "length"
    equal "$(tail -c 7 "$file")" "the end"
    [ "$(du -k "$file" | cut -f 1)" -lt 1024 ] || fail "holes were filled: $(du -k "$file")"
    rm "$file"
}

test_finding_13_what_cannot_be_saved_whole_is_not_saved_at_all() {
    scene
    mount -t tmpfs -o size=1m,mode=755 b2fuse-test "$U"
    theirs "$U"
    cframe full
    try_mount -o allow_other
    "${attacker[@]}" cp "$FX/new/0" "$M/00000FFF.chunk"
    dd if=/dev/zero of="$U/fill" bs=4k status=none 2>/dev/null || true
    within 20 "$B2FUSE" umount "$M"
    if mounted; then within 20 "$B2FUSE" umount -z "$M"; fi
    daemon_ends
    local file
    while read -r file; do
        cmp "$file" "$FX/new/0"
    done < <(kept_things -type f -name '00000FFF*')
    umount "$U"
}

# ---- 15: what is saved is no more public than SOURCE

# lost_is_private LAYOUT
lost_is_private() {
    scene
    chmod 755 "$U"
    "$1" full
    # With the bits for others on the files alone, which the directory hides.
    chmod -R go= "$S"
    try_mount -o allow_other
    if [ "$1" = cframe ]; then
        "${attacker[@]}" cp "$FX/new/0" "$M/00000FFF.chunk"
    else
        # A whole frame, which is not committed when SOURCE changes.
        begin_writing "$M/s.b2frame" "$FX/many.b2frame"
        "${attacker[@]}" touch "$S/chunks.b2frame"
        end_writing
    fi
    end_mount
    [ -d "$S.lost" ] || fail "nothing is saved: $(ls -la "$U")"
    equal "$(stat -c '%a %u' "$S.lost")" "700 ${ATTACKER%:*}"
    local file
    while read -r file; do
        if "${other[@]}" cat "$file" >/dev/null 2>&1; then fail "anybody can read $file"; fi
        "${attacker[@]}" cat "$file" >/dev/null
        equal "$(stat -c '%u' "$file")" "${ATTACKER%:*}" "owner of $file"
    done < <(find "$S.lost" -type f)
    [ -n "$(find "$S.lost" -type f)" ] || fail "nothing is saved"
}
test_finding_15_what_is_lost_is_private() { lost_is_private cframe; }
test_finding_15_what_is_lost_of_a_directory_is_private() { lost_is_private sframe; }

# ---- 18: pipes do not stop repair, nor anything else

test_finding_18_repair_meets_a_pipe() {
    scene
    local name
    for name in 00000001.chunk chunks.b2frame .b2lock; do
        sframe full
        rm -f "$S/$name"
        "${attacker[@]}" mkfifo "$S/$name"
        within 10 "$B2FUSE" repair "$S"
        within 10 "$B2FUSE" repair --yes "$S"
        rm -r "$S" "$S.before-repair"* 2>/dev/null || true
    done
    S=$U/pipe
    "${attacker[@]}" mkfifo "$S"
    within 10 "$B2FUSE" repair --yes "$S"
}

test_held_18_all_other_commands_meet_a_pipe() {
    scene
    local name command
    for name in 00000001.chunk chunks.b2frame .b2lock; do
        sframe full
        rm -f "$S/$name"
        "${attacker[@]}" mkfifo "$S/$name"
        for command in info ls check compact "cat --raw 0 1" "convert x"; do
            # shellcheck disable=SC2086 # words of a command
            set -- $command
            case $1 in
                cat) within 10 "$B2FUSE" cat --raw "$S" 0 1 ;;
                convert) within 10 "$B2FUSE" convert "$S" "$U/x" ;;
                *) within 10 "$B2FUSE" "$1" "$S" ;;
            esac
        done
        try_mount -r -o allow_other
        end_mount
        rm -rf "$S" "$U/x"
    done
}

# ---- 22: other links that are followed

test_finding_22_the_log_file_is_a_link() {
    scene
    cframe full
    "${attacker[@]}" ln -s "$V/private" "$U/log"
    "${attacker[@]}" ln -s "$V/home/new" "$U/newlog"
    local log
    for log in log newlog; do
        within 20 "$B2FUSE" mount -v --log-file "$U/$log" "$S" "$M"
        if mounted; then within 20 "$B2FUSE" umount "$M"; fi
    done
    unharmed
}

test_finding_22_the_log_file_is_a_pipe() {
    scene
    cframe full
    "${attacker[@]}" mkfifo "$U/log"
    within 10 "$B2FUSE" mount --log-file "$U/log" "$S" "$M"
    if mounted; then within 20 "$B2FUSE" umount "$M"; fi
}

test_held_22_a_directory_has_the_name_of_an_unfinished_index() {
    scene
    sframe full
    "${attacker[@]}" mkdir "$S/.b2fuse-chunks.tmp"
    "${attacker[@]}" touch "$S/.b2fuse-chunks.tmp/x"
    try_mount -o allow_other
    "${attacker[@]}" cp "$FX/base.b2frame" "$M/s.b2frame" 2>/dev/null || true
    end_mount
}
