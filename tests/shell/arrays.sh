# Decompressed views and the programs that people read arrays with: copies with holes, archives, maps, languages, pictures, sound.

# array CODE: CODE makes an array at `path`, which is SOURCE; $T/twin.npy and $T/twin.raw are what must be shown of it.
array() {
    mkdir -p "$M"
    py "path, twin = sys.argv[1:]
$1
array = blosc2.open(path)[()]
np.save(twin + '.npy', array)
array.tofile(twin + '.raw')" "$S" "$T/twin"
}
# show WHAT [OPTION ...]: $V is what is shown.
show() {
    mount_it --show "$@"
    V=$M/source.b2frame.$1
}
# with CODE WHAT FUNCTION: what it says of the file, and of its native twin, which is asked first and may not fail.
with() {
    array "$1"
    V=$T/twin.$2
    "$3"
    show "$2"
    "$3"
    umount_it
}

mixture='array = blosc2.zeros((900, 1000), dtype="f8", chunks=(100, 300), blocks=(20, 100), urlpath=path, mode="w")
array[100:200, 50:450] = np.arange(40_000.).reshape(100, 400)
array[500:600] = np.nan
array[700:800, 300:600] = 7
array.schunk.update_special(2, blosc2.SpecialValue.NAN)'
stack='frames, rows, columns = np.ogrid[:20, :48, :64]
blosc2.asarray(((frames * 9 + rows * 3 + columns) % 256).astype("u1"), chunks=(7, 20, 50), blocks=(2, 10, 25), urlpath=path, mode="w")'
doubles='blosc2.asarray(np.sqrt(np.arange(300_000.)).reshape(500, 600), chunks=(70, 110), blocks=(20, 30), urlpath=path, mode="w")'

# ---- Holes

