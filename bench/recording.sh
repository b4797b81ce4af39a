#!/bin/sh
# What recording costs a program: CPU seconds of bench/programs/cg_like.c by its own clock, plain,
# compiled with hooks, and recorded each way; medians of 5. Then seconds by the wall of the real
# npb-cg, `terrace-workload` beside TERRACE, of 3. Usage: bench/recording.sh TERRACE [ROUNDS]. Needs
# gcc; clang and qemu-x86_64 as far as there.
set -eu
terrace=$(readlink -f "$1") rounds=${2:-25}
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$here/capture/build.sh" "$work/plugin.so"
"$here/capture/hooks/build.sh" "$work/hooks"
"$here/capture/translator/build.sh" "$work/terrace-translate"
export TERRACE_CAPTURE_PLUGIN="$work/plugin.so" TERRACE_TRANSLATOR="$work/terrace-translate"
compilers=
for cc in gcc clang; do
    command -v "$cc" >/dev/null || continue
    compilers="$compilers $cc"
    "$cc" -O2 -o "plain-$cc" "$here/bench/programs/cg_like.c"
    TERRACE_CC=$cc hooks/terrace-cc -O2 -o "hooked-$cc" "$here/bench/programs/cg_like.c"
done
one() { # NAME COMMAND...: the program prints its sum and its seconds
    name=$1
    shift
    "$@" | awk -v name="$name" '{ print name, $2 }' >>seconds
}
for _ in 1 2 3 4 5; do
    for cc in $compilers; do
        one "$cc plain" "./plain-$cc" "$rounds"
        one "$cc hooks, no recorder" "./hooked-$cc" "$rounds"
        one "$cc hooks, recorded" "$terrace" record -q --source hooks -o t.trace -- \
            "./hooked-$cc" "$rounds"
    done
    one "gcc translated, recorded" "$terrace" record -q --source translated -o t.trace -- \
        ./plain-gcc "$rounds"
    command -v qemu-x86_64 >/dev/null || continue
    one "gcc qemu alone" qemu-x86_64 ./plain-gcc "$rounds"
    one "gcc qemu, recorded" "$terrace" record -q --source full -o t.trace -- ./plain-gcc "$rounds"
done
medians() { # OF: the middle one of so many of each name
    sort -k1,1 seconds | awk \
        '{ s = $NF; $NF = ""; all[$0] = all[$0] " " s } END { for (name in all) print name all[name] }' |
        while read -r line; do
            name=$(printf %s "$line" | sed 's/ [0-9. ]*$//')
            median=$(printf %s "$line" | grep -o '[0-9][0-9.]*' | sort -n | sed -n "$1p")
            echo "$median s  $name"
        done | sort -k3
}
medians 3

workload=$(dirname "$terrace")/terrace-workload
[ -x "$workload" ] || exit 0
wall() { # NAME COMMAND...
    name=$1 begin=$(date +%s%N)
    shift
    "$@" >/dev/null 2>&1
    echo "$name $(($(date +%s%N) - begin))" | awk \
        '{ s = $NF / 1e9; $NF = ""; printf "%s%.3f\n", $0, s }' >>seconds
}
rm seconds
for _ in 1 2 3; do
    wall "npb-cg plain" "$workload" npb-cg,threads=1,size=64M
    wall "npb-cg translated, recorded" "$terrace" record -q --source translated -o t.trace -- \
        "$workload" npb-cg,threads=1,size=64M
    command -v qemu-x86_64 >/dev/null || continue
    wall "npb-cg qemu, recorded" "$terrace" record -q --source full -o t.trace -- "$workload" \
        npb-cg,threads=1,size=64M
done
echo "by the wall:"
medians 2
