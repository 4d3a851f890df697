# What tests of locks have in common; sourced by them.

# excluded PATH: nobody gets a lock on it now, not even by waiting a little.
excluded() {
    exits 1 flock -n "$1" true
    exits 1 flock -sn "$1" true
    exits 1 flock -w 0.3 "$1" true
}
# excludes ONE OTHER: an exclusive lock on one of two paths keeps everybody from the other; a shared one does not keep readers.
excludes() {
    exec 8<>"$1"
    flock -x 8
    excluded "$2"
    exits 1 flock -n "$1" true
    flock -s 8
    exits 0 flock -sn "$2" true
    exits 1 flock -n "$2" true
    flock -x 8
    flock "$2" touch "$T/got" &
    flock -u 8
    wait $!
    [ -e "$T/got" ] && rm "$T/got"
    # A close gives it back as well.
    flock -x 8
    exec 8<&-
    exits 0 flock -w 10 "$2" true
}
