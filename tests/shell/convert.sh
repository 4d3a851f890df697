# `b2fuse convert`: a copy in the other layout without a mount. And the round trip through both views, against it.

# nothing_else NAME...: $T holds these and nothing else (but the test's own files).
nothing_else() { equal "$(ls -A "$T" | grep -vxE '\.out|\.err|mnt' | xargs)" "$*"; }

test_names_of_unfinished_frames_are_no_targets() {
    source_from many
    mkdir "$T/frames"
    local words='has a name of unfinished frames, which b2fuse removes; expected one that does not begin with .b2fuse-'
    one_line "$T/.b2fuse-x" "$words" "$B2FUSE" convert "$S" "$T/.b2fuse-x"
    one_line "$T/.b2fuse-x" "$words" "$B2FUSE" convert --show sparse "$T/frames" "$T/.b2fuse-x"
    nothing_else frames source.b2frame
}

# Every real frame: cframe -> sparse view -> cp -r -> contiguous view -> cp, and convert both ways, end with the same bytes.
test_the_round_trip_of_every_real_cframe() {
    mkdir "$M"
    local frame name
    for frame in "$ROOT"/tests/data/cframe/*; do
        name=${frame##*/}
        echo "$name"
        mkdir "$T/a" "$T/b" "$T/c"
        "$B2FUSE" mount -o ro "$frame" "$M"
        cp -r "$M" "$T/a/$name"
        umount_it
        "$B2FUSE" mount -o ro "$T/a/$name" "$M"
        cp "$M/$name" "$T/b/$name"
        umount_it
        view "$T/b/$name" "$frame"
        "$B2FUSE" convert "$frame" "$T/c/sparse"
        twins "$T/c/sparse" "$frame"
        "$B2FUSE" convert "$T/c/sparse" "$T/c/back"
        cmp "$T/c/back" "$T/b/$name"
        "$B2FUSE" convert "$T/a/$name" "$T/c/other"
        cmp "$T/c/other" "$T/b/$name"
        rm -r "$T/a" "$T/b" "$T/c"
    done
}

test_the_round_trip_of_every_real_sframe() {
    mkdir "$M"
    local frame name
    for frame in "$ROOT"/tests/data/sframe/*; do
        name=${frame##*/}
        echo "$name"
        "$B2FUSE" convert "$frame" "$T/contiguous"
        view "$T/contiguous" "$frame"
        "$B2FUSE" mount -o ro "$frame" "$M"
        cmp "$M/$name" "$T/contiguous"
        umount_it
        "$B2FUSE" convert "$T/contiguous" "$T/sparse"
        twins "$T/sparse" "$frame"
        rm -r "$T/contiguous" "$T/sparse"
    done
}

test_convert_says_nothing_when_nobody_watches() {
    source_from many
    exits 0 "$B2FUSE" convert "$S" "$T/x.b2frame"
    equal "$(cat "$T/.out" "$T/.err")" ""
    tool same "$T/x.b2frame" "$S"
    equal "$(find "$T/x.b2frame" -type f | wc -l)" 65
    # The source is not touched, and neither is it by the way back.
    cmp "$S" "$FX/many.b2frame"
    cp -a "$T/x.b2frame" "$T/before"
    exits 0 "$B2FUSE" convert "$T/x.b2frame/" "$T/y.b2frame"
    diff -r "$T/x.b2frame" "$T/before"
    cmp "$T/y.b2frame" "$S"
    rm -r "$T/before" "$T/x.b2frame" "$T/y.b2frame"
    nothing_else source.b2frame
}

test_convert_shows_progress_to_a_person() {
    command -v script >/dev/null || skip "no script(1)"
    py 's = blosc2.SChunk(chunksize=1 << 20, urlpath=sys.argv[1], mode="w", cparams={"typesize": 1, "clevel": 0})
for n in range(200): s.append_data(np.random.default_rng(n).bytes(1 << 20))' "$S"
    script -qec "'$B2FUSE' convert '$S' '$T/x.b2frame'" "$T/typescript" >/dev/null </dev/null
    tr '\r' '\n' <"$T/typescript" | grep -q '%\|/s\|MiB\|[0-9]/200' || fail "no progress: $(cat "$T/typescript")"
    tool same "$T/x.b2frame" "$S"
}

