#!/bin/sh
# The study of software-defined memory again, on far memory: the tables of
# docs/results/software-defined-memory.md.
#
#   bench/far/study.sh [--quick] [--only KERNEL,...] [--dram MIB] [--seconds N]
#
# All DRAM, far memory on a disk and the kernel's swap on the same disk take turns at polynomials
# (poly1, poly2), stream, gemm-plain, gemm-segmented, lu-plain, lu-no-pivots, lu-tiled and fft, with
# data from 0.2 to 4 times the memory. About 8 minutes with --quick (48 MiB of memory), 25 without
# (96 MiB). Everything is measured once, and again, up to three times, while there is time. Root,
# for swap; without it swap is skipped and says so. Compiled for this machine's vector units.
#
# --only: kernels whose names begin so. --dram: another size of memory. --seconds: after so many no
# run is begun a second time. FAR_STUDY_THREADS: threads that compute, as many as there are CPUs
# unless set.
#
# TERRACE_FAR_DIR: a folder on the disk to measure, by default the build's. Lines of JSON are kept
# beside the build; with --only they are added to those of before, so that a long study can be made
# in parts. Swap and the cgroup are taken down again, whatever happens.
set -eu
cd "$(dirname "$0")/../.."
. scripts/lib.sh

PATH=$(scripts/setup.sh):$PATH
export PATH
# A folder of its own: other builds are not for this machine alone.
target=${CARGO_TARGET_DIR:-target}/native
RUSTFLAGS="${RUSTFLAGS:-} -C target-cpu=native" cargo build --quiet --release -p terrace-far \
    --example far-study --target-dir "$target"
study=$target/release/examples/far-study
folder=${TERRACE_FAR_DIR:-$target/far-study}
mkdir -p "$folder"
lines=$target/far-study${FAR_STUDY_THREADS:+-threads-$FAR_STUDY_THREADS}.jsonl
case " $* " in *" --only "*) ;; *) rm -f "$lines" ;; esac

child=
undo() {
    # The driver and whom it measures are a process group.
    if [ -n "$child" ]; then
        kill -- "-$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    "$study" undo "$folder"
}
trap undo EXIT
trap 'exit 130' INT TERM HUP

echo "revision $(git describe --always --dirty), $(date -u +%Y-%m-%d)"
echo "host: $(uname -srm), $(nproc) CPUs, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
# Freed blocks go back to the kernel at once, so that peers differ in nothing but their data's
# memory.
MALLOC_ARENA_MAX=1 MALLOC_MMAP_THRESHOLD_=524288 setsid "$study" drive "$folder" --lines "$lines" \
    "$@" &
child=$!
wait "$child" || exit 1
child=
"$study" tables "$lines"
