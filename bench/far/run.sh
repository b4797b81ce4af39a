#!/bin/sh
# Far memory beside the kernel's swap file, zram and a mapped file: the figures of
# docs/results/far.md.
#
#   bench/far/run.sh [--quick] minutes; root for the kernel's peers (they are skipped otherwise,
#   with the reason)
#
# TERRACE_FAR_DIR: a folder on the disk to measure, by default the build's. Swap, zram and the
# memory cgroup are set up and taken down again; nothing of them stays.
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib.sh

cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p terrace-far --example far-bench
folder=${TERRACE_FAR_DIR:-$target/far-bench}
mkdir -p "$folder"
echo "revision $(git describe --always --dirty), $(date -u +%Y-%m-%d)"
echo "host: $(uname -srm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
exec "$target/release/examples/far-bench" drive "$folder" --json "$target/far-bench.json" "$@"
