# A directory mounted whole: what is no frame is passed through, with all that a file system does.

# listed DIR: all names below, with kind, mode, owner, links, size of files, time, target.
listed() { (cd "$1" && find . -mindepth 1 \( -type d -printf '%P %y %m %U:%G %n %T@\n' \) -o -printf '%P %y %m %U:%G %n %s %T@ %l\n' | LC_ALL=C sort); }
# as_below: the mount shows DIR as it is.
as_below() {
    listed "$M" >"$T/.shown"
    listed "$D" >"$T/.below"
    diff "$T/.shown" "$T/.below" >"$T/.diff" || fail "not as below: $(head -n 6 "$T/.diff")"
}
# rename2 FLAGS FROM TO: renameat2; NOREPLACE is 1, EXCHANGE 2.
rename2() {
    py 'import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.renameat2(-100, os.fsencode(sys.argv[2]), -100, os.fsencode(sys.argv[3]), int(sys.argv[1])):
    sys.exit(os.strerror(ctypes.get_errno()))' "$@"
}

test_every_kind_of_file() {
    mkdir -p "$D/sub/deep"
    echo file >"$D/file"
    ln -s /etc/passwd "$D/link"
    ln -s ../file "$D/sub/link"
    ln "$D/file" "$D/sub/hard"
    mkfifo "$D/fifo"
    "$PY" -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$D/socket"
    if [ "$(id -u)" = 0 ]; then
        mknod "$D/null" c 1 3
        mknod "$D/wide" b 259 70000
        chown 65534:65533 "$D/file"
    fi
    chmod 4751 "$D/file"
    chmod 1777 "$D/sub"
    touch -d '2001-02-03 04:05:06.789' "$D/sub/deep"
    tree
    as_below
    equal "$(stat -c '%i %h' "$M/file")" "$(stat -c '%i %h' "$D/file")"
    equal "$(stat -c '%i' "$M/sub/hard")" "$(stat -c '%i' "$M/file")"
    equal "$(readlink "$M/sub/link")" ../file
    equal "$(cat "$M/sub/link")" file
    if [ "$(id -u)" = 0 ]; then
        equal "$(stat -c '%t %T' "$M/wide")" "$(stat -c '%t %T' "$D/wide")"
    fi
    down
}

test_every_kind_of_file_made() {
    tree
    mkdir "$M/sub"
    echo file >"$M/file"
    ln -s ../file "$M/sub/link"
    ln "$M/file" "$M/sub/hard"
    mkfifo -m 640 "$M/fifo"
    "$PY" -c 'import os, socket, sys; os.chdir(sys.argv[1]); socket.socket(socket.AF_UNIX).bind("socket")' "$M"
    if [ "$(id -u)" = 0 ]; then
        mknod "$M/null" c 1 3
        mknod "$M/wide" b 259 70000
        equal "$(stat -c '%t %T' "$D/wide")" "103 11170"
        chown 65534:65533 "$M/file"
        chown -h 65534 "$M/sub/link"
    fi
    chmod 751 "$M/file"
    touch -d '2001-02-03 04:05:06.789' "$M/sub" "$M/file"
    touch -h -d '2002-02-03' "$M/sub/link"
    as_below
    equal "$(stat -c %h "$M/file")" 2
    rm "$M/file"
    equal "$(cat "$M/sub/hard")" file
    equal "$(stat -c %h "$M/sub/hard")" 1
    fails "Directory not empty" rmdir "$M/sub"
    fails "Is a directory" py 'os.unlink(sys.argv[1])' "$M/sub"
    rm -r "$M/sub" "$M/fifo" "$M/socket"
    as_below
    down
}

# A FIFO carries bytes between two processes, both of them in the mount.
test_a_fifo_carries_bytes() {
    tree
    mkfifo "$M/fifo"
    timeout 20 seq 10000 >"$M/fifo" &
    local writer=$!
    equal "$(timeout 20 cat "$M/fifo" | sha256sum)" "$(seq 10000 | sha256sum)"
    wait $writer
    down
}

