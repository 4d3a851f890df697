# Times of chunk files, from one mount to the next: a copy gets what has changed, whatever happened, and not much more.

# aged NAME: SOURCE, which was last written a day ago, in a mount; and a copy of the mount.
aged() {
    source_from "$1"
    touch -d '1 day ago' "$S"
    mount_it
    rsync -a "$M/" "$T/copy"
}
# sends COUNT: so many files are transferred, and the copy is right afterwards. Their names go to $T/sent. Without the option, rsync
# compares whole seconds, and changes here follow each other faster.
sends() {
    rsync -a --modify-window=-1 --delete --itemize-changes "$M/" "$T/copy" | sed -n 's/^>f[^ ]* //p' | sort >"$T/sent"
    diff -r "$M" "$T/copy" || fail "the copy is not what is shown" || return
    equal "$(wc -l <"$T/sent")" "$1" "$(cat "$T/sent")"
}
remount() { umount_it && mount_it "$@"; }
# in_place SEED: another program replaces chunk 1 by one of the same length, in SOURCE. Of so few chunks that the index is stored as it is,
# header, index and trailer stay what they are.
in_place() {
    local before
    before=$(but_chunks)
    py 'blosc2.open(sys.argv[1], mode="a").update_data(1, noise(int(sys.argv[2])), True)' "$S" "$1"
    equal "$(but_chunks)" "$before" "header, index and trailer"
}
but_chunks() { (head -c 150 "$S" && tail -c 200 "$S") | sha256sum; }

test_one_changed_chunk_in_the_same_mount() {
    aged many
    sends 0
    cp "$FX/new/0" "$(chunk 3)"
    sends 1
    sync "$M"
    sends 1
    grep -qx chunks.b2frame "$T/sent"
    py 'blosc2.open(sys.argv[1], mode="a").update_data(7, noise(1), True)' "$M"
    sends 2
}

test_one_changed_chunk_in_later_mounts() {
    aged many
    cp "$FX/new/0" "$(chunk 3)"
    remount
    sends 2
    equal "$(paste -sd' ' "$T/sent")" "00000003.chunk chunks.b2frame"
    remount
    sends 0
    py 's = blosc2.open(sys.argv[1], mode="a"); s.update_data(7, noise(1), True); s.append_data(noise(2))' "$M"
    remount
    sends 3
    remount -o ro
    sends 0
    remount
    umount_it
    mount_it
    sends 0
}

# The same with the state before copied in a mount that ended long ago, as a nightly copy has it.
test_each_mount_adds_what_it_changed() {
    aged many
    local n
    for n in 3 9 20; do
        remount
        cp "$FX/new/0" "$(chunk "$n")"
    done
    remount
    sends 4
    remount
    sends 0
}

test_after_the_daemon_was_killed() {
    source_from many
    touch -d '1 day ago' "$S"
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    mount_front
    rsync -a "$M/" "$T/copy"
    crash
    # It had changed nothing.
    mount_front
    sends 0
    cp "$FX/new/1" "$(chunk 3)"
    sync "$M"
    rsync -a "$M/" "$T/copy"
    cp "$FX/new/2" "$(chunk 3)"
    sync "$M"
    crash
    # No more is known than that something was changed.
    mount_it
    sends 65
    remount
    sends 0
}

test_nothing_is_known_after_a_touch() {
    aged many
    cp "$FX/new/0" "$(chunk 3)"
    remount
    sends 2
    umount_it
    touch "$S"
    mount_it
    sends 65
    # And while it is mounted.
    touch -d '1 hour ago' "$S"
    await eval '[ "$(stat -c %Y "$(chunk 0)")" = "$(stat -c %Y "$S")" ]'
    sends 65
    # From there on they are kept again.
    cp "$FX/new/1" "$(chunk 4)"
    remount
    sends 2
}

