# Trials of the packages: they are installed, used and removed in a separate root directory. Sourced by scripts/dist_test.sh.

DEBIAN_SYSTEM=$OUT/debian-system

# debian_system: unpacks a Debian system into $DEBIAN_SYSTEM, once.
debian_system() {
    [ -e "$DEBIAN_SYSTEM/.ready" ] && return 0
    rm -rf "$DEBIAN_SYSTEM"
    debootstrap --variant=minbase --include=systemd bookworm "$DEBIAN_SYSTEM" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >&2
    touch "$DEBIAN_SYSTEM/.ready"
}

# in_system ROOT COMMAND...: runs a command in the root directory ROOT, with its own mounts and without a network.
in_system() {
    root=$1
    shift
    unshare --mount --net --pid --fork sh -ec '
        root=$1
        shift
        # Labs need a root directory that is a mount point, as after a boot.
        mount --bind "$root" "$root"
        ip link set lo up
        mount -t proc proc "$root/proc"
        mount -t sysfs sys "$root/sys"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"' - "$root" "$@"
}

# files_of ROOT: lists the files, without those of dpkg, logs and temporary files: a removed package must not leave any.
files_of() { (cd "$1" && find . -path ./proc -prune -o -path ./sys -prune -o -path ./var/lib/dpkg -prune -o -path ./var/log -prune -o -path ./root -prune -o -path ./run -prune -o -path ./tmp -prune -o -print | sort); }

# check_installed ROOT: checks that manual pages, completions, message server and user exist, and that no service is enabled.
check_installed() {
    in_system "$1" sh -ec '
        packetrig --version
        test -s /usr/share/man/man1/packetrig-probe-ping.1.gz
        test -s /usr/share/bash-completion/completions/packetrig
        /usr/lib/packetrig/nats-server --version
        getent passwd packetrig
        ls /etc/packetrig
        ! ls /etc/systemd/system/*/packetrig* 2>/dev/null
        systemd-analyze verify --man=no /lib/systemd/system/packetrig-*.service'
}

# try_fleet ROOT: starts a fleet, to check that the program finds the message server of the package, which
# is not in PATH.
try_fleet() {
    in_system "$1" sh -ec '
        ! command -v nats-server
        timeout --foreground --signal=INT 6 packetrig fleet up --fleet /tmp/fleet --address 127.0.0.1 --listen 127.0.0.1:4222 \
            --enrol 127.0.0.1:4223 >/tmp/fleet.txt 2>&1 || true
        grep "Messages at 127.0.0.1:4222" /tmp/fleet.txt'
}

# try_deb FILE: installs the package (with OLD_DEB: as an upgrade), runs the program, removes and purges the package.
try_deb() {
    debian_system
    root=$WORK/deb
    rm -rf "$root"
    cp -a "$DEBIAN_SYSTEM" "$root"
    files_of "$root" >"$WORK/before"
    if [ -n "${OLD_DEB:-}" ]; then
        cp "$OLD_DEB" "$root/tmp/old.deb"
        in_system "$root" dpkg -i /tmp/old.deb
        echo '# of the owner' >>"$root/etc/packetrig/serve.conf"
    fi
    start_clock
    cp "$1" "$root/tmp/packetrig.deb"
    in_system "$root" dpkg -i /tmp/packetrig.deb
    [ -z "${OLD_DEB:-}" ] || grep -q 'of the owner' "$root/etc/packetrig/serve.conf"
    run_demo 3s in_system "$root" packetrig
    check_installed "$root"
    try_fleet "$root"
    in_system "$root" dpkg -r packetrig
    test -e "$root/etc/packetrig/serve.conf"
    in_system "$root" dpkg -P packetrig
    files_of "$root" >"$WORK/after"
    echo "files left after the purge (expected: the user of sysusers.d, and caches):"
    diff "$WORK/before" "$WORK/after" | grep '^>' || echo "nothing"
    ! diff "$WORK/before" "$WORK/after" | grep '^> .*packetrig'
}

# try_rpm FILE: installs the package into an empty directory with its own package database, because there is
# no Fedora system here.
try_rpm() {
    root=$WORK/rpm
    rm -rf "$root"
    mkdir -p "$root/proc" "$root/sys" "$root/tmp" "$root/run" "$root/root"
    rpm --root "$root" --initdb
    # The scripts of the package are left out, because this directory has no shell.
    rpm --root "$root" -i --nodeps --noscripts "$1"
    rpm --root "$root" -V --nodeps packetrig
    run_demo 3s in_system "$root" /usr/bin/packetrig
    rpm --root "$root" -e --nodeps --noscripts packetrig
    ! find "$root/usr" "$root/etc" -name '*packetrig*' | grep .
}

check_lintian() { lintian --fail-on error --tag-display-limit 0 --no-cfg --allow-root "$1"; }

# check_exposure: prints the exposure level of each unit (`systemd-analyze security`). Fails if one is above 4.0.
check_exposure() {
    units=$WORK/units
    rm -rf "$units"
    mkdir -p "$units"
    code=0
    for unit in systemd/*.service; do
        name=$(basename "$unit")
        sed 's|/usr/local/bin/packetrig|/bin/true|' "$unit" >"$units/$name"
        level=$(systemd-analyze security --offline=true --no-pager "$units/$name" | sed -n 's/.*exposure level.*: \([0-9.]*\) .*/\1/p')
        echo "| $name | $level |"
        [ "$(echo "$level" | tr -d .)" -le 40 ] || code=1
    done
    return $code
}
