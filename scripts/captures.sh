#!/bin/sh
# captures.sh DIR: downloads the captures that nDPI tests itself with, of a fixed commit, into DIR and prints their
# directory: the value of EVAL_CAPTURES for `make eval-collect`. The captures belong to nDPI (LGPL-3.0) and are not part
# of this repository. They have 60 MB. NDPI_REPOSITORY: another repository to fetch from.
set -eu
directory=${1:?"give a directory to download to"}
commit=3b1286ab03b0c9223ac208a01868d8c1f6c0ae00
captures=tests/cfgs/default/pcap
if [ ! -d "$directory/$captures" ]; then
	git init -q "$directory"
	git -C "$directory" fetch -q --depth 1 "${NDPI_REPOSITORY:-https://github.com/ntop/nDPI}" "$commit"
	git -C "$directory" checkout -q "$commit" -- "$captures" COPYING
fi
echo "$directory/$captures"
