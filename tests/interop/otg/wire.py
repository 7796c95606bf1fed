"""What a configuration puts on the wire: sent from one port, read at the other end by a packet socket."""

import frames
from talk import config

# Read by another program than the one under test.
from scapy.layers.l2 import Ether


def sent(talk, fill, packets, *, size=128, pps=5000, metrics=False):
    """Frames (bytes, without FCS) of a flow that `fill` describes."""
    made = config(rx=False)
    added = made.flows.flow(name="f1")[-1]
    added.tx_rx.port.tx_name = "p1"
    added.metrics.enable = metrics
    added.duration.fixed_packets.packets = packets
    added.rate.pps = pps
    if size is not None:
        added.size.fixed = size
    fill(added)
    return transmitted(talk, made, packets)


def transmitted(talk, made, packets):
    """Frames of a configuration."""
    talk.set(made)
    return started(packets, talk)


def started(packets, talk, *names):
    """Frames of what a start (of all flows or some) sends: so many and no more."""
    sniffer = frames.Sniffer("vb")
    try:
        talk.start(*names)
        found = sniffer.take(packets)
    finally:
        sniffer.close()
        talk.stop()
    assert len(found) == packets, (len(found), packets)
    return found


def parsed(found):
    return [Ether(frame) for frame in found]
