# Archives of python-blosc2 in a directory mounted whole: with -o b2z=dir each is shown as a directory, and only read.

# zip_of FILE [NAME=TEXT ...]: an archive with these members, stored as they are.
zip_of() {
    py 'import zipfile
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_STORED) as archive:
    for member in sys.argv[2:]:
        name, text = member.split("=", 1)
        archive.writestr(name, text)' "$@"
}
# a_store FILE: an archive with leaves of all kinds, at several depths.
a_store() {
    py 'store = blosc2.TreeStore(sys.argv[1], mode="w")
store["/a"] = np.arange(1000)
store["/group/deep/b"] = blosc2.asarray(np.arange(20_000).reshape(100, 200), urlpath=sys.argv[1] + ".leaf.b2nd", mode="w")
store["/group/c"] = blosc2.SChunk(chunksize=4000, data=bytes(9000), cparams={"typesize": 1}, urlpath=sys.argv[1] + ".leaf.b2f", mode="w")
store.close()
for leaf in ("b2nd", "b2f"):
    os.remove(sys.argv[1] + ".leaf." + leaf)' "$@"
}
# unzipped DIR FILE: what is in an archive, as files.
unzipped() { py 'import zipfile; zipfile.ZipFile(sys.argv[2]).extractall(sys.argv[1])' "$@"; }
kind() { stat -c %F "$1"; }
lines_of() { grep -c "$1" "$T/log" || true; }

test_an_archive_is_a_file_by_default() {
    mkdir -p "$D"
    a_store "$D/t.b2z"
    tree
    equal "$(kind "$M/t.b2z")" "regular file"
    cmp "$M/t.b2z" "$D/t.b2z"
    down
    tree -o b2z=file
    cmp "$M/t.b2z" "$D/t.b2z"
    down
    fails "expected dir or file" mount_tree -o b2z=yes
    fails "needs a value" mount_tree -o b2z
    cp "$FX/base.b2frame" "$S"
    fails "is not a directory of frames" mount_it -o b2z=dir
}
# Commands that only read take an archive as they take the directory of its store.
test_commands_on_an_archive() {
    a_store "$T/t.b2z"
    unzipped "$T/t.b2d" "$T/t.b2z"
    local command
    for command in info "info --json" ls "ls --json" check "check --deep"; do
        # shellcheck disable=SC2086
        "$B2FUSE" $command "$T/t.b2z" >"$T/of_archive"
        # shellcheck disable=SC2086
        "$B2FUSE" $command "$T/t.b2d" | sed "s|t\.b2d|t.b2z|g" >"$T/of_directory"
        grep -q 'group/deep/b.b2nd' "$T/of_archive"
        diff "$T/of_archive" "$T/of_directory"
    done
    # One byte of a chunk is another.
    py 'path = sys.argv[1]
data = bytearray(open(path, "rb").read())
leaf = open(sys.argv[2], "rb").read()
at = data.index(leaf) + 600
data[at : at + 8] = b"\xff" * 8
open(path, "wb").write(data)' "$T/t.b2z" "$T/t.b2d/group/deep/b.b2nd"
    exits 1 "$B2FUSE" check --deep "$T/t.b2z"
    cp "$T/t.b2z" "$T/before"
    for command in compact repair; do one_line "$T/t.b2z" "is a store of Python-Blosc2 (.b2z)" "$B2FUSE" $command "$T/t.b2z"; done
    cmp "$T/t.b2z" "$T/before"
}
mount_tree() { "$B2FUSE" mount "$@" "$D" "$M" </dev/null; }

