#!/bin/sh
# nftest.sh DIR: downloads the file with the filters that nfdump 1.7.8 tests itself with into DIR, and prints its path:
# the value of EVAL_NFTEST for `make eval-flows`. The file belongs to nfdump (BSD-3-Clause) and is not part of this
# repository. NFDUMP_REPOSITORY: another repository to fetch from.
set -eu
directory=${1:?"give a directory to download to"}
commit=e198c8b38a39a4341a0a438c3fcdd0a0394dee6d
file=src/test/nftest.c
if [ ! -e "$directory/$file" ]; then
	git init -q "$directory"
	git -C "$directory" fetch -q --depth 1 "${NFDUMP_REPOSITORY:-https://github.com/phaag/nfdump}" "$commit"
	git -C "$directory" checkout -q "$commit" -- "$file"
fi
echo "$directory/$file"
