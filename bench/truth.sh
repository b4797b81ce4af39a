#!/bin/sh
# The table of docs/results/truth.md, again: what `terrace sim` says beside what the lab measured.
#
#   bench/truth.sh [CASE ...] all cases of bench/truth/cases unless said otherwise; a part of a name
#   will do
#
# A case is a machine, a workload and policies, run by `terrace lab compare` and by `terrace sim`.
# What was run stays in $target/bench/truth and is not run again: remove it to have it anew. An hour
# or two for all.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p terrace-cli
scripts/lab-parts.sh
out=$target/bench/truth
mkdir -p "$out"
# A run that ends early leaves nothing that looks like a result.
keep() {
    result=$1
    shift
    "$@" >"$result.part" 2>"$result.log" && mv "$result.part" "$result" && return
    tail -n 3 "$result.log" >&2
    return 1
}
# Whether a case's name has one of the parts behind it, or none are asked for.
wanted() {
    [ $# -gt 1 ] || return 0
    name=$1
    shift
    for part in "$@"; do
        case $name in *"$part"*) return 0 ;; esac
    done
    return 1
}
sed '/^#/d; /^$/d' bench/truth/cases >"$out/cases"
while read -r name machine workload policies; do
    wanted "$name" "$@" || continue
    if [ ! -e "$out/$name.lab" ]; then
        say "$name in the lab"
        keep "$out/$name.lab" "$target/release/terrace" lab compare --machine "$machine" \
            --workload "$workload" \
            --policy "$policies" --json </dev/null || continue
    fi
    if [ ! -e "$out/$name.sim" ]; then
        say "$name simulated"
        keep "$out/$name.sim" "$target/release/terrace" sim --machine "$machine" --policy \
            "$policies" --json \
            "workload:$workload" </dev/null || continue
    fi
done <"$out/cases"
echo "revision $(git describe --always --dirty), $(date -u +%Y-%m-%d)"
echo "host: $(uname -srm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
echo
python3 bench/truth/table.py "$out"
