#!/bin/sh
# Arenas against other allocators: malloc + touch + free of 64 B, and moving an arena where there
# are two nodes. Writes bench/out/alloc.json; what is missing is skipped with its reason.
#
#   scripts/bench-alloc.sh [--rounds N]     N interleaved rounds (7), medians
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

rounds=7
if [ "${1:-}" = --rounds ]; then
    rounds=$2
fi
cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
for part in jemalloc memkind; do
    [ -e "/usr/lib/$(uname -m)-linux-gnu/lib$part.so" ] || install_packages "lib$part-dev" || say \
        "goes on without $part"
done
CARGO_TARGET_DIR=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && \
    pwd)
export CARGO_TARGET_DIR
say "building"
cargo build --quiet --release -p terrace-preload
(cd bench/alloc && cargo build --quiet --release)
mkdir -p bench/out
say "measuring"
"$CARGO_TARGET_DIR/release/terrace-bench-alloc" --rounds "$rounds" --out bench/out/alloc.json \
    --preload "$CARGO_TARGET_DIR/release/libterrace_preload.so"
say "the figures are in bench/out/alloc.json"
