//! Time per frame of the two XDP programs, as the kernel measures it.
#![expect(clippy::print_stdout, reason = "a measurement is printed")]

use packetrig_engine::stream::{Source, StreamSpec};
use packetrig_engine::xdp;
use packetrig_plan::Plan;
use packetrig_plan::timeline::{Shape, Timeline};
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
            let plan = Plan::read(&text).map_err(|problems| problems.to_string())?;
            let rate = FrameRate::per_second(1).ok_or("a rate")?;
            let timeline = Timeline { rate, delay: Nanos::ZERO, shape: Shape::Endless };
            let source = Source::of(&plan.streams[0].frames);
            let spec = Arc::new(StreamSpec { number: 0, source, timeline, latency: true });
            let (send, receive) = xdp::time_per_frame(&[spec])?;
            println!("xdp, {size} B, {what}: send {send} ns, receive {receive} ns");
        }
    }
    Ok(())
}
