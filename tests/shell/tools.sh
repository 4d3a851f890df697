# The tools that people copy files with.

# a_changed_copy: $T/copy is the mount's frame, changed by the library: one chunk updated, one added, one deleted, metadata.
a_changed_copy() {
    cp -a "$M" "$T/copy"
    py 's = blosc2.open(sys.argv[1], mode="a")
s.update_data(2, noise(400), copy=True)
s.append_data(noise(401))
s.delete_chunk(4)
s.vlmeta["who"] = "rsync"' "$T/copy"
}

# rsync_twice ARGUMENTS: the second time there is nothing to do.
rsync_twice() {
    rsync -a "$@" "$T/copy/" "$M/"
    equal "$(rsync -a --itemize-changes "$@" "$T/copy/" "$M/")" "" "second rsync"
}

test_rsync() {
    source_from full
    mount_it
    a_changed_copy
    rsync_twice
    umount_it
    tool same "$S" "$T/copy"
}

test_rsync_delete() {
    source_from full
    mount_it
    a_changed_copy
    rsync_twice --delete
    equal "$(ls "$M")" "$(ls "$T/copy")"
    umount_it
    tool same "$S" "$T/copy"
}

test_rsync_inplace() {
    source_from full
    mount_it
    a_changed_copy
    rsync_twice --inplace
    umount_it
    tool same "$S" "$T/copy"
}

test_rsync_inplace_without_whole_files() {
    source_from full
    mount_it
    a_changed_copy
    rsync_twice --inplace --no-whole-file
    umount_it
    tool same "$S" "$T/copy"
}

# Whole files go to a directory .~tmp~ first, and to their places when all are there.
test_rsync_delay_updates() {
    source_from full
    mount_it
    a_changed_copy
    rsync_twice --delay-updates
    fails "No such file or directory" stat "$M/.~tmp~"
    umount_it
    tool same "$S" "$T/copy"
    [ ! -e "$S.lost" ]
}

test_rsync_delay_updates_into_a_new_frame() {
    mkdir "$M"
    mount_it --create
    cp -a "$FX/native.b2frame" "$T/copy"
    rsync_twice --delay-updates
    umount_it
    tool same "$S" "$T/copy"
}

# As aws s3 cp and rclone do.
test_copies_with_a_suffix_renamed() {
    source_from full
    mount_it
    a_changed_copy
    local file name
    for file in "$T"/copy/*; do
        name=${file##*/}
        cp "$file" "$M/$name.0a1B2c3D"
        cmp "$file" "$M/$name.0a1B2c3D"
        mv "$M/$name.0a1B2c3D" "$M/$name"
    done
    equal "$(ls "$M")" "$(ls "$T/copy")"
    umount_it
    tool same "$S" "$T/copy"
    [ ! -e "$S.lost" ]
}

test_the_directory_of_delayed_files() {
    source_from base
    mount_it
    fails "No such file or directory" cp "$FX/new/0" "$M/.~tmp~/00000003.chunk"
    mkdir -m 700 "$M/.~tmp~"
    equal "$(stat -c '%F %a' "$M/.~tmp~")" "directory 700"
    fails "File exists" mkdir "$M/.~tmp~"
    cp "$FX/new/0" "$M/.~tmp~/00000003.chunk"
    cmp "$M/.~tmp~/00000003.chunk" "$FX/new/0"
    cmp "$(chunk 3)" "$FX/base/3"
    equal "$(ls -A "$M/.~tmp~")" 00000003.chunk
    [[ $(ls -A "$M") == *.~tmp~* ]]
    errnos EPERM \
        'os.mkdir(M + "/.~tmp~/x")' \
        'os.mkdir(M + "/.~tmp~/.~tmp~")' \
        'os.open(M + "/.~tmp~/notes.txt", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/.~tmp~/.~tmp~", os.O_WRONLY | os.O_CREAT)' \
        'os.rename(M + "/.~tmp~", M + "/.x")' \
        'os.rename(M + "/.~tmp~/00000003.chunk", M + "/notes.txt")' \
        'os.open(M + "/notes.txt.1a2b", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/0000000a.chunk.1a2b", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/00000003.chunk.", os.O_WRONLY | os.O_CREAT)' \
        'os.open(M + "/00000003.chunkx", os.O_WRONLY | os.O_CREAT)'
    fails "Directory not empty" rmdir "$M/.~tmp~"
    mv "$M/.~tmp~/00000003.chunk" "$M"
    rmdir "$M/.~tmp~"
    cmp "$(chunk 3)" "$FX/new/0"
    umount_it
    holds n=10 3="$FX/new/0"
    [ ! -e "$S.lost" ]
}

test_copies_that_are_left_are_saved() {
    source_from base
    mount_it
    mkdir "$M/.~tmp~"
    cp "$FX/new/0" "$M/.~tmp~/00000003.chunk"
    cp "$FX/new/1" "$(chunk 4).1a2b"
    echo vanishes >"$M/.00000004.chunk.Ab12"
    : >"$M/chunks.b2frame.Ab12"
    one_line "$M" "$S.lost/" umount_it
    cmp "$S.lost/00000003.chunk" "$FX/new/0"
    cmp "$S.lost/00000004.chunk.1a2b" "$FX/new/1"
    equal "$(find "$S.lost" -type f | wc -l)" 2
    equal "$(sha256sum <"$S")" "$(sha256sum <"$FX/base.b2frame")"
}

