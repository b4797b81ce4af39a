#!/bin/sh
# An unmodified program on a two-tier machine, under the kernel's policies and under ours.
# Writes demo/compare.json and demo/report.html. A shorter skew (32 M accesses instead of 128 M).
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

# The recorders too, so that every command of README works afterwards.
scripts/setup.sh --capture >/dev/null
terrace=$(scripts/build.sh)/bin/terrace
lab=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}
say "lab: QEMU and kernel"
lab/fetch.sh "$lab" >&2
mkdir -p demo
say "lab: booting, calibrating"
"$terrace" lab setup --machine lab-cxl
say "comparing five policies"
"$terrace" lab compare --machine lab-cxl \
    --policy first-touch,kernel:numa-balancing,terrace,hyplacer,bound:ideal-move \
    --workload skew,accesses=32M --keep demo --report demo/report.html
say "the report is in demo/report.html"
say "the program is $terrace"
say "for this shell: export PATH=$(dirname "$terrace"):\$PATH; for good: sudo make install"