test_extended_attributes_and_acls() {
    tree
    : >"$M/file"
    mkdir "$M/dir"
    setfattr -n user.of_a_file -v value "$M/file"
    setfattr -n user.of_a_directory -v 0x00ff "$M/dir"
    equal "$(getfattr --only-values -n user.of_a_file "$D/file")" value
    equal "$(getfattr -d -m - "$M/file" 2>/dev/null | tail -n +2)" "$(getfattr -d -m - "$D/file" 2>/dev/null | tail -n +2)"
    fails "" setfattr -n user.of_a_file -v other "$M/none"
    errnos EEXIST 'os.setxattr(M + "/file", "user.of_a_file", b"x", os.XATTR_CREATE)'
    errnos ENODATA 'os.setxattr(M + "/file", "user.none", b"x", os.XATTR_REPLACE)' 'os.getxattr(M + "/file", "user.none")' \
        'os.removexattr(M + "/file", "user.none")'
    setfattr -x user.of_a_file "$M/file"
    equal "$(getfattr -d "$D/file" 2>/dev/null)" ""
    # Access for one more user: version 2, owner rw, user 65533 r, group none, mask r, others none.
    py 'import struct
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in
    [(1, 6, 2**32 - 1), (2, 4, 65533), (4, 0, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)])
m, d = sys.argv[1:]
try:
    os.setxattr(d + "/probe", "system.posix_acl_access", acl)
except FileNotFoundError:
    open(d + "/probe", "w").close()
    try:
        os.setxattr(d + "/probe", "system.posix_acl_access", acl)
    except OSError:
        sys.exit(0)
os.setxattr(d + "/file", "system.posix_acl_access", acl)
assert os.getxattr(m + "/file", "system.posix_acl_access") == acl
assert os.stat(m + "/file").st_mode & 0o777 == 0o640, oct(os.stat(m + "/file").st_mode)' "$M" "$D"
    down
}

test_modes_umask_and_setgid_directories() {
    tree
    (umask 027 && : >"$M/file" && mkdir "$M/dir" && mkfifo "$M/fifo")
    (umask 027 && : >"$D/file2" && mkdir "$D/dir2")
    equal "$(stat -c %a "$D/file" "$D/dir" "$D/fifo")" "$(stat -c %a "$D/file2" "$D/dir2" "$D/file2")"
    if [ "$(id -u)" = 0 ]; then
        mkdir "$M/shared"
        chown 0:65533 "$M/shared"
        chmod 2775 "$M/shared"
        : >"$M/shared/file"
        mkdir "$M/shared/dir"
        equal "$(stat -c '%g' "$D/shared/file")" 65533
        equal "$(stat -c '%g %a' "$D/shared/dir")" "65533 2755"
    fi
    chmod 4755 "$M/file"
    equal "$(stat -c %a "$D/file")" 4755
    down
}

# A writer who is not privileged takes the bits away by which a program runs as another.
test_writing_drops_set_id_bits() {
    root_only
    tree -o allow_other
    : >"$M/file"
    chmod 666 "$M/file"
    chmod u+s,g+xs "$M/file"
    "${nobody[@]}" sh -c 'echo x >>"$1"' - "$M/file"
    equal "$(stat -c %a "$D/file")" 676
    chmod 6777 "$M/file"
    "${nobody[@]}" truncate -s 0 "$M/file"
    equal "$(stat -c %a "$D/file")" 777
    down
}

test_renames() {
    tree
    mkdir -p "$M/a/b" "$M/c" "$M/full/x"
    echo 1 >"$M/one"
    echo 2 >"$M/two"
    mv "$M/one" "$M/a/one"
    equal "$(cat "$D/a/one")" 1
    mv "$M/a" "$M/c/a"
    equal "$(cat "$M/c/a/one")" 1
    fails "File exists" rename2 1 "$M/two" "$M/c/a/one"
    rename2 1 "$M/two" "$M/c/a/two"
    rename2 2 "$M/c/a/one" "$M/c/a/two"
    equal "$(cat "$M/c/a/one" "$D/c/a/two")" "2
1"
    rename2 2 "$M/c/a/one" "$M/full"
    equal "$(cat "$D/full")" 2
    [ -d "$M/c/a/one/x" ]
    fails "No such file" rename2 2 "$M/full" "$M/none"
    errnos ENOTEMPTY 'os.rename(M + "/c/a/b", M + "/c/a/one")'
    errnos EINVAL 'os.rename(M + "/c", M + "/c/a/b/c")'
    errnos EISDIR 'os.rename(M + "/full", M + "/c/a/b")'
    errnos ENOTDIR 'os.rename(M + "/c", M + "/full")'
    mv -T "$M/c/a/one" "$M/c/a/b"
    ln "$M/full" "$M/hard"
    rename2 0 "$M/full" "$M/hard"
    [ -e "$M/full" ]
    mv -f "$M/c/a/two" "$M/hard"
    equal "$(cat "$D/hard" "$D/full")" "1
2"
    as_below
    down
}

