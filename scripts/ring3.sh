#!/bin/sh
# Ring 3: what only the lab can show. Prints "ok NAME", "FAILED NAME: why" or "skipped NAME: why".
# The machine is booted once and saved; each check wakes it up.
set -u
cd "$(dirname "$0")/.."
. scripts/lib.sh

if [ "$(uname -m)" != x86_64 ] || ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "skipped lab: it needs Debian on x86-64"
    exit 0
fi
terrace=${CARGO_TARGET_DIR:-target}/release/terrace
lab=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}
out=${CARGO_TARGET_DIR:-target}/ring3
mkdir -p "$out"

# Faults: the target's output is the same whatever happens. Each case in a machine of its own.
one_case() {
    began=$(date +%s)
    "$terrace" lab run --machine lab-cxl --no-trace --carry "$lab/bin/terrace" -- \
        "$lab/bin/terrace-cases" drive "$lab/bin/terrace" "$1" >"$out/case-$1.out" \
            2>"$out/case-$1.err"
    say "case $1: $(($(date +%s) - began)) s"
    grep -E '^(ok|FAILED|skipped) ' "$out/case-$1.out" ||
        echo "FAILED $1: $(tail -n 1 "$out/case-$1.err" | cut -c1-300)"
}
if [ "${1:-}" = case ]; then
    one_case "$2"
    exit 0
fi

cargo build --quiet --release -p terrace-cli || { echo "FAILED lab-build: cargo build"; exit 1; }
scripts/lab-parts.sh || { echo "FAILED lab-parts: see the log"; exit 1; }

# check NAME COMMAND... : ok when the command succeeds; its last line of standard error says why
# not. What it took goes to the log.
check() {
    name=$1
    shift
    began=$(date +%s)
    "$@" >"$out/$name.out" 2>"$out/$name.err"
    status=$?
    say "$name: $(($(date +%s) - began)) s"
    if [ $status = 0 ]; then
        echo "ok $name"
    else
        echo "FAILED $name: $(tail -n 1 "$out/$name.err" | cut -c1-300)"
        return 1
    fi
}

# Calibration is part of setup: it fails when latency is 5% or bandwidth 10% off the machine file.
# Without it nothing below means anything.
check lab-boots-and-calibrates "$terrace" lab setup --machine lab-cxl || exit 1

check tiers-in-the-guest "$terrace" lab run --machine lab-cxl --no-trace -- "$lab/bin/terrace" \
    tiers --json
check tiers-are-ranked grep -q '"read_latency_ns": 300' "$out/tiers-in-the-guest.out"

