# A sparse frame shown as one file: its name, its bytes however they are read, its attributes, and what SOURCE may look like.

test_contiguous_listing() {
    sparse_from base
    mount_it
    equal "$(ls -A "$M")" source.b2frame
    equal "$(find "$M" -type f -printf '%P %s')" "source.b2frame $(cat "$V" | wc -c)"
    fails "No such file or directory" cat "$M/00000000.chunk"
    fails "No such file or directory" cat "$M/chunks.b2frame"
    umount_it
    equal "$(ls -A "$M")" ""
}

# one_name SOURCE NAME: what the file is called.
one_name() {
    cp -r "$FX/sparse/full.b2frame" "$T/$1"
    "$B2FUSE" mount -o ro "$T/$1" "$M"
    equal "$(ls -A "$M")" "$2"
    tool same "$M/$2" "$FX/full.b2frame"
    umount_it
}
test_contiguous_names() {
    mkdir "$M"
    one_name x.b2frame x.b2frame
    one_name old.b2eframe old.b2frame
    one_name none none.b2frame
    one_name array.b2nd array.b2nd
    one_name "with spaces, commas.b2frame" "with spaces, commas.b2frame"
    # The name counts, not how it was spelled.
    mkdir "$T/a"
    cp -r "$FX/sparse/full.b2frame" "$T/a/y.b2frame"
    cd "$T/a/y.b2frame"
    "$B2FUSE" mount -o ro . "$M"
    equal "$(ls "$M")" y.b2frame
    umount_it
    cd "$T"
    "$B2FUSE" mount -o ro a/y.b2frame// mnt/
    equal "$(ls "$M")" y.b2frame
    umount_it
}

test_contiguous_bytes_are_those_of_a_cframe() {
    local name
    for name in base full short empty many; do
        rm -rf "$S"
        sparse_from $name
        mount_it
        view "$V" "$S"
        twins "$V" "$FX/$name.b2frame"
        umount_it
    done
}

test_contiguous_array() {
    mkdir "$M"
    S=$T/array.b2nd
    cp -r "$FX/sparse/array.b2nd" "$S"
    mount_it
    view "$M/array.b2nd" "$S"
    py 'a = blosc2.open(sys.argv[1]); assert isinstance(a, blosc2.NDArray) and a[31, 69] == 31 * 70 + 69, a' "$M/array.b2nd"
}

test_contiguous_real_directories() {
    mkdir "$M"
    local frame name before
    for frame in "$ROOT"/tests/data/sframe/*; do
        name=${frame##*/}
        echo "$name"
        S=$T/$name
        cp -r "$frame" "$S"
        before=$(prints)
        mount_it
        view "$M/$name" "$frame"
        umount_it
        equal "$(prints)" "$before"
        diff -r "$S" "$frame"
    done
}

# ---- Reading, with every tool

test_contiguous_reads() {
    sparse_from many
    mount_it
    cp "$V" "$T/copy"
    cmp "$V" "$T/copy"
    tool same "$T/copy" "$S"
    equal "$(sha256sum <"$V")" "$(sha256sum <"$T/copy")"
    equal "$(sha256sum <"$V")" "$(sha256sum <"$T/copy")" "the second time"
    local skip bs n
    for skip in 0 1 86 127 4095 30000 999999; do
        for bs in 1 7 777 65537; do
            cmp <(dd if="$V" bs=$bs skip=$((skip / bs)) count=50 status=none) <(dd if="$T/copy" bs=$bs skip=$((skip / bs)) count=50 status=none)
        done
    done
    for n in 1 22 101 5000 100000; do
        cmp <(tail -c $n "$V") <(tail -c $n "$T/copy")
        cmp <(head -c $n "$V") <(head -c $n "$T/copy")
    done
    cmp <(tac "$V") <(tac "$T/copy")
    equal "$(tail -c +$(($(stat -c %s "$V") + 1)) "$V" | wc -c)" 0
    # With nothing cached, from the end backwards, and at random.
    umount_it
    mount_it --cache-size 64K
    py 'import os, random
view, want = os.open(sys.argv[1], os.O_RDONLY), open(sys.argv[2], "rb").read()
for at in range(len(want) - 1, -1, -5003):
    assert os.pread(view, 5003, at) == want[at : at + 5003], at
rng = random.Random(1)
for _ in range(1000):
    at, n = rng.randrange(len(want) + 100), rng.choice([1, 8, 87, 4096, 70000])
    assert os.pread(view, n, at) == want[at : at + n], (at, n)' "$V" "$T/copy"
}

