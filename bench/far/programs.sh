#!/bin/sh
# Whole programs at half their memory: `terrace run --far` beside the kernel's swap on the same
# disk, zram and zswap.
#
#   bench/far/programs.sh [--quick] [PROGRAM...] sort, graph-pagerank, npb-cg; some minutes, as root
#
# Each program runs once alone, which says how much memory it takes; then at half of that, in turn,
# so many times as REPEATS says (3; --quick 1). That half is the limit of a memory cgroup (version
# 1) for the kernel's peers and for far memory on the disk alike, which has no swap to go to and
# whose --dram leaves 8 MiB of it for what is not far (code, stacks, accounts). Compressed memory of
# ours lies in the cgroup too, zram's does not: there --dram is the half, without a limit. Outputs
# are compared. Swap, zram, zswap and the cgroup are taken down again, whatever happens.
#
# Who takes longer than LIMIT seconds (120) is ended and counts as not measured: a graph at half its
# memory is as many random pages of a disk.
#
# TERRACE_FAR_DIR: a folder on the disk to measure, by default the build's. TERRACE_BIN: a folder
# with terrace, terrace-workload and libterrace_far_preload.so, instead of building them.
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib.sh

repeats=${REPEATS:-3} longest=${LIMIT:-120} quick=
if [ "${1:-}" = --quick ]; then
    repeats=${REPEATS:-1} quick=1
    shift
fi
programs=${*:-sort graph-pagerank npb-cg}
if [ -z "${TERRACE_BIN:-}" ]; then
    PATH=$(scripts/setup.sh):$PATH
    export PATH
    cargo build --quiet --release -p terrace-cli -p terrace-workload -p terrace-far-preload
    TERRACE_BIN=${CARGO_TARGET_DIR:-target}/release
fi
bin=$(cd "$TERRACE_BIN" && pwd)
export TERRACE_FAR_PRELOAD="$bin/libterrace_far_preload.so"
folder=${TERRACE_FAR_DIR:-${CARGO_TARGET_DIR:-target}/far-bench}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d "$folder/programs.XXXXXX")
group=/sys/fs/cgroup/memory/terrace-far-programs
zswap=/sys/module/zswap/parameters/enabled
zswap_was= zram_ours=

# Undone in any order that works: what is not there is no matter.
undo_swap() {
    if [ -e "$work/swap" ]; then
        swapoff "$work/swap" 2>/dev/null || true
        rm -f "$work/swap"
    fi
    if [ -n "$zram_ours" ]; then
        swapoff /dev/zram0 2>/dev/null || true
        echo 1 >/sys/block/zram0/reset
        zram_ours=
    fi
    if [ -n "$zswap_was" ]; then
        echo "$zswap_was" >"$zswap"
        zswap_was=
    fi
}
undo() {
    undo_swap
    if [ -d "$group" ]; then rmdir "$group" || true; fi
    rm -rf "$work"
}
trap undo EXIT
trap 'exit 130' INT TERM HUP

[ "$(id -u)" = 0 ] || { echo "skipped: the kernel's peers need root" && exit 0; }
mkdir "$group" 2>/dev/null || { echo "skipped: no memory cgroup (version 1) at ${group%/*}" && exit 0; }

# Swap for a peer; fails, saying why, where this kernel has none.
swap_for() {
    case $1 in
    swap | zswap)
        dd if=/dev/zero of="$work/swap" bs=1M count="$swap_mib" 2>/dev/null
        chmod 600 "$work/swap"
        mkswap "$work/swap" >/dev/null
        swapon "$work/swap" || return 1
        if [ "$1" = zswap ]; then
            [ -w "$zswap" ] || { echo "this kernel has no zswap" >&2 && return 1; }
            was=$(cat "$zswap")
            echo Y >"$zswap" || return 1
            zswap_was=$was
        fi
        ;;
    zram)
        [ "$(cat /sys/block/zram0/disksize 2>/dev/null)" = 0 ] || { echo "no zram0, or it is in use" >&2 && return 1; }
        zram_ours=1
        echo lz4 >/sys/block/zram0/comp_algorithm || true
        echo $((swap_mib * 1048576)) >/sys/block/zram0/disksize || return 1
        mkswap /dev/zram0 >/dev/null && swapon /dev/zram0 || return 1
        ;;
    esac
}

# The command of a program, which prints the same whatever memory it has.
command_of() {
    case $1 in
    sort) echo "env LC_ALL=C sort -S 2G --parallel=1 $work/lines" ;;
    *) echo "$bin/terrace-workload $1,threads=1,size=$2" ;;
    esac
}

