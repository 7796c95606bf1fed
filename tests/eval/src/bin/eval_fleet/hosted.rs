//! Many nodes in one process: each has the shell, the spool and the connection of a real agent, over a data plane that
//! counts frames without sending any. What it cannot show is what packets cost; all the rest of a fleet is as it is.

use crate::frameless::{FRAMES, FRAMES_PER_SECOND, hello, receive_result, received, send_result};
use anyhow::{Context, ensure};
use packetrig_engine::Error as EngineError;
use packetrig_engine::gate::SendGate;
use packetrig_engine::rig::{DataPlane, SteeredPlane};
use packetrig_fleet::agent::{AgentMachine, PersistentAgentState};
use packetrig_fleet::fabric::{Fabric, ResultSender};
use packetrig_fleet::hello::{ClockFacts, NodeHello};
use packetrig_fleet::lease::LeaseTerms;
use packetrig_fleet::message::{Nonce, RunPreparation, SentTotal};
use packetrig_fleet_io::{
    NodeMembership, NodeSite, PlaneSource, PreparedPlane, ResultUplink, UplinkSource, serve_fleet_agent,
};
use packetrig_nats::NatsFabric;
use packetrig_nats::enrol::{JoinLine, NodeKey, enrol_with_retries};
use packetrig_plan::{Plan, PlanChange, PlanGrowth, StreamResumePoint};
use packetrig_report::NodeName;
use packetrig_stats::counts::StreamTxCounts;
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_store::spool::{ResultSpool, SpoolLimits};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// First argument of the process.
pub(crate) const WORD: &str = "hosted";
/// Nodes that join at the same time.
const AT_ONCE: usize = 32;
const STACK: usize = 256 * 1024;

pub(crate) fn name(number: usize) -> NodeName {
    NodeName(format!("n{number:05}"))
}

/// What all nodes of the process share.
struct Host {
    line: JoinLine,
    directory: PathBuf,
    fabric: NatsFabric,
    identity: String,
    come: AtomicUsize,
    failed: AtomicUsize,
    over: AtomicBool,
}

/// `hosted DIRECTORY JOIN-LINE-FILE COUNT`: joins through the door as agents do, says `ready`, and works until its input ends.
pub(crate) fn perform() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [directory, line, count] = arguments.as_slice() else { anyhow::bail!("DIRECTORY LINE COUNT") };
    let count: usize = count.parse()?;
    let line: JoinLine = std::fs::read_to_string(line)?.trim().parse().context("the join line")?;
    let host = Arc::new(Host {
        fabric: NatsFabric::new(packetrig_nats::ServerAccess::for_server(String::new(), None))?,
        identity: clock::state::read_clock_identity().unwrap_or_default(),
        directory: PathBuf::from(directory),
        line,
        come: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        over: AtomicBool::new(false),
    });
    for number in 0..count {
        let shared = Arc::clone(&host);
        let body = move || {
            if let Err(error) = serve(&shared, number) {
                shared.failed.fetch_add(1, Ordering::Relaxed);
                writeln!(std::io::stderr(), "{}: {error:#}", name(number)).unwrap_or(());
            }
        };
        std::thread::Builder::new().stack_size(STACK).spawn(body)?;
        host.wait_until(number.saturating_sub(AT_ONCE));
    }
    host.wait_until(count);
    let failed = host.failed.load(Ordering::Relaxed);
    ensure!(failed == 0, "{failed} of {count} nodes could not join");
    writeln!(std::io::stdout(), "ready")?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    host.over.store(true, Ordering::Release);
    Ok(())
}

impl Host {
    /// Until so many have joined or given up.
    fn wait_until(&self, count: usize) {
        while self.come.load(Ordering::Relaxed) + self.failed.load(Ordering::Relaxed) < count {
            clock::sleep_until_ns(clock::monotonic_ns() + 2_000_000);
        }
    }
}

fn serve(host: &Host, number: usize) -> anyhow::Result<()> {
    let node = name(number);
    let home = host.directory.join(&node.0);
    std::fs::create_dir_all(&home)?;
    let membership = enrol_with_retries(&host.line, &node, &NodeKey::generate()?, &mut |_| {})?;
    let fabric = host.fabric.with_access(membership.server_access()?);
    let endpoint = fabric.open_endpoint(node.clone())?;
    host.come.fetch_add(1, Ordering::Relaxed);
    let limits = SpoolLimits { bytes: 1 << 24, keep_free: 0 };
    let spool = ResultSpool::open_or_create(&home.join("spool"), limits, Box::new(|_| None))?;
    let of = node.clone();
    let open = Box::new(move || Ok(Box::new(fabric.open_result_outlet(&of)?) as Box<dyn ResultSender>));
    let captures = home.join("captures");
    let source = UplinkSource { spool, captures, capture_bytes: 1 << 20, node: node.clone() };
    let uplink = ResultUplink::start_sending(source, open)?;
    let identity = host.identity.clone();
    let site = NodeSite {
        node: node.clone(),
        describe: Box::new(move || NodeHello {
            clock: ClockFacts { identity: identity.clone(), ..ClockFacts::default() },
            ..hello()
        }),
        always_compare: false,
        epoch_file: home.join("epoch"),
        watch: None,
    };
    let past = PersistentAgentState { epoch: 0, nonce: Nonce(clock::wall_clock_ns()), longest: None };
    let agent = AgentMachine::new_leased(LeaseTerms::FLEET_TERMS, past);
    let membership = NodeMembership::new(site, SendGate::under_lease(), uplink);
    let failure = serve_fleet_agent(endpoint, &mut Frameless { node }, agent, membership, &host.over);
    failure.map_or(Ok(()), |failure| Err(failure.into()))
}

