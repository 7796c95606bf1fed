# A package for Debian and its relatives. Sourced by scripts/dist.sh.

# The default address is a placeholder: the project has no public address yet.
MAINTAINER=${PACKETRIG_MAINTAINER:-The packetrig authors <packetrig@packetrig.invalid>}

# deb_version: the revision is always 1, because changes of the packaging are released with the program.
deb_version() { echo "$(version)-1"; }

write_changelog() {
    printf 'packetrig (%s) unstable; urgency=medium\n\n  * The changes for users are in changelog.gz.\n\n -- %s  %s\n' \
        "$(deb_version)" "$MAINTAINER" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

write_control() {
    cat <<CONTROL
Package: packetrig
Version: $(deb_version)
Architecture: $2
Maintainer: $MAINTAINER
Installed-Size: $(du -ks "$1" | cut -f1)
Recommends: systemd
Suggests: wireshark
Section: net
Priority: optional
Description: network test rig on ordinary Linux machines
 packetrig generates, receives, captures, meters, taps and probes network
 traffic, on one machine or on many. It says what was lost, when and where,
 and marks results that it doubts. Scripts of the Open Traffic Generator API
 can use it as their generator.
 .
 "packetrig demo" shows it without hardware and without root.
CONTROL
}

# build_deb NAME: writes $OUT/packetrig_VERSION-1_PROCESSOR.deb.
build_deb() {
    processor=$(debian "$1")
    tree=$OUT/tree/deb-$1
    stage_tree "$1" "$tree" lib/systemd/system
    documents=$tree/usr/share/doc/packetrig
    cp packaging/debian/copyright "$documents/copyright"
    write_changelog | gzip -9n >"$documents/changelog.Debian.gz"
    install -D -m 644 packaging/debian/lintian-overrides "$tree/usr/share/lintian/overrides/packetrig"
    mkdir -p "$tree/DEBIAN"
    write_control "$tree" "$processor" >"$tree/DEBIAN/control"
    (cd "$tree" && find etc -type f | sort | sed 's|^|/|') >"$tree/DEBIAN/conffiles"
    for script in postinst prerm postrm; do install -m 755 "packaging/debian/$script" "$tree/DEBIAN/$script"; done
    (cd "$tree" && find usr lib -type f | sort | xargs md5sum) >"$tree/DEBIAN/md5sums"
    settle_tree "$tree"
    rm -f "$OUT"/packetrig_*_"$processor.deb"
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$OUT/packetrig_$(deb_version)_$processor.deb" >&2
}
