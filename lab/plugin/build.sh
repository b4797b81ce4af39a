#!/bin/sh
# Build the lab's timing plugin: lab/plugin/build.sh OUT_SO. Needs cargo and a C compiler, no QEMU
# headers.
set -eu
[ $# -eq 1 ] || { echo "usage: lab/plugin/build.sh OUT_SO" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p terrace-lab-plugin
mkdir -p "$(dirname "$1")"
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -shared \
    -Wl,--gc-sections \
    -o "$1.new" "$here/plugin.c" "$target/release/libterrace_lab_plugin.a" -lpthread -ldl -lm
mv "$1.new" "$1"
