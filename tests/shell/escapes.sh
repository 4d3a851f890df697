# Names that others have made: nothing that is printed or logged does something to a terminal, or forges a line.

# A colour, a window's title, a return, an end of a line, one-byte controls as UTF-8 and as they are, a turned direction.
EVIL=$'\033[31mred\033]0;title\a\rback\nforged: sound\xc2\x9b31m\x9bno utf-8\xe2\x80\xaeturned'

# acts FILE: the lines that do something.
acts() { LC_ALL=C grep -anP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]' "$1" | cat -v; }
# plain FILE...: there is something in each, and nothing that does something.
plain() {
    local file
    for file; do
        [ -s "$file" ] || fail "$file is empty"
        equal "$(acts "$file")" "" "$file"
        iconv -f UTF-8 -t UTF-8 "$file" >/dev/null || fail "$file is no UTF-8"
        if grep -a '^forged' "$file"; then fail "a forged line: $file"; fi
    done
}

test_of_files_that_belong_to_no_frame() {
    cp -r "$FX/sparse/full.b2frame" "$S"
    : >"$S/$EVIL"
    "$B2FUSE" check "$S" >"$T/out"
    plain "$T/out"
    equal "$(wc -l <"$T/out")" 2
    has "$(cat "$T/out")" '\u{1b}[31mred\u{1b}]0;title\u{7}\rback\nforged: sound\u{9b}31m\x9bno utf-8\u{202e}turned: is no part'
    "$B2FUSE" check --json "$S" >"$T/out"
    plain "$T/out"
    py 'import json
(finding,) = json.load(open(sys.argv[1]))["findings"]
assert finding["kind"] == "surplus" and "forged" in finding["what"], finding' "$T/out"
}

# Of each command: what it prints when all is well, and when it is not.
test_of_frames() {
    local whole=$T/whole$EVIL broken=$T/broken$EVIL none=$T/none$EVIL command
    cp "$FX/full.b2frame" "$whole"
    head -c 100000 "$whole" >"$broken"
    for command in check info ls repair "cat -f" "check --json" "info --json" "ls --json"; do
        for frame in "$whole" "$broken" "$none"; do
            # shellcheck disable=SC2086,SC2046 # words, and a position for cat
            "$B2FUSE" $command "$frame" $([[ $command == cat* ]] && echo 99) >"$T/out" 2>"$T/err" </dev/null || true
            if [ -s "$T/out" ]; then plain "$T/out"; fi
            if [ -s "$T/err" ]; then plain "$T/err"; equal "$(wc -l <"$T/err")" 1 "$command"; fi
            [ -s "$T/out" ] || [ -s "$T/err" ] || fail "$command said nothing"
        done
    done
    "$B2FUSE" repair --yes "$broken" >"$T/out" 2>"$T/err" || true
    plain "$T/out"
    mkdir "$M"
    exits 1 "$B2FUSE" mount "$none" "$M"
    plain "$T/.err"
    exits 1 "$B2FUSE" mount "$whole" "$M$EVIL"
    plain "$T/.err"
    exits 1 "$B2FUSE" umount "$M$EVIL"
    plain "$T/.err"
    exits 1 "$B2FUSE" convert "$none" "$T/copy"
    plain "$T/.err"
    exits 1 "$B2FUSE" compact "$none"
    plain "$T/.err"
    # Wrong usage says its words, which may be a name as well.
    exits 2 "$B2FUSE" info "-$EVIL"
    equal "$(acts "$T/.err")" ""
}

# names_in_the_log MOUNT ARGUMENTS: clients' names, and SOURCE's own, go to the log.
names_in_the_log() {
    source_from full
    mv "$S" "$S$EVIL"
    S=$S$EVIL
    mount_front --log-level debug "$@"
    mv "$(chunk 1)" "$M/.x$EVIL"
    cp "$FX/new/0" "$(chunk 77)"
    echo "no chunk" >"$(chunk 3)" || true
    # What has no place is named.
    exits 1 "$B2FUSE" umount "$M"
    plain "$T/.err"
    end_of_daemon || true
}

test_of_clients_in_a_log_file() {
    names_in_the_log
    has "$(cat "$T/log")" 'x\u{1b}[31mred'
    plain "$T/log"
}

test_of_clients_in_the_log_on_stderr() {
    source_from full
    mv "$S" "$S$EVIL"
    "$B2FUSE" mount -f "$S$EVIL" "$M" 2>"$T/err" </dev/null &
    PID=$!
    await mountpoint -q "$M"
    mv "$(chunk 1)" "$M/.x$EVIL"
    # What has no place is named.
    exits 1 "$B2FUSE" umount "$M"
    plain "$T/.err"
    end_of_daemon || true
    has "$(cat "$T/err")" 'x\u{1b}[31mred'
    plain "$T/err"
}
