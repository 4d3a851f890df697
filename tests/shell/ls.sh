# `b2fuse ls` and `b2fuse cat`. What they say and write of many frames, tests/python/ls_and_cat.py holds against the library.

# same ONE OTHER ARGUMENTS: with either for FRAME in its arguments, b2fuse prints the same, and something. In JSON, but for the places.
same() {
    local one=$1 other=$2
    shift 2
    "$B2FUSE" "${@/FRAME/$one}" | sed 's/"offset":[^,]*,"id":[^,]*,//' >"$T/one"
    "$B2FUSE" "${@/FRAME/$other}" | sed 's/"offset":[^,]*,"id":[^,]*,//' >"$T/other"
    [ -s "$T/one" ]
    cmp "$T/one" "$T/other"
}

test_frames_inside_mounts() {
    local frame
    mkdir "$M"
    for frame in base.b2frame array.b2nd; do
        cp "$FX/$frame" "$S"
        mount_it -o ro
        same "$M" "$S" ls --json FRAME
        same "$M" "$S" cat FRAME 0-
        same "$M" "$S" cat --raw FRAME 0-
        umount_it
        "$B2FUSE" convert "$S" "$T/sparse"
        "$B2FUSE" convert "$T/sparse" "$T/file"
        "$B2FUSE" mount -o ro "$T/sparse" "$M"
        same "$M/sparse.b2frame" "$T/file" ls FRAME
        same "$M/sparse.b2frame" "$T/file" ls --json FRAME
        same "$M/sparse.b2frame" "$S" cat FRAME 0-
        umount_it
        rm -r "$T/sparse" "$T/file"
    done
}

test_readers_that_have_had_enough() {
    local many=$ROOT/tests/data/cframe/fill-uninit.b2frame
    exits 0 bash -o pipefail -c '"$0" ls "$1" | head -n 1' "$B2FUSE" "$many"
    exits 0 bash -o pipefail -c '"$0" ls --json --sort cbytes "$1" | head -n 1' "$B2FUSE" "$many"
    exits 0 bash -o pipefail -c '"$0" cat "$1" 0- | head -c 1' "$B2FUSE" "$many"
    equal "$(cat "$T/.err")" ""
    equal "$("$B2FUSE" ls "$many" | wc -l)" 5001
    equal "$("$B2FUSE" cat "$many" 0- | wc -c)" 2000000
    one_line "standard output" "no space left" bash -c '"$0" ls "$1" >/dev/full' "$B2FUSE" "$many"
    one_line "standard output" "no space left" bash -c '"$0" cat "$1" 0 >/dev/full' "$B2FUSE" "$many"
}

test_a_chunk_file_that_is_gone() {
    sparse_from base
    rm "$S/00000003.chunk"
    one_line "$S" "1 of 10 chunks are damaged" "$B2FUSE" ls "$S"
    has "$(cat "$T/.out")" "00000003       -  "
    has "$(cat "$T/.out")" "damaged: 00000003.chunk: is not there"
    equal "$("$B2FUSE" ls --json "$S" 2>/dev/null | grep -c '"error":null')" 9
    one_line "$S" "chunk 6: 00000003.chunk: is not there" "$B2FUSE" cat "$S" 0-
}

# The whole life of a terminal, as script(1) has it.
test_nothing_binary_for_a_terminal() {
    command -v script >/dev/null || skip "no script(1)"
    source_from full
    exits 1 script -qec "'$B2FUSE' cat '$S' 0" "$T/typed"
    has "$(cat "$T/.out")" "$S: is binary data, which is not written to a terminal"
    [ "$(wc -c <"$T/.out")" -lt 300 ]
    script -qec "'$B2FUSE' cat --force '$S' 0" "$T/typed" >"$T/.out" </dev/null
    [ "$(wc -c <"$T/.out")" -ge 40000 ]
}
