# What the scripts beside this one share; sourced, never run. Finds what a fresh machine lacks, and installs it where it may.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
blosc2_version=4.14.1 # the reference implementation: python-blosc2, with C-Blosc2 3.3.5 inside
venv=$root/.venv
python=$venv/bin/python
b2fuse=${CARGO_TARGET_DIR:-$root/target}/release/b2fuse

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# need_packages COMMAND:PACKAGE ...   Debian packages for the commands that are missing.
need_packages() {
    local pair missing=()
    for pair in "$@"; do
        # The sbin directories, where an ordinary user's PATH may not lead.
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
    done
    if [ ${#missing[@]} -gt 0 ]; then install_packages "${missing[@]}"; fi
}

install_packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then die "please install: $*"; fi
    say "installing $*"
    # One at a time: rows of tests run beside each other.
    (
        flock 9
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -qq -y --no-install-recommends "$@" >/dev/null; }
    ) 9>/run/lock/b2fuse-packages || die "cannot install: $*"
}

need_rust() {
    command -v cargo >/dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    command -v cargo >/dev/null || die "cargo: not found; a Rust toolchain is needed, see https://rustup.rs"
    need_packages cc:gcc
}

# A virtual environment with the Blosc2 library at the version the tests are written against.
need_python() {
    if "$python" -c "import blosc2; assert blosc2.__version__ == '$blosc2_version'" 2>/dev/null; then return; fi
    need_packages python3:python3
    say "making .venv with blosc2 $blosc2_version"
    python3 -m venv --clear "$venv" >/dev/null 2>&1 || {
        install_packages python3-venv
        python3 -m venv --clear "$venv" || die ".venv: cannot be made"
    }
    "$venv/bin/pip" install --quiet --disable-pip-version-check "blosc2==$blosc2_version" ||
        die ".venv: cannot install blosc2 $blosc2_version (it needs Python 3.11 or later)"
}

# What tests of remote frames talk to: servers and clients that others wrote. What is not to be had is said; the tests skip what needs it.
# The version of boto3 is one that s3fs takes: pip would try dozens for minutes.
moto_version=5.2.5 boto3_version=1.43.117 s3fs_version=2026.9.0 azure_blob_version=12.31.1 range_http_version=1.4.0 # of PyPI
s3s_fs_version=0.14.0 # of crates.io: the newest that Rust 1.92 builds
azurite_version=3.37.0 # of npm
servers_venv=$root/.venv-servers
servers_python=$servers_venv/bin/python
tools=$root/target/tools

# need_servers   All that need no compiler, in a minute. Without packages of Python $servers_python is what need_python has made.
need_servers() {
    need_python
    (need_packages npm:npm) || say "npm cannot be installed"
    (need_packages nginx:nginx-light) || say "nginx cannot be installed"
    need_azurite &
    local azurite=$!
    need_servers_python || {
        say "moto and others cannot be installed"
        servers_python=$python
    }
    wait $azurite
}

need_servers_python() {
    local wanted="$blosc2_version $moto_version $boto3_version $s3fs_version $azure_blob_version $range_http_version"
    if [ "$(cat "$servers_venv/versions" 2>/dev/null)" = "$wanted" ]; then return; fi
    say "making .venv-servers with moto $moto_version and others"
    # Of moto's server only what S3 takes.
    python3 -m venv --clear "$servers_venv" >/dev/null &&
        "$servers_venv/bin/pip" install --quiet --disable-pip-version-check "blosc2==$blosc2_version" "moto[s3]==$moto_version" flask flask-cors \
            "boto3==$boto3_version" "s3fs==$s3fs_version" "azure-storage-blob==$azure_blob_version" "rangehttpserver==$range_http_version" &&
        echo "$wanted" >"$servers_venv/versions"
}

need_azurite() {
    local manifest=$tools/npm/node_modules/azurite/package.json
    if [ "$(sed -n 's/^  "version": "\(.*\)",$/\1/p' "$manifest" 2>/dev/null)" = "$azurite_version" ]; then return; fi
    say "installing azurite $azurite_version"
    # Half of it is none.
    rm -rf "$tools/npm" "$tools/npm.new"
    mkdir -p "$tools/npm.new"
    if npm install --silent --no-audit --no-fund --prefix "$tools/npm.new" "azurite@$azurite_version" >/dev/null 2>&1; then
        mv "$tools/npm.new" "$tools/npm"
    else
        say "azurite cannot be installed"
    fi
}

# need_package_of_python NAME VERSION   A virtual environment with this version of a package, $tools/NAME-VERSION. Fails, and says so, where it
# cannot be had.
need_package_of_python() {
    local where=$tools/$1-$2
    if "$where/bin/python" -c "import $1" 2>/dev/null; then return; fi
    say "making $where"
    mkdir -p "$tools"
    if ! { python3 -m venv --clear "$where" && "$where/bin/pip" install --quiet --disable-pip-version-check "$1==$2" numpy; } >/dev/null 2>&1; then
        rm -rf "$where"
        say "$1 $2 cannot be installed: chunks of it are not tried"
        return 1
    fi
}

# need_s3s_fs   Another S3, which checks signatures: three minutes of processor time to build.
need_s3s_fs() {
    if [ "$("$tools/bin/s3s-fs" --version 2>/dev/null)" = "s3s-fs $s3s_fs_version" ]; then return; fi
    say "building s3s-fs $s3s_fs_version"
    (need_rust && CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --force --root "$tools" "s3s-fs@$s3s_fs_version" --features binary) ||
        say "s3s-fs cannot be built"
    rm -rf "$tools/build"
}

build() {
    need_rust
    (cd "$root" && cargo build --quiet --release --locked) || die "the build failed"
}

# Whether FUSE can be used here: as root by a real mount and unmount of an empty connection, otherwise by what it takes.
have_fuse() {
    [ -c /dev/fuse ] || return 1
    if [ "$(id -u)" != 0 ]; then command -v fusermount3 >/dev/null; return; fi
    local dir status
    dir=$(mktemp -d)
    # The option names the file descriptor of the opened device, here 7.
    mount -i -t fuse -o "fd=7,rootmode=40000,user_id=0,group_id=0" b2fuse-probe "$dir" 7<>/dev/fuse
    status=$?
    if [ $status = 0 ]; then umount -l "$dir"; fi
    rmdir "$dir"
    return $status
}