test_contiguous_mmap() {
    sparse_from many
    mount_it
    cp "$V" "$T/copy"
    umount_it
    mount_it
    py 'import mmap, random
want = open(sys.argv[2], "rb").read()
with open(sys.argv[1], "rb") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
rng = random.Random(2)
for _ in range(500):
    at = rng.randrange(len(want))
    assert view[at : at + 100] == want[at : at + 100], at
assert view[:] == want and view.find(want[-200:]) == len(want) - 200' "$V" "$T/copy"
    # The library reads by mapping as well.
    py 's = blosc2.open(sys.argv[1], mmap_mode="r"); n = blosc2.open(sys.argv[2])
assert s.nchunks == 64 and all(s.get_chunk(i) == n.get_chunk(i) for i in range(64))' "$V" "$S"
}

test_contiguous_sparse_tools() {
    sparse_from base
    mount_it
    cp --sparse=always "$V" "$T/a"
    cmp "$T/a" "$V"
    cp --reflink=auto "$V" "$T/b"
    cmp "$T/b" "$V"
    rsync -a "$V" "$T/c"
    cmp "$T/c" "$V"
    tar -C "$M" -c source.b2frame | tar -x -O | cmp - "$V"
    equal "$(stat -c %Y "$T/c")" "$(stat -c %Y "$V")"
    equal "$(rsync -a --checksum --itemize-changes "$V" "$T/c")" ""
    py 'import os
fd = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(fd).st_size
assert os.lseek(fd, 0, os.SEEK_DATA) == 0 and os.lseek(fd, 0, os.SEEK_HOLE) == size and os.lseek(fd, 0, os.SEEK_END) == size' "$V"
}

test_two_readers_while_a_writer_appends() {
    sparse_from full
    mount_it
    py 'import multiprocessing, os
view, done = sys.argv[1:]

def write(_):
    frame = blosc2.open(view, mode="a")
    for n in range(60):
        frame.append_data(noise(1000 + n))
    open(done, "w").close()

def read(_):
    # Where a frame is written, the library needs its locking; a reader that opens anew meets a whole frame or none.
    want = {n: noise(n) if n < 6 else noise(994 + n) for n in range(66)}
    most = whole = 0
    while not os.path.exists(done) or most < 66:
        try:
            frame = blosc2.open(view)
            count = frame.nchunks
            got = [frame.decompress_chunk(n) for n in (0, 3, count - 1)]
        except Exception:
            continue
        assert got[0] == want[0] and got[1] == want[3], "an old chunk changed"
        whole += got[2] == want[count - 1]
        most = max(most, count)
    return whole

with multiprocessing.Pool(3) as pool:
    readers = pool.map_async(read, range(2), chunksize=1)
    pool.map(write, [0])
    assert min(readers.get()) > 0' "$V" "$T/done"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks == 66 and all(s.decompress_chunk(6 + n) == noise(1000 + n) for n in range(60))' "$S"
}

# The same with the library's locking: the readers never meet anything but whole states.
test_two_readers_with_locking_while_a_writer_appends() {
    sparse_from full
    mount_it
    py 'import multiprocessing, os
view, done = sys.argv[1:]

def write(_):
    frame = blosc2.open(view, mode="a", locking=True)
    for n in range(30):
        frame.append_data(noise(1000 + n))
    open(done, "w").close()

def read(_):
    want = {n: noise(n) if n < 6 else noise(994 + n) for n in range(36)}
    frame, most = blosc2.open(view, locking=True), 0
    while not os.path.exists(done) or most < 36:
        frame.refresh()
        most = frame.nchunks
        assert frame.decompress_chunk(most - 1) == want[most - 1], most
    return most

with multiprocessing.Pool(3) as pool:
    readers = pool.map_async(read, range(2), chunksize=1)
    pool.map(write, [0])
    assert readers.get() == [36, 36]' "$V" "$T/done"
    umount_it
    holds n=36
    equal "$(find "$S" -name '*lock*')" ""
}

# ---- A mount point that is a file

