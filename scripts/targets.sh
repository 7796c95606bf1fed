# The processors for which packetrig is built: names, libraries, emulators and guests. Sourced by probe_builds.sh,
# dist.sh and dist_test.sh, with OUT set.

# Maximum time, in seconds, in which a guest on an emulated processor boots and finishes its trial.
GUEST_TIME=${GUEST_TIME:-600}

# For each build: the target of rustc, Debian's name of the processor, and the emulator.
target() {
    case $1 in
    x86_64) echo x86_64-unknown-linux-musl ;;
    aarch64) echo aarch64-unknown-linux-musl ;;
    armv7) echo armv7-unknown-linux-musleabihf ;;
    # With floating point in software, as in Debian's armel, whose libraries are the only ones that run on ARMv6.
    armv6) echo arm-unknown-linux-musleabi ;;
    *) echo "unknown build: $1" >&2; exit 2 ;;
    esac
}
debian() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; armv7) echo armhf ;; armv6) echo armel ;; esac; }
emulator() {
    case $1 in
    aarch64) echo "qemu-aarch64 -cpu cortex-a53" ;;
    armv7) echo "qemu-arm -cpu cortex-a7" ;;
    # This model refuses instructions that ARMv6 does not have.
    armv6) echo "qemu-arm -cpu arm1176" ;;
    esac
}

# debian_fetch ARCHITECTURE DIRECTORY PACKAGE...: downloads packages and unpacks them into DIRECTORY. It uses apt with a
# separate state that has only this architecture.
debian_fetch() {
    state=$OUT/apt/$1
    into=$2
    apt="-qq -o APT::Architecture=$1 -o APT::Architectures=$1 -o Dir::State=$state -o Dir::State::status=$state/status
        -o Dir::State::Lists=$state/lists -o Dir::Cache=$state/cache -o Debug::NoLocking=1 -o APT::Sandbox::User=$(id -un)"
    shift 2
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$into"
    : >"$state/status"
    for item in "$@"; do
        [ -e "$into/.has-$item" ] && continue
        # While a mirror is updated, some lists fail. The package may be in another list, so a failure is ignored.
        # shellcheck disable=SC2086
        [ -e "$state/updated" ] || { apt-get $apt update || true; touch "$state/updated"; }
        # linux-image-… with a fixed name has no kernel: it depends on the package with the kernel.
        # shellcheck disable=SC2086
        case $item in
        linux-image-*) real=$(apt-cache $apt show --no-all-versions "$item" | sed -n 's/^Depends: \(linux-image-[^ ,]*\).*/\1/p') ;;
        *) real=$item ;;
        esac
        # shellcheck disable=SC2086
        (rm -rf "$state/new" && mkdir "$state/new" && cd "$state/new" && apt-get $apt download "$real")
        dpkg-deb -x "$state"/new/*.deb "$into"
        rm -rf "$state/new"
        touch "$into/.has-$item"
    done
}

# For these builds, the compiled standard library of rustup is used. For the others, the nightly compiler
# builds it from source.
has_rustup_library() { [ "$1" = x86_64 ] || [ "$1" = aarch64 ]; }

# foreign_libraries NAME: prints the directory with Debian's musl and libgcc of that processor, ready for the linker.
foreign_libraries() {
    libraries=$OUT/debian/$(debian "$1")
    debian_fetch "$(debian "$1")" "$libraries" musl-dev libgcc-12-dev >&2
    link=$libraries/link
    mkdir -p "$link"
    cp "$libraries"/usr/lib/arm-linux-musl*/crt[1in].o "$libraries"/usr/lib/arm-linux-musl*/libc.a "$link"
    # The standard library links the unwinder of LLVM. That of GCC has the same interface.
    cp "$libraries"/usr/lib/gcc/*/12/libgcc_eh.a "$link/libunwind.a"
    echo "$link"
}

# foreign_link_flags DIRECTORY: prints flags with which rustc links the libraries of DIRECTORY and not its own.
foreign_link_flags() {
    echo "-C link-self-contained=no -C target-feature=+crt-static -C link-arg=$1/crt1.o -C link-arg=$1/crti.o" \
        "-C link-arg=$1/crtn.o -L native=$1"
}

# guest_tree NAME ARCHITECTURE KERNEL-PACKAGE: makes the root directory of a guest and prints its path. It has BusyBox,
# and the files of users and hosts that a router has. The caller adds /init.
guest_tree() {
    debian_fetch "$2" "$OUT/debian/$2" busybox-static >&2
    debian_fetch "$2" "$OUT/debian/$2-kernel" "$3" >&2
    tree=$OUT/guest-$1
    rm -rf "$tree"
    mkdir -p "$tree/bin" "$tree/proc" "$tree/sys" "$tree/dev" "$tree/tmp" "$tree/run" "$tree/etc"
    cp "$OUT/debian/$2/bin/busybox" "$tree/bin/"
    echo 'root:x:0:0::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh' >"$tree/etc/passwd"
    echo '127.0.0.1 localhost' >"$tree/etc/hosts"
    echo "$tree"
}

# boot_guest NAME ARCHITECTURE QEMU...: runs the guest until it powers off, for at most GUEST_TIME seconds.
boot_guest() {
    image=$OUT/guest-$1.cpio.gz
    kernel=$(echo "$OUT/debian/$2-kernel"/boot/vmlinuz-*)
    (cd "$OUT/guest-$1" && find . | cpio -o -H newc --quiet) | gzip -1 >"$image"
    shift 2
    timeout "$GUEST_TIME" "$@" -kernel "$kernel" -initrd "$image" -nographic -no-reboot -net none </dev/null
}
