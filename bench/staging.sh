#!/bin/sh
# Staging in the lab, the tables of docs/results/staging.md and migration.md: the microbenchmark of
# Perarnau et al. on three machines beside memory mode, data larger than the near node, kernels that
# write, addresses that stay, and their migration study.
#
#   bench/staging.sh [--quick] --quick: one machine, two numbers of passes, a kernel; half an hour
#   without
#
# Rows go to target/bench/staging/, in the form of docs/results/staging/. Guest time: what else the
# host does changes nothing.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

quick=
[ "${1:-}" = --quick ] && quick=yes
cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p terrace-migrate --examples
cargo build --quiet --release -p terrace-lab --example lab
scripts/lab-parts.sh
out=$target/bench/staging
mkdir -p "$out"

# rows FILE COMMAND...: what the command writes goes to FILE and is shown; a command that fails ends
# all.
rows() {
    file=$out/$1
    shift
    "$@" >"$file"
    cat "$file"
}

# lab MACHINE POLICY PROGRAM ARGUMENTS...: rows on standard output, the rest of what is said on
# standard error.
lab() {
    machine=$1 policy=$2 program=$target/release/examples/$3
    shift 3
    say "$machine, $policy: $*"
    "$target/release/examples/lab" run --limit 5400 --machine "$machine" --policy "$policy" -- \
        "$program" "$@"
}

degraded="slow=1,7.143 fast=0,40 cache=4096 mib=128"
pcie="slow=1,.5 fast=0,100 cache=4096"
fixed=place:8,place:12,auto:12,8:4,4:8
# shellcheck disable=SC2086
short() {
    lab bench/machines/stage-degraded.toml first-touch stage_bench $degraded block=2048 \
        passes=2,10 rows=$fixed
    lab bench/machines/stage-degraded.toml first-touch stage_kernels $degraded threads=12 \
        block=1024 cases=five:2
}

# shellcheck disable=SC2086
microbenchmark() {
    lab "$1" first-touch stage_bench $2 block=2048 passes=$passes rows=$fixed
    # Rows of the same table: a second head is none of it. Without any row this fails.
    lab "$1" first-touch stage_bench $2 block=2048 passes=1,20 rows=place:1,place:2,place:4 | \
        grep '^| [0-9]'
}

# shellcheck disable=SC2086
memory_mode() {
    lab "$1" hardware:memory-mode stage_bench $2 block=2048 passes=$passes rows=place:12
}

hbm() {
    lab lab-hbm first-touch stage_bench slow=0,10 fast=1,50 cache=4096 mib=48 block=6144 \
        passes=1,2,3,4,6,8,12,16,20 rows=place:2,auto:2,1:1
}

# shellcheck disable=SC2086
larger() {
    for row in "first-touch auto:12" "hardware:memory-mode place:12"; do
        echo "${row% *}"
        lab bench/machines/stage-pcie.toml "${row% *}" stage_bench $pcie mib=384 block=2048 \
            passes=1,2,5,20 rows="${row#* }"
    done
}

# shellcheck disable=SC2086
kernels() {
    echo "stage-pcie, 240 MiB"
    lab bench/machines/stage-pcie.toml first-touch stage_kernels $pcie threads=12 mib=240 \
        block=1024 \
        cases=five:1,five:2,five:4,nine:2,nine:4,product:1,product:3
    echo "stage-degraded, 128 MiB"
    lab bench/machines/stage-degraded.toml first-touch stage_kernels $degraded threads=12 \
        block=1024 \
        cases=five:1,five:2,five:6,nine:2,nine:6,product:1,product:3
}

stays() {
    lab lab-hbm first-touch stage_bench slow=0,10 fast=1,50 cache=4096 mib=48 block=6144 \
        passes=3,8,40 \
        rows=place:2,auto:2,stay/1:1,stay/auto:2
}

# moving MACHINE SERIAL-KIB THREADS [ARGUMENT...]
moving() {
    machine=$1 serial=$2 threads=$3
    shift 3
    lab "$machine" first-touch migration_study from=1 to=0 serial="$serial" parallel=64 \
        threads="$threads" repeat=3 "$@"
}

passes=1,2,3,5,10,20
if [ -n "$quick" ]; then
    rows quick.txt short
    exit
fi
for which in "degraded $degraded" "numa slow=1,20 fast=0,40 cache=4096 mib=128" \
    "pcie $pcie mib=48"; do
    name=${which%% *} figures=${which#* }
    rows "stage-$name.txt" microbenchmark "bench/machines/stage-$name.toml" "$figures"
    rows "memory-mode-$name.txt" memory_mode "bench/machines/stage-$name.toml" "$figures"
done
rows lab-hbm.txt hbm
rows larger-than-fast-pcie.txt larger
rows kernels.txt kernels
rows stays-hbm.txt stays
base=4,16,64,256,1024,4096,16384,65536 huge=2048,4096,16384,65536
rows migration-degraded.txt moving bench/machines/stage-degraded.toml $base 2,4,8,12
rows moving-numa-base.txt moving lab-numa $base 2
rows moving-numa-huge.txt moving lab-numa $huge 2 pages=huge
rows moving-stage-numa-huge.txt moving bench/machines/stage-numa.toml $huge 2,4,8,12 pages=huge
