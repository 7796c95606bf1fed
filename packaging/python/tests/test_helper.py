"""The helper of the wheel, judged with snappi: a server on free ports forwards and counts what a script asks for.

Run by scripts/dist/test_wheel.sh in a network namespace with the cable va-vb.
"""
import os
import time

import packetrig
import pytest
import snappi

FRAMES = 500


def send_frames(api, left, right):
    """Sends FRAMES frames from left to right; returns the flow's metrics when the receiver has counted them or 20 s have passed."""
    config = snappi.Config()
    config.ports.port(name="tx", location=left).port(name="rx", location=right)
    flow = config.flows.flow(name="f")[-1]
    flow.tx_rx.port.tx_name, flow.tx_rx.port.rx_name = "tx", "rx"
    flow.metrics.enable = True
    flow.size.fixed = 128
    flow.rate.pps = 500
    flow.duration.fixed_packets.packets = FRAMES
    flow.packet.ethernet().ipv4().udp()
    api.set_config(config)
    state = api.control_state()
    state.traffic.flow_transmit.state = state.traffic.flow_transmit.START
    api.set_control_state(state)
    request = api.metrics_request()
    request.flow.flow_names = ["f"]
    end = time.monotonic() + 20
    while True:
        [metric] = api.get_metrics(request).flow_metrics
        if metric.frames_rx >= FRAMES or time.monotonic() > end:
            return metric
        time.sleep(0.1)


def test_fixture_serves_what_snappi_asks(packetrig_server, packetrig_url):
    assert packetrig_url == packetrig_server.url
    metric = send_frames(snappi.api(location=packetrig_url), "left", "right")
    assert (metric.frames_tx, metric.frames_rx) == (FRAMES, FRAMES)


def test_fixture_serves_grpc(packetrig_server):
    api = snappi.api(location=packetrig_server.grpc, transport=snappi.Transport.GRPC)
    assert api.get_version().api_spec_version


def test_block_ends_the_server(tmp_path):
    with packetrig.serve(store=tmp_path / "store") as server:
        assert server.is_running and server.page.endswith("/ui/")
        pid = server.pid
    assert not server.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_refused_option_is_an_error_with_the_servers_words():
    with pytest.raises(packetrig.ServerError, match="no-such-option"):
        with packetrig.serve(options=["--no-such-option"]):
            pass