# run LIMIT COMMAND...: milliseconds, peak KiB and milliseconds of the phase that a workload
# measures itself (else -) to $work/told, the digest of its output to $work/digest.
run() {
    limit=$1
    shift
    echo -1 >"$group/memory.limit_in_bytes"
    echo "$limit" >"$group/memory.limit_in_bytes"
    echo 0 >"$group/memory.max_usage_in_bytes"
    begin=$(date +%s%N)
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" timeout -k 5 "$longest" "$@" >"$work/out" 2>"$work/err" || {
        echo "status $? (124: $longest s were over): $*: $(tail -n 1 "$work/err")" >&2
        return 1
    }
    end=$(date +%s%N)
    cksum <"$work/out" >"$work/digest"
    phase=$(sed -n 's/.*"seconds":\([0-9.]*\).*/\1/p' "$work/err" | awk 'END { if (NR) printf "%.1f", $1 * 1000; else print "-" }')
    echo "$(((end - begin) / 1000000)) $(($(cat "$group/memory.max_usage_in_bytes") / 1024)) $phase" >"$work/told"
}

# peer NAME HALF COMMAND...
peer() {
    name=$1 half=$2
    shift 2
    case $name in
    alone) run -1 "$@" ;;
    far) run "$half" "$bin/terrace" run --quiet --dram $((half - 8388608)) --far "$folder" -- "$@" ;;
    far-compressed) run -1 "$bin/terrace" run --quiet --dram "$half" --far compressed -- "$@" ;;
    *)
        if swap_for "$name"; then run "$half" "$@"; else false; fi
        ;;
    esac
}

if [ -n "$quick" ]; then lines=1000000 size=64M; else lines=3000000 size=192M; fi
case " $programs " in *" sort "*)
    # Lines of ten random letters and a number: they compress to about half.
    awk -v n=$lines 'BEGIN { srand(7); for (i = 0; i < n; i++) { s = ""; for (j = 0; j < 10; j++) s = s sprintf("%c", 97 + int(rand() * 26)); print s, i } }' >"$work/lines"
    ;;
esac

echo "revision $(git describe --always --dirty), $(date -u +%Y-%m-%d); $(uname -srm), $(nproc) CPUs, load $(cut -d ' ' -f 1 /proc/loadavg)"
: >"$work/all"
for program in $programs; do
    set -- $(command_of "$program" "$size")
    run -1 "$@"
    cp "$work/digest" "$work/right"
    kib=$(cut -d ' ' -f 2 "$work/told")
    half=$((kib / 2 * 1024)) swap_mib=$((kib / 512 + 64))
    round=0
    while [ "$round" -lt "$repeats" ]; do
        for name in alone far swap far-compressed zram zswap; do
            if peer "$name" "$half" "$@"; then
                cmp -s "$work/digest" "$work/right" || { echo "$program, $name: other output" >&2 && exit 1; }
                echo "$program $name $(cat "$work/told") $half" >>"$work/all"
                say "$program $name: $(cat "$work/told")"
            else
                echo "not measured: $program, $name (why: above)"
            fi
            undo_swap
        done
        round=$((round + 1))
    done
done

awk -v repeats="$repeats" '
    function median(list, n,   i, j, t, a) {
        n = split(list, a, " ")
        for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (a[j] + 0 < a[i] + 0) { t = a[i]; a[i] = a[j]; a[j] = t }
        low = a[1]; high = a[n]
        return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
    }
    { key = $1 " " $2; if (!(key in ms)) order[++keys] = key; ms[key] = ms[key] " " $3; if ($4 > peak[key]) peak[key] = $4; half[$1] = $6 }
    $5 != "-" { phase[key] = phase[key] " " $5 }
    END {
        print ""
        print "| program | who | seconds, median of " repeats " | spread | memory at most | times as fast as swap | its measured phase, s | times as fast as swap |"
        print "|---|---|---|---|---|---|---|---|"
        for (k = 1; k <= keys; k++) {
            split(order[k], w, " ")
            m = median(ms[order[k]])
            swap = (w[1] " swap") in ms ? sprintf("%.1f", median(ms[w[1] " swap"]) / m) : "-"
            m = median(ms[order[k]])
            printf "| %s, half is %d MiB | %s | %.1f | %.1f to %.1f | %d MiB | %s |", w[1], half[w[1]] / 1048576, w[2], m / 1000, low / 1000, high / 1000, peak[order[k]] / 1024, swap
            if (!(order[k] in phase)) { print " | |"; continue }
            m = median(phase[order[k]])
            swap = (w[1] " swap") in phase ? sprintf("%.1f", median(phase[w[1] " swap"]) / m) : "-"
            printf " %.3f | %s |\n", m / 1000, swap
        }
    }' "$work/all"
