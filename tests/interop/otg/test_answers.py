"""What is answered: refusals with their paths, warnings, the configuration as it was given, rows as they were asked for."""

import json
import ssl
import urllib.error
import urllib.request

import grpc as rpc
import snappi
from rig import LOCATIONS, eventually
from snappi import otg_pb2, otg_pb2_grpc
from talk import Talk, config, flow, udp


def call(server, method, path, body=None, content="application/json"):
    """Status, type and text of a plain HTTP request, as curl makes it."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.https + path, data=data, method=method, headers={"Content-Type": content})
    context = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


PORTS = [{"name": "p1", "location": LOCATIONS["va"]}, {"name": "p2", "location": LOCATIONS["vb"]}]


def document(**flow_members):
    tx_rx = {"choice": "port", "port": {"tx_name": "p1", "rx_names": ["p2"]}}
    return {"ports": PORTS, "flows": [{"name": "f1", "tx_rx": tx_rx, "metrics": {"enable": True}, **flow_members}]}


def test_success_is_an_empty_list_of_warnings(server):
    for body in (document(), {}):
        assert call(server, "POST", "/config", body) == (200, "application/json", '{"warnings":[]}')


def test_before_any_configuration_everything_is_empty(talk):
    assert talk.api.get_config().serialize("dict") == {}
    assert talk.flows() == {} and talk.ports() == {}
    asked = snappi.StatesRequest()
    asked.choice = asked.IPV4_NEIGHBORS
    assert len(talk.api.get_states(asked).ipv4_neighbors) == 0
    assert any("`f1`" in line for line in talk.refused(lambda: talk.flows("f1")))


def test_the_configuration_comes_back_as_it_was_given(talk):
    made = config()
    added = flow(made, packets=7)
    ethernet, ipv4, header = udp(added)
    ipv4.src.increment.start, ipv4.src.increment.count = "198.18.0.1", 3
    ethernet.dst.values = ["02:00:00:00:00:02", "02:00:00:00:00:03"]
    header.src_port.random.seed = 9
    added.size.weight_pairs.custom.custom(size=100, weight=2.5)
    added.rate.percentage = 1.25
    talk.set(made)
    assert talk.api.get_config().serialize("dict") == made.serialize("dict")


def test_all_problems_come_at_once_with_their_paths(talk):
    made = config()
    flow(made, "f1", pps=1).tx_rx.port.tx_name = "nowhere"
    flow(made, "f1").rate.percentage = 0.5
    flow(made, "f3").size.fixed = 20_000
    wrong = flow(made, "f4")
    wrong.packet.ethernet().ipv4()
    wrong.packet[1].src.auto.choice = "dhcp"
    wrong.egress_packet.ethernet()
    made.lags.lag(name="lag")[-1].min_links = 1
    errors = talk.refused(lambda: talk.set(made))
    for path in ("flows[0].tx_rx.port.tx_name", "flows[1].name", "flows[2].size", "flows[3].packet[1].ipv4.src", "flows[3].egress_packet", "lags"):
        assert any(line.startswith(path) for line in errors), (path, errors)
    assert talk.api.get_config().serialize("dict") == {}


def test_a_configuration_that_is_refused_leaves_the_one_before(talk):
    made = config()
    udp(flow(made))
    talk.set(made)
    talk.start()
    talk.sent("f1", 100)
    bad = config()
    flow(bad).tx_rx.port.tx_name = "nowhere"
    talk.refused(lambda: talk.set(bad))
    row = talk.flow()
    assert row.transmit == "started"
    talk.sent("f1", row.frames_tx + 100)
    assert talk.api.get_config().serialize("dict") == made.serialize("dict")


def test_unknown_members_are_refused_by_path(server):
    cases = [
        (document(sizee={"fixed": 64}), "flows[0].sizee"),
        (document(packet=[{"choice": "ethernet", "ethernet": {"colour": 1}}]), "flows[0].packet[0].ethernet.colour"),
        ({**document(), "extra": 1}, "extra"),
        (document(rate={"choice": "pps", "mbps": "5"}), "flows[0].rate"),
        (document(rate={"choice": "furlongs"}), "flows[0].rate.choice"),
    ]
    for body, path in cases:
        status, _, text = call(server, "POST", "/config", body)
        answer = json.loads(text)
        assert (status, answer["code"], answer["kind"]) == (400, 400, "validation")
        assert any(line.startswith(path) for line in answer["errors"]), (path, answer)


def test_unknown_protobuf_fields_are_refused_by_path(server):
    stub = otg_pb2_grpc.OpenapiStub(rpc.insecure_channel(server.grpc))
    asked = otg_pb2.SetConfigRequest()
    port = asked.config.ports.add()
    port.name, port.location = "p1", LOCATIONS["va"]
    added = asked.config.flows.add()
    added.name = "f1"
    added.tx_rx.choice = otg_pb2.FlowTxRx.Choice.port
    added.tx_rx.port.tx_name = "p1"
    # Field 4000, a varint, in the flow's size: no version of the model has it.
    added.size.MergeFromString(bytes([0x80, 0xFA, 0x01, 0x05]))
    try:
        stub.SetConfig(asked)
    except rpc.RpcError as error:
        assert error.code() == rpc.StatusCode.INVALID_ARGUMENT
        answer = json.loads(error.details())
        assert answer["kind"] == "validation"
        assert any(line.startswith("flows[0].size") and "4000" in line for line in answer["errors"]), answer
    else:
        raise AssertionError("nothing was refused")


def test_what_the_model_has_and_we_have_not_is_named(talk):
    made = config()
    made.devices.device(name="d")[-1].bgp.router_id = "1.1.1.1"
    assert any(line.startswith("devices[0].bgp: ") for line in talk.refused(lambda: talk.set(made)))


def test_long_lists_of_errors_reach_clients_of_grpc(grpc, server):
    made = config()
    for number in range(300):
        flow(made, f"f{number}").tx_rx.port.tx_name = "nowhere"
    errors = grpc.refused(lambda: grpc.set(made))
    assert len(errors) > 20 and "not listed" in errors[-1]
    http = Talk(server.api("http"), "http")
    assert len(http.refused(lambda: http.set(made))) == 300


def test_what_people_type(server):
    """Choices left out, numbers as text and as numbers, null, a content type with parameters, MACs in capitals."""
    body = document(
        rate={"pps": 1000},
        size={"fixed": 100},
        duration={"fixed_packets": {"packets": "10"}, "choice": None},
        packet=[{"ethernet": {"dst": {"value": "02:AA:BB:CC:DD:EE"}}}, {"choice": "ipv4", "ipv4": {}}],
    )
    assert call(server, "POST", "/config", body, "application/x-www-form-urlencoded")[0] == 415
    assert call(server, "POST", "/config", body, "application/json; charset=utf-8")[0] == 200
    start = {"choice": "traffic", "traffic": {"choice": "flow_transmit", "flow_transmit": {"state": "start"}}}
    assert call(server, "POST", "/control/state", start)[0] == 200

    def row():
        rows = json.loads(call(server, "POST", "/monitor/metrics", {"choice": "flow"})[2])
        assert rows["choice"] == "flow_metrics"
        return rows["flow_metrics"][0] if rows["flow_metrics"][0]["transmit"] == "stopped" else None

    row = eventually("it has ended", row)
    # 64-bit numbers are text, others are numbers.
    assert (row["frames_tx"], row["frames_rx"], row["bytes_rx"]) == ("10", "10", "1000")
    assert isinstance(row["frames_tx_rate"], float) and "e" not in json.dumps(row["frames_tx_rate"])


def test_large_numbers_have_no_exponent(server, talk):
    made = config()
    added = flow(made, packets=100)
    udp(added)
    added.metrics.timestamps = added.metrics.latency.enable = added.metrics.loss = True
    row = talk.run(made)["f1"]
    assert 1.6e18 < row.timestamps.first_timestamp_ns < row.timestamps.last_timestamp_ns
    assert 0 < row.latency.minimum_ns <= row.latency.average_ns <= row.latency.maximum_ns
    assert row.loss == 0
    text = call(server, "POST", "/monitor/metrics", {"choice": "flow"})[2]
    number = text.split('"first_timestamp_ns":')[1].split(",")[0].rstrip("}")
    assert "e" not in number.lower() and "\t" not in text
    for word in ("null", "NaN", "Infinity"):
        assert word not in text


def test_latency_of_frames_without_room_for_a_time_is_absent(talk):
    made = config()
    added = flow(made, packets=20, size=64)
    added.packet.ethernet().ipv4().tcp()
    added.metrics.latency.enable = True
    row = talk.run(made)["f1"]
    assert row.frames_rx == 20 and "latency" not in row.serialize("dict")


def test_no_more_has_arrived_than_was_sent_while_a_flow_runs(talk):
    made = config()
    udp(flow(made, pps=20_000))
    talk.set(made)
    talk.start()
    talk.sent("f1", 1)
    rows = [talk.flow() for _ in range(200)]
    talk.stop()
    assert rows[-1].frames_rx > rows[0].frames_rx
    ahead = [(row.frames_tx, row.frames_rx) for row in rows if row.frames_rx > row.frames_tx]
    assert ahead == []


def test_what_is_not_asked_for_is_not_there(talk):
    made = config()
    udp(flow(made, packets=10))
    row = talk.run(made)["f1"].serialize("dict")
    assert "timestamps" not in row and "latency" not in row and "loss" not in row


# What a client of this version (1.53) knows; it fails on anything else, and on a number that is missing.
PORT_COLUMNS = {"name", "location", "link", "capture", "transmit"} | {
    f"{what}_{way}{rate}" for what in ("frames", "bytes") for way in ("tx", "rx") for rate in ("", "_rate")
}
FLOW_COLUMNS = {"name", "port_tx", "port_rx", "transmit", "frames_tx", "frames_rx", "bytes_tx", "bytes_rx"} | {
    "frames_tx_rate",
    "frames_rx_rate",
}


def test_rows_are_those_that_old_clients_know(server):
    assert call(server, "POST", "/config", document())[0] == 200
    rows = json.loads(call(server, "POST", "/monitor/metrics", {"choice": "port", "port": {}})[2])["port_metrics"]
    assert [set(row) for row in rows] == [PORT_COLUMNS] * 2
    assert (rows[0]["link"], rows[0]["capture"], rows[0]["transmit"]) == ("up", "stopped", "stopped")
    assert [row["location"] for row in rows] == list(LOCATIONS.values())
    rows = json.loads(call(server, "POST", "/monitor/metrics", {"choice": "flow", "flow": {}})[2])["flow_metrics"]
    assert [set(row) for row in rows] == [FLOW_COLUMNS]


def test_columns_and_rows_can_be_chosen(talk):
    made = config()
    udp(flow(made, packets=10))
    talk.run(made)
    asked = snappi.MetricsRequest()
    asked.port.port_names, asked.port.column_names = ["p2"], ["frames_rx", "bytes_rx"]
    rows = talk.api.get_metrics(asked).port_metrics
    assert [row.serialize("dict") for row in rows] == [{"name": "p2", "frames_rx": "10", "bytes_rx": "1280"}]
    asked = snappi.MetricsRequest()
    asked.flow.metric_names = ["transmit", "frames_tx"]
    rows = talk.api.get_metrics(asked).flow_metrics
    seen = rows[0].serialize("dict")
    assert (seen["transmit"], seen["frames_tx"]) == ("stopped", "10") and "frames_rx" not in seen


def test_the_version_suits_the_client(talk):
    talk.api.check_version_compatibility()
    assert talk.api.get_version().api_spec_version == "^1.0.0"


def test_interfaces_that_are_not_there(talk):
    made = snappi.Config()
    made.ports.port(name="p1", location="no-such-if")
    try:
        talk.set(made)
    except Exception as error:
        read = talk.api.from_exception(error)
        assert read is not None and any("no-such-if" in line for line in read.errors), error
    else:
        raise AssertionError("nothing was refused")
    assert talk.api.get_config().serialize("dict") == {}


def test_what_is_taken_but_done_otherwise_is_a_warning(talk):
    made = config()
    late = flow(made)
    udp(late)
    late.metrics.latency.enable, late.metrics.latency.mode = True, late.metrics.latency.STORE_FORWARD
    warnings = talk.set(made)
    assert any(line.startswith("flows[0].metrics.latency") for line in warnings), warnings


def test_measured_frames_without_room_for_the_tag_are_refused(talk):
    made = config()
    # Its headers leave two bytes: no tag fits, and the receiver would take every frame for lost.
    added = flow(made, size=60 + 18)
    added.packet.ethernet().ipv6().tcp()
    errors = talk.refused(lambda: talk.set(made))
    assert any(line.startswith("flows[0].size") and "84 B or larger" in line for line in errors), errors
    added.metrics.enable = False
    talk.set(made)


def test_a_new_configuration_clears_everything(talk):
    made = config()
    udp(flow(made, packets=10))
    talk.run(made)
    talk.set(made)
    assert talk.flow().frames_tx == 0 and talk.ports()["p2"].frames_rx == 0
    talk.set(snappi.Config())
    assert talk.flows() == {} and talk.ports() == {}
