"""Writes a wheel with the static program of one processor, its message server and the Python helper.

usage: wheel.py VERSION NAME DIRECTORY INTO   (NAME: x86_64, aarch64 or armv7; DIRECTORY: has packetrig and nats-server)

The same input gives the same bytes: members are sorted and have the time of SOURCE_DATE_EPOCH.
"""
import base64, hashlib, os, pathlib, sys, time, zipfile

# A static program needs no C library, so the tags name the oldest systems that tags can name.
TAGS = {name: f"manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
        for name, machine in (("x86_64", "x86_64"), ("aarch64", "aarch64"), ("armv7", "armv7l"))}
HELPER = pathlib.Path("packaging/python/packetrig")
METADATA = """Metadata-Version: 2.4
Name: packetrig
Version: {version}
Summary: Network test rig on ordinary Linux machines: generates, receives, captures, meters, taps and probes traffic
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: System :: Networking
Classifier: Framework :: Pytest
Description-Content-Type: text/markdown

{readme}"""
README = """`packetrig demo` tests a bridge of the Linux kernel in a private lab. It needs no hardware and no root.

The package has the program `packetrig`, the message server that fleets need, and a helper for scripts:

```python
import packetrig, snappi

with packetrig.serve(ports={"eth1": "left", "eth2": "right"}) as server:
    api = snappi.api(location=server.url)
```

Tests with pytest have the fixtures `packetrig_server` and `packetrig_url`.
"""


def pep440(version):
    """Converts a version to the form of PEP 440: `0.1.0~20261128` becomes `0.1.0.dev20261128`."""
    number, _, commit = version.partition("~")
    return f"{number}.dev{commit}" if commit else number


def members(version, name, directory):
    """Yields the files of the wheel: path in the wheel, content, and whether it is a program."""
    data, info = f"packetrig-{version}.data", f"packetrig-{version}.dist-info"
    yield f"{data}/scripts/packetrig", (directory / "packetrig").read_bytes(), True
    yield f"{data}/data/lib/packetrig/nats-server", (directory / "nats-server").read_bytes(), True
    for file in [*sorted(HELPER.glob("*.py")), HELPER / "py.typed"]:
        yield f"packetrig/{file.name}", file.read_bytes(), False
    for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
        yield f"{info}/licenses/{licence}", pathlib.Path(licence).read_bytes(), False
    yield f"{info}/METADATA", METADATA.format(version=version, readme=README).encode(), False
    tags = "".join(f"Tag: py3-none-{tag}\n" for tag in TAGS[name].split("."))
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: packetrig\nRoot-Is-Purelib: false\n{tags}".encode(), False
    yield f"{info}/entry_points.txt", b"[pytest11]\npacketrig = packetrig.pytest_plugin\n", False


def write_wheel(version, name, directory, into):
    moment = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    path = into / f"packetrig-{version}-py3-none-{TAGS[name]}.whl"
    record_path = f"packetrig-{version}.dist-info/RECORD"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        def add(member, content, is_program):
            entry = zipfile.ZipInfo(member, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if is_program else 0o100644) << 16
            wheel.writestr(entry, content)
        for member, content, is_program in sorted(members(version, name, directory)):
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{member},sha256={digest},{len(content)}\n")
            add(member, content, is_program)
        add(record_path, "".join([*record, f"{record_path},,\n"]).encode(), False)
    return path


version, name, directory, into = sys.argv[1:]
print(write_wheel(pep440(version), name, pathlib.Path(directory), pathlib.Path(into)))