# Copies of all kinds are the same.
copies() {
    local how twin=$T/twin.${V##*.} out=$T/out
    rm -rf "$out" && mkdir "$out"
    for how in always auto never; do
        cp --sparse="$how" "$V" "$out/copy"
        cmp "$out/copy" "$twin"
    done
    tar -C "${V%/*}" -cSf "$out/sparse.tar" "${V##*/}"
    tar -C "${V%/*}" -cf "$out/plain.tar" "${V##*/}"
    for how in sparse plain; do
        mkdir "$out/$how"
        tar -C "$out/$how" -xf "$out/$how.tar"
        cmp "$out/$how/${V##*/}" "$twin"
        # What is in the archive, and what is shown.
        tar -C "${V%/*}" -df "$out/$how.tar"
    done
    rsync -S "$V" "$out/rsynced"
    cmp "$out/rsynced" "$twin"
    dd if="$V" of="$out/dd" bs=5000 conv=sparse status=none
    cmp "$out/dd" "$twin"
}
copied() { with "$1" npy copies && with "$1" raw copies; }
test_copies_of_zeros() { copied 'blosc2.zeros((900, 1000), dtype="f8", urlpath=path, mode="w")'; }
test_copies_of_nan() { copied 'blosc2.nans((900, 1000), dtype="f8", urlpath=path, mode="w")'; }
test_copies_of_a_constant() { copied 'blosc2.full((900, 1001), 3, dtype="i2", urlpath=path, mode="w")'; }
test_copies_of_a_constant_of_zeros() { copied 'blosc2.full((900, 1001), 0, dtype="i2", urlpath=path, mode="w")'; }
test_copies_of_a_mixture() { copied "$mixture"; }
test_copies_of_stored_zeros() { copied 'blosc2.asarray(np.zeros((900, 1000)), chunks=(70, 300), blocks=(20, 100), urlpath=path, mode="w")'; }
test_copies_of_little() { copied 'blosc2.asarray(np.array(7.5), urlpath=path, mode="w")'; }
test_copies_of_nothing() { copied 'blosc2.zeros((0, 5), dtype="f8", urlpath=path, mode="w")'; }

# Who sees a file without blocks takes it for one hole.
test_blocks() {
    array 'blosc2.nans(100_000, dtype="f8", urlpath=path, mode="w")'
    show npy
    [ "$(stat -c %b "$V")" -ge $((800128 / 512)) ] || fail "$(stat -c %b "$V") blocks, of NaN"
    umount_it
    rm "$S"
    array 'blosc2.zeros(100_000, dtype="f8", urlpath=path, mode="w")'
    show npy
    [ "$(stat -c %b "$V")" -ge 1 ] || fail "no blocks"
    [ "$(stat -c %b "$V")" -le 8 ] || fail "$(stat -c %b "$V") blocks, of zeros"
    umount_it
    show raw
    equal "$(stat -c %b "$V")" 1
    umount_it
}

# What was never written costs nothing.
test_64_tebibytes_of_zeros() {
    mkdir -p "$M"
    py 'import arrayframes
from hostile import frame, repeated
path, count, size = sys.argv[1], 1 << 16, 1 << 30
frame(path, repeated(0x81 << 56, count), count, b"", chunksize=size)
arrayframes.with_metalayer(path, "b2nd", arrayframes.metalayer("b2nd", (count * size,), (size,), (1 << 20,), b"|u1"))' "$S"
    show npy
    equal "$(stat -c %s "$V")" $(((1 << 46) + 128))
    equal "$(tail -c 100000 "$V" | tr -d '\0' | wc -c)" 0
    equal "$(dd if="$V" bs=1M skip=$((1 << 20)) count=3 iflag=skip_bytes status=none | tr -d '\0' | wc -c)" 0
    py 'array = np.load(sys.argv[1], mmap_mode="r")
assert array.shape == (1 << 46,) and array[1 << 45] == 0 and not array[-5000:].any()' "$V"
    umount_it
}

# ---- Tools and programs

pieces() {
    local twin=$T/twin.${V##*.} at
    equal "$(sha256sum <"$V")" "$(sha256sum <"$twin")"
    cmp "$V" "$twin"
    cmp <(head -c 1000 "$V") <(head -c 1000 "$twin")
    cmp <(tail -c 70000 "$V") <(tail -c 70000 "$twin")
    for at in 0 100 5000 1000000; do
        cmp <(dd if="$V" bs=777 count=30 skip="$at" iflag=skip_bytes status=none) <(dd if="$twin" bs=777 count=30 skip="$at" iflag=skip_bytes status=none)
    done
    cmp <(split -n l/3/5 "$V") <(split -n l/3/5 "$twin")
    equal "$(stat -c %s "$V")" "$(stat -c %s "$twin")"
    if dd if="$V" of=/dev/null iflag=direct bs=4096 status=none 2>/dev/null; then
        cmp <(dd if="$V" iflag=direct bs=4096 status=none) "$twin"
    fi
}
test_tools() { with "$doubles" npy pieces && with "$doubles" raw pieces && with "$mixture" npy pieces; }

c_program() {
    if [ ! -e "$T/maps" ]; then
        command -v cc >/dev/null || skip "no C compiler"
        cat >"$T/maps.c" <<'C'
/* maps FILE TWIN: both mapped, compared from the end on and by four threads at once; prints the sum of the doubles behind the header. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *view, *twin;
static size_t size;

static const char *map(const char *path, int flags, int protection) {
    struct stat stat;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &stat) < 0) { perror(path); exit(1); }
    if (size && (size_t)stat.st_size != size) { fprintf(stderr, "%s: %zu bytes, expected %zu\n", path, (size_t)stat.st_size, size); exit(1); }
    size = stat.st_size;
    void *at = mmap(NULL, size, protection, flags, fd, 0);
    if (at == MAP_FAILED) { perror("mmap"); exit(1); }
    close(fd);
    return at;
}

static void *at_random(void *seed) {
    unsigned state = (unsigned)(uintptr_t)seed;
    for (int n = 0; n < 20000; n++) {
        size_t at = ((size_t)rand_r(&state) << 16 ^ rand_r(&state)) % size;
        if (view[at] != twin[at]) { fprintf(stderr, "byte %zu differs\n", at); exit(1); }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    twin = map(argv[2], MAP_SHARED, PROT_READ);
    view = map(argv[1], MAP_SHARED, PROT_READ);
    pthread_t threads[4];
    for (uintptr_t n = 0; n < 4; n++) pthread_create(&threads[n], NULL, at_random, (void *)(n + 1));
    for (int n = 0; n < 4; n++) pthread_join(threads[n], NULL);
    for (size_t at = size; at > 0; at -= at < 4096 ? at : 4096)
        if (memcmp(view + (at < 4096 ? 0 : at - 4096), twin + (at < 4096 ? 0 : at - 4096), at < 4096 ? at : 4096)) { fprintf(stderr, "a page before %zu differs\n", at); return 1; }
    const char *populated = map(argv[1], MAP_SHARED | MAP_POPULATE, PROT_READ);
    if (memcmp(populated, twin, size)) { fprintf(stderr, "what was populated differs\n"); return 1; }
    /* Written to by its owner, a private map is his alone. */
    char *mine = (char *)map(argv[1], MAP_PRIVATE, PROT_READ | PROT_WRITE);
    memset(mine, 1, size);
    if (memcmp(view, twin, size)) { fprintf(stderr, "what is private was shared\n"); return 1; }
    double sum = 0, item;
    for (size_t at = 128; at + 8 <= size; at += 8) { memcpy(&item, view + at, 8); sum += item; }
    printf("%.17g\n", sum);
    return 0;
}
C
        cc -O1 -Wall -Wextra -Werror -pthread -o "$T/maps" "$T/maps.c"
    fi
    # Added up in the same order.
    equal "$("$T/maps" "$V" "$T/twin.npy")" "$(py 'total = 0.0
for item in np.load(sys.argv[1]).ravel().tolist():
    total += item
print(f"{total:.17g}")' "$T/twin.npy")"
}
test_c_program_with_a_map() { with "$doubles" npy c_program; }

# One item of each of 60 planes, 10 blocks each: around an item the kernel reads a little more, which 3 blocks have. No other block is decoded.
test_column_through_a_map() {
    array 'blosc2.asarray(np.arange(60 * 200 * 1000, dtype="f4").reshape(60, 200, 1000), chunks=(10, 200, 1000), blocks=(1, 20, 1000),
    urlpath=path, mode="w")'
    mount_front --show npy
    py 'view, twin = (np.load(path, mmap_mode="r") for path in sys.argv[1:])
assert np.array_equal(view[:, 90, 200], twin[:, 90, 200])' "$M/source.b2frame.npy" "$T/twin.npy"
    kill -USR1 "$PID"
    await grep -q 'blocks decoded' "$T/log"
    local count
    count=$(grep -o 'blocks decoded: [0-9]*' "$T/log" | tail -n 1 | grep -o '[0-9]*$')
    [ "$count" -le 200 ] || fail "$count blocks decoded for 60 items"
}