test_convert_wrong_usage() {
    source_from full
    exits 2 "$B2FUSE" convert
    exits 2 "$B2FUSE" convert "$S"
    exits 2 "$B2FUSE" convert "$S" "$T/x" "$T/y"
    exits 2 "$B2FUSE" convert --no-such-option "$S" "$T/x"
    exits 0 "$B2FUSE" convert --help
    has "$(cat "$T/.out")" --force
    rm -d "$M"
    nothing_else source.b2frame
}

test_convert_to_a_name_of_another_format() {
    source_from many
    mkdir "$T/frames"
    local name words='is a name of another format'
    for name in out.zarr out.h5 out.csv out.NC out.b2z out.parquet; do
        one_line "$T/$name" "$words" "$B2FUSE" convert "$S" "$T/$name"
        one_line "$T/$name" "$words" "$B2FUSE" convert --show sparse "$T/frames" "$T/$name"
    done
    nothing_else frames source.b2frame
    "$B2FUSE" convert "$S" "$T/out.zarr.b2frame"
}

test_convert_does_not_replace_without_force() {
    source_from full
    echo old >"$T/file"
    mkdir "$T/dir" && echo old >"$T/dir/file"
    one_line "$T/file" exists "$B2FUSE" convert "$S" "$T/file"
    one_line "$T/dir" "is a directory" "$B2FUSE" convert "$S" "$T/dir"
    one_line "$T/file" exists "$B2FUSE" convert "$FX/sparse/full.b2frame" "$T/file"
    ln -s nowhere "$T/link"
    one_line "$T/link" "symbolic link" "$B2FUSE" convert "$S" "$T/link"
    equal "$(cat "$T/file" "$T/dir/file")" "$(printf 'old\nold')"
    nothing_else dir file link source.b2frame
}

test_convert_with_force_replaces_frames() {
    source_from full
    "$B2FUSE" convert "$FX/base.b2frame" "$T/x"
    "$B2FUSE" convert --force "$S" "$T/x"
    tool same "$T/x" "$S"
    equal "$(ls -A "$T/x" | wc -l)" 7
    # A sparse one by a contiguous one and the other way round.
    "$B2FUSE" convert --force "$FX/sparse/base.b2frame" "$T/x"
    [ -f "$T/x" ]
    tool same "$T/x" "$FX/base.b2frame"
    "$B2FUSE" convert "$S" "$T/x" --force
    tool same "$T/x" "$S"
    rm -r "$T/x"
    nothing_else source.b2frame
}

# A directory that is no frame has things in it that are none of b2fuse's business.
test_convert_with_force_spares_what_is_no_frame() {
    source_from full
    mkdir -p "$T/dir/deep"
    echo precious >"$T/dir/deep/file"
    exits 1 "$B2FUSE" convert --force "$S" "$T/dir"
    exits 1 "$B2FUSE" convert --force "$FX/sparse/full.b2frame" "$T/dir"
    equal "$(cat "$T/dir/deep/file")" precious
    nothing_else dir source.b2frame
}

# Onto itself, into itself, over its own link: SOURCE is never harmed.
test_convert_onto_its_source() {
    sparse_from full
    cp "$FX/full.b2frame" "$T/c.b2frame"
    ln -s c.b2frame "$T/link"
    ln "$T/c.b2frame" "$T/hard"
    exits 1 "$B2FUSE" convert --force "$T/c.b2frame" "$T/c.b2frame"
    exits 1 "$B2FUSE" convert --force "$T/c.b2frame" "$T/./c.b2frame"
    exits 1 "$B2FUSE" convert --force "$S" "$S"
    exits 1 "$B2FUSE" convert --force "$S" "$S/"
    exits 1 "$B2FUSE" convert --force "$S" "$S/chunks.b2frame"
    exits 1 "$B2FUSE" convert --force "$S" "$S/00000000.chunk"
    exits 1 "$B2FUSE" convert "$S" "$S/inside"
    exits 1 "$B2FUSE" convert --force "$S" "$T"
    cmp "$T/c.b2frame" "$FX/full.b2frame"
    diff -r "$S" "$FX/sparse/full.b2frame"
}

