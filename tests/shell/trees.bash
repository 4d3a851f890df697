# What tests of frames in a directory mounted whole have in common; sourced by them.

# clean: nothing of ours, and nothing lost, is left in DIR.
clean() { equal "$(find "$D" -name '.b2fuse-*' -o -name '*.lost')" ""; }
# clean_after_a_crash: the same, but for what is within a frame and goes with its next change.
clean_after_a_crash() {
    local left
    while read -r left; do [ -e "${left%/*}/chunks.b2frame" ] || fail "left: $left"; done < <(find "$D" -name '.b2fuse-*' -o -name '*.lost')
}
# kinds DIR NAME ...: d or f for each.
kinds() {
    local name out=
    for name in "${@:2}"; do
        if [ -d "$1/$name" ]; then out+=d; elif [ -f "$1/$name" ]; then out+=f; else out+=-; fi
    done
    echo "$out"
}
# of_both_layouts: c.b2frame is a cframe in DIR and s.b2frame an sframe, and so are those in sub.
of_both_layouts() {
    mkdir -p "$D/sub"
    cp "$FX/base.b2frame" "$D/c.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    cp "$FX/array.b2nd" "$D/sub/c.b2nd"
    cp -r "$FX/sparse/array.b2nd" "$D/sub/s.b2nd"
    echo plain >"$D/plain.txt"
    echo no frame >"$D/no.b2frame"
    cp "$FX/base.b2frame" "$D/otherwise.dat"
}
rename2() {
    py 'import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.renameat2(-100, os.fsencode(sys.argv[2]), -100, os.fsencode(sys.argv[3]), int(sys.argv[1])):
    sys.exit(os.strerror(ctypes.get_errno()))' "$@"
}
