# Builds the static program of one processor. Sourced by scripts/dist.sh, with ROOT and OUT set.
#
# The C parts (SQLite, zstd, ring, mimalloc) are compiled by zig's compiler, which has musl's headers for every processor. The linker is
# Rust's own. The symbols go to a file beside the program.

# zig_target NAME: prints zig's name of the processor.
zig_target() {
    case $1 in
    x86_64) echo x86_64-linux-musl ;;
    aarch64) echo aarch64-linux-musl ;;
    # The processor of Rust's target has 16 registers of double precision and no NEON.
    armv7) echo arm-linux-musleabihf -mcpu=generic+v7a+vfp3d16-neon-d32 ;;
    *) echo "zig has no target for $1" >&2; return 2 ;;
    esac
}

# write_zig_tools NAME: writes scripts that call zig's C compiler and archiver for this processor; prints their directory.
write_zig_tools() {
    python=$(sh scripts/clients.sh zig)
    tools=$OUT/tools/$1
    mkdir -p "$tools"
    # Crates call the compiler with --target and a name that zig does not know, so the option is removed.
    cat >"$tools/cc" <<CC
#!/bin/sh
for word; do
    shift
    case \$word in --target=*) ;; *) set -- "\$@" "\$word" ;; esac
done
exec "$python" -m ziglang cc -target $(zig_target "$1") "\$@"
CC
    printf '#!/bin/sh\nexec "%s" -m ziglang ar "$@"\n' "$python" >"$tools/ar"
    chmod +x "$tools/cc" "$tools/ar"
    echo "$tools"
}

# remap_flags NAME: prints flags of rustc that keep the directories of this machine out of the program.
remap_flags() {
    sysroot=$(rustc $(has_rustup_library "$1" || echo +nightly) --print sysroot)
    echo "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$sysroot=/rust" \
        "--remap-path-prefix=$ROOT=/packetrig"
}

# c_flags: prints flags of the C compiler. They switch off zig's checks of undefined behaviour, which are meant for
# development, and keep the directories of this machine out of the program.
c_flags() {
    echo "-g0 -fno-sanitize=undefined -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo -ffile-prefix-map=$ROOT=/packetrig"
}

# link_flags NAME: prints flags for a static program. With rustup's library it is loaded at a random address and has
# packed relocations. Debian 12's musl is too old for packed relocations, so with it the address is fixed.
link_flags() {
    if has_rustup_library "$1"; then
        echo "-C linker=rust-lld -C link-arg=--pack-dyn-relocs=relr"
    else
        echo "-C linker=rust-lld -C relocation-model=static $(foreign_link_flags "$(foreign_libraries "$1")")"
    fi
}

# build_program NAME: writes $OUT/NAME/packetrig and $OUT/NAME/packetrig.debug.
build_program() {
    name=$1
    target=$(target "$name")
    tools=$(write_zig_tools "$name")
    variable=$(echo "$target" | tr - _)
    toolchain=
    build_std=
    if has_rustup_library "$name"; then
        rustup target add "$target"
    else
        rustup toolchain install nightly --profile minimal --component rust-src
        toolchain=+nightly
        build_std="-Z build-std=std,panic_unwind"
    fi
    # shellcheck disable=SC2086 # lists of words
    env "CC_$variable=$tools/cc" "AR_$variable=$tools/ar" "CFLAGS_$variable=$(c_flags)" \
        ZIG_GLOBAL_CACHE_DIR="$OUT/zig" ZIG_LOCAL_CACHE_DIR="$OUT/zig" \
        CARGO_TARGET_DIR="$OUT/cargo" CARGO_INCREMENTAL=0 SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" \
        RUSTFLAGS="$(link_flags "$name") $(remap_flags "$name")" \
        nice cargo $toolchain build --locked --profile dist -p packetrig --bin packetrig --target "$target" \
        -j "${JOBS:-2}" $build_std
    split_symbols "$OUT/cargo/$target/dist/packetrig" "$OUT/$name/packetrig"
}

# split_symbols FROM TO: writes the program without symbols to TO, and its symbols to TO.debug. The tool comes with
# Rust, but does not find its library without LD_LIBRARY_PATH.
split_symbols() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    sysroot=$(rustc --print sysroot)
    objcopy="env LD_LIBRARY_PATH=$sysroot/lib $sysroot/lib/rustlib/$host/bin/rust-objcopy"
    mkdir -p "$(dirname "$2")"
    $objcopy --only-keep-debug "$1" "$2.debug"
    $objcopy --strip-all "$1" "$2"
    (cd "$(dirname "$2")" && $objcopy --add-gnu-debuglink="$(basename "$2").debug" "$(basename "$2")")
}
