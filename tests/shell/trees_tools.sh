# The tools that people work with, in a directory that is mounted whole.

# down: unmounted, with nothing of ours and nothing lost left.
down() {
    umount_it
    end_of_daemon
    equal "$(find "$D" -name '.b2fuse-*' -o -name '*.lost')" ""
}
# listed DIR: all names below, with kind, mode, owner, links, time, size of files, target.
listed() { (cd "$1" && find . -mindepth 1 \( -type d -printf '%P %y %m %U:%G %T@\n' \) -o -printf '%P %y %m %U:%G %n %s %T@ %l\n' | LC_ALL=C sort); }

# alike ONE OTHER: the two hold the same.
alike() {
    listed "$1" >"$T/.one"
    listed "$2" >"$T/.other"
    diff "$T/.one" "$T/.other" >"$T/.diff" || fail "$1 is not as $2: $(head -n 6 "$T/.diff")"
}

# a_tree DIR: of ordinary files: sizes, modes, times, links, holes, names.
a_tree() {
    mkdir -p "$1/src/deep/deeper" "$1/empty" "$1/doc"
    local n
    for n in $(seq 60); do seq "$n" $((n * 50)) >"$1/src/$n.txt"; done
    head -c 3000000 /dev/urandom >"$1/doc/large.bin"
    truncate -s 2M "$1/doc/hole"
    printf x | dd of="$1/doc/hole" bs=1 seek=1000000 conv=notrunc status=none
    ln -s ../src/1.txt "$1/doc/link"
    ln -s nowhere "$1/doc/dangling"
    ln "$1/src/2.txt" "$1/src/deep/hard"
    mkfifo "$1/doc/fifo"
    echo odd >"$1/src/deep/deeper/"$'new\nline \xff'
    chmod 640 "$1/src/3.txt"
    chmod 755 "$1/src/4.txt"
    chmod 2750 "$1/empty"
    touch -d '2001-02-03 04:05:06.789' "$1/src/5.txt" "$1/src/deep"
    if [ "$(id -u)" = 0 ]; then chown -h 65534:65533 "$1/src/6.txt" "$1/doc/link"; fi
}
# with_frames DIR: and frames in the kinds that a mount with --show contiguous shows.
with_frames() {
    a_tree "$1"
    cp "$FX/full.b2frame" "$1/src/f.b2frame"
    cp "$FX/array.b2nd" "$1/doc/a.b2nd"
}

test_cp_archive() {
    a_tree "$T/native"
    tree
    cp -a "$T/native" "$M/copy"
    alike "$M/copy" "$T/native"
    cp -a "$M/copy" "$M/again"
    diff -r --no-dereference -x fifo "$M/again" "$T/native"
    cp -a "$M/again" "$T/back"
    alike "$T/back" "$T/native"
    [ "$(stat -c %b "$D/copy/doc/hole")" -lt 1000 ]
    alike "$D/again" "$T/native"
    cp -al "$M/again" "$M/links"
    equal "$(stat -c %h "$D/links/src/1.txt")" 2
    down
}

test_cp_archive_of_frames() {
    with_frames "$T/native"
    tree --show contiguous
    cp -a "$T/native" "$M/copy"
    alike "$M/copy" "$T/native"
    cp -a "$M/copy" "$M/again"
    for name in src/f.b2frame doc/a.b2nd; do tool twins "$M/again/$name" "$T/native/$name"; done
    cp -a "$M/again" "$T/back"
    equal "$(listed "$T/back" | sed 's/\.b2[a-z]* f [^ ]*/ frame/' | cut -d' ' -f1-4)" "$(listed "$T/native" | sed 's/\.b2[a-z]* f [^ ]*/ frame/' | cut -d' ' -f1-4)"
    down
    [ -f "$D/again/src/f.b2frame" ]
    tool same "$D/again/src/f.b2frame" "$FX/full.b2frame"
    tool same "$T/back/doc/a.b2nd" "$FX/array.b2nd"
}