r_program() {
    command -v Rscript >/dev/null || skip "no R"
    # By rows in the file, by columns in R.
    Rscript --vanilla - "$V" >"$T/r" <<'R'
path <- commandArgs(trailingOnly = TRUE)
file <- file(path, "rb")
magic <- readBin(file, "raw", 8)
stopifnot(rawToChar(magic[2:6]) == "NUMPY", magic[7] == 1)
header <- readChar(file, readBin(file, "integer", 1, size = 2, signed = FALSE, endian = "little"))
stopifnot(grepl("'descr': '<f8'", header, fixed = TRUE), grepl("'shape': (500, 600)", header, fixed = TRUE))
data <- t(matrix(readBin(file, "double", 300001, endian = "little"), nrow = 600))
stopifnot(dim(data) == c(500, 600), all(data == t(matrix(sqrt(0:299999), nrow = 600))))
invisible(seek(file, 128 + 8 * (600 * 123 + 45)))
stopifnot(readBin(file, "double", 1) == data[124, 46])
cat(format(data[500, 600], digits = 15), "\n")
R
    equal "$(tr -d ' ' <"$T/r")" "$("$PY" -c 'print(f"{299999 ** 0.5:.15g}")')"
}
test_r() { with "$doubles" npy r_program; }

# Single pictures of a stack, and all of them.
pictures() {
    command -v gm >/dev/null || skip "no GraphicsMagick"
    local frame
    for frame in 19 0 7; do
        gm convert -size 64x48 -depth 8 "gray:$V[$frame]" "$T/frame.pgm"
        cmp <(tail -c 3072 "$T/frame.pgm") <(tail -c +$((frame * 3072 + 1)) "$T/twin.raw" | head -c 3072)
    done
    gm convert -size 64x48 -depth 8 "gray:$V" +adjoin "$T/all%02d.pgm"
    equal "$(ls "$T"/all*.pgm | wc -l)" 20
    cmp <(for frame in "$T"/all*.pgm; do tail -c 3072 "$frame"; done) "$T/twin.raw"
}
test_pictures_of_a_stack() { with "$stack" raw pictures; }

