#!/bin/sh
# Two programs that share the fast tier of the lab, each managed by a `terrace run` of its own, or
# one of them beside the other, which nobody manages: guest seconds until both have ended.
# usage: two.sh                 all four cases, one after the other
# Needs what suite.py needs, and that `suite.py build` was run.
set -eu
here=$(cd "${0%/*}" && pwd)
root=${here%/bench/programs}
bin=$root/target/bench/programs/bin
terrace=${TERRACE:-$root/target/release/terrace}

programs() {
    first="$bin/semijoin 3 1200000 3000000 20 1"
    second="$bin/counts 1 3000000 2000000 3000000 1 2097152"
    managed="$terrace run --"
    case $1 in
    none) $first & $second & ;;
    both) $managed $first & $managed $second & ;;
    first) $managed $first & $second & ;;
    second) $first & $managed $second & ;;
    esac
    wait
}

if [ $# = 2 ]; then # in the lab
    terrace=$2
    programs "$1"
    exit
fi
for case in none both first second; do
    printf '%s managed: ' "$case"
    "$terrace" lab compare --json --machine lab-cxl --policy first-touch --no-trace \
        --carry "$bin/semijoin" --carry "$bin/counts" --carry "$terrace" --file "$here/two.sh" \
        -- /bin/sh "$here/two.sh" "$case" "$terrace" | sed -n 's/.*"seconds": *\([0-9.]*\).*/\1 s/p'
done
