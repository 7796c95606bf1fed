# Manual pages, completions and the list of parts, from the program's own definitions. Sourced by scripts/dist.sh.

# build_manual: leaves $OUT/manual/man1 and $OUT/manual/completions. A test of the command line writes them, so that the program itself
# does not contain what makes them.
build_manual() {
    rm -rf "$OUT/manual"
    mkdir -p "$OUT/manual"
    PACKETRIG_MANUAL=$OUT/manual nice cargo test --locked -p packetrig --bin packetrig -j "${JOBS:-2}" -- --exact args::manual::every_command_has_a_page
    [ -e "$OUT/manual/man1/packetrig.1" ] || { echo "dist: no manual was written" >&2; return 1; }
}

# build_sbom: leaves $OUT/sbom.cdx.json.
build_sbom() { python3 scripts/dist/sbom.py "$(version)" "$(nats_version)" "$SOURCE_DATE_EPOCH" >"$OUT/sbom.cdx.json"; }
