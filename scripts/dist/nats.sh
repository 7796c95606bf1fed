# Builds the message server of a fleet (nats-server, in Go), static. Sourced by scripts/dist.sh.

# nats_version: prints the version that the tests use, from clients.sh.
nats_version() { sed -n 's/^nats) go_program nats-server \(v[^ ]*\) .*/\1/p' scripts/clients.sh; }

go_processor() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; armv7) echo arm ;; esac; }

# build_nats NAME: writes $OUT/NAME/nats-server.
build_nats() {
    command -v go >/dev/null || { echo "dist: the Go compiler (go), which builds nats-server, is not installed" >&2; return 1; }
    processor=$(go_processor "$1")
    modules=$(go env GOMODCACHE)
    # For another processor, `go install` writes the program only below GOPATH. GOARM=7 uses no floating-point registers
    # that Rust's target does not have.
    env CGO_ENABLED=0 GOOS=linux GOARCH="$processor" GOARM=7 GOBIN= GOPATH="$OUT/go" GOMODCACHE="$modules" GOFLAGS=-trimpath \
        nice go install -p "${JOBS:-2}" -ldflags="-s -w -buildid=" "github.com/nats-io/nats-server/v2@$(nats_version)"
    mkdir -p "$OUT/$1"
    built=$OUT/go/bin/linux_$processor/nats-server
    [ -e "$built" ] || built=$OUT/go/bin/nats-server
    mv "$built" "$OUT/$1/nats-server"
}