# rsync_both WAY: into the mount, twice, after changes with --delete, and out of it again.
rsync_both() {
    rsync -aH "$@" "$T/native/" "$M/copy/"
    equal "$(rsync -aH --itemize-changes "$@" "$T/native/" "$M/copy/")" "" "second rsync"
    diff -r --no-dereference -x fifo "$M/copy" "$T/native"
    echo changed >"$T/native/src/7.txt"
    rm "$T/native/src/8.txt"
    mv "$T/native/src/9.txt" "$T/native/doc/nine.txt"
    rm -r "$T/native/src/deep"
    chmod 600 "$T/native/src/10.txt"
    if [ -e "$T/native/src/f.b2frame" ]; then
        py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(2, noise(400), copy=True); s.append_data(noise(401))' "$T/native/src/f.b2frame"
        mv "$T/native/doc/a.b2nd" "$T/native/b.b2nd"
    fi
    # rsync compares whole seconds: what was changed just now is as new to it as what it has just copied.
    find "$T/native" -type d -exec touch -d "2001-02-03 04:05:06.7" {} +
    rsync -aH --delete "$@" "$T/native/" "$M/copy/"
    equal "$(rsync -aH --delete --itemize-changes "$@" "$T/native/" "$M/copy/")" "" "second rsync --delete"
    diff -r --no-dereference -x fifo -x '*.b2*' "$M/copy" "$T/native"
    rsync -aH "$M/copy/" "$T/back/"
    equal "$(rsync -aH --delete --itemize-changes "$M/copy/" "$T/back/")" "" "second rsync back"
    diff -r --no-dereference -x fifo -x '*.b2*' "$T/back" "$T/native"
}

test_rsync_delete() {
    a_tree "$T/native"
    tree
    # To the second, as rsync itself looks at times.
    rsync_both
    equal "$(listed "$M/copy" | sed 's/\.[0-9]\{10\}//')" "$(listed "$T/native" | sed 's/\.[0-9]\{10\}//')"
    down
    equal "$(listed "$D/copy" | sed 's/\.[0-9]\{10\}//')" "$(listed "$T/native" | sed 's/\.[0-9]\{10\}//')"
}

test_rsync_of_frames() {
    with_frames "$T/native"
    tree --show contiguous
    rsync_both
    down
    [ -d "$D/copy/src/f.b2frame" ] && [ -d "$D/copy/b.b2nd" ] && [ ! -e "$D/copy/doc/a.b2nd" ]
    tool same "$D/copy/src/f.b2frame" "$T/native/src/f.b2frame"
    tool same "$D/copy/b.b2nd" "$T/native/b.b2nd"
    tool same "$T/back/src/f.b2frame" "$T/native/src/f.b2frame"
}

test_rsync_of_frames_in_place() {
    with_frames "$T/native"
    tree --show contiguous
    rsync_both --inplace
    down
    tool same "$D/copy/src/f.b2frame" "$T/native/src/f.b2frame"
}

# Directories of chunk files, into a mount that stores them as files.
test_rsync_of_frames_as_directories() { frames_as_directories; }
test_rsync_of_frames_as_directories_delayed() { frames_as_directories --delay-updates; }
frames_as_directories() {
    mkdir -p "$T/native/sub"
    cp -r "$FX/sparse/full.b2frame" "$T/native/f.b2frame"
    cp -r "$FX/sparse/array.b2nd" "$T/native/sub/a.b2nd"
    echo x >"$T/native/sub/file"
    tree
    rsync -a "$@" "$T/native/" "$M/"
    equal "$(rsync -a "$@" --itemize-changes "$T/native/" "$M/")" "" "second rsync"
    py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(2, noise(400), copy=True); s.append_data(noise(401))' "$T/native/f.b2frame"
    rm -r "$T/native/sub/a.b2nd"
    rsync -a "$@" --delete "$T/native/" "$M/"
    equal "$(rsync -a "$@" --delete --itemize-changes "$T/native/" "$M/")" "" "second rsync --delete"
    down
    [ -f "$D/f.b2frame" ] && [ ! -e "$D/sub/a.b2nd" ]
    tool same "$D/f.b2frame" "$T/native/f.b2frame"
}

