# Extended attributes: what frames and chunks say of themselves, and vlmetalayers set and removed, on both views.

UNIT=user.b2frame.vlmeta.unit
KELVIN=0xa66b656c76696e # in msgpack
# array_as LAYOUT: an array as SOURCE; $V is where the mount shows the frame, $A a plain native copy of SOURCE.
array_as() {
    A=$T/native.b2frame
    if [ "$1" = cframe ]; then
        cp "$FX/array.b2nd" "$S" && V=$M
    else
        cp -r "$FX/sparse/array.b2nd" "$S" && V=$M/source.b2frame
    fi
    cp -r "$S" "$A"
    mkdir -p "$M"
}
get() { getfattr --absolute-names --only-values -n "$1" "$2"; }
annotate() { setfattr -n "$UNIT" -v "${2:-$KELVIN}" "$1"; }
# vlmeta FRAME... DICT: what the library finds there, in all of them.
vlmeta() {
    py 'for path in sys.argv[1:-1]:
    frame = open_frame(path)
    got = schunk_of(frame).vlmeta.getall()
    assert got == eval(sys.argv[-1]), (path, got)' "$@"
}
# same FRAME OTHER...: they are all as the first.
same() {
    py 'for path in sys.argv[2:]: same(sys.argv[1], path)' "$@"
}
both() { for layout in cframe sframe; do rm -rf "$S" "$T/native.b2frame" "$T/out" && "$@" "$layout"; done; }

# ---- Reading

test_an_array_and_its_chunks_say_what_they_are() { both says; }
says() {
    array_as "$1"
    mount_it -r
    local on=("$V") path
    if [ "$1" = cframe ]; then on+=("$M/chunks.b2frame"); fi
    for path in "${on[@]}"; do
        equal "$(get user.b2nd.shape "$path")" 60,70
        equal "$(get user.b2nd.chunkshape "$path")" 20,30
        equal "$(get user.b2nd.blockshape "$path")" 10,10
        equal "$(get user.b2nd.dtype "$path")" "<f8"
        py 'f = open_frame(sys.argv[2]); assert os.getxattr(sys.argv[1], "user.b2frame.meta.b2nd")[:3] == b"\x97\x00\x02"
assert not [name for name in os.listxattr(sys.argv[1]) if ".vlmeta." in name]' "$path" "$A"
    done
    if [ "$1" = cframe ]; then
        py 'frame = open_frame(sys.argv[2])
s = schunk_of(frame)
for n, chunk in enumerate(sorted(name for name in os.listdir(sys.argv[1]) if name.endswith(".chunk"))):
    path = f"{sys.argv[1]}/{chunk}"
    says = {name.rpartition(".")[2]: os.getxattr(path, name).decode() for name in os.listxattr(path)}
    raw = s.get_chunk(n)
    nbytes, cbytes, _ = blosc2.get_cbuffer_sizes(raw)
    assert says == {"position": str(n), "nbytes": str(nbytes), "cbytes": str(len(raw)), "codec": "zstd"}, says' "$M" "$A"
    fi
    # SOURCE has no access list. Nothing is said of a lock file or of other names.
    errnos ENODATA "os.getxattr('$V', 'user.b2nd.else')" "os.getxattr('$V', '$UNIT')"
    errnos ENODATA "os.getxattr('$V', 'system.posix_acl_access')"
    errnos ENOTSUP "os.getxattr('$V', 'security.capability')"
    errnos EROFS "os.setxattr('$V', '$UNIT', b'1')" "os.removexattr('$V', 'user.b2nd.shape')"
    umount_it
}

test_a_file_as_mount_point() {
    array_as sframe
    rmdir "$M" && touch "$M"
    mount_it
    equal "$(get user.b2nd.shape "$M")" 60,70
    annotate "$M"
    vlmeta "$M" '{"unit": "kelvin"}'
    umount_it
    vlmeta "$S" '{"unit": "kelvin"}'
}

# ---- Writing

test_annotations_come_and_go() { both come_and_go; }
come_and_go() {
    array_as "$1"
    mount_it
    annotate "$V"
    py 'f = open_frame(sys.argv[1], "a")
s = schunk_of(f)
assert s.vlmeta.getall() == {"unit": "kelvin"}, s.vlmeta.getall()
s.vlmeta["who"] = "me"
s.vlmeta["long"] = list(range(3000))' "$V"
    # Compressed by the library, read as the library reads it.
    py 'import msgpack
f = open_frame(sys.argv[1])
got = schunk_of(f).vlmeta.getall()
assert got == {"unit": "kelvin", "who": "me", "long": list(range(3000))}, got
assert msgpack.unpackb(os.getxattr(sys.argv[1], "user.b2frame.vlmeta.long")) == list(range(3000))
os.setxattr(sys.argv[1], "user.b2frame.vlmeta.long", msgpack.packb("x" * 60000))' "$V"
    setfattr -n user.b2frame.vlmeta.who "$V"
    sync "$V"
    vlmeta "$S" '{"unit": "kelvin", "long": "x" * 60000}'
    umount_it
    vlmeta "$S" '{"unit": "kelvin", "long": "x" * 60000}'
    mount_it
    setfattr -n "$UNIT" "$V"
    setfattr -n user.b2frame.vlmeta.long "$V"
    vlmeta "$V" '{}'
    umount_it
    "$B2FUSE" check "$S"
    same "$S" "$A"
}

