#!/bin/sh
# Makes the tables and the picture of docs/results/three-ways.md again: about two minutes of CPU
# time on one core.
set -eu
cd "$(dirname "$0")/.."
page=docs/results/three-ways.md
mkdir -p docs/results/three-ways
tables=$(mktemp)
trap 'rm -f "$tables"' EXIT
cargo run --quiet --release -p terrace-pool --example three-ways -- docs/results/three-ways \
    > "$tables"
{ sed '/^<!-- tables/q' "$page"; echo; cat "$tables"; } > "$page.new"
mv "$page.new" "$page"
