import pytest
import rig
from talk import Talk


def pytest_configure(config):
    rig.enter_network()


@pytest.fixture(scope="session")
def served():
    server = rig.Server()
    yield server
    code, text = server.stop(), server.text()
    server.kill()
    assert code == 0, text


@pytest.fixture
def server(served, request):
    """The server, clean; what it complained about is shown when the test fails."""
    before = len(served.text())
    yield served
    print("server:", served.text()[before:])
    assert served.process.poll() is None, "the server has ended"
    served.api().set_config(rig.snappi.Config())


@pytest.fixture(params=["http", "grpc"])
def talk(server, request):
    """A client over each transport."""
    return Talk(server.api(request.param), request.param)


@pytest.fixture
def grpc(server):
    """A client over the faster transport, where the transport does not matter."""
    return Talk(server.api("grpc"), "grpc")
