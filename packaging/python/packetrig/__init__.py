"""packetrig from Python: the program of this package, and its Open Traffic Generator server for scripts and tests.

    import packetrig, snappi

    with packetrig.serve(ports={"eth1": "left", "eth2": "right"}) as server:
        api = snappi.api(location=server.url)

The command `packetrig` comes with this package. Tests can use the fixture `packetrig_server`, see `packetrig.pytest_plugin`.
"""

from ._program import program
from ._server import Server, ServerError, serve

__all__ = ["Server", "ServerError", "program", "serve"]
