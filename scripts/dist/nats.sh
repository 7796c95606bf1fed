# Builds the message server of a fleet (nats-server, in Go), static. Sourced by scripts/dist.sh.

# The version that the tests use.
nats_version() { sed -n 's/^nats) go_program nats-server \(v[^ ]*\) .*/\1/p' scripts/clients.sh; }

go_processor() { case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; armv7) echo arm ;; esac; }

# build_nats NAME: leaves $OUT/NAME/nats-server.
build_nats() {
    command -v go >/dev/null || { echo "dist: there is no Go compiler for nats-server" >&2; return 1; }
    processor=$(go_processor "$1")
    modules=$(go env GOMODCACHE)
    # `go install` puts programs of other processors below GOPATH only. GOARM: no floating point registers beyond those of Rust's target.
    env CGO_ENABLED=0 GOOS=linux GOARCH="$processor" GOARM=7 GOBIN= GOPATH="$OUT/go" GOMODCACHE="$modules" GOFLAGS=-trimpath \
        nice go install -p "${JOBS:-2}" -ldflags="-s -w -buildid=" "github.com/nats-io/nats-server/v2@$(nats_version)"
    mkdir -p "$OUT/$1"
    built=$OUT/go/bin/linux_$processor/nats-server
    [ -e "$built" ] || built=$OUT/go/bin/nats-server
    mv "$built" "$OUT/$1/nats-server"
}