test_unlinked_files_stay_open() {
    tree
    py 'm, d = sys.argv[1:]
for name in ("file", "file.tmp"):
    path = f"{m}/{name}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"before")
    os.unlink(path)
    assert not os.path.exists(f"{d}/{name}")
    os.pwrite(fd, b"after!", 3)
    assert os.pread(fd, 20, 0) == b"befafter!", os.pread(fd, 20, 0)
    assert os.fstat(fd).st_size == 9 and os.fstat(fd).st_nlink == 0, os.fstat(fd)
    os.ftruncate(fd, 4)
    os.fchmod(fd, 0o600)
    os.fsync(fd)
    assert os.fstat(fd).st_size == 4 and os.fstat(fd).st_mode & 0o777 == 0o600
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    assert os.read(again, 9) == b"befa"
    # Replaced by another name while it is open.
    open(path, "w").write("old")
    old = os.open(path, os.O_RDONLY)
    open(path + "2", "w").write("new")
    os.replace(path + "2", path)
    assert os.read(old, 9) == b"old" and open(path).read() == "new"' "$M" "$D"
    down
}

test_an_open_directory_stays_open() {
    tree
    mkdir "$M/dir"
    py 'm = sys.argv[1]
fd = os.open(m + "/dir", os.O_RDONLY)
os.rename(m + "/dir", m + "/moved")
os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
assert os.listdir(m + "/moved") == ["new"] == os.listdir(fd)
os.unlink("new", dir_fd=fd)
os.rmdir(m + "/moved")
assert os.listdir(fd) == []' "$M"
    down
}

test_free_space() {
    tree
    equal "$(stat -f -c '%S %b %c' "$M")" "$(stat -f -c '%S %b %c' "$D")"
    equal "$(stat -f -c %l "$M")" "$(stat -f -c %l "$D")"
    down
}

test_sparse_files() {
    tree
    py 'm, d = sys.argv[1:]
fd = os.open(m + "/file", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 24)
os.pwrite(fd, b"x" * 4096, 1 << 20)
native = os.open(d + "/file", os.O_RDONLY)
for at in (0, 1 << 20, (1 << 20) + 5, 1 << 22):
    for what in (os.SEEK_HOLE, os.SEEK_DATA):
        def seek(fd):
            try:
                return os.lseek(fd, at, what)
            except OSError as error:
                return error.errno
        assert seek(fd) == seek(native), (at, what, seek(fd), seek(native))
assert os.fstat(fd).st_blocks == os.fstat(native).st_blocks < 100' "$M" "$D"
    cp --sparse=always "$M/file" "$M/copy"
    cmp "$M/copy" "$D/file"
    down
}

test_fallocate_and_copy_file_range() {
    tree
    head -c 300000 /dev/urandom >"$T/random"
    cp "$T/random" "$M/file"
    fallocate -l 1M "$M/room"
    equal "$(stat -c %s "$D/room")" 1048576
    [ "$(stat -c %b "$D/room")" -ge 2048 ]
    fallocate -p -o 4096 -l 8192 "$M/file"
    fallocate -p -o 4096 -l 8192 "$T/random"
    cmp "$M/file" "$T/random"
    fallocate -z -o 100000 -l 5000 "$M/file"
    fallocate -z -o 100000 -l 5000 "$T/random"
    cmp "$D/file" "$T/random"
    fallocate -n -o 300000 -l 8192 "$M/file"
    equal "$(stat -c %s "$M/file")" 300000
    py 'm, d = sys.argv[1:]
source, target = os.open(m + "/file", os.O_RDONLY), os.open(m + "/copied", os.O_RDWR | os.O_CREAT)
left = 300000
while left:
    done = os.copy_file_range(source, target, left)
    assert done > 0
    left -= done
assert open(m + "/copied", "rb").read() == open(d + "/file", "rb").read()
assert os.copy_file_range(source, target, 1000, 10, 5) == 1000
data = open(d + "/file", "rb").read()
assert open(d + "/copied", "rb").read() == data[:5] + data[10:1010] + data[1005:]' "$M" "$D"
    down
}

test_locks() {
    tree
    : >"$M/file"
    py 'import fcntl, multiprocessing
path = sys.argv[1]
def taken(how):
    with open(path, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB) if how == "flock" else fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)
        except OSError:
            return True
        return False
context = multiprocessing.get_context("fork")
for how in ("flock", "lockf"):
    with open(path, "r+") as file, context.Pool(1) as pool:
        assert not pool.apply(taken, [how])
        fcntl.flock(file, fcntl.LOCK_EX) if how == "flock" else fcntl.lockf(file, fcntl.LOCK_EX, 10, 0)
        assert pool.apply(taken, [how]), how' "$M/file"
    down
}

