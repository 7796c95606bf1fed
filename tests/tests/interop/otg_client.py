"""Checks made with snappi, the public OTG client, against a server of the mock tester.

drive TRANSPORT LOCATION      every call, as scripts make them
model DESCRIPTOR REFUSED      our descriptor and table of refused members against the client's
"""

import sys

import snappi


def connect(transport, location):
    kind = snappi.Transport.GRPC if transport.startswith("grpc") else snappi.Transport.HTTP
    api = snappi.api(location=location, transport=kind, verify=False, version_check=True)
    if transport == "grpc-slices":
        api.enable_grpc_streaming = True
        api.chunk_size = 1  # MiB
    return api


def configuration(api):
    config = snappi.Config()
    p1, p2 = config.ports.port(name="p1", location="veth-a").port(name="p2", location="veth-z")
    layer1 = config.layer1.layer1(name="l1")[-1]
    layer1.port_names = [p1.name, p2.name]
    layer1.speed = layer1.SPEED_1_GBPS
    layer1.mtu = 1500
    capture = config.captures.capture(name="c1")[-1]
    capture.port_names = [p2.name]
    capture.format = capture.PCAP
    capture.filters.ethernet()[-1].src.value = "020000000001"
    device = config.devices.device(name="d1")[-1]
    ethernet = device.ethernets.ethernet(name="e1", mac="02:00:00:00:00:0A")[-1]
    ethernet.connection.port_name = p1.name
    vlan = ethernet.vlans.vlan(name="v1", id=7)[-1]
    vlan.tpid = vlan.X8100
    ethernet.ipv4_addresses.ipv4(name="i1", address="198.18.0.2", gateway="198.18.0.1", prefix=24)
    ethernet.ipv6_addresses.ipv6(name="i2", address="2001:2::2", gateway="2001:2::1")
    config.options.port_options.location_preemption = True
    config.options.protocol_options.auto_start_all = True

    flow = config.flows.flow(name="f1")[-1]
    flow.tx_rx.port.tx_name = p1.name
    flow.tx_rx.port.rx_names = [p2.name]
    flow.size.fixed = 128
    flow.size.increment.start = 128  # the union changes its mind
    flow.rate.percentage = 12.3
    flow.duration.fixed_packets.packets = 100
    flow.duration.fixed_packets.delay.nanoseconds = 1000
    flow.metrics.enable = True
    flow.metrics.loss = True
    flow.metrics.timestamps = True
    flow.metrics.latency.enable = True
    flow.metrics.latency.mode = flow.metrics.latency.STORE_FORWARD
    ethernet, vlan, ipv4, udp = flow.packet.ethernet().vlan().ipv4().udp()
    ethernet.src.value = "02:00:00:00:00:01"
    ethernet.dst.values = ["02:00:00:00:00:02", "02:00:00:00:00:03"]
    vlan.id.increment.start, vlan.id.increment.step, vlan.id.increment.count = 1, 1, 4094
    ipv4.src.random.min, ipv4.src.random.max = "198.18.0.1", "198.18.0.254"
    ipv4.dst.decrement.start, ipv4.dst.decrement.step = "198.18.1.9", "0.0.0.1"
    ipv4.priority.dscp.phb.value = 46
    ipv4.header_checksum.generated = ipv4.header_checksum.BAD
    udp.src_port.increment.start = 5000
    udp.dst_port.random.seed = 3

    other = config.flows.flow(name="f2")[-1]
    other.tx_rx.port.tx_name = p1.name
    other.rate.pps = 2**40
    other.size.fixed = 128
    other.packet.ethernet().ipv6().tcp()
    other.metrics.enable = True
    return config


def failure(api, call):
    try:
        call()
    except Exception as error:
        read = api.from_exception(error)
        assert read is not None, f"not an error of OTG: {error!r}"
        return read
    raise AssertionError("nothing was refused")


def set_and_get(api, grpc):
    assert api.get_config().serialize("dict") == {}, "before any configuration"
    metrics = api.metrics_request()
    metrics.flow.flow_names = []
    assert len(api.get_metrics(metrics).flow_metrics) == 0

    config = configuration(api)
    warnings = api.set_config(config).warnings
    assert any("latency" in line for line in warnings), list(warnings)
    sent, got = config.serialize("dict"), api.get_config().serialize("dict")
    assert got == sent, [(key, sent.get(key), got.get(key)) for key in sent if sent.get(key) != got.get(key)]
    assert len(api.set_config(snappi.Config()).warnings) == 0
    assert api.get_config().serialize("dict") == {}
    api.set_config(config)

    # A configuration of several MiB, in slices if the client is told to.
    large = configuration(api)
    large.flows.clear()
    for number in range(3000):
        flow = large.flows.flow(name=f"a flow with a long name {'x' * 500} {number}")[-1]
        flow.tx_rx.port.tx_name = "p1"
    api.set_config(large)
    if grpc:
        assert len(api.get_config().flows) == 3000
    api.set_config(config)


