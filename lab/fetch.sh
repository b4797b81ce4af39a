#!/bin/sh
# Fetch what the lab runs on: QEMU 10 and a stock 6.12 kernel, as Debian packages, unpacked and not
# installed.
#
#   lab/fetch.sh DEST
#
# Writes DEST/qemu-system (starts QEMU), DEST/kernel/vmlinuz and DEST/kernel/package (where it came
# from). Nothing on the system changes: apt runs on a state of its own under DEST, with lists
# derived from the machine's own sources. QEMU comes from Debian 13; on an older Debian the suite's
# name is replaced. Running it again does nothing.
set -eu

say() { echo "lab/fetch.sh: $*" >&2; }
die() { say "error: $*"; exit 1; }

SUITE=trixie
[ $# -eq 1 ] || die "usage: lab/fetch.sh DEST"
mkdir -p "$1" || die "cannot create $1"
dest=$(cd "$1" && pwd)
for tool in apt-get apt-cache dpkg dpkg-deb sed; do
    command -v "$tool" >/dev/null 2>&1 || die "$tool is missing: this works on Debian only"
done
[ "$(dpkg --print-architecture)" = amd64 ] || die "only amd64 is supported"
here=$( . /etc/os-release && echo "${VERSION_CODENAME:-}" )
[ -n "$here" ] || die \
    "this system does not tell its release name (VERSION_CODENAME in /etc/os-release)"

# apt_for SUITE: set $conf to an apt configuration that sees only that suite.
apt_for() {
    state=$dest/apt/$1
    conf=$state/apt.conf
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/sources.list.d"
    : > "$state/status"
    : > "$state/sources.list"
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
        /etc/apt/sources.list.d/*.sources; do
        [ -f "$f" ] || continue
        # Only sources that name this release's suite can be carried over to another.
        grep -q "$here" "$f" || continue
        sed "s/\b$here\b/$1/g" "$f" > "$state/sources.list.d/$(basename "$f")"
    done
    [ -n "$(ls -A "$state/sources.list.d")" ] || die \
        "no apt source of this machine names its release $here"
    cat > "$conf" <<CONF
Dir::State "$state";
Dir::State::Lists "$state/lists";
Dir::State::Status "$state/status";
Dir::Cache "$state/cache";
Dir::Etc::SourceList "$state/sources.list";
Dir::Etc::SourceParts "$state/sources.list.d";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
CONF
    if [ ! -f "$state/updated" ]; then
        say "reading the package lists of $1"
        APT_CONFIG=$conf timeout 300 apt-get -qq update >"$state/log" 2>&1 ||
            die "apt-get update for $1 failed: $(tail -n 1 "$state/log")"
        : > "$state/updated"
    fi
}

# take PREFIX PACKAGE...: download and unpack.
take() {
    prefix=$1; shift
    mkdir -p "$prefix" "$dest/apt/debs"
    (cd "$dest/apt/debs" && APT_CONFIG=$conf timeout 600 apt-get -qq download "$@" \
        >"$dest/apt/log" 2>&1) ||
        die "downloading failed: $(tail -n 1 "$dest/apt/log")"
    for p in "$@"; do
        for deb in "$dest/apt/debs/${p}"_*.deb; do
            [ -f "$deb" ] || die "package $p did not arrive"
            dpkg-deb -x "$deb" "$prefix" || die "cannot unpack $deb"
            rm -f "$deb"
        done
    done
}

fetch_qemu() {
    if [ "$here" = "$SUITE" ] && command -v qemu-system-x86_64 >/dev/null 2>&1 &&
        qemu-system-x86_64 --version | grep -q 'version 10\.0\.'; then
        say "using the installed $(qemu-system-x86_64 --version | head -n 1)"
        printf '#!/bin/sh\nexec qemu-system-x86_64 "$@"\n' > "$dest/qemu-system.new"
    else
        apt_for "$SUITE"
        # All that qemu-system-x86 depends on, without what it merely recommends.
        set -- $(APT_CONFIG=$conf apt-get -qq -s install qemu-system-x86 2>"$dest/apt/log" | sed \
            -n 's/^Inst \([^ ]*\) .*/\1/p')
        [ $# -gt 0 ] || die "$SUITE offers no qemu-system-x86: $(tail -n 1 "$dest/apt/log")"
        # Not needed to run it: packages that only make sense on an installed system.
        keep=
        for p in "$@" seabios ipxe-qemu; do
            case $p in
            debconf | debconf-* | dpkg | tar | perl* | libperl* | init-system-helpers | passwd | \
                adduser | login* | base-*) continue ;;
            esac
            case " $keep " in *" $p "*) ;; *) keep="$keep $p" ;; esac
        done
        set -- $keep
        say "downloading qemu-system-x86 and $(($# - 1)) packages that it needs from $SUITE"
        take "$dest/qemu" "$@"
        cat > "$dest/qemu-system.new" <<'WRAP'
#!/bin/sh
# QEMU from the folder beside this script, with its own loader and libraries.
here=$(cd "$(dirname "$0")" && pwd)/qemu
lib=$here/usr/lib/x86_64-linux-gnu
for loader in "$lib/ld-linux-x86-64.so.2" "$here/usr/lib64/ld-linux-x86-64.so.2" "$here/lib64/ld-linux-x86-64.so.2"; do
    [ -e "$loader" ] && break
done
exec "$loader" --library-path "$lib:$here/lib/x86_64-linux-gnu" "$here/usr/bin/qemu-system-x86_64" \
    -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
WRAP
    fi
    chmod +x "$dest/qemu-system.new"
    "$dest/qemu-system.new" --version 2>/dev/null | grep -q 'version 10\.0\.' ||
        die "the QEMU fetched is not 10.0: $("$dest/qemu-system.new" --version 2>&1 | head -n 1)"
    mv "$dest/qemu-system.new" "$dest/qemu-system"
}

fetch_kernel() {
    apt_for "$here"
    # The signed and the unsigned package hold the same kernel; the newest 6.12 of either will do.
    package=$(APT_CONFIG=$conf apt-cache search --names-only \
        '^linux-image-6\.12.*-cloud-amd64(-unsigned)?$' |
        sed 's/ .*//' | sort -V | tail -n 1)
    [ -n "$package" ] || die "$here offers no linux-image-6.12*-cloud-amd64 package"
    say "downloading $package"
    take "$dest/kernel" "$package"
    cp "$dest"/kernel/boot/vmlinuz-6.12* "$dest/kernel/vmlinuz.new" || die \
        "$package holds no vmlinuz"
    echo "$package" > "$dest/kernel/package"
    mv "$dest/kernel/vmlinuz.new" "$dest/kernel/vmlinuz"
}

if [ -x "$dest/qemu-system" ] && "$dest/qemu-system" --version 2>/dev/null | grep -q \
    'version 10\.0\.'; then
    say "QEMU is there"
else
    fetch_qemu
fi
if [ -s "$dest/kernel/vmlinuz" ]; then
    say "the kernel is there"
else
    fetch_kernel
fi
say "ready: $("$dest/qemu-system" --version | head -n 1); $(cat "$dest/kernel/package")"
