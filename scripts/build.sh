#!/bin/sh
# Builds all of Terrace and stages it, as `make install` copies it, in target/install. Doing it
# again costs little.
#
#   scripts/build.sh            all
#   scripts/build.sh --no-lab   without the lab's parts (the timing plugin and the guest's programs)
#
# TERRACE_PROFILE=dev takes cargo's dev profile, to try the staging itself.
#
#   bin/            terrace, terrace-cc
#   lib/ libterrace.so (with soname), libterrace.a, pkgconfig/, cmake/; with MPI libterrace_mpi.so
#   lib/terrace/ what the command finds beside itself: preload libraries, capture plugin, translator
#   lib/terrace/hooks/ the runtime for programs compiled with terrace-cc lib/terrace/lab/ fetch.sh
#   (QEMU and kernel), plugin.so, bin/ for the guest include/, share/terrace/ (Fortran module,
#   source), share/man/, completions, share/doc/terrace/
#
# The last line on standard output is the staged folder.
set -eu
cd "$(dirname "$0")/.."
. scripts/lib.sh

lab=1
[ "${1:-}" != --no-lab ] || lab=
cargo_folder=$(scripts/setup.sh)
PATH=$cargo_folder:$PATH
export PATH
mkdir -p "${CARGO_TARGET_DIR:-target}"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
stage=$target/install
profile=${TERRACE_PROFILE:-release}
case $profile in dev) built=$target/debug ;; *) built=$target/$profile ;; esac

say "building the command and its libraries"
# shellcheck disable=SC2046 # options are words
cargo build --quiet --profile "$profile" -p terrace-cli -p terrace-capi -p terrace-preload \
    -p terrace-far-preload $(cuda_options terrace-capi terrace-cli)

rm -rf "$stage.new"
parts=$stage.new/lib/terrace
mkdir -p "$stage.new/bin" "$parts" "$stage.new/share/doc/terrace"
# Debug information is most of a program's size, and stays in the build folder.
strip -o "$stage.new/bin/terrace" "$built/terrace"
for library in terrace_preload terrace_far_preload; do
    strip --strip-unneeded -o "$parts/lib$library.so" "$built/lib$library.so"
done
scripts/install-lib.sh "$stage.new" "$built/libterrace.a"

say "building the recorders"
capture/build.sh "$parts/terrace-capture.so"
if [ "$(uname -m)" = x86_64 ]; then
    capture/translator/build.sh "$parts/terrace-translate"
    strip --strip-debug "$parts/terrace-translate"
fi
if capture/hooks/build.sh "$parts/hooks"; then
    ln -s ../lib/terrace/hooks/terrace-cc "$stage.new/bin/terrace-cc"
else
    say "going on without terrace-cc"
    rm -rf "$parts/hooks"
fi

if [ -n "$lab" ] && [ "$(uname -m)" = x86_64 ]; then
    say "building the lab's parts"
    mkdir -p "$parts/lab"
    lab/plugin/build.sh "$parts/lab/plugin.so"
    strip --strip-unneeded "$parts/lab/plugin.so"
    crates/guest/build.sh "$parts/lab/bin" terrace-guest terrace-workload terrace-cli
    install -m 755 lab/fetch.sh "$parts/lab/fetch.sh"
fi

say "manual pages and completions"
program=$stage.new/bin/terrace
man=$stage.new/share/man
mkdir -p "$man/man1" "$man/man5"
"$program" man >"$man/man1/terrace.1"
"$program" list commands --names | while read -r command; do
    # shellcheck disable=SC2086 # a command may be two words
    "$program" man $command >"$man/man1/terrace-$(echo "$command" | tr ' ' '-').1"
done
format() { scripts/man-page.sh "docs/$1" "$2" "$3" >"$man/man5/$2.5"; }
format machine-file.md terrace-machine "machine files: the memory of one machine"
format guide/preload.md terrace-plan "plans: where allocations of a program go"
format journal.md terrace-journal "journals: what a run saw, decided and moved"
complete() {
    mkdir -p "$stage.new/share/$2"
    "$program" completions "$1" >"$stage.new/share/$2/$3"
}
complete bash bash-completion/completions terrace
complete zsh zsh/site-functions _terrace
complete fish fish/vendor_completions.d terrace.fish
install -m 644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$stage.new/share/doc/terrace/"
install -m 644 capture/LICENSE "$stage.new/share/doc/terrace/LICENSE-GPL"

rm -rf "$stage"
mv "$stage.new" "$stage"
say "staged: $stage/bin/terrace"
echo "$stage"
