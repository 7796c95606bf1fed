//! Time per frame of the XDP programs, as the kernel measures it.
#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use packetrig_engine::stream::{FrameSource, StreamSpec};
use packetrig_engine::xdp;
use packetrig_plan::Plan;
use packetrig_plan::timeline::{SendPattern, StreamTimeline};
use packetrig_sys::xdp::meter::UnattachedMeterProgram;
use packetrig_units::{FrameRate, Nanos};
use std::sync::Arc;

const VARYING: &str = "[{choice: ethernet}, {choice: ipv4, ipv4: {src: {choice: increment, increment: {start: 198.18.0.1, step: 0.0.0.1, count: 1000}}, dst: {choice: value, value: 198.19.0.1}}}, {choice: udp, udp: {src_port: {choice: random, random: {min: 1024, max: 65535, seed: 1, count: 5000}}}}]";
const CONSTANT: &str = "[{choice: ethernet}, {choice: ipv4, ipv4: {src: {choice: value, value: 198.18.0.1}, dst: {choice: value, value: 198.19.0.1}}}, {choice: udp}]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (what, packet) in [("constant", CONSTANT), ("two varying fields", VARYING)] {
        for size in [64, 1518] {
            let text = format!(
                "ports: [{{name: a, location: lo}}]\nflows: [{{name: f, tx_rx: {{choice: port, port: {{tx_name: a, rx_names: []}}}}, packet: {packet}, size: {{choice: fixed, fixed: {size}}}, metrics: {{enable: true}}}}]"
            );
            let plan = Plan::from_text(&text).map_err(|problems| problems.to_string())?;
            let rate = FrameRate::per_second(1).ok_or("a rate")?;
            let timeline = StreamTimeline { rate, delay: Nanos::ZERO, shape: SendPattern::Endless };
            let source = FrameSource::from_origin(&plan.streams[0].frames);
            let spec = Arc::new(StreamSpec {
                number: 0,
                source,
                timeline,
                latency: true,
                sent_elsewhere: false,
                untimed: false,
            });
            let (send, receive) = xdp::measure_time_per_frame(&[spec])?;
            println!("xdp, {size} B, {what}: send {send} ns, receive {receive} ns");
        }
    }
    let mut trial = UnattachedMeterProgram::load_meter_program()?;
    for (what, kind, ip) in
        [("IPv4/UDP", 0x0800_u16, &V4[..]), ("IPv6/UDP", 0x86dd, &V6), ("not IP", 0x88b5, &V4)]
    {
        let mut frame = [&[2; 12][..], &kind.to_be_bytes(), ip].concat();
        frame.resize(62, 0);
        println!("xdp, 66 B, {what}: headers {} ns", trial.time_per_frame(&frame)?);
    }
    Ok(())
}

const V4: [u8; 20] = [0x45, 0, 0, 48, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1];
const V6: [u8; 8] = [0x60, 0, 0, 0, 0, 8, 17, 64];