# Tests of the tracker of page tables, which needs kernel memory that few hosts show.
tests=$(cargo rustc --quiet --profile test --lib -p terrace-track --message-format json -- \
    -C target-feature=+crt-static | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
strip -o "$out/track-tests" "$tests"
check trackers-in-the-guest "$terrace" lab run --machine lab-cxl --no-trace \
    --carry "$out/track-tests" -- "$out/track-tests" page_table --nocapture --test-threads=1
said=$out/trackers-in-the-guest.out
check trackers-see-in-the-guest grep -q '^test result: ok. 3 passed' "$said"
check trackers-skip-nothing-in-the-guest sh -c "! grep '^skipped' '$said'"

# Two series give the same seconds to the digit.
small=skew,accesses=8M
for series in one two; do
    check "compare-$series" "$terrace" lab compare --machine lab-cxl --jobs 2 --json \
        --policy first-touch,terrace --workload $small
done
seconds() { sed -n 's/^ *"seconds": \([0-9.]*\),*$/\1/p' "$1" | awk '{ printf "%.3g ", $1 }'; }
same_seconds() {
    one=$(seconds "$out/compare-one.out")
    two=$(seconds "$out/compare-two.out")
    [ -n "$one" ] && [ "$one" = "$two" ] || { echo "seconds differ: $one and $two" >&2; return 1; }
}
check seconds-repeat same_seconds
outputs_agree() {
    sums=$(sed -n 's/^ *"output_sum": "\(.*\)",*$/\1/p' "$out/compare-one.out" | sort -u | wc -l)
    [ "$sums" = 1 ] || { echo "$sums different outputs of one workload" >&2; return 1; }
}
check outputs-agree outputs_agree

# A policy that cannot run is a row that says why, and the command fails: a workload that refuses
# its arguments.
says() {
    if "$terrace" lab compare --machine lab-cxl --policy bound:ideal-move --json \
        --workload skew,hot_share=5 >"$out/says.out" 2>"$out/says.err"; then
        echo "it should have failed" >&2
        return 1
    fi
    grep -q '"error": "the workload exited with status .*hot_share' "$out/says.out" &&
        grep -q 'no time.*bound:ideal-move' "$out/says.err" ||
        { tail -n 1 "$out/says.err" >&2; return 1; }
}
check refused-arguments-are-told says

# A short program is charged its own time alone under every policy, and a tool's start is brief. A
# bound takes a program that marks no phase.
check compare-short "$terrace" lab compare --machine lab-cxl --jobs 2 --json \
    --policy first-touch,terrace,bound:static --no-trace -- /bin/true
own_time() {
    set -- $(sed -n 's/^ *"\(startup_\)*seconds": \([0-9.e-]*\),*$/\2/p' "$out/compare-short.out")
    [ $# = 6 ] || { echo "$# times, not 6" >&2; return 1; }
    awk -v base="$1" -v ours="$3" -v start="$4" -v bound="$5" 'BEGIN {
        exit !(ours < 1.25 * base && start < 0.010 && bound < 1.02 * base) }' ||
        { echo "first touch $1 s, terrace $3 s after $4 s, bound $5 s" >&2; return 1; }
}
check programs-are-charged-their-own-time own_time

# Programs have the files that they open here, found by running them once in a sandbox.
needs=$(mktemp -d)
echo 'int main(void) { return 0; }' >"$needs/x.c"
seq 1000 >"$needs/numbers"
{
    echo 'set -e; gzip -k numbers; gzip -cd numbers.gz | cksum; read line; echo "input $line"'
    command -v python3 >/dev/null 2>&1 && echo 'python3 -c "import json; print(json.dumps([1]))"'
    command -v sqlite3 >/dev/null 2>&1 && echo 'sqlite3 new.db "create table t(x); select 1+1"'
    command -v gcc >/dev/null 2>&1 && echo 'gcc -c x.c; ls -l x.o | cut -c1'
} >"$needs/all.sh"
as_here() {
    terrace_here=$(cd "$(dirname "$terrace")" && pwd)/terrace
    (cd "$needs" && "$terrace_here" lab run --machine lab-cxl --stdin numbers \
        --fetch numbers.gz -- sh all.sh) >"$out/needs.out" || return 1
    gzip -cd "$needs/numbers.gz" | cmp - "$needs/numbers" >&2 || return 1
    [ ! -e "$needs/x.o" ] && [ ! -e "$needs/new.db" ] ||
        { echo "the sandbox left files" >&2; return 1; }
    rm "$needs/numbers.gz"
    (cd "$needs" && sh all.sh <numbers) >"$out/needs-here.out" || return 1
    cmp "$out/needs-here.out" "$out/needs.out" >&2
}
check programs-have-their-files as_here
rm -rf "$needs"

# A signal that ended the program is named, and the status is a shell's.
killed() {
    "$terrace" lab run --machine lab-cxl --no-trace -- sh -c 'kill -SEGV $$' 2>"$out/killed.err"
    status=$?
    [ $status = 139 ] && grep -q 'killed by signal 11 (SIGSEGV)' "$out/killed.err" ||
        { echo "status $status: $(tail -n 1 "$out/killed.err")" >&2; return 1; }
}
check signals-are-named killed

# Interrupted: rows for all, no file left.
interrupted() {
    "$terrace" lab compare --machine lab-cxl --jobs 1 --policy first-touch,terrace \
        --workload skew,accesses=512M >"$out/interrupted.out" 2>"$out/interrupted.err" &
    compare=$!
    tries=0
    while ! ls "$lab"/runs/$compare-*/console >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "no machine was started" >&2; kill $compare; return 1; }
        sleep 0.1
    done
    kill -TERM $compare
    wait $compare
    status=$?
    [ $status = 130 ] && [ "$(grep -c 'no time: interrupted' "$out/interrupted.out")" = 2 ] &&
        ! ls -d "$lab"/runs/$compare-* >/dev/null 2>&1 ||
        { echo "status $status, $(ls "$lab/runs" | wc -l) runs left" >&2; return 1; }
}
check interrupted-comparisons-leave-nothing interrupted