test_convert_of_what_is_no_frame() {
    mkdir "$M"
    one_line "$T/none" "no such file" "$B2FUSE" convert "$T/none" "$T/x"
    echo text >"$T/text"
    one_line "$T/text" "" "$B2FUSE" convert "$T/text" "$T/x"
    mkdir "$T/dir"
    one_line "$T/dir" "" "$B2FUSE" convert "$T/dir" "$T/x"
    source_from full
    one_line "$T/nowhere/x" "no such directory" "$B2FUSE" convert "$S" "$T/nowhere/x"
    cp -r "$FX/sparse/full.b2frame" "$T/missing"
    rm "$T/missing/00000003.chunk"
    one_line "$T/missing" 00000003.chunk "$B2FUSE" convert "$T/missing" "$T/x"
    # A chunk that is damaged inside is found out while it is copied.
    cp -r "$FX/sparse/full.b2frame" "$T/damaged"
    head -c 32 "$FX/full/4" >"$T/damaged/00000003.chunk"
    head -c 20000 /dev/zero >>"$T/damaged/00000003.chunk"
    one_line "$T/damaged" 00000003.chunk "$B2FUSE" convert "$T/damaged" "$T/x"
    nothing_else damaged dir missing source.b2frame text
}

test_convert_checks_for_room_first() {
    root_only
    mkdir "$T/disk"
    mount -t tmpfs -o size=1M tmpfs "$T/disk"
    cp "$FX/many.b2frame" "$T/c"
    one_line "$T/disk/x" "file system has 1.00 MiB left" "$B2FUSE" convert "$T/c" "$T/disk/x"
    equal "$(ls -A "$T/disk")" ""
    one_line "$T/disk/x" "file system has 1.00 MiB left" "$B2FUSE" convert "$FX/sparse/many.b2frame" "$T/disk/x"
    equal "$(ls -A "$T/disk")" ""
    # Files enough for the bytes, but not for so many of them.
    umount "$T/disk"
    mount -t tmpfs -o size=20M,nr_inodes=40 tmpfs "$T/disk"
    exits 1 "$B2FUSE" convert "$T/c" "$T/disk/x"
    equal "$(ls -A "$T/disk")" ""
    "$B2FUSE" convert "$FX/sparse/many.b2frame" "$T/disk/x"
    cmp "$T/disk/x" "$T/c"
    umount "$T/disk"
}

# Killed at any moment: under its final name there is nothing, or the old, or the whole.
test_convert_killed() {
    cp -r "$FX/sparse/base.b2frame" "$T/old.b2frame"
    py 's = blosc2.SChunk(chunksize=1 << 18, urlpath=sys.argv[1], mode="w", cparams={"typesize": 1, "clevel": 0})
for n in range(200): s.append_data(np.random.default_rng(n).bytes(1 << 18))' "$T/c"
    "$B2FUSE" convert "$T/c" "$T/s"
    py 'import random, shutil, subprocess, time
binary, T = sys.argv[1:]
rng = random.Random(1)
ended = set()
for n in range(24):
    source, target = (f"{T}/c", f"{T}/x.b2frame") if n % 2 else (f"{T}/s", f"{T}/x.b2frame")
    blosc2.remove_urlpath(target)
    force = n % 4 > 1
    if force:
        shutil.copytree(f"{T}/old.b2frame", target)
    convert = subprocess.Popen([binary, "convert", *["--force"] * force, source, target])
    try:
        convert.wait(rng.uniform(0.001, 0.25))
    except subprocess.TimeoutExpired:
        convert.kill()
    ended.add(convert.wait())
    try:
        found = blosc2.open(target).nchunks
    except (FileNotFoundError, RuntimeError):
        assert not Path(target).exists(), "what stands there is no frame"
        found = 0
    assert found in ((10, 200) if force else (0, 200)), (n, found)
print("exit codes", ended)
assert ended == {0, -9}, f"{ended}: not killed at every stage"' "$B2FUSE" "$T"
}

test_convert_beside_a_mount() {
    sparse_from full
    mount_it
    py 's = blosc2.open(sys.argv[1], mode="a"); s.append_data(noise(300))' "$V"
    sync "$V"
    # What is committed can be read by others.
    "$B2FUSE" convert "$S" "$T/x.b2frame"
    cmp "$T/x.b2frame" "$V" || tool same "$T/x.b2frame" "$V"
    # SOURCE of a mount is not to be replaced.
    exits 1 "$B2FUSE" convert --force "$FX/base.b2frame" "$S"
    tool same "$V" "$T/x.b2frame"
    umount_it
    tool same "$S" "$T/x.b2frame"
}
