"""Flows begun, ended, held and changed while others run; what counters show of it."""

import snappi
from rig import eventually
from talk import assert_exact, config, flow, udp


def running(talk, *names, pps=1_000):
    made = config()
    for name in names:
        udp(flow(made, name, pps=pps))
    talk.set(made)
    return made


def test_single_flows_among_running_ones(talk):
    running(talk, "a", "b", "c")
    talk.start("a", "b")
    talk.sent("a", 200)
    assert talk.flow("c").frames_tx == 0 and talk.flow("c").transmit == "stopped"
    talk.transmit("pause", "a")
    held = eventually("a is held", lambda: (lambda row: row if row.transmit == "paused" else None)(talk.flow("a")))
    talk.start("c")
    talk.sent("b", talk.flow("b").frames_tx + 300)
    rows = talk.flows()
    assert rows["a"].frames_tx == held.frames_tx and rows["a"].transmit == "paused"
    assert rows["b"].transmit == rows["c"].transmit == "started"
    talk.stop("b")
    talk.ended("b")
    stopped = talk.flow("b").frames_tx
    talk.transmit("resume", "a")
    talk.sent("a", held.frames_tx + 200)
    assert talk.flow("b").frames_tx == stopped
    talk.stop()
    rows = talk.ended()
    assert rows["b"].frames_tx == stopped
    assert_exact(rows, talk.ports(), sum(row.frames_tx for row in rows.values()), 128)


def test_a_start_of_some_leaves_counters_of_others(talk):
    running(talk, "a", "b")
    talk.start("a")
    talk.sent("a", 500)
    talk.start("b")
    assert talk.flow("a").frames_tx >= 500
    talk.sent("b", 100)
    talk.stop()
    rows = talk.ended()
    assert rows["a"].frames_tx > rows["b"].frames_tx
    assert all(row.frames_tx == row.frames_rx for row in rows.values())


def test_a_start_clears_counters_and_nothing_else_does(talk):
    made = config()
    udp(flow(made, packets=300, pps=3_000))
    first = talk.run(made)["f1"]
    assert (first.frames_tx, first.frames_rx) == (300, 300)
    for state in ("stop", "pause"):
        talk.transmit(state)
        assert talk.flow().frames_tx == 300
    for _ in range(2):
        talk.start()
        assert_exact(talk.ended(), talk.ports(), 300, 128)


def test_a_flow_that_was_paused_goes_on_where_it_was(talk):
    made = config()
    udp(flow(made, packets=2_000, pps=500))
    talk.set(made)
    talk.start()
    talk.sent("f1", 300)
    talk.transmit("pause")
    eventually("held", lambda: talk.flow().transmit == "paused")
    assert 300 <= talk.flow().frames_tx < 2_000
    talk.transmit("resume")
    assert_exact(talk.ended(), talk.ports(), 2_000, 128)


def test_resume_starts_what_was_stopped_from_its_beginning(talk):
    made = config()
    udp(flow(made, packets=50))
    talk.run(made)
    talk.transmit("resume")
    row = eventually("it has run again", lambda: (lambda row: row if row.transmit == "stopped" else None)(talk.flow()))
    assert row.frames_tx == row.frames_rx and row.frames_tx in (50, 100)


def test_a_finished_flow_shows_stopped_while_others_run(talk):
    made = config()
    udp(flow(made, "short", packets=10))
    udp(flow(made, "long"))
    talk.set(made)
    talk.start()
    eventually("short has ended", lambda: talk.flow("short").transmit == "stopped" and talk.flow("short").frames_rx == 10)
    assert talk.flow("long").transmit == "started"
    ports = talk.ports()
    assert (ports["p1"].transmit, ports["p2"].transmit) == ("started", "stopped")
    talk.stop()
    talk.ended()
    row, port = talk.flow("long"), talk.ports()["p1"]
    assert (row.frames_tx_rate, row.frames_rx_rate, port.frames_tx_rate) == (0, 0, 0)
    assert port.transmit == "stopped"