test_large_files_and_mmap() {
    tree
    head -c 5000000 /dev/urandom >"$T/random"
    cp "$T/random" "$M/file"
    cmp "$D/file" "$T/random"
    py 'import mmap
path, native = sys.argv[1:]
with open(path, "r+b") as file:
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[1000:1005] = b"hello"
        memory.flush()
with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
    assert memory[1000:1005] == b"hello"
assert open(native, "rb").read()[1000:1005] == b"hello"' "$M/file" "$D/file"
    dd if=/dev/zero of="$M/file" bs=1000 seek=3 count=2 conv=notrunc status=none
    truncate -s 6000 "$M/file"
    cmp "$M/file" "$D/file"
    (exec 7>>"$M/file" && echo one >&7 && echo two >>"$M/file" && echo three >&7)
    equal "$(tail -n 3 "$D/file" | tr -d '\0' | tail -c 14)" "one
two
three"
    down
}

test_names_of_every_kind() {
    tree
    local long
    long=$(printf 'n%.0s' $(seq 255))
    echo long >"$M/$long"
    equal "$(cat "$D/$long")" long
    fails "File name too long" touch "$M/${long}n"
    echo bytes >"$M/"$'\xff\xfe\x80'
    echo line >"$M/"$'new\nline'
    mkdir "$M/"$'d\xc3'
    echo in >"$M/"$'d\xc3/\x01'
    equal "$(cat "$D/"$'\xff\xfe\x80' "$D/"$'new\nline' "$D/"$'d\xc3/\x01')" "bytes
line
in"
    as_below
    local frame
    for frame in "$(printf 'f%.0s' $(seq 250)).b2nd" $'\xff\xfe.b2nd' $'new\nline.b2frame' ' .b2frame' '-.b2f'; do
        cp "$FX/base.b2frame" "$D/$frame"
        await test -d "$M/$frame"
        cmp "$M/$frame/00000003.chunk" "$FX/base/3"
        cp "$FX/new/0" "$M/$frame/00000003.chunk"
        cmp "$M/$frame/00000003.chunk" "$FX/new/0"
    done
    down
    tool holds "$D/"$'new\nline.b2frame' 3="$FX/new/0"
    tool holds "$D/-.b2f" 3="$FX/new/0"
    tool holds "$D/$(printf 'f%.0s' $(seq 250)).b2nd" 3="$FX/new/0"
    equal "$(find "$D" -name '.b2fuse*')" ""
}

test_a_loop_of_links_and_other_errors() {
    tree
    ln -s loop "$M/loop"
    : >"$M/file"
    mkdir "$M/dir"
    errnos ELOOP 'open(M + "/loop")'
    errnos ENOENT 'open(M + "/none")' 'os.rename(M + "/none", M + "/x")' 'os.rmdir(M + "/none")'
    errnos ENOTDIR 'open(M + "/file/x")' 'os.rmdir(M + "/file")'
    errnos EEXIST 'os.mkdir(M + "/dir")' 'os.symlink("x", M + "/file")' 'os.link(M + "/file", M + "/dir")' 'os.mkfifo(M + "/file")' \
        'os.open(M + "/file", os.O_CREAT | os.O_EXCL)'
    errnos EISDIR 'open(M + "/dir", "w")'
    errnos EXDEV "os.rename(M + '/file', '$T/file')" "os.link(M + '/file', '$T/file')"
    errnos EPERM 'os.link(M + "/dir", M + "/dir2")'
    errnos ELOOP 'os.open(M + "/loop", os.O_NOFOLLOW)'
    down
}

# Directories of many names are listed whole, in any pieces, and while they change.
test_large_directories() {
    tree
    mkdir "$M/many"
    (cd "$M/many" && seq -f 'file number %g' 3000 | tr '\n' '\0' | xargs -0 touch)
    equal "$(ls "$M/many" | wc -l)" 3000
    equal "$(ls "$M/many" | sort)" "$(ls "$D/many" | sort)"
    py 'path = sys.argv[1]
with os.scandir(path) as entries:
    for n, entry in enumerate(entries):
        assert entry.is_file()
        os.unlink(entry.path)
assert os.listdir(path) == [], len(os.listdir(path))' "$M/many"
    down
}

