# Frames that are shown in the layout that they have.

# sparse_as_sparse NAME: a sparse frame, shown as a directory.
sparse_as_sparse() {
    sparse_from "$1"
    mount_it --show sparse
}

test_a_directory_shown_as_a_directory() {
    sparse_from base
    # Ids that are no positions.
    py 's = blosc2.open(sys.argv[1], mode="a"); s.insert_data(1, noise(7), True); s.delete_chunk(0)' "$S"
    mount_it --show sparse
    equal "$(ls "$M")" "$(ls "$S")"
    local name
    for name in "$S"/*.chunk; do cmp "$name" "$M/${name##*/}"; done
    tool same "$M" "$S"
    umount_it
}

test_a_file_shown_as_a_file() {
    source_from full
    mount_it --show contiguous
    V=$M/source.b2frame
    equal "$(ls "$M")" source.b2frame
    tool twins "$V" "$S"
    cp "$FX/base.b2frame" "$V"
    umount_it
    tool same "$S" "$FX/base.b2frame"
    : >"$T/file"
    "$B2FUSE" mount -o show=contiguous "$S" "$T/file"
    tool same "$T/file" "$FX/base.b2frame"
    "$B2FUSE" umount "$T/file"
}

# SOURCE's own bytes at their own offsets, dead space included, until the first change; then the length that the change left.
test_a_file_with_holes_shown_as_a_file() {
    mkdir "$M"
    local frame size
    for frame in "$ROOT"/tests/data/cframe/*; do
        echo "$frame"
        cp "$frame" "$S"
        mount_it --show contiguous
        cmp "$S" "$M/source.b2frame"
        cmp "$S" "$frame"
        umount_it
        cmp "$S" "$frame"
    done
    cp "$ROOT/tests/data/cframe/holes.b2frame" "$S"
    mount_it --show contiguous
    V=$M/source.b2frame
    py 's = blosc2.open(sys.argv[1], "a"); s.vlmeta["unit"] = "kelvin"' "$V"
    size=$(stat -c %s "$V")
    sync "$V"
    equal "$(stat -c %s "$V") $(cat "$V" | wc -c)" "$size $size"
    tool same "$V" "$S"
    umount_it
    mount_it --show contiguous
    cmp "$S" "$V"
}

test_the_other_layout_by_its_name() {
    source_from full
    mount_it --show sparse
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    mount_it --show other
    cmp "$(chunk 3)" "$FX/full/3"
    umount_it
    rm "$S"
    sparse_from full
    mount_it --show Contiguous
    tool same "$V" "$S"
    umount_it
}

test_a_chunk_copied_onto_a_chunk_of_a_directory() {
    sparse_as_sparse full
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    holds n=6 2="$FX/full/2" 3="$FX/new/0" 4="$FX/full/4"
    equal "$(find "$S" -name '*.chunk' | wc -l)" 6
}

# By hand, what comes behind the last chunk is named from the largest id on, and no file has a special position's name.
test_chunks_appended_to_a_directory_by_hand() {
    sparse_from full
    py 's = blosc2.open(sys.argv[1], mode="a"); s.insert_data(1, noise(7), True); s.delete_chunk(0)' "$S"
    mount_it --show sparse
    equal "$(ls "$S" | tail -n 2)" "00000006.chunk
chunks.b2frame"
    cp "$FX/new/1" "$(chunk 7)"
    cp "$FX/new/2" "$(chunk 8)"
    sync "$M/chunks.b2frame"
    holds n=8 1="$FX/full/1" 6="$FX/new/1" 7="$FX/new/2"
    tool same "$M" "$S"
    # Not behind the last one: it finds no place, and is kept.
    cp "$FX/new/3" "$(chunk 20)"
    exits 1 "$B2FUSE" umount "$M"
    has "$(cat "$T/.err")" "$S.lost"
    cmp "$S.lost/00000014.chunk" "$FX/new/3"
    holds n=8 6="$FX/new/1" 7="$FX/new/2"
}

# Where no chunk has a file as well.
test_chunks_appended_to_a_directory_of_special_chunks() {
    py 'make(sys.argv[1], "zn", contiguous=False)' "$S"
    mkdir "$M"
    mount_it --show sparse
    cp "$FX/new/1" "$(chunk 0)"
    umount_it
    holds n=3 0=zeros 1=nan 2="$FX/new/1"
}

test_a_chunk_removed_from_a_directory_by_hand() {
    sparse_as_sparse full
    rm "$(chunk 2)"
    umount_it
    holds n=6 1="$FX/full/1" 2=uninit 3="$FX/full/3"
    mount_it --show sparse
    # Its position has no name any more.
    cp "$FX/new/0" "$(chunk 2)"
    exits 1 "$B2FUSE" umount "$M"
    cmp "$S.lost/00000002.chunk" "$FX/new/0"
    holds n=6 2=uninit
}

# What the library does to one file in several rounds comes to SOURCE at once.
test_a_change_is_all_or_nothing() {
    local layout
    for layout in sframe cframe; do
        if [ $layout = sframe ]; then sparse_as_sparse full; else source_from full && mount_it --show contiguous; fi
        cp -r "$S" "$T/before.b2frame"
        local index=$M/chunks.b2frame
        if [ $layout = cframe ]; then index=$M/source.b2frame; fi
        # A writer that stops half-way.
        py 'fd = os.open(sys.argv[1], os.O_RDWR); os.pwrite(fd, bytes(200), 0); os.close(fd)' "$index" 2>/dev/null || true
        tool same "$S" "$T/before.b2frame"
        # What was written is named, where it is kept.
        "$B2FUSE" umount "$M" 2>/dev/null || [ -e "$S.lost/chunks.b2frame" ]
        tool same "$S" "$T/before.b2frame"
        rm -r "$S" "$T/before.b2frame" "$S.lost" 2>/dev/null || true
    done
}

test_locks_of_frames_in_their_own_layout() {
    sparse_from full
    mount_it --show sparse --locking
    [ -e "$M/.b2lock" ]
    flock -n "$M/.b2lock" "$B2FUSE" info "$S" >/dev/null
    exec 8<>"$S/.b2lock"
    flock 8
    fails "" flock -n "$M/.b2lock" true
    exec 8>&-
    umount_it
    rm -r "$S"
    source_from full
    mount_it --show contiguous --locking
    exec 8<>"$S.b2lock"
    flock 8
    fails "" flock -n "$M/source.b2frame.b2lock" true
    exec 8>&-
    umount_it
}

test_what_cannot_be_shown() {
    sparse_from full
    : >"$T/file"
    one_line "$T/file" "to be shown as a directory" "$B2FUSE" mount --show sparse "$S" "$T/file"
    exits 2 "$B2FUSE" mount --show data "$S" "$M"
    exits 2 "$B2FUSE" mount -o show=data "$S" "$M"
    has "$(cat "$T/.err")" "expected other, sparse, contiguous, npy or raw"
    one_line "$T/new" "--show sparse" "$B2FUSE" mount --create --show contiguous "$T/new" "$M"
    [ ! -e "$T/new" ]
}
