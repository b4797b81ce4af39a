#!/bin/sh
# Installs libterrace below PREFIX: the shared library with symbol versions, the static one,
# headers, the Fortran module's source, man pages, a pkg-config file and a CMake package.
#
#   scripts/install-lib.sh PREFIX [LIBTERRACE_A]
#
# Where there is an mpicc, the shim that honours hints of MPI programs is built with it
# (libterrace_mpi.so).
#
# Builds the static library first unless one is given, with CUDA managed memory where the compiler
# is new enough. The shared one is linked from it here, because the compiler's own list of symbols
# leaves no room for versions.
set -eu
[ $# -ge 1 ] || { echo "usage: scripts/install-lib.sh PREFIX [LIBTERRACE_A]" >&2; exit 2; }
prefix=$1
archive=${2:-}
cd "$(dirname "$0")/.."
. scripts/lib.sh
case $prefix in /*) ;; *) echo "give PREFIX as an absolute path" >&2; exit 2 ;; esac

if [ -z "$archive" ]; then
    # shellcheck disable=SC2046 # options are words
    cargo build --release -p terrace-capi $(cuda_options terrace-capi)
    archive=${CARGO_TARGET_DIR:-target}/release/libterrace.a
fi
[ -f "$archive" ] || { echo "$archive is missing; build terrace-capi first" >&2; exit 1; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
major=${version%%.*}
# Relocatable: what is built here is staged first, and may be copied to any prefix.
lib=$prefix/lib
mkdir -p "$lib/pkgconfig" "$lib/cmake/Terrace" "$prefix/include" "$prefix/share/terrace"

strip --strip-debug -o "$lib/libterrace.a" "$archive"
chmod 644 "$lib/libterrace.a"
${CC:-cc} -shared -o "$lib/libterrace.so.$version" \
    -Wl,-soname,"libterrace.so.$major" -Wl,--version-script,crates/capi/terrace.map \
        -Wl,--gc-sections \
    -Wl,--whole-archive "$lib/libterrace.a" -Wl,--no-whole-archive -lpthread -ldl -lm
strip --strip-unneeded "$lib/libterrace.so.$version"
ln -sf "libterrace.so.$version" "$lib/libterrace.so.$major"
ln -sf "libterrace.so.$version" "$lib/libterrace.so"

if command -v "${MPICC:-mpicc}" >/dev/null 2>&1; then
    "${MPICC:-mpicc}" -O2 -Wall -shared -fPIC -Icrates/capi/include -o "$lib/libterrace_mpi.so" \
        crates/capi/mpi/terrace_mpi.c -L"$lib" -lterrace -Wl,-rpath,'$ORIGIN' -lpthread
fi

install -m 644 crates/capi/include/*.h crates/capi/include/*.hpp "$prefix/include/"
install -m 644 crates/capi/fortran/terrace.f90 crates/capi/fortran/terrace_crash.* \
    "$prefix/share/terrace/"
sed -e "s|@VERSION@|$version|" crates/capi/terrace.pc.in >"$lib/pkgconfig/terrace.pc"
install -m 644 crates/capi/cmake/TerraceConfig.cmake "$lib/cmake/Terrace/"

# Each function's page is the page of its family.
man=$prefix/share/man/man3
mkdir -p "$man"
for page in docs/man/*.3; do
    install -m 644 "$page" "$man/"
    sed -n '/^\.SH NAME$/,/^\.SH/{s/ \\-.*//;s/,//g;s/^terrace/&/p}' "$page" | tr ' ' '\n' | \
        while read -r name; do
        [ -z "$name" ] || [ -e "docs/man/$name.3" ] || echo ".so man3/${page##*/}" >"$man/$name.3"
    done
done
