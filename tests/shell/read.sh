# What a mount shows: names, bytes, attributes.

test_listing() {
    source_from base
    mount_it
    equal "$(ls -A "$M" | xargs)" "00000000.chunk 00000001.chunk 00000003.chunk 00000006.chunk 00000007.chunk 00000008.chunk 00000009.chunk chunks.b2frame"
    equal "$(find "$M" -type f | wc -l)" 8
    umount_it
    equal "$(ls -A "$M")" ""
}

test_chunk_files_hold_the_chunks() {
    source_from base
    mount_it
    for n in 0 1 3 6 7 8 9; do cmp "$(chunk $n)" "$FX/base/$n"; done
}

test_special_chunks_have_no_file() {
    source_from base
    mount_it
    for n in 2 4 5 10; do fails "No such file or directory" cat "$(chunk $n)"; done
    fails "No such file or directory" cat "$M/0000000a.chunk"
    fails "No such file or directory" stat "$M/x"
}

test_the_library_opens_the_mount() {
    mkdir "$M"
    for name in base full short empty many; do
        cp "$FX/$name.b2frame" "$S"
        mount_it -o ro
        tool same "$M" "$S"
        umount_it
    done
}

test_the_library_opens_an_array() {
    cp "$FX/array.b2nd" "$S"
    mkdir "$M"
    mount_it
    tool same "$M" "$S"
    py 'a = blosc2.open(sys.argv[1]); assert isinstance(a, blosc2.NDArray) and a[31, 69] == 31 * 70 + 69, a' "$M"
}

# The library refuses an index with ids beyond the stored bytes, so a view numbered by position needs care.
test_the_library_opens_a_mostly_special_frame() {
    mkdir "$M"
    py 's = blosc2.SChunk(chunksize=4000, urlpath=sys.argv[1], mode="w", cparams={"typesize": 4})
s.fill_special(5000 * 1000, blosc2.SpecialValue.ZERO)
s.update_data(4990, b"abcd" * 1000, copy=True)' "$S"
    mount_it
    tool same "$M" "$S"
    equal "$(ls "$M" | xargs)" "0000137E.chunk chunks.b2frame"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(10, b"efgh" * 1000, copy=True)' "$M"
    umount_it
    py 's = blosc2.open(sys.argv[1]); assert s.decompress_chunk(10) == b"efgh" * 1000 and s.decompress_chunk(4990) == b"abcd" * 1000' "$S"
}