/// Data planes of one node.
struct Frameless {
    node: NodeName,
}

impl PlaneSource for Frameless {
    fn prepare_plane(
        &mut self,
        preparation: &RunPreparation,
        plan: Arc<Plan>,
    ) -> Result<PreparedPlane, EngineError> {
        let is_here = |port: usize| preparation.places.get(port).is_some_and(|place| place.node == self.node);
        let mut plane = CountingPlane::default();
        for (index, stream) in plan.streams.iter().enumerate() {
            if is_here(stream.tx) {
                plane.sends.push(index);
            }
            plane.receives.extend(stream.rx.iter().filter(|port| is_here(**port)).map(|port| (index, *port)));
        }
        Ok((Box::new(plane), Vec::new()))
    }
}

/// Says that frames went and came at their rate, all of them, in order.
#[derive(Debug, Default)]
struct CountingPlane {
    sends: Vec<usize>,
    receives: Vec<(usize, usize)>,
    started: Option<MonoTime>,
    is_stopped: bool,
}

fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

impl CountingPlane {
    /// Of each stream.
    fn frames(&self) -> u64 {
        let since = self.started.map_or(Nanos::ZERO, |started| now().since(started));
        FRAMES.min(since.as_u64() * FRAMES_PER_SECOND / 1_000_000_000)
    }
}

impl DataPlane for CountingPlane {
    fn arm_ports(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn start_at(&mut self, at: MonoTime) {
        self.started = Some(at);
    }

    fn sample_counts(&mut self) -> Result<CountSample, EngineError> {
        let frames = self.frames();
        let sent = StreamTxCounts { frames, ..StreamTxCounts::default() };
        Ok(CountSample {
            at: now(),
            tx: self.sends.iter().map(|stream| (*stream, sent)).collect(),
            rx: self.receives.iter().map(|(stream, port)| (*stream, *port, received(frames))).collect(),
            ..CountSample::default()
        })
    }

    fn senders_done(&mut self) -> bool {
        self.is_stopped || self.sends.is_empty() || self.frames() == FRAMES
    }

    fn sent_totals(&mut self) -> Result<Vec<SentTotal>, EngineError> {
        let frames = self.frames();
        Ok(self.sends.iter().map(|stream| SentTotal { stream: *stream, frames }).collect())
    }

    fn stop_senders(&mut self) {
        self.is_stopped = true;
    }

    fn finish_run(&mut self, node: &str, sent: &[SentTotal]) -> Result<NodeResult, EngineError> {
        let frames_of =
            |stream: usize| sent.iter().find(|total| total.stream == stream).map_or(0, |total| total.frames);
        let receives = self.receives.iter();
        let receives = receives.map(|(stream, port)| receive_result(*stream, *port, frames_of(*stream)));
        Ok(NodeResult {
            node: node.to_owned(),
            started: self.started.unwrap_or_default(),
            send: self.sends.iter().map(|stream| send_result(*stream, frames_of(*stream))).collect(),
            receive: receives.collect(),
            ..NodeResult::default()
        })
    }
}

impl SteeredPlane for CountingPlane {
    fn apply_change(&mut self, _: &PlanChange<PlanGrowth>) -> Result<(), EngineError> {
        Err(EngineError::Bug("not steered here"))
    }

    fn hold_for_change(&mut self, _: &PlanChange<PlanGrowth>) -> Result<Vec<StreamResumePoint>, EngineError> {
        Err(EngineError::Bug("not steered here"))
    }

    fn announce_change(&mut self, _: &[StreamResumePoint], _: Option<MonoTime>) -> Result<(), EngineError> {
        Err(EngineError::Bug("not steered here"))
    }

    fn begin_change(&mut self, _: Option<MonoTime>) -> Result<(), EngineError> {
        Err(EngineError::Bug("not steered here"))
    }

    fn undo_change(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// Where a node keeps what it has.
pub(crate) fn homes(directory: &Path) -> PathBuf {
    directory.join("nodes")
}
