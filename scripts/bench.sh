#!/bin/sh
# Ratios of our policies to the best peer and to the ideal, on all cases of bench/claims.toml, with
# the host's description. Hours at first; what was measured before with the same machine, programs
# and settings is not measured again.
#
#   scripts/bench.sh [--quick] [LIST] --quick: 16 M accesses a case; LIST: bench/claims.toml,
#   bench/grids.toml
#
# TERRACE_BENCH_JOBS machines are awake at a time (1); more arguments for the sweep stand in
# TERRACE_BENCH_ARGS (--case skew-* --policy kernel:*). Results: target/bench/ (runs/, cases/ for
# `terrace report`, tables).
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

quick=
if [ "${1:-}" = --quick ]; then
    quick=--quick
    shift
fi
list=${1:-bench/claims.toml}
cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
say "building"
cargo build --quiet --release -p terrace-lab --example sweep
scripts/lab-parts.sh
out=${CARGO_TARGET_DIR:-target}/bench
mkdir -p "$out"
tables=$out/$(basename "$list" .toml)$quick.md
# shellcheck disable=SC2086
"${CARGO_TARGET_DIR:-target}/release/examples/sweep" "$list" $quick --store "$out" \
    --jobs "${TERRACE_BENCH_JOBS:-1}" --revision \
        "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" \
    ${TERRACE_BENCH_ARGS:-} >"$tables" || status=$?
cat "$tables"
say "staging in the lab"
bench/staging.sh ${quick:+"$quick"} || status=$?
say "the probe in the lab"
bench/readback.sh ${quick:+lab-cxl} || status=$?
say "simulator's speed"
cargo run --quiet --release -p terrace-sim --example speed -- --short || status=$?
say "the probe's loops beside plain C"
if command -v cc >/dev/null 2>&1; then
    bench/probe.sh 3 >"$out/probe.md" || status=$?
    cat "$out/probe.md"
else
    say "skipped: no C compiler"
fi
exit "${status:-0}"