def errors(api, grpc):
    config = configuration(api)
    config.ports[0].location = "host:5555"
    config.flows[0].tx_rx.port.tx_name = "nowhere"
    config.devices[0].bgp.router_id = "1.1.1.1"
    config.flows[0].egress_packet.ethernet()
    read = failure(api, lambda: api.set_config(config))
    assert read.code == (3 if grpc else 400), read
    assert read.kind == "validation", read
    for path in ["devices[0].bgp: ", "flows[0].egress_packet: ", "ports[0].location: ", "flows[0].tx_rx.port.tx_name: "]:
        assert sum(line.startswith(path) for line in read.errors) == 1, (path, read.errors)
    assert len(api.get_config().ports) == 2, "nothing has changed"

    many = snappi.Config()
    for _ in range(1000):
        many.ports.port(name="the same", location="veth-a")
    read = failure(api, lambda: api.set_config(many))
    assert len(read.errors) > 10 and (not grpc or "not listed" in read.errors[-1]), read.errors[-1]

    request = api.states_request()
    request.ipv4_neighbors.ethernet_names = ["nowhere"]
    read = failure(api, lambda: api.get_states(request))
    assert (read.code, read.kind, list(read.errors)) == (13 if grpc else 500, "internal", ["the rig is gone"]), read

    request = api.metrics_request()
    request.choice = request.BGPV4
    read = failure(api, lambda: api.get_metrics(request))
    assert any("bgpv4" in line for line in read.errors), read.errors


def control(api):
    state = snappi.ControlState()
    state.traffic.flow_transmit.state = state.traffic.flow_transmit.START
    assert len(api.set_control_state(state).warnings) == 0
    state = snappi.ControlState()
    state.port.capture.state = state.port.capture.START
    state.port.capture.port_names = ["p2"]
    assert len(api.set_control_state(state).warnings) == 0

    action = snappi.ControlAction()
    action.protocol.ipv4.ping.requests.add(src_name="i1", dst_ip="198.18.0.1")
    action.protocol.ipv4.ping.requests.add(src_name="i1", dst_ip="198.18.0.9")
    rows = api.set_control_action(action).response.protocol.ipv4.ping.responses
    assert [row.result for row in rows] == ["succeeded", "failed"], rows


def metrics(api, grpc):
    request = snappi.MetricsRequest()
    request.flow.flow_names = ["f1"]
    (row,) = api.get_metrics(request).flow_metrics
    assert (row.name, row.port_tx, row.port_rx, row.transmit) == ("f1", "p1", "p2", "stopped")
    assert (row.frames_tx, row.frames_rx, row.bytes_tx, row.loss) == (100, 100, 0, 0.0)
    assert isinstance(row.frames_tx, int) and abs(row.frames_rx_rate - 1e-7) < 1e-12
    assert row.timestamps.first_timestamp_ns == 1.76e18, row.timestamps
    assert (row.latency.minimum_ns, row.latency.maximum_ns) == (1e16, 2e22), row.latency

    request = snappi.MetricsRequest()
    request.flow.metric_names = ["frames_tx", "tx_rate_bps"]
    row = api.get_metrics(request).flow_metrics[0]
    assert (row.frames_tx, row.tx_rate_bps, row.frames_rx) == (100, 8000.0, None), row

    request = snappi.MetricsRequest()
    request.port.port_names = []
    one, two = api.get_metrics(request).port_metrics
    assert (one.name, two.name, one.link, one.capture, one.transmit) == ("p1", "p2", "up", "stopped", "stopped")
    assert one.bytes_tx == 2**64 - 1 and one.location == "veth-a"
    assert (one.speed == 125000) if grpc else (one.speed is None), one
    request.port.column_names = ["speed", "last_change"]
    one = api.get_metrics(request).port_metrics[0]
    assert (one.speed, one.last_change, one.frames_tx) == (125000, 1_760_000_000_000_000_000, None), one


def states_and_captures(api, transport):
    request = snappi.StatesRequest()
    request.ipv6_neighbors.ethernet_names = []
    resolved, waiting = api.get_states(request).ipv6_neighbors
    assert resolved.link_layer_address == "02:00:00:00:00:01" and waiting.link_layer_address is None

    request = snappi.CaptureRequest()
    request.port_name = "empty"
    captured = api.get_capture(request).read()
    assert captured[:4] == b"\xd4\xc3\xb2\xa1" and len(captured) == 24, captured
    request.port_name = "long"
    if transport != "grpc":
        assert len(api.get_capture(request).read()) == 9_000_024
    request.port_name = "sliced"
    request.packets.slice.initial.start, request.packets.slice.initial.count = 3, 4
    assert api.get_capture(request).read().endswith(b"Slice { start: 3, count: 4 }")
    request.port_name = "p9"
    assert "there is no port `p9`" in failure(api, lambda: api.get_capture(request)).errors[0]


