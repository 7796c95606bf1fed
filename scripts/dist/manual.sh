# Manual pages and completions, from the definitions of the command line, and the list of components
# (SBOM). Sourced by scripts/dist.sh.

# build_manual: writes $OUT/manual/man1 and $OUT/manual/completions. A test of the command line writes them, so that the
# program does not contain the code for this.
build_manual() {
    rm -rf "$OUT/manual"
    mkdir -p "$OUT/manual"
    PACKETRIG_MANUAL=$OUT/manual nice cargo test --locked -p packetrig --bin packetrig -j "${JOBS:-2}" -- --exact args::manual::every_command_has_a_page
    [ -e "$OUT/manual/man1/packetrig.1" ] || { echo "dist: the test did not write the manual pages" >&2; return 1; }
}

# build_sbom: writes $OUT/sbom.cdx.json.
build_sbom() { python3 scripts/dist/sbom.py "$(version)" "$(nats_version)" "$SOURCE_DATE_EPOCH" >"$OUT/sbom.cdx.json"; }
