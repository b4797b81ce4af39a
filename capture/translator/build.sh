#!/bin/sh
# Build the translator: capture/translator/build.sh OUT. Needs cargo, gcc and ld;
# TERRACE_TRANSLATOR_TARGET names another folder for what is in between.
set -eu
[ $# -eq 1 ] || { echo "usage: capture/translator/build.sh OUT" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
target=${TERRACE_TRANSLATOR_TARGET:-$here/target}
"${CARGO:-cargo}" build --quiet --locked --release --manifest-path "$here/Cargo.toml" \
    --target-dir "$target"
mkdir -p "$(dirname "$1")"
cp "$target/release/terrace-translate" "$1.new.$$"
mv "$1.new.$$" "$1"