sound() {
    command -v sox >/dev/null || skip "no SoX"
    sox -t raw -r 8000 -e signed -b 16 -c 2 "$V" -t raw "$T/reversed" reverse
    py 'np.fromfile(sys.argv[1], "<i2").reshape(-1, 2)[::-1].tofile(sys.argv[1] + ".again")' "$T/reversed"
    cmp "$T/reversed.again" "$T/twin.raw"
    sox -t raw -r 8000 -e signed -b 16 -c 2 "$V" "$T/all.wav"
    cmp <(tail -c "$(stat -c %s "$T/twin.raw")" "$T/all.wav") "$T/twin.raw"
}
test_sound() {
    with 'time = np.arange(40_000)[:, None]
blosc2.asarray((np.sin(time * [[0.05, 0.11]]) * 9000).astype("<i2"), chunks=(7000, 1), blocks=(900, 1), urlpath=path, mode="w")' raw sound
}

# ---- What is shown beside the data

test_attributes() {
    array "$doubles"
    touch -d '2020-02-03 04:05:06.789' "$S"
    chmod 640 "$S"
    show npy
    equal "$(stat -c '%y %U %G' "$V")" "$(stat -c '%y %U %G' "$S")"
    equal "$(stat -c %a "$V" | tr 1357 0246)" "$(stat -c %a "$V")" "permission to execute"
    equal "$(stat -c %F "$V")" "regular file"
    [ "$(df --output=used "$M" | tail -1)" -ge 0 ]
    local before
    before=$(stat -c '%i %s %Y %Z %b' "$V")
    cat "$V" >/dev/null
    equal "$(stat -c '%i %s %Y %Z %b' "$V")" "$before"
    errnos EROFS 'open(M + "/source.b2frame.npy", "r+b")' 'os.truncate(M + "/source.b2frame.npy", 5)' 'os.utime(M + "/source.b2frame.npy")' \
        'os.unlink(M + "/source.b2frame.npy")' 'os.mkdir(M + "/x")' 'open(M + "/x", "w")' 'os.rename(M + "/source.b2frame.npy", M + "/x")'
    umount_it
}

test_as_a_file() {
    array "$doubles"
    : >"$T/file"
    "$B2FUSE" mount --show npy "$S" "$T/file"
    cmp "$T/file" "$T/twin.npy"
    "$B2FUSE" umount "$T/file"
    "$B2FUSE" mount -o show=raw "$S" "$T/file"
    cmp "$T/file" "$T/twin.raw"
    "$B2FUSE" umount "$T/file"
}