def changes(api):
    update = snappi.ConfigUpdate()
    update.flows.property_names = [update.flows.RATE]
    flow = update.flows.flows.flow(name="f1")[-1]
    flow.tx_rx.port.tx_name = "p1"
    flow.rate.pps = 7
    assert list(api.update_config(update).warnings) == ["updated"]

    append = snappi.ConfigAppend()
    flow = append.config_append_list.add().flows.flow(name="f3")[-1]
    flow.tx_rx.port.tx_name = "p1"
    assert len(api.append_config(append).warnings) == 0
    assert [flow.name for flow in api.get_config().flows] == ["f1", "f2", "f3"]
    delete = snappi.ConfigDelete()
    delete.config_delete_list.add().flows = ["f3"]
    assert len(api.delete_config(delete).warnings) == 0
    assert [flow.name for flow in api.get_config().flows] == ["f1", "f2"]


def drive(transport, location):
    api = connect(transport, location)
    grpc = transport.startswith("grpc")
    api.check_version_compatibility()
    assert api.get_version().api_spec_version == "^1.0.0"
    set_and_get(api, grpc)
    errors(api, grpc)
    control(api)
    metrics(api, grpc)
    states_and_captures(api, transport)
    changes(api)


def compare_messages(ours, theirs, path, wrong):
    """Every field of ours is there with the same number, type, label and presence; every enumeration alike."""
    known = {field.name: field for field in theirs.field}
    for field in ours.field:
        other = known.get(field.name)
        facts = lambda f: (f.number, f.type, f.label, f.type_name, f.proto3_optional)
        if other is None or facts(field) != facts(other):
            wrong.append(f"{path}.{field.name}")
    inner = {message.name: message for message in theirs.nested_type}
    for message in ours.nested_type:
        compare_messages(message, inner[message.name], f"{path}.{message.name}", wrong)
    enums = {enum.name: enum for enum in theirs.enum_type}
    for enum in ours.enum_type:
        values = {(value.name, value.number) for value in enums[enum.name].value}
        wrong.extend(f"{path}.{enum.name}.{v.name}" for v in enum.value if (v.name, v.number) not in values)


def entries(message, path, found):
    """All fields and enumeration values of a message, by owner."""
    found[path] = {(field.number, field.name) for field in message.field}
    for enum in message.enum_type:
        found[f"{path}.{enum.name}"] = {(value.number, value.name) for value in enum.value}
    for inner in message.nested_type:
        entries(inner, f"{path}.{inner.name}", found)


def model(descriptor, refused):
    from google.protobuf import descriptor_pb2
    from snappi import otg_pb2

    ours = descriptor_pb2.FileDescriptorSet()
    with open(descriptor, "rb") as file:
        ours.ParseFromString(file.read())
    theirs = descriptor_pb2.FileDescriptorProto()
    otg_pb2.DESCRIPTOR.CopyToProto(theirs)
    known = {message.name: message for message in theirs.message_type}
    wrong, compared = [], 0
    ours_by_owner, theirs_by_owner = {}, {}
    for message in theirs.message_type:
        entries(message, message.name, theirs_by_owner)
    for file in ours.file:
        if file.package != "otg":
            continue
        for message in file.message_type:
            compared += 1
            entries(message, message.name, ours_by_owner)
            if message.name not in known:
                wrong.append(message.name)
            else:
                compare_messages(message, known[message.name], message.name, wrong)
        for service in file.service:
            methods = lambda s: {(m.name, m.input_type, m.output_type, m.client_streaming, m.server_streaming) for m in s.method}
            assert methods(service) == methods(theirs.service[0]), "the calls differ"
            assert len(service.method) == 18
    assert compared > 300 and not wrong, (compared, wrong)

    # Whatever a request may carry and we do not know has its name in the table, and nothing else has.
    table = {}
    with open(refused) as file:
        for line in file:
            if not line.startswith("#"):
                owner, members = line.strip().split(": ")
                table[owner] = {(int(member.split(" ")[0]), member.split(" ")[1]) for member in members.split(", ")}
    answers = ("MetricsResponse", "StatesResponse", "PortMetric", "FlowMetric", "Error")
    for owner, entry in ours_by_owner.items():
        missing = theirs_by_owner[owner] - entry - {(n, name) for n, name in theirs_by_owner[owner] if name == "metric_tags"}
        if owner.split(".")[0] not in answers and missing != table.get(owner, set()) - {
            (n, name) for n, name in table.get(owner, set()) if name == "metric_tags"
        }:
            wrong.append((owner, missing))
    assert not wrong, wrong


if __name__ == "__main__":
    {"drive": drive, "model": model}[sys.argv[1]](*sys.argv[2:])
    print("all is well")
