# Trials of the static programs: x86_64 in a bare chroot, the others in guests with Debian's kernels. Sourced by scripts/dist_test.sh.

# try_program_x86_64: runs the demo in a root directory that has only the program and the kernel's /proc and /sys.
try_program_x86_64() {
    root=$WORK/bare
    rm -rf "$root"
    mkdir -p "$root/proc" "$root/sys" "$root/tmp" "$root/run"
    cp "$OUT/x86_64/packetrig" "$root/packetrig"
    run_demo 3s in_system "$root" /packetrig
}

# Copies the kernel modules that labs, virtual cables for XDP, impairments and pktgen need.
copy_modules() { # copy_modules KERNEL-TREE TREE
    mkdir -p "$2/modules"
    number=100
    for module in $(python3 scripts/dist/modules.py "$1/lib/modules" af_packet veth bridge 8021q dummy sch_netem sch_fq pktgen); do
        cp "$module" "$2/modules/$number-$(basename "$module")"
        number=$((number + 1))
    done
}

write_guest_init() {
    cat >"$1/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
export PATH=/bin HOME=/tmp
for module in /modules/*.ko; do insmod "$module"; done
ip link set lo up
echo "guest: $(uname -srm), $(grep MemTotal /proc/meminfo)"
good=0 bad=
step() { # step NAME EXIT-CODES COMMAND...
    name=$1 codes=$2
    shift 2
    echo "## $name: $*"
    timeout 200 "$@" 2>&1
    code=$?
    case " $codes " in *" $code "*) good=$((good + 1)) ;; *) bad="$bad $name($code)" ;; esac
}
step version 0 packetrig --version
# INCONCLUSIVE (exit code 7) is expected, too: frames leave late on an emulated processor.
step demo "0 7" packetrig demo --time 3s
echo "guest: first verdict after $(cut -d' ' -f1 /proc/uptime) s"
step demo-reference "1 7" packetrig demo --time 3s --device reference --faults drop=10,duplicate=5,reorder=3
step demo-xdp "0 7" packetrig demo --time 3s --back-end xdp
# With BusyBox, the other end gets a name from the kernel: veth0.
ip link add a0 type veth
ip link set a0 up; ip link set veth0 up
step run "0 7" packetrig run --tx a0 --rx veth0 --rate 200pps --time 2s --back-end packet
packetrig capture veth0 --time 5s --write /tmp/c.pcapng >/tmp/capture.txt 2>&1 &
capture=$!
sleep 2
step run-captured "0 7" packetrig run --tx a0 --rx veth0 --rate 200pps --time 1s --back-end packet
wait $capture
step meter 0 packetrig meter /tmp/c.pcapng --directory /tmp/flows
step flows 0 packetrig flows top /tmp/flows
step ping 0 packetrig probe ping 127.0.0.1 --allow 127.0.0.0/8 --count 5 --interval 50ms
step doctor "0 5" packetrig doctor
echo "trial: $good steps as expected;${bad:- none failed}"
poweroff -f
INIT
    chmod +x "$1/init"
}

# try_guest NAME KERNEL-ARCHITECTURE KERNEL-PACKAGE QEMU...: boots a guest that runs the trial.
try_guest() {
    name=$1
    architecture=$2
    tree=$(guest_tree "$name" "$architecture" "$3")
    shift 3
    copy_modules "$OUT/debian/$architecture-kernel" "$tree"
    cp "$OUT/$name/packetrig" "$tree/bin/packetrig"
    write_guest_init "$tree"
    boot_guest "$name" "$architecture" "$@" -append "console=${CONSOLE:-ttyAMA0} quiet panic=-1 rdinit=/init"
}

try_program_aarch64() { try_guest aarch64 arm64 linux-image-arm64 qemu-system-aarch64 -M virt -cpu cortex-a53 -smp 2 -m 1024; }
try_program_armv7() { try_guest armv7 armhf linux-image-armmp qemu-system-arm -M virt -cpu cortex-a7 -smp 2 -m 1024; }