test_other_users() {
    root_only
    mkdir -p "$D/shut" "$D/open"
    chmod 700 "$D/shut"
    chmod 777 "$D" "$D/open"
    echo secret >"$D/shut/file"
    echo mine >"$D/file"
    chmod 600 "$D/file"
    cp "$FX/base.b2frame" "$D/shut.b2frame"
    cp "$FX/base.b2frame" "$D/open.b2frame"
    chmod 600 "$D/shut.b2frame"
    chmod 644 "$D/open.b2frame"
    tree -o allow_other
    fails "Permission denied" "${nobody[@]}" cat "$M/file"
    fails "Permission denied" "${nobody[@]}" ls "$M/shut"
    fails "Permission denied" "${nobody[@]}" cat "$M/shut.b2frame/00000003.chunk"
    fails "Permission denied" "${nobody[@]}" ls "$M/shut.b2frame"
    "${nobody[@]}" cmp "$M/open.b2frame/00000003.chunk" "$FX/base/3"
    fails "Permission denied" "${nobody[@]}" cp "$FX/new/0" "$M/open.b2frame/00000003.chunk"
    fails "Permission denied" "${nobody[@]}" rm "$M/open.b2frame/00000003.chunk"
    fails "Operation not permitted" "${nobody[@]}" chmod 777 "$M/file"
    # What a user makes is the user's.
    "${nobody[@]}" sh -c 'umask 022; cd "$1" && echo x >made && mkdir dir && ln -s x link && mkfifo fifo' - "$M/open"
    equal "$(cd "$D/open" && stat -c '%U %a' made dir fifo | sort -u)" "nobody 644
nobody 755"
    equal "$(stat -c %u "$D/open/link")" 65534
    "${nobody[@]}" cp -r "$FX/sparse/base.b2frame" "$M/open/theirs.b2frame"
    "${nobody[@]}" cp "$FX/base.b2frame" "$M/open/other.b2frame"
    chmod 1777 "$M/open"
    : >"$M/open/roots"
    fails "Operation not permitted" "${nobody[@]}" rm -f "$M/open/roots"
    down
    equal "$(stat -c %u "$D/open/theirs.b2frame" "$D/open/other.b2frame" "$D/open/other.b2frame/chunks.b2frame" | sort -u)" 65534
    tool same "$D/open/theirs.b2frame" "$FX/base.b2frame"
}

# Without allow_other nobody else sees anything.
test_alone_by_default() {
    root_only
    mkdir -p "$D"
    chmod 777 "$D"
    tree
    fails "Permission denied" "${nobody[@]}" ls "$M"
    down
}

mounted_by_a_user() {
    chmod 777 "$T"
    "${as[@]}" mkdir "$D" "$M"
    "${as[@]}" cp "$FX/base.b2frame" "$D/a.b2frame"
    "${as[@]}" "$B2FUSE" mount "$D" "$M"
    "${as[@]}" sh -c 'echo x >"$1/file" && mkdir "$1/dir" && ln "$1/file" "$1/dir/hard"' - "$M"
    "${as[@]}" cp "$FX/new/0" "$M/a.b2frame/00000003.chunk"
    "${as[@]}" cp -r "$FX/sparse/full.b2frame" "$M/b.b2frame"
    "${as[@]}" "$B2FUSE" umount "$M"
    tool holds "$D/a.b2frame" 3="$FX/new/0"
    tool same "$D/b.b2frame" "$FX/full.b2frame"
    equal "$(cat "$D/dir/hard")" x
}
test_as_an_ordinary_user() { as_a_user mounted_by_a_user; }

test_changes_by_others_are_seen() {
    mkdir -p "$D/dir"
    echo old >"$D/file"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    tree
    equal "$(cat "$M/file")" old
    [ ! -e "$M/new" ]
    cmp "$M/a.b2frame/00000003.chunk" "$FX/base/3"
    echo longer than before >"$D/file"
    echo new >"$D/new"
    echo in >"$D/dir/new"
    cp "$FX/full.b2frame" "$D/b.b2frame"
    # A second, the kernel's own clock, and what a busy machine adds.
    local end=$((SECONDS + 4))
    until [ "$(cat "$M/file")" = "longer than before" ] && [ -e "$M/new" ] && [ -e "$M/dir/new" ] && [ -d "$M/b.b2frame" ]; do
        [ $SECONDS -lt $end ] || fail "not seen: $(ls -R "$M") $(cat "$M/file")"
        sleep 0.1
    done
    cmp "$M/b.b2frame/00000003.chunk" "$FX/full/3"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(3, noise(7), copy=True)' "$D/a.b2frame"
    py 'open(sys.argv[2], "wb").write(blosc2.open(sys.argv[1]).get_chunk(3))' "$D/a.b2frame" "$T/three"
    await cmp "$M/a.b2frame/00000003.chunk" "$T/three"
    rm -r "$D/new" "$D/dir" "$D/b.b2frame"
    await test ! -e "$M/new"
    await test ! -e "$M/dir"
    await test ! -e "$M/b.b2frame"
    # A frame replaced by a directory, and a directory by a frame.
    rm "$D/a.b2frame"
    mkdir "$D/a.b2frame"
    echo other >"$D/a.b2frame/file"
    await cat "$M/a.b2frame/file"
    rm -r "$D/a.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/a.b2frame"
    await test -f "$M/a.b2frame"
    tool same "$M/a.b2frame" "$FX/base.b2frame"
    down
}