test_npy_of_no_array() {
    source_from base
    one_line "$S" array "$B2FUSE" mount --show npy "$S" "$M"
    not_mounted
}

# Eight who read it at once, when nothing is decoded, by ways of their own.
test_many_readers() {
    array 'blosc2.asarray(np.sqrt(np.arange(4_000_000.)).reshape(2000, 2000), chunks=(300, 170), blocks=(50, 60), urlpath=path, mode="w")'
    show npy
    local readers=() n
    for n in 1 2 3; do cmp "$V" "$T/twin.npy" & readers+=($!); done
    for n in 1 2; do
        py 'rng = np.random.default_rng(int(sys.argv[3]))
view, twin = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
for row in rng.permutation(2000)[:400]:
    assert np.array_equal(view[row], twin[row])
assert np.array_equal(view[:, 3], twin[:, 3])' "$V" "$T/twin.npy" "$n" &
        readers+=($!)
    done
    for n in 1 2; do cmp <(tac --before "$V" | sha256sum) <(tac --before "$T/twin.npy" | sha256sum) & readers+=($!); done
    for n in "${readers[@]}"; do wait "$n"; done
    umount_it
}

# ---- Trees

# trees_of_arrays: arrays, a frame that is none, a file, a directory.
trees_of_arrays() {
    mkdir -p "$D/deep/er"
    py 'top = sys.argv[1]
for n, name in enumerate(["a.b2nd", "deep/b.b2nd", "deep/er/c.b2frame"]):
    blosc2.asarray(np.arange(1000.) + n, urlpath=f"{top}/{name}", contiguous=n != 1, mode="w")
    np.save(f"{sys.argv[2]}/{n}.npy", np.arange(1000.) + n)' "$D" "$T"
    cp "$FX/base.b2frame" "$D/deep/base.b2frame"
    echo text >"$D/notes.txt"
}

test_tree() {
    trees_of_arrays
    tree --show npy
    equal "$(cd "$M" && find . -type f | sort | paste -sd ' ')" \
        "./a.b2nd.npy ./deep/b.b2nd.npy ./deep/base.b2frame.raw ./deep/er/c.b2frame.npy ./notes.txt"
    cmp "$M/a.b2nd.npy" "$T/0.npy"
    cmp "$M/deep/b.b2nd.npy" "$T/1.npy"
    cmp "$M/deep/er/c.b2frame.npy" "$T/2.npy"
    cmp "$M/deep/base.b2frame.raw" <("$B2FUSE" cat "$D/deep/base.b2frame" 0-)
    errnos EPERM 'os.unlink(M + "/a.b2nd.npy")' 'os.rename(M + "/a.b2nd.npy", M + "/x.npy")' 'os.rename(M + "/notes.txt", M + "/a.b2nd.npy")' \
        'os.rename(M + "/a.b2nd.npy", M + "/deep/b.b2nd.npy")' 'os.link(M + "/a.b2nd.npy", M + "/x")'
    fails "" sh -c "echo >'$M/a.b2nd.npy'"
    fails "" mkdir "$M/a.b2nd.npy"
    # The names below are not there.
    errnos ENOENT 'open(M + "/a.b2nd")' 'open(M + "/deep/base.b2frame")'
    # All else is as it was.
    echo more >>"$M/notes.txt"
    equal "$(paste -sd ' ' "$D/notes.txt")" "text more"
    mkdir "$M/new" && mv "$M/notes.txt" "$M/new/" && rm -r "$M/new"
    cmp "$M/a.b2nd.npy" "$T/0.npy"
    down
    equal "$(cd "$D" && find . -name '*.npy' -o -name '*.raw' | wc -l)" 0
}

