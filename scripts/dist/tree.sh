# The files of a package, as they are below the root directory. Sourced by scripts/dist.sh.

# version: prints the version of Cargo.toml if the commit has its tag, otherwise a development version, which package
# managers sort below it.
version() {
    number=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    if git describe --exact-match --match "v$number" >/dev/null 2>&1; then
        echo "$number"
    else
        echo "$number~$(date -u -d "@$(git log -1 --format=%ct)" +%Y%m%d%H%M%S)"
    fi
}

# stage_program NAME TREE: copies the program and its message server into TREE.
stage_program() {
    install -D -m 755 "$OUT/$1/packetrig" "$2/usr/bin/packetrig"
    install -D -m 755 "$OUT/$1/nats-server" "$2/usr/lib/packetrig/nats-server"
}

# stage_manual TREE: copies manual pages and completions into TREE.
stage_manual() {
    mkdir -p "$1/usr/share/man/man1"
    cp "$OUT"/manual/man1/*.1 "$1/usr/share/man/man1/"
    gzip -9n "$1"/usr/share/man/man1/*.1
    install -D -m 644 "$OUT/manual/completions/packetrig.bash" "$1/usr/share/bash-completion/completions/packetrig"
    install -D -m 644 "$OUT/manual/completions/_packetrig" "$1/usr/share/zsh/vendor-completions/_packetrig"
    install -D -m 644 "$OUT/manual/completions/packetrig.fish" "$1/usr/share/fish/vendor_completions.d/packetrig.fish"
}

# stage_services TREE UNITS: copies the units into the directory UNITS of TREE. They call the program of the package;
# the files in systemd/ call a program that was installed by hand.
stage_services() {
    mkdir -p "$1/$2"
    for unit in systemd/*.service; do
        sed 's|/usr/local/bin/packetrig|/usr/bin/packetrig|' "$unit" >"$1/$2/$(basename "$unit")"
    done
    install -D -m 644 packaging/sysusers.conf "$1/usr/lib/sysusers.d/packetrig.conf"
    mkdir -p "$1/etc/packetrig"
    cp packaging/etc/*.conf "$1/etc/packetrig/"
    # Everybody may read this directory. The owner can add files, such as keys, that have narrower modes.
    chmod 755 "$1/etc/packetrig"
}

# stage_documents TREE: copies documents, examples and Wireshark scripts into TREE.
stage_documents() {
    mkdir -p "$1/usr/share/doc/packetrig" "$1/usr/share/packetrig/wireshark"
    cp docs/*.lua "$1/usr/share/packetrig/wireshark/"
    cp README.md "$OUT/sbom.cdx.json" "$1/usr/share/doc/packetrig/"
    gzip -9nc CHANGELOG.md >"$1/usr/share/doc/packetrig/changelog.gz"
    cp -r examples "$1/usr/share/doc/packetrig/"
    find "$1" -name __pycache__ -prune -exec rm -r {} +
}

# settle_tree TREE: sets modes and times that do not depend on who builds the tree, and when.
settle_tree() {
    find "$1" -type d -exec chmod 755 {} +
    find "$1" -type f ! -path '*/usr/bin/*' ! -path '*/usr/lib/packetrig/*' ! -path '*/DEBIAN/p*' -exec chmod 644 {} +
    find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# stage_tree NAME TREE UNITS: writes all files of a package into TREE.
stage_tree() {
    rm -rf "$2"
    stage_program "$1" "$2"
    stage_manual "$2"
    stage_services "$2" "$3"
    stage_documents "$2"
}
