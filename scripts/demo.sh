#!/bin/sh
# An unmodified program on a two-tier machine, under the kernel's policies and under ours.
# Writes demo/compare.json and demo/report.html. A shorter skew (32 M accesses instead of 128 M).
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
say "building"
cargo build --quiet --release -p terrace-cli
scripts/lab-parts.sh
terrace=${CARGO_TARGET_DIR:-target}/release/terrace
mkdir -p demo
say "lab: booting, calibrating"
"$terrace" lab setup --machine lab-cxl
say "comparing five policies"
"$terrace" lab compare --machine lab-cxl \
    --policy first-touch,kernel:numa-balancing,terrace,hyplacer,bound:ideal-move \
    --workload skew,accesses=32M --keep demo --report demo/report.html
say "the report is in demo/report.html"
