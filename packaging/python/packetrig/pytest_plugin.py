"""A fixture for pytest: `packetrig_server` is a server on free ports, one for the whole session.

Interfaces and their locations come from the options `--packetrig-port IF=LOCATION`, or from `packetrig_ports` in pytest.ini:

    [pytest]
    packetrig_ports =
        eth1=left
        eth2=right

A test uses it like this:

    def test_forwarding(packetrig_server):
        api = snappi.api(location=packetrig_server.url)
"""

from typing import Iterator

import pytest

from ._server import Server, serve


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("packetrig").addoption(
        "--packetrig-port", action="append", default=[], metavar="IF=LOCATION",
        help="interface that packetrig_server serves, and its location in scripts; repeat the option for more interfaces")
    parser.addini("packetrig_ports", "interfaces that packetrig_server serves, as IF=LOCATION", type="linelist", default=[])


def _ports(config: pytest.Config) -> "dict[str, str]":
    lines = config.getoption("--packetrig-port") or config.getini("packetrig_ports")
    pairs = [line.partition("=") for line in lines]
    for interface, _, location in pairs:
        if not interface or not location:
            raise pytest.UsageError("--packetrig-port and packetrig_ports take IF=LOCATION, for example eth1=left")
    return {interface: location for interface, _, location in pairs}


@pytest.fixture(scope="session")
def packetrig_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """`packetrig serve` on free ports; `packetrig_server.url` is for `snappi.api(location=…)`."""
    with serve(_ports(pytestconfig)) as server:
        yield server


@pytest.fixture(scope="session")
def packetrig_url(packetrig_server: Server) -> str:
    """Address of the API over HTTP."""
    return packetrig_server.url
