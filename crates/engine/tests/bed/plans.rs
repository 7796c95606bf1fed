//! Plans made by hand and runs of them on the rig's own threads.

use packetrig_engine::Error;
use packetrig_engine::clock::RealClock;
use packetrig_engine::port::WorkerClock;
use packetrig_engine::rig::{DataPlane as _, PortOpener, RigOptions, TestRig};
use packetrig_plan::{
    FlowShare, OtgPause, Plan, Port, PortHost, PortLocation, Stream, StreamAmount, StreamDuration,
    WantedMetrics,
};
use packetrig_stats::result::NodeResult;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::{FrameRate, Nanos, Rate};
use packetrig_wire::header::HeaderKind;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Time limit of a run: a longer one hangs.
const PATIENCE: Nanos = Nanos::from_secs(20);

/// Ports of these names.
pub fn plan(ports: &[&str]) -> Plan {
    let port = |name: &&str| Port {
        name: (*name).into(),
        site: PortHost::Here,
        location: PortLocation { namespace: None, interface: (*name).into() },
        speed: None,
        mtu: None,
        promiscuous: true,
    };
    Plan { ports: ports.iter().map(port).collect(), ..Plan::default() }
}

pub fn plan_stream(name: &str, tx: usize, rx: &[usize], pps: u64, amount: StreamAmount) -> Stream {
    Stream {
        name: name.into(),
        flow: 0,
        flow_name: name.into(),
        part: FlowShare::WHOLE_FLOW,
        awaits: None,
        place: packetrig_plan::document::TextPosition::default(),
        tx,
        rx: rx.to_vec(),
        frames: super::template(HeaderKind::Udp, 128).into(),
        rate: Rate::Frames(FrameRate::per_second(pps).expect("not zero")),
        duration: StreamDuration { amount, delay: OtgPause::Time(Nanos::ZERO), gap: 12 },
        metrics: WantedMetrics { enable: true, latency: true, rx_per_tx_thousandths: 1000 },
    }
}

pub fn options(capture_dir: Option<PathBuf>) -> RigOptions {
    let capture_all = capture_dir.is_some();
    RigOptions {
        engine: None,
        run: String::new(),
        terms: SharedRunOptions { tag_key: super::KEY.0, capture_all, ..SharedRunOptions::default() },
        confirmed: BTreeSet::new(),
        capture_dir,
        site: packetrig_engine::rig::PlanPortLocations::EveryPortHere,
        gate: packetrig_engine::gate::SendGate::without_lease(),
    }
}

/// Starts a run.
pub fn begin(plan: Plan, options: &RigOptions, opener: &dyn PortOpener) -> Result<TestRig, Error> {
    let mut rig = TestRig::prepare_with(plan, options, opener)?;
    rig.arm_ports()?;
    rig.start_at(RealClock::new().now() + Nanos::from_millis(20));
    Ok(rig)
}

/// Waits until the senders are done or, if wanted, until `enough` of a sample.
pub fn watch(
    rig: &mut TestRig,
    enough: &mut dyn FnMut(&packetrig_stats::result::CountSample) -> bool,
) -> Result<(), Error> {
    let clock = RealClock::new();
    let give_up = clock.now() + PATIENCE;
    while !rig.senders_done() && !enough(&rig.sample_counts()?) {
        assert!(clock.now() < give_up, "the run is stuck");
        clock.wait_until(clock.now() + Nanos::from_millis(5));
    }
    Ok(())
}

/// A whole run.
pub fn execute(plan: Plan, options: &RigOptions, opener: &dyn PortOpener) -> Result<NodeResult, Error> {
    let mut rig = begin(plan, options, opener)?;
    watch(&mut rig, &mut |_| false)?;
    RealClock::new().wait_until(RealClock::new().now() + Nanos::from_millis(50));
    rig.finish_run("local", &[])
}
