# A full disk under SOURCE, both ways round: the error reaches the call, the last committed state stays, reading goes on, and with
# room made so does writing.

# on_small_disk SIZE: the next SOURCE is on a file system of its own.
on_small_disk() {
    root_only
    D=$T/disk
    mkdir "$D"
    mount -t tmpfs -o size="$1" tmpfs "$D"
    S=$D/source.b2frame
}
# fill: not one page is left.
fill() { ! head -c 64M /dev/zero 2>/dev/null >"$D/ballast"; }
# unchanged COPY: SOURCE is this, to the byte; chunk files that no index names may be beside it.
unchanged() { ! diff -r "$S" "$1" | grep -v "^Only in $S: "; }

# append_until_full PATH SOURCE: the library appends through the mount until the disk is full. The error reaches it or the fsync
# after it, all that was synced before is in SOURCE, and nothing else but perhaps the last.
append_until_full() {
    py 'import errno
shown, source = sys.argv[1:]
index = f"{shown}/chunks.b2frame" if os.path.isdir(shown) else shown
start, synced, words = blosc2.open(source).nchunks, 0, None
for n in range(start, start + 200):
    try:
        s = blosc2.open(shown, mode="a")
        s.append_data(noise(n))
        fd = os.open(index, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        synced += 1
    except Exception as error:
        words = repr(error)
        break
assert words, "the disk never was full"
print(f"{synced} chunks were synced, and then: {words}")
for path in (source, shown):
    s = blosc2.open(path)
    assert start + synced <= s.nchunks <= start + synced + 1, (path, s.nchunks)
    for n in range(s.nchunks):
        assert s.decompress_chunk(n) == noise(n), (path, n)' "$1" "$S"
}
# all_are_noise: every chunk in SOURCE is one that was appended there.
all_are_noise() { py 's = blosc2.open(sys.argv[1]); assert all(s.decompress_chunk(n) == noise(n) for n in range(s.nchunks))' "$S"; }

# make_room_and_umount: as long as something is not in SOURCE it is not unmounted.
make_room_and_umount() {
    if ! umount_it; then
        mount -o remount,size=4M "$D"
        umount_it
    fi
    end_of_daemon
}

test_the_library_fills_the_disk_of_a_cframe() {
    on_small_disk 1M
    source_from full
    mount_front
    append_until_full "$M" "$S"
    make_room_and_umount
    all_are_noise
    umount "$D"
}

test_the_library_fills_the_disk_of_a_sparse_frame() {
    on_small_disk 1M
    sparse_from full
    mount_front
    append_until_full "$V" "$S"
    make_room_and_umount
    all_are_noise
    umount "$D"
}

test_replacing_chunks_on_a_full_disk() {
    on_small_disk 4M
    source_from full
    cp "$S" "$T/before"
    mount_front
    fill
    local n
    for n in 0 3 5; do
        fails "No space left on device" cp "$FX/new/$n" "$(chunk $n)"
    done
    # Whoever asks whether all is on disk is told that it is not, by whatever file.
    for n in "$(chunk 0)" "$(chunk 1)" "$M/chunks.b2frame" "$M"; do fails "No space left on device" sync "$n"; done
    unchanged "$T/before"
    for n in 1 2 4; do cmp "$(chunk $n)" "$FX/full/$n"; done
    # Nothing has ended: with room, what was written is stored.
    rm "$D/ballast"
    sync "$M"
    holds 0="$FX/new/0" 1="$FX/full/1" 3="$FX/new/3" 5="$FX/new/5"
    cp "$FX/new/1" "$(chunk 3)"
    umount_it
    end_of_daemon
    holds 0="$FX/new/0" 3="$FX/new/1" 5="$FX/new/5"
    umount "$D"
}

test_copying_over_a_sparse_frame_on_a_full_disk() {
    on_small_disk 4M
    sparse_from full
    cp -r "$S" "$T/before"
    mount_front
    fill
    fails "No space left on device" cp "$FX/many.b2frame" "$V"
    fails "No space left on device" sync "$V"
    unchanged "$T/before"
    cat "$V" >/dev/null
    # By another name, and renamed over it.
    fails "No space left on device" eval 'cp "$FX/many.b2frame" "$M/.part" && mv "$M/.part" "$V" && sync "$V"'
    unchanged "$T/before"
    cat "$V" >/dev/null
    rm -f "$M/.part" "$D/ballast"
    cp "$FX/base.b2frame" "$V"
    umount_it
    end_of_daemon
    tool same "$S" "$FX/base.b2frame"
    equal "$(find "$S" -name '*.chunk' | wc -l)" 7 "no file is left that no index names"
    umount "$D"
}

test_updating_chunks_on_a_full_disk() {
    local kind
    for kind in source_from sparse_from; do
        on_small_disk 4M
        V=$M
        $kind full
        cp -r "$S" "$T/before"
        mount_front
        fill
        py 'shown = sys.argv[1]
index = f"{shown}/chunks.b2frame" if os.path.isdir(shown) else shown
try:
    s = blosc2.open(shown, mode="a")
    s.update_data(2, np.random.default_rng(5).bytes(CHUNKSIZE), copy=True)
    s.vlmeta["a"] = b"b" * 20000
    fd = os.open(index, os.O_RDONLY)
    os.fsync(fd)
except Exception as error:
    print(repr(error))
else:
    sys.exit("nobody was told")' "$V"
        unchanged "$T/before"
        rm "$D/ballast"
        umount_it
        end_of_daemon || true
        py 's = blosc2.open(sys.argv[1])
assert s.nchunks == 6 and all(s.decompress_chunk(n) == noise(n) for n in range(6) if n != 2)
assert s.decompress_chunk(2) in (noise(2), np.random.default_rng(5).bytes(CHUNKSIZE))' "$S"
        umount "$D"
        rm -r "$T/before" "$D" "$M"
    done
}