test_a_file_as_mount_point() {
    sparse_from full
    echo "what was there before" >"$T/big.b2frame"
    "$B2FUSE" mount "$S" "$T/big.b2frame"
    equal "$(stat -c %F "$T/big.b2frame")" "regular file"
    view "$T/big.b2frame" "$S"
    cp "$T/big.b2frame" "$T/copy"
    cmp "$T/big.b2frame" "$T/copy"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(300)); s.vlmeta["two"] = 2' "$T/big.b2frame"
    fails "Device or resource busy" rm "$T/big.b2frame"
    fails "busy" mv "$T/copy" "$T/big.b2frame"
    # The sidecar of the locking is beside it, on the file system of the mount point.
    py 's = blosc2.open(sys.argv[1], mode="a", locking=True); s.append_data(noise(301))' "$T/big.b2frame"
    test -f "$T/big.b2frame.b2lock"
    "$B2FUSE" umount "$T/big.b2frame"
    equal "$(cat "$T/big.b2frame")" "what was there before"
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks == 8 and s.decompress_chunk(7) == noise(301) and s.vlmeta["two"] == 2' "$S"
    # Read-only, in front, ended by a signal.
    M=$T/big.b2frame
    mount_front -o ro
    tool same "$M" "$S"
    errnos EROFS 'os.open(M, os.O_WRONLY)' 'os.truncate(M, 10)' 'os.chmod(M, 0o600)'
    kill -TERM "$PID"
    end_of_daemon
    not_mounted
}

test_a_file_as_mount_point_goes_with_sparse_frames_only() {
    source_from full
    : >"$T/file"
    one_line "$T/file" "is a file" "$B2FUSE" mount "$S" "$T/file"
    cp -r "$FX/sparse/full.b2frame" "$T/s.b2frame"
    one_line "$T/s.b2frame/00000000.chunk" "" "$B2FUSE" mount "$T/s.b2frame" "$T/s.b2frame/00000000.chunk"
    diff -r "$T/s.b2frame" "$FX/sparse/full.b2frame"
}

# ---- Attributes

test_contiguous_attributes_come_from_source() {
    sparse_from base
    chmod 640 "$S/chunks.b2frame"
    if [ "$(id -u)" = 0 ]; then chown -R 1234:2345 "$S"; fi
    find "$S" -exec touch -d '2021-02-03 04:05:06.789' {} +
    mount_it
    equal "$(stat -c '%u:%g %y %a %F %h' "$V")" "$(stat -c '%u:%g %y %a %F %h' "$S/chunks.b2frame")"
    equal "$(stat -c '%F' "$M")" directory
    equal "$(stat -c %s "$V")" "$(cat "$V" | wc -c)"
    # On disk: what the files of SOURCE take.
    local used all
    used=$(du -B1 "$V" | cut -f1) all=$(stat -c %s "$V")
    [ "$used" -ge "$all" ] && [ "$used" -le $((all + 10 * 4096)) ] || fail "du says $used for $all bytes"
    equal "$(df -B1 --output=size "$M" | tail -n 1)" "$(df -B1 --output=size "$T" | tail -n 1)"
    umount_it
    chmod 755 "$S"
    mount_it -o uid=77,gid=88,umask=027
    equal "$(stat -c '%u:%g %a' "$V")" "77:88 640"
}

test_contiguous_mount_without_changes_leaves_source_alone() {
    sparse_from base
    local before option
    before=$(prints)
    for option in "-o rw" "-o ro"; do
        # shellcheck disable=SC2086 # two words
        mount_it $option
        cat "$V" >/dev/null
        tool same "$V" "$S"
        if [ "$option" = "-o rw" ]; then
            py 's = blosc2.open(sys.argv[1], mode="a"); s.get_chunk(3)' "$V"
            touch "$V"
            sync "$V"
        fi
        umount_it
        equal "$(prints)" "$before" "$option"
    done
    equal "$(ls "$T")" "$(printf 'mnt\nsource.b2frame')"
}

test_contiguous_read_only() {
    sparse_from base
    local before option
    before=$(prints)
    for option in "-o ro" --read-only; do
        # shellcheck disable=SC2086 # two words
        mount_it $option
        errnos EROFS \
            'os.open(M + "/source.b2frame", os.O_WRONLY)' \
            'os.open(M + "/source.b2frame", os.O_RDWR)' \
            'os.open(M + "/source.b2frame", os.O_RDONLY | os.O_TRUNC)' \
            'os.open(M + "/source.b2frame.b2lock", os.O_WRONLY | os.O_CREAT)' \
            'os.open(M + "/.x", os.O_WRONLY | os.O_CREAT)' \
            'os.unlink(M + "/source.b2frame")' \
            'os.rename(M + "/source.b2frame", M + "/.x")' \
            'os.truncate(M + "/source.b2frame", 10)' \
            'os.chmod(M + "/source.b2frame", 0o600)' \
            'os.utime(M + "/source.b2frame", (1, 1))' \
            'os.mkdir(M + "/d")'
        fails "Read-only file system" cp "$FX/full.b2frame" "$V"
        umount_it
    done
    equal "$(prints)" "$before"
}

