# What tests of attacks have at hand besides tests/shell/harness.sh. $ATTACK is attack.c, $ATTACKER and $OTHER are users, as UID:GID.

U=$T/u # the attacker's own directory, where SOURCE is
V=$T/victims
LOST=/var/lib/b2fuse/lost # empty when the tests begin
attacker=(setpriv --reuid="${ATTACKER%:*}" --regid="${ATTACKER#*:}" --clear-groups)
other=(setpriv --reuid="${OTHER%:*}" --regid="${OTHER#*:}" --clear-groups)

# What is not the attacker's, and what is. The mount point is root's.
scene() {
    mkdir -p "$U" "$M"
    py_alone make "$V"
    theirs "$U"
    before=$(py_alone manifest "$V")
}
py_alone() { "$PY" "$SECURITY/victims.py" "$@"; }
theirs() { chown -hR "$ATTACKER" "$@"; }

# cframe NAME [AS], sframe NAME [AS]: a fixture as SOURCE in the attacker's directory.
cframe() { S=$U/${2:-c.b2frame} && cp "$FX/$1.b2frame" "$S" && theirs "$S"; }
sframe() { S=$U/${2:-s.b2frame} && cp -r "$FX/sparse/$1.b2frame" "$S" && theirs "$S"; }

# unharmed [WORDS]: every victim is as it was.
unharmed() {
    local now
    now=$(py_alone manifest "$V")
    if [ "$now" != "$before" ]; then
        fail "the victims have changed${1:+: $1}: $(diff <(echo "$before") <(echo "$now") || true)"
    fi
}
changed() { [ "$(py_alone manifest "$V")" != "$before" ]; }
# no_secret FILE...: nothing that only root may read.
no_secret() { if grep -qsra for-the-eyes "$@"; then fail "a secret is in: $(grep -lra for-the-eyes "$@")"; fi; }

# within SECONDS COMMAND...: it ends, with whatever exit code, which is in $code; what it says is in $T/.said.
within() {
    local limit=$1 pid end
    shift
    "$@" >"$T/.said" 2>&1 </dev/null &
    pid=$!
    if ! timeout "$limit" tail -s 0.02 --pid=$pid -f /dev/null; then
        fail "not ended after $limit s: $* ($(sed -n 's/^State:\t//p' /proc/$pid/status))" || return
    fi
    code=0
    wait $pid || code=$?
    # 101 and more is no answer, but a panic or a signal.
    [ "$code" -lt 100 ] || fail "exit code $code: $*: $(cat "$T/.said")"
}

# try_mount OPTION...: in front, with its id in $PID, which is empty if the mount was refused.
try_mount() {
    local end=$((SECONDS + 20))
    "$B2FUSE" mount -f --log-file "$T/log" "$@" "$S" "$M" </dev/null >"$T/.said" 2>&1 &
    PID=$!
    until mounted; do
        if ! kill -0 $PID 2>/dev/null; then
            code=0
            wait "$PID" || code=$?
            PID=
            equal "$code" 1 "exit code of a mount that was refused: $(cat "$T/.said")"
            return
        fi
        [ $SECONDS -lt $end ] || fail "neither mounted nor ended"
        sleep 0.02
    done
}
# Without looking at the mount itself, which may hang.
mounted() { grep -q " $M .* fuse.b2fuse " /proc/self/mountinfo; }
# end_mount: the daemon, if there is one, ends when it is asked to.
end_mount() {
    if [ -z "$PID" ]; then return; fi
    within 20 "$B2FUSE" umount "$M"
    if mounted; then within 20 umount -l "$M"; fi
    daemon_ends
}
daemon_ends() {
    local pid=$PID
    timeout 20 tail -s 0.02 --pid="$pid" -f /dev/null || fail "the daemon does not end"
    PID=
    code=0
    wait "$pid" || code=$?
    [ "$code" -lt 100 ] || fail "exit code $code of the daemon"
}

# attack ARGUMENTS...: the attacker begins, and is at work when this returns.
attack() {
    local line
    exec {news}< <(exec "${attacker[@]}" "$ATTACK" "$@" 2>&1)
    attack_pid=$!
    read -r -u "$news" line
    equal "$line" "at work"
}
attack_ends() {
    kill -KILL "$attack_pid" 2>/dev/null || true
    exec {news}<&-
    wait "$attack_pid" 2>/dev/null || true
}

# rounds FUNCTION: again and again, until something happens to a victim.
rounds() {
    local round quick end=$((SECONDS + 20)) count=${B2FUSE_ROUNDS:-60}
    if [ -n "$FULL" ]; then end=$((SECONDS + 120)) count=2000; fi
    quick=$(at_a_glance)
    for ((round = 1; SECONDS < end && round <= count; round++)); do
        "$1"
        if [ "$(at_a_glance)" != "$quick" ]; then unharmed "in round $round"; fi
    done
    unharmed
    echo "note: $((round - 1)) rounds"
}
at_a_glance() { find "$V" -printf '%P %i %m %U %G %s %T@\n'; }
