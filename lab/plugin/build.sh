#!/bin/sh
# Builds the timing plugin: build.sh OUT.so
set -eu
out=${1:?usage: build.sh OUT.so}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p terrace-lab-plugin
mkdir -p "$(dirname "$out")"
${CC:-cc} -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -ftls-model=initial-exec -shared \
    -o "$out.new" "$here/plugin.c" "$target/release/libterrace_lab_plugin.a" -lpthread -ldl -lm
mv "$out.new" "$out"
