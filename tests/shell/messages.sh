# What somebody is told who tries what is no frame, or the right things in the wrong order: one line that begins with the path, says what
# was found, what was expected, and what to do.

# told PATH WORDS...: every command that takes a frame says all of these words of it.
told() {
    local path=$1
    shift
    mkdir -p "$M"
    told_by "mount $path $M" "mount -f $path $M" "info $path" "ls $path" "cat $path 0" "check $path" "repair $path" \
        "compact $path" "convert $path $T/converted" -- "$path" "$@"
}

# told_by COMMANDS... -- PATH WORDS...: the same of these commands.
told_by() {
    local commands=() path command word line
    while [[ $1 != -- ]]; do commands+=("$1") && shift; done
    path=$2
    shift 2
    for command in "${commands[@]}"; do
        # shellcheck disable=SC2086 # words
        exits 1 "$B2FUSE" $command
        equal "$(wc -l <"$T/.err")" 1 "$command: $(cat "$T/.err")"
        line=$(cat "$T/.err")
        [[ $line == "$path: "* ]] || fail "$command: does not begin with $path: $line"
        for word; do has "$line" "$word"; done
        [[ $line != *"os error"* ]] || fail "$command: $line"
    done
    not_mounted
    [ ! -e "$T/converted" ]
}

test_a_numpy_array() {
    py 'np.save(sys.argv[1], np.arange(1000.0))' "$T/a.npy"
    mkdir "$M"
    told_by "mount $T/a.npy $M" "info $T/a.npy" "ls $T/a.npy" "cat $T/a.npy 0" "check $T/a.npy" "repair $T/a.npy" "compact $T/a.npy" -- \
        "$T/a.npy" "is a NumPy array (.npy)" "expected a Blosc2 frame" "b2fuse convert"
    # What it says works.
    "$B2FUSE" convert "$T/a.npy" "$S"
    mount_it
    equal "$(getfattr --only-values -n user.b2nd.shape "$M")" 1000
    umount_it
}

test_archives_and_other_formats() {
    py 'import zipfile
for name in sys.argv[1:]:
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr("a", "b")' "$T/a.zip" "$T/a.b2z" "$T/a.npz"
    told "$T/a.zip" "is a ZIP archive" "expected a Blosc2 frame" unzip
    told "$T/a.b2z" "is a store of Python-Blosc2 (.b2z), which is a ZIP archive" unzip
    told "$T/a.npz" "(.npz)" unzip
    printf '\x89HDF\r\n\x1a\n\0\0\0\0\0' >"$T/a.h5"
    told "$T/a.h5" "is an HDF5 file" "expected a Blosc2 frame" "blosc2.asarray("
    gzip -c "$FX/base.b2frame" >"$T/a.b2frame.gz"
    told "$T/a.b2frame.gz" "is compressed by gzip" gunzip
    mkdir "$T/a.zarr"
    : >"$T/a.zarr/zarr.json"
    told "$T/a.zarr" "is a Zarr store" "blosc2.asarray("
}

test_a_chunk_file() {
    told "$FX/new/0" "is a single chunk, not a frame" "a file, or a directory with chunks.b2frame"
    sparse_from full
    told "$(find "$S" -name '*.chunk' | head -n 1)" "is a single chunk, not a frame" "the directory that it is in"
    told "$S/chunks.b2frame" "is the index file of a sparse frame; expected the directory that it is in"
}

test_text_and_empty_files() {
    printf 'x,y\n1,2\n' >"$T/a.csv"
    told "$T/a.csv" "is a text file" "expected a Blosc2 frame"
    : >"$T/empty"
    told "$T/empty" "is empty" "expected a Blosc2 frame" --create
}

test_urls() {
    cd "$T"
    local path
    for path in ftp://example.org/a.b2nd s3:/bucket/a.b2nd; do
        told "$path" "is a URL" "expected a"
        told_by "repair $path" "compact $path" -- "$path" "expected a file or directory on this machine"
        told_by "info $path" "ls $path" "check $path" "mount $path $M" -- "$path" "a URL such as s3://BUCKET/KEY"
    done
    # These are read, and not written to.
    local url
    for url in https://example.org/a.b2nd s3://bucket/a.b2nd; do
        told_by "repair $url" "compact $url" -- "$url" "is a URL" "expected a file or directory on this machine"
    done
    told file:///data/a.b2nd "is a URL; expected a path: /data/a.b2nd"
}

# of_one_frame PATH WORDS...: the commands that take one frame say it; the others go through the directory.
of_one_frame() {
    told_by "cat $1 0" "repair $1" "convert $1 $T/converted" -- "$@"
}

