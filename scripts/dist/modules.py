"""Prints the paths of kernel modules in the order of loading: each module after those that it depends on.

usage: modules.py DIRECTORY NAME...   (a NAME without a file is left out: it is built into the kernel, or the kernel does not have it)
"""
import pathlib, re, sys

directory, *wanted = sys.argv[1:]
files = {path.name.removesuffix(".ko").replace("-", "_"): path for path in pathlib.Path(directory).rglob("*.ko")}
printed = set()


def print_in_order(name):
    if name in printed or name not in files:
        return
    printed.add(name)
    depends = re.search(rb"\0depends=([^\0]*)\0", files[name].read_bytes())
    for other in depends.group(1).decode().split(",") if depends else []:
        print_in_order(other)
    print(files[name])


for name in wanted:
    print_in_order(name)
