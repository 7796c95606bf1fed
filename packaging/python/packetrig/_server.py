"""Starts `packetrig serve` on free ports of this machine, and ends it."""

import contextlib
import os
import pathlib
import subprocess
import tempfile
import time
from typing import Iterator, Mapping, Optional, Sequence, Union

HTTP_LINE = "OTG over HTTP: "
GRPC_LINE = "OTG over gRPC: "


class ServerError(RuntimeError):
    """The server did not start, or it ended with an error. The text has what it printed."""


class Server:
    """A running `packetrig serve`, made by `serve`."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, grpc: str, store: pathlib.Path) -> None:
        self._process = process
        #: Address of the API over HTTP, for `snappi.api(location=…)`.
        self.url = url
        #: Address of the API over gRPC, `host:port`.
        self.grpc = grpc
        #: Directory of the results, for `packetrig report --store`.
        self.store = store

    @property
    def page(self) -> str:
        """Address of the live page."""
        return self.url.rstrip("/") + "/ui/"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None


def _read_address(text: str, start: str) -> Optional[str]:
    return next((line[len(start):].strip() for line in text.splitlines() if line.startswith(start)), None)


def _wait_for_addresses(process: "subprocess.Popen[bytes]", log: pathlib.Path, timeout: float) -> "tuple[str, str]":
    """Returns the addresses over HTTP and gRPC, which the server prints when it listens."""
    deadline = time.monotonic() + timeout
    while True:
        # The state is read before the text: if the server has ended, the text has everything that it printed.
        has_ended = process.poll() is not None
        text = log.read_text(errors="replace")
        url, grpc = _read_address(text, HTTP_LINE), _read_address(text, GRPC_LINE)
        if url and grpc:
            return url, grpc
        if has_ended:
            raise ServerError(f"packetrig serve ended with exit code {process.returncode}:\n{text}")
        if time.monotonic() > deadline:
            raise ServerError(f"packetrig serve did not listen within {timeout:g} s:\n{text}")
        time.sleep(0.02)


def _stop_process(process: "subprocess.Popen[bytes]", timeout: float) -> None:
    """Asks the server to end, so that it restores its interfaces; kills it only after the timeout."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise ServerError(f"packetrig serve did not end in {timeout:g} s and was killed") from None


def _command(
    binary: Union[str, "os.PathLike[str]"], ports: Mapping[str, str], store: pathlib.Path, options: Sequence[str]
) -> "list[str]":
    aliases = [f"--port={interface}={location}" for interface, location in ports.items()]
    addresses = ["--plain-http", "--http=127.0.0.1:0", "--grpc=127.0.0.1:0"]
    return [os.fspath(binary), "serve", *addresses, f"--store={store}", *aliases, *options]


@contextlib.contextmanager
def serve(
    ports: Optional[Mapping[str, str]] = None,
    *,
    options: Sequence[str] = (),
    store: Optional[Union[str, "os.PathLike[str]"]] = None,
    binary: Optional[Union[str, "os.PathLike[str]"]] = None,
    timeout: float = 30.0,
) -> Iterator[Server]:
    """Starts `packetrig serve` on free ports of the loopback interface; ends it with the block.

    ports: interface -> location in scripts. Without it, locations are interface names.
    options: further options of `packetrig serve`, such as ["--confirm", "eth1"].
    store: directory for the results [default: a temporary directory, removed at the end].
    binary: path of the program [default: `program()`].
    timeout: seconds that the server may take to start, and to end.
    """
    from ._program import program

    with tempfile.TemporaryDirectory(prefix="packetrig-") as directory:
        kept = pathlib.Path(store) if store is not None else pathlib.Path(directory, "store")
        log = pathlib.Path(directory, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                _command(binary or program(), ports or {}, kept, options),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            url, grpc = _wait_for_addresses(process, log, timeout)
            yield Server(process, url, grpc, kept)
        finally:
            _stop_process(process, timeout)
