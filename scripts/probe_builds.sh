#!/bin/sh
# Builds packetrig-probe for small machines, static and stripped, and tests each build: `make probe-builds`.
#
#   scripts/probe_builds.sh [NAME...]      NAME: x86_64 aarch64 armv7 armv6; without one, all of them
#
# Everything stays in target/probe-builds: the programs, the logs of the builds and trials, and the table (sizes.md). It installs
# toolchains with rustup and QEMU with apt, and fetches libraries and kernels of other processors from Debian without installing them.
# No C compiler for these processors is needed: the program is Rust, and clang compiles its BPF programs.
# TRY_ONLY=1: tests the programs of an earlier build again, without building.
set -eu
cd "$(dirname "$0")/.."
ROOT=$PWD
OUT=$ROOT/target/probe-builds
PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin
NAMES=${*:-x86_64 aarch64 armv7 armv6}
SUDO=$([ "$(id -u)" = 0 ] || echo sudo)
mkdir -p "$OUT/logs"

. scripts/targets.sh

install_tools() {
    missing=
    for tool in qemu-arm qemu-system-arm xz cpio clang; do command -v $tool >/dev/null || missing=yes; done
    if [ -n "$missing" ]; then
        $SUDO apt-get update -qq
        $SUDO apt-get install -y -qq --no-install-recommends qemu-user qemu-system-arm xz-utils cpio clang </dev/null
    fi
}

# build NAME: builds the program. The standard library for the target comes from rustup, or the nightly compiler builds
# it from source and links it with Debian's musl and libgcc.
build() {
    name=$1
    target=$(target "$name")
    export CARGO_TARGET_DIR="$OUT/cargo"
    set -- build --locked --profile "${PROFILE:-small}" -p packetrig-probe-cli --bin packetrig-probe --target "$target"
    if has_rustup_library "$name"; then
        rustup target add "$target"
        RUSTFLAGS="-C linker=rust-lld -C relocation-model=static" cargo "$@"
    else
        rustup toolchain install nightly --profile minimal --component rust-src
        link=$(foreign_libraries "$name")
        RUSTFLAGS="-C linker=rust-lld -C relocation-model=static $(foreign_link_flags "$link")" \
            cargo +nightly "$@" -Z build-std=std,panic_unwind
    fi
    cp "$OUT/cargo/$target/${PROFILE:-small}/packetrig-probe" "$OUT/packetrig-probe-$name"
}

# Writes the script of a trial. $P is the command that runs the program, with or without an emulator. The last line of
# the output says how many steps had an expected exit code.
write_trial() {
    cat >"$OUT/trial.sh" <<'TRIAL'
ip link set lo up
good=0 bad=
step() { # step NAME EXIT-CODES COMMAND...
    name=$1 codes=$2
    shift 2
    echo "## $name: $*"
    timeout 120 "$@" 2>&1
    code=$?
    case " $codes " in *" $code "*) good=$((good + 1)) ;; *) bad="$bad $name($code)" ;; esac
    echo
}
ALLOW="--allow 127.0.0.0/8"
cd "${TRIAL_DIR:-/tmp}" || exit 1
step version 0 $P --version
step help 0 $P ping --help >help.txt
step caps 0 $P caps lo
step ping 0 $P ping 127.0.0.1 $ALLOW --count 5 --interval 50ms
step parquet 2 $P ping 127.0.0.1 $ALLOW --count 1 --write a.parquet
# The user id is above 16 bits: old system calls of 32-bit processors would cut it off.
$P reflect 127.0.0.1:8620 $ALLOW --user 70000 --burst 1000 --time "${REFLECT_TIME:-60s}" >reflect.txt 2>&1 &
reflector=$!
n=0
while [ $n -lt 50 ] && ! grep -q listening reflect.txt; do sleep 0.2; n=$((n + 1)); done
step stamp 0 $P stamp 127.0.0.1:8620 $ALLOW --count 10 --interval 50ms
step oneway 0 $P oneway 127.0.0.1:8620 $ALLOW --count 10 --interval 50ms --quiet --write oneway.jsonl
kill -TERM $reflector
wait $reflector
echo "## reflect"; cat reflect.txt; echo
step user 0 grep 'uid 70000' reflect.txt
# INCONCLUSIVE (exit code 7) is expected, too: probes leave late on an emulated processor.
step send "0 7" $P send lo --to 127.0.0.1 --count 50 --every 20ms $ALLOW --mechanism spin --write send.pcapng
step send-sleep "0 7" $P send lo --to 127.0.0.1 --count 50 --every 20ms $ALLOW --mechanism sleep --write send.jsonl
# Exit code 4 is expected, too: kernels before 6.6 do not have the mechanism `gate`.
step send-gate "0 4 7" $P send lo --to 127.0.0.1 --count 50 --every 20ms $ALLOW --mechanism gate
step capacity "0 7" $P capacity 127.0.0.1 --count 10 $ALLOW
echo "## files"; wc -c oneway.jsonl send.pcapng send.jsonl 2>&1; echo
echo "trial: $good steps as expected;${bad:- none failed}"
TRIAL
}

