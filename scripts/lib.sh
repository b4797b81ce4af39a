# Shared by the scripts beside it; sourced, not run.

started=${TERRACE_STARTED:-$(date +%s)}
export TERRACE_STARTED=$started

# A progress line with the time since the first script began.
say() { printf '[%4ds] %s\n' "$(($(date +%s) - started))" "$*" >&2; }

# Whether packages can be installed, and how: sets $sudo.
can_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    if [ "$(id -u)" = 0 ]; then
        sudo=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        sudo='sudo -n'
    else
        return 1
    fi
}

# Installs packages, saying which. Fails, with the line to run, where that is not allowed. A machine
# that has just started often updates itself: its turn is waited for.
install_packages() {
    if ! can_install; then
        say "missing: $*"
        echo "run this first:  sudo apt-get install --no-install-recommends $*" >&2
        return 1
    fi
    say "installing with apt: $*"
    log=$(mktemp)
    if $sudo env DEBIAN_FRONTEND=noninteractive sh -c '
        install() { apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"; }
        install "$@" || { apt-get update && install "$@"; }' sh "$@" \
        >"$log" 2>&1 </dev/null; then
        rm -f "$log"
        return 0
    fi
    tail -n 15 "$log" >&2
    rm -f "$log"
    return 1
}

# version_at_least A B: whether A >= B, both dotted numbers.
version_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# cuda_options PACKAGE...: options for cargo that switch CUDA managed memory on in these packages;
# none where the compiler is too old for what it takes (ADR 0221).
cuda_options() {
    found=$(rustc --version 2>/dev/null | cut -d' ' -f2 | cut -d- -f1)
    version_at_least "${found:-0}" 1.88 || return 0
    for package in "$@"; do printf -- '--features %s/cuda ' "$package"; done
}