# As soon as the library would notice it: by the length of the frame.
test_a_contiguous_read_only_mount_follows_others() {
    sparse_from full
    mount_it -o ro
    tool same "$V" "$S"
    local size
    size=$(stat -c %s "$V")
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77)); s.vlmeta["new"] = 1' "$S"
    await tool same "$V" "$S"
    [ "$(stat -c %s "$V")" -gt "$size" ]
    cmp "$V" <(cat "$V")
    view "$V" "$S"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.delete_chunk(2); s.update_data(1, noise(78), copy=True); s.vlmeta["newer"] = 12' "$S"
    await tool same "$V" "$S"
    # Another frame in its place.
    mv "$S" "$T/old"
    cp -r "$FX/sparse/base.b2frame" "$S"
    await tool same "$V" "$FX/base.b2frame"
    umount_it
}

# ---- What SOURCE may look like

test_source_is_a_symbolic_link_to_a_directory() {
    sparse_from full
    mv "$S" "$T/real.b2frame"
    ln -s real.b2frame "$S"
    mount_it
    equal "$(ls "$M")" source.b2frame
    py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(3, noise(300), copy=True)' "$V"
    umount_it
    [ -L "$S" ]
    py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(3) == noise(300)' "$T/real.b2frame"
    equal "$(ls "$T/real.b2frame" | grep -vc 'chunk')" 0
}

test_ids_in_any_order_and_with_gaps() {
    sparse_from many
    py 's = blosc2.open(sys.argv[1], mode="a")
for n in (3, 50, 7): s.delete_chunk(n)
for n in (2, 30): s.insert_data(n, noise(500 + n), True)
s.reorder_offsets(np.random.default_rng(3).permutation(s.nchunks))' "$S"
    mount_it
    view "$V" "$S"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(600)); s.delete_chunk(0)' "$V"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks == 63 and s.decompress_chunk(62) == noise(600)' "$S"
}

test_orphans_and_the_lock_file_are_ignored_and_kept() {
    sparse_from full
    # Where new chunks are likely to go.
    cp "$FX/new/0" "$S/00000006.chunk"
    echo "no chunk at all" >"$S/00000007.chunk"
    cp "$FX/new/1" "$S/0000ABCD.chunk"
    : >"$S/00000008.chunk"
    printf '0123456789abcdef' >"$S/.b2lock"
    echo "a note" >"$S/README"
    local file
    cp -r "$S" "$T/before"
    mount_it
    tool same "$V" "$FX/full.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a")
for n in range(4): s.append_data(noise(300 + n))
s.update_data(0, noise(310), copy=True)' "$V"
    umount_it
    py 's = blosc2.open(sys.argv[1])
assert s.nchunks == 10 and s.decompress_chunk(0) == noise(310) and all(s.decompress_chunk(6 + n) == noise(300 + n) for n in range(4))' "$S"
    for file in 00000006.chunk 00000007.chunk 00000008.chunk 0000ABCD.chunk .b2lock README; do cmp "$T/before/$file" "$S/$file"; done
    equal "$(ls -A "$S" | wc -l)" $((1 + 10 + 6))
}

# not_mountable WORDS...: one line with all of these; SOURCE stays as it is.
not_mountable() {
    local before word
    before=$(prints)
    for word in "$@"; do one_line "$S" "$word" "$B2FUSE" mount "$S" "$M"; done
    one_line "$S" "$1" "$B2FUSE" mount -o ro "$S" "$M"
    not_mounted
    if grep -qi panic "$T/.err"; then fail "a panic"; fi
    equal "$(prints)" "$before"
}

