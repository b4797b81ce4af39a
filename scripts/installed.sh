#!/bin/sh
# What is installed works where it is installed: installs below a folder of its own, runs the
# commands of README, guides and --help from there as an ordinary user (cargo xtask commands),
# builds a program against the library, and removes all again. Prints "ok NAME", "FAILED NAME: why",
# "skipped NAME: why" and "not run NAME: why".
set -u
cd "$(dirname "$0")/.."
. scripts/lib.sh

# Not below the repository: an ordinary user may not reach it.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
prefix=$work/prefix
verdict() {
    if [ "$2" = 0 ]; then echo "ok $1"; else echo "FAILED $1: ${3:-see the log}"; fi
}

PREFIX=$prefix scripts/install.sh install >&2
status=$?
verdict install $status
[ $status = 0 ] || exit 1

size=$(wc -c <"$prefix/bin/terrace")
[ "$size" -lt 20000000 ]
verdict program-under-20-MB $? "$size bytes"

missing=
for page in man1/terrace.1 man1/terrace-run.1 man3/terrace_arena.3 man5/terrace-machine.5 \
    man5/terrace-plan.5 man5/terrace-journal.5; do
    [ -s "$prefix/share/man/$page" ] || missing="$missing $page"
done
for file in lib/libterrace.a lib/libterrace.so lib/pkgconfig/terrace.pc include/terrace.h \
    include/terrace.hpp share/terrace/terrace.f90 lib/terrace/libterrace_preload.so \
    lib/terrace/libterrace_far_preload.so lib/terrace/terrace-capture.so \
    share/bash-completion/completions/terrace share/zsh/site-functions/_terrace \
    share/fish/vendor_completions.d/terrace.fish; do
    [ -s "$prefix/$file" ] || missing="$missing $file"
done
[ -z "$missing" ]
verdict all-parts-are-installed $? "not there:$missing"

bash -c ". '$prefix/share/bash-completion/completions/terrace' &&
    COMP_WORDS=(terrace run --policy hist) COMP_CWORD=3 && _terrace terrace hist --policy &&
    [ \"\${COMPREPLY[*]}\" = histogram ]" 2>"$work/completion"
verdict bash-completes-a-policy $? "$(tail -n 1 "$work/completion")"

# A prefix can be moved, as a package's is: the program finds its parts, pkg-config its folder.
if command -v pkg-config >/dev/null 2>&1; then
    mv "$prefix" "$work/moved"
    printf '#include <terrace.h>\nint main(void) { terrace_memory *m; return terrace_memory_create(&m) != 0; }\n' \
        >"$work/program.c"
    # shellcheck disable=SC2046 # options are words
    cc "$work/program.c" -o "$work/program" \
        $(PKG_CONFIG_PATH=$work/moved/lib/pkgconfig pkg-config --cflags --libs terrace) &&
        LD_LIBRARY_PATH=$work/moved/lib "$work/program" &&
        "$work/moved/bin/terrace" run --quiet --alloc /dev/stdin true <<PLAN
arena bulk prefer 0
default bulk
PLAN
    verdict a-moved-prefix-works $?
    mv "$work/moved" "$prefix"
fi

# What a message tells to paste works.
if [ -d "$prefix/lib/terrace/lab" ]; then
    TERRACE_LAB_DIR=$work/lab "$prefix/bin/terrace" lab setup --machine lab-cxl 2>"$work/said"
    lab_status=$?
    command=$(sed -n 's/.*run: //p' "$work/said")
    [ $lab_status = 3 ] && sh -n -c "$command" && [ -x "${command%% *}" ]
    verdict a-missing-part-names-a-command $? "$(cat "$work/said")"
else
    echo "skipped a-missing-part-names-a-command: the lab's parts were not built"
fi

if command -v setpriv >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    cargo xtask commands "$prefix" || status=1
else
    echo "skipped documented commands: setpriv is not installed (util-linux)"
fi

PREFIX=$prefix scripts/install.sh uninstall >&2 && [ -z "$(ls -A "$prefix")" ]
verdict uninstall-leaves-nothing $? "left: $(find "$prefix" 2>/dev/null | head -n 3 | tr '\n' ' ')"
exit $status
