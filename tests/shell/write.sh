# Writing: onto chunks of the index, where the index says nothing, and what is refused.

# ---- Onto a chunk in the index

test_copying_onto_a_chunk_replaces_it() {
    source_from base
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    cmp "$(chunk 3)" "$FX/new/0"
    cp "$FX/new/plain" "$(chunk 9)"
    cmp "$(chunk 9)" "$FX/new/plain"
    # The library sees it through the mount as well.
    tool holds "$M" 3="$FX/new/0" 9="$FX/new/plain"
    umount_it
    holds n=10 0="$FX/base/0" 1="$FX/base/1" 2=zeros 3="$FX/new/0" 4=uninit 5=nan 6="$FX/base/6" 7="$FX/base/7" 8="$FX/base/8" 9="$FX/new/plain"
    mount_it
    cmp "$(chunk 3)" "$FX/new/0"
}

test_a_special_chunk_may_be_copied_onto_a_chunk() {
    source_from base
    mount_it
    cp "$FX/new/zeros" "$(chunk 3)"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(3) == bytes(CHUNKSIZE) and s.decompress_chunk(6) == noise(6)' "$S"
}

# refused_bytes FILE: copying it onto chunk 3 gives EINVAL at close, and leaves the old chunk.
refused_bytes() {
    fails "Invalid argument" cp "$1" "$(chunk 3)"
    cmp "$(chunk 3)" "$FX/base/3"
}

test_what_is_no_whole_chunk_is_refused_at_close() {
    source_from base
    mount_it
    head -c 30000 /dev/urandom >"$T/garbage"
    refused_bytes "$T/garbage"
    head -c 20000 "$FX/new/0" >"$T/cut"
    refused_bytes "$T/cut"
    head -c 31 "$FX/new/0" >"$T/cut"
    refused_bytes "$T/cut"
    { cat "$FX/new/0" && echo; } >"$T/longer"
    refused_bytes "$T/longer"
    cat "$FX/new/0" "$FX/new/1" >"$T/two"
    refused_bytes "$T/two"
    umount_it
    tool same "$S" "$FX/base.b2frame"
    [ ! -e "$S.lost" ]
}

test_a_chunk_of_another_size_is_refused_at_close() {
    source_from base
    mount_it
    refused_bytes "$FX/new/short"
    refused_bytes "$FX/new/longer"
    fails "Invalid argument" cp "$FX/new/longer" "$(chunk 9)"
    umount_it
    tool same "$S" "$FX/base.b2frame"
}

test_the_last_chunk_may_be_short() {
    source_from short
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    holds n=4 3="$FX/new/0"
    mount_it
    cp "$FX/new/short" "$(chunk 3)"
    umount_it
    holds n=4 3="$FX/new/short"
    py 's = blosc2.open(sys.argv[1]); assert s.nbytes == 3 * CHUNKSIZE + CHUNKSIZE // 2 and s.chunksize == CHUNKSIZE, s.info' "$S"
}

test_a_chunk_header_that_lies_is_refused() {
    source_from base
    mount_it
    local at
    # nbytes, blocksize and cbytes, each too large, too small, and negative.
    for at in 4 8 12; do
        for lie in '\xff\xff\xff\x7f' '\x01\x00\x00\x00' '\x00\x00\x00\x80'; do
            cp "$FX/new/0" "$T/lie"
            printf "$lie" | dd of="$T/lie" bs=1 seek=$at conv=notrunc status=none
            refused_bytes "$T/lie"
        done
    done
}

test_an_empty_file_is_not_yet_a_chunk() {
    source_from base
    mount_it
    : >"$(chunk 3)"
    touch "$(chunk 2)" "$(chunk 10)"
    equal "$(stat -c %s "$(chunk 3)")" 0
    umount_it
    holds n=10 2=zeros 3="$FX/base/3"
    mount_it
    : >"$(chunk 3)"
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    holds n=10 3="$FX/new/0"
}

test_pieces_at_odd_offsets_make_a_chunk() {
    source_from base
    mount_it
    py 'path, new = sys.argv[1], open(sys.argv[2], "rb").read()
import os
fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
cuts = [0, 1, 33, 4095, 4097, 20011, len(new)]
pieces = list(zip(cuts, cuts[1:]))
for a, b in pieces[::2] + pieces[1::2]:
    os.pwrite(fd, new[a:b], a)
os.close(fd)' "$(chunk 3)" "$FX/new/0"
    cmp "$(chunk 3)" "$FX/new/0"
    dd if="$FX/new/1" of="$(chunk 6)" bs=777 status=none
    cmp "$(chunk 6)" "$FX/new/1"
    umount_it
    holds 3="$FX/new/0" 6="$FX/new/1"
}

