#!/bin/sh
# The tables of docs/results/crash.md, again: success of restarts by phase, threads and input, and
# inconsistent rates.
#
#   bench/crash.sh [CASE ...]     all cases unless said otherwise; a part of a name will do
#
# COUNT sets the crashes of a case (100, as in the paper), LIMIT its seconds at most (1200): a case
# that takes longer keeps the restarts so far, or has no result. TIMEOUT sets a restart's seconds at
# most (600). What was run stays in $target/bench/crash and is not run again: remove it to have it
# anew. TERRACE names another terrace than the release build. An hour or more for all. The pictures
# of all cases are in $target/bench/crash/crash.html.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
target=${CARGO_TARGET_DIR:-target}
count=${COUNT:-100}
if [ -z "${TERRACE:-}" ]; then
    cargo build --quiet --release -p terrace-cli
    TERRACE=$target/release/terrace
fi
out=$target/bench/crash
mkdir -p "$out"
if [ -z "${TERRACE_TRANSLATOR:-}" ]; then
    capture/translator/build.sh "$out/terrace-translate"
    TERRACE_TRANSLATOR=$out/terrace-translate
    export TERRACE_TRANSLATOR
fi
make --quiet -C examples/crash OUT="$(cd "$out" && pwd)"
# Name, phases, program and its arguments.
cat >"$out/cases" <<'CASES'
cg-S-1 3 cg S 1
cg-S-4 3 cg S 4
cg-S-8 3 cg S 8
cg-W-1 3 cg W 1
cg-A-1 3 cg A 1
cg-A-4 3 cg A 4
cg-A-8 3 cg A 8
cg-B-1 3 cg B 1
ft-S-1 4 ft S 1 1
ft-A-1 4 ft A 1 1
mg-S-1 2 mg S 1
mg-W-1 2 mg W 1
mg-A-1 2 mg A 1
kmeans-S-1 3 kmeans S 1
kmeans-W-1 3 kmeans W 1
kmeans-W-4 3 kmeans W 4
kmeans-A-1 3 kmeans A 1
CASES
wanted() {
    [ $# -gt 1 ] || return 0
    name=$1
    shift
    for part in "$@"; do
        case $name in *"$part"*) return 0 ;; esac
    done
    return 1
}
while read -r name phases program arguments; do
    wanted "$name" "$@" || continue
    [ ! -e "$out/$name.json" ] || continue
    echo "$name" >&2
    # A run that ends early leaves nothing that looks like a result.
    # shellcheck disable=SC2086
    timeout -k 60 "${LIMIT:-1200}" "$TERRACE" crash run --json --count "$count" \
        --phases "$phases" --timeout "${TIMEOUT:-600}" --work "$out" -- \
        "$out/$program" $arguments </dev/null >"$out/$name.part" && mv "$out/$name.part" \
            "$out/$name.json"
done <"$out/cases"
cat "$out"/*.json >"$out/all" && "$TERRACE" report "$out/all" -o "$out/crash.html" >/dev/null
python3 bench/crash_table.py "$out" <"$out/cases"
