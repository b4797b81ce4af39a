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
triple=x86_64-unknown-linux-gnu
target=${TERRACE_GUEST_TARGET_DIR:-${CARGO_TARGET_DIR:-$root/target}/guest}
packages=
for p in "$@"; do packages="$packages -p $p"; done
# A target triple of its own keeps build scripts and macros dynamic; the flags are for the guest's
# programs only. They are stripped, so that debug information would be made in vain.
# shellcheck disable=SC2086
(cd "$root" && RUSTFLAGS="-C target-feature=+crt-static -C strip=symbols" \
    CARGO_TARGET_DIR="$target" CARGO_PROFILE_RELEASE_DEBUG=0 \
    cargo build --quiet --release --target $triple $packages)
mkdir -p "$dir"
for bin in terrace-guest terrace-cases terrace-workload terrace; do
    if [ -x "$target/$triple/release/$bin" ]; then
        cp "$target/$triple/release/$bin" "$dir/$bin.new" && mv "$dir/$bin.new" "$dir/$bin"
    fi
done
