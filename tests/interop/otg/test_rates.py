"""Rates and durations, judged by counts and by the receiver's own times, never by a clock of the test."""

import statistics

import frames
import pytest
import rig
from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether
from talk import assert_exact, config, flow, udp

SPEED = 1_000_000_000
SIZE = 500
# How a rate is asked for, and frames per second that it means. A percentage is of the line, the rest is of frames with FCS.
RATES = {
    "pps": (2_345, 2_345),
    "bps": (8_000_000, 2_000),
    "kbps": (12_000, 3_000),
    "mbps": (20, 5_000),
    "gbps": (1, None),
    "percentage": (2.08, 0.0208 * SPEED / 8 / (SIZE + 20)),
}


def sampled(talk, made):
    """Runs it; the rows at the end, and of each flow its looks: when its last frame arrived, and how many by then."""
    looks = {}

    def look():
        rows = talk.flows()
        for row in rows.values():
            if row.frames_rx > 1:
                looks.setdefault(row.name, []).append((row.timestamps.last_timestamp_ns, row.frames_rx))
        return rows if all(row.transmit == "stopped" for row in rows.values()) else None

    talk.set(made)
    talk.start()
    return rig.eventually("the flows have stopped", look), looks


def kept_rate(looks, per_second):
    """Frames per second between the two looks, one of each half, at which the flow was least behind this rate.

    A machine that is busy delays frames, the first and the last ones too, and never sends one early."""
    middle = (looks[0][0] + looks[-1][0]) / 2
    halves = [look for look in looks if look[0] < middle], [look for look in looks if look[0] >= middle]
    (t1, n1), (t2, n2) = (min(half, key=lambda look: look[0] - look[1] * 1e9 / per_second) for half in halves)
    return (n2 - n1) * 1e9 / (t2 - t1)


def assert_seen(wanted, measure, tries=5):
    """Measures until it is as wanted, for what a machine that is busy may spoil."""
    seen = []
    while wanted not in seen:
        assert len(seen) < tries, f"never {wanted}: {seen}"
        seen.append(measure())


def captured_at_p2(made):
    capture = made.captures.capture(name="c")[-1]
    capture.port_names, capture.format = ["p2"], capture.PCAP


def by_source_port(captured):
    """When the frames from each UDP port arrived, in nanoseconds."""
    times = {}
    for time, _, frame in frames.records(captured):
        times.setdefault(Ether(frame)[UDP].sport, []).append(time)
    return times


def first_due(times, pps):
    """When the first frame of a flow was due, or a little later: no frame is early, and some frame is hardly late."""
    return min(time - number * 1e9 / pps for number, time in enumerate(times))


def arrivals(talk, made):
    """Runs what `captured_at_p2` was told of; when its frames arrived."""
    talk.set(made)
    talk.capture("start")
    talk.start()
    talk.ended()
    return by_source_port(talk.captured("p2"))


def test_every_kind_of_rate(grpc):
    # All at once, ten seconds of each: together they stay far below the line.
    made = config()
    layer1 = made.layer1.layer1(name="l1")[-1]
    layer1.port_names, layer1.speed = ["p1", "p2"], layer1.SPEED_1_GBPS
    wanted = {}
    for kind, (number, per_second) in RATES.items():
        if per_second is None:
            continue
        packets = round(per_second * 10) + 1
        added = flow(made, kind, size=SIZE, packets=packets)
        udp(added)
        added.metrics.timestamps = True
        setattr(added.rate, kind, number)
        wanted[kind] = (per_second, packets)
    rows, looks = sampled(grpc, made)
    assert_exact(rows, grpc.ports(), sum(packets for _, packets in wanted.values()), SIZE)
    for kind, (per_second, packets) in wanted.items():
        assert rows[kind].frames_tx == packets
        assert kept_rate(looks[kind], per_second) == pytest.approx(per_second, rel=0.001), kind


def test_the_rate_of_mixed_sizes_is_that_of_their_mean(grpc):
    made = config()
    added = flow(made, packets=24_001)
    udp(added)
    added.size.weight_pairs.predefined = "imix"
    added.rate.mbps, added.metrics.timestamps = 7, True
    mean = (64 * 7 + 570 * 4 + 1518) / 12
    rows, looks = sampled(grpc, made)
    row, per_second = rows["f1"], 7e6 / 8 / mean
    assert kept_rate(looks["f1"], per_second) == pytest.approx(per_second, rel=0.001)
    assert row.bytes_rx == row.bytes_tx == 2000 * (64 * 7 + 570 * 4 + 1518) + 64 or row.bytes_tx - 2000 * 4246 in (570, 1518)


@pytest.mark.parametrize("ask", [("percentage", 60.0), ("mbps", 600), ("gbps", 1), ("pps", 200_000)])
def test_a_port_that_is_asked_for_more_than_its_link_carries_is_refused(talk, ask):
    made = config()
    layer1 = made.layer1.layer1(name="l1")[-1]
    layer1.port_names, layer1.speed = ["p1", "p2"], layer1.SPEED_1_GBPS
    for name in ("f1", "f2"):
        added = flow(made, name, size=SIZE)
        setattr(added.rate, *ask)
    assert any("f" in line for line in talk.refused(lambda: talk.set(made)))


