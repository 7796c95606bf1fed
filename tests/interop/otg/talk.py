"""What test scripts do with snappi, in few words."""

import snappi
from rig import LOCATIONS, eventually


def config(*, rx=True):
    """A configuration of one or both ports."""
    made = snappi.Config()
    made.ports.port(name="p1", location=LOCATIONS["va"])
    if rx:
        made.ports.port(name="p2", location=LOCATIONS["vb"])
    return made


def flow(made, name="f1", *, tx="p1", rx="p2", packets=None, pps=1000, size=128, metrics=True):
    """A flow from one port to the other; without `packets` it is endless."""
    added = made.flows.flow(name=name)[-1]
    added.tx_rx.port.tx_name = tx
    added.tx_rx.port.rx_names = [rx] if rx and len(made.ports) > 1 else []
    added.size.fixed = size
    added.rate.pps = pps
    if packets is not None:
        added.duration.fixed_packets.packets = packets
    added.metrics.enable = metrics
    return added


def udp(added):
    """The usual headers."""
    ethernet, ipv4, header = added.packet.ethernet().ipv4().udp()
    ethernet.src.value, ethernet.dst.value = "02:00:00:00:00:01", "02:00:00:00:00:02"
    ipv4.src.value, ipv4.dst.value = "198.18.0.1", "198.18.1.1"
    header.src_port.value, header.dst_port.value = 5000, 6000
    return ethernet, ipv4, header


class Talk:
    """One client."""

    def __init__(self, api, transport):
        self.api, self.transport = api, transport

    def set(self, made):
        return list(self.api.set_config(made).warnings)

    def transmit(self, state, *names):
        asked = snappi.ControlState()
        asked.traffic.flow_transmit.state = state
        asked.traffic.flow_transmit.flow_names = list(names)
        return self.api.set_control_state(asked)

    def start(self, *names):
        return self.transmit("start", *names)

    def stop(self, *names):
        return self.transmit("stop", *names)

    def flows(self, *names):
        asked = snappi.MetricsRequest()
        asked.flow.flow_names = list(names)
        return {row.name: row for row in self.api.get_metrics(asked).flow_metrics}

    def flow(self, name="f1"):
        return self.flows(name)[name]

    def ports(self, *names):
        asked = snappi.MetricsRequest()
        asked.port.port_names = list(names)
        return {row.name: row for row in self.api.get_metrics(asked).port_metrics}

    def ended(self, *names):
        """Waits until flows have stopped; their rows."""
        def look():
            rows = self.flows(*names)
            return rows if all(row.transmit == "stopped" for row in rows.values()) else None

        return eventually("the flows have stopped", look)

    def sent(self, name, count):
        """Waits until a flow has sent at least that much; its row."""
        def look():
            row = self.flow(name)
            return row if row.frames_tx >= count else None

        return eventually(f"{name} has sent {count}", look)

    def run(self, made):
        """Sets, starts, waits; rows of flows."""
        self.set(made)
        self.start()
        return self.ended()

    def refused(self, call):
        """The error that `call` ends with."""
        try:
            call()
        except Exception as error:
            read = self.api.from_exception(error)
            assert read is not None, f"not an error of OTG: {error!r}"
            assert read.code == (3 if self.transport == "grpc" else 400) and read.kind == "validation", read
            return list(read.errors)
        raise AssertionError("nothing was refused")

    def capture(self, state, *ports):
        asked = snappi.ControlState()
        asked.port.capture.state = state
        asked.port.capture.port_names = list(ports)
        return self.api.set_control_state(asked)

    def link(self, state, *ports):
        asked = snappi.ControlState()
        asked.port.link.state = state
        asked.port.link.port_names = list(ports)
        return self.api.set_control_state(asked)

    def captured(self, port, start=None, count=None):
        asked = snappi.CaptureRequest()
        asked.port_name = port
        if start is not None:
            asked.packets.slice.initial.start, asked.packets.slice.initial.count = start, count
        return self.api.get_capture(asked).read()


def assert_exact(rows, ports, frames, size=None):
    """Everything that was sent has arrived, by all counters."""
    for row in rows.values():
        assert row.frames_tx == row.frames_rx, row
    total = sum(row.frames_tx for row in rows.values())
    assert total == frames, (total, frames)
    sent = sum(port.frames_tx for port in ports.values())
    got = sum(port.frames_rx for port in ports.values())
    assert (sent, got) == (frames, frames), ports
    bytes_tx = sum(port.bytes_tx for port in ports.values())
    assert bytes_tx == sum(port.bytes_rx for port in ports.values()), ports
    assert bytes_tx == sum(row.bytes_tx for row in rows.values()) == sum(row.bytes_rx for row in rows.values())
    if size is not None:
        assert bytes_tx == frames * size
