#!/bin/sh
# Fetches and builds what the lab consists of: QEMU, kernel, timing plugin, programs for the guest.
# Doing it again costs little.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

lab=${TERRACE_LAB_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/terrace/lab}
mkdir -p "$lab"
say "lab: QEMU and kernel"
lab/fetch.sh "$lab" >&2
say "lab: timing plugin"
lab/plugin/build.sh "$lab/plugin.so" >&2
say "lab: programs for the guest"
crates/guest/build.sh "$lab/bin" terrace-guest terrace-workload terrace-cli >&2
