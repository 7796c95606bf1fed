#!/bin/sh
# rate-pairs.sh BASE [NEW]: frames sent and received by two builds of the program in turn, over one cable that is asked for more than it
# carries. Run it in the private lab: target/debug/xtask lab -- sh eval/rate-pairs.sh /path/to/older/packetrig
set -eu
base=${1:?"which older program?"}
new=${2:-$(dirname "$0")/../target/release/packetrig}
pairs=${PAIRS:-5}
out=$(mktemp -d)
trap 'ip netns del pairs-a; ip netns del pairs-b; rm -rf "$out"' EXIT
ip netns add pairs-a
ip netns add pairs-b
ip link add e0 netns pairs-a type veth peer name e1 netns pairs-b
ip -n pairs-a link set e0 up
ip -n pairs-b link set e1 up

one() { # NAME PROGRAM BACK_END
    PACKETRIG_RUN_DIR="$out/$1" "$2" run --tx pairs-a/e0 --rx pairs-b/e1 --back-end "$3" --rate 6Mpps --size 64 --time 2s \
        --store "$out/store-$1" --json --quiet >"$out/report.json" || true
    python3 -c 'import json, sys
stream = json.load(open(sys.argv[1]))["streams"][0]
print(stream["sent"]["frames"], stream["received"]["frames"])' "$out/report.json"
}

for back_end in packet xdp; do
    pair=0
    while [ "$pair" -lt "$pairs" ]; do
        echo "$(one base "$base" "$back_end") $(one new "$new" "$back_end")" >>"$out/$back_end"
        pair=$((pair + 1))
    done
    python3 -c 'import statistics, sys
rows = [list(map(int, line.split())) for line in open(sys.argv[2])]
for what, old, new in (("sent", 0, 2), ("received", 1, 3)):
    ratio = statistics.median(row[new] for row in rows) / statistics.median(row[old] for row in rows)
    outcome = "met" if ratio >= 0.97 else "missed"
    print(f"goal truth.rate_{what}_{sys.argv[1]}: measured {ratio:.3f} of before ({len(rows)} pairs, medians), wanted >= 0.97: {outcome}")' \
        "$back_end" "$out/$back_end"
done
