#!/bin/sh
# Makes the tables of docs/results/migratory.md again: about two minutes of CPU time on one core.
set -eu
cd "$(dirname "$0")/.."
page=docs/results/migratory.md
tables=$(mktemp)
trap 'rm -f "$tables"' EXIT
cargo run --quiet --release -p terrace-vertex --example study > "$tables"
{ sed '/^<!-- tables/q' "$page"; echo; cat "$tables"; } > "$page.new"
mv "$page.new" "$page"