def test_rates_are_shown_while_flows_run(talk):
    running(talk, "a", "b", pps=500)
    talk.start()
    talk.sent("a", 1_000)

    def shown():
        rates = [rate for row in talk.flows().values() for rate in (row.frames_tx_rate, row.frames_rx_rate)]
        return all(450 < rate < 550 for rate in rates)

    # A machine that is busy sends less for a moment, and then more.
    eventually("the rates are shown", shown)
    talk.stop()
    talk.ended()


def test_both_ways_at_once(talk):
    made = config()
    udp(flow(made, "there", packets=1_000, size=128))
    udp(flow(made, "back", tx="p2", rx="p1", packets=1_000, size=256))
    rows = talk.run(made)
    ports = talk.ports()
    assert_exact(rows, ports, 2_000)
    assert (ports["p1"].bytes_tx, ports["p1"].bytes_rx) == (128_000, 256_000)
    assert (rows["there"].port_tx, rows["there"].port_rx) == ("p1", "p2")
    assert (rows["back"].port_tx, rows["back"].port_rx) == ("p2", "p1")


def test_a_thousand_flows_with_the_same_headers(grpc):
    made = config()
    for number in range(1_024):
        udp(flow(made, f"flow {number}", packets=10 + number % 3, pps=20))
    rows = grpc.run(made)
    assert len(rows) == 1_024
    for number in range(1_024):
        row = rows[f"flow {number}"]
        assert row.frames_tx == row.frames_rx == 10 + number % 3
    assert_exact(rows, grpc.ports(), sum(10 + number % 3 for number in range(1_024)), 128)


def test_flows_without_metrics_have_no_row(talk):
    made = config()
    udp(flow(made, "seen", packets=10))
    udp(flow(made, "unseen", packets=10, metrics=False))
    rows = talk.run(made)
    assert list(rows) == ["seen"]
    eventually("all have arrived", lambda: talk.ports()["p2"].frames_rx == 20)
    ports = talk.ports()
    assert (ports["p1"].frames_tx, ports["p1"].bytes_tx, ports["p2"].bytes_rx) == (20, 2_560, 2_560)


def test_a_flow_without_receiver_ends_normally(talk):
    made = config(rx=False)
    added = flow(made, packets=200)
    udp(added)
    rows = talk.run(made)
    assert (rows["f1"].frames_tx, rows["f1"].frames_rx, rows["f1"].bytes_tx) == (200, 0, 25_600)
    assert talk.ports()["p1"].frames_tx == 200


def test_the_deprecated_receiver_is_one(talk):
    made = config()
    added = flow(made, packets=20)
    udp(added)
    added.tx_rx.port.rx_names = []
    added.tx_rx.port.rx_name = "p2"
    assert_exact(talk.run(made), talk.ports(), 20, 128)


def update(talk, names, **changes):
    asked = snappi.ConfigUpdate()
    asked.flows.property_names = list(changes)
    for name in names:
        changed = asked.flows.flows.flow(name=name)[-1]
        changed.tx_rx.port.tx_name, changed.tx_rx.port.rx_names = "p1", ["p2"]
        if "rate" in changes:
            changed.rate.pps = changes["rate"]
        if "size" in changes:
            changed.size.fixed = changes["size"]
    return talk.api.update_config(asked)


def test_rate_and_size_change_under_load(talk):
    running(talk, "a", "b", pps=500)
    talk.start()
    talk.sent("a", 100)
    update(talk, ["a"], rate=2_000)
    before = talk.flow("a").frames_tx
    talk.sent("a", before + 1_000)
    assert talk.flow("a").transmit == talk.flow("b").transmit == "started"
    update(talk, ["a"], size=256)
    talk.sent("a", talk.flow("a").frames_tx + 500)
    update(talk, ["a", "b"], rate=1_000, size=64)
    talk.sent("a", talk.flow("a").frames_tx + 500)
    talk.stop()
    rows = talk.ended()
    assert_exact(rows, talk.ports(), sum(row.frames_tx for row in rows.values()))
    assert rows["a"].bytes_tx > 128 * rows["a"].frames_tx * 0.7
    kept = {added.name: added for added in talk.api.get_config().flows}
    assert (kept["a"].rate.pps, kept["a"].size.fixed, kept["b"].rate.pps) == (1_000, 64, 1_000)


