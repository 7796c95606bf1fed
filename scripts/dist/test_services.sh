# A trial of the services: a Debian system boots in a container, and systemd starts each unit of the package. Sourced by
# scripts/dist_test.sh.

SERVICES="serve collect reflect probe-serve meter@veth0 log@veth1 tap@t1"

# write_services_trial ROOT: writes options as an owner would, and a service that starts and stops the others and then
# powers the system off.
write_services_trial() {
    echo 'OPTIONS="--plain-http --http 127.0.0.1:8080 --no-grpc"' >"$1/etc/packetrig/serve.conf"
    echo 'OPTIONS="lo --allow 127.0.0.0/8"' >"$1/etc/packetrig/probe-serve.conf"
    echo 'OPTIONS="ta tb --back-end packet"' >"$1/etc/packetrig/tap-t1.conf"
    cat >"$1/trial.sh" <<TRIAL
#!/bin/sh
exec >/trial.txt 2>&1
/busybox ip link set lo up
for side in ta tb; do
    # With BusyBox, the other ends get names from the kernel: veth0 and veth1.
    /busybox ip link add \$side type veth
    /busybox ip link set \$side up
done
/busybox ip link set veth0 up
/busybox ip link set veth1 up
for unit in $SERVICES; do systemctl start packetrig-\$unit; done
sleep 5
for unit in $SERVICES; do
    echo "service \$unit: \$(systemctl is-active packetrig-\$unit), started again \$(systemctl show -p NRestarts --value packetrig-\$unit) times"
    journalctl -u packetrig-\$unit --no-pager -o cat -n 8
done
for unit in $SERVICES; do
    systemctl stop packetrig-\$unit
    echo "stopped \$unit: \$(systemctl show -p Result --value packetrig-\$unit)"
done
systemctl poweroff
TRIAL
    chmod +x "$1/trial.sh"
    printf '[Unit]\nAfter=multi-user.target\n[Service]\nExecStart=/trial.sh\n' >"$1/etc/systemd/system/trial.service"
    mkdir -p "$1/etc/systemd/system/multi-user.target.wants"
    ln -sf ../trial.service "$1/etc/systemd/system/multi-user.target.wants/trial.service"
}

# try_services FILE: starts and stops every service of the package but the agent, which needs a fleet.
try_services() {
    debian_system
    debian_fetch amd64 "$OUT/debian/amd64" busybox-static
    root=$WORK/services
    rm -rf "$root"
    cp -a "$DEBIAN_SYSTEM" "$root"
    cp "$1" "$root/tmp/packetrig.deb"
    cp "$OUT/debian/amd64/bin/busybox" "$root/busybox"
    in_system "$root" dpkg -i /tmp/packetrig.deb
    write_services_trial "$root"
    timeout 120 systemd-nspawn --register=no --keep-unit --private-network --boot -D "$root" </dev/null
    cat "$root/trial.txt"
    [ "$(grep -c '^service .*: active, started again 0 times' "$root/trial.txt")" = "$(echo "$SERVICES" | wc -w)" ]
    [ "$(grep -c '^stopped .*: success' "$root/trial.txt")" = "$(echo "$SERVICES" | wc -w)" ]
}
