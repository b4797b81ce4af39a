#!/bin/sh
# Makes the tables and pictures of docs/results/migratory.md again: about two minutes of CPU time
# on one core.
set -eu
cd "$(dirname "$0")/.."
page=docs/results/migratory.md
mkdir -p docs/results/migratory
tables=$(mktemp)
trap 'rm -f "$tables"' EXIT
cargo run --quiet --release -p terrace-vertex --example study -- docs/results/migratory > "$tables"
{ sed '/^<!-- tables/q' "$page"; echo; cat "$tables"; } > "$page.new"
mv "$page.new" "$page"