# Copies with a suffix, into a new directory and over one that is there.
test_copies_with_a_suffix_into_frames() {
    local show name file round
    for show in other sparse; do
        mkdir -p "$T/native"
        cp -r "$FX/sparse/full.b2frame" "$T/native/f.b2frame"
        tree --show $show
        mkdir "$M/f.b2frame"
        for round in 1 2; do
            for file in "$T/native/f.b2frame"/*; do
                name=$M/f.b2frame/${file##*/}
                cp "$file" "$name.0a1B2c3D"
                mv "$name.0a1B2c3D" "$name"
            done
            tool same "$M/f.b2frame" "$T/native/f.b2frame"
            py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(2, noise(400), copy=True)' "$T/native/f.b2frame"
        done
        mkdir "$M/f.b2frame/.~tmp~"
        fails "Operation not permitted" mkdir "$M/f.b2frame/.~tmp~/x"
        rmdir "$M/f.b2frame/.~tmp~"
        cp -r "$T/native/f.b2frame" "$M/g.b2frame"
        mkdir "$M/g.b2frame/.~tmp~"
        cp "$FX/new/0" "$M/g.b2frame/.~tmp~/00000003.chunk"
        fails "Directory not empty" rmdir "$M/g.b2frame/.~tmp~"
        rm -r "$M/g.b2frame"
        [ ! -e "$D/g.b2frame" ]
        down
        rm -r "$D" "$T/native"
    done
}

test_copies_that_are_left_in_a_frame_are_saved() {
    mkdir -p "$D"
    cp "$FX/base.b2frame" "$D/f.b2frame"
    tree
    mkdir "$M/f.b2frame/.~tmp~"
    cp "$FX/new/0" "$M/f.b2frame/.~tmp~/00000003.chunk"
    cp "$FX/new/1" "$M/f.b2frame/00000004.chunk.1a2b"
    exits 1 umount_it
    exits 1 end_of_daemon
    cmp "$D/f.b2frame.lost/00000003.chunk" "$FX/new/0"
    cmp "$D/f.b2frame.lost/00000004.chunk.1a2b" "$FX/new/1"
    cmp "$D/f.b2frame" "$FX/base.b2frame"
}

test_tar_both_ways() {
    with_frames "$T/native"
    cp -r "$FX/sparse/full.b2frame" "$T/native/d.b2frame"
    tree
    tar -C "$T/native" -c . | tar -C "$M" -xp
    rm "$M/doc/fifo"
    tar -C "$M" -cf "$T/out.tar" .
    mkdir "$T/back"
    tar -C "$T/back" -xpf "$T/out.tar"
    diff -r --no-dereference -x fifo -x '*.b2*' "$T/back" "$T/native"
    for name in src/f.b2frame doc/a.b2nd d.b2frame; do tool same "$T/back/$name" "$T/native/$name"; done
    [ -d "$T/back/d.b2frame" ] && [ -f "$T/back/src/f.b2frame" ]
    # Nothing changes while it is read.
    tar -C "$M" -df "$T/out.tar"
    down
    [ -f "$D/d.b2frame" ] && [ -d "$D/src/f.b2frame" ]
    for name in src/f.b2frame doc/a.b2nd d.b2frame; do tool same "$D/$name" "$T/native/$name"; done
}

test_git() {
    command -v git >/dev/null || skip "no git"
    tree
    export HOME=$T GIT_CONFIG_NOSYSTEM=1
    git config --global user.name tester
    git config --global user.email tester@example.org
    git config --global init.defaultBranch main
    mkdir "$M/repository"
    a_tree "$M/repository"
    rm "$M/repository/doc/fifo"
    cp "$FX/base.b2frame" "$M/repository/frame.dat"
    (
        cd "$M/repository"
        git init -q
        git add -A
        git commit -qm first
        equal "$(git status --porcelain)" ""
        echo more >>src/1.txt
        git mv src/2.txt src/two.txt
        git rm -q src/3.txt
        equal "$(git status --porcelain | sort)" " M src/1.txt
D  src/3.txt
R  src/2.txt -> src/two.txt"
        git commit -qam second
        git checkout -q -b branch HEAD~1
        [ -e src/3.txt ]
        git checkout -q main
        git gc -q --prune=now
        git fsck --strict
        git repack -adq
        equal "$(git log --format=%s)" "second
first"
        git stash list
        git clean -fdxq
    )
    git clone -q "$M/repository" "$T/clone"
    git clone -q "$T/clone" "$M/clone"
    equal "$(git -C "$M/clone" status --porcelain)" ""
    down
    equal "$(git -C "$D/clone" status --porcelain)" ""
    git -C "$D/repository" fsck --strict
}

