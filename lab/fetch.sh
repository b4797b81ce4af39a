#!/bin/sh
# Fetches what the lab needs, by package name, with the machine's own package sources, into DEST:
#   DEST/qemu-system    QEMU 10 (x86), started by its own loader, nothing installed
#   DEST/kernel/vmlinuz a stock Debian 6.12 kernel for virtual machines
# Nothing on the system is installed, upgraded or configured.
set -eu
dest=${1:?usage: fetch.sh DEST}
say() { printf 'lab: %s\n' "$*" >&2; }
die() { printf 'lab: %s\n' "$*" >&2; exit 1; }

command -v apt-get >/dev/null 2>&1 || die "apt-get is missing: the lab needs a Debian machine"
command -v dpkg-deb >/dev/null 2>&1 || die "dpkg-deb is missing: install the package dpkg"
mkdir -p "$dest" && dest=$(cd "$dest" && pwd)
[ -x "$dest/qemu-system" ] && [ -s "$dest/kernel/vmlinuz" ] && exit 0

# A private copy of apt's state; SUITE renames the suite of every source ("" keeps it).
private_apt() { # NAME SUITE_FROM SUITE_TO
    apt=$dest/apt-$1
    mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/cache/archives/partial"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        grep -q "$2" "$file" || continue
        grep -qi debian "$file" || continue
        sed "s/$2/$3/g" "$file" >"$apt/sources/$(basename "$file")"
    done
    ls "$apt/sources"/* >/dev/null 2>&1 || die "no Debian package source found under /etc/apt"
    cat >"$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources/sources.list";
Dir::Etc::sourceparts "$apt/sources";
Dir::State::Lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Sandbox::User "root";
CONF
    : >"$apt/status"
    APT_CONFIG=$apt/apt.conf apt-get -qq update >"$apt/log" 2>&1 ||
        die "package lists could not be read: $(tail -n 1 "$apt/log")"
}

codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[ -n "$codename" ] || die "not a Debian release: VERSION_CODENAME is not set"

if [ ! -s "$dest/kernel/vmlinuz" ]; then
    say "fetching a 6.12 kernel (unpacked, not installed)"
    private_apt kernel "$codename" "$codename"
    export APT_CONFIG=$dest/apt-kernel/apt.conf
    package=$(apt-cache search --names-only '^linux-image-6\.12.*-cloud-amd64(-unsigned)?$' |
        awk '{print $1}' | grep -v -e '^linux-image-6.12-cloud' | sort -V | tail -n 1)
    [ -n "$package" ] || die "no linux-image-6.12*-cloud-amd64 in the package lists of $codename"
    mkdir -p "$dest/debs/kernel"
    (cd "$dest/debs/kernel" && apt-get -qq download "$package") || die "cannot download $package"
    rm -rf "$dest/kernel.new" && mkdir -p "$dest/kernel.new"
    dpkg-deb -x "$dest"/debs/kernel/*.deb "$dest/kernel.new"
    cp "$dest"/kernel.new/boot/vmlinuz-* "$dest/kernel.new/vmlinuz"
    printf '%s\n' "$package" >"$dest/kernel.new/package"
    rm -rf "$dest/kernel" && mv "$dest/kernel.new" "$dest/kernel"
fi

if [ ! -x "$dest/qemu-system" ]; then
    say "fetching QEMU 10 (unpacked, not installed)"
    private_apt qemu "$codename" trixie
    export APT_CONFIG=$dest/apt-qemu/apt.conf
    mkdir -p "$dest/debs/qemu"
    apt-get -qq install --print-uris --no-install-recommends --yes \
        qemu-system-x86 qemu-system-data seabios ipxe-qemu >"$dest/apt-qemu/uris" 2>"$dest/apt-qemu/log" ||
        die "QEMU's packages cannot be resolved: $(tail -n 1 "$dest/apt-qemu/log")"
    packages=$(sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p" "$dest/apt-qemu/uris" | sort -u)
    # shellcheck disable=SC2086
    (cd "$dest/debs/qemu" && apt-get -qq download $packages) || die "cannot download QEMU's packages"
    rm -rf "$dest/qemu.new" && mkdir -p "$dest/qemu.new"
    for deb in "$dest"/debs/qemu/*.deb; do dpkg-deb -x "$deb" "$dest/qemu.new"; done
    rm -rf "$dest/qemu" && mv "$dest/qemu.new" "$dest/qemu"
    cat >"$dest/qemu-system.new" <<'RUN'
#!/bin/sh
# QEMU from the folder beside this script, with its own loader and libraries.
here=$(cd "$(dirname "$0")" && pwd)/qemu
lib=$here/usr/lib/x86_64-linux-gnu
for loader in "$lib/ld-linux-x86-64.so.2" "$here/usr/lib64/ld-linux-x86-64.so.2" "$here/lib64/ld-linux-x86-64.so.2"; do
    [ -e "$loader" ] && break
done
exec "$loader" --library-path "$lib:$here/lib/x86_64-linux-gnu" "$here/usr/bin/qemu-system-x86_64" \
    -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" "$@"
RUN
    chmod +x "$dest/qemu-system.new" && mv "$dest/qemu-system.new" "$dest/qemu-system"
fi
rm -rf "$dest/debs" "$dest"/apt-*
"$dest/qemu-system" --version | head -n 1 >&2