# What others put there is shown, and what they take away is gone.
test_tree_that_others_change() {
    trees_of_arrays
    tree --show npy
    cmp "$M/a.b2nd.npy" "$T/0.npy"
    cp "$D/deep/er/c.b2frame" "$D/new.b2nd"
    await cmp "$M/new.b2nd.npy" "$T/2.npy"
    mv "$D/new.b2nd" "$D/a.b2nd"
    await cmp "$M/a.b2nd.npy" "$T/2.npy"
    await eval '[ ! -e "$M/new.b2nd.npy" ]'
    rm -r "$D/deep/b.b2nd"
    await eval '[ ! -e "$M/deep/b.b2nd.npy" ]'
    echo "no array any more" >"$D/deep/er/c.b2frame"
    await eval 'equal "$(cat "$M/deep/er/c.b2frame")" "no array any more"'
    down
}

# A name that is taken is whose it is.
test_tree_with_names_that_are_taken() {
    trees_of_arrays
    echo "not NumPy's" >"$D/a.b2nd.npy"
    tree --show npy
    equal "$(cat "$M/a.b2nd.npy")" "not NumPy's"
    equal "$(cd "$M" && echo a*)" "a.b2nd a.b2nd.npy"
    cmp "$M/a.b2nd" "$D/a.b2nd"
    has "$(cat "$T/log")" a.b2nd.npy
    down
}

test_store() {
    py 'with blosc2.DictStore(sys.argv[1] + "/store.b2d", mode="w", threshold=0) as store:
    store["/one"] = np.arange(5000.)
    store["/group/two"] = np.arange(60).reshape(6, 10)
for n, array in enumerate([np.arange(5000.), np.arange(60).reshape(6, 10)]):
    np.save(f"{sys.argv[2]}/{n}.npy", array)' "$(mkdir -p "$D" && echo "$D")" "$T"
    tree --show npy
    cmp "$M/store.b2d/one.b2nd.npy" "$T/0.npy"
    cmp "$M/store.b2d/group/two.b2nd.npy" "$T/1.npy"
    down
}

# An array that is open has one version, and whoever opens it then the next one.
test_open_while_it_is_replaced() {
    array "$doubles"
    show npy
    exec 7<"$V"
    head -c 1000 <&7 >/dev/null
    py 'blosc2.asarray(np.arange(1000.), urlpath=sys.argv[1], mode="w")' "$T/other.b2nd"
    mv "$T/other.b2nd" "$S"
    py 'np.save(sys.argv[1], np.arange(1000.))' "$T/new.npy"
    await cmp "$V" "$T/new.npy"
    # What is left of the first is its own, or an error.
    if cat <&7 >"$T/rest" 2>"$T/.err"; then
        cmp "$T/rest" <(tail -c +1001 "$T/twin.npy")
    else
        cmp "$T/rest" <(tail -c +1001 "$T/twin.npy" | head -c "$(stat -c %s "$T/rest")")
    fi
    exec 7<&-
    umount_it
}

# More than 2^20 times from one run of zeros to the next, which stand for nothing but chunks along the other way.
test_zeros_in_many_runs() {
    local code
    for code in 'blosc2.zeros((4096, 1024), "u1", chunks=(4096, 1), urlpath=path, mode="w")' \
        'blosc2.zeros((40000, 1000), "u1", chunks=(20000, 25), urlpath=path, mode="w")[20000:, :] = 3'; do
        array "$code"
        show npy
        timeout 20 cp --sparse=always "$V" "$T/copy"
        cmp "$T/copy" "$T/twin.npy"
        timeout 20 tar -C "$M" -cSf "$T/tar" source.b2frame.npy
        timeout 20 tar -C "$M" -df "$T/tar"
        timeout 20 "$B2FUSE" convert "$S" "$T/made.npy"
        cmp "$T/made.npy" "$T/twin.npy"
        umount_it
        rm -r "$T/made.npy" "$S"
    done
}

