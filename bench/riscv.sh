#!/bin/sh
# Prints how fast riscv64 programs run, under qemu-riscv64 too, and what a recording costs: seconds
# of processor time, medians of so many runs in turn.
# Usage: bench/riscv.sh [TERRACE [RUNS]]
set -eu
terrace=${1:-target/release/terrace} runs=${2:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
riscv64-linux-gnu-gcc -O2 -Wall -Wextra -static bench/riscv/integers.c -o "$work/integers"

# spend NAME COMMAND...: adds the processor time of a command to the figures under a name.
spend() {
    name=$1
    shift
    (
        "$@" >"$work/out" 2>"$work/said"
        # Not in a pipe, where it would have no children.
        times >"$work/times"
    )
    awk 'NR == 2 {
        for (i = 1; i <= 2; i++) { split($i, t, "m"); s += t[1] * 60 + t[2] }
        print s
    }' "$work/times" >>"$work/$name"
    [ -e "$work/expected" ] || cp "$work/out" "$work/expected"
    cmp "$work/out" "$work/expected"
}

for run in $(seq "$runs"); do
    spend here "$terrace" riscv run "$work/integers"
    spend recorded "$terrace" riscv run --record "$work/trace" "$work/integers"
    spend qemu qemu-riscv64 "$work/integers"
done
"$terrace" riscv run --stats "$work/integers" 2>&1 >"$work/out" | awk '{ print $2 }' >"$work/count"

median() {
    sort -n "$work/$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

awk -v n="$(cat "$work/count")" -v here="$(median here)" -v recorded="$(median recorded)" \
    -v qemu="$(median qemu)" -v bytes="$(wc -c <"$work/trace")" 'BEGIN {
    printf "| way | s | million instructions a second | relative to running |\n|---|---|---|---|\n"
    printf "| terrace riscv run | %.2f | %.0f | 1 |\n", here, n / here / 1e6
    printf "| with --record | %.2f | %.0f | %.2f |\n", recorded, n / recorded / 1e6, recorded / here
    printf "| qemu-riscv64 | %.2f | %.0f | %.2f |\n", qemu, n / qemu / 1e6, qemu / here
    printf "\n%d instructions; the recording has %.1f MiB.\n", n, bytes / 1048576
}'