test_missing_and_damaged_chunk_files_are_named() {
    sparse_from many
    rm "$S/00000003.chunk" "$S/0000002A.chunk"
    not_mountable 00000003.chunk 0000002A.chunk
    head -c 20000 "$FX/full/0" >"$S/00000005.chunk"
    : >"$S/00000006.chunk"
    head -c 30000 /dev/urandom >"$S/00000007.chunk"
    not_mountable 00000003.chunk 0000002A.chunk 00000005.chunk 00000006.chunk 00000007.chunk
    # More than one can read: a number instead.
    rm "$S"/*.chunk
    not_mountable 64
}

test_what_stands_in_a_chunk_files_place() {
    sparse_from full
    rm "$S/00000003.chunk"
    mkdir "$S/00000003.chunk"
    not_mountable 00000003.chunk
    rmdir "$S/00000003.chunk"
    mkfifo "$S/00000003.chunk"
    not_mountable 00000003.chunk
    rm "$S/00000003.chunk"
    ln -s nowhere "$S/00000003.chunk"
    not_mountable 00000003.chunk
}

# As the library has it, what lies behind a chunk in its file is not part of it.
test_a_chunk_file_longer_than_its_chunk() {
    sparse_from full
    cat "$FX/full/1" >>"$S/00000003.chunk"
    mount_it
    tool same "$V" "$FX/full.b2frame"
    twins "$V" "$FX/full.b2frame"
}

test_a_directory_that_is_no_frame() {
    mkdir "$M" "$S"
    echo "no frame" >"$S/chunks.b2frame"
    not_mountable ""
    cp "$FX/full.b2frame" "$S/chunks.b2frame"
    not_mountable ""
    rm "$S/chunks.b2frame"
    mkdir "$S/chunks.b2frame"
    not_mountable ""
    rmdir "$S/chunks.b2frame"
    local cut size
    size=$(stat -c %s "$FX/sparse/full.b2frame/chunks.b2frame")
    for cut in 0 1 50 90 $((size / 2)) $((size - 1)); do
        head -c "$cut" "$FX/sparse/full.b2frame/chunks.b2frame" >"$S/chunks.b2frame"
        not_mountable ""
    done
}

test_an_index_that_lies() {
    sparse_from full
    mount_it
    umount_it
    local at index=$S/chunks.b2frame
    # header length, frame length, nbytes, cbytes, chunk size; enormous, then negative.
    for at in 11 16 30 39 58; do
        cp "$FX/sparse/full.b2frame/chunks.b2frame" "$index"
        printf '\x7f\xff\xff\xff' | dd of="$index" bs=1 seek=$at conv=notrunc status=none
        # cbytes is a sum that nobody needs: what C-Blosc2 opens may be mounted.
        if [ $at != 39 ]; then not_mountable ""; fi
        printf '\xff' | dd of="$index" bs=1 seek=$at conv=notrunc status=none
        if [ $at != 39 ]; then not_mountable ""; fi
    done
}

# Two positions with one file, as no library writes it, are two chunks in one file or an error, and never a lost chunk.
test_a_chunk_file_named_twice() {
    sparse_from full
    py 'from anatomy import *
s = Sframe(sys.argv[1])
index = blosc2.compress2(np.array([0, 1, 2, 3, 3, 5], "<i8"), typesize=8, codec=blosc2.Codec.BLOSCLZ)
header = bytearray(s.data[: s.header_len])
header[16:24] = (len(header) + len(index) + len(s.trailer)).to_bytes(8, "big")
(s.directory / "chunks.b2frame").write_bytes(bytes(header) + index + s.trailer)' "$S"
    if mount_it 2>"$T/err"; then
        tool same "$V" "$S"
        py 's = blosc2.open(sys.argv[1]); assert s.get_chunk(3) == s.get_chunk(4) == open(sys.argv[2], "rb").read()' "$V" "$FX/full/3"
        py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(3, noise(300), copy=True)' "$V"
        umount_it
        py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(3) == noise(300) and s.get_chunk(4) == open(sys.argv[2], "rb").read()' "$S" "$FX/full/3"
    else
        equal "$(wc -l <"$T/err")" 1 "$(cat "$T/err")"
        has "$(cat "$T/err")" "$S"
    fi
}

# ---- Many chunks

# Sizes of 100,000 chunk files: learnt in seconds, kept in little memory.
test_a_hundred_thousand_chunks() {
    mkdir "$M"
    local peak began
    tool many_chunks "$S" 100000
    began=$(date +%s%N)
    mount_front
    V=$M/source.b2frame
    equal "$(stat -c %s "$V")" "$(wc -c <"$V")"
    echo "mounted and read after $((($(date +%s%N) - began) / 1000000)) ms"
    peak=$(awk '/VmHWM/ { print $2 }' "/proc/$PID/status")
    [ "$peak" -lt 393216 ] || fail "$peak KiB resident for 100,000 chunks"
    echo "$peak KiB"
    py 's = blosc2.open(sys.argv[1], mode="a"); n = blosc2.open(sys.argv[2])
assert s.nchunks == 100000 and all(s.get_chunk(i) == n.get_chunk(i) for i in range(0, 100000, 997))
s.update_data(50000, noise(1, 1024), copy=True)' "$V" "$S"
    umount_it
    end_of_daemon
    py 's = blosc2.open(sys.argv[1]); assert s.nchunks == 100000 and s.decompress_chunk(50000) == noise(1, 1024)' "$S"
    equal "$(find "$S" -type f | wc -l)" 100001
}
