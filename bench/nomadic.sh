#!/bin/sh
# NomadicNoise of the counter paper, scaled, beside kernels of the NAS Parallel Benchmarks in the
# lab: rows for docs/results/counters.md of each kernel, alone and beside it, under first touch and
# access-count. Threads are not pinned.
# usage: bench/nomadic.sh [KERNEL...]; TERRACE names the command (target/release/terrace), ACCESSES
# another number of accesses, KEEP a folder for what the runs print. Needs a lab and taskset.
#
# The paper's program (its section 5.2) allocates an array locally, accesses it for a period, frees
# it, and goes on with its threads in another cell: 7 threads on 16 cores, 10 GB of 128 GB, 15 s.
# Here: 1 thread on 2 CPUs, 80 MiB of 1 GiB (the paper's share), 0.15 s, and decisions each 100 ms
# in place of each second, so that a run of 0.3 s sees some of both.
set -eu
cd "$(dirname "$0")/.."
terrace=${TERRACE:-target/release/terrace}
bin=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Runs in the lab: guest.sh NOISE POLICY KERNEL.
cat >"$work/guest.sh" <<'GUEST'
noise=$1 policy=$2 kernel=$3
echo 0 >/proc/sys/kernel/numa_balancing
wander() {
    cell=0
    while :; do
        taskset -c $cell NOISE stream,threads=1,size=80MiB,seconds=0.15 >/dev/null 2>&1
        cell=$((1 - cell))
    done
}
[ $noise = alone ] || wander &
if [ $policy = first-touch ]; then
    WORKLOAD "$kernel"
else
    TERRACE run --policy "$policy" --set period_ms=100 --summary /tmp/summary -- \
        WORKLOAD "$kernel"
    cat /tmp/summary
fi
GUEST
cp "$bin/terrace-workload" "$work/nomadic-noise"
sed -i "s,NOISE stream,$work/nomadic-noise stream,; s,WORKLOAD,$bin/terrace-workload,
    s,TERRACE run,$bin/terrace run," "$work/guest.sh"

one() { # NOISE POLICY KERNEL: seconds of the kernel's phase
    "$terrace" lab run --machine lab-numa --no-trace --carry sh --carry taskset --carry cat \
        --carry "$work/nomadic-noise" --carry "$bin/terrace" \
        --carry "$bin/terrace-workload" --file "$work/guest.sh" -- sh "$work/guest.sh" "$@" \
        >"$work/out" 2>&1 || { tail -n 3 "$work/out" >&2; return 1; }
    [ -z "${KEEP:-}" ] || cp "$work/out" "$KEEP/$(echo "$*" | tr ' ,=' '---')"
    sed -n 's/.*"seconds":\([0-9.]*\),"accesses_per_s".*/\1/p' "$work/out"
}

echo "| kernel | beside it | first touch, s | \`access-count\`, s | speedup |"
echo "|---|---|---|---|---|"
for kernel in ${*:-npb-cg}; do
    for noise in alone noise; do
        spec=$kernel,threads=2,size=24MiB,accesses=${ACCESSES:-24M}
        base=$(one $noise first-touch "$spec")
        ours=$(one $noise access-count "$spec")
        echo "$base $ours" | awk -v row="| \`$kernel\` | $noise |" \
            '{ printf "%s %.3f | %.3f | %+.1f%% |\n", row, $1, $2, 100 * ($1 / $2 - 1) }'
    done
done
