# Processors that packetrig is built for, where their libraries come from, and guests that have them. Sourced by probe_builds.sh,
# dist.sh and dist_test.sh, with OUT set.

# Seconds for a guest to boot and do its trial, on a processor that is emulated.
GUEST_TIME=${GUEST_TIME:-600}

# What is known of each build: the target of rustc, Debian's name of the processor, and the emulator.
target() {
    case $1 in
    x86_64) echo x86_64-unknown-linux-musl ;;
    aarch64) echo aarch64-unknown-linux-musl ;;
    armv7) echo armv7-unknown-linux-musleabihf ;;
    # Software floating point: Debian's library for ARM without it is the only one that runs on ARMv6.
    armv6) echo arm-unknown-linux-musleabi ;;
    *) echo "unknown build: $1" >&2; exit 2 ;;
    esac
}
debian() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; armv7) echo armhf ;; armv6) echo armel ;; esac; }
emulator() {
    case $1 in
    aarch64) echo "qemu-aarch64 -cpu cortex-a53" ;;
    armv7) echo "qemu-arm -cpu cortex-a7" ;;
    # It refuses instructions that ARMv6 does not have.
    armv6) echo "qemu-arm -cpu arm1176" ;;
    esac
}

# debian_fetch ARCHITECTURE DIRECTORY PACKAGE...: unpacks packages, with an apt of its own that knows only that architecture.
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
        # A mirror that is being updated fails in part; the package may be in the other part.
        # shellcheck disable=SC2086
        [ -e "$state/updated" ] || { apt-get $apt update || true; touch "$state/updated"; }
        # A kernel's package of fixed name depends on the one with the kernel.
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

# Rustup has a compiled standard library for these; the nightly compiler builds it from source for the others.
has_rustup_library() { [ "$1" = x86_64 ] || [ "$1" = aarch64 ]; }

# foreign_libraries NAME: prints the directory with Debian's musl and libgcc of that processor, ready for the linker.
foreign_libraries() {
    libraries=$OUT/debian/$(debian "$1")
    debian_fetch "$(debian "$1")" "$libraries" musl-dev libgcc-12-dev >&2
    link=$libraries/link
    mkdir -p "$link"
    cp "$libraries"/usr/lib/arm-linux-musl*/crt[1in].o "$libraries"/usr/lib/arm-linux-musl*/libc.a "$link"
    # The standard library asks for the unwinder of LLVM; that of GCC has the same interface.
    cp "$libraries"/usr/lib/gcc/*/12/libgcc_eh.a "$link/libunwind.a"
    echo "$link"
}

# foreign_link_flags DIRECTORY: what rustc is told, so that it links with these libraries and not with those of its own.
foreign_link_flags() {
    echo "-C link-self-contained=no -C target-feature=+crt-static -C link-arg=$1/crt1.o -C link-arg=$1/crti.o" \
        "-C link-arg=$1/crtn.o -L native=$1"
}

# guest_tree NAME ARCHITECTURE KERNEL-PACKAGE: prints the directory of a guest's files, with BusyBox and the files of users and
# hosts as on a router. The caller adds /init.
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

# boot_guest NAME ARCHITECTURE QEMU...: runs the guest until it powers off. Its end ends QEMU; timeout ends both.
boot_guest() {
    image=$OUT/guest-$1.cpio.gz
    kernel=$(echo "$OUT/debian/$2-kernel"/boot/vmlinuz-*)
    (cd "$OUT/guest-$1" && find . | cpio -o -H newc --quiet) | gzip -1 >"$image"
    shift 2
    timeout "$GUEST_TIME" "$@" -kernel "$kernel" -initrd "$image" -nographic -no-reboot -net none </dev/null
}