test_make() {
    command -v make cc >/dev/null || skip "no make or no C compiler"
    tree
    mkdir "$M/project"
    cat >"$M/project/Makefile" <<'END'
OBJECTS = main.o one.o two.o
program: $(OBJECTS) libthree.a
	$(CC) -o $@ $(OBJECTS) libthree.a
libthree.a: three.o
	$(AR) rcs $@ three.o
%.o: %.c all.h
	$(CC) -c -o $@ $<
clean:
	rm -f *.o *.a program
END
    echo 'int one(void), two(void), three(void);' >"$M/project/all.h"
    local word number=1
    for word in one two three; do
        echo "#include \"all.h\"
int $word(void) { return $number; }" >"$M/project/$word.c"
        number=$((number + 1))
    done
    echo '#include <stdio.h>
#include "all.h"
int main(void) { printf("%d\n", one() + two() + three()); return 0; }' >"$M/project/main.c"
    make -C "$M/project" -j2 -s
    equal "$("$M/project/program")" 6
    equal "$(make -C "$M/project" -q && echo done)" "done"
    sed -i 's/return 2/return 20/' "$M/project/two.c"
    fails "" make -C "$M/project" -q
    make -C "$M/project" -s
    equal "$("$M/project/program")" 24
    make -C "$M/project" -s clean
    equal "$(ls "$M/project")" "Makefile
all.h
main.c
one.c
three.c
two.c"
    down
}

test_find_and_du() {
    a_tree "$D"
    tree
    equal "$(cd "$M" && find . -printf '%p %y %s %n %i\n' | grep -v '^\. ' | sort)" "$(cd "$D" && find . -printf '%p %y %s %n %i\n' | grep -v '^\. ' | sort)"
    equal "$(cd "$M" && find . -name '*.txt' -size +4k -newermt 2020-01-01 | sort)" "$(cd "$D" && find . -name '*.txt' -size +4k -newermt 2020-01-01 | sort)"
    equal "$(cd "$M" && find . -inum "$(stat -c %i "$D/src/2.txt")" | sort)" "./src/2.txt
./src/deep/hard"
    equal "$(cd "$M" && find . -xtype l)" ./doc/dangling
    equal "$(du -s "$M" | cut -f1)" "$(du -s "$D" | cut -f1)"
    equal "$(du -ab --apparent-size "$M" | cut -f1 | sort -n)" "$(du -ab --apparent-size "$D" | cut -f1 | sort -n)"
    equal "$(grep -rl '^1000$' "$M/src" | wc -l)" "$(grep -rl '^1000$' "$D/src" | wc -l)"
    find "$M/src" -name '*.txt' -delete
    equal "$(find "$D" -name '*.txt')" ""
    down
}

# A frame takes room, and is gone through like a directory where it is shown as one.
test_find_and_du_of_frames() {
    mkdir -p "$D"
    cp "$FX/full.b2frame" "$D/c.b2frame"
    cp -r "$FX/sparse/full.b2frame" "$D/s.b2frame"
    tree
    equal "$(cd "$M" && find . -name '*.chunk' | wc -l)" 6
    equal "$(cd "$M" && find . -name '*.b2frame' -printf '%p %y\n' | sort)" "./c.b2frame d
./c.b2frame/chunks.b2frame f
./s.b2frame f"
    local shown stored
    shown=$(du -s --apparent-size "$M/c.b2frame" | cut -f1) stored=$(du -s --apparent-size "$D/s.b2frame" | cut -f1)
    [ $((shown - stored)) -lt 16 ] && [ $((stored - shown)) -lt 16 ] || fail "du: $shown shown, $stored natively"
    # No number stands for two files.
    equal "$(find "$M" -printf '%i\n' | sort | uniq -d)" ""
    down
}

test_sed_in_place() {
    a_tree "$D"
    tree
    sed -i 's/^1$/one/' "$M/src/1.txt"
    sed -i.bak 's/^2$/two/' "$M/src/2.txt"
    equal "$(head -n 1 "$D/src/1.txt")" one
    equal "$(head -n 1 "$D/src/2.txt" "$D/src/2.txt.bak" | grep -v '^=' | tr -d '\n')" two2
    find "$M/src" -name '1*.txt' -exec sed -i 's/^/> /' {} +
    equal "$(grep -L '^> ' "$D"/src/1*.txt)" ""
    equal "$(stat -c %a "$D/src/4.txt")" 755
    # Of a text that has a frame's name, too.
    echo text >"$M/text.b2nd"
    sed -i s/text/other/ "$M/text.b2nd"
    equal "$(cat "$D/text.b2nd")" other
    down
}

