#!/bin/sh
# Build the programs that run inside the lab's guest, static, into DIR (default: the lab directory's
# bin/).
# usage: crates/guest/build.sh [DIR] [PACKAGE...] default package: terrace-guest
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
lab=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}
dir=${1:-$lab/bin}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- terrace-guest
target=${CARGO_TARGET_DIR:-$root/target}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
cd "$root"
for package in "$@"; do
    case $package in
    terrace-guest) bins="terrace-guest terrace-cases" ;;
    terrace-cli) bins=terrace ;;
    *) bins=$package ;;
    esac
    for bin in $bins; do
        # The flags are for the last step alone: what it links is shared with the program of this
        # computer, and is compiled once.
        cargo rustc --quiet --release -p "$package" --bin "$bin" -- \
            -C target-feature=+crt-static -C strip=symbols
        cp "$target/release/$bin" "$dir/$bin.new" && mv "$dir/$bin.new" "$dir/$bin"
    done
    # Gives this computer's program its name back, which both share.
    cargo build --quiet --release -p "$package"
done
