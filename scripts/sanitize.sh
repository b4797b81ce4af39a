#!/bin/sh
# crates/alloc under the sanitizers, and its two fuzz targets for a while, from the seeds in
# fuzz/seeds:
#
#   scripts/sanitize.sh [SECONDS] seconds of the thread sanitizer's program and of each fuzz target
#   (60)
#
# - address: all tests of the crate;
# - thread: the example `races`, which orders its threads by what the sanitizer sees: Rust's own
#   library is not instrumented, so the tests, which use it between threads, would show races that
#   are none;
# - fuzz targets alloc_plan and alloc_calls, by coverage, under the address sanitizer.
# RUSTC_BOOTSTRAP lets a stable compiler take -Zsanitizer. What cannot be had is skipped, with the
# reason.
set -u
cd "$(dirname "$0")/.."
. scripts/lib.sh

seconds=${1:-60}
cargo_folder=$(scripts/setup.sh) || exit 1
PATH=$cargo_folder:$PATH
RUSTC_BOOTSTRAP=1
export PATH RUSTC_BOOTSTRAP
base=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd)
host=$(rustc -vV | sed -n 's/^host: //p')
mixed=-Cunsafe-allow-abi-mismatch=sanitizer
failed=0

# flags SANITIZER: sets $flags to what links a program with it that runs; fails, saying why, where
# there is none.
flags() {
    folder=$(mktemp -d)
    echo 'fn main() {}' >"$folder/t.rs"
    # Older compilers do not know $mixed and need not be told.
    for flags in "-Zsanitizer=$1 $mixed" "-Zsanitizer=$1"; do
        # shellcheck disable=SC2086
        if rustc $flags --target "$host" -o "$folder/t" "$folder/t.rs" 2>"$folder/why" && "$folder/t" 2>>"$folder/why"; then
            rm -r "$folder"
            return 0
        fi
    done
    flags=
    say "skipped: the $1 sanitizer: $(grep -m 1 . "$folder/why" || echo "a program with it does not run")"
    rm -r "$folder"
    return 1
}

# part NAME COMMAND...: runs it, and notes if it failed.
part() {
    say "$1"
    shift
    "$@" || failed=1
}

fuzz() {
    mkdir -p "$base/fuzz/$1"
    (cd fuzz && cargo run --quiet --release --target "$host" --bin "$1" -- -max_total_time="$seconds" -max_len=4096 -timeout=120 \
        -artifact_prefix="$base/fuzz/$1-" -verbosity=0 -print_final_stats=1 "$base/fuzz/$1" "seeds/$1") &&
        say "$1: nothing found"
}

if flags thread; then
    export CARGO_TARGET_DIR="$base/thread" RUSTFLAGS="$flags"
    part "arenas under the thread sanitizer, $seconds seconds" \
        cargo run --quiet --target "$host" -p terrace-alloc --example races "$seconds"
fi
if flags address; then
    export CARGO_TARGET_DIR="$base/address" RUSTFLAGS="$flags" ASAN_OPTIONS=detect_leaks=0
    part "tests of crates/alloc under the address sanitizer" \
        cargo test --quiet --target "$host" -p terrace-alloc --lib --tests
fi
coverage="--cfg fuzzing -Cdebug-assertions -Coverflow-checks -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares"
if command -v c++ >/dev/null 2>&1; then
    export CARGO_TARGET_DIR="$base/fuzz" RUSTFLAGS="${flags:-} $coverage"
    for target in alloc_plan alloc_calls; do
        part "fuzz target $target, $seconds seconds" fuzz $target
    done
else
    say "skipped: the fuzz targets: libFuzzer needs a C++ compiler"
fi
exit $failed