# Several processes write through one open file: each of them closes it, and only the last close finds a chunk.
test_several_writers_of_one_open_file_make_a_chunk() {
    source_from base
    mount_it
    {
        dd if="$FX/new/0" bs=1001 count=10 status=none || true
        dd if="$FX/new/0" bs=1001 skip=10 status=none
    } >"$(chunk 3)"
    cmp "$(chunk 3)" "$FX/new/0"
    umount_it
    holds 3="$FX/new/0"
}

test_changing_a_chunk_in_place() {
    source_from base
    mount_it
    # A plain chunk stays one when a byte of its data changes.
    cp "$FX/new/plain" "$(chunk 3)"
    printf X | dd of="$(chunk 3)" bs=1 seek=1031 conv=notrunc status=none
    cp "$FX/new/plain" "$T/want"
    printf X | dd of="$T/want" bs=1 seek=1031 conv=notrunc status=none
    cmp "$(chunk 3)" "$T/want"
    # A header that no longer fits the bytes is refused, and the change with it.
    fails "Invalid argument" dd if=/dev/zero of="$(chunk 3)" bs=1 seek=12 count=4 conv=notrunc
    cmp "$(chunk 3)" "$T/want"
    fails "Invalid argument" truncate -s 100 "$(chunk 3)"
    cmp "$(chunk 3)" "$T/want"
    umount_it
    holds 3="$T/want"
}

test_open_files_see_what_happens_to_them() {
    source_from full
    mount_it
    exec 7<"$(chunk 3)" 8<"$(chunk 4)" 9<"$(chunk 5)"
    # Written in place: the same file.
    cp "$FX/new/0" "$(chunk 3)"
    cmp - "$FX/new/0" <&7
    # Replaced by another file, and removed: what was open stays as it was.
    cp "$FX/new/1" "$M/.x"
    mv "$M/.x" "$(chunk 4)"
    rm "$(chunk 5)"
    cmp "$(chunk 4)" "$FX/new/1"
    fails "No such file or directory" cat "$(chunk 5)"
    sync "$M"
    cp "$FX/new/2" "$(chunk 0)"
    cp "$FX/new/3" "$(chunk 1)"
    sync "$M"
    cmp - "$FX/full/4" <&8
    cmp - "$FX/full/5" <&9
    exec 7<&- 8<&- 9<&-
    umount_it
    holds n=6 0="$FX/new/2" 1="$FX/new/3" 3="$FX/new/0" 4="$FX/new/1" 5=uninit
}

test_a_name_looked_for_before_it_was_there() {
    source_from full
    mount_it
    fails "No such file or directory" stat "$(chunk 6)"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(9))' "$M"
    test -f "$(chunk 6)"
    has "$(ls "$M")" 00000006.chunk
    fails "No such file or directory" stat "$(chunk 7)"
    cp "$FX/new/0" "$(chunk 7)"
    cmp "$(chunk 7)" "$FX/new/0"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.delete_chunk(6)' "$M"
    fails "No such file or directory" stat "$(chunk 6)"
}

# ---- Where the index says nothing

# filled: a file named after a special position is that position's chunk in SOURCE.
filled() { holds n=10 2="$FX/new/0" 4=uninit 5=nan; }

test_a_file_after_a_special_position_fills_it_at_unmount() {
    source_from base
    mount_it
    cp "$FX/new/0" "$(chunk 2)"
    cmp "$(chunk 2)" "$FX/new/0"
    umount_it
    filled
}

test_a_file_after_a_special_position_fills_it_at_fsync() {
    source_from base
    mount_it
    cp "$FX/new/0" "$(chunk 2)"
    sync "$(chunk 2)"
    filled
    tool same "$M" "$S"
}

test_a_file_after_a_special_position_fills_it_when_the_mount_settles() {
    source_from base
    mount_it
    cp "$FX/new/0" "$(chunk 2)"
    await filled
    await tool same "$M" "$S"
}

test_files_from_the_end_on_are_appended() {
    source_from full
    mount_it
    local n
    for n in 0 1 2; do cp "$FX/new/$n" "$(chunk $((6 + n)))"; done
    umount_it
    holds n=9 5="$FX/full/5" 6="$FX/new/0" 7="$FX/new/1" 8="$FX/new/2"
    mount_it
    cmp "$(chunk 8)" "$FX/new/2"
}

test_files_in_any_order_are_appended() {
    source_from full
    mount_it
    local n
    for n in 2 0 1; do cp "$FX/new/$n" "$(chunk $((6 + n)))"; done
    umount_it
    holds n=9 6="$FX/new/0" 7="$FX/new/1" 8="$FX/new/2"
    [ ! -e "$S.lost" ]
}

