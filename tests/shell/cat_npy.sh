# `b2fuse cat --npy`: arrays and slices of them. Random ones of every type and layout, tests/python/arrays.py holds against NumPy.

# array: 60 chunks of 10 x 10 items at $S, in blocks of 5 x 5.
array() {
    py 'blosc2.asarray(np.arange(6000.).reshape(100, 60), chunks=(10, 10), blocks=(5, 5), urlpath=sys.argv[1], mode="w", **eval(sys.argv[2]))' \
        "$S" "{'contiguous': ${1:-True}}"
}
# takes SLICE [OTHER]: what is written is what NumPy saves of it; OTHER is how NumPy writes it.
takes() {
    "$B2FUSE" cat --npy "$S" "$1" >"$T/got.npy"
    py 'np.save(sys.argv[1], np.ascontiguousarray(eval("np.arange(6000.).reshape(100, 60)[" + sys.argv[2] + "]")).reshape(eval(
        "np.empty((100, 60))[" + sys.argv[2] + "].shape")))' "$T/expected.npy" "${2:-$1}"
    cmp "$T/got.npy" "$T/expected.npy"
}

test_slices() {
    local contiguous slice
    for contiguous in True False; do
        array $contiguous
        for slice in ... : 3:10 3:10,:,  -1 -1,5 -3:,::-7 ::-1,::-1 '..., 4' 7:3 200: '::50,::-59' '5, 2:50:12'; do takes "$slice"; done
        takes '[3:10, 5]' '3:10, 5'
        takes ' 3 : 10 ' 3:10
        takes '()' ...
        "$B2FUSE" cat --npy "$S" >"$T/whole.npy"
        "$B2FUSE" cat --npy "$S" ... | cmp - "$T/whole.npy"
        "$B2FUSE" cat "$S" --npy -- -1 | cmp - <("$B2FUSE" cat --npy "$S" -1)
        rm -r "$S"
    done
}

# Chunks that are damaged do no harm to what they have nothing of.
test_blocks_that_are_not_needed() {
    array False
    py 'import pathlib
for path in pathlib.Path(sys.argv[1]).glob("*.chunk"):
    if path.name != "00000007.chunk":
        chunk = path.read_bytes()
        path.write_bytes(chunk[:32] + b"\xff" * (len(chunk) - 32))' "$S"
    takes 10:20,10:20
    takes 15,12:19:3
    "$B2FUSE" cat --npy "$S" 15:30:40,12:60:80 | cmp - <("$B2FUSE" cat --npy "$S" 15:16,12:13)
    one_line "$S" "chunk 1 cannot be read: " "$B2FUSE" cat --npy "$S" 9:20,10:20
    one_line "$S" "chunk 0 cannot be read: " "$B2FUSE" convert "$S" "$T/made.npy"
}

test_what_is_no_slice() {
    array
    one_line "$S" "found '100', expected an item of axis 0, which has 100" "$B2FUSE" cat --npy "$S" 100
    one_line "$S" "found '-61', expected an item of axis 1, which has 60" "$B2FUSE" cat --npy "$S" ':,-61'
    one_line "$S" "found 3 parts, expected at most 2" "$B2FUSE" cat --npy "$S" 1,2,3
    one_line "$S" "expected an integer, start:stop:step or '...'" "$B2FUSE" cat --npy "$S" rows
    one_line "$S" "no list and no mask" "$B2FUSE" cat --npy "$S" '[1,2],3'
    exits 2 "$B2FUSE" cat --npy "$S" 1 2
    has "$(cat "$T/.err")" "unexpected '2' after the slice"
    exits 2 "$B2FUSE" cat --npy --raw "$S"
    source_from base
    one_line "$S" "is not an array" "$B2FUSE" cat --npy "$S"
    exits 1 "$B2FUSE" cat --npy "$T/nothing"
}

test_readers_that_have_had_enough() {
    py 'blosc2.zeros(10**9, dtype="f8", urlpath=sys.argv[1], mode="w")' "$S"
    exits 0 timeout 60 bash -o pipefail -c '"$0" cat --npy "$1" | head -c 200' "$B2FUSE" "$S"
    equal "$(cat "$T/.err")" ""
    one_line "standard output" "no space left" bash -c '"$0" cat --npy "$1" >/dev/full' "$B2FUSE" "$S"
    equal "$("$B2FUSE" cat --npy "$S" 5::100000000 | wc -c)" 208
}

# Eight gigabytes, of which a gigabyte would not fit.
test_memory_is_bounded() {
    py 'blosc2.zeros((1000, 1000, 1000), dtype="f8", urlpath=sys.argv[1], mode="w")' "$S"
    (ulimit -v 1500000 && "$B2FUSE" cat --npy "$S" 100:500:2,::-1 | wc -c >"$T/count")
    equal "$(cat "$T/count")" 1600000128
}

test_nothing_binary_for_a_terminal() {
    command -v script >/dev/null || skip "no script(1)"
    array
    exits 1 script -qec "'$B2FUSE' cat --npy '$S'" "$T/typed"
    has "$(cat "$T/.out")" "$S: is binary data, which is not written to a terminal"
}
