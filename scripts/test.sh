#!/bin/sh
# All tests, counted: house checks, rings 1 and 2 (cargo test), ring 3 (the lab).
#
#   scripts/test.sh           all, the last stage from an installed prefix
#   scripts/test.sh --ring1   unit tests only, under a minute once built
#
# The last line is "N passed, N failed, N skipped"; why each was skipped stands above it.
# Full output of each stage: target/test-logs/.
set -u
cd "$(dirname "$0")/.."
. scripts/lib.sh
exec </dev/null

only_ring1=0
[ "${1:-}" = --ring1 ] && only_ring1=1
if [ $only_ring1 = 1 ]; then cargo_folder=$(scripts/setup.sh); else cargo_folder=$(scripts/setup.sh --test); fi || exit 1
PATH=$cargo_folder:$PATH
export PATH CARGO_TERM_COLOR=never
cuda=$(cuda_options terrace-alloc terrace-capi terrace-cli)

logs=${CARGO_TARGET_DIR:-target}/test-logs
mkdir -p "$logs"
results=$logs/results
: >"$results"

# Results are lines "ok NAME", "FAILED NAME: why" and "skipped NAME: why"; tests that cargo ran
# are added up in "count PASSED FAILED".
note() { echo "$*" >>"$results"; }

# check NAME COMMAND...: one house check.
check() {
    name=$1
    shift
    log=$logs/$(echo "$name" | tr ' /' '--').log
    say "$name"
    if "$@" >"$log" 2>&1; then
        note "ok $name"
    else
        note "FAILED $name: see $log"
        tail -n 40 "$log" >&2
    fi
}

# tests LOG LIMIT ARGUMENTS...: cargo test, its results read from its output in LOG.
tests() {
    log=$logs/$1.log
    limit=$2
    shift 2
    # shellcheck disable=SC2086 # options are words
    timeout "$limit" cargo test --workspace $cuda --no-fail-fast "$@" -- --show-output >"$log" 2>&1
    status=$?
    # A test that prints "skipped: why" counts as skipped, not as passed.
    awk '
        /^running [0-9]+ tests?$/ { program++; name = "" }
        /^---- .* stdout ----$/ { name = $2; next }
        /^skipped: / && name != "" { why[program " " name] = substr($0, 10) }
        /^test .* \.\.\. FAILED$/ { print "FAILED " $2 ": see a log of cargo test" }
        /^test result: / { passed += $4; failed += $6; ignored += $8; name = "" }
        END {
            for (key in why) {
                print "skipped " substr(key, index(key, " ") + 1) ": " why[key]
                passed--
            }
            if (ignored) print "skipped " ignored " tests: marked as ignored"
            print "count " passed + 0 " " failed + 0
        }' "$log" >>"$results"
    if [ $status = 124 ]; then
        note "FAILED cargo test: not done after $limit seconds"
    elif [ $status != 0 ] && ! grep -q '^test .* FAILED$' "$log"; then
        note "FAILED cargo test: did not build or crashed, see $log"
        # What a program said last stands above cargo's line on its end.
        grep -B 20 -A 12 '^error' "$log" | tail -n 80 >&2
    elif [ $status != 0 ]; then
        # Tests that passed print their panics too: only what stands under "failures:" is of tests
        # that did not.
        awk '
            /^(running [0-9]|successes:$|test result: )/ { shown = 0 }
            /^failures:$/ { shown = 1 }
            shown' "$log" | grep -A 14 "panicked at" | tail -n 80 >&2
    fi
}

if [ $only_ring1 = 1 ]; then
    say "ring 1: unit tests"
    tests unit-tests 900 --lib --bins
else
    if cargo fmt --version >/dev/null 2>&1; then
        check "format" cargo fmt --all -- --check
    else
        note "skipped format: rustfmt is not installed (rustfmt, or rustfmt-web on Debian 12)"
    fi
    if cargo clippy --version >/dev/null 2>&1; then
        # shellcheck disable=SC2086 # options are words
        check "clippy" timeout 900 cargo clippy --quiet --workspace $cuda --all-targets -- -D warnings
    else
        note "skipped clippy: it is not installed (rust-clippy, or rust-web-clippy on Debian 12)"
    fi
    check "tidy" cargo xtask tidy
    # Workspaces of their own are built by other commands: what they lock is to be what they need.
    for folder in fuzz python bench/alloc; do
        check "lock of $folder" cargo metadata --quiet --locked --format-version 1 --manifest-path "$folder/Cargo.toml"
    done
    say "python package"
    if scripts/python.sh "${CARGO_TARGET_DIR:-target}" 3>&2 >"$logs/python.log" 2>&1; then
        why=$(sed -n 's/^skipped: //p' "$logs/python.log" | head -n 1)
        if [ -n "$why" ]; then note "skipped python: $why"; else note "ok python"; fi
    else
        note "FAILED python: see $logs/python.log"
        tail -n 40 "$logs/python.log" >&2
    fi
    if [ -d ../shared/data ]; then data=found; else data="absent: their tests are skipped"; fi
    # Far memory beside its model for so long; `make soak` has ten minutes.
    export TERRACE_FAR_SECONDS="${TERRACE_FAR_SECONDS:-30}"
    say "rings 1 and 2: cargo test (outside data $data)"
    # Examples have no tests and were compiled by clippy: they are not built again.
    tests tests 2400 --tests
    tests documentation-tests 900 --doc
    say "ring 3: the lab"
    timeout "${TERRACE_RING3_SECONDS:-2400}" scripts/ring3.sh >"$logs/ring3.out" 2>"$logs/ring3.log"
    status=$?
    grep -E '^(ok|FAILED|skipped) ' "$logs/ring3.out" >>"$results"
    if [ $status = 124 ]; then
        note "FAILED ring 3: not done after ${TERRACE_RING3_SECONDS:-2400} seconds"
    elif [ $status != 0 ] && ! grep -q '^FAILED ' "$logs/ring3.out"; then
        note "FAILED ring 3: scripts/ring3.sh ended with status $status, see $logs/ring3.log"
    fi
    [ $status = 0 ] || tail -n 40 "$logs/ring3.log" >&2
    say "an installed prefix, and the commands of the documents"
    timeout 900 scripts/installed.sh >"$logs/installed.out" 2>"$logs/installed.log"
    status=$?
    grep -E '^(ok|FAILED|skipped) ' "$logs/installed.out" >>"$results"
    if [ $status != 0 ] && ! grep -q '^FAILED ' "$logs/installed.out"; then
        note "FAILED installed prefix: ended with status $status, see $logs/installed.log"
    fi
fi

say "done"
grep -E '^(FAILED|skipped) ' "$results" | sort
awk '
    $1 == "ok" { passed++ }
    $1 == "FAILED" && !/: see a log of cargo test$/ { failed++ }
    $1 == "skipped" { if ($3 == "tests:") skipped += $2; else skipped++ }
    $1 == "count" { passed += $2; failed += $3 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 }' "$results"
