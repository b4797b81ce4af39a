#!/bin/sh
# Makes sure that what building needs is there; installs what is missing where it may, and says so.
#
#   scripts/setup.sh          a C compiler, linker and a new enough cargo
#   scripts/setup.sh --test   besides: rustfmt, clippy, chromium, Open MPI and a compiler for
#                             riscv64, without which some checks are skipped, and what --capture
#                             installs
#   scripts/setup.sh --capture
#                             besides: qemu-user and the plugin that `terrace record --source full`
#                             needs, and the translator for `--source translated`; both are put into
#                             ~/.cache/terrace
#
# Prints the folder of the cargo to use, for PATH.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

missing=
command -v cc >/dev/null 2>&1 || missing="$missing gcc"
command -v ld >/dev/null 2>&1 || missing="$missing binutils"
command -v xz >/dev/null 2>&1 || missing="$missing xz-utils"
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing="$missing ca-certificates"
echo '#include <stdio.h>' | cc -E - >/dev/null 2>&1 || missing="$missing libc6-dev"

wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# The folder of the first cargo in PATH that is new enough, together with its rustc.
find_cargo() {
    for folder in $(echo "$PATH" | tr ':' ' ') "$HOME/.cargo/bin" /usr/share/cargo/bin; do
        [ -x "$folder/cargo" ] && [ -x "$folder/rustc" ] || continue
        found=$(PATH="$folder:$PATH" rustc --version 2>/dev/null | cut -d' ' -f2 | cut -d- -f1)
        if [ -n "$found" ] && version_at_least "$found" "$wanted"; then
            echo "$folder"
            return 0
        fi
    done
    return 1
}

# Debian's packages with a rustc that is new enough: the plain ones, or on Debian 12 those that
# web browsers are built with.
choose_rust() {
    for set in "rustc cargo rustfmt rust-clippy" \
        "rustc-web cargo-web rustfmt-web rust-web-clippy"; do
        offered=$(apt-cache policy "${set%% *}" 2>/dev/null | sed -n \
            's/^ *Candidate: \([0-9.]*\).*/\1/p')
        if [ -n "$offered" ] && version_at_least "$offered" "$wanted"; then
            echo "$set"
            return 0
        fi
    done
    return 1
}

if ! cargo_folder=$(find_cargo); then
    command -v apt-cache >/dev/null 2>&1 && can_install && $sudo apt-get update >/dev/null 2>&1 \
        </dev/null || true
    if rust=$(choose_rust 2>/dev/null); then
        missing="$missing $rust"
    else
        say "no cargo of version $wanted or newer, and no Debian package of one"
        echo "install Rust $wanted or newer from rust-lang.org, then run this again" >&2
        exit 1
    fi
fi
# shellcheck disable=SC2086
[ -z "$missing" ] || install_packages $missing
cargo_folder=$(find_cargo) || { say "cargo $wanted or newer is still missing"; exit 1; }

if [ "${1:-}" = --test ] && [ "${TERRACE_NO_CHROMIUM:-0}" = 0 ] &&
    ! command -v chromium >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
    # Large and for one test only: that test is skipped without it.
    if can_install; then
        install_packages chromium || say "going on without chromium"
    else
        say "going on without chromium (sudo apt-get install --no-install-recommends chromium)"
    fi
fi

if [ "${1:-}" = --test ] && ! command -v mpicc >/dev/null 2>&1; then
    # 24 MB to fetch, for the test of the MPI shim, which is skipped without.
    if can_install; then
        install_packages openmpi-bin libopenmpi-dev || say "going on without MPI"
    else
        say "going on without MPI (sudo apt-get install --no-install-recommends openmpi-bin libopenmpi-dev)"
    fi
fi

if [ "${1:-}" = --test ] && ! command -v riscv64-linux-gnu-gcc >/dev/null 2>&1; then
    # 32 MB to fetch, for the tests that compile programs for riscv64, which are skipped without.
    cross="gcc-riscv64-linux-gnu libc6-dev-riscv64-cross"
    # shellcheck disable=SC2086
    if ! can_install || ! install_packages $cross; then
        say "going on without riscv64 (sudo apt-get install --no-install-recommends $cross)"
    fi
fi

# The emulator that recording every load and store runs programs under. Debian 12's takes plugins;
# later ones do not.
if [ "${1:-}" = --capture ] || [ "${1:-}" = --test ]; then
    if ! command -v qemu-x86_64 >/dev/null 2>&1; then
        install_packages qemu-user || say \
            "going on without qemu-user: terrace record --source full will not work"
    fi
    capture/build.sh "${XDG_CACHE_HOME:-$HOME/.cache}/terrace/terrace-capture.so" >&2 ||
        say "going on without the capture plugin"
    PATH="$cargo_folder:$PATH" capture/translator/build.sh \
        "${XDG_CACHE_HOME:-$HOME/.cache}/terrace/terrace-translate" >&2 ||
        say "going on without the translator: terrace record --source translated will not work"
fi
echo "$cargo_folder"