# A frame that is no array takes its place, then what is no frame, then nothing, then an array again: one errno, and a line for each.
test_replaced_by_what_cannot_be_shown() {
    local many='blosc2.asarray(np.arange(1000.), urlpath=path, mode="w")' cause
    array "$many"
    mount_front --show npy
    V=$M/source.b2frame.npy
    cmp "$V" "$T/twin.npy"
    cp "$FX/base.b2frame" "$T/new" && mv "$T/new" "$S"
    await grep -q "cannot be shown: .*is not an array" "$T/log"
    errnos ESTALE 'open(M + "/source.b2frame.npy")' 'os.stat(M + "/source.b2frame.npy")' 'open(M + "/source.b2frame.npy")'
    ls "$M" >/dev/null || true
    echo garbage >"$T/new" && mv "$T/new" "$S"
    await eval '[ "$(grep -c "cannot be shown" "$T/log")" = 2 ]'
    errnos ESTALE 'open(M + "/source.b2frame.npy")'
    rm "$S"
    await grep -q "shows nothing until" "$T/log"
    errnos ESTALE 'open(M + "/source.b2frame.npy")'
    for cause in "cannot be shown: .*is not an array" "shows nothing until"; do equal "$(grep -c "$cause" "$T/log")" 1 "$cause"; done
    array 'blosc2.asarray(np.arange(77.), urlpath=path + ".new", mode="w"); import os; os.rename(path + ".new", path)'
    await cmp "$V" "$T/twin.npy"
    umount_it
    end_of_daemon
}

# One that only reads has nothing to lose.
test_umount_after_the_daemon_was_killed() {
    array 'blosc2.asarray(np.arange(1000.), urlpath=path, mode="w")'
    mount_front --show npy
    kill -KILL "$PID"
    wait "$PID" || true
    PID=
    umount_it 2>"$T/said"
    equal "$(cat "$T/said")" ""
    not_mounted
}

# Of more blocks than the daemon keeps the places of.
test_very_many_blocks() {
    array 'blosc2.asarray(np.arange(600_000, dtype="u2") // 7, chunks=(600_000,), blocks=(16,), urlpath=path, mode="w")'
    mount_it --show npy --cache-size 0
    V=$M/source.b2frame.npy
    cmp <(tail -c +1000001 "$V" | head -c 20000) <(tail -c +1000001 "$T/twin.npy" | head -c 20000)
    umount_it
}

# ---- Bands of chunks that are larger than the cache

band='blosc2.asarray(np.arange(512 * 4096.).reshape(512, 4096), chunks=(512, 128), blocks=(64, 32), urlpath=path, mode="w")'
# spilled: files without a name that the daemon has beneath a directory, and what they take.
spilled() { find "/proc/$PID/fd" -lname "$1/*" -printf '%l\n' | grep -c deleted || true; }
# said LEVEL: how many lines of the log are about it.
said() { grep -c -e "$1 .*--spill" "$T/log" || true; }
front() {
    mount_front --show npy --cache-size 512K "$@"
    V=$M/source.b2frame.npy
}

