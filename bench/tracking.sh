#!/bin/sh
# Everything in docs/results/tracking.md, again: bench/tracking.sh [errors|seen]...
# Builds what it needs (unless TERRACE_TRACKING_BUILT is set), runs it in the lab, prints Markdown;
# about half an hour on two cores, not part of the tests.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
target=${CARGO_TARGET_DIR:-target}
if [ -z "${TERRACE_TRACKING_BUILT:-}" ]; then
    scripts/lab-parts.sh
    cargo build --quiet --release -p terrace-lab --example lab
    cargo build --quiet --release -p terrace-track --example livecheck
    cargo build --quiet --release -p terrace-terrace --example tracking-errors
fi
lab_dir=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}

echo "revision $(git describe --always --dirty), $(date -u +%Y-%m-%d)"
echo "guest kernel: $(cat "$lab_dir/kernel/package" 2>/dev/null || echo unknown)"
echo "QEMU: $("$lab_dir/qemu-system" --version | head -n 1)"
echo "host: $(uname -srm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"

# One line a case: when 95% and all of the hot pages were found, and the trackers' CPU time until
# then.
seen() {
    say "livecheck $*"
    "$target/release/examples/lab" run --machine lab-cxl --limit 900 -- \
        "$target/release/examples/livecheck" costs=0 "$@" 2>/dev/null |
        awk -v what="$*" '
            / ms: found / {
                at = $2; gsub("%", "", $5); found = $5 + 0; cpu = $7
                if (found > best) best = found
                if (found >= 95 && !most) most = at " ms (" cpu " ms CPU)"
                if (found >= 100 && !all) all = at " ms (" cpu " ms CPU)"
                rounds = $1
            }
            /memory/ { memory = $2 " " $3 }
            END {
                printf "| %s | %.1f%% | %s | %s | %d windows in %s ms, %s ms CPU | %s |\n", what, best, \
                    most ? most : "never", all ? all : "never", rounds, at, cpu, memory
            }'
}

parts=${*:-errors seen}
for part in $parts; do
    case $part in
    seen)
        echo "| case | best | 95% found | all found | looked at | memory |"
        echo "|---|---|---|---|---|---|"
        seen tracker=page-table hot=64 cold=192
        seen tracker=page-table hot=16 cold=48
        for pages in 64 16 4 1; do
            seen tracker=page-table hot-pages=$pages cold=256
        done
        seen tracker=page-table hot-pages=16 cold=900 seconds=2
        seen tracker=soft-dirty op=write hot-pages=16 cold=900
        seen tracker=soft-dirty op=write cold-writes=1 hot-pages=16 cold=900 seconds=2
        seen tracker=soft-dirty op=write cold-writes=1 hot=16 cold=48
        seen tracker=damon layout=contiguous hot=16 cold=48
        seen tracker=damon-page hot=4 cold=12
        ;;
    errors) "$target/release/examples/tracking-errors" --steps 6 2>/dev/null ;;
    *)
        echo "bench/tracking.sh: $part: give errors, seen or both" >&2
        exit 2
        ;;
    esac
done