test_an_archive_is_shown_as_a_directory() {
    mkdir -p "$D/sub"
    a_store "$D/sub/t.b2z"
    unzipped "$T/native" "$D/sub/t.b2z"
    for show in other sparse contiguous; do
        tree -o b2z=dir --show $show
        # The first listing says it, before anybody has looked at the name.
        equal "$(find "$M/sub" -maxdepth 1 -name '*.b2z' -printf '%f %y')" "t.b2z d"
        diff -r "$M/sub/t.b2z" "$T/native"
        equal "$(cd "$M/sub/t.b2z" && find . | sort)" "$(cd "$T/native" && find . | sort)"
        equal "$(cd "$M/sub/t.b2z" && find . -type d | sort)" "$(cd "$T/native" && find . -type d | sort)"
        tar -cf "$T/out.tar" -C "$M/sub" t.b2z
        cp -r "$M/sub/t.b2z" "$T/copy-$show"
        diff -r "$T/copy-$show" "$T/native"
        cmp <(tail -c +100 "$M/sub/t.b2z/embed.b2e" | head -c 333) <(tail -c +100 "$T/native/embed.b2e" | head -c 333)
        down
    done
    equal "$(lines_of "shown as what it is")" 0
}

# The data of members is shown as that of the frames in the directory of the store.
test_members_are_shown_decompressed() {
    mkdir -p "$D"
    a_store "$D/t.b2z"
    unzipped "$D/t.b2d" "$D/t.b2z"
    local show
    for show in npy raw; do
        tree -o b2z=dir --show $show
        diff -r "$M/t.b2z" "$M/t.b2d"
        equal "$(cd "$M/t.b2z" && find . -printf '%P %s %y\n' | grep -v '^ ' | grep -v ' d$' | sort)" \
            "$(cd "$M/t.b2d" && find . -printf '%P %s %y\n' | grep -v '^ ' | grep -v ' d$' | sort)"
        for name in b.b2nd b.npy; do [ ! -e "$M/t.b2z/group/deep/$name" ] || fail "$name is there"; done
        fails "Read-only file system" touch "$M/t.b2z/new"
        [ $show = raw ] || py 'array = np.load(sys.argv[1], mmap_mode="r")
assert (array == np.arange(20_000).reshape(100, 200)).all() and array.shape == (100, 200)' "$M/t.b2z/group/deep/b.b2nd.npy"
        cmp "$M/t.b2z/group/c.b2f.raw" <(head -c 9000 /dev/zero)
        down
    done
    tree --show npy
    cmp "$M/t.b2z" "$D/t.b2z"
    down
    tree -o b2z=dir -o 'noframes=**/b.b2nd' --show npy
    cmp "$M/t.b2z/group/deep/b.b2nd" "$D/t.b2d/group/deep/b.b2nd"
    down
}
# A member that is no whole frame, or whose name is taken, is shown as it is, and the log says so once.
test_members_that_cannot_be_decompressed_are_shown_as_they_are() {
    mkdir -p "$D"
    py 'import zipfile
array = open(sys.argv[2], "rb").read()
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_STORED) as archive:
    archive.writestr("taken.b2nd", array)
    archive.writestr("taken.b2nd.npy", "text")
    archive.writestr("cut.b2nd", array[:-9])
    archive.writestr("index.b2nd", array[:120] + bytes(len(array) - 120))
    archive.writestr("late.b2nd", array[:-60] + bytes(60))
    archive.writestr("good.b2nd", array)' "$D/t.b2z" "$FX/array.b2nd"
    tree -o b2z=dir --show npy
    # Of what only its end is damaged, the first read finds it.
    cat "$M/t.b2z/late.b2nd.npy" >"$T/.out" 2>&1 && fail "a damaged frame is read"
    equal "$(ls "$M/t.b2z" | tr '\n' ' ')" "cut.b2nd good.b2nd.npy index.b2nd late.b2nd taken.b2nd taken.b2nd.npy "
    equal "$(stat -c %s "$M/t.b2z/late.b2nd")" "$(stat -c %s "$FX/array.b2nd")"
    cmp "$M/t.b2z/taken.b2nd" "$FX/array.b2nd"
    equal "$(cat "$M/t.b2z/taken.b2nd.npy")" "text"
    head -c -9 "$FX/array.b2nd" | cmp - "$M/t.b2z/cut.b2nd"
    py 'assert (np.load(sys.argv[1]) == blosc2.open(sys.argv[2])[:]).all()' "$M/t.b2z/good.b2nd.npy" "$FX/array.b2nd"
    down
    equal "$(lines_of "taken.b2nd: is shown as it is in the archive")" 1
}