try_here() { # try_here NAME [EMULATOR...]
    name=$1
    shift
    directory=$OUT/trial-$name
    rm -rf "$directory"
    mkdir -p "$directory"
    # The trial has its own network namespace, so no traffic leaves it. Root gets no user namespace, because real-time
    # priority and BPF programs need root outside of user namespaces.
    rights=$([ "$(id -u)" = 0 ] || echo --map-root-user)
    # shellcheck disable=SC2086
    P="$* $OUT/packetrig-probe-$name" TRIAL_DIR=$directory REFLECT_TIME=30s XDG_DATA_HOME=$directory \
        timeout 900 unshare $rights --net sh "$OUT/trial.sh"
}

try_guest() { # try_guest NAME KERNEL-ARCHITECTURE KERNEL-PACKAGE QEMU...
    name=$1
    architecture=$2
    tree=$(guest_tree "$name" "$architecture" "$3")
    shift 3
    cp "$OUT/packetrig-probe-$name" "$tree/bin/packetrig-probe"
    cp "$OUT/trial.sh" "$tree/trial.sh"
    cat >"$tree/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
export PATH=/bin HOME=/tmp
echo "guest: $(uname -srm), $(grep -m1 -iE 'model name|Hardware|machine' /proc/cpuinfo), $(grep MemTotal /proc/meminfo)"
P=packetrig-probe sh /trial.sh
echo "guest: memory of one reflector:"
packetrig-probe reflect 127.0.0.1:8621 --allow 127.0.0.0/8 >/dev/null 2>&1 &
sleep 3
grep -E 'VmRSS|VmHWM|VmSize|RssFile|Threads' /proc/$!/status
kill $!
poweroff -f
INIT
    chmod +x "$tree/init"
    boot_guest "$name" "$architecture" "$@"
}

# row NAME: prints the table row of a build, with its sizes and the last line of each trial.
row() {
    name=$1
    program=$OUT/packetrig-probe-$name
    size=$(wc -c <"$program")
    gz=$(gzip -9 -c "$program" | wc -c)
    xz=$(xz -9e -c "$program" | wc -c)
    how=
    for kind in native user guest; do
        log=$OUT/logs/$kind-$name.log
        [ -e "$log" ] || continue
        said=$(sed -n 's/.*trial: //p' "$log" | tail -1 | tr -d '\r')
        how="$how$kind: ${said:-no result, see ${log#"$ROOT/"}}. "
    done
    echo "| $(target "$name") | $size | $gz | $xz | $how|"
}

install_tools
write_trial
for name in $NAMES; do
    echo "== $name"
    rm -f "$OUT/logs/native-$name.log" "$OUT/logs/user-$name.log" "$OUT/logs/guest-$name.log"
    if [ -z "${TRY_ONLY:-}" ] && ! build "$name" >"$OUT/logs/build-$name.log" 2>&1; then
        tail -20 "$OUT/logs/build-$name.log" >&2
        echo "the build for $name failed, see $OUT/logs/build-$name.log" >&2
        continue
    fi
    case $name in
    x86_64) try_here x86_64 >"$OUT/logs/native-x86_64.log" 2>&1 || true ;;
    aarch64)
        # shellcheck disable=SC2046
        try_here aarch64 $(emulator aarch64) >"$OUT/logs/user-aarch64.log" 2>&1 || true
        try_guest aarch64 arm64 linux-image-arm64 qemu-system-aarch64 -M virt -cpu cortex-a53 -m 256 \
            -append "console=ttyAMA0 quiet panic=-1" >"$OUT/logs/guest-aarch64.log" 2>&1 || true
        ;;
    armv7)
        # shellcheck disable=SC2046
        try_here armv7 $(emulator armv7) >"$OUT/logs/user-armv7.log" 2>&1 || true
        try_guest armv7 armhf linux-image-armmp qemu-system-arm -M virt -cpu cortex-a7 -m 128 \
            -append "console=ttyAMA0 quiet panic=-1" >"$OUT/logs/guest-armv7.log" 2>&1 || true
        ;;
    armv6)
        # shellcheck disable=SC2046
        try_here armv6 $(emulator armv6) >"$OUT/logs/user-armv6.log" 2>&1 || true
        # The guest is an ARMv7, which runs ARMv6 programs, too: with QEMU's Raspberry Pi Zero (raspi0), Debian's kernel
        # printed nothing for three minutes.
        try_guest armv6 armhf linux-image-armmp qemu-system-arm -M virt -cpu cortex-a7 -m 128 \
            -append "console=ttyAMA0 quiet panic=-1" >"$OUT/logs/guest-armv6.log" 2>&1 || true
        ;;
    esac
done

{
    echo "packetrig-probe, $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d), profile ${PROFILE:-small}, sizes in bytes"
    echo
    echo "| Target | Stripped | gzip -9 | xz -9e | Tried |"
    echo "|---|---|---|---|---|"
    for name in x86_64 aarch64 armv7 armv6; do
        if [ -e "$OUT/packetrig-probe-$name" ]; then row "$name"; fi
    done
} | tee "$OUT/sizes.md"
