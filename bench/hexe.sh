#!/bin/sh
# The tables of docs/results/hexe.md, again: bench/hexe.sh [--machine lab-hbm|lab-snc4] [--mode
# flat|memory] [--what stream|cg|moving|pic]
#   [--size small|mid|large] [--by NAME] [--rounds N]
# STREAM and a CG solve in the lab, by malloc, numactl, memkind and libterrace; each run in a
# machine woken anew. Takes Debian's libmemkind-dev and numactl (installed, or unpacked where
# $NUMACTL says). Not part of the tests.
set -eu
cd "$(dirname "$0")/.."
machines="lab-hbm lab-snc4" modes="flat memory" whats="stream cg" sizes="small mid large" only= rounds=1
while [ $# -gt 0 ]; do
    case $1 in
        --machine) machines=$2 ;;
        --mode) modes=$2 ;;
        --what) whats=$2 ;;
        --size) sizes=$2 ;;
        --by) only=$2 ;;
        --rounds) rounds=$2 ;;
        *) sed -n '2,3s/^# //p' "$0" >&2; exit 2 ;;
    esac
    shift 2
done
target=${CARGO_TARGET_DIR:-target}
lab=$target/release/examples/lab
out=$target/hexe
mkdir -p "$out"
[ -n "${HEXE_BUILT:-}" ] || cargo build --quiet --release -p terrace-capi
[ -n "${HEXE_BUILT:-}" ] || cargo build --quiet --release -p terrace-lab --example lab
for program in stream cg pic; do
    cc -O2 -s -ftree-vectorize -Wall -Wextra -Werror -fopenmp -Icrates/capi/include -o "$out/$program" \
        "bench/alloc/hexe/$program.c" bench/alloc/hexe/place.c "$target/release/libterrace.a" -lmemkind -lpthread -ldl -lm
done
cc -O2 -Wall -Wextra -Werror -o "$out/dram_only" bench/alloc/hexe/dram_only.c
# VPIC's question, what spilling costs, takes a bus that its program can fill.
if [ "$whats" = pic ]; then
    machines=bench/machines/hbm-twelve.toml modes=flat
fi
if [ "$whats" = moving ]; then
    # SICM's: an arena, one move_pages and memmove, from node 0 to node 1, by MiB
    # (docs/results/allocation.md).
    cc -O2 -s -Wall -Wextra -Werror -Icrates/capi/include -o "$out/moving" bench/alloc/hexe/moving.c \
        "$target/release/libterrace.a" -lpthread -ldl -lm
    exec "$lab" run --machine "${machines%% *}" --limit 3600 -- "$out/moving" 0 1 1 4 16 64
fi
numactl=${NUMACTL:-$(command -v numactl || true)}

# Of each machine: threads, fast nodes, nodes that the kernel knows of in memory mode, MiB of the
# fast tier.
describe() {
    case $1 in
        lab-hbm) threads=2 fast=1 slow=0 tier=192 ;;
        bench/machines/hbm-twelve.toml) threads=12 fast=1 slow=0 tier=192 ;;
        lab-snc4) threads=4 fast=4-7 slow=0-3 tier=256 ;;
        *) echo "bench/hexe.sh: no machine $1" >&2; exit 2 ;;
    esac
}
# The paper's sizes over the fast tier: 6, 24 and 48 of 16 GB; and its table I, done by hand for
# memkind.
choose() {
    case $1 in
        small) eighths=3 kinds=hbw-interleave ;;
        mid) eighths=12 kinds=hbw-interleave,interleave ;;
        large) eighths=24 kinds=interleave ;;
    esac
    mib=$((tier * eighths / 8))
    if [ "$what" = stream ]; then
        arguments="$threads $mib $rounds"
    elif [ "$what" = pic ]; then
        # 928 bytes a cell, four planes a thread.
        edge=$(awk "BEGIN { print int(sqrt($mib * 1048576 / 928 / 4 / $threads)) }")
        arguments="$threads $edge 4 2" kinds=hbw-preferred
    else
        # 360 bytes a row; MiniFE with memkind prefers fast memory for everything.
        edge=$(awk "BEGIN { print int(($mib * 1048576 / 360) ^ (1 / 3)) }")
        arguments="$threads $edge 3" kinds=hbw-preferred
        [ "$fast" = 1 ] || kinds=hbw-interleave
    fi
}
# one_run MODE BY: prints what the program printed.
one_run() {
    program=$PWD/$out/$what
    case $out in /*) program=$out/$what ;; esac
    folder=$(dirname "$program")
    case $2 in
        memkind) how=memkind:$kinds ;;
        terrace) how=terrace ;;
        arena) how=arena:$fast,$slow ;;
        *) how=malloc ;;
    esac
    set -- "$1" "$2" "$program" "$how" $arguments
    mode=$1 by=$2
    shift 2
    case $by in
        numactl) set -- "$numactl" "--preferred=${fast%%-*}" "$@" ;;
        numactl-many) set -- "$numactl" "--preferred-many=$fast" "$@" ;;
        numactl-interleave) set -- "$numactl" "--interleave=$fast" "$@" ;;
    esac
    policy=first-touch
    if [ "$mode" = memory ]; then
        policy=hardware:memory-mode
        set -- "$folder/dram_only" "$slow" "$@"
    fi
    "$lab" run --machine "$machine" --limit 3600 --policy "$policy" --env "MEMKIND_HBW_NODES=$fast" \
        --carry "$program" -- "$@"
}
rows() {
    if [ "$1" = memory ]; then
        # memkind knows no memory mode, and there is nothing for numactl to prefer.
        echo malloc terrace
    elif [ "$what" = pic ]; then
        echo malloc numactl memkind arena terrace
    elif [ "$threads" = 2 ]; then
        echo malloc numactl memkind terrace
    else
        echo malloc numactl numactl-many numactl-interleave memkind terrace
    fi
}

echo "revision $(git describe --always --dirty), $(date -u +%Y-%m-%d)"
echo "| machine | mode | what | MiB | by | GB/s, or seconds | where |"
echo "|---|---|---|---|---|---|---|"
for machine in $machines; do
    describe "$machine"
    for mode in $modes; do
        for what in $whats; do
            for size in $sizes; do
                choose "$size"
                for by in $(rows "$mode"); do
                    [ -z "$only" ] || [ "$only" = "$by" ] || continue
                    log=$out/$(basename "$machine" .toml)-$mode-$what-$size-$by
                    one_run "$mode" "$by" >"$log" 2>"$log.err" || { echo "failed: $log.err" >&2; continue; }
                    awk -v head="| $machine | $mode | $what | $mib | $by |" '
                        $1 == "where" { where = where "; " substr($0, 7); next }
                        $1 == "average" { figures = sprintf("%s **%.2f**", figures, $2 / 1e9); next }
                        $1 == "seconds" { figures = sprintf("%.4f", $2); next }
                        $1 == "residual" { next }
                        NF == 2 { figures = sprintf("%s %.2f", figures, $2 / 1e9) }
                        END { print head, figures, "|", substr(where, 3), "|" }' "$log"
                done
            done
        done
    done
done