test_the_library_opens_what_is_shown_as_the_store_that_it_is() {
    mkdir -p "$D"
    a_store "$D/t.b2z"
    tree -o b2z=dir
    cp -r "$M/t.b2z" "$T/new.b2d"
    # By a path with `.b2z` in it the library takes all leaves but .b2nd for those of a remote archive.
    ln -s "$M/t.b2z" "$T/link.b2d"
    py 'm, native, *others = sys.argv[1:]
def plain(value):
    return bytes(value[:]) if isinstance(value, blosc2.SChunk) else np.asarray(value[...]).tolist()
want = blosc2.TreeStore(native, mode="r")
keys = sorted(want.keys())
assert {"/a", "/group/deep/b", "/group/c"} <= set(keys), keys
for other in (m, *others):
    for store in (blosc2.TreeStore(other, mode="r"), blosc2.open(other, mode="r")):
        assert sorted(store.keys()) == keys, (other, sorted(store.keys()))
        for key in keys:
            if key in ("/a", "/group/deep/b") or key == "/group/c" and other != m:
                assert plain(store[key]) == plain(want[key]), (other, key)
assert (blosc2.open(m + "/group/deep/b.b2nd", mode="r")[:] == np.arange(20_000).reshape(100, 200)).all()' "$M/t.b2z" "$D/t.b2z" "$T/new.b2d" "$T/link.b2d"
    down
}

test_attributes_are_those_of_the_archive() {
    mkdir -p "$D"
    zip_of "$D/t.b2z" dir/a=text
    touch -d '2001-02-03 04:05:06.789' "$D/t.b2z"
    chmod 6650 "$D/t.b2z"
    if [ "$(id -u)" = 0 ]; then chown 65534:65533 "$D/t.b2z"; fi
    tree -o b2z=dir
    local name
    for name in t.b2z t.b2z/dir; do equal "$(stat -c '%F %a' "$M/$name")" "directory 550"; done
    equal "$(stat -c '%F %a %s' "$M/t.b2z/dir/a")" "regular file 440 4"
    for name in t.b2z t.b2z/dir t.b2z/dir/a; do equal "$(stat -c '%u %g %Y' "$M/$name")" "$(stat -c '%u %g %Y' "$D/t.b2z")"; done
    chmod 604 "$D/t.b2z"
    await has_modes 505 404
    down
}
# has_modes DIRECTORY FILE: of an archive, and of a file in it.
has_modes() { equal "$(stat -c %a "$M/t.b2z" "$M/t.b2z/dir/a" | paste -sd ' ')" "$*"; }

test_nothing_in_an_archive_is_changed() {
    mkdir -p "$D"
    zip_of "$D/t.b2z" dir/a=text b=other
    cp "$D/t.b2z" "$T/before"
    tree -o b2z=dir
    echo plain >"$M/plain"
    errnos EROFS 'open(M + "/t.b2z/b", "w")' 'open(M + "/t.b2z/new", "w")' 'os.mkdir(M + "/t.b2z/new")' \
        'os.open(M + "/t.b2z/b", os.O_RDWR)' 'os.truncate(M + "/t.b2z/b", 0)' 'os.unlink(M + "/t.b2z/b")' \
        'os.rmdir(M + "/t.b2z/dir")' 'os.rmdir(M + "/t.b2z")' 'os.rename(M + "/t.b2z/b", M + "/t.b2z/c")' \
        'os.rename(M + "/t.b2z/b", M + "/b")' 'os.rename(M + "/plain", M + "/t.b2z/plain")' \
        'os.symlink("x", M + "/t.b2z/link")' 'os.mkfifo(M + "/t.b2z/fifo")' 'os.chmod(M + "/t.b2z/b", 0o600)' \
        'os.chmod(M + "/t.b2z", 0o700)' 'os.utime(M + "/t.b2z/dir")' 'os.setxattr(M + "/t.b2z", "user.x", b"y")' \
        'os.setxattr(M + "/t.b2z/b", "user.x", b"y")' 'os.link(M + "/plain", M + "/t.b2z/plain")' \
        'os.rename(M + "/t.b2z", M + "/t.zip")'
    errnos EISDIR 'os.unlink(M + "/t.b2z")' 'os.rename(M + "/plain", M + "/t.b2z")'
    fails "Read-only file system" rm -r "$M/t.b2z"
    equal "$(cat "$M/t.b2z/dir/a" "$M/t.b2z/b")" textother
    down
    cmp "$D/t.b2z" "$T/before"
}