test_the_real_frames() {
    mkdir "$M"
    local frame count=0
    for frame in "$ROOT"/tests/data/cframe/*; do
        echo "$frame"
        cp "$frame" "$S"
        mount_it
        tool same "$M" "$frame"
        umount_it
        cmp "$S" "$frame"
        count=$((count + 1))
    done
    [ $count -ge 20 ]
}

# What C-Blosc2 wrote as a directory, copied in, is the same frame as a file.
test_the_real_directories() {
    mkdir "$M"
    local frame
    for frame in "$ROOT"/tests/data/sframe/*; do
        echo "$frame"
        rm -f "$S"
        mount_it --create
        cp -r "$frame/." "$M/"
        tool same "$M" "$frame"
        umount_it
        tool same "$S" "$frame"
    done
}

test_reads_at_odd_offsets() {
    source_from base
    mount_it
    local file
    file=$(chunk 3)
    cmp <(dd if="$file" bs=777 skip=3 count=5 status=none) <(dd if="$FX/base/3" bs=777 skip=3 count=5 status=none)
    cmp <(tail -c 101 "$file") <(tail -c 101 "$FX/base/3")
    equal "$(dd if="$file" bs=1 skip=100000 count=10 status=none 2>/dev/null | wc -c)" 0
    cmp <(dd if="$M/chunks.b2frame" bs=7 status=none) "$M/chunks.b2frame"
}

test_many_files() {
    mkdir "$M"
    py 's = blosc2.SChunk(chunksize=400, urlpath=sys.argv[1], mode="w", cparams={"typesize": 4})
for n in range(3000): s.append_data(noise(n, 400))' "$S"
    mount_it
    equal "$(ls -f "$M" | grep -c chunk$)" 3000
    equal "$(ls -l "$M" | grep -c 'chunk$')" 3000
    equal "$(ls "$M" | sort -u | wc -l)" 3001
    equal "$(cat "$M"/*.chunk | wc -c)" "$(find "$M" -name '*.chunk' -printf '%s\n' | awk '{ n += $1 } END { print n }')"
}

test_attributes_come_from_source() {
    source_from base
    touch -d '2021-02-03 04:05:06.789' "$S"
    chmod 640 "$S"
    if [ "$(id -u)" = 0 ]; then chown 1234:2345 "$S"; fi
    mount_it
    local file
    for file in "$M" "$(chunk 3)" "$M/chunks.b2frame"; do
        equal "$(stat -c '%u:%g %y' "$file")" "$(stat -c '%u:%g %y' "$S")" "$file"
    done
    equal "$(stat -c '%a %s %F' "$(chunk 3)")" "640 $(stat -c %s "$FX/base/3") regular file"
    equal "$(stat -c '%a %F' "$M")" "750 directory"
}

test_df_and_du() {
    source_from base
    mount_it
    equal "$(df -B1 --output=size "$M" | tail -n 1)" "$(df -B1 --output=size "$T" | tail -n 1)"
    local all
    all=$(cat "$M"/* | wc -c)
    equal "$(du --apparent-size -B1 "$M"/* | awk '{ n += $1 } END { print n }')" "$all"
    # On disk: at least the bytes, and no more than a block for each file besides.
    local used
    used=$(du -B1 "$M"/* | awk '{ n += $1 } END { print n }')
    [ "$used" -ge "$all" ] && [ "$used" -le $((all + 8 * 4096)) ] || fail "du says $used for $all bytes"
}

test_read_only_refuses_every_write() {
    source_from base
    local before option
    before=$(sha256sum "$S")
    for option in "-o ro" --read-only; do
        # shellcheck disable=SC2086 # two words
        mount_it $option
        errnos EROFS \
            'os.open(M + "/00000003.chunk", os.O_WRONLY)' \
            'os.open(M + "/00000003.chunk", os.O_RDWR)' \
            'os.open(M + "/00000003.chunk", os.O_RDONLY | os.O_TRUNC)' \
            'os.open(M + "/chunks.b2frame", os.O_WRONLY)' \
            'os.open(M + "/0000000A.chunk", os.O_WRONLY | os.O_CREAT)' \
            'os.open(M + "/.b2lock", os.O_WRONLY | os.O_CREAT)' \
            'os.unlink(M + "/00000003.chunk")' \
            'os.rename(M + "/00000003.chunk", M + "/00000004.chunk")' \
            'os.truncate(M + "/00000003.chunk", 10)' \
            'os.chmod(M + "/00000003.chunk", 0o600)' \
            'os.utime(M + "/00000003.chunk", (1, 1))' \
            'os.mkdir(M + "/d")' \
            'os.symlink("x", M + "/.l")' \
            'os.link(M + "/00000003.chunk", M + "/.l")'
        fails "Read-only file system" cp "$FX/new/0" "$(chunk 3)"
        umount_it
    done
    equal "$(sha256sum "$S")" "$before"
}

test_a_mount_without_changes_leaves_source_alone() {
    source_from base
    local before option
    before=$(sha256sum "$S" && stat -c '%i %s %y %a' "$S")
    for option in "-o rw" "-o ro"; do
        # shellcheck disable=SC2086 # two words
        mount_it $option
        cat "$M"/* >/dev/null
        ls -l "$M" >/dev/null
        tool same "$M" "$S"
        umount_it
        equal "$(sha256sum "$S" && stat -c '%i %s %y %a' "$S")" "$before" "$option"
    done
    equal "$(ls "$T")" "$(printf 'mnt\nsource.b2frame')"
}

test_a_copy_of_the_mount_is_an_sframe() {
    source_from base
    mount_it
    cp -r "$M" "$T/copied.b2frame"
    tool same "$T/copied.b2frame" "$S"
    mkdir "$T/tarred.b2frame"
    tar -C "$M" -c . | tar -C "$T/tarred.b2frame" -x
    tool same "$T/tarred.b2frame" "$S"
    rsync -a "$M/" "$T/synced.b2frame"
    tool same "$T/synced.b2frame" "$S"
}

test_a_read_only_mount_follows_others() {
    source_from full
    mount_it -o ro
    tool same "$M" "$S"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(77)); s.vlmeta["new"] = 1' "$S"
    await tool same "$M" "$S"
    await test -f "$(chunk 6)"
}
