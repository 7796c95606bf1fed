# An OCI image, made without a daemon. Sourced by scripts/dist.sh.
#
# The image contains the program, the message server and BusyBox, because labs run `ip` and `sh` in their nodes.

oci_processor() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; armv7) echo arm ;; esac; }

# stage_image NAME TREE: writes the files of the image into TREE.
stage_image() {
    rm -rf "$2"
    stage_program "$1" "$2"
    debian_fetch "$(debian "$1")" "$OUT/debian/$(debian "$1")" busybox-static
    install -D -m 755 "$OUT/debian/$(debian "$1")/bin/busybox" "$2/bin/busybox"
    for command in sh ip cat ls ping sleep ps mkdir rm cp mv grep head tail kill env id nc traceroute vi; do
        ln -s busybox "$2/bin/$command"
    done
    mkdir -p "$2/etc" "$2/root" "$2/tmp" "$2/run" "$2/var/lib/packetrig" "$2/proc" "$2/sys" "$2/dev"
    printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >"$2/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$2/etc/group"
    printf 'hosts: files dns\n' >"$2/etc/nsswitch.conf"
    settle_tree "$2"
    chmod 755 "$2"/bin/busybox
    chmod 1777 "$2/tmp"
    touch -d "@$SOURCE_DATE_EPOCH" "$2"/bin "$2/tmp" "$2"
}

# build_oci NAME: writes $OUT/packetrig-oci-NAME.tar, an archive that podman and docker can load.
build_oci() {
    tree=$OUT/tree/oci-$1
    layout=$OUT/oci/$1
    stage_image "$1" "$tree"
    rm -rf "$layout" "$layout.bundle"
    mkdir -p "$OUT/oci"
    created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
    umoci init --layout "$layout"
    umoci new --image "$layout:latest"
    umoci unpack --image "$layout:latest" "$layout.bundle"
    cp -a "$tree/." "$layout.bundle/rootfs/"
    umoci repack --no-history --image "$layout:latest" "$layout.bundle"
    umoci config --no-history --image "$layout:latest" --config.entrypoint /usr/bin/packetrig --config.cmd --help \
        --config.env PATH=/usr/bin:/bin --config.env HOME=/root --config.env XDG_DATA_HOME=/var/lib \
        --config.volume /var/lib/packetrig --config.stopsignal SIGINT --created "$created" \
        --architecture "$(oci_processor "$1")" --os linux --config.label org.opencontainers.image.title=packetrig \
        --config.label "org.opencontainers.image.version=$(version)" \
        --config.label "org.opencontainers.image.licenses=MIT OR Apache-2.0"
    umoci gc --layout "$layout"
    rm -rf "$layout.bundle"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$layout" -cf "$OUT/packetrig-oci-$1.tar" .
}
