#!/bin/busybox sh
# First process of the guest: shows the job the host's files, runs it, leaves its exit code, switches off.
# LIMIT (seconds) comes from the kernel's command line. The job is /job.
/bin/busybox mkdir -p /proc /sys /dev /out /host /fresh /root
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/null >/dev/ttyS0 2>&1
stty -F /dev/ttyS0 -opost

give_up() {
    echo "vm: $*"
    poweroff -f
    sleep 60
}

for module in /modules/*; do
    insmod "$module" || give_up "module $module cannot be loaded"
done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,access=any out /out || give_up "no way to leave a result"
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose,access=any host /host ||
    give_up "the host's files cannot be seen"
# What the job writes goes to memory, wherever it writes.
mount -t tmpfs -o mode=0755 fresh /fresh
mkdir /fresh/upper /fresh/work
mount -t overlay -o lowerdir=/host,upperdir=/fresh/upper,workdir=/fresh/work root /root ||
    give_up "the host's files cannot be covered"
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t bpf bpf /root/sys/fs/bpf
mount --bind /dev /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts devpts /root/dev/pts
mount -t tmpfs -o mode=1777 shm /root/dev/shm
mount -t tmpfs -o mode=0755 run /root/run
mkdir -p /root/run/netns
ip link set lo up
hostname guest
cp /job /root/run/job

timeout -s KILL "$LIMIT" chroot /root /bin/sh /run/job
code=$?
[ "$code" -eq 137 ] && echo "vm: the job was killed; its limit is $LIMIT s (--limit SECONDS)"
echo "$code" >/out/exit-code
sync
poweroff -f
