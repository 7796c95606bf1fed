//! Limits and loads of all methods, as the command line asks for them.

use super::*;
use crate::args::{CommandLine, RigCommand, TestCommand};
use clap::{CommandFactory, Parser};
use packetrig_plan::Plan;
use packetrig_units::BitRate;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::OnceLock;

/// 2000 frames per second in each of two directions.
const PLAN: &str = r#"
ports: [{name: a, location: eth1}, {name: b, location: eth2}]
devices:
- {name: d, ethernets: [
    {name: e, connection: {port_name: a}, mac: "02:00:00:00:00:01", ipv4_addresses: [{name: a4, address: 198.18.0.2, gateway: 0.0.0.0}]},
    {name: f, connection: {port_name: b}, mac: "02:00:00:00:00:02", ipv4_addresses: [{name: b4, address: 198.18.0.3, gateway: 0.0.0.0}]}]}
flows:
- {name: f1, tx_rx: {device: {tx_names: [a4], rx_names: [b4], bidirectional: true}}, size: {fixed: 100}, rate: {pps: 2000},
   packet: [{ethernet: {}}, {ipv4: {}}, {udp: {}}], metrics: {enable: true}}
"#;

const LINK: BitRate = BitRate::new(1_000_000_000);

/// Every method with the options that it needs and as many loads as it can make.
const METHODS: [&str; 6] = [
    "rfc2544 --quick --only throughput,latency,frame-loss,back-to-back,recovery --size 100,1518",
    "mlrsearch",
    "bisect",
    "convergence --event true",
    "compare --set-a true --set-b true",
    "loss-share",
];

fn request(line: &str) -> MethodRequest {
    let words = ["packetrig", "test"].into_iter().chain(line.split_whitespace());
    let RigCommand::Test(command) = CommandLine::try_parse_from(words).unwrap().command else {
        panic!("{line}")
    };
    match command {
        TestCommand::Rfc2544(arguments) => MethodRequest::Rfc2544(arguments),
        TestCommand::Mlrsearch(arguments) => MethodRequest::Mlrsearch(arguments),
        TestCommand::Bisect(arguments) => MethodRequest::Bisect(arguments),
        TestCommand::Convergence(arguments) => MethodRequest::Convergence(arguments),
        TestCommand::Compare(arguments) => MethodRequest::Compare(arguments),
        TestCommand::LossShare(arguments) => MethodRequest::LossShare(arguments),
        other => panic!("{other:?}"),
    }
}

/// The most frames per second, and bits per second of layer 2, that leave on any wire in any trial.
fn max_rates_on_any_wire(start: &MethodSetup) -> (f64, f64) {
    let devices = [
        start.options.rehearse_lossless(),
        start.options.half_load_device().and_then(|it| start.options.rehearse_trials(&it)),
    ];
    let mut most = (0.0, 0.0);
    for order in devices.into_iter().flat_map(Result::unwrap) {
        let device = start.devices.get(usize::from(order.device)).unwrap_or(&start.devices[0]);
        let plan =
            Plan::from_text(&device.traffic.trial_document(&trial_runner::trial_shape(&order))).unwrap();
        let speeds = vec![Some(LINK); plan.ports.len()];
        let bound = plan.bind_to_links(&speeds).unwrap();
        for port in 0..bound.plan.ports.len() {
            // A load that follows another one comes later.
            let first = bound.streams.iter().map(|stream| stream.timeline.due_time(0)).min().unwrap();
            let streams = bound.plan.streams.iter().zip(&bound.streams);
            let streams = streams.filter(|(stream, timed)| {
                stream.tx == port
                    && timed.timeline.due_time(0) < first + packetrig_units::Nanos::from_millis(100)
            });
            let rates = streams.map(|(stream, timed)| {
                let rate = timed.timeline.rate;
                (rate.as_f64(), stream.l2_rate(rate).bits_per_second() as f64)
            });
            let sum = rates.fold((0.0, 0.0), |sum: (f64, f64), rate| (sum.0 + rate.0, sum.1 + rate.1));
            most = (f64::max(most.0, sum.0), f64::max(most.1, sum.1));
        }
    }
    most
}

fn with_plan(method: &str, more: &str) -> String {
    /// Written once: other tests may be reading it.
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = std::env::temp_dir().join(format!("packetrig-start-tests-{}.yaml", std::process::id()));
        std::fs::write(&file, PLAN).unwrap();
        file
    });
    format!("{method} {} --link 1Gbit/s {more}", file.display())
}

