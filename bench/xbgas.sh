#!/bin/sh
# Measures kernels on xBGAS processing elements in simulated time and prints the tables of
# docs/results/xbgas.md. Needs riscv64-linux-gnu-gcc and a built terrace; a minute or two.
#
#   bench/xbgas.sh [TERRACE]
set -eu
cd "$(dirname "$0")/.."
terrace=${1:-target/release/terrace}
runtime=crates/xbgas/runtime
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for unroll in 1 0; do
    riscv64-linux-gnu-gcc -O2 -static -no-pie -DXBRTIME_UNROLL=$unroll -I $runtime \
        bench/xbgas/study.c $runtime/xbrtime.c $runtime/transfer.c -o "$work/study$unroll"
done

# measure PROGRAM ELEMENTS FABRIC KERNEL WAY SIZE [OPTION...]: nanoseconds and digest.
measure() {
    program=$1 elements=$2 fabric=$3 kernel=$4 way=$5 size=$6
    shift 6
    "$terrace" riscv run --pes "$elements" --machine ddr-cxl --fabric "$fabric" "$@" \
        "$work/$program" "$kernel" "$way" "$size"
}

# measure_checked KERNEL WAY SIZE ELEMENTS FABRIC: nanoseconds, in $time; the ways have to agree on
# what they computed.
measure_checked() {
    found=$(measure study1 "$4" "$5" "$1" "$2" "$3")
    time=${found%% *}
    digest=$work/$1-$4
    [ -e "$digest" ] || echo "${found##* }" >"$digest"
    [ "$(cat "$digest")" = "${found##* }" ] || { echo "$1 $2: wrong" >&2; exit 1; }
}

us() {
    awk -v ns="$1" 'BEGIN { printf "%.2f", ns / 1000 }'
}

echo "Microseconds of kernels; each is the same work on any number of elements."
printf '\n| kernel | way | 1 | 4 | 16 | efficiency at 16 | 16, network of 200 ns |\n'
echo "|---|---|---|---|---|---|---|"
for what in gather:1 broadcast:1 gups:8192 is:8192 chase:2048 stream:16384 halo:16384 bfs:4096; do
    kernel=${what%:*} size=${what#*:}
    for way in raw calls messages; do
        row="| $kernel | $way |"
        for elements in 1 4 16; do
            measure_checked "$kernel" $way "$size" $elements 100ns
            [ "$elements" != 1 ] || alone=$time
            row="$row $(us "$time") |"
        done
        case $kernel in
        gather | broadcast | chase) row="$row |" ;;
        *) row="$row $(awk -v a="$alone" -v t="$time" 'BEGIN { printf "%.2f", a / t / 16 }') |" ;;
        esac
        measure_checked "$kernel" $way "$size" 16 200ns
        echo "$row $(us "$time") |"
    done
done

echo
echo "Nanoseconds of one transfer of 8-byte words between two elements, 100ns."
printf '\n| words | get | put | get, not unrolled | get in order | get in order, not unrolled |\n'
echo "|---|---|---|---|---|---|"
for size in 1 8 64 512 4096; do
    row="| $size |"
    row="$row $(measure study1 2 100ns get calls $size | cut -d' ' -f1) |"
    row="$row $(measure study1 2 100ns put calls $size | cut -d' ' -f1) |"
    row="$row $(measure study0 2 100ns get calls $size | cut -d' ' -f1) |"
    row="$row $(measure study1 2 100ns get calls $size --in-order | cut -d' ' -f1) |"
    echo "$row $(measure study0 2 100ns get calls $size --in-order | cut -d' ' -f1) |"
done

echo
for fabric in 100ns 200ns; do
    measure study1 2 $fabric rate raw 10000 | awk -v f=$fabric \
        '{ printf "Stores of one word, %s: %.1f million a second.\n", f, 10000 / $1 * 1000 }'
done
