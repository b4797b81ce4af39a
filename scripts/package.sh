#!/bin/sh
# Builds packages into target/package: a Debian package, and a Python wheel for all Pythons from 3.9
# (abi3) that needs no compiler where it is installed.
#
#   scripts/package.sh [deb|wheel]     one of them; both unless said
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

what=${1:-both}
case $what in both | deb | wheel) ;; *) echo "usage: scripts/package.sh [deb|wheel]" >&2; exit 2 \
    ;; esac
mkdir -p "${CARGO_TARGET_DIR:-target}/package"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
out=$target/package
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

# The newest version of glibc that a file below FOLDER asks for.
glibc_needed() {
    find "$1" -type f \( -perm -u+x -o -name '*.so*' \) -exec objdump -T {} + 2>/dev/null |
        sed -n 's/.*GLIBC_\([0-9][0-9.]*\).*/\1/p' | sort -Vu | tail -n 1
}

deb() {
    command -v dpkg-deb >/dev/null 2>&1 || { say "skipped: the Debian package needs dpkg-deb"; \
        return 0; }
    root=$out/root
    rm -rf "$root"
    PREFIX=/usr DESTDIR=$root scripts/install.sh install
    # dpkg keeps its own list.
    rm "$root/usr/share/terrace/files"
    gzip -9nr "$root/usr/share/man"
    # Pages that only name another page are found by its uncompressed name.
    mv "$root/usr/share/doc/terrace/CHANGELOG.md" "$root/usr/share/doc/terrace/changelog"
    gzip -9n "$root/usr/share/doc/terrace/changelog"
    cat >"$root/usr/share/doc/terrace/copyright" <<'TEXT'
Terrace is Apache-2.0 or MIT, at your choice: LICENSE-APACHE and LICENSE-MIT in this folder.
usr/lib/terrace/terrace-capture.so and usr/lib/terrace/lab/plugin.so are loaded into QEMU and are
GPL-2.0-or-later: LICENSE-GPL in this folder.
TEXT
    mkdir -p "$root/DEBIAN"
    libc=$(glibc_needed "$root/usr")
    cat >"$root/DEBIAN/control" <<TEXT
Package: terrace
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: Terrace <terrace@localhost>
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Depends: libc6 (>= ${libc:-2.34}), libgcc-s1
Recommends: qemu-user
Suggests: gcc, pkg-config
Section: utils
Priority: optional
Description: toolkit for machines with more than one kind of memory
 Shows the tiers of a machine, places the pages of unmodified programs across
 them, records and simulates programs, and gives programs memory by class.
TEXT
    (cd "$root" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
    printf 'activate-noawait ldconfig\n' >"$root/DEBIAN/triggers"
    file=$out/terrace_${version}_$(dpkg --print-architecture).deb
    dpkg-deb --root-owner-group --build "$root" "$file" >/dev/null
    rm -rf "$root"
    say "package: $file ($(du -k "$file" | cut -f1) KiB); install it with: sudo apt-get install $file"
}

wheel() {
    environment=$target/python-env
    if [ ! -x "$environment/bin/maturin" ]; then
        python3 -m venv "$environment" >/dev/null 2>&1 ||
            { say "skipped: the wheel needs python3 -m venv (python3-venv)"; return 0; }
        say "installing maturin with pip into $environment"
        "$environment/bin/pip" install --quiet 'maturin>=1.7,<2' ||
            { say "skipped: pip cannot install maturin"; return 0; }
    fi
    cargo_folder=$(scripts/setup.sh)
    rm -f "$out"/terrace-*.whl
    say "building the wheel"
    (cd python && PATH=$cargo_folder:$PATH CARGO_TARGET_DIR=$target/python \
        "$environment/bin/maturin" \
        build --quiet --release --strip --out "$out")
    for file in "$out"/terrace-*.whl; do
        say "wheel: $file ($(du -k "$file" | cut -f1) KiB); install it with: pip install $file"
    done
}

[ "$what" = wheel ] || deb
[ "$what" = deb ] || wheel