test_directories_of_frames() {
    mkdir -p "$T/many" "$T/one" "$T/a.b2d" "$T/none"
    cp "$FX/base.b2frame" "$T/many/b.b2nd"
    cp "$FX/base.b2frame" "$T/many/a.b2frame"
    : >"$T/many/notes.txt"
    of_one_frame "$T/many" "is a directory with 2 frames in it" "expected one of them, such as $T/many/a.b2frame"
    cp "$FX/base.b2frame" "$T/one/x.b2frame"
    of_one_frame "$T/one" "is a directory with a frame in it; expected that, $T/one/x.b2frame"
    told_by "info $T/none" "ls $T/none" "check $T/none" "compact $T/none" -- "$T/none" "holds no frame; expected a Blosc2 frame"
    told_by "cat $T/none 0" "repair $T/none" "convert $T/none $T/converted" -- "$T/none" \
        "is a directory without chunks.b2frame; expected a Blosc2 frame"
    of_one_frame "$T/a.b2d" "is a store of Python-Blosc2 (.b2d)" "expected one of the frames in it"
    cp "$FX/base.b2frame" "$T/a.b2d/leaf.b2nd"
    of_one_frame "$T/a.b2d" "is a store of Python-Blosc2 (.b2d)" "such as $T/a.b2d/leaf.b2nd"
    # What convert says works.
    "$B2FUSE" convert --show sparse "$T/many" "$T/copy"
    [ -e "$T/copy/a.b2frame/chunks.b2frame" ] && [ -f "$T/copy/notes.txt" ]
    # As the library makes them.
    if py 'store = blosc2.TreeStore(sys.argv[1], mode="w")
store["/leaf"] = np.arange(100_000)
store.close()' "$T/real.b2d" 2>/dev/null && [ -d "$T/real.b2d" ]; then
        of_one_frame "$T/real.b2d" "is a store of Python-Blosc2 (.b2d)"
        has "$("$B2FUSE" check --deep "$T/real.b2d")" "$T/real.b2d/leaf.b2nd: sound"
        "$B2FUSE" convert --show sparse "$T/real.b2d" "$T/copy.b2d"
        py 'assert (blosc2.open(sys.argv[1])["/leaf"][:] == np.arange(100_000)).all()' "$T/copy.b2d"
    fi
}

# What helps is named, and helps.
test_a_truncated_frame_is_to_be_repaired() {
    local layout
    mkdir "$M"
    for layout in cframe sframe; do
        if [ $layout = cframe ]; then cp "$FX/full.b2frame" "$S" && truncate -s -10 "$S"
        else rm "$S"; sparse_from full; truncate -s -10 "$S/chunks.b2frame"; fi
        one_line "$S" "the file is cut off" "$B2FUSE" mount "$S" "$M"
        has "$(cat "$T/.err")" "b2fuse check"
        has "$(cat "$T/.err")" "b2fuse repair"
        one_line "$S" "b2fuse repair" "$B2FUSE" convert "$S" "$T/converted"
        one_line "$S" "b2fuse repair" "$B2FUSE" compact "$S"
        exits 1 "$B2FUSE" check "$S"
        "$B2FUSE" repair --yes "$S" >/dev/null
        mount_it
        umount_it
    done
    head -c 50 "$FX/full.b2frame" >"$T/short"
    one_line "$T/short" "b2fuse repair" "$B2FUSE" mount "$T/short" "$M"
    # What cannot be repaired is said so, with what tells more.
    one_line "$T/short" "cannot be repaired" "$B2FUSE" repair "$T/short"
    mkdir "$T/lost"
    : >"$T/lost/chunks.b2frame"
    one_line "$T/lost" "nothing was changed" "$B2FUSE" repair "$T/lost"
}

test_what_may_not_be_written_can_be_read() { as_a_user users_read_only; }
users_read_only() {
    [ "$(id -u)" = 0 ] || skip "needs root, for another user's frame"
    source_from full
    chmod 644 "$S"
    chown 65534:65534 "$M"
    one_line "$S" "cannot open for writing: Permission denied (-r mounts it read-only)" "${as[@]}" "$B2FUSE" mount "$S" "$M"
    # What it says works.
    "${as[@]}" "$B2FUSE" mount -r "$S" "$M" </dev/null
    "${as[@]}" "$B2FUSE" umount "$M"
    # Another user's mount.
    "$B2FUSE" mount "$S" "$M"
    one_line "$M" "it is another user's" "${as[@]}" "$B2FUSE" umount "$M"
    "$B2FUSE" umount "$M"
}

test_a_numpy_file_that_is_none() {
    echo text >"$T/bad.npy"
    one_line "$T/bad.npy" "expected a Blosc2 frame or a .npy file" "$B2FUSE" convert "$T/bad.npy" "$T/converted"
    one_line "$T/nosuch.npy" "expected a Blosc2 frame or a .npy file" "$B2FUSE" convert "$T/nosuch.npy" "$T/converted"
}

test_swapped_arguments() {
    source_from full
    cd "$T"
    one_line "$M: is no frame, and $S is one" "expected the frame first" "$B2FUSE" mount "$M" "$S"
    one_line "view: is no frame, and source.b2frame is one" "expected the frame first" "$B2FUSE" mount view source.b2frame
    mkdir many
    cp -r "$FX/sparse/full.b2frame" s.b2frame
    one_line "many: is no frame, and s.b2frame is one" "" "$B2FUSE" mount many s.b2frame
    # A directory could be one of frames.
    echo text >text
    one_line "text: is not a directory; expected a directory to mount on" "" "$B2FUSE" mount many text
    head -c 1000 /dev/urandom >bytes
    one_line "bytes: is not a directory; expected a directory to mount on" "" "$B2FUSE" mount many bytes
    one_line "source.b2frame" "such as $M, where it is shown" eval '"$B2FUSE" mount "$S" "$M" && "$B2FUSE" umount source.b2frame'
    umount_it
}