test_band_that_is_spilled() {
    array "$band"
    mkdir "$T/spill"
    front --spill "$T/spill"
    exec 7<"$V" 8<"$T/twin.npy"
    local step fd size most=0
    for step in $(seq 16); do
        cmp <(head -c 1000000 <&7) <(head -c 1000000 <&8)
        equal "$(ls -A "$T/spill")" "" "names, after megabyte $step"
        [ "$(spilled "$T/spill")" -le 1 ] || fail "$(spilled "$T/spill") files for one band"
        for fd in /proc/"$PID"/fd/*; do
            if [[ $(readlink "$fd") == "$T/spill/"* ]]; then
                size=$(stat -L -c %s "$fd" 2>/dev/null || echo 0)
                most=$((size > most ? size : most))
            fi
        done
    done
    exec 7<&- 8<&-
    # No more than the array, which is one band of chunks.
    [ "$most" -le $((512 * 4096 * 8)) ] || fail "$most bytes for a band of $((512 * 4096 * 8))"
    cmp "$V" "$T/twin.npy"
    equal "$(said INFO) $(said WARN)" "0 0"
    kill -USR1 "$PID"
    await grep -q 'spilled: [1-9]' "$T/log"
    umount_it
    end_of_daemon
    equal "$(ls -A "$T/spill")" ""
}

test_band_that_is_not_spilled() {
    array "$band"
    mkdir "$T/spill"
    TMPDIR=$T/spill front --spill none
    cmp "$V" "$T/twin.npy"
    equal "$(spilled "$T/spill")" 0
    cat "$V" >/dev/null
    equal "$(said INFO) $(said WARN)" "1 0"
    umount_it
    end_of_daemon
}

# Where there is no room for it, it is decoded again.
test_spill_without_room() {
    root_only
    array "$band"
    mkdir "$T/spill"
    mount -t tmpfs -o size=1M none "$T/spill"
    trap 'finish; umount -l "$T/spill" || true' EXIT
    front --spill "$T/spill"
    cmp "$V" "$T/twin.npy"
    cmp "$V" "$T/twin.npy"
    equal "$(said INFO) $(said WARN)" "1 1"
    umount_it
    end_of_daemon
}

test_spill_of_nowhere() {
    array "$band"
    one_line "$T/nowhere" "no such" "$B2FUSE" mount --show npy --spill "$T/nowhere" "$S" "$M"
    one_line "$S" "" "$B2FUSE" mount --show npy --spill "$S" "$S" "$M"
    one_line /proc "cannot take decoded blocks" "$B2FUSE" mount --show npy --spill /proc "$S" "$M"
    exits 2 "$B2FUSE" mount --show npy --spill '' "$S" "$M"
    not_mounted
    # One that nobody named is tried as well, and done without.
    TMPDIR=/proc "$B2FUSE" mount --show npy "$S" "$M" 2> "$T/said"
    grep -q '^/proc: cannot take decoded blocks' "$T/said" || fail "$(cat "$T/said")"
    "$B2FUSE" umount "$M"
}

# Two who read different arrays of a tree at once, in order.
test_spills_of_a_tree() {
    mkdir -p "$D" "$T/spill"
    py 'for n in range(4):
    array = np.arange(256 * 2048.).reshape(256, 2048) + n
    blosc2.asarray(array, chunks=(256, 64), blocks=(64, 32), urlpath=f"{sys.argv[1]}/{n}.b2nd", mode="w")
    np.save(f"{sys.argv[2]}/{n}.npy", array)' "$D" "$T"
    tree --show npy --cache-size 1M --spill "$T/spill"
    local n readers=()
    for n in 0 1 2 3 1 2; do cmp "$M/$n.b2nd.npy" "$T/$n.npy" & readers+=($!); done
    for n in "${readers[@]}"; do wait "$n"; done
    equal "$(ls -A "$T/spill")" ""
    down
}

# All that is listed can be read.
test_attributes_in_a_tree() {
    trees_of_arrays
    local show name
    for show in npy contiguous raw; do
        tree --show "$show"
        for name in a.b2nd deep/b.b2nd deep/er/c.b2frame; do
            name=$M/$name; [ -e "$name" ] || name=$name.npy; [ -e "$name" ] || name=${name%.npy}.raw
            has "$(getfattr -d "$name")" 'user.b2nd.shape="1000"'
            equal "$(getfattr -d -m - "$name" 2>&1 >/dev/null | grep -v 'Removing leading')" ""
        done
        down
    done
}

# Any size of cache will do.
test_small_caches() {
    array "$band"
    local size
    for size in 0 1 64K 1M; do
        mount_it --show npy --cache-size "$size"
        cmp "$M/source.b2frame.npy" "$T/twin.npy"
        py 'view, twin = np.load(sys.argv[1], mmap_mode="r"), np.load(sys.argv[2])
assert np.array_equal(view[:, 17], twin[:, 17]) and np.array_equal(view[300], twin[300])' "$M/source.b2frame.npy" "$T/twin.npy"
        umount_it
    done
}