# Whoever has a file open sees what others write to it, whether the kernel reads the file by itself or has pages of it.
test_an_open_file_shows_what_others_write() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/c.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    tree --show contiguous "$@"
    py 'import errno, time
D, M = sys.argv[1:]
for name in ["plain", ".hidden", "x.tmp", "none.b2nd"]:
    with open(f"{D}/{name}", "wb") as below:
        below.write(b"a" * 10000)
    fd, again = os.open(f"{M}/{name}", os.O_RDONLY), os.open(f"{M}/{name}", os.O_RDONLY)
    with open(fd, "rb") as file:
        for byte in b"abcd":
            with open(f"{D}/{name}", "r+b") as below:
                below.write(bytes([byte]) * 10000)
            end = time.monotonic() + 20
            while os.pread(fd, 20000, 0) != bytes([byte]) * 10000:
                assert time.monotonic() < end, (name, byte)
                time.sleep(0.01)
    os.pread(again, 1, 0)
    os.close(again)
for name in ["c.b2frame", "s.b2frame"]:
    fd = os.open(f"{M}/{name}", os.O_RDONLY)
    before = os.pread(fd, 1 << 20, 0)
    s = blosc2.open(f"{D}/{name}", mode="a")
    s.update_data(3, noise(99), copy=True)
    del s
    end = time.monotonic() + 20
    while True:
        # What is opened just before the mount hears of the change is of a version that is gone.
        try:
            with open(f"{M}/{name}", "rb") as file:
                now = file.read()
        except OSError as error:
            assert error.errno == errno.ESTALE, error
            now = before
        if now != before and blosc2.schunk_from_cframe(now, copy=True).decompress_chunk(3) == blosc2.open(f"{D}/{name}").decompress_chunk(3):
            break
        assert time.monotonic() < end, name
        time.sleep(0.01)
    os.close(fd)' "$D" "$M"
    down
}
test_an_open_file_shows_what_others_write_by_the_clock() { test_an_open_file_shows_what_others_write -o entry_timeout=1,attr_timeout=1; }