test_an_archive_is_renamed_as_it_is() {
    mkdir -p "$D/sub" "$D/dir.b2z" "$D/full.b2z"
    : >"$D/full.b2z/file"
    zip_of "$D/t.b2z" dir/a=text
    zip_of "$D/u.b2z" other=text
    tree -o b2z=dir
    exec 7<"$M/t.b2z/dir/a"
    mv "$M/t.b2z" "$M/sub/new.b2z"
    equal "$(cat "$M/sub/new.b2z/dir/a")" text
    equal "$(cat <&7)" text
    exec 7<&-
    [ ! -e "$M/t.b2z" ] && [ -f "$D/sub/new.b2z" ] && [ ! -e "$D/t.b2z" ]
    errnos EROFS 'os.rename(M + "/dir.b2z", M + "/u.b2z")' 'os.rename(M + "/sub/new.b2z", M + "/u.b2z")'
    errnos EEXIST 'os.rename(M + "/u.b2z", M + "/dir.b2z")' 'os.rename(M + "/u.b2z", M + "/full.b2z")'
    mv "$M/sub" "$M/moved"
    equal "$(cat "$M/moved/new.b2z/dir/a")" text
    down
    [ -d "$D/dir.b2z" ] && [ -f "$D/full.b2z/file" ] && [ -f "$D/u.b2z" ]
}

