# A package for Fedora, SUSE and their relatives. Sourced by scripts/dist.sh.

rpm_processor() { case $1 in armv7) echo armv7hl ;; *) echo "$1" ;; esac; }

# build_rpm NAME: writes $OUT/packetrig-VERSION-1.PROCESSOR.rpm.
build_rpm() {
    processor=$(rpm_processor "$1")
    tree=$OUT/tree/rpm-$1
    stage_tree "$1" "$tree" usr/lib/systemd/system
    mkdir -p "$tree/usr/share/zsh/site-functions"
    mv "$tree/usr/share/zsh/vendor-completions/_packetrig" "$tree/usr/share/zsh/site-functions/_packetrig"
    rmdir "$tree/usr/share/zsh/vendor-completions"
    mkdir -p "$tree/usr/share/doc/packetrig"
    cp LICENSE-MIT LICENSE-APACHE "$tree/usr/share/doc/packetrig/"
    settle_tree "$tree"
    rm -f "$OUT"/packetrig-*."$processor.rpm"
    rpmbuild -bb --quiet --target "$processor-linux" --define "_tree $tree" --define "_release_version $(version)" \
        --define "_topdir $OUT/rpm" --define "_rpmdir $OUT" --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
        --define "_buildhost packetrig" packaging/packetrig.spec
}
