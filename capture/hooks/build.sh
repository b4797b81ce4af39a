#!/bin/sh
# Build the runtime of the compiler's hooks: capture/hooks/build.sh FOLDER. Needs a C compiler; with
# clang also the hooks that terrace-cc inlines.
set -eu
[ $# -eq 1 ] || { echo "usage: capture/hooks/build.sh FOLDER" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -mcx16 -fPIC -ftls-model=initial-exec -c -o \
    "$work/runtime.o" "$here/runtime.c"
# What the runtime itself calls must not come back to it.
real=
for f in memcpy memmove memset memcmp strlen strcpy malloc calloc realloc free mmap munmap; do
    real="$real --redefine-sym $f=__real_$f"
done
# shellcheck disable=SC2086
objcopy $real "$work/runtime.o"
ar rcs "$work/libterrace-hooks.a" "$work/runtime.o"
mv "$work/libterrace-hooks.a" "$1/"
if command -v clang >/dev/null; then
    clang -std=gnu11 -O2 -Wall -Wextra -Werror -fsanitize=thread -emit-llvm -c -o \
        "$work/inline.bc" "$here/inline.c"
    mv "$work/inline.bc" "$1/terrace-hooks-inline.bc"
fi
cp "$here/inline.s" "$1/terrace-hooks-inline.s"
cp "$here/terrace-cc" "$1/terrace-cc"
