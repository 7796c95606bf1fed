# Builds the program for x86_64 in two directories of different names, and compares the bytes. Run by `scripts/dist.sh --reproduce`.
set -eu
root=$PWD
place=$root/target/reproduce
mkdir -p "$place"
for directory in "$place/first" "$place/second/somewhere-else"; do
    rm -rf "$directory"
    git clone --quiet --no-hardlinks "$root" "$directory"
    (cd "$directory" && ONLY=program scripts/dist.sh x86_64)
done
first=$place/first/target/dist/x86_64/packetrig
second=$place/second/somewhere-else/target/dist/x86_64/packetrig
sha256sum "$first" "$second"
if cmp "$first" "$second"; then
    echo "reproducible: both builds of $(git rev-parse --short HEAD) are the same $(wc -c <"$first") bytes"
else
    echo "not reproducible: the builds differ in $(cmp -l "$first" "$second" | wc -l) bytes" >&2
    exit 1
fi