#[test]
fn limits_hold_in_every_method() {
    for method in METHODS {
        let rates =
            |rates: &str| if method == "loss-share" { format!("--rates {rates}") } else { String::new() };
        let flags = format!("{method} --tx eth1 --rx eth2 --link 1Gbit/s {}", rates("500pps"));
        let rates = rates("25%,10%");
        let limits = [
            (with_plan(method, &rates), 2_000.0, f64::INFINITY),
            (with_plan(method, &format!("{rates} --max-rate 500pps")), 500.0, f64::INFINITY),
            (with_plan(method, &format!("{rates} --max-rate 9kpps")), 2_000.0, f64::INFINITY),
            (with_plan(method, &format!("{rates} --max-rate 400kbit/s")), 2_000.0, 400e3),
            (format!("{flags} --max-rate 700pps"), 700.0, f64::INFINITY),
            (format!("{flags} --max-rate 5Mbit/s"), f64::INFINITY, 5e6),
        ];
        for (line, frames, bits) in limits {
            let most = max_rates_on_any_wire(
                &request(&line)
                    .prepare_setup()
                    .unwrap_or_else(|error| panic!("{line}: {}", error.full_message())),
            );
            let holds = most.0 > 0.0 && most.0 <= frames * 1.002 + 1.0 && most.1 <= bits * 1.002 + 12_144.0;
            assert!(holds, "{line}: {most:?}");
        }
    }
}

/// A method that joins without a limit would not be in the list above.
#[test]
fn method_list_is_complete() {
    let command = CommandLine::command();
    let methods = command.find_subcommand("test").unwrap().get_subcommands();
    let limited =
        methods.filter(|method| method.get_arguments().any(|argument| argument.get_id() == "max_rate"));
    let named: BTreeSet<&str> = limited.map(clap::Command::get_name).collect();
    let listed: BTreeSet<&str> = METHODS.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(named, listed);
}

#[test]
fn load_above_limit_names_its_option() {
    let tx = "--tx eth1 --rx eth2 --max-rate 1kpps";
    for (line, option) in [
        (format!("convergence {tx} --event true --rate 2kpps"), "--rate"),
        (format!("compare {tx} --set-a true --set-b true --rate 2kpps"), "--rate"),
        (format!("loss-share {tx} --rates 500pps,2kpps"), "--rates"),
        (with_plan("loss-share", "--rates 3kpps"), "--rates"),
    ] {
        let error = request(&line).prepare_setup().err().unwrap_or_else(|| panic!("{line}")).full_message();
        assert!(error.starts_with(&format!("{option} asks for ")), "{line}: {error}");
    }
}

#[test]
fn bidirectional_plan_passes_load_check() {
    let start = request(&with_plan("rfc2544 --size 64,1518", "")).prepare_setup().unwrap();
    check_method_loads(&start).unwrap();
    let MethodOptions::Rfc2544(options) = &start.options else { panic!("{:?}", start.options) };
    assert_eq!(options.line_bits_per_second, BitRate::new(2_000_000_000));
    let highest = options.maximum_load(FrameSize::MIN);
    assert!((highest.frames_per_second() - 4_000.0).abs() < 1e-6, "{highest}");
}

#[test]
fn unsendable_frame_size_is_refused_before_trials() {
    let start = request("rfc2544 --tx eth1 --rx eth2 --link 1Gbit/s --ipv6 --size 64,1518").prepare_setup();
    let error = start.err().unwrap().full_message();
    assert!(error.contains("cannot be run"), "{error}");
}

#[test]
fn unknown_link_speed_error_names_flag() {
    for method in ["rfc2544", "mlrsearch", "bisect"] {
        let error =
            request(&format!("{method} --tx eth1 --rx eth2")).prepare_setup().err().unwrap().full_message();
        assert!(error.contains("give it with --link"), "{method}: {error}");
    }
}

#[test]
fn usual_sizes_have_room_for_headers_and_tag() {
    for (more, least) in [("", 64), ("--vlan 7", 66), ("--ipv6", 82), ("--ipv6 --vlan 7", 86)] {
        let line = format!("rfc2544 --tx eth1 --rx eth2 --link 1Gbit/s {more}");
        let start =
            request(&line).prepare_setup().unwrap_or_else(|error| panic!("{line}: {}", error.full_message()));
        check_method_loads(&start).unwrap();
        let MethodOptions::Rfc2544(options) = &start.options else { panic!("{line}") };
        let sizes: Vec<u32> = options.frame_sizes_bytes.iter().map(|size| size.bytes()).collect();
        assert_eq!(sizes, [least, 128, 256, 512, 1024, 1280, 1518], "{line}");
    }
}

#[test]
fn comparison_limit_requires_enough_pairs() {
    let line = "compare --tx eth1 --rx eth2 --set-a true --set-b true --max-worse 5% --pairs";
    let few = request(&format!("{line} 4")).prepare_setup().unwrap().options.start_method();
    assert!(few.unwrap_err().to_string().contains("pairs must be at least 5"));
    request(&format!("{line} 5")).prepare_setup().unwrap().options.start_method().unwrap();
}