test_a_mount_point_that_is_not_there_or_taken() {
    source_from full
    one_line "$T/none" "mkdir" "$B2FUSE" mount "$S" "$T/none"
    mount_it
    one_line "$M" "is busy: $S is mounted there already (b2fuse umount)" "$B2FUSE" mount "$FX/base.b2frame" "$M"
    umount_it
}

# ---- Paths as they were given

test_paths_are_those_of_the_command_line() {
    source_from full
    cd "$T"
    mkdir view
    head -c 100000 "$FX/full.b2frame" >short.b2frame
    one_line "short.b2frame: header" "" "$B2FUSE" mount short.b2frame view
    one_line "./short.b2frame: header" "" "$B2FUSE" mount -f ./short.b2frame view
    one_line "../${T##*/}/short.b2frame: header" "" "$B2FUSE" mount "../${T##*/}/short.b2frame" view
    # From the daemon, of the mount point and of what lies beside SOURCE.
    one_line "view: cannot mount" "" env PATH=/nowhere "$B2FUSE" mount -o auto_unmount,allow_other source.b2frame view
    mkdir source.b2frame.b2lock
    one_line "source.b2frame.b2lock: " "" "$B2FUSE" mount --locking source.b2frame view
    rmdir source.b2frame.b2lock
    "$B2FUSE" mount source.b2frame view
    one_line "source.b2frame: is mounted for writing already" "" "$B2FUSE" mount source.b2frame mnt
    exec 7<view/00000003.chunk
    one_line "view: is busy" "" "$B2FUSE" umount view
    exec 7<&-
    cp "$FX/new/0" view/00000077.chunk
    one_line "view: " "" "$B2FUSE" umount view
}

# ---- Numbers of errors are for programs

# says_why WORDS COMMAND...: it fails and says these words, and no number.
says_why() {
    fails "$1" "${@:2}"
    if grep "os error" "$T/.err" "$T/.out"; then fail "a number of an error: ${*:2}"; fi
}
test_no_numbers_of_errors() {
    root_only
    source_from full
    ln -s loop "$T/loop"
    : >"$T/file"
    says_why "lead in a circle" "$B2FUSE" mount "$T/loop" "$M"
    says_why "lead in a circle" "$B2FUSE" mount "$S" "$T/loop"
    says_why "Not a directory" "$B2FUSE" mount "$S/x" "$M"
    says_why "Not a directory" "$B2FUSE" mount "$S" "$T/file/x"
    says_why "Not a directory" "$B2FUSE" umount "$T/file/x"
    says_why "No such file or directory" "$B2FUSE" umount "$T/none"
    says_why "No such file or directory" "$B2FUSE" mount --log-file "$T/none/log" "$S" "$M"
    says_why "No space left on device" bash -c '"$0" info "$1" >/dev/full' "$B2FUSE" "$S"
    says_why "No space left on device" bash -c '"$0" check "$1" >/dev/full' "$B2FUSE" "$S"
    says_why "No space left on device" bash -c '"$0" repair "$1" >/dev/full' "$B2FUSE" "$S"
    says_why "Not a directory" "$B2FUSE" man "$T/file/x"
    chmod 600 "$S"
    says_why "Permission denied" "${nobody[@]}" "$B2FUSE" info "$S"
    says_why "Permission denied" "${nobody[@]}" "$B2FUSE" check "$S"
    says_why "Permission denied" "${nobody[@]}" "$B2FUSE" repair "$S"
    says_why "Permission denied" "${nobody[@]}" "$B2FUSE" mount "$S" "$M"
    mkdir "$T/sparse"
    ln -s chunks.b2frame "$T/sparse/chunks.b2frame"
    says_why "symbolic link" "$B2FUSE" mount "$T/sparse" "$M"
}

test_no_numbers_of_errors_in_the_log() {
    root_only
    local disk=$T/disk n
    mkdir "$disk" "$M"
    mount -t tmpfs -o size=1M tmpfs "$disk"
    S=$disk/source.b2frame
    cp "$FX/full.b2frame" "$S"
    mount_front --log-level debug
    n=6
    while [ $n -lt 60 ] && cp "$FX/new/$((n % 8))" "$(chunk $n)" 2>"$T/err" && sync "$(chunk $n)" 2>"$T/err"; do n=$((n + 1)); done
    mount -o remount,size=4M "$disk"
    # Another process.
    cp "$FX/full.b2frame" "$disk/other" && mv "$disk/other" "$S"
    cp "$FX/new/0" "$(chunk 3)" 2>"$T/err" || true
    says_why "" umount_it
    end_of_daemon || true
    has "$(cat "$T/log")" "No space left on device"
    has "$(cat "$T/log")" " ERROR "
    if grep "os error" "$T/log"; then fail "a number of an error in the log"; fi
    umount "$disk"
}