test_the_last_file_appended_may_be_short() {
    source_from full
    mount_it
    cp "$FX/new/0" "$(chunk 6)"
    cp "$FX/new/short" "$(chunk 7)"
    umount_it
    holds n=8 6="$FX/new/0" 7="$FX/new/short"
    py 's = blosc2.open(sys.argv[1]); assert s.chunksize == CHUNKSIZE and len(s) == (7 * CHUNKSIZE + CHUNKSIZE // 2) // 4, len(s)' "$S"
}

test_a_file_beyond_a_gap_is_saved_beside_source() {
    source_from full
    mount_front
    cp "$FX/new/0" "$(chunk 6)"
    cp "$FX/new/1" "$(chunk 9)"
    sync "$M/chunks.b2frame"
    holds n=7 6="$FX/new/0"
    cmp "$(chunk 9)" "$FX/new/1"
    one_line "$M" "$S.lost/00000009.chunk" umount_it
    exits 1 end_of_daemon
    holds n=7
    cmp "$S.lost/00000009.chunk" "$FX/new/1"
    grep -q " ERROR .*$S.lost" "$T/log"
    # A second time keeps the first.
    mount_it
    cp "$FX/new/2" "$(chunk 9)"
    one_line "$M" "$S.lost/" umount_it
    cmp "$S.lost/00000009.chunk" "$FX/new/1"
    equal "$(find "$S.lost" -type f | wc -l)" 2
}

test_the_gap_filled_the_rest_is_appended() {
    source_from full
    mount_it
    cp "$FX/new/1" "$(chunk 7)"
    sync "$(chunk 7)"
    holds n=6
    cp "$FX/new/0" "$(chunk 6)"
    umount_it
    holds n=8 6="$FX/new/0" 7="$FX/new/1"
    [ ! -e "$S.lost" ]
}

test_a_removed_chunk_becomes_uninitialised() {
    source_from base
    mount_it
    rm "$(chunk 3)"
    fails "No such file or directory" cat "$(chunk 3)"
    umount_it
    holds n=10 2=zeros 3=uninit 6="$FX/base/6"
    mount_it
    rm "$(chunk 6)"
    sync "$M/chunks.b2frame"
    holds n=10 6=uninit
    # Coming back is filling a special position.
    cp "$FX/new/0" "$(chunk 6)"
    umount_it
    holds n=10 3=uninit 6="$FX/new/0"
}

test_the_index_wins() {
    source_from full
    mount_it
    cp "$M/chunks.b2frame" "$T/index"
    cp "$FX/new/0" "$(chunk 6)"
    sync "$(chunk 6)"
    holds n=7 6="$FX/new/0"
    # An index written later that does not name the file drops it.
    cp "$T/index" "$M/chunks.b2frame"
    await test ! -e "$(chunk 6)"
    umount_it
    tool same "$S" "$FX/full.b2frame"
    [ ! -e "$S.lost" ]
}

test_an_index_is_held_until_its_chunks_exist() {
    source_from full
    local native=$T/native.b2frame
    mount_it
    # An index that names chunks 6 and 7, first; then the chunks.
    cp -r "$M" "$native"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(300)); s.append_data(noise(301)); s.vlmeta["two"] = "more"' "$native"
    cp "$native/chunks.b2frame" "$M/chunks.b2frame"
    cmp "$M/chunks.b2frame" "$native/chunks.b2frame"
    holds n=6
    cp "$native/00000006.chunk" "$M/"
    holds n=6
    cp "$native/00000007.chunk" "$M/"
    sync "$M/chunks.b2frame"
    tool same "$S" "$native"
    umount_it
    tool same "$S" "$native"
}

# ---- Temporary names

test_a_dot_file_renamed_onto_a_chunk_replaces_it() {
    source_from base
    mount_it
    cp "$FX/new/0" "$M/.part"
    cmp "$M/.part" "$FX/new/0"
    mv "$M/.part" "$(chunk 3)"
    cmp "$(chunk 3)" "$FX/new/0"
    fails "No such file or directory" stat "$M/.part"
    umount_it
    holds n=10 3="$FX/new/0"
}

test_a_dot_file_renamed_onto_the_index_replaces_it() {
    source_from base
    mount_it
    cp "$M/chunks.b2frame" "$T/old"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.vlmeta["unit"] = "mile"; s.update_special(9, blosc2.SpecialValue.ZERO)' "$M"
    py 's = blosc2.open(sys.argv[1]); assert s.vlmeta["unit"] == "mile"' "$S"
    cp "$FX/base/9" "$(chunk 9)"
    cp "$T/old" "$M/.chunks.b2frame.x"
    mv "$M/.chunks.b2frame.x" "$M/chunks.b2frame"
    cmp "$M/chunks.b2frame" "$T/old"
    umount_it
    tool same "$S" "$FX/base.b2frame"
}

