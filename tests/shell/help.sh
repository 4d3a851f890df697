# Help: examples that run, completions, manual pages.

# examples HELP: the commands in what --help ends with. What needs another user is left out.
# Mounts of URLs are only looked at, and other commands on them fail at once: no server is there.
examples() { sed -n '/^Examples:$/,$p' <<<"$1" | sed -n 's/^  \(b2fuse .*\)/\1/p'; }
# commands: those that there are, by their manual pages.
commands() { "$B2FUSE" man "$T/man" && (cd "$T/man" && printf '%s\n' b2fuse-*.1) | sed 's/b2fuse-\(.*\)\.1/\1/'; }

test_every_example_runs() {
    local command line at
    export HOME=$T PATH=${B2FUSE%/*}:$PATH
    mkdir -p "$T/.local/share/bash-completion/completions" "$T/.config/fish/completions" "$T/.zfunc"
    for command in "" $(commands); do
        at=$T/in/$command
        mkdir -p "$at/view" "$at/frames/more"
        cp "$FX/array.b2nd" "$at/frames/more"
        cp "$FX/array.b2nd" "$at/pressure.b2frame"
        cp -r "$FX/sparse/base.b2frame" "$at/many.b2frame"
        cd "$at"
        # shellcheck disable=SC2086 # none, or one word
        while read -r line; do
            echo "$line"
            case $line in
                *umount*) mountpoint -q view || b2fuse mount pressure.b2frame view ;;
                *) ! mountpoint -q view || b2fuse umount view ;;
            esac
            case $line in
                "b2fuse mount "*://*) line="b2fuse mount --fake${line#b2fuse mount}" ;;
                *://*)
                    # shellcheck disable=SC2086 # words
                    set -- $line
                    exits 1 env AWS_ENDPOINT_URL=http://127.0.0.1:1 "$1" "$2" -o timeout=1 "${@:3}"
                    continue
                    ;;
            esac
            bash -e -o pipefail -c "$line" >"$T/.out"
        done < <(examples "$(b2fuse $command --help)")
        ! mountpoint -q view || b2fuse umount view
    done
    [ -s "$T/.zfunc/_b2fuse" ]
}

test_completions() {
    local shell
    for shell in bash zsh fish elvish powershell; do
        "$B2FUSE" completions "$shell" >"$T/$shell"
        has "$(cat "$T/$shell")" read-only
    done
    bash -n "$T/bash"
    # What bash makes of it.
    # shellcheck disable=SC2016 # for the inner shell
    equal "$(bash -c '. "$1"; COMP_WORDS=(b2fuse mo) COMP_CWORD=1; _b2fuse b2fuse mo b2fuse; echo "${COMPREPLY[@]}"' - "$T/bash")" mount
    # shellcheck disable=SC2016
    has "$(bash -c '. "$1"; COMP_WORDS=(b2fuse check --) COMP_CWORD=2; _b2fuse b2fuse -- check; echo "${COMPREPLY[@]}"' - "$T/bash")" --deep
    if command -v zsh >/dev/null; then zsh -n "$T/zsh"; fi
    exits 2 "$B2FUSE" completions tcsh
    exits 1 bash -c '"$0" completions bash >/dev/full' "$B2FUSE"
    exits 0 bash -o pipefail -c '"$0" completions bash | true' "$B2FUSE"
}

test_manual_pages() {
    local page line command
    "$B2FUSE" man "$T/man/man1"
    "$B2FUSE" man "$T/man/man1"
    for page in "$T"/man/man*/*; do
        grep -q '^\.TH b2fuse' "$page"
        case $page in
        *.1) grep -q '^\.SH EXAMPLES' "$page" ;;
        *)
            grep -q '^\.SH ERRORS' "$page"
            # Nothing of Markdown is left.
            if grep -E '[`|#]|\*\*' "$page"; then return 1; fi
            ;;
        esac
        # No warning, and the examples to the letter.
        if command -v groff >/dev/null; then
            # What stands as it is written fits a terminal.
            groff -man -rLL=78n -Tascii "$page" | col -bx | awk -v page="$page" 'length > 80 { print page ": " $0; bad = 1 } END { exit bad }'
            groff -ww -man -rLL=200n -Tascii "$page" >"$T/.out" 2>"$T/.err"
            equal "$(cat "$T/.err")" ""
            command=${page##*/}
            command=${command#b2fuse} command=${command%.1}
            case $page in *.7) continue ;; esac
            # shellcheck disable=SC2086 # none, or one word
            while read -r line; do grep -qF -e "$line" "$T/.out"; done < <(examples "$("$B2FUSE" ${command#-} --help)")
        fi
    done
    [ "$(find "$T/man" -type f | wc -l)" -gt 8 ]
    # In directories that man(1) looks in, or all in one.
    "$B2FUSE" man "$T/all"
    cmp "$T/man/man7/b2fuse-views.7" "$T/all/b2fuse-views.7"
    "$B2FUSE" man --page views | cmp - "$T/all/b2fuse-views.7"
    "$B2FUSE" man --page b2fuse-mount | cmp - "$T/all/b2fuse-mount.1"
    exits 2 "$B2FUSE" man --page nonsense
    exits 2 "$B2FUSE" man
    one_line /dev/null/x "not a directory" "$B2FUSE" man /dev/null/x
    : >"$T/file"
    one_line "$T/file: " "is not a directory" "$B2FUSE" man "$T/file"
    # As other programs have it.
    "$B2FUSE" help mount | cmp - <("$B2FUSE" mount --help)
    "$B2FUSE" help | cmp - <("$B2FUSE" --help)
    exits 2 "$B2FUSE" help mout
}