test_errnos_and_limits() { both limits; }
limits() {
    array_as "$1"
    mount_it
    local X="user.b2frame.vlmeta."
    errnos ENOTSUP "os.setxattr('$V', 'user.b2nd.shape', b'1')" "os.setxattr('$V', 'user.else', b'1')" \
        "os.setxattr('$V', 'trusted.else', b'1')" "os.setxattr('$V', 'user.b2frame.meta.b2nd', b'1')" \
        "os.removexattr('$V', 'user.b2nd.dtype')"
    errnos ENODATA "os.removexattr('$V', '$UNIT')" "os.setxattr('$V', '$UNIT', b'1', os.XATTR_REPLACE)"
    errnos ERANGE "os.setxattr('$V', '$X' + 'n' * 32, b'1')"
    errnos EINVAL "os.setxattr('$V', b'$X\\xff', b'1')" "os.setxattr('$V', '$X', b'1')"
    errnos E2BIG "os.setxattr('$V', '$UNIT', b'1' * 65537)"
    annotate "$V"
    errnos EEXIST "os.setxattr('$V', '$UNIT', b'1', os.XATTR_CREATE)"
    py 'path, name = sys.argv[1:]
for n in range(15):
    os.setxattr(path, f"user.b2frame.vlmeta.{n:031}", b"\xc4\0", os.XATTR_CREATE)
os.setxattr(path, name, bytes(65536), os.XATTR_REPLACE)
assert os.getxattr(path, name) == bytes(65536)' "$V" "$UNIT"
    # The library could not write another one, and nothing else any more.
    errnos ENOSPC "os.setxattr('$V', '$X' + 'more', b'1')"
    py 'a = open_frame(sys.argv[1], "a"); a.resize((60, 71)); a[:, 70] = 5' "$V"
    umount_it
    py 'a = open_frame(sys.argv[1]); assert a.shape == (60, 71) and (a[:, 70] == 5).all() and len(a.schunk.vlmeta) == 16' "$S"
}

test_set_attributes_survive_a_crash_once_synced() { both crashed; }
crashed() {
    array_as "$1"
    mount_front
    annotate "$V"
    sync "$V"
    crash
    vlmeta "$S" '{"unit": "kelvin"}'
    "$B2FUSE" check "$S"
}

# A handle of the library stays open, and finds at each step that an attribute has changed the frame's length.
test_attributes_between_the_librarys_steps() { both between_steps; }
between_steps() {
    array_as "$1"
    mount_it
    py 'path = sys.argv[1]
a = open_frame(path, "a")
for n in range(20):
    unit = b"\xda" + n.to_bytes(2, "big") + b"x" * n
    os.setxattr(path, "user.b2frame.vlmeta.unit", unit)
    a.resize((60, 71 + n))
    a[:, 70 + n] = n
    os.setxattr(path, "user.b2frame.vlmeta.gone", b"\1" * (n + 1))
    a.schunk.vlmeta["n"] = n
    os.setxattr(path, "user.b2frame.vlmeta.gone", b"")
    a[0] = n
    assert a.schunk.vlmeta.getall() == {"unit": "x" * n, "n": n}, (n, a.schunk.vlmeta.getall())
    assert os.getxattr(path, "user.b2nd.shape") == b"60,%d" % (71 + n)' "$V"
    umount_it
    py 'a = open_frame(sys.argv[1])
assert a.shape == (60, 90) and all((a[1:, 70 + n] == n).all() for n in range(20)) and (a[0] == 19).all()
assert a.schunk.vlmeta.getall() == {"unit": "x" * 19, "n": 19}' "$S"
    "$B2FUSE" check --deep "$S"
}

# ---- Copying files with their attributes, both ways

