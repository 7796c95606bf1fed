"""Writes scripts/python-NAME.txt: every package that an environment of `scripts/clients.sh` has, with its hashes.

usage: lock_python.py NAME ENVIRONMENT PACKAGE==VERSION…   (PACKAGE==VERSION: the requested packages; all others are their dependencies)
"""
import json, pathlib, subprocess, sys, urllib.request

def hashes(package, version):
    request = urllib.request.Request(
        f"https://pypi.org/simple/{package.lower().replace('_', '-').replace('.', '-')}/",
        headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    files = json.load(urllib.request.urlopen(request))["files"]
    norm = package.lower().replace("-", "_").replace(".", "_")
    found = set()
    for entry in files:
        name = entry["filename"].lower().replace("-", "_")
        for stem in (norm, package.lower()):
            rest = name.removeprefix(stem.replace("-", "_"))
            if rest != name and (rest.startswith(f"_{version}_") or rest in (f"_{version}.tar.gz", f"_{version}.zip")):
                found.add(entry["hashes"]["sha256"])
    return sorted(found)

name, environment, *asked = sys.argv[1:]
frozen = subprocess.run([f"{environment}/bin/pip", "freeze", "--all"], check=True, capture_output=True, text=True).stdout.split()
lines = [f"# What the environment `{name}` of scripts/clients.sh is made of; asked for: {' '.join(asked)}.",
         "# Every file of each version is allowed by its hash, whatever machine it is for."]
for pin in frozen:
    package, version = pin.split("==")
    if package in ("pip",):
        continue
    found = hashes(package, version)
    if not found: sys.exit(f"PyPI has no files of {pin}")
    lines.append(f"{pin} \\")
    lines += [f"    --hash=sha256:{h}" + (" \\" if h != found[-1] else "") for h in found]
pathlib.Path(f"scripts/python-{name}.txt").write_text("\n".join(lines) + "\n")
