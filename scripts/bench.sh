#!/bin/sh
# Ratios of our policies to the best peer and to the ideal, with the host's description first.
# Sweeps workloads on the lab's machines; takes tens of minutes. Results: target/bench/.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
cargo build --quiet --release -p terrace-cli
scripts/lab-parts.sh
terrace=${CARGO_TARGET_DIR:-target}/release/terrace
out=${CARGO_TARGET_DIR:-target}/bench
mkdir -p "$out"

echo "host: $(uname -srm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
echo "date: $(date -u +%Y-%m-%d), revision: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
policies=first-touch,kernel:numa-balancing,kernel:numa-balancing-tuned,kernel:damos,terrace,hyplacer,bound:ideal-move
for machine in ${TERRACE_BENCH_MACHINES:-lab-cxl}; do
    "$terrace" lab setup --machine "$machine" >&2
    for workload in ${TERRACE_BENCH_WORKLOADS:-skew skew,layout=scattered skew,layout=scattered,hot=read shift graph-bfs fits stream}; do
        say "$machine: $workload"
        name=$(echo "$machine-$workload" | tr ',=/' '---')
        "$terrace" lab compare --machine "$machine" --policy $policies --workload "$workload" \
            --json >"$out/$name.json"
        "$terrace" report "$out/$name.json" -o "$out/$name.html"
        cat "$out/$name.json"
    done
done
