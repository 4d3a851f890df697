# Writing to a sparse frame shown as one file: by the library, by copying, by hand; what is refused; what is written to SOURCE.

# another NAME SPEC: $T/NAME.b2frame, a cframe to copy in.
another() { py 'make(sys.argv[1], sys.argv[2], seed=700)' "$T/$1.b2frame" "$2"; }
# update POSITION SEED [HOW]: by the library, through the mount.
update() { py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(int(sys.argv[2]), noise(int(sys.argv[3])), copy=True)' "$V" "$1" "$2"; }
# at_position N SEED: whether SOURCE has this chunk there.
at_position() { py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(int(sys.argv[2])) == noise(int(sys.argv[3]))' "$S" "$1" "$2"; }
# nothing_written PRINTS: SOURCE is as it was, to the inode.
nothing_written() { equal "$(prints)" "$1"; }

# ---- By the library: only what changed is written

test_one_update_writes_one_chunk_file() {
    sparse_from many
    local before
    before=$(chunk_prints)
    mount_it
    update 3 300
    sync "$V"
    # 64 chunk files and the index; the library has moved 60 chunks.
    equal "$(kept "$before")" 63
    umount_it
    equal "$(kept "$before")" 63
    equal "$(ls -A "$S" | wc -l)" 65
    at_position 3 300
    mount_it
    view "$V" "$S"
}

# Counted: three chunks' worth at most, index included.
test_bytes_written_for_one_update() {
    sparse_from many
    mount_it
    py 'before = footprint(sys.argv[2])
s = blosc2.open(sys.argv[1], mode="a")
for n, data in ((3, noise(300)), (0, noise(301)), (63, noise(302)), (31, bytes(30000) + noise(303)[30000:]), (32, np.random.default_rng(1).bytes(CHUNKSIZE))):
    s.update_data(n, data, copy=True)
    with open(sys.argv[1]) as file:
        os.fsync(file.fileno())
    after = footprint(sys.argv[2])
    size = len(s.get_chunk(n))
    print(n, size, written(before, after))
    assert size <= written(before, after) < 3 * size, (n, size, written(before, after))
    before = after' "$V" "$S"
}

test_what_other_changes_write() {
    sparse_from many
    mount_it
    # delta NEW KEPT CODE: after CODE on the frame s, so many chunk files are new, and so many are as they were.
    delta() {
        local before
        before=$(chunk_prints)
        py "s = blosc2.open(sys.argv[1], mode='a')
$3" "$V"
        sync "$V"
        equal "$(comm -13 <(echo "$before") <(chunk_prints) | wc -l) $(kept "$before")" "$1 $2" "$3"
        tool same "$V" "$S"
    }
    delta 1 64 's.append_data(noise(300))'
    delta 1 65 's.insert_data(5, noise(301), True)'
    delta 0 65 's.delete_chunk(10)'
    delta 0 65 's.reorder_offsets(np.random.default_rng(1).permutation(s.nchunks))'
    delta 0 65 's.vlmeta["x"] = b"y" * 5000'
    delta 0 65 's.meta["made"] = s.meta["made"][::-1]'
    delta 0 64 's.update_special(7, blosc2.SpecialValue.ZERO)'
    delta 1 64 's.update_data(7, noise(302), copy=True)'
    delta 2 63 's[9 * 10000 + 5000 : 11 * 10000 - 5000] = noise(303)[: 4 * 10000]'
    delta 0 64 's.delete_chunk(s.nchunks - 1)'
}

test_resizing_an_array() {
    mkdir "$M"
    S=$T/array.b2nd V=$M/array.b2nd
    cp -r "$FX/sparse/array.b2nd" "$S"
    mount_it
    py 'a = blosc2.open(sys.argv[1], mode="a")
want = a[...]
a.resize((100, 70)); a[60:100] = 7
a.vlmeta["k"] = "v"
a[3:5, 3:60] = -1
b = blosc2.open(sys.argv[1])
want = np.concatenate([want, np.full((40, 70), 7.0)]); want[3:5, 3:60] = -1
assert np.array_equal(b[...], want) and b.vlmeta["k"] == "v"
np.save(sys.argv[2], want)' "$V" "$T/want.npy"
    umount_it
    py 'assert np.array_equal(blosc2.open(sys.argv[1])[...], np.load(sys.argv[2]))' "$S" "$T/want.npy"
}

# A frame emptied and filled again.
test_emptied_and_filled_again() {
    sparse_from full
    mount_it
    py 's = blosc2.open(sys.argv[1], mode="a")
for _ in range(6): s.delete_chunk(0)' "$V"
    sync "$V"
    tool same "$V" "$S"
    holds n=0
    py 's = blosc2.open(sys.argv[1], mode="a")
for n in range(3): s.append_data(noise(300 + n))' "$V"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks == 3 and all(s.decompress_chunk(n) == noise(300 + n) for n in range(3))' "$S"
    equal "$(ls -A "$S" | wc -l)" 4
}

# ---- Another frame copied over it

# copied_over FILE COMMAND...: after the command, view and SOURCE are this cframe, now and after a remount.
copied_over() {
    local file=$1 files stored
    shift
    "$@"
    # Where the file has holes, the view has zeros.
    cmp "$V" "$file" 2>/dev/null || py 'from anatomy import *
one, other = (Cframe.read(path) for path in sys.argv[1:])
assert one.live() == other.live() == one.data != other.data, "bytes differ"' "$V" "$file"
    umount_it
    files=$(find "$S" -type f | wc -l)
    mount_it
    stored=$(py 'source, shown, file = sys.argv[1:]
twins(source, file)
view(shown, file)' "$S" "$V" "$file")
    equal "$files" $((${stored%%$'\n'*} + 1))
    [ ! -e "$S.lost" ]
}

test_copying_another_frame_over_it() {
    sparse_from full
    mount_it
    another more rrzrunrvrrrrr
    another fewer rz
    py 's = blosc2.SChunk(chunksize=8000, urlpath=sys.argv[1], mode="w", cparams={"typesize": 8, "codec": blosc2.Codec.ZSTD})
for n in range(30): s.append_data(noise(n, 8000))
s.append_data(noise(31, 80))
s.vlmeta["other"] = True' "$T/sizes.b2frame"
    local name
    for name in more fewer sizes; do copied_over "$T/$name.b2frame" cp "$T/$name.b2frame" "$V"; done
    copied_over "$FX/array.b2nd" cp "$FX/array.b2nd" "$V"
    copied_over "$FX/empty.b2frame" cp "$FX/empty.b2frame" "$V"
    copied_over "$FX/many.b2frame" cp "$FX/many.b2frame" "$V"
}

test_copying_every_real_frame_over_it() {
    sparse_from full
    mount_it
    local frame
    for frame in "$ROOT"/tests/data/cframe/*; do
        echo "$frame"
        copied_over "$frame" eval "cat '$frame' >'$V'"
    done
}

test_copying_the_same_frame_over_it_writes_no_chunk() {
    sparse_from many
    local before
    before=$(chunk_prints)
    mount_it
    cp "$V" "$T/copy"
    cp "$T/copy" "$V"
    sync "$V"
    equal "$(chunk_prints)" "$before"
    # As the library wrote it, and in pieces of any size.
    dd if="$FX/many.b2frame" of="$V" bs=100001 status=none
    umount_it
    equal "$(chunk_prints)" "$before"
    tool same "$S" "$FX/many.b2frame"
}

test_copying_a_nearly_equal_frame_writes_what_differs() {
    sparse_from many
    local before
    before=$(chunk_prints)
    cp "$FX/many.b2frame" "$T/copy"
    py 's = blosc2.open(sys.argv[1], mode="a")
s.update_data(7, noise(300), copy=True); s.delete_chunk(20); s.insert_data(40, noise(301), True)' "$T/copy"
    mount_it
    cp "$T/copy" "$V"
    umount_it
    equal "$(kept "$before")" 62
    tool same "$S" "$T/copy"
}

test_pieces_in_any_order_make_a_frame() {
    sparse_from full
    another x rrzrunrvrr
    mount_it
    copied_over "$T/x.b2frame" py 'import os, random
view, new = sys.argv[1], open(sys.argv[2], "rb").read()
fd = os.open(view, os.O_WRONLY | os.O_TRUNC)
rng = random.Random(5)
cuts = sorted({0, len(new), *(rng.randrange(len(new)) for _ in range(200))})
pieces = list(zip(cuts, cuts[1:]))
rng.shuffle(pieces)
for a, b in pieces:
    assert os.pwrite(fd, new[a:b], a) == b - a
    if rng.random() < 0.1:
        with open(view, "rb") as reader:
            reader.seek(a)
            assert reader.read(b - a) == new[a:b]
os.close(fd)' "$V" "$T/x.b2frame"
}

test_several_writers_of_one_open_view_make_a_frame() {
    sparse_from full
    another x rrrr
    mount_it
    both() {
        {
            dd if="$T/x.b2frame" bs=1001 count=10 status=none || true
            dd if="$T/x.b2frame" bs=1001 skip=10 status=none
        } >"$V"
    }
    copied_over "$T/x.b2frame" both
}

test_sparse_copies_over_the_view() {
    sparse_from full
    # A frame with holes of zeros: chunks that are plain copies.
    py 's = blosc2.SChunk(chunksize=40000, urlpath=sys.argv[1], mode="w", cparams={"typesize": 4, "clevel": 0})
for n in range(4): s.append_data(noise(n, 8000) + bytes(24000) + noise(n + 9, 8000))' "$T/x.b2frame"
    mount_it
    copied_over "$T/x.b2frame" cp --sparse=always "$T/x.b2frame" "$V"
    cp "$FX/full.b2frame" "$V"
    copied_over "$T/x.b2frame" dd if="$T/x.b2frame" of="$V" bs=4K conv=sparse status=none
    cp "$FX/full.b2frame" "$V"
    mkdir "$T/in"
    mv "$T/x.b2frame" "$T/in/source.b2frame"
    copied_over "$T/in/source.b2frame" rsync -S "$T/in/source.b2frame" "$M/"
}

# Behind a mount point that is a file nothing can be renamed, and what copies in place works.
test_copying_over_a_mount_point_that_is_a_file() {
    sparse_from full
    another x rrzr
    M=$T/big.b2frame
    V=$M
    : >"$M"
    mount_it
    copied_over "$T/x.b2frame" cp "$T/x.b2frame" "$V"
    copied_over "$FX/full.b2frame" rsync --inplace "$FX/full.b2frame" "$V"
    fails "Invalid argument" cp "$ROOT/README.md" "$V"
    cmp "$V" "$FX/full.b2frame"
    umount_it
    tool same "$S" "$FX/full.b2frame"
}

# ---- By tools that write beside it and rename

test_rsync_over_the_view() {
    sparse_from full
    mkdir "$T/in"
    another in/source rrzrunrr
    local option
    mount_it
    for option in --whole-file --inplace "--inplace --no-whole-file" --no-whole-file; do
        cp "$FX/full.b2frame" "$V"
        # shellcheck disable=SC2086 # words
        copied_over "$T/in/source.b2frame" rsync -a $option "$T/in/source.b2frame" "$M/"
        # shellcheck disable=SC2086
        rsync -a $option "$T/in/source.b2frame" "$M/"
        # shellcheck disable=SC2086
        equal "$(rsync -a --itemize-changes $option "$T/in/source.b2frame" "$M/")" "" "second rsync $option"
        equal "$(ls -A "$M")" source.b2frame
    done
}

test_cp_keeps_times_and_modes_of_the_view() {
    sparse_from base
    mount_it
    another x rr
    touch -d '2020-01-02 03:04:05.678' "$T/x.b2frame"
    chmod 604 "$T/x.b2frame"
    cp -p "$T/x.b2frame" "$V"
    equal "$(stat -c '%y %a' "$V")" "$(stat -c '%y %a' "$T/x.b2frame")"
    sync "$V"
    equal "$(stat -c '%y %a' "$V")" "$(stat -c '%y %a' "$T/x.b2frame")"
    umount_it
    tool same "$S" "$T/x.b2frame"
}

test_an_editor_that_renames_over_the_view() {
    sparse_from base
    another x rrzr
    mount_it
    copied_over "$T/x.b2frame" py 'import os, tempfile
path, new = sys.argv[1:]
fd, name = tempfile.mkstemp(prefix=".", dir=os.path.dirname(path))
os.write(fd, open(new, "rb").read())
os.fsync(fd)
os.fchmod(fd, 0o644)
os.close(fd)
os.replace(name, path)' "$V" "$T/x.b2frame"
}

test_cp_with_backup_of_the_view() {
    sparse_from base
    another x rrzr
    mount_it
    cp "$V" "$T/before"
    cp --backup "$T/x.b2frame" "$V"
    cmp "$V" "$T/x.b2frame"
    cmp "$V~" "$T/before"
    rm "$V~"
    umount_it
    tool same "$S" "$T/x.b2frame"
}

test_a_temporary_file_that_is_no_frame_cannot_be_renamed_over_the_view() {
    sparse_from base
    local before
    before=$(prints)
    mount_it
    cp "$V" "$T/before"
    echo "no frame" >"$M/.part"
    errnos EINVAL 'os.rename(M + "/.part", M + "/source.b2frame")'
    cmp "$V" "$T/before"
    equal "$(cat "$M/.part")" "no frame"
    mv "$M/.part" "$M/.other"
    rm "$M/.other"
    umount_it
    nothing_written "$before"
}

test_the_lock_file_of_the_view() {
    sparse_from base
    mount_it
    flock "$V.b2lock" true
    exec 8<>"$V.b2lock"
    flock -x 8
    exits 1 flock -n "$V.b2lock" true
    flock -u 8
    exits 0 flock -n "$V.b2lock" true
    exec 8<&-
    py 's = blosc2.open(sys.argv[1], mode="a", locking=True); s.update_data(3, noise(7), copy=True); s.vlmeta["l"] = 1' "$V"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(3) == noise(7) and s.vlmeta["l"] == 1' "$S"
}

# ---- Through a mapping

# A metalayer's bytes are in the header, uncompressed.
test_writing_through_a_mapping() {
    sparse_from full
    local before
    before=$(chunk_prints)
    mount_it
    py 'import mmap
with open(sys.argv[1], "r+b") as file:
    view = mmap.mmap(file.fileno(), 0)
    at = view.find(b"by the tests")
    assert at > 0
    view[at : at + 12] = b"by a mapping"
    view.flush()
    view.close()' "$V"
    py 's = blosc2.open(sys.argv[1]); assert s.meta["made"] == b"by a mapping", s.meta["made"]' "$V"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.meta["made"] == b"by a mapping", s.meta["made"]' "$S"
    # All but the index is as it was.
    equal "$(kept "$before")" 6
    sed 's/by the tests/by a mapping/' "$FX/full.b2frame" >"$T/want"
    twins "$S" "$T/want"
}

# Closed first, unmapped later: the pages come after the close.
test_writing_through_a_mapping_after_the_close() {
    sparse_from full
    mount_it
    py 'import mmap
file = open(sys.argv[1], "r+b")
view = mmap.mmap(file.fileno(), 0)
file.close()
at = view.find(b"by the tests")
view[at : at + 12] = b"by a mapping"
view.close()' "$V"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.meta["made"] == b"by a mapping", s.meta["made"]' "$S"
}

# ---- What is refused

# refused_frame FILE: copying it gives EINVAL at close; view and SOURCE are as before.
refused_frame() {
    local before=$2
    fails "Invalid argument" cp "$1" "$V"
    cmp "$V" "$T/before"
    nothing_written "$before"
}

test_what_is_no_frame_is_refused_at_close() {
    sparse_from base
    local before cut
    before=$(prints)
    mount_it
    cp "$V" "$T/before"
    head -c 30000 /dev/urandom >"$T/garbage"
    refused_frame "$T/garbage" "$before"
    head -c 5M /dev/urandom >"$T/garbage"
    refused_frame "$T/garbage" "$before"
    for cut in 1 50 87 5000 $(($(stat -c %s "$FX/full.b2frame") - 1)); do
        head -c "$cut" "$FX/full.b2frame" >"$T/cut"
        refused_frame "$T/cut" "$before"
    done
    { cat "$FX/full.b2frame" && echo; } >"$T/longer"
    refused_frame "$T/longer" "$before"
    cp "$FX/sparse/full.b2frame/chunks.b2frame" "$T/index"
    refused_frame "$T/index" "$before"
    # A good frame still goes in, and one after it.
    cp "$FX/full.b2frame" "$V"
    cmp "$V" "$FX/full.b2frame"
    umount_it
    tool same "$S" "$FX/full.b2frame"
    [ ! -e "$S.lost" ]
}

test_a_frame_with_a_damaged_chunk_is_refused() {
    sparse_from full
    local before at lie
    before=$(prints)
    mount_it
    cp "$V" "$T/before"
    # Header fields of chunk 3: nbytes, blocksize, cbytes.
    for at in 4 8 12; do
        for lie in '\xff\xff\xff\x7f' '\x01\x00\x00\x00' '\x00\x00\x00\x80'; do
            cp "$FX/many.b2frame" "$T/lie"
            printf "$lie" | dd of="$T/lie" bs=1 seek=$(($(py 'from anatomy import *; c = Cframe.read(sys.argv[1]); print(c.stored[3][0])' "$T/lie") + at)) conv=notrunc status=none
            refused_frame "$T/lie" "$before"
        done
    done
    # Block starts beyond the chunk, a stream cut by zeros.
    cp "$FX/many.b2frame" "$T/lie"
    dd if=/dev/zero of="$T/lie" bs=1 seek=$(($(py 'from anatomy import *; c = Cframe.read(sys.argv[1]); print(c.stored[3][0])' "$T/lie") + 32)) count=5000 conv=notrunc status=none
    refused_frame "$T/lie" "$before"
    umount_it
    nothing_written "$before"
}

test_emptying_the_view_changes_nothing() {
    sparse_from full
    local before
    before=$(prints)
    mount_it
    cp "$V" "$T/before"
    : >"$V" || true
    await cmp "$V" "$T/before"
    errnos EINVAL 'os.truncate(M + "/source.b2frame", 0)' 'os.truncate(M + "/source.b2frame", 100000)' 'os.truncate(M + "/source.b2frame", 10**9)'
    cmp "$V" "$T/before"
    fails "Invalid argument" truncate -s 5 "$V"
    await cmp "$V" "$T/before"
    umount_it
    nothing_written "$before"
}

# Written in place without cutting: it may be a round of a library that writes in several, so it is kept for some seconds.
test_garbage_in_place_goes_away() {
    sparse_from full
    local before
    before=$(prints)
    mount_it
    cp "$V" "$T/before"
    # In the header, where a chunk begins, in the index and behind the end.
    fails "Invalid argument" dd if=/dev/urandom of="$V" bs=64 count=1 conv=notrunc
    await cmp "$V" "$T/before"
    nothing_written "$before"
    fails "Invalid argument" dd if=/dev/urandom of="$V" bs=1 seek="$(py 'from anatomy import *; print(Cframe.read(sys.argv[1]).index_at)' "$V")" count=32 conv=notrunc
    umount_it
    nothing_written "$before"
    mount_it
    cmp "$V" "$T/before"
    fails "Invalid argument" eval 'head -c 5000 /dev/urandom | dd of="$V" oflag=append conv=notrunc'
    # What comes after it and makes it whole is welcome.
    cp "$T/before" "$V"
    cmp "$V" "$T/before"
    umount_it
    equal "$(chunk_prints)" "$(grep '\.chunk ' <<<"$before")"
    [ ! -e "$S.lost" ]
}

# Refused bytes in place, while the library goes on: its next change is refused or right, and never half of each.
test_the_library_over_garbage_in_place() {
    sparse_from full
    mount_it
    dd if=/dev/urandom of="$V" bs=1 seek=4 count=5 conv=notrunc status=none || true
    py 'try:
    s = blosc2.open(sys.argv[1], mode="a")
    s.append_data(noise(300))
except Exception as error:
    print("refused:", error)' "$V"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks in (6, 7) and all(s.decompress_chunk(n) == noise(n) for n in range(6))' "$S"
}

test_nothing_else_can_be_beside_the_view() {
    sparse_from base
    local before
    before=$(prints)
    mount_it
    errnos EPERM \
        'os.mkdir(M + "/d")' \
        'os.mkdir(M + "/.d")' \
        'os.symlink("x", M + "/l")' \
        'os.link(M + "/source.b2frame", M + "/.l")' \
        'os.mknod(M + "/.fifo", 0o10600)' \
        'os.open(M + "/notes.txt", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/00000000.chunk", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/chunks.b2frame", os.O_WRONLY | os.O_CREAT)' \
        'os.rename(M + "/source.b2frame", M + "/other.b2frame")'
    tool same "$V" "$S"
    # Temporary names live as long as the mount.
    echo text >"$M/.a"
    mv "$M/.a" "$M/.b"
    equal "$(cat "$M/.b")" text
    umount_it
    nothing_written "$before"
    mount_it
    equal "$(ls -A "$M")" source.b2frame
}

# What cannot be a frame is neither taken nor saved, whatever its length.
test_a_sparse_file_of_any_length_over_the_view() {
    sparse_from full
    mount_front
    truncate -s 4E "$M/.t"
    errnos EINVAL 'os.rename(f"{M}/.t", f"{M}/source.b2frame")'
    truncate -s 4E "$V" || true
    timeout 20 "$B2FUSE" umount "$M"
    end_of_daemon
    diff -r "$S" "$FX/sparse/full.b2frame"
    [ ! -e "$S.lost" ]
}