def test_gbps_is_what_it_says(grpc):
    # A fast link carries it; the plan's own arithmetic is what counts here, not the machine.
    made = config()
    layer1 = made.layer1.layer1(name="l1")[-1]
    layer1.port_names, layer1.speed = ["p1", "p2"], layer1.SPEED_10_GBPS
    added = flow(made, size=1500, packets=5000)
    udp(added)
    added.rate.gbps = 1
    rows = grpc.run(made)
    assert_exact(rows, grpc.ports(), 5000, 1500)


def test_layer1_speed_is_told_in_kilobytes(talk):
    made = config()
    layer1 = made.layer1.layer1(name="l1")[-1]
    layer1.port_names, layer1.speed = ["p1"], layer1.SPEED_1_GBPS
    talk.set(made)
    asked = rig.snappi.MetricsRequest()
    asked.port.column_names = ["speed"]
    speeds = [row.speed for row in talk.api.get_metrics(asked).port_metrics]
    assert speeds[0] == 125_000


def test_fixed_packets_is_exact(talk):
    made = config()
    udp(flow(made, packets=1_000))
    assert_exact(talk.run(made), talk.ports(), 1_000, 128)


def test_fixed_seconds_holds_every_frame_that_is_due(talk):
    made = config()
    added = flow(made, pps=1_700)
    udp(added)
    added.duration.fixed_seconds.seconds = 2

    def sent():
        rows = talk.run(made)
        frames = rows["f1"].frames_tx
        assert frames <= 3_400
        assert_exact(rows, talk.ports(), frames, 128)
        return frames

    # A machine that is busy may be late at the end: what it has not sent by then stays unsent.
    assert_seen(3_400, sent)


def test_continuous_goes_on_until_it_is_stopped(talk):
    made = config()
    udp(flow(made))
    talk.set(made)
    talk.start()
    talk.sent("f1", 1_500)
    assert talk.flow().transmit == "started"
    talk.stop()
    rows = talk.ended()
    assert_exact(rows, talk.ports(), rows["f1"].frames_tx, 128)


GAPS = {"bytes": 12_500_000.0, "nanoseconds": 100_000_000.0, "microseconds": 100_000.0}


@pytest.mark.parametrize("unit", GAPS)
def test_bursts_and_their_gaps(grpc, unit):
    # A tenth of a second between bursts, in every unit: bytes are those of a gigabit link.
    made = config()
    layer1 = made.layer1.layer1(name="l1")[-1]
    layer1.port_names, layer1.speed = ["p1", "p2"], layer1.SPEED_1_GBPS
    added = flow(made, pps=1_000)
    udp(added)
    captured_at_p2(made)
    burst = added.duration.burst
    burst.bursts, burst.packets, burst.gap = 11, 20, 12
    setattr(burst.inter_burst_gap, unit, GAPS[unit])
    times = arrivals(grpc, made)[5000]
    assert len(times) == 220
    # Burst k begins at k * (20 ms + 100 ms). A frame may be late, and those behind it catch up: the middle of 200 differences is not
    # late, nor is, of each place in a burst, the frame that was least so.
    apart = statistics.median(later - earlier for earlier, later in zip(times, times[20:]))
    least = [min(times[20 * burst + place] - burst * 120e6 for burst in range(11)) for place in range(20)]
    within = (least[-1] - least[0]) / 19
    assert (apart, within) == pytest.approx((120e6, 1e6), rel=0.02)


DELAYS = {"bytes": 37_500_000.0, "nanoseconds": 300_000_000.0, "microseconds": 300_000.0}


@pytest.mark.parametrize("unit", DELAYS)
@pytest.mark.parametrize("kind", ["fixed_packets", "fixed_seconds", "continuous"])
def test_delays(grpc, kind, unit):
    made = config()
    layer1 = made.layer1.layer1(name="l1")[-1]
    layer1.port_names, layer1.speed = ["p1", "p2"], layer1.SPEED_1_GBPS
    captured_at_p2(made)
    for name, port in (("late", 1), ("prompt", 2)):
        added = flow(made, name, pps=100)
        udp(added)[2].src_port.value = port
        duration = getattr(added.duration, kind)
        if kind == "fixed_packets":
            duration.packets = 200
        if kind == "fixed_seconds":
            duration.seconds = 2
        setattr(duration.delay, unit, DELAYS[unit] if name == "late" else 0.0)

    def behind():
        grpc.set(made)
        grpc.capture("start")
        grpc.start()
        if kind == "continuous":
            grpc.sent("late", 200)
            grpc.stop()
        grpc.ended()
        times = by_source_port(grpc.captured("p2"))
        return first_due(times[1], 100) - first_due(times[2], 100)

    assert_seen(pytest.approx(300e6, rel=0.02), behind)