# What the kernel knows of frames it keeps, and asks nobody for a minute; and it hears of what others do.
test_frames_are_good_for_longer_than_a_second() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    cp "$FX/base.b2frame" "$D/b.b2frame"
    tree
    local before
    before=$(stat -c '%n %F %s %Y %u %a' "$M"/*.b2frame)
    ls -l "$M" >"$T/listed"
    # As long as names are good that are not watched, and the kernel's own clock.
    sleep 1.5
    stat "$M" >/dev/null
    kill -STOP "$PID"
    local now status=0
    now=$(timeout 5 stat -c '%n %F %s %Y %u %a' "$M/a.b2frame" "$M/b.b2frame") || status=$?
    kill -CONT "$PID"
    equal "$status $now" "0 $before"
    equal "$(ls -l "$M")" "$(cat "$T/listed")"
    chmod 600 "$D/a.b2frame"
    await test "$(stat -c %a "$D/a.b2frame")" = 600
    await sh -c "[ \"\$(stat -c %a '$M/a.b2frame')\" = 700 ]"
    mv "$D/b.b2frame" "$D/c.b2frame"
    await test ! -e "$M/b.b2frame"
    await test -d "$M/c.b2frame"
    touch -d 2001-01-01 "$D/c.b2frame"
    await sh -c "[ \"\$(stat -c %Y '$M/c.b2frame')\" = '$(stat -c %Y "$D/c.b2frame")' ]"
    # Who is inside a frame notices nothing when its file is looked up again.
    cd "$M/a.b2frame"
    touch "$D/a.b2frame"
    ls chunks.b2frame >/dev/null
    cd /
    down
}

test_inside_a_tree_links_lead_nowhere_else() {
    mkdir -p "$D/real" "$T/outside"
    echo secret >"$T/outside/file"
    cp "$FX/base.b2frame" "$T/outside/x.b2frame"
    ln -s "$T/outside/x.b2frame" "$D/x.b2frame"
    ln -s "$T/outside" "$D/out"
    tree --show sparse
    # The kernel follows links, as natively; the daemon does not: a link is a link.
    equal "$(readlink "$M/x.b2frame")" "$T/outside/x.b2frame"
    equal "$(cat "$M/out/file")" secret
    [ ! -d "$M/x.b2frame" ]
    # A directory that is swapped for a link while it is walked.
    py 'import threading, time
d, m, outside = sys.argv[1:]
end = time.monotonic() + 2
def swap():
    while time.monotonic() < end:
        os.rename(d + "/real", d + "/aside")
        os.symlink(outside, d + "/real")
        os.unlink(d + "/real")
        os.rename(d + "/aside", d + "/real")
thread = threading.Thread(target=swap)
thread.start()
# What is looked up in an open directory never leads out of it.
seen = 0
while time.monotonic() < end:
    try:
        fd = os.open(m + "/real", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        continue
    try:
        os.close(os.open("file", os.O_RDONLY, dir_fd=fd))
        seen += 1
    except OSError:
        pass
    try:
        os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    except OSError:
        pass
    os.close(fd)
thread.join()
assert not seen and sorted(os.listdir(outside)) == ["file", "x.b2frame"], (seen, os.listdir(outside))' \
        "$D" "$M" "$T/outside"
    down
}

test_the_directory_removed_beneath_the_mount() {
    mkdir -p "$D/sub"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    tree
    cmp "$M/a.b2frame/00000003.chunk" "$FX/base/3"
    rm -r "$D"
    sleep 1.1
    equal "$(timeout 20 ls "$M" 2>/dev/null)" ""
    fails "" timeout 20 touch "$M/new"
    timeout 30 "$B2FUSE" umount "$M" 2>/dev/null || true
    not_mounted
}

test_two_mounts_of_one_directory() {
    mkdir -p "$D" "$T/second"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    tree
    cp "$FX/new/0" "$M/a.b2frame/00000003.chunk"
    "$B2FUSE" mount "$D" "$T/second"
    echo x >"$M/file"
    await cat "$T/second/file"
    echo y >>"$T/second/file"
    await test "$(cat "$M/file" | wc -l)" = 2
    # Of a frame that another mount writes, the second is a reader.
    cmp "$T/second/a.b2frame/00000003.chunk" "$FX/new/0"
    fails "Device or resource busy" cp "$FX/new/1" "$T/second/a.b2frame/00000003.chunk"
    "$B2FUSE" umount "$T/second"
    cp "$FX/new/1" "$M/a.b2frame/00000003.chunk"
    down
    tool holds "$D/a.b2frame" 3="$FX/new/1"
}

test_a_look_at_a_frame_keeps_nobody_from_writing_it() {
    mkdir -p "$D" "$T/second"
    cp "$FX/base.b2frame" "$D/c.b2frame"
    cp -r "$FX/sparse/base.b2frame" "$D/s.b2frame"
    tree --show contiguous
    equal "$(stat -c %s "$M/c.b2frame")" "$(stat -c %s "$FX/base.b2frame")"
    equal "$(ls -l "$M" | grep -c b2frame)" 2
    "$B2FUSE" mount --show sparse "$D" "$T/second"
    cp "$FX/new/0" "$T/second/c.b2frame/00000003.chunk"
    cp "$FX/new/0" "$T/second/s.b2frame/00000003.chunk"
    "$B2FUSE" umount "$T/second"
    down
    tool holds "$D/c.b2frame" 3="$FX/new/0"
}

test_read_only() {
    mkdir -p "$D"
    echo x >"$D/file"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    local before
    before=$(listed "$D")
    tree --read-only
    errnos EROFS 'open(M + "/new", "w")' 'open(M + "/file", "a")' 'os.mkdir(M + "/d")' 'os.unlink(M + "/file")' 'os.rename(M + "/file", M + "/g")' \
        'os.chmod(M + "/file", 0o600)' 'os.symlink("x", M + "/l")' 'os.link(M + "/file", M + "/l")' 'os.utime(M + "/file")' \
        'os.setxattr(M + "/file", "user.x", b"x")' 'open(M + "/a.b2frame/00000003.chunk", "w")' 'os.rmdir(M + "/a.b2frame")' \
        'os.truncate(M + "/file", 0)'
    cmp "$M/a.b2frame/00000003.chunk" "$FX/base/3"
    down
    equal "$(listed "$D")" "$before"
}

test_the_directory_as_its_own_mount_point() {
    mkdir -p "$D"
    echo x >"$D/file"
    cp "$FX/base.b2frame" "$D/a.b2frame"
    M=$D
    tree
    [ -d "$D/a.b2frame" ]
    cp "$FX/new/0" "$D/a.b2frame/00000003.chunk"
    echo y >"$D/new"
    cp -r "$FX/sparse/full.b2frame" "$D/b.b2frame"
    cp "$FX/full.b2frame" "$D/c.b2frame"
    down
    tool holds "$D/a.b2frame" 3="$FX/new/0"
    equal "$(cat "$D/file" "$D/new")" "x
y"
    [ -f "$D/a.b2frame" ] && [ -f "$D/b.b2frame" ] && [ -d "$D/c.b2frame" ]
    tool same "$D/b.b2frame" "$FX/full.b2frame"
    tool same "$D/c.b2frame" "$FX/full.b2frame"
}

test_wrong_usage() {
    mkdir -p "$D/sub" "$M" "$T/over"
    : >"$T/file"
    cp "$FX/base.b2frame" "$T/x.b2frame"
    one_line "$D/sub" "lies inside $D" "$B2FUSE" mount "$D" "$D/sub"
    one_line "$T" "lies above $D" "$B2FUSE" mount "$D" "$T"
    one_line "$T/file" "is not a directory" "$B2FUSE" mount "$D" "$T/file"
    one_line "$T/none" "no such directory" "$B2FUSE" mount "$D" "$T/none"
    one_line "$D" "is no frame, and $T/x.b2frame is one" "$B2FUSE" mount "$D" "$T/x.b2frame"
    one_line "$D" "--create" "$B2FUSE" mount --create "$D" "$M"
    one_line "$D" "follow_links" "$B2FUSE" mount -o ro,follow_links "$D" "$M"
    exits 2 "$B2FUSE" mount -o entry_timeout=soon "$D" "$M"
    exits 2 "$B2FUSE" mount -o attr_timeout=-1 "$D" "$M"
    exits 2 "$B2FUSE" mount -o suffixes "$D" "$M"
    not_mounted
    # Options of a tree have no sense for one frame.
    local option
    for option in cross suffixes=.x frames=x noframes=x entry_timeout=1 attr_timeout=1; do
        exits 1 "$B2FUSE" mount -o $option "$T/x.b2frame" "$M"
    done
    "$B2FUSE" mount "$D" "$M"
    one_line "$M" "" "$B2FUSE" mount "$D" "$M"
    one_line "" "is in the b2fuse mount $M" "$B2FUSE" mount "$M/sub" "$T/over"
    "$B2FUSE" umount "$M"
}

test_another_file_system_in_it() {
    root_only
    mkdir -p "$D/other" "$D/sub"
    unshare -m true || skip "no mount namespaces"
    mount -t tmpfs none "$D/other" || skip "no tmpfs"
    echo x >"$D/other/file"
    cp "$FX/base.b2frame" "$D/other/a.b2frame"
    tree
    equal "$(ls "$M/other")" ""
    fails "" touch "$M/other/new"
    fails "" rmdir "$M/other"
    [ ! -e "$D/other/new" ]
    down
    tree -o cross
    equal "$(cat "$M/other/file")" x
    cmp "$M/other/a.b2frame/00000003.chunk" "$FX/base/3"
    cp "$FX/new/0" "$M/other/a.b2frame/00000003.chunk"
    errnos EXDEV 'os.rename(M + "/other/file", M + "/sub/file")'
    mv "$M/other/file" "$M/sub/file"
    mv "$M/other/a.b2frame" "$M/sub/a.b2frame"
    down
    umount "$D/other"
    tool holds "$D/sub/a.b2frame" 3="$FX/new/0"
}

# Whoever owns the directory that a link is in could lead root's mount to any other.
test_a_link_to_a_directory_is_not_mounted() {
    mkdir -p "$T/real/sub" "$M"
    ln -s real "$T/link"
    one_line "$T/link: is a symbolic link; expected the directory that it leads to, $T/real" "" "$B2FUSE" mount "$T/link" "$M"
    one_line "$T/link/: is a symbolic link; expected" "$T/real" "$B2FUSE" mount "$T/link/" "$M"
    # On the way to it links are followed, as in any path.
    "$B2FUSE" mount "$T/link/sub" "$M"
    umount_it
}

# What is called as a frame was meant to be one.
test_a_directory_that_is_called_as_a_frame_is_not_mounted_whole() {
    mkdir -p "$T/f.b2frame" "$M"
    ln -s /etc/hostname "$T/f.b2frame/.new"
    one_line "$T/f.b2frame: is a directory without chunks.b2frame" "" "$B2FUSE" mount "$T/f.b2frame" "$M"
}
