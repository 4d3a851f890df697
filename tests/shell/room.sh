# The room that a frame takes, from mount to mount.

# live: bytes of the chunks in SOURCE.
live() { "$B2FUSE" ls --json "$S" | sed -n 's/.*"cbytes": *\([0-9]*\).*/\1/p' | awk '{ n += $1 } END { print n + 0 }'; }
# Three indexes, and blocks that are used in part.
slack=$((3 * 4096 + 4096))
# blocks_are_few, is_short: against what lives, by the blocks that the file takes and by its length.
blocks_are_few() { no_more_than $(($(stat -c %b "$S") * 512)) "blocks"; }
is_short() { no_more_than "$(stat -c %s "$S")" "length"; }
no_more_than() {
    local live
    live=$(live)
    [ "$live" -gt 50000 ] || fail "only $live bytes live" || return
    [ "$1" -le $((live * 3 / 2 + slack)) ] || fail "$2: $1 bytes for $live that live"
}

test_one_chunk_in_each_of_forty_mounts() {
    source_from full
    local round
    for round in $(seq 40); do
        mount_it
        cp "$FX/new/$((round % 8))" "$(chunk $((round % 6)))"
        umount_it
        blocks_are_few
    done
    is_short
    holds n=6 4="$FX/new/0" 3="$FX/new/7"
    "$B2FUSE" check --deep "$S"
}

# unmounted: at once, without an fsync before.
unmounted() {
    fusermount3 -u "$M"
    await flock -n "$S" true
}
# big: a frame of five megabytes as SOURCE.
big() { mkdir "$M" && py 'make(sys.argv[1], "r" * 200)' "$S"; }

test_all_chunks_in_each_of_seven_mounts() {
    big
    mkdir "$T/chunks"
    mount_it -r
    cp "$M"/*.chunk "$T/chunks"
    umount_it
    local round
    for round in $(seq 7); do
        mount_it
        cp "$T/chunks"/* "$M"
        if [ $((round % 2)) = 1 ]; then umount_it; else unmounted; fi
        blocks_are_few
    done
    is_short
    holds n=200 0="$T/chunks/00000000.chunk" 199="$T/chunks/000000C7.chunk"
    "$B2FUSE" check --deep "$S"
}

test_all_chunks_at_once() {
    big
    mount_it
    py 's = blosc2.open(sys.argv[1], mode="a")
s[:] = b"".join(noise(1000 + n) for n in range(200))' "$M"
    unmounted
    blocks_are_few
    local n
    for n in 1 2 3; do
        mount_it
        cp "$FX/new/$n" "$(chunk $n)"
        umount_it
    done
    blocks_are_few
    is_short
    py 's = blosc2.open(sys.argv[1])
assert all(s.decompress_chunk(n) == noise(1000 + n) for n in [0, *range(4, 200)])' "$S"
    "$B2FUSE" check --deep "$S"
}

test_looking_takes_and_gives_back_nothing() {
    source_from many
    # As others may have left it: with holes, and bytes behind the frame.
    mount_it
    rm "$(chunk 3)" "$(chunk 9)"
    umount_it
    head -c 5000 /dev/zero >>"$S"
    local before
    before=$(stat -c '%s %b %Y %Z' "$S")
    mount_it
    cat "$M"/* >"$T/all"
    umount_it
    equal "$(stat -c '%s %b %Y %Z' "$S")" "$before"
}

test_killed_daemons_leave_no_files_behind() {
    sparse_from many
    local round stranger=$S/00000F00.chunk
    cp "$FX/new/0" "$stranger"
    for round in 1 2 3 4; do
        mount_front
        py 's = blosc2.open(sys.argv[1], mode="a")
for n in range(20): s.update_data(n, noise(100 * int(sys.argv[2]) + n), copy=True)' "$V" "$round"
        crash
    done
    mount_it
    py 'blosc2.open(sys.argv[1], mode="a").update_data(0, noise(7), copy=True)' "$V"
    umount_it
    [ -e "$stranger" ] || fail "a file that no daemon made is gone"
    rm "$stranger"
    equal "$(ls -A "$S" | wc -l)" 65 "the index and 64 chunks"
    py 's = blosc2.open(sys.argv[1])
assert s.nchunks == 64 and s.decompress_chunk(0) == noise(7)
assert all(s.decompress_chunk(n) == noise(n) for n in range(20, 64))' "$S"
}