# What the tool takes of memory lies below the best tier; the command that it starts inherits
# nothing of that.
inherits_nothing() {
    "$terrace" lab run --machine lab-cxl --no-trace --carry "$lab/bin/terrace" --carry cat -- \
        "$lab/bin/terrace" run -- cat /proc/self/numa_maps >"$out/numa-maps.out" || return 1
    # Mapped files show the policy of the guest's file system, which lies on the slow node.
    grep -v ' file=' "$out/numa-maps.out" >"$out/numa-maps-own.out"
    grep -q ' default .*stack' "$out/numa-maps-own.out" && ! grep -q 'prefer' \
        "$out/numa-maps-own.out" ||
        { echo "memory policy of the command: $(grep prefer "$out/numa-maps-own.out" | head -n 1)" >&2; return 1; }
}
check commands-inherit-no-memory-policy inherits_nothing

# What calibrating left on the CPUs' lists of free pages (some 980 pages of the fast node) is
# nobody's room: a job finds them short.
check zones-of-a-job "$terrace" lab run --machine lab-cxl --no-trace --carry cat -- cat \
    /proc/zoneinfo
lists_are_short() {
    listed=$(awk '/^Node /{ fast = /^Node 0,/ } fast && $1 == "count:" { sum += $2; lists++ } END { if (lists) print sum + 0 }' "$out/zones-of-a-job.out")
    [ -n "$listed" ] && [ "$listed" -lt 450 ] || { echo "${listed:-no} pages of node 0 on lists" \
        >&2; return 1; }
}
check lists-are-short-before-a-job lists_are_short

# Longer: our policy must find and move the hot set, and gain by it.
check compare-gain "$terrace" lab compare --machine lab-cxl --jobs 2 --json \
    --policy first-touch,terrace --workload skew,accesses=48M
gains() {
    set -- $(sed -n 's/^ *"seconds": \([0-9.]*\),*$/\1/p' "$out/$1.out")
    awk -v base="$1" -v ours="$2" 'BEGIN { exit !(ours < 0.8 * base) }' ||
        { echo "terrace took $2 s, first touch $1 s" >&2; return 1; }
}
check terrace-gains-on-skew gains compare-gain

# The same in huge pages, which all have their accessed bit set after any ordinary look.
check compare-huge "$terrace" lab compare --machine lab-cxl --jobs 2 --json \
    --policy first-touch,terrace --workload skew,accesses=24M,pages=thp
check terrace-gains-in-huge-pages gains compare-huge

# Classes, reservations and commits where the fast node is another than the CPUs'.
cargo build --quiet --release -p terrace-alloc --example residency --example offline || { echo \
    "FAILED alloc-build: cargo build"; exit 1; }
for example in residency offline; do
    strip -o "$out/$example" "${CARGO_TARGET_DIR:-target}/release/examples/$example" || { echo \
        "FAILED alloc-build: strip $example"; exit 1; }
done
check alloc-boots "$terrace" lab setup --machine lab-hbm &&
    check alloc-two-nodes "$terrace" lab run --machine lab-hbm --no-trace -- "$out/residency"
# A node of which the kernel takes seven blocks of nine offline: no data is lost, nothing is
# promised that is not there.
check alloc-node-goes-offline "$terrace" lab run --machine lab-cxl --no-trace -- "$out/offline" 1
# Four clusters with two nodes each, four CPUs.
check alloc-boots-eight-nodes "$terrace" lab setup --machine lab-snc4 &&
    check alloc-eight-nodes "$terrace" lab run --machine lab-snc4 --no-trace -- "$out/residency"

# Staging on that machine with two CPUs, whose fast node is five times as fast: as predicted before
# the run, by the model's choice and by a fixed split, and the same sums as in place. The last row
# moves pages there and home, which takes several times as long as not to.
cargo build --quiet --release -p terrace-migrate --example stage_bench || { echo \
    "FAILED stage-build: cargo build"; exit 1; }
check stage-in-the-lab "$terrace" lab run --machine lab-hbm --no-trace -- \
    "${CARGO_TARGET_DIR:-target}/release/examples/stage_bench" \
    slow=0,10 fast=1,50 cache=4096 mib=48 block=6144 passes=3,8 rows=place:2,auto:2,1:1,stay/1:1
