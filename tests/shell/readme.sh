# README's commands work as they are written, in their order, in an empty directory.

# The indented blocks of README, each behind a line that says where it is. A block behind "<!-- tests do not run this: REASON -->" only says so.
blocks() {
    awk '
        /^<!-- tests do not run this: / { reason = $0; gsub(/^<!-- tests do not run this: | -->$/, "", reason) }
        /^    / {
            if (!inside) { inside = 1; printf "echo \"README, line %d%s\"\n", NR, reason ? ": skipped, as " reason : "" }
            if (!reason) print substr($0, 5)
            next
        }
        /./ && inside { inside = 0; reason = "" }
    ' "$ROOT/README.md"
}

test_readme_runs_as_it_is_written() {
    blocks >"$T/blocks"
    # Of the five that run, and the two that do not.
    equal "$(grep -c '^echo "README' "$T/blocks")" 6
    equal "$(grep -c 'skipped, as' "$T/blocks")" 2
    # For copying: nothing but commands.
    if grep -qE '^ *[$%] ' "$T/blocks"; then fail "a prompt in README"; fi
    mkdir "$T/bin" "$T/empty"
    ln -s "$B2FUSE" "$T/bin/b2fuse"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$PY" >"$T/bin/python"
    chmod +x "$T/bin/python"
    M=$T/empty/view # to be unmounted, whatever happens
    (cd "$T/empty" && PATH=$T/bin:$PATH bash -euo pipefail "$T/blocks") >"$T/said" 2>&1 || fail "$(cat "$T/said")"
    cat "$T/said"
    # What its comments say.
    grep -qxF 00000003.chunk "$T/said"
    if grep -qxF 00000002.chunk "$T/said"; then fail "a file of a special chunk"; fi
    grep -qxF 4 "$T/said"
    grep -qxF temperature.b2nd/ "$T/said"
    [ -f "$T/empty/arrays/b.b2nd" ]
    not_mounted
}