# What cannot be read in one way only is the file that it is. The log has one line on each.
test_what_is_no_good_archive_stays_a_file() {
    mkdir -p "$D"
    py 'import io, struct, zipfile
d = sys.argv[1]
def made(*members, how=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        import warnings
        warnings.simplefilter("ignore")
        for name, data in members:
            archive.writestr(name, data)
    return bytearray(out.getvalue())
def put(name, data):
    open(f"{d}/{name}.b2z", "wb").write(data)
def patched(data, at, value):
    data[at:at + len(value)] = value
    return data
two = [("a", b"first"), ("b", b"second")]
good = made(*two)
put("compressed", made(("a", b"x" * 1000), how=zipfile.ZIP_DEFLATED))
central, end = good.index(b"PK\1\2"), len(good) - 22
second = good.index(b"PK\1\2", central + 1)
put("encrypted", patched(made(*two), central + 8, b"\1"))
put("cut", good[:-1])
put("cut_in_the_middle", good[len(good) // 2:])
put("behind", good + b"x")
put("before", b"x" + good)
put("empty", b"")
put("text", b"no archive\n" * 100)
put("twice", made(("a", b"1"), ("a", b"2")))
put("file_and_directory", made(("a", b"1"), ("a/b", b"2")))
put("absolute", made(("/a", b"1")))
put("above", made(("../../a", b"1")))
put("slashes", made(("a//b", b"1")))
put("long", made(("n" * 256, b"1")))
put("nul", patched(made(("axb", b"1")), made(("axb", b"1")).index(b"PK\1\2") + 47, b"\0"))
put("link", patched(made(*two), central + 38, struct.pack("<I", 0o120777 << 16)))
put("overlap", patched(made(*two), second + 42, struct.pack("<I", 0)))
put("too_far", patched(made(*two), second + 42, struct.pack("<I", 2**31)))
put("too_long", patched(made(*two), second + 20, struct.pack("<II", 700, 700)))
put("count_ffff", patched(made(*two), end + 8, b"\xff" * 4))
put("offset_ffff", patched(made(*two), end + 16, b"\xff" * 4))
put("far_zip64", made(*two)[:end] + b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 2**60, 2**60, 2**62, 0)
    + b"PK\6\7" + struct.pack("<IQI", 0, end, 1) + b"PK\5\6" + bytes(4) + b"\xff" * 12 + bytes(2))
put("deep", made(("d/" * 2050 + "d", b"")))' "$D"
    mkdir "$D/directory.b2z"
    zip_of "$D/linked.b2z" a=text
    ln "$D/linked.b2z" "$D/other.b2z"
    ln -s linked.b2z "$D/symbolic.b2z"
    tree -o b2z=dir
    equal "$(find "$M" -name '*.b2z' -type d -printf '%f ')" "directory.b2z "
    equal "$(find "$M" -name '*.b2z' -type l -printf '%f ')" "symbolic.b2z "
    local file count=0
    for file in "$D"/*.b2z; do
        [ -f "$file" ] && [ ! -L "$file" ] || continue
        cmp "$file" "$M/${file##*/}"
        count=$((count + 1))
    done
    ls -lR "$M" >/dev/null
    [ "$count" -gt 20 ]
    # All but the two names of one file.
    equal "$(lines_of "shown as what it is")" $((count - 2))
    equal "$(sed -n 's/.*dir\/\([a-z0-9_]*\).b2z: zip: .*/\1/p' "$T/log" | sort | uniq -d)" ""
    down
}

# What the directory of an archive does not tell is found when somebody goes inside.
test_a_local_header_that_lies_is_found_inside() {
    mkdir -p "$D"
    zip_of "$D/t.b2z" aaa=first bbb=second
    py 'data = bytearray(open(sys.argv[1], "rb").read())
data[data.index(b"bbb") + 1] = ord("x")
open(sys.argv[1], "wb").write(data)' "$D/t.b2z"
    tree -o b2z=dir
    ls "$M/t.b2z" >/dev/null 2>&1 || true
    await test -f "$M/t.b2z"
    cmp "$M/t.b2z" "$D/t.b2z"
    equal "$(lines_of "zip: local name")" 1
    down
}

# Nor that of a large one, as only the end is looked at.
test_a_bomb_of_directories_is_found_inside() {
    mkdir -p "$D"
    py 'import zipfile
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_STORED) as archive:
    for n in range(140):
        archive.writestr(f"{n}/" + "d/" * 2000, "")' "$D/t.b2z"
    tree -o b2z=dir
    ls "$M/t.b2z" >/dev/null 2>&1 || true
    await test -f "$M/t.b2z"
    cmp "$M/t.b2z" "$D/t.b2z"
    equal "$(lines_of "with directories; it is shown as it is on disk")" 1
    down
}

test_an_archive_that_is_replaced_is_followed() {
    mkdir -p "$D"
    zip_of "$D/t.b2z" a=first
    zip_of "$D/new" a=second b=third
    tree -o b2z=dir
    exec 7<"$M/t.b2z/a"
    equal "$(cat "$M/t.b2z/a")" first
    mv "$D/new" "$D/t.b2z"
    await grep -q second "$M/t.b2z/a"
    equal "$(ls "$M/t.b2z")" "a
b"
    # Who has the old one open reads that.
    equal "$(cat <&7)" first
    exec 7<&-
    # Nobody uses it, so it is not kept.
    await no_deleted_files
    rm "$D/t.b2z"
    await test ! -e "$M/t.b2z"
    await no_deleted_files
    down
}
no_deleted_files() { [ "$(find "/proc/$PID/fd" -lname '*t.b2z (deleted)' | wc -l)" = 0 ]; }

test_an_archive_that_is_rewritten_is_followed() {
    mkdir -p "$D"
    zip_of "$D/t.b2z" a=first dir/b=inside
    touch -d '2001-02-03' "$D/t.b2z"
    tree -o b2z=dir
    exec 7<"$M/t.b2z/a"
    equal "$(cat "$M/t.b2z/a" "$M/t.b2z/dir/b")" firstinside
    zip_of "$T/new" x=other a=second
    cat "$T/new" >"$D/t.b2z"
    await grep -q second "$M/t.b2z/a"
    equal "$(cat "$M/t.b2z/x")" other
    [ ! -e "$M/t.b2z/dir" ]
    # Who has a file of before open reads that, as far as the kernel has it, or an error.
    local seen
    seen=$(cat <&7 2>/dev/null) || true
    [ "$seen" = first ] || [ "$seen" = "" ]
    exec 7<&-
    # What is no archive any more is a file; and an archive again.
    echo none >"$D/t.b2z"
    await test -f "$M/t.b2z"
    equal "$(cat "$M/t.b2z")" none
    cat "$T/new" >"$D/t.b2z"
    await test -d "$M/t.b2z"
    equal "$(cat "$M/t.b2z/x")" other
    down
}