test_copies_with_attributes() { both copies; }
copies() {
    array_as "$1"
    local out=$T/out all='{"unit": "kelvin"}' name=${V#"$M"}
    mkdir -p "$out/cp" "$out/tar"
    mount_it
    annotate "$V"
    local path files=("$M"/*)
    # Out, onto a file system that may have room for attributes or not.
    cp -a "$M/." "$out/cp"
    rsync -aX "$M/" "$out/rsync" || [ $? = 23 ]
    tar --xattrs -C "$M" -cf "$out/all.tar" .
    tar --xattrs -C "$out/tar" -xf "$out/all.tar" 2>/dev/null
    vlmeta "$out/cp$name" "$out/rsync$name" "$out/tar$name" "$all"
    same "$V" "$out/cp$name" "$out/rsync$name" "$out/tar$name"
    # And in.
    cp -a "$out/cp/." "$M"
    vlmeta "$V" "$all"
    cp --preserve=all "${files[@]/#"$M"/"$out/cp"}" "$M"
    rsync -aX "$out/cp/" "$M"
    tar --xattrs -C "$M" -xf "$out/all.tar"
    vlmeta "$V" "$all"
    mv "${files[0]}" "$out/moved"
    mv "$out/moved" "${files[0]}"
    # A native copy has no attributes: whoever removes all of ours because of that does not get at the frame.
    rm -r "$out"/*
    cp -r "$M" "$out/plain"
    setfattr -x "$UNIT" "$out/plain$name" 2>/dev/null || true
    rsync -aX "$out/plain/" "$M" 2>/dev/null || equal $? 23
    rsync -aX "$out/plain/" "$M" 2>/dev/null || equal $? 23
    vlmeta "$V" "$all"
    errnos ENOTSUP "os.removexattr('$V', '$UNIT')"
    setfattr -n "$UNIT" "$V"
    errnos ENODATA "os.removexattr('$V', '$UNIT')" "os.setxattr('$V', '$UNIT', b'')"
    annotate "$V"
    umount_it
    vlmeta "$S" "$all"
    same "$S" "$out/plain$name"
}

# ---- With locking

test_an_attribute_takes_its_turn() { both turns; }
turns() {
    array_as "$1"
    mount_it --locking
    annotate "$V"
    vlmeta "$S" '{"unit": "kelvin"}'
    # Others have had the lock meanwhile, and have changed SOURCE.
    py 'a = blosc2.open(sys.argv[1], mode="a", locking=True); a.schunk.vlmeta["who"] = "me"; a[0] = 7' "$S"
    annotate "$V" 0xa163
    py 'for path in sys.argv[1:]:
    a = open_frame(path)
    assert (a[0] == 7).all() and a.schunk.vlmeta.getall() == {"unit": "c", "who": "me"}, path' "$S" "$V"
    # A client of the mount that has the lock may be in the middle of something.
    local lock=$M/.b2lock
    [ "$1" = cframe ] || lock=$V.b2lock
    py 'import fcntl, errno
lock, path = sys.argv[1:]
with open(lock, "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        os.setxattr(path, "user.b2frame.vlmeta.unit", b"1")
        sys.exit("taken")
    except OSError as error:
        assert error.errno == errno.EBUSY, error
os.setxattr(path, "user.b2frame.vlmeta.unit", b"\1")' "$lock" "$V"
    umount_it
    vlmeta "$S" '{"unit": 1, "who": "me"}'
}

# Closing the lock's file gives the lock back, but the mount hears of it a moment later.
test_an_attribute_right_after_the_lock_was_given_back() { both right_after; }
right_after() {
    array_as "$1"
    mount_it --locking
    local lock=$M/.b2lock
    [ "$1" = cframe ] || lock=$V.b2lock
    py 'import fcntl
lock, path = sys.argv[1:]
for n in range(300):
    with open(lock, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    os.setxattr(path, "user.b2frame.vlmeta.unit", b"\1")' "$lock" "$V"
    umount_it
}

# The library writes on and on while attributes come and go, each in its turn: none is lost, and nothing is spoiled.
test_attributes_while_the_library_writes() { both while_writing; }
while_writing() {
    array_as "$1"
    mount_it --locking
    py 'import errno, subprocess
writer = """
import sys, blosc2
a = blosc2.open(sys.argv[1], mode="a", locking=True)
for n in range(12):
    a.resize((60, 71 + n))
    a[:, 70 + n] = n
    a.schunk.vlmeta["n"] = n
"""
path, name = sys.argv[1], "user.b2frame.vlmeta.unit"
process = subprocess.Popen([sys.executable, "-c", writer, path])
taken = refused = 0
while process.poll() is None:
    try:
        os.setxattr(path, name, b"\xa3" + b"%03d" % (taken % 1000))
        taken += 1
    except OSError as error:
        assert error.errno == errno.EBUSY, error
        refused += 1
print(taken, refused)
assert process.returncode == 0 and taken
assert os.getxattr(path, name) == b"\xa3" + b"%03d" % ((taken - 1) % 1000)' "$V"
    umount_it
    py 'a = open_frame(sys.argv[1])
assert a.shape == (60, 82) and all((a[:, 70 + n] == n).all() for n in range(12))
assert sorted(a.schunk.vlmeta.getall()) == ["n", "unit"], a.schunk.vlmeta.getall()' "$S"
    "$B2FUSE" check --deep "$S"
}

test_a_mount_without_attributes() {
    array_as cframe
    mount_it -o nouser_xattr
    errnos ENOTSUP "os.getxattr(M, 'user.b2nd.shape')" "os.listxattr(M)" "os.setxattr(M, '$UNIT', b'1')" "os.removexattr(M, '$UNIT')"
    umount_it
}