test_rsync_into_a_new_frame() {
    mkdir "$M"
    mount_it --create
    cp -a "$FX/native.b2frame" "$T/copy"
    rsync_twice
    umount_it
    tool same "$S" "$FX/native.b2frame"
}

test_tar_in() {
    mkdir "$M"
    mount_it --create
    tar -C "$FX/native.b2frame" -c . | tar -C "$M" -x
    umount_it
    tool same "$S" "$FX/native.b2frame"
}

test_tar_over_a_frame() {
    source_from full
    mount_it
    tar -C "$FX/native.b2frame" -c . | tar -C "$M" -x
    umount_it
    tool same "$S" "$FX/native.b2frame"
}

test_cp_keeps_times_and_modes() {
    source_from base
    mount_it
    cp "$FX/new/0" "$T/c"
    touch -d '2020-01-02 03:04:05.678' "$T/c"
    chmod 604 "$T/c"
    cp -p "$T/c" "$(chunk 3)"
    equal "$(stat -c '%y %a' "$(chunk 3)")" "$(stat -c '%y %a' "$T/c")"
    touch -d '2019-01-01' "$(chunk 6)"
    equal "$(stat -c %Y "$(chunk 6)")" "$(date -d '2019-01-01' +%s)"
    # They stay over other changes of the mount.
    cp "$FX/new/1" "$(chunk 0)"
    sync "$(chunk 0)"
    equal "$(stat -c '%y %a' "$(chunk 3)")" "$(stat -c '%y %a' "$T/c")"
    umount_it
    holds 3="$FX/new/0"
}

test_cp_with_backup() {
    source_from base
    mount_it
    cp --backup "$FX/new/0" "$(chunk 3)"
    cmp "$(chunk 3)" "$FX/new/0"
    cmp "$(chunk 3)~" "$FX/base/3"
    cp --backup=numbered "$FX/new/2" "$(chunk 8)"
    cmp "$(chunk 8).~1~" "$FX/base/8"
    cp -f --remove-destination "$FX/new/1" "$(chunk 6)"
    # A backup that is still there when the mount ends is no temporary file to its maker.
    one_line "$M" "$S.lost/00000003.chunk~" umount_it
    holds n=10 3="$FX/new/0" 6="$FX/new/1" 8="$FX/new/2"
    cmp "$S.lost/00000003.chunk~" "$FX/base/3"
}

test_an_editor_that_writes_beside_and_renames() {
    source_from base
    mount_it
    py 'import os, tempfile
path, new = sys.argv[1:]
fd, name = tempfile.mkstemp(prefix=".", dir=os.path.dirname(path))
os.write(fd, open(new, "rb").read())
os.fsync(fd)
os.fchmod(fd, 0o644)
os.close(fd)
os.replace(name, path)' "$(chunk 3)" "$FX/new/0"
    cmp "$(chunk 3)" "$FX/new/0"
    umount_it
    holds 3="$FX/new/0"
}

# sed makes its file under a name without a dot.
test_sed_in_place_is_refused() {
    source_from base
    mount_it
    fails "Operation not permitted" sed -i s/a/b/ "$(chunk 3)"
    cmp "$(chunk 3)" "$FX/base/3"
    umount_it
    equal "$(sha256sum <"$S")" "$(sha256sum <"$FX/base.b2frame")"
}

test_sparse_copies() {
    source_from full
    mount_it
    cp --sparse=always "$FX/new/holes" "$(chunk 3)"
    cmp "$(chunk 3)" "$FX/new/holes"
    dd if="$FX/new/holes" of="$(chunk 4)" bs=4K conv=sparse status=none
    cmp "$(chunk 4)" "$FX/new/holes"
    mkdir "$T/copy"
    cp "$FX/new/holes" "$T/copy/00000005.chunk"
    rsync -aS "$T/copy/" "$M/"
    cmp "$(chunk 5)" "$FX/new/holes"
    umount_it
    holds n=6 3="$FX/new/holes" 4="$FX/new/holes" 5="$FX/new/holes"
}

test_cp_within_the_mount() {
    source_from full
    mount_it
    cp "$(chunk 0)" "$(chunk 1)"
    cp "$(chunk 0)" "$(chunk 6)"
    cat "$(chunk 2)" >"$(chunk 3)"
    umount_it
    holds n=7 0="$FX/full/0" 1="$FX/full/0" 2="$FX/full/2" 3="$FX/full/2" 6="$FX/full/0"
}

test_install_and_mv_over_file_systems() {
    source_from base
    mount_it
    install -m 644 "$FX/new/0" "$(chunk 3)"
    cp "$FX/new/1" "$T/c"
    mv "$T/c" "$(chunk 6)"
    umount_it
    holds n=10 3="$FX/new/0" 6="$FX/new/1"
}

# Two chunks change places by way of a third name.
test_mv_within_the_mount() {
    source_from full
    mount_it
    mv "$(chunk 0)" "$M/.hold"
    mv "$(chunk 1)" "$(chunk 0)"
    mv "$M/.hold" "$(chunk 1)"
    cmp "$(chunk 0)" "$FX/full/1"
    cmp "$(chunk 1)" "$FX/full/0"
    umount_it
    holds n=6 0="$FX/full/1" 1="$FX/full/0" 2="$FX/full/2"
}