def test_an_update_does_not_start_what_is_stopped(talk):
    running(talk, "a", "b")
    talk.start("a")
    update(talk, ["a", "b"], rate=500)
    talk.sent("a", talk.flow("a").frames_tx + 100)
    rows = talk.flows()
    assert (rows["a"].transmit, rows["b"].transmit, rows["b"].frames_tx) == ("started", "stopped", 0)
    talk.stop()
    talk.ended()


def append(talk, *names, packets=None):
    asked = snappi.ConfigAppend()
    resources = asked.config_append_list.add()
    for name in names:
        added = resources.flows.flow(name=name)[-1]
        added.tx_rx.port.tx_name, added.tx_rx.port.rx_names = "p1", ["p2"]
        added.rate.pps, added.size.fixed, added.metrics.enable = 1_000, 128, True
        if packets:
            added.duration.fixed_packets.packets = packets
        udp(added)
    return talk.api.append_config(asked)


def delete(talk, *names):
    asked = snappi.ConfigDelete()
    asked.config_delete_list.add().flows = list(names)
    return talk.api.delete_config(asked)


def test_flows_come_and_go_under_load(talk):
    running(talk, "stays")
    talk.start()
    talk.sent("stays", 100)
    for turn in range(5):
        append(talk, f"new {turn}", "other", packets=100)
        assert [added.name for added in talk.api.get_config().flows] == ["stays", f"new {turn}", "other"]
        assert talk.flow("stays").transmit == "started" and talk.flow(f"new {turn}").frames_tx == 0
        talk.start(f"new {turn}", "other")
        rows = talk.ended(f"new {turn}", "other")
        assert all(row.frames_tx == row.frames_rx == 100 for row in rows.values())
        delete(talk, f"new {turn}", "other")
        assert list(talk.flows()) == ["stays"]
    talk.stop()
    row = talk.ended()["stays"]
    assert row.frames_tx == row.frames_rx
    ports = talk.ports()
    assert ports["p1"].frames_tx == ports["p2"].frames_rx == row.frames_tx + 5 * 200


def test_a_name_that_is_used_again_is_a_new_flow(talk):
    made = config()
    udp(flow(made, packets=100))
    talk.run(made)
    delete(talk, "f1")
    append(talk, "f1", packets=5)
    assert talk.flow().frames_tx == 0
    talk.start()
    assert talk.ended()["f1"].frames_rx == 5


def test_a_change_that_fails_changes_nothing(talk):
    running(talk, "a")
    kept = talk.api.get_config().serialize()
    errors = talk.refused(lambda: append(talk, "new", "a"))
    assert any("`a`" in line and line.startswith("config_append_list[0].flows[1].name") for line in errors), errors
    errors = talk.refused(lambda: delete(talk, "a", "nobody"))
    assert any("`nobody`" in line for line in errors), errors
    errors = talk.refused(lambda: update(talk, ["nobody"], rate=1))
    assert any("`nobody`" in line for line in errors), errors
    assert talk.api.get_config().serialize() == kept


def test_names_that_nothing_has_are_refused(talk):
    running(talk, "a")
    assert any("`x`" in line for line in talk.refused(lambda: talk.start("a", "x")))
    assert talk.flow("a").transmit == "stopped"
    assert any("`x`" in line for line in talk.refused(lambda: talk.flows("x")))
    assert any("`x`" in line for line in talk.refused(lambda: talk.ports("x")))
