"""The same server under Go clients: gosnappi (`go/`), and otgen as its own suite runs it."""

import os
import pathlib
import subprocess

import pytest
from rig import LOCATIONS
from talk import Talk

OTG = pathlib.Path(__file__).with_name("otgen.yml")


def program(name):
    path = os.environ.get(name)
    if not path:
        pytest.skip(f"{name} is not set: scripts/clients.sh builds it")
    return path


def test_gosnappi(server):
    environment = {"OTG_HTTPS": server.https, "OTG_GRPC": server.grpc, "PATH": os.environ["PATH"]}
    done = subprocess.run([program("GOSNAPPI"), "-test.v"], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("--- PASS: Test") == 4 and "SKIP" not in done.stdout, done.stdout


RUNS = {
    "standard input": (["-k"], True),
    "api": (["-k", "--api", "{api}"], True),
    "file": (["-k", "--file", str(OTG), "--yaml"], False),
    "interval": (["-k", "--interval", "2s"], True),
    "flow metrics": (["-k", "--metrics", "flow"], True),
    "xeta": (["-k", "--xeta", "1.5"], True),
}


@pytest.mark.parametrize("run", RUNS)
def test_otgen(server, run):
    flags, by_input = RUNS[run]
    flags = [flag.format(api=server.https) for flag in flags]
    if "--api" not in flags:
        flags += ["--api", server.https]
    text = OTG.read_bytes() if by_input else None
    done = subprocess.run([program("OTGEN"), "run", *flags], input=text, capture_output=True, timeout=120)
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, said
    talk = Talk(server.api(), "grpc")
    row = talk.ended()["p1-p2"]
    assert (row.frames_tx, row.frames_rx, row.bytes_rx) == (1_000, 1_000, 512_000), said
    assert [port.location for port in talk.ports().values()] == list(LOCATIONS.values())
