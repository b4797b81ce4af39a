#!/bin/sh
# Installs libterrace below PREFIX: the shared library with symbol versions, the static one, headers, the Fortran
# module's source, a pkg-config file and a CMake package.
#
#   scripts/install-lib.sh PREFIX [LIBTERRACE_A]
#
# Builds the static library first unless one is given. The shared one is linked from it here, because the compiler's own
# list of symbols leaves no room for versions.
set -eu
[ $# -ge 1 ] || { echo "usage: scripts/install-lib.sh PREFIX [LIBTERRACE_A]" >&2; exit 2; }
prefix=$1
archive=${2:-}
cd "$(dirname "$0")/.."
case $prefix in /*) ;; *) echo "give PREFIX as an absolute path" >&2; exit 2 ;; esac

if [ -z "$archive" ]; then
    cargo build --release -p terrace-capi
    archive=${CARGO_TARGET_DIR:-target}/release/libterrace.a
fi
[ -f "$archive" ] || { echo "$archive is missing; build terrace-capi first" >&2; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
major=${version%%.*}
lib=$prefix/lib
mkdir -p "$lib/pkgconfig" "$lib/cmake/Terrace" "$prefix/include" "$prefix/share/terrace"

install -m 644 "$archive" "$lib/libterrace.a"
${CC:-cc} -shared -o "$lib/libterrace.so.$version" \
    -Wl,-soname,"libterrace.so.$major" -Wl,--version-script,crates/capi/terrace.map -Wl,--gc-sections \
    -Wl,--whole-archive "$lib/libterrace.a" -Wl,--no-whole-archive -lpthread -ldl -lm
ln -sf "libterrace.so.$version" "$lib/libterrace.so.$major"
ln -sf "libterrace.so.$version" "$lib/libterrace.so"

install -m 644 crates/capi/include/terrace.h crates/capi/include/terrace.hpp "$prefix/include/"
install -m 644 crates/capi/fortran/terrace.f90 "$prefix/share/terrace/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" crates/capi/terrace.pc.in >"$lib/pkgconfig/terrace.pc"
install -m 644 crates/capi/cmake/TerraceConfig.cmake "$lib/cmake/Terrace/"