# What is made in the mount is a file while it is written, and an archive a moment later.
test_an_archive_that_is_made_in_the_mount() {
    zip_of "$T/new" a=first dir/b=second
    tree -o b2z=dir
    cp "$T/new" "$M/copied.b2z"
    cmp "$D/copied.b2z" "$T/new"
    cp "$T/new" "$M/tmp"
    mv "$M/tmp" "$M/renamed.b2z"
    cmp "$D/renamed.b2z" "$T/new"
    exec 7>"$M/written.b2z"
    cat "$T/new" >&7
    local name
    for name in copied renamed; do
        await test -d "$M/$name.b2z"
        equal "$(cat "$M/$name.b2z/dir/b")" second
    done
    equal "$(kind "$M/written.b2z")" "regular file"
    exec 7>&-
    await test -d "$M/written.b2z"
    py 'store = blosc2.TreeStore(sys.argv[1], mode="w")
store["/a"] = np.arange(1000)
store.close()' "$M/store.b2z"
    await test -d "$M/store.b2z"
    equal "$(ls "$M/store.b2z")" "$(unzipped "$T/native" "$D/store.b2z" && ls "$T/native")"
    down
}

test_many_members() {
    mkdir -p "$D"
    py 'import zipfile
with zipfile.ZipFile(sys.argv[1], "w", zipfile.ZIP_STORED) as archive:
    for n in range(100_000):
        archive.writestr(zipfile.ZipInfo(f"group{n % 100}/leaf{n}.b2nd"), str(n))' "$D/t.b2z"
    tree -o b2z=dir
    local begun=$SECONDS
    equal "$(cat "$M/t.b2z/group99/leaf99999.b2nd")" 99999
    [ $((SECONDS - begun)) -lt 20 ]
    equal "$(ls "$M/t.b2z/group7" | wc -l)" 1000
    equal "$(find "$M/t.b2z" -type f | wc -l)" 100000
    local peak
    peak=$(awk '/VmHWM/ { print $2 }' "/proc/$PID/status")
    [ "$peak" -lt $((128 * 1024)) ] || fail "took $peak kB"
    down
}

# More archives than may be open, with a file of each open.
test_more_archives_than_descriptors() {
    mkdir -p "$D"
    zip_of "$T/one" a=text
    local n
    for n in $(seq 300); do cp "$T/one" "$D/$n.b2z"; done
    mkdir -p "$M"
    (ulimit -n 128 && exec "$B2FUSE" mount -f --log-file "$T/log" -o b2z=dir "$D" "$M" </dev/null) &
    PID=$!
    await mountpoint -q "$M"
    "$PY" -c 'import sys
files = [open(f"{sys.argv[1]}/{n}.b2z/a") for n in range(1, 301)]
assert all(file.read() == "text" for file in files)' "$M"
    down
}

test_others_enter_as_the_archive_lets_them_read() {
    root_only
    mkdir -p "$D"
    zip_of "$D/t.b2z" dir/a=text
    chmod 640 "$D/t.b2z"
    tree -o b2z=dir,allow_other
    fails "Permission denied" "${nobody[@]}" cat "$M/t.b2z/dir/a"
    fails "Permission denied" "${nobody[@]}" ls "$M/t.b2z"
    chmod 644 "$D/t.b2z"
    await has_modes 555 444
    equal "$("${nobody[@]}" cat "$M/t.b2z/dir/a")" text
    fails "Permission denied" "${nobody[@]}" sh -c 'echo >"$1"' - "$M/t.b2z/dir/a"
    down
}
