# URLs of frames, as far as no server is needed: what is refused, and that nothing shows their secrets.

# censored CODE WORDS COMMAND...: it ends with this code and says these words, and nothing secret.
censored() {
    local code=$1 words=$2
    shift 2
    exits "$code" "$B2FUSE" "$@"
    has "$(cat "$T/.err")" "$words"
    if grep -q SECRET "$T/.err" "$T/.out"; then fail "a secret is shown: $(cat "$T/.err")"; fi
}
# Nobody listens there.
nowhere() { echo "http://me:SECRET@127.0.0.1:1/path/a.b2nd?X-Amz-Signature=SECRET"; }

test_urls_that_are_wrong() {
    mkdir "$M"
    censored 1 "s3://...: there is user info" mount s3://KEY:SECRET@bucket/key "$M"
    censored 1 "az://...: there is a '?'" mount 'az://container/key?sig=SECRET' "$M"
    censored 1 "s3://...: the key has a part '..'" mount s3://bucket/../key "$M"
    censored 1 "https://...: the URL cannot be read" mount https://me:SECRET@host:port/x "$M"
    censored 1 "az://container/key: no storage account is named" mount az://container/key "$M"
    censored 1 "s3://bucket/key: headers= is for" mount -o "headers=$T/none" s3://bucket/key "$M"
    censored 2 "'endpoint': the endpoint has user info" mount -o endpoint=https://me:SECRET@host s3://bucket/key "$M"
    censored 2 "unknown option 'anonimous'" info -o anonimous=SECRET s3://bucket/key
    censored 2 "unexpected argument" mount "$M" more "$(nowhere)"
    # These are paths.
    one_line s3:/bucket "is a URL that b2fuse does not read; expected a path" "$B2FUSE" info s3:/bucket
    one_line ./s3: "o such file" "$B2FUSE" info ./s3://bucket
    not_mounted
}

test_a_server_that_is_not_there() {
    local command
    mkdir "$M"
    one_line "http://127.0.0.1:1/path/a.b2nd?..." "Connection refused" "$B2FUSE" mount -o timeout=1 "$(nowhere)" "$M"
    censored 1 "Connection refused" mount -f -v -v -o timeout=1 "$(nowhere)" "$M"
    for command in info ls check "cat --npy"; do
        # shellcheck disable=SC2086 # one word, or two
        censored 1 "http://127.0.0.1:1/path/a.b2nd?...: " $command -o timeout=1 "$(nowhere)"
    done
    not_mounted
}

test_headers_of_a_file() {
    mkdir "$M"
    echo "X-Key: SECRET" >"$T/headers"
    chmod 640 "$T/headers"
    censored 1 "has mode 640; expected one that is hidden from others" mount -o "headers=$T/headers" "$(nowhere)" "$M"
    chmod 600 "$T/headers"
    censored 1 "Connection refused" mount -o "timeout=1,headers=$T/headers" "$(nowhere)" "$M"
    echo "SECRET" >>"$T/headers"
    censored 1 "line 2: expected Name: value" mount -o "headers=$T/headers" "$(nowhere)" "$M"
    not_mounted
}

# A server that takes a connection and never answers: while it is waited for, everybody can look at the processes.
test_lists_of_processes_show_no_secret() {
    local port all
    mkdir "$M"
    mkfifo "$T/hold"
    "$PY" -c 'import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
client = server.accept()[0]
print(client.recv(4096).decode(), flush=True)
sys.stdin.read()' <"$T/hold" >"$T/heard" &
    local server=$!
    exec 9>"$T/hold"
    await test -s "$T/heard"
    port=$(head -n 1 "$T/heard")
    "$B2FUSE" mount -f -o timeout=60 "http://me:SECRET@127.0.0.1:$port/a.b2nd?sign=SECRET" "$M" >"$T/log" 2>&1 &
    local mount=$!
    # It has read its arguments, all of them.
    await grep -q "sign=SECRET" "$T/heard"
    all=$(tr '\0' ' ' <"/proc/$mount/cmdline")
    has "$all" "http://*********@127.0.0.1:$port/a.b2nd?***********"
    if [[ $all == *SECRET* ]]; then fail "shown: $all"; fi
    kill -9 "$mount"
    exec 9>&-
    wait "$server" "$mount" || true
    if grep SECRET "$T/log"; then return 1; fi
}
