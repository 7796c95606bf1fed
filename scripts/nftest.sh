#!/bin/sh
# nftest.sh DIR: gets the filters that nfdump 1.7.8 tests itself with, and prints the path of the file: EVAL_NFTEST of
# `make eval-flows`. It is nfdump's (BSD-3-Clause), and not part of this repository. NFDUMP_REPOSITORY names another
# place to get it from.
set -eu
directory=${1:?"where to"}
commit=e198c8b38a39a4341a0a438c3fcdd0a0394dee6d
file=src/test/nftest.c
if [ ! -e "$directory/$file" ]; then
	git init -q "$directory"
	git -C "$directory" fetch -q --depth 1 "${NFDUMP_REPOSITORY:-https://github.com/phaag/nfdump}" "$commit"
	git -C "$directory" checkout -q "$commit" -- "$file"
fi
echo "$directory/$file"
