#!/bin/sh
# The probe's loops against plain C, likwid-bench and mbw, in alternation: bench/probe.sh [ROUNDS]
# [THREADS] Prints a table of medians over the rounds, as Markdown; three minutes for five rounds.
# What is not installed is left out. One node is measured, the first; other work on the machine
# disturbs all of them alike, which is why they take turns.
set -eu
cd "$(dirname "$0")/.."
rounds=${1:-5}
threads=${2:-$(nproc)}
arrays=384
chase=256
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
[ -n "${TERRACE_PROBE_BUILT:-}" ] || cargo build --quiet --release -p terrace-probe --example kernels
ours=${TERRACE_PROBE_BUILT:-$target/release/examples/kernels}
cc -O3 -fopenmp bench/probe/stream.c -o "$work/stream"
cc -O2 bench/probe/chase.c -o "$work/chase"

# likwid KERNEL: bytes a second, as likwid-bench counts them for this kernel.
likwid() {
    likwid-bench -t "$1" -W "N:${arrays}MB:$threads" -i 10 2>/dev/null |
        awk '/^MByte\/s:/ { printf "%.0f\n", $2 * 1e6 }'
}

round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    "$ours" "$threads" "$arrays" "$chase" | awk '{ print "terrace", $1, $2 }' >>"$work/all"
    OMP_NUM_THREADS=$threads OMP_PROC_BIND=true "$work/stream" "$arrays" 7 | awk '{ print "gcc", $1, $2 }' >>"$work/all"
    "$work/chase" "$chase" huge 7 | awk '{ print "gcc", "chase-huge", $2 }' >>"$work/all"
    "$work/chase" "$chase" base 7 | awk '{ print "gcc", "chase-base", $2 }' >>"$work/all"
    if command -v likwid-bench >/dev/null 2>&1; then
        for pair in copy:copy_avx copy:copy_mem_avx triad:stream_avx triad:stream_mem_avx read:load_avx write:store_mem_avx; do
            figure=$(likwid "${pair#*:}" || true)
            [ -z "$figure" ] || echo "likwid-${pair#*:} ${pair%%:*} $figure" >>"$work/all"
        done
    fi
    if command -v mbw >/dev/null 2>&1; then
        # mbw counts a copied byte once, by one thread: as many of it beside each other as there are
        # threads, and what each has, summed. Its three ways of copying: memcpy, an assignment of
        # doubles in a loop, memcpy of blocks.
        for way in 0 1 2; do
            : >"$work/mbw"
            pids=
            for _ in $(seq "$threads"); do
                mbw -q -n 5 -t "$way" 128 >>"$work/mbw" 2>/dev/null &
                pids="$pids $!"
            done
            # shellcheck disable=SC2086
            wait $pids
            awk -v way="$way" '/^AVG/ { sum += $9; n++ } END { if (n) printf "mbw-way-%d copy %.0f\n", way, sum * 2 * 1048576 }' \
                "$work/mbw" >>"$work/all"
        done
    fi
done
echo "host: $(uname -srm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1); load $(cut -d' ' -f1-3 /proc/loadavg)"
echo "$rounds rounds, $threads threads, $arrays MiB of arrays, chase through $chase MiB"
echo
echo "| what | by | median | least | most |"
echo "|---|---|---|---|---|"
sort -k2,2 -k1,1 -k3,3g "$work/all" | awk '
    function flush() { if (n) printf "| %s | %s | %s | %s | %s |\n", what, by, v[int((n + 1) / 2)], v[1], v[n] }
    { if ($2 != what || $1 != by) { flush(); n = 0; what = $2; by = $1 }
      v[++n] = ($2 ~ /chase/) ? sprintf("%.1f ns", $3) : sprintf("%.2f GB/s", $3 / 1e9) }
    END { flush() }'
