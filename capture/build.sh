#!/bin/sh
# Build the capture plugin: capture/build.sh OUT_SO. Needs a C compiler, no QEMU headers.
set -eu
[ $# -eq 1 ] || { echo "usage: capture/build.sh OUT_SO" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$1")"
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -shared -o "$1.new.$$" \
    "$here/plugin.c" -lpthread
mv "$1.new.$$" "$1"
