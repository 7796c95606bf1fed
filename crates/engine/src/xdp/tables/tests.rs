use super::*;
use packetrig_plan::Plan;
use packetrig_sys::xdp::tx::{LiveOptions, LiveTx};
use packetrig_wire::tag::{self, TagKey, TagStamp};

const KEY: TagKey = TagKey(0x1234_5678_9abc_def0);

/// Streams with these packets and sizes.
fn streams(flows: &[(&str, &str)]) -> Vec<Arc<StreamSpec>> {
    let head = "ports: [{name: a, location: lo}, {name: b, location: lo2}]\nflows:\n".to_owned();
    let flow = |(index, (packet, size)): (usize, &(&str, &str))| {
        format!(
            "- {{name: f{index}, tx_rx: {{choice: port, port: {{tx_name: a, rx_names: [b]}}}}, packet: {packet}, \
             size: {size}, rate: {{choice: pps, pps: 10}}, duration: {{choice: fixed_packets, \
             fixed_packets: {{packets: 10}}}}, metrics: {{enable: true, loss: true}}}}\n"
        )
    };
    let text = head + &flows.iter().enumerate().map(flow).collect::<String>();
    let plan = Plan::from_text(&text).unwrap_or_else(|problems| panic!("{problems}"));
    let specs = plan.streams.iter().enumerate().map(|(index, stream)| {
        Arc::new(StreamSpec {
            number: u16::try_from(index).unwrap(),
            source: crate::stream::FrameSource::from_origin(&stream.frames),
            timeline: packetrig_plan::timeline::StreamTimeline {
                rate: packetrig_units::FrameRate::per_second(10).unwrap(),
                delay: packetrig_units::Nanos::ZERO,
                shape: packetrig_plan::timeline::SendPattern::Frames(10),
            },
            latency: true,
            sent_elsewhere: false,
            untimed: false,
        })
    });
    specs.collect()
}

const IMIX: &str = "{choice: weight_pairs, weight_pairs: {choice: custom, custom: [{size: 100, weight: 7}, {size: 570, weight: 4}, {size: 1518, weight: 1}]}}";

fn flows() -> Vec<(&'static str, &'static str)> {
    vec![
        ("[{choice: ethernet}]", "{choice: fixed, fixed: 64}"),
        (
            "[{choice: ethernet}, {choice: ipv4, ipv4: {src: {choice: increment, increment: {start: 198.18.0.1, step: 0.0.0.1, count: 50}}, dst: {choice: value, value: 198.19.0.1}}}, {choice: udp, udp: {src_port: {choice: random, random: {min: 1000, max: 60000, seed: 5, count: 5000}}, dst_port: {choice: values, values: [7, 9, 65535]}}}]",
            "{choice: increment, increment: {start: 64, end: 400, step: 7}}",
        ),
        (
            "[{choice: ethernet, ethernet: {src: {choice: increment, increment: {start: '02:00:00:00:00:00', step: '00:00:00:01:00:01', count: 70000}}}}, {choice: vlan, vlan: {id: {choice: decrement, decrement: {start: 4, step: 1, count: 9}}, priority: {choice: values, values: [0, 3, 7]}}}, {choice: ipv6, ipv6: {src: {choice: increment, increment: {start: '2001:2::ffff:ffff:ffff:fffe', step: '::1', count: 1000}}, dst: {choice: decrement, decrement: {start: '2001:2::1:0:0:0', step: '0:0:1::3', count: 99}}}}, {choice: tcp, tcp: {seq_num: {choice: increment, increment: {start: 4294967295, step: 1000, count: 100000}}}}]",
            IMIX,
        ),
        (
            "[{choice: ethernet}, {choice: ipv4, ipv4: {priority: {choice: dscp, dscp: {phb: {choice: increment, increment: {start: 60, step: 1, count: 9}}}}, header_checksum: {choice: generated, generated: bad}, src: {choice: value, value: 198.18.0.1}, dst: {choice: value, value: 198.18.0.2}}}, {choice: tcp}]",
            "{choice: fixed, fixed: 64}",
        ),
        (
            "[{choice: ethernet}, {choice: ipv4, ipv4: {src: {choice: value, value: 198.18.0.1}, dst: {choice: value, value: 198.18.0.2}}}, {choice: udp, udp: {dst_port: {choice: value, value: 4789}}}, {choice: vxlan, vxlan: {vni: {choice: increment, increment: {start: 16777214, step: 1, count: 5}}}}, {choice: ethernet}, {choice: ipv4, ipv4: {src: {choice: decrement, decrement: {start: 198.18.0.1, step: 0.0.1.0, count: 50}}, dst: {choice: value, value: 198.18.0.2}}}, {choice: udp}]",
            "{choice: increment, increment: {start: 150, end: 900, step: 13}}",
        ),
        (
            "[{choice: ethernet}, {choice: ipv4, ipv4: {src: {choice: value, value: 198.18.0.1}, dst: {choice: value, value: 198.18.0.2}}}, {choice: gre, gre: {checksum_present: {choice: value, value: 1}}}, {choice: ipv4, ipv4: {time_to_live: {choice: increment, increment: {start: 1, step: 1, count: 200}}, src: {choice: value, value: 198.18.0.1}, dst: {choice: value, value: 198.18.0.2}}}, {choice: icmp, icmp: {echo: {sequence_number: {choice: increment, increment: {start: 0, step: 1, count: 65536}}}}}]",
            "{choice: random, random: {min: 90, max: 300}}",
        ),
    ]
}

#[test]
fn xdp_program_renders_template_byte_for_byte() {
    let streams = streams(&flows());
    let compiled = compile_tables(&streams).unwrap();
    let options =
        LiveOptions { key: KEY.0, late_after_ns: 0, batch: 64, pace: crate::xdp::tx::LIVE_FRAME_PACE };
    let mut live = match LiveTx::open_on_interface(1, &compiled.tables, options) {
        Ok(live) => live,
        Err(error) if error.is_permission_error() => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    for (lane, spec) in streams.iter().enumerate() {
        for n in (0..60).chain([4095, 65_535, 65_536, 1 << 20, (1 << 32) + 5, 1 << 40]) {
            let size = spec.source.template().unwrap().frame_size(n);
            let shape = compiled.shapes[lane][&size];
            let made = live.build_single_frame(shape, n, size.kernel_len()).unwrap();
            let made = made.unwrap_or_else(|| panic!("stream {lane} frame {n} was not made"));
            let found = tag::tag_candidates(&made, KEY).find(|found| found.tag.stream == spec.number);
            let found = found.unwrap_or_else(|| panic!("stream {lane} frame {n} has no tag: {made:02x?}"));
            let mut wanted = vec![0; size.kernel_len()];
            spec.source.template().unwrap().render_frame(
                n,
                TagStamp { key: KEY, stream: spec.number, time: found.tag.time },
                &mut wanted,
            );
            assert_eq!(made, wanted, "stream {lane} frame {n}");
        }
    }
}

#[test]
fn oversized_frame_is_refused_by_flow_name() {
    let jumbo = compile_tables(&streams(&[("[{choice: ethernet}]", "{choice: fixed, fixed: 9000}")]));
    let refused = jumbo.unwrap_err().to_string();
    assert!(refused.contains("flows[0]") && refused.contains("8996 bytes in a frame"), "{refused}");
}
