# A disk under SOURCE that keeps those waiting who write.

# waiting: threads of the daemon that wait for the disk.
waiting() { grep -lE '^State:\s*D' /proc/"$PID"/task/*/status 2>/dev/null | wc -l; }
wait_for_disk() { [ "$(waiting)" -ge "$1" ]; }

test_reading_goes_on_while_closes_wait_for_the_disk() {
    root_only
    command -v fsfreeze mkfs.ext4 >/dev/null || skip "needs fsfreeze and mkfs.ext4"
    D=$T/disk
    mkdir "$D"
    truncate -s 16M "$T/image"
    mkfs.ext4 -q "$T/image"
    mount -o loop "$T/image" "$D" || skip "needs loop devices"
    # Whatever fails, a disk that is frozen would keep everybody.
    trap 'fsfreeze -u "$D" 2>/dev/null || true; finish; umount -l "$D" 2>/dev/null || true' EXIT
    S=$D/source.b2frame
    source_from full
    mount_front
    local n clients=()
    for n in 0 1 2; do cp "$(chunk $n)" "$T/chunk$n"; done
    fsfreeze -f "$D"
    for n in 0 1 2; do
        cat "$T/chunk$n" >"$(chunk $n)" &
        clients+=($!)
    done
    await wait_for_disk 2
    timeout 10 cat "$(chunk 4)" "$(chunk 5)" >"$T/read" || fail "nobody answers who reads"
    kill -0 "${clients[@]}" || fail "they did not wait"
    fsfreeze -u "$D"
    for n in "${clients[@]}"; do wait "$n"; done
    umount_it
    end_of_daemon
    umount "$D"
}
