#!/bin/sh
# captures.sh DIR: gets the captures that nDPI tests with, of one commit, and prints where they are: EVAL_CAPTURES of `make eval-collect`.
# They are nDPI's (LGPL-3.0), 60 MB, and not part of this repository. NDPI_REPOSITORY names another place to clone from.
set -eu
directory=${1:?"where to"}
commit=3b1286ab03b0c9223ac208a01868d8c1f6c0ae00
captures=tests/cfgs/default/pcap
if [ ! -d "$directory/$captures" ]; then
	git init -q "$directory"
	git -C "$directory" fetch -q --depth 1 "${NDPI_REPOSITORY:-https://github.com/ntop/nDPI}" "$commit"
	git -C "$directory" checkout -q "$commit" -- "$captures" COPYING
fi
echo "$directory/$captures"
