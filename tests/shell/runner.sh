# What the runners of shell tests share, each of which has a directory of *.sh files; sourced after scripts/lib.sh, never run.
# Every function test_* of these files is a test, and runs in a process and a directory of its own: see harness.sh.
#
#     collect DIR [PATTERN ...]; needs_fuse; prepare; run_tests; report
#
# Environment: B2FUSE (the daemon), B2FUSE_PYTHON (a Python with blosc2), B2FUSE_JOBS (tests at once, 2), B2FUSE_TEST_SECONDS (for
# one test, 120), B2FUSE_REQUIRE_FUSE=1 (no FUSE is a failure). The last line is the count.

export B2FUSE=${B2FUSE:-$b2fuse} PY=${B2FUSE_PYTHON:-$python} ROOT=$root
limit=${B2FUSE_TEST_SECONDS:-120}

# collect DIR [PATTERN ...]: those tests whose FILE/NAME matches one of the patterns (extended regular expressions).
collect() {
    suite=$1
    shift
    local pattern file name function full
    pattern=$(IFS='|' && echo "$*")
    tests=()
    for file in "$suite"/*.sh; do
        name=$(basename "$file" .sh)
        if [ "$name" = harness ] || [ "$name" = runner ]; then continue; fi
        while read -r function; do
            full=$name/${function#test_}
            if [[ $full =~ $pattern ]]; then tests+=("$full"); fi
        done < <(sed -n 's/^\(test_[a-z0-9_]*\)() {.*/\1/p' "$file")
    done
    if [ ${#tests[@]} = 0 ]; then
        echo "no test is called $pattern (FILE/NAME, without test_)"
        exit 1
    fi
}

# skip_all WHY: none of them can run here.
skip_all() {
    echo "$*"
    if [ "${B2FUSE_REQUIRE_FUSE:-}" = 1 ]; then echo "0 passed, ${#tests[@]} failed"; exit 1; fi
    echo "0 passed, 0 failed, ${#tests[@]} skipped"
    exit 0
}

needs_fuse() {
    have_fuse || skip_all "no FUSE on this machine: it needs /dev/fuse, the right to mount (or fusermount3), and a kernel that knows it"
}

# prepare: a directory for all of it, the frames that tests copy from, and a frametool.py that waits for requests.
prepare() {
    work=$(mktemp -d)
    chmod 755 "$work" # for the tests as an ordinary user
    export FX=$work/fixtures
    # Where an ordinary user can run it, wherever the checkout is.
    cp "$B2FUSE" "$work/b2fuse" && chmod 755 "$work/b2fuse" && export B2FUSE=$work/b2fuse || exit 1
    mkdir "$FX" && "$PY" "$ROOT/tests/python/frametool.py" fixtures "$FX" || exit 1

    export TOOLS=$work/tools
    mkfifo "$TOOLS"
    setsid env OPENBLAS_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 "$PY" "$ROOT/tests/python/frametool.py" serve "$TOOLS" &
    export TOOLS_PID=$!
    trap 'kill -KILL -- -$TOOLS_PID' EXIT
}

# Takes away what is still mounted under a directory; aborting the connection first frees whoever hangs in it.
clear_mounts() {
    local point device
    while read -r _ _ device _ point _; do
        if [[ $point != "$1"/* ]]; then continue; fi
        echo "left mounted: $point"
        { echo 1 >"/sys/fs/fuse/connections/${device#*:}/abort"; } 2>/dev/null
        umount -l "$point" 2>/dev/null || fusermount3 -uz "$point"
    done </proc/self/mountinfo
}

run_one() {
    local test=$1 dir=$work/${1//\//.} log=$work/${1//\//.}.log pid status took note began=$EPOCHREALTIME
    mkdir -m 755 "$dir"
    T=$dir setsid bash "$ROOT/tests/shell/harness.sh" "$suite/${test%%/*}.sh" "test_${test#*/}" >"$log" 2>&1 </dev/null &
    pid=$!
    if ! timeout "$limit" tail -s 0.05 --pid=$pid -f /dev/null; then
        echo "still running after $limit seconds" >>"$log"
        clear_mounts "$dir" >>"$log"
        kill -KILL -- -$pid
    fi
    wait $pid
    status=$?
    kill -KILL -- -$pid 2>/dev/null
    clear_mounts "$dir" >>"$log"
    took=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')
    # What a test that passes has to say.
    note=$(sed -n 's/^note: //p' "$log" | paste -sd ';')
    case $status in
        0) echo "ok $test ($took)${note:+: $note}" ;;
        77) echo "skipped $test: $(tail -n 1 "$log")" ;;
        *) printf 'FAILED %s (%s)\n%s\n' "$test" "$took" "$(sed 's/^/    /' "$log")" ;;
    esac | tee "$work/${test//\//.}.result"
    rm -rf --one-file-system "$dir"
}

run_tests() {
    local running=() test
    for test in "${tests[@]}"; do
        while [ "$(jobs -pr | wc -l)" -gt "${B2FUSE_JOBS:-2}" ]; do wait -n; done
        run_one "$test" &
        running+=($!)
    done
    # Some have been waited for.
    wait "${running[@]}" 2>/dev/null
}

# report: removes everything, and prints what failed and the count; a failure is a failure.
report() {
    local passed skipped failed
    passed=$(cat "$work"/*.result | grep -c '^ok ')
    skipped=$(cat "$work"/*.result | grep -c '^skipped ')
    failed=$((${#tests[@]} - passed - skipped))
    cat "$work"/*.result | sed -n 's/^FAILED \([^ ]*\).*/failed: \1/p'
    rm -rf --one-file-system "$work"
    echo "$passed passed, $failed failed$(if [ "$skipped" -gt 0 ]; then echo ", $skipped skipped"; fi)"
    [ "$failed" = 0 ]
}
