#!/bin/sh
# The tables of docs/results/hyplacer.md, again: bench/hyplacer.sh [--only 2,3,5,7] [--kernels CG]
# [--json FILE] Simulated on the host, no lab; some six minutes of CPU time, not part of the tests.
set -eu
cd "$(dirname "$0")/.."
cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
cargo build --quiet --release -p terrace-terrace --example hyplacer
echo "revision $(git describe --always --dirty), $(date -u +%Y-%m-%d)"
echo "host: $(uname -srm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
echo
exec "${CARGO_TARGET_DIR:-target}/release/examples/hyplacer" "$@"
