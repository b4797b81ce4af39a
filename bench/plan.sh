#!/bin/sh
# Gains of `terrace plan` and `run --alloc` in the lab: rows for docs/results/allocation.md. Each
# program of bench/programs/kernels is recorded by hooks on another seed than the one that is run,
# planned for lab-cxl with 138 MiB of its best tier, and run by first touch, under `terrace` and
# with the plan. usage: bench/plan.sh [PROGRAM...]; TERRACE names the command
# (target/release/terrace). Needs a lab (lab/README.md), gcc, and `cargo build --release -p
# terrace-preload`.
set -eu
cd "$(dirname "$0")/.."
terrace=$(readlink -f "${TERRACE:-target/release/terrace}")
built=${CARGO_TARGET_DIR:-target}/release/libterrace_preload.so
preload=$(readlink -f "${TERRACE_PRELOAD:-$built}")
guest=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}/bin/terrace
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
capture/hooks/build.sh "$work/hooks"
strip -o "$work/libterrace_preload.so" "$preload"
libraries=$(ldd "$preload" | sed -n 's/.* => \(\/[^ ]*\).*/--file \1/p')

seconds() { # ARGUMENTS: of `lab compare`; seconds of its runs, in a line
    "$terrace" lab compare --machine lab-cxl --jobs 1 --json --no-trace "$@" >"$work/out" || {
        grep -o '"error": "[^"]*"' "$work/out" >&2
        return 1
    }
    sed -n 's/^ *"seconds": \([0-9.]*\),*$/\1/p' "$work/out" | tr '\n' ' '
}

echo "| program | first touch, s | \`terrace\` | plan | the plan's fast sizes, and what it says |"
echo "|---|---|---|---|---|"
for program in ${*:-hashjoin graph btree}; do
    # Arguments behind the seed. Relations of hashjoin differ in size, for a plan knows sizes alone.
    case $program in
    hashjoin) arguments="3145728 8000000 1" recorded=$arguments ;;
    graph) arguments="pagerank 20 16777216 2 free" recorded="pagerank 20 16777216 1 free" ;;
    btree) arguments="21 3000000 1" recorded="21 1000000 1" ;;
    *) echo "bench/plan.sh: $program: give hashjoin, graph or btree" >&2; exit 2 ;;
    esac
    source=bench/programs/kernels/$program.c
    gcc -O2 -pthread -o "$work/$program" "$source" -lm
    TERRACE_CC=gcc "$work/hooks/terrace-cc" -O2 -pthread -o "$work/hooked" "$source" -lm
    # shellcheck disable=SC2086
    "$terrace" record -q --source hooks --objects 64 -o "$work/trace" -- "$work/hooked" 2 \
        $recorded >/dev/null
    said=$("$terrace" plan "$work/trace" --machine lab-cxl --fast 138M -o "$work/plan" 2>&1)
    # shellcheck disable=SC2086
    live=$(seconds --policy first-touch,terrace -- "$work/$program" 1 $arguments)
    # shellcheck disable=SC2086
    planned=$(seconds --policy first-touch --carry "$work/$program" --carry "$guest" \
        --file "$work/libterrace_preload.so" $libraries --file "$work/plan" \
        --env "TERRACE_PRELOAD=$work/libterrace_preload.so" -- \
        "$guest" run --alloc "$work/plan" -- "$work/$program" 1 $arguments)
    sizes=$(sed -n 's/^size \([0-9]*\)\.\..* fast .*/\1/p' "$work/plan" | tr '\n' ' ')
    echo "$live $planned" | awk -v row="| \`$program\` |" -v sizes="$sizes" -v said="${said#*: }" \
        '{ printf "%s %.3f | %.3f | %.3f | %s: %s |\n", row, $1, $2 / $1, $3 / $1, sizes, said }'
done
