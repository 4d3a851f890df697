# SOURCE loses its name while it is mounted, by another program: unmounting says what happened, and nothing that was written is lost.

# written: changes a chunk, and waits until that is in SOURCE.
written() {
    cp "$FX/new/1" "$(chunk 3)"
    sync "$M"
}
# saved: the frame that was saved is the one that was mounted, with the change.
saved() {
    "$B2FUSE" check "$S.lost/$(basename "$S")" >"$T/.out"
    mv "$S.lost/$(basename "$S")" "$S"
    mount_it
    cmp "$(chunk 3)" "$FX/new/1"
    umount_it
}

test_a_source_that_is_renamed() {
    source_from full
    mount_it
    written
    mv "$S" "$T/other.b2frame"
    one_line "$M" "another program has renamed SOURCE: it is $T/other.b2frame now" umount_it
    mv "$T/other.b2frame" "$S"
    mount_it
    cmp "$(chunk 3)" "$FX/new/1"
    umount_it
}

test_a_directory_above_source_that_is_renamed() {
    source_from full
    mkdir "$T/above"
    mv "$S" "$T/above/source.b2frame"
    "$B2FUSE" mount "$T/above/source.b2frame" "$M"
    mv "$T/above" "$T/elsewhere"
    # The frame is found in the directory that was opened.
    written
    one_line "$M" "another program has renamed SOURCE: it is $T/elsewhere/source.b2frame now" umount_it
    "$B2FUSE" check "$T/elsewhere/source.b2frame" >"$T/.out"
}

test_a_written_source_that_is_removed_is_saved() {
    source_from full
    mount_it
    written
    rm "$S"
    one_line "$M" "another program has removed SOURCE; $(basename "$S") is saved as" umount_it
    saved
}

test_a_source_that_is_removed_and_was_not_written() {
    source_from full
    mount_it
    cat "$(chunk 3)" >"$T/.out"
    rm "$S"
    one_line "$M" "another program has removed SOURCE" umount_it
    [ ! -e "$S.lost" ]
}

# mv finds two files, because the mount is another file system. It removes the second, copies the first over it, and removes the first.
test_a_source_that_is_moved_onto_its_own_view() {
    source_from full
    mount_it --show contiguous
    mv "$S" "$M/$(basename "$S")"
    one_line "$M" "another program has removed SOURCE" umount_it
    "$B2FUSE" check "$S.lost/$(basename "$S")" >"$T/.out"
}

# removed_under LAYOUT SHOW TREE: another program removes a frame while the mount, which takes turns, holds changes of it. Without TREE the
# frame is mounted alone.
removed_under() {
    local layout=$1 show=$2 tree=$3 file
    S=$T/dir/source.b2frame
    rm -rf "$T/dir" && mkdir -p "$T/dir" "$M"
    if [ "$layout" = cframe ]; then source_from full; else sparse_from full; fi
    if [ -n "$tree" ]; then
        "$B2FUSE" mount --locking --show "$show" "$T/dir" "$M"
        file=$M/source.b2frame
    else
        "$B2FUSE" mount --locking --show "$show" "$S" "$M"
        file=$M
        if [ "$show" = contiguous ]; then file=$M/source.b2frame; fi
    fi
    if [ "$show" = sparse ]; then begin_writing "$file/00000003.chunk" "$FX/new/1"; else begin_writing "$file" "$FX/many.b2frame"; fi
    rm -r "$S"
    end_writing
    rm "$T/begun" "$T/end"
    one_line "$M" "$S.lost/" umount_it
    has "$(cat "$T/.err")" "was changed by another process under the mount"
    not_mounted
    if [ "$show" = sparse ]; then cmp "$S.lost/00000003.chunk" "$FX/new/1"; else tool same "$S.lost/source.b2frame" "$FX/many.b2frame"; fi
}

test_a_frame_that_is_removed_under_a_mount_that_takes_turns() {
    local layout show tree
    for layout in cframe sframe; do
        for show in sparse contiguous; do
            for tree in "" tree; do removed_under $layout $show "$tree"; done
        done
    done
}

test_a_mounted_directory_that_is_renamed() {
    mkdir "$T/dir" "$M"
    "$B2FUSE" mount "$T/dir" "$M"
    echo text >"$M/file"
    mv "$T/dir" "$T/elsewhere"
    one_line "$M" "another program has renamed SOURCE: it is $T/elsewhere now" umount_it
    equal "$(cat "$T/elsewhere/file")" text
}

test_a_stopped_daemon_is_not_waited_for() {
    source_from full
    mount_front
    kill -STOP "$PID"
    await grep -q "^State:.*stopped" "/proc/$PID/status"
    grep -qs fuse_connection "/proc/$PID/fdinfo/"* || { kill -CONT "$PID" && umount_it && return; }
    local began=$SECONDS
    exits 3 "$B2FUSE" umount -z "$M"
    has "$(cat "$T/.err")" "its daemon is stopped (process $PID)"
    [ $((SECONDS - began)) -lt 20 ] || fail "it took $((SECONDS - began)) s"
    not_mounted
    kill -CONT "$PID"
    exits 0 end_of_daemon
}
