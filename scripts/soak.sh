#!/bin/sh
# The model tests of far memory (maps, and whole programs) and of arenas, ten minutes each
# (TERRACE_FAR_SECONDS, TERRACE_ALLOC_SECONDS for other times), more seeds of the pager's
# simulation, and arenas under the sanitizers and by fuzzing (scripts/sanitize.sh,
# TERRACE_SANITIZE_SECONDS each). The last line says how it went; a failure names its seed.
set -u
cd "$(dirname "$0")/.."
. scripts/lib.sh

cargo_folder=$(scripts/setup.sh) || exit 1
PATH=$cargo_folder:$PATH
export PATH
say "the pager, simulated"
TERRACE_FAR_SEEDS=${TERRACE_FAR_SEEDS:-2000} cargo test --quiet -p terrace-policy --lib whatever \
    || exit 1
say "far memory beside its model, ${TERRACE_FAR_SECONDS:=600} seconds"
export TERRACE_FAR_SECONDS
cargo test --quiet -p terrace-far --test model -- --nocapture || exit 1
say "whole programs in far memory beside a model of their address space, as long"
cargo test --quiet -p terrace-far-preload --test programs an_address_space -- --nocapture || exit 1
say "arenas beside their models, ${TERRACE_ALLOC_SECONDS:=600} seconds"
export TERRACE_ALLOC_SECONDS
cargo test --quiet -p terrace-alloc --test model long_sequences -- --nocapture || exit 1
say "arenas under the sanitizers, and their fuzz targets"
CARGO_INCREMENTAL=0 scripts/sanitize.sh "${TERRACE_SANITIZE_SECONDS:-60}" || exit 1
say "no byte differed"
