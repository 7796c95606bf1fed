"""The same server under otgen, in the ways its own suite runs it."""

import os
import pathlib
import subprocess

import pytest
from rig import LOCATIONS
from talk import Talk

OTG = pathlib.Path(__file__).with_name("otgen.yml")
# Flags, and whether the document comes by standard input.
RUNS = {
    "environment": ([], True),
    "api": (["--api", "{api}"], True),
    "file": (["--file", str(OTG), "--yaml"], False),
    "interval": (["--interval", "2s"], True),
    "flow metrics": (["--metrics", "flow"], True),
    "xeta": (["--xeta", "1.5"], True),
}


@pytest.mark.parametrize("run", RUNS)
def test_otgen(server, run):
    flags, by_input = RUNS[run]
    command = [os.environ["OTGEN"], "run", "-k", *(flag.format(api=server.https) for flag in flags)]
    environment = {**os.environ, "OTG_API": server.https}
    text = OTG.read_bytes() if by_input else None
    done = subprocess.run(command, input=text, env=environment, capture_output=True, timeout=120)
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, said
    talk = Talk(server.api(), "grpc")
    row = talk.ended()["p1-p2"]
    assert (row.frames_tx, row.frames_rx, row.bytes_rx) == (1_000, 1_000, 512_000), said
    assert [port.location for port in talk.ports().values()] == list(LOCATIONS.values())
