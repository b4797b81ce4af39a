#!/bin/sh
# Copies what scripts/build.sh staged below a prefix, or removes it again.
#
#   scripts/install.sh install     builds first where something is newer than what is staged
#   scripts/install.sh uninstall removes what was installed, file by file, and the folders it leaves
#   empty
#
# PREFIX (/usr/local) is where Terrace will live; DESTDIR is put before it, for packages. The files
# installed are listed in PREFIX/share/terrace/files. TERRACE_BUILD_OPTIONS are for
# scripts/build.sh.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

prefix=${PREFIX:-/usr/local}
case $prefix in /*) ;; *) echo "PREFIX=$prefix: give an absolute path" >&2; exit 2 ;; esac
prefix=${prefix%/}
root=${DESTDIR:-}$prefix
list=$root/share/terrace/files
stage=${CARGO_TARGET_DIR:-target}/install

# Whether what is staged is older than a source.
stale() {
    [ -x "$stage/bin/terrace" ] || return 0
    [ -n "$(find Cargo.toml Cargo.lock README.md crates lab capture scripts docs/man -type f \
        -newer "$stage/bin/terrace" -not -path '*/target/*' -print -quit)" ]
}

can_write() {
    existing=$root
    while [ ! -e "$existing" ]; do existing=$(dirname "$existing"); done
    [ -w "$existing" ] || {
        echo "cannot write to $existing; run: sudo make $1 PREFIX=$prefix, or give another PREFIX" >&2
        exit 1
    }
}

install_all() {
    can_write install
    # shellcheck disable=SC2086 # options are words
    ! stale || scripts/build.sh ${TERRACE_BUILD_OPTIONS:-} >/dev/null
    [ ! -e "$list" ] || remove
    mkdir -p "$root/share/terrace"
    (cd "$stage" && find . ! -type d | sed 's|^\./||' | sort) >"$list.new"
    while read -r file; do
        mkdir -p "$root/$(dirname "$file")"
        if [ -L "$stage/$file" ]; then
            ln -sf "$(readlink "$stage/$file")" "$root/$file"
        elif [ -x "$stage/$file" ]; then
            install -m 755 "$stage/$file" "$root/$file"
        else
            install -m 644 "$stage/$file" "$root/$file"
        fi
    done <"$list.new"
    mv "$list.new" "$list"
    if [ -z "${DESTDIR:-}" ] && [ "$(id -u)" = 0 ] && command -v ldconfig >/dev/null 2>&1; then
        ldconfig || say "ldconfig failed: run it, so that programs find libterrace.so"
    fi
    say "installed $(wc -l <"$list") files: $root/bin/terrace"
    case :$PATH: in
    *":$prefix/bin:"*) ;;
    *) say "$prefix/bin is not in PATH; for this shell: export PATH=$prefix/bin:\$PATH" ;;
    esac
}

# Files, then folders from the deepest up, as far as they are empty.
remove() {
    while read -r file; do rm -f "$root/$file"; done <"$list"
    sed 's|/[^/]*$||' "$list" | sort -u | while read -r folder; do
        while [ "$folder" != . ] && [ -n "$folder" ]; do
            echo "$folder"
            case $folder in */*) folder=${folder%/*} ;; *) folder= ;; esac
        done
    done | sort -ru >"$list.folders"
    folders=$(cat "$list.folders")
    rm -f "$list" "$list.folders"
    for folder in $folders share/terrace share; do
        rmdir "$root/$folder" 2>/dev/null || :
    done
}

case ${1:-} in
install) install_all ;;
uninstall)
    [ -e "$list" ] || { echo "nothing to remove: $list is not there; PREFIX names another?" >&2; \
        exit 1; }
    can_write uninstall
    remove
    say "removed from $root"
    ;;
*)
    echo "usage: scripts/install.sh install|uninstall" >&2
    exit 2
    ;;
esac
