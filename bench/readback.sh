#!/bin/sh
# Lets `terrace probe` measure the lab's machines from inside, and compares what it read with their
# machine files.
#
#   bench/readback.sh [MACHINE ...] lab-cxl lab-hbm lab-dcpmm lab-numa lab-snc4 unless said
#   otherwise
#
# Asked for: latency within 5%, bandwidth within 10%. Minutes a machine; lab-snc4 has 32 pairs of
# nodes and takes a quarter of an hour.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ $# -gt 0 ] || set -- lab-cxl lab-hbm lab-dcpmm lab-numa lab-snc4
cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p terrace-cli
scripts/lab-parts.sh
inside=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}/bin/terrace
out=$target/bench/readback
mkdir -p "$out"
for machine in "$@"; do
    say "$machine"
    "$target/release/terrace" lab run --machine "$machine" --no-trace --carry "$inside" --carry \
        cat -- \
        sh -c "$inside probe --brief -o m.toml >&2; cat m.toml" >"$out/$machine.toml" \
            2>"$out/$machine.log" ||
        { tail -n 3 "$out/$machine.log" >&2; status=1; continue; }
    python3 bench/probe/readback.py "crates/machine/presets/$machine.toml" "$out/$machine.toml" \
        || status=1
done
exit "${status:-0}"