stages() {
    awk -F'|' '
        $2 + 0 > 0 {
            rows++
            stays = $3 ~ /stay/
            if ($3 !~ /place/ && ($4 !~ /staged/ || $7 < (stays ? 0.8 : 0.95) * $8)) bad = bad $0
            if (stays && $8 < $7 / 2) bad = bad "nothing was moved: " $0
            if ($2 in sum && sum[$2] != $11) bad = bad "sums differ: " $0
            sum[$2] = $11
        }
        END {
            if (rows != 8) { print rows " rows, not 8"; exit 1 }
            if (bad != "") { print bad; exit 1 }
        }' "$out/stage-in-the-lab.out" >&2
}
check stages-as-predicted stages

# What the probe measures in a machine is what the machine was made from.
if command -v python3 >/dev/null 2>&1; then
    check probe-in-the-lab "$terrace" lab run --machine lab-cxl --no-trace --carry \
        "$lab/bin/terrace" --carry cat -- \
        sh -c "$lab/bin/terrace probe --brief -o m.toml >&2; cat m.toml" &&
        check probe-reads-it-back python3 bench/probe/readback.py \
            crates/machine/presets/lab-cxl.toml "$out/probe-in-the-lab.out" &&
        # A machine of the lab is made from the file, and reads back what was measured. Its caches
        # are those that QEMU says it has.
        check probed-file-boots "$terrace" lab setup --machine "$out/probe-in-the-lab.out" &&
        check probed-file-runs "$terrace" lab run --machine "$out/probe-in-the-lab.out" \
            --no-trace -- cat /sys/devices/system/node/online &&
        check probed-file-has-two-nodes grep -qx 0-1 "$out/probed-file-runs.out"
else
    echo "skipped probe-in-the-lab: python3 is not installed"
fi

# A node made slower: what the command itself reads of it is what was asked for, within a tenth, and
# of the other node all that it gives.
cargo build --quiet --release -p terrace-probe --example degrade_meter || { echo \
    "FAILED meter-build: cargo build"; exit 1; }
meter=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)/release/examples/degrade_meter
check degrade-in-the-lab "$terrace" lab run --machine lab-cxl --no-trace --carry \
    "$lab/bin/terrace" --carry "$meter" -- \
    "$lab/bin/terrace" degrade 1 --to 12GB/s -- "$meter" 5
degrades() {
    grep -q 'at the end .* while the command ran .*: held' "$out/degrade-in-the-lab.err" || { \
        echo "the rate was not held" >&2; return 1; }
    awk '/^node 0:/ { near = $3 } /^node 1:/ { far = $3 } END { print near, far; exit !(near > 95 && far > 10.8 && far < 13.2) }' \
        "$out/degrade-in-the-lab.out" >&2
}
check degrade-holds-the-rate degrades

# What regions would never show: 16 pages that are written, scattered among 896 MiB that are only
# read, all that the machine has room for.
cargo build --quiet --release -p terrace-track --example livecheck || { echo \
    "FAILED livecheck-build: cargo build"; exit 1; }
check sixteen-written-pages-are-found "$terrace" lab run --machine lab-cxl --no-trace -- \
    "${CARGO_TARGET_DIR:-target}/release/examples/livecheck" tracker=soft-dirty hot-pages=16 \
        cold=896 op=write interval=50 seconds=0.2 costs=0 expect=100

# The same where the program maps memory beside its own, now and then: the kernel calls all of it
# soft-dirty then, though it is only read.
check written-pages-are-found-where-memory-is-mapped-beside "$terrace" lab run --machine lab-cxl \
    --no-trace -- \
    "${CARGO_TARGET_DIR:-target}/release/examples/livecheck" tracker=soft-dirty hot-pages=16 \
        cold=64 op=write interval=50 seconds=1 beside=120 costs=0 expect=100 wrong=10

# The hot set by samples of the lab's unit, through the rings, the decoder and the tracker that
# hardware's samples go through.
check hot-pages-are-found-by-samples "$terrace" lab run --machine lab-cxl --no-trace -- \
    "${CARGO_TARGET_DIR:-target}/release/examples/livecheck" tracker=perf,loads=401,buffer=8KiB \
        hot=16 cold=48 op=read interval=100 seconds=0.3 costs=0 expect=80 wrong=25

# Two cases at a time.
"$lab/bin/terrace-cases" list | xargs -P 2 -n 1 scripts/ring3.sh case