test_a_dot_file_that_is_no_chunk_cannot_be_renamed_onto_one() {
    source_from base
    mount_it
    echo "no chunk" >"$M/.part"
    equal "$(cat "$M/.part")" "no chunk"
    errnos EINVAL 'os.rename(M + "/.part", M + "/00000003.chunk")'
    cmp "$(chunk 3)" "$FX/base/3"
    equal "$(cat "$M/.part")" "no chunk"
    umount_it
    tool same "$S" "$FX/base.b2frame"
}

test_dot_files_live_as_long_as_the_mount() {
    source_from base
    mount_it
    cp "$FX/new/0" "$M/.a"
    mv "$M/.a" "$M/.b"
    echo more >>"$M/.b"
    equal "$(stat -c %s "$M/.b")" $(($(stat -c %s "$FX/new/0") + 5))
    has "$(ls -A "$M")" .b
    umount_it
    mount_it
    fails "No such file or directory" stat "$M/.b"
    umount_it
    equal "$(sha256sum <"$S")" "$(sha256sum <"$FX/base.b2frame")"
}

test_the_lock_file() {
    source_from base
    mount_it
    flock "$M/.b2lock" true
    exec 8<>"$M/.b2lock"
    flock -x 8
    exits 1 flock -n "$M/.b2lock" true
    flock -u 8
    exits 0 flock -n "$M/.b2lock" true
    exec 8<&-
    # The library with locking asked for.
    py 's = blosc2.open(sys.argv[1], mode="a", locking=True); s.update_data(3, noise(7), copy=True); s.vlmeta["l"] = 1' "$M"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(3) == noise(7) and s.vlmeta["l"] == 1' "$S"
}

# ---- Refused

test_nothing_else_can_be_in_the_directory() {
    source_from base
    mount_it
    errnos EPERM \
        'os.mkdir(M + "/d")' \
        'os.mkdir(M + "/.d")' \
        'os.symlink("x", M + "/l")' \
        'os.symlink("x", M + "/.l")' \
        'os.link(M + "/00000003.chunk", M + "/.l")' \
        'os.mknod(M + "/.fifo", 0o10600)' \
        'os.open(M + "/notes.txt", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/0000000a.chunk", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/3.chunk~", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/A.chunk", os.O_WRONLY | os.O_CREAT)' \
        'os.rename(M + "/00000003.chunk", M + "/x")'
    cmp "$(chunk 3)" "$FX/base/3"
    umount_it
    equal "$(sha256sum <"$S")" "$(sha256sum <"$FX/base.b2frame")"
}

test_a_broken_index_never_reaches_source() {
    source_from full
    mount_it
    head -c 100 "$M/chunks.b2frame" >"$T/cut"
    cp "$T/cut" "$M/chunks.b2frame" || true
    tool same "$S" "$FX/full.b2frame"
    umount_it || true
    tool same "$S" "$FX/full.b2frame"
}

# ---- Creating

test_a_copied_sframe_makes_a_cframe() {
    mkdir "$M"
    mount_it --create
    equal "$(ls -A "$M")" ""
    cp -r "$FX/native.b2frame/." "$M/"
    umount_it
    [ -f "$S" ]
    tool same "$S" "$FX/native.b2frame"
}

test_an_sframe_with_specials_makes_a_cframe() {
    mkdir "$M"
    tool make "$T/native.b2frame" rzrnurvrs ""
    mount_it --create
    cp -r "$T/native.b2frame/." "$M/"
    tool same "$M" "$T/native.b2frame"
    sync "$M/chunks.b2frame"
    tool same "$S" "$T/native.b2frame"
    umount_it
    tool same "$S" "$T/native.b2frame"
}

test_creating_nothing_leaves_nothing() {
    mkdir "$M"
    mount_it --create
    umount_it
    [ ! -e "$S" ]
    equal "$(ls "$T")" mnt
}

# What cannot be an index is neither taken nor saved, whatever its length.
test_a_sparse_file_is_not_renamed_onto_the_index() {
    source_from full
    mount_front
    truncate -s 4E "$M/.t"
    errnos EFBIG 'os.rename(f"{M}/.t", f"{M}/chunks.b2frame")'
    equal "$(stat -c %s "$M/.t")" $((4 << 60))
    tool same "$M" "$FX/full.b2frame"
    timeout 20 "$B2FUSE" umount "$M"
    end_of_daemon
    cmp "$S" "$FX/full.b2frame"
    [ ! -e "$S.lost" ]
}
