#!/bin/sh
# run.sh NAME: evaluates beside peers and writes target/eval/NAME/. EVAL_QUICK=1 takes under a minute, of `probe` four, of `meter` five, of `faults` forty.
# Works as root and as an ordinary user: everything happens in a private lab.
set -eu
name=${1:?"which evaluation: frame, rate, otg, meter, collect, flows, fleet, failover, faults, tap, probe, safety, methods, page"}
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
# Together: one selection of packages is one set of features.
"$CARGO" build --release --locked -p packetrig -p packetrig-eval -p xtask --bin packetrig --bin "eval_$name" --bin xtask
case $name in
fleet | faults | methods | probe)
	# Inside the lab there is no network to get it from. Without it the evaluation says so.
	if server=$(sh scripts/clients.sh nats); then
		PATH="$(dirname "$server"):$PATH"
		export PATH
	else
		echo "going on without nats-server" >&2
	fi
	;;
esac
case $name in
flows)
	if EVAL_READERS=$(sh scripts/clients.sh readers); then
		export EVAL_READERS
	else
		echo "going on without DuckDB" >&2
	fi
	# Named by a user, or fetched: nfdump's own test of its filters.
	if EVAL_NFTEST=${EVAL_NFTEST:-$(sh scripts/nftest.sh target/eval/nfdump)}; then
		export EVAL_NFTEST
	else
		echo "going on without nfdump's test of its filters" >&2
	fi
	;;
methods)
	if EVAL_MLRSEARCH=$(sh scripts/clients.sh mlrsearch); then
		export EVAL_MLRSEARCH
	else
		echo "going on without the library MLRsearch" >&2
	fi
	;;
esac
out=target/eval/$name
mkdir -p "$out"
# Named on the report: a number without its day and its code says little.
EVAL_OF="$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
export EVAL_OF
# Not seen from inside the lab, and what arrival stamps mean hangs on it.
EVAL_PREQUEUE=$(cat /proc/sys/net/core/netdev_tstamp_prequeue 2>/dev/null || echo 1)
export EVAL_PREQUEUE
exec "$PWD/target/release/xtask" lab -- env PACKETRIG_BIN="$PWD/target/release/packetrig" \
	"$PWD/target/release/eval_$name" "$PWD/$out"