# The orders in which editors save: a file beside it and a rename; a backup; in place; by a link.
test_editors_save() {
    tree
    py 'import tempfile
m, d = sys.argv[1:]
def write(path, text, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
    fd = os.open(path, flags, 0o644)
    os.write(fd, text.encode())
    os.fsync(fd)
    os.close(fd)
def beside(path, text):
    fd, name = tempfile.mkstemp(prefix=".", dir=os.path.dirname(path))
    os.write(fd, text.encode())
    os.fsync(fd)
    os.fchmod(fd, 0o644)
    os.close(fd)
    os.replace(name, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
def vim(path, text):
    swap = os.path.join(os.path.dirname(path), "." + os.path.basename(path) + ".swp")
    write(swap, "swap", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    probe = os.path.join(os.path.dirname(path), "4913")
    write(probe, "", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.unlink(probe)
    os.rename(path, path + "~")
    write(path, text)
    os.unlink(path + "~")
    os.unlink(swap)
def emacs(path, text):
    os.symlink("user@host.1:2", os.path.join(os.path.dirname(path), ".#" + os.path.basename(path)))
    auto = os.path.join(os.path.dirname(path), "#" + os.path.basename(path) + "#")
    write(auto, text)
    os.rename(path, path + "~")
    write(path, text)
    os.unlink(auto)
    os.unlink(os.path.join(os.path.dirname(path), ".#" + os.path.basename(path)))
    os.unlink(path + "~")
def in_place(path, text):
    write(path, text)
def by_link(path, text):
    write(path + ".new", text)
    os.unlink(path)
    os.link(path + ".new", path)
    os.unlink(path + ".new")
os.mkdir(m + "/sub")
for folder in ("", "/sub"):
    for name in ("file.txt", "text.b2nd", "data.tmp", ".hidden"):
        path = f"{m}{folder}/{name}"
        write(path, "first\n")
        for n, save in enumerate((beside, vim, emacs, in_place, by_link, beside, in_place, vim)):
            text = f"{save.__name__} {n} " + "x" * (n * 997) + "\n"
            save(path, text)
            for where in (path, f"{d}{folder}/{name}"):
                assert open(where).read() == text, (where, save.__name__)
        names = os.listdir(m + folder)
        assert not [other for other in names if "swp" in other or "~" in other or "#" in other or "4913" in other], names' "$M" "$D"
    down
}

test_moving_directories_with_frames_open() {
    mkdir -p "$D/a/b"
    cp "$FX/full.b2frame" "$D/a/b/c.b2frame"
    cp -r "$FX/sparse/full.b2frame" "$D/a/b/s.b2frame"
    echo x >"$D/a/b/file"
    tree
    exec 7<"$M/a/b/c.b2frame/00000003.chunk" 8<"$M/a/b/s.b2frame" 9<"$M/a/b/file"
    mv "$M/a" "$M/z"
    mkdir "$M/a"
    mv "$M/z/b" "$M/a/y"
    cmp - "$FX/full/3" <&7
    cmp - "$M/a/y/s.b2frame" <&8
    equal "$(cat <&9)" x
    cp "$FX/new/0" "$M/a/y/c.b2frame/00000003.chunk"
    exec 7<&- 8<&- 9<&-
    down
    tool holds "$D/a/y/c.b2frame" 3="$FX/new/0"
    tool same "$D/a/y/s.b2frame" "$FX/full.b2frame"
}

test_zip_and_other_archives_of_the_library() {
    tree --show contiguous
    py 'm = sys.argv[1]
store = blosc2.TreeStore(m + "/t.b2z", mode="w")
store["/a"] = np.arange(1000)
store.close()
store = blosc2.TreeStore(m + "/t.b2z", mode="a")
store["/b"] = np.arange(10)
store.close()
assert sorted(blosc2.TreeStore(m + "/t.b2z", mode="r").keys()) == ["/a", "/b"]' "$M"
    down
    equal "$(ls -A "$D")" t.b2z
    [ -f "$D/t.b2z" ]
}
