"""The same server under a snappi that is years old: it knows fewer members, and fails on those that it does not know."""

import os
import subprocess

import pytest

SCRIPT = """
import sys, time
import snappi
kind = snappi.Transport.GRPC if sys.argv[1] == "grpc" else snappi.Transport.HTTP
api = snappi.api(location=sys.argv[2], transport=kind, verify=False)
config = api.config()
p1, p2 = config.ports.port(name="p1", location="localhost:5555").port(name="p2", location="localhost:5556")
capture = config.captures.capture(name="c")[-1]
capture.port_names = ["p2"]
flow = config.flows.flow(name="f1")[-1]
flow.tx_rx.port.tx_name, flow.tx_rx.port.rx_name = "p1", "p2"
flow.rate.pps, flow.size.fixed, flow.metrics.enable = 1000, 128, True
flow.metrics.loss = flow.metrics.timestamps = True
flow.duration.fixed_packets.packets = 200
flow.packet.ethernet().ipv4().udp()
api.set_config(config)
state = api.control_state()
state.port.capture.state = state.port.capture.START
api.set_control_state(state)
state = api.control_state()
state.traffic.flow_transmit.state = state.traffic.flow_transmit.START
api.set_control_state(state)
request = api.metrics_request()
request.flow.flow_names = []
end = time.monotonic() + 60
while True:
    row = api.get_metrics(request).flow_metrics[0]
    if row.transmit == "stopped":
        break
    assert time.monotonic() < end, row
assert (row.frames_tx, row.frames_rx, row.bytes_rx, row.loss) == (200, 200, 25600, 0), row
request = api.metrics_request()
request.port.port_names = []
ports = api.get_metrics(request).port_metrics
assert [(port.frames_tx, port.frames_rx) for port in ports] == [(200, 0), (0, 200)], ports
request = api.capture_request()
request.port_name = "p2"
assert len(api.get_capture(request).read()) == 24 + 200 * (128 + 16)
assert api.get_config().flows[0].name == "f1"
print("all is well")
"""


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_a_run(server, transport):
    where = server.https if transport == "http" else server.grpc
    command = [os.environ["OLD_CLIENT"], "-c", SCRIPT, transport, where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "all is well" in done.stdout, done.stdout + done.stderr