test_a_chunk_that_another_program_replaced_in_its_place() {
    mkdir "$M"
    py 's = blosc2.SChunk(chunksize=CHUNKSIZE, urlpath=sys.argv[1], mode="w", cparams={"clevel": 0, "typesize": TYPESIZE, "nthreads": 1})
for n in range(4): s.append_data(noise(n))' "$S"
    touch -d '1 day ago' "$S"
    mount_it
    rsync -a "$M/" "$T/copy"
    cp "$FX/new/plain" "$(chunk 2)"
    remount
    sends 2
    umount_it
    local mtime
    in_place 11
    mount_it
    sends 5
    umount_it
    # Even if it gives SOURCE the time that it had.
    mtime=$(stat -c %y "$S")
    in_place 12
    touch -d "$mtime" "$S"
    mount_it
    equal "$(stat -c %y "$(chunk 1)")" "$mtime"
    cp "$FX/new/0" "$(chunk 0)"
    remount
    touch -d '1 hour ago' "$(chunk 1)"
    sends 3
    umount_it
    in_place 13
    mount_it
    sends 5
    # While it is mounted, and what it leaves.
    cat "$M"/* >/dev/null
    local times
    times=$(stat -c '%n %y' "$M"/*)
    in_place 14
    await cmp "$(chunk 1)" <("$B2FUSE" cat --raw "$S" 1)
    # The kernel may have the others' times for a moment longer.
    await eval '! stat -c "%n %y" "$M"/* | grep -qFxf <(echo "$times")'
    sends 5
    remount
    sends 0
}

test_another_program_changes_other_things() {
    aged many
    umount_it
    py 's = blosc2.open(sys.argv[1], mode="a"); s.insert_data(0, noise(7), True)' "$S"
    mount_it
    sends 66
    py 's = blosc2.open(sys.argv[1], mode="a"); s.insert_data(0, noise(8), True)' "$M"
    sends 2
    # Files are numbered anew: each name has another chunk.
    remount
    sends 67
    remount
    sends 0
    umount_it
    # As `cp -p` brings an older state back.
    cp -p "$S" "$T/saved"
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    sync "$M"
    sends 2
    umount_it
    cp -p "$T/saved" "$S"
    mount_it
    sends 67
}

test_times_that_tools_set() {
    aged many
    touch -d '2001-02-03 04:05:06.789' "$T/theirs"
    cp "$FX/new/0" "$T/theirs"
    touch -d '2001-02-03 04:05:06.789' "$T/theirs"
    cp -p "$T/theirs" "$(chunk 3)"
    mkdir "$T/in"
    cp "$FX/new/1" "$T/in/00000004.chunk"
    touch -d '2002-02-03' "$T/in/00000004.chunk"
    rsync -a "$T/in/" "$M/"
    remount
    equal "$(stat -c %y "$(chunk 3)")" "$(stat -c %y "$T/theirs")"
    equal "$(rsync -a --itemize-changes "$T/in/00000004.chunk" "$M/")" ""
    sends 3
    touch -d '2003-02-03' "$(chunk 5)"
    remount
    equal "$(stat -c %y "$(chunk 5)" | cut -c 1-10)" 2003-02-03
    sends 1
}

test_a_new_frame_keeps_the_times_of_what_is_copied_in() {
    mkdir "$M"
    cp -r "$FX/sparse/full.b2frame" "$T/in"
    touch -d '1 hour ago' "$T/in/00000002.chunk"
    mount_it --create
    rsync -a "$T/in/" "$M/"
    remount
    equal "$(rsync -a --itemize-changes "$T/in/" "$M/" | grep '\.chunk' || true)" ""
}

test_attributes_of_source_change_under_a_mount() {
    aged many
    cp "$FX/new/0" "$(chunk 3)"
    sync "$M"
    sends 2
    chmod 640 "$S"
    await eval '[ "$(stat -c %a "$(chunk 0)")" = 640 ]'
    sends 0
    remount
    # The index has the time of SOURCE from now on.
    sends 1
    equal "$(cat "$T/sent")" chunks.b2frame
}

test_compacting_changes_no_time() {
    aged many
    umount_it
    py 'blosc2.open(sys.argv[1], mode="a").reorder_offsets(list(reversed(range(64))))' "$S"
    mount_it
    sends 65
    umount_it
    # In the order of the index again, of which nothing is known, and then of which something is.
    "$B2FUSE" compact "$S"
    mount_it
    sends 1
    cp "$FX/new/0" "$(chunk 3)"
    umount_it
    local ino
    ino=$(stat -c %i "$S")
    exec 7<"$S"
    "$B2FUSE" compact "$S"
    exec 7<&-
    [ "$(stat -c %i "$S")" != "$ino" ]
    mount_it
    sends 2
    remount
    sends 0
}

# ---- Where it is kept

record() { printf '%s/%x-%x' "$1" "$(stat -c %d "$S")" "$(stat -c %i "$S")"; }

test_root_has_its_records_in_var() {
    root_only
    aged many
    cp "$FX/new/0" "$(chunk 3)"
    # That of an earlier file with the same inode.
    rm -f "$(record /var/cache/b2fuse/times)"
    umount_it
    local record
    record=$(record /var/cache/b2fuse/times)
    equal "$(stat -c '%a %u' "$record" "$(dirname "$record")" | paste -sd' ')" "600 0 700 0"
    [ "$(stat -c %s "$record")" -lt 1000 ]
    # A mount that changes nothing makes none.
    rm "$record"
    mount_it
    remount -o ro
    umount_it
    [ ! -e "$record" ]
}

test_records_of_a_user() { as_a_user records_of_a_user; }
records_of_a_user() {
    mkdir -m 777 "$T/u" "$T/u/mnt"
    S=$T/u/source.b2frame M=$T/u/mnt
    cp "$FX/many.b2frame" "$S"
    if [ "$(id -u)" = 0 ]; then chown 65534 "$S" "$M"; fi
    export XDG_CACHE_HOME=$T/u/cache
    local records=$T/u/cache/b2fuse/times record saved
    # aside NAME: a state of the frame in which chunk 0 is another one, and what of it is known.
    aside() {
        "${as[@]}" "$B2FUSE" mount --log-file "$T/u/log" --log-level debug "$S" "$M"
        "${as[@]}" cp "$FX/new/$1" "$(chunk 0)"
        "${as[@]}" "$B2FUSE" umount "$M"
    }
    # known yes|no: chunk 1 has the time that it had, or SOURCE's.
    known() {
        local got=yes
        "${as[@]}" "$B2FUSE" mount --log-file "$T/u/log" --log-level debug "$S" "$M"
        if [ "$("${as[@]}" stat -c %y "$(chunk 1)")" = "$(stat -c %y "$S")" ]; then got=no; fi
        "${as[@]}" "$B2FUSE" umount "$M"
        equal "$got" "$1" "$(cat "$T/u/log")"
    }
    aside 0
    known yes
    equal "$(stat -c '%a %u' "$records" "$(dirname "$records")" | paste -sd' ')" "700 65534 700 65534"
    record=$(record "$records")
    saved=$T/u/saved
    cp -p "$record" "$saved"

    # A record that is a link, garbage, cut off, very long, a pipe, a directory.
    "${as[@]}" ln -sf "$saved" "$record"
    known no
    rm "$record"
    "${as[@]}" bash -c 'head -c 500 /dev/urandom >"$1"' - "$record"
    known no
    "${as[@]}" truncate -s 1G "$record"
    known no
    has "$(cat "$T/u/log")" "the record has 1073741824 bytes"
    rm "$record"
    "${as[@]}" mkfifo "$record"
    known no
    rm "$record"
    "${as[@]}" mkdir "$record"
    known no
    : >"$T/u/log"
    aside 1
    has "$(cat "$T/u/log")" "are not kept"
    equal "$(find "$records" -type f | wc -l)" 0
    known no
    rmdir "$record"

    # Nothing is written through a link, and nothing into a directory that others may write.
    "${as[@]}" cp "$FX/new/2" "$T/u/victim"
    "${as[@]}" ln -s "$T/u/victim" "$record"
    aside 2
    cmp "$T/u/victim" "$FX/new/2"
    known yes
    chmod 777 "$records"
    aside 3
    known no
    chmod 700 "$records"
    mv "$records" "$T/u/elsewhere"
    "${as[@]}" ln -s "$T/u/elsewhere" "$records"
    aside 4
    known no
    rm "$records"
    # A directory that cannot be written, or is none.
    chmod 500 "$(dirname "$records")"
    aside 5
    known no
    chmod 700 "$(dirname "$records")"
    rmdir "$(dirname "$records")"
    "${as[@]}" touch "$(dirname "$records")"
    aside 6
    known no
    rm "$(dirname "$records")"
    aside 7
    known yes
    # Somebody else's.
    if [ "$(id -u)" = 0 ]; then
        chown 65533 "$records"
        known no
        chown 65534 "$records"
        known yes
        chown 65533 "$(record "$records")"
        chmod 644 "$(record "$records")"
        known no
    fi
    # Without HOME and all that.
    unset XDG_CACHE_HOME HOME
    aside 0
    known no
}

# ---- Whatever happens

# change PATH SEED: the library changes something at random. All chunks have one length, so that only their times tell.
change() {
    py 'import random
chance = random.Random(int(sys.argv[2]))
s = blosc2.open(sys.argv[1], mode="a", cparams={"clevel": 0, "typesize": TYPESIZE, "nthreads": 1})
n, data = chance.randrange(s.nchunks), noise(int(sys.argv[2]))
what = chance.choice(["update"] * 6 + ["insert", "delete", "append", "reorder"])
if what == "insert":
    s.insert_data(n, data, True)
elif what == "append":
    s.append_data(data)
elif what == "delete" and s.nchunks > 4:
    s.delete_chunk(n)
elif what == "reorder":
    order = list(range(s.nchunks))
    chance.shuffle(order)
    s.reorder_offsets(order)
else:
    s.update_data(n, data, True)' "$1" "$2"
}

# histories SEED STEPS: one of two copies is made now and then, and must be right; how many files that took, beside how many there were.
histories() {
    local step mtime sent=0 shown=0 copy
    RANDOM=$1
    rm -rf "$S" "$T"/copies
    mkdir -p "$T/copies" "$M"
    py 's = blosc2.SChunk(chunksize=CHUNKSIZE, urlpath=sys.argv[1], mode="w", cparams={"clevel": 0, "typesize": TYPESIZE, "nthreads": 1})
for n in range(12): s.append_data(noise(n))' "$S"
    mount_front
    for ((step = 0; step < $2; step++)); do
        case $((RANDOM % 20)) in
            [0-3]) change "$M" "$1$step" ;;
            [45]) cp "$FX/new/plain" "$(chunk $((RANDOM % 4)))" ;;
            6) touch -d @$((1000000000 + RANDOM)) "$(chunk $((RANDOM % 4)))" ;;
            # With nothing uncommitted: the mount follows.
            7) sync "$M" && change "$S" "$1$step" && await cmp "$(chunk 0)" <("$B2FUSE" cat --raw "$S" 0) ;;
            8) sync "$M" && touch "$S" ;;
            9) sync "$M" && chmod 6$((RANDOM % 2 * 4))4 "$S" ;;
            10) sync "$M" && crash && mount_front ;;
            11 | 12)
                umount_it && end_of_daemon
                mtime=$(stat -c %y "$S")
                case $((RANDOM % 4)) in
                    0) change "$S" "$1$step" ;;
                    1) change "$S" "$1$step" && touch -d "$mtime" "$S" ;;
                    2) "$B2FUSE" compact "$S" ;;
                esac
                mount_front
                ;;
            1[34])
                umount_it && end_of_daemon
                mount_front
                ;;
            *)
                sync "$M"
                copy=$T/copies/$((RANDOM % 2))
                sent=$((sent + $(rsync -a --modify-window=-1 --delete --itemize-changes "$M/" "$copy" | grep -c '^>f' || true)))
                shown=$((shown + $(find "$M" -type f | wc -l)))
                diff -r "$M" "$copy" || fail "seed $1, step $step" || return
                ;;
        esac
    done
    umount_it && end_of_daemon
    echo "note: seed $1: $sent of $shown files sent"
}

test_a_copy_is_right_whatever_happens() {
    local seed
    for seed in 1 2 3; do histories "$seed" 60; done
}

test_a_commit_gives_source_the_time_that_is_shown() {
    source_from many
    touch -d '1 day ago' "$S"
    mount_it
    cp "$FX/new/0" "$(chunk 3)"
    local shown
    shown=$(stat -c %y "$(chunk 3)")
    sync "$M"
    equal "$(stat -c %y "$(chunk 3)")" "$shown" "after the commit" || return
    umount_it
    equal "$(stat -c %y "$S")" "$shown" "of SOURCE"
}
