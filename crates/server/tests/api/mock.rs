//! A tester without a rig: it remembers, counts and refuses as the test has set it.
#![allow(dead_code, reason = "each test that includes this file uses what it needs")]

use packetrig_server::{
    BoundAddresses, CaptureFile, CaptureRange, FlowChange, FlowRow, IpFamily, LatencyFigures, LocalUsers,
    NeighbourRow, PingResult, PingTask, PortRow, RefusalKind, RequestedState, ServedRig, ServerOptions,
    Tester, TesterRefusal, TransmitState,
};
use serde_json::{Map, Value, json};
use std::io::{Cursor, Read};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Bytes of the capture of port `long`: more than gRPC carries in one message.
pub(crate) const LONG: u64 = 9_000_000;
/// Header of a classic pcap file: little-endian, microseconds, Ethernet.
pub(crate) const PCAP_HEADER: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];

#[derive(Debug, Default)]
struct Memory {
    config: Option<Value>,
    states: Vec<RequestedState>,
    updates: Vec<Value>,
    /// True once flows have been started.
    started: bool,
    paused: bool,
    /// Changes in progress now, and the most at any time.
    changing: usize,
    max_concurrent_changes: usize,
}

/// Barrier at which `set_config` waits if a test wants it to.
#[derive(Debug, Default)]
struct Gate {
    entered: Option<Sender<()>>,
    leave: Option<Receiver<()>>,
}

#[derive(Debug, Default)]
pub(crate) struct Mock {
    memory: Mutex<Memory>,
    gate: Mutex<Gate>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mock {
    /// Makes the next configuration report that it has begun, and wait until the test lets it end.
    pub(crate) fn hold(&self) -> (Receiver<()>, Sender<()>) {
        let ((entered, began), (end, leave)) = (channel(), channel());
        *lock(&self.gate) = Gate { entered: Some(entered), leave: Some(leave) };
        (began, end)
    }

    pub(crate) fn states(&self) -> Vec<RequestedState> {
        lock(&self.memory).states.clone()
    }

    pub(crate) fn updates(&self) -> Vec<Value> {
        lock(&self.memory).updates.clone()
    }

    pub(crate) fn max_concurrent_changes(&self) -> usize {
        lock(&self.memory).max_concurrent_changes
    }

    fn names(&self, of: &str) -> Vec<String> {
        let memory = lock(&self.memory);
        let items =
            memory.config.as_ref().and_then(|config| config[of].as_array().cloned()).unwrap_or_default();
        items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect()
    }

    fn select(&self, of: &str, wanted: &[String]) -> Result<Vec<String>, TesterRefusal> {
        let known = self.names(of);
        if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
            return Err(TesterRefusal::validation(format!("there is no `{unknown}` in {of}")));
        }
        Ok(known.into_iter().filter(|name| wanted.is_empty() || wanted.contains(name)).collect())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Memory) -> T) -> T {
        {
            let mut memory = lock(&self.memory);
            memory.changing += 1;
            memory.max_concurrent_changes = memory.max_concurrent_changes.max(memory.changing);
        }
        let gate = std::mem::take(&mut *lock(&self.gate));
        if let Some(entered) = gate.entered {
            entered.send(()).ok();
        }
        if let Some(leave) = gate.leave {
            leave.recv().ok();
        }
        let mut memory = lock(&self.memory);
        memory.changing -= 1;
        change(&mut memory)
    }
}

/// Problems that the real reader finds in a configuration. It does not read devices yet.
fn judge(config: &Value) -> Result<Vec<String>, Vec<String>> {
    let mut config = config.clone();
    if let Some(members) = config.as_object_mut() {
        members.remove("devices");
    }
    let read = packetrig_plan::Plan::from_text(&config.to_string());
    let lines = |problems: Vec<packetrig_plan::PlanProblem>| {
        let line = |problem: packetrig_plan::PlanProblem| format!("{}: {}", problem.path, problem.message);
        problems.into_iter().map(line).collect::<Vec<String>>()
    };
    read.map(|plan| lines(plan.warnings)).map_err(|problems| {
        let is_error = |problem: &packetrig_plan::PlanProblem| {
            problem.severity == packetrig_plan::ProblemSeverity::Error
        };
        lines(problems.0.into_iter().filter(is_error).collect())
    })
}

impl Tester for Mock {
    fn set_config(&self, config: String) -> Result<Vec<String>, TesterRefusal> {
        let config: Value = serde_json::from_str(&config).expect("a settled configuration is JSON");
        let warnings =
            judge(&config).map_err(|errors| TesterRefusal { kind: RefusalKind::Validation, errors })?;
        self.change(|memory| {
            memory.config = Some(config);
            memory.started = false;
        });
        Ok(warnings)
    }

    fn current_config(&self) -> Value {
        lock(&self.memory).config.clone().unwrap_or_else(|| Value::Object(Map::new()))
    }

    fn config_problems(&self, config: String) -> Vec<String> {
        judge(&serde_json::from_str(&config).expect("a copied configuration is JSON"))
            .err()
            .unwrap_or_default()
    }

    fn update_config(&self, update: Value) -> Result<Vec<String>, TesterRefusal> {
        self.change(|memory| memory.updates.push(update));
        Ok(vec!["updated".to_owned()])
    }

    fn append_config(&self, append: Value) -> Result<Vec<String>, TesterRefusal> {
        let added = append["config_append_list"][0]["flows"].as_array().cloned().unwrap_or_default();
        self.change(|memory| {
            let config = memory.config.get_or_insert_with(|| json!({}));
            let flows = config["flows"].as_array().cloned().unwrap_or_default();
            config["flows"] = flows.into_iter().chain(added).collect();
        });
        Ok(Vec::new())
    }

    fn delete_config(&self, delete: Value) -> Result<Vec<String>, TesterRefusal> {
        let names = delete["config_delete_list"][0]["flows"].as_array().cloned().unwrap_or_default();
        let names: Vec<String> = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
        self.select("flows", &names)?;
        self.change(|memory| {
            if let Some(flows) = memory.config.as_mut().and_then(|config| config["flows"].as_array_mut()) {
                flows.retain(|flow| !names.iter().any(|name| flow["name"] == **name));
            }
        });
        Ok(Vec::new())
    }

    fn set_state(&self, state: RequestedState) -> Result<Vec<String>, TesterRefusal> {
        if let RequestedState::Traffic { flows, .. } = &state {
            self.select("flows", flows)?;
        }
        if state == (RequestedState::Protocols { on: false }) {
            return Err(TesterRefusal::not_implemented("protocols cannot be stopped"));
        }
        self.change(|memory| {
            if let RequestedState::Traffic { change, .. } = &state {
                memory.started |= *change == FlowChange::Start;
                memory.paused = *change == FlowChange::Pause;
            }
            memory.states.push(state);
        });
        Ok(Vec::new())
    }

    fn send_pings(&self, requests: Vec<PingTask>) -> Result<Vec<PingResult>, TesterRefusal> {
        let result = |ping: PingTask| PingResult {
            succeeded: !ping.destination.to_string().ends_with('9'),
            source: ping.source,
            destination: ping.destination,
        };
        Ok(requests.into_iter().map(result).collect())
    }

    fn port_rows(&self, names: &[String]) -> Result<Vec<PortRow>, TesterRefusal> {
        if names.first().is_some_and(|name| name == "not-a-number") {
            return Ok(vec![PortRow { frames_tx_rate: f64::NAN, ..PortRow::default() }]);
        }
        let names = self.select("ports", names)?;
        let row = |name| PortRow {
            name,
            location: "veth-a".to_owned(),
            link_up: true,
            frames_tx: 100,
            bytes_tx: u64::MAX,
            bytes_tx_rate: 1.25e17,
            last_change_ns: Some(1_760_000_000_000_000_000),
            speed_kbytes: Some(125_000),
            ..PortRow::default()
        };
        Ok(names.into_iter().map(row).collect())
    }

    fn flow_rows(&self, names: &[String]) -> Result<Vec<FlowRow>, TesterRefusal> {
        let names = self.select("flows", names)?;
        let (started, paused) = {
            let memory = lock(&self.memory);
            (memory.started, memory.paused)
        };
        let row = |name| FlowRow {
            name,
            port_tx: "p1".to_owned(),
            port_rx: "p2".to_owned(),
            transmit: if paused { TransmitState::Paused } else { TransmitState::Stopped },
            frames_tx: if started { 100 } else { 0 },
            frames_rx: if started { 100 } else { 0 },
            frames_rx_rate: 1e-7,
            bytes_tx_rate: 1000.0,
            frames_tx_rate: 10.0,
            loss: started.then_some(0.0),
            timestamps: started.then_some((1.76e18, 1.760_000_000_1e18)),
            latency: started.then_some(LatencyFigures { minimum: 1e16, average: 1.5e16, maximum: 2e22 }),
            ..FlowRow::default()
        };
        Ok(names.into_iter().map(row).collect())
    }

    fn neighbour_rows(
        &self,
        family: IpFamily,
        ethernets: &[String],
    ) -> Result<Vec<NeighbourRow>, TesterRefusal> {
        if ethernets.iter().any(|name| name == "nowhere") {
            return Err(TesterRefusal::internal("the rig is gone"));
        }
        let addresses =
            if family == IpFamily::V6 { ["2001:2::1", "2001:2::2"] } else { ["198.18.0.1", "198.18.0.2"] };
        let mac = Some("02:00:00:00:00:01".to_owned());
        let row = |(address, mac): (&str, _)| NeighbourRow {
            ethernet: "e1".to_owned(),
            address: address.parse().expect("an address"),
            mac,
        };
        Ok(addresses.into_iter().zip([mac, None]).map(row).collect())
    }

    fn open_capture(&self, port: &str, part: CaptureRange) -> Result<CaptureFile, TesterRefusal> {
        let body: Box<dyn Read + Send> = match port {
            "long" => Box::new(std::io::repeat(7).take(LONG)),
            "empty" => Box::new(std::io::empty()),
            "broken" => Box::new(Broken),
            "breaks off" => Box::new(std::io::repeat(7).take(1 << 20).chain(Broken)),
            "sliced" => Box::new(Cursor::new(format!("{part:?}"))),
            other => return Err(TesterRefusal::validation(format!("port_name: there is no port `{other}`"))),
        };
        let length = (port == "long").then_some(LONG + PCAP_HEADER.len() as u64);
        Ok(CaptureFile { bytes: Box::new(Cursor::new(PCAP_HEADER).chain(body)), length })
    }
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the disk is gone"))
    }
}

/// A server of a mock in this process, on any free ports of the loopback; it stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) mock: Arc<Mock>,
    pub(crate) bound: BoundAddresses,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<(), packetrig_server::Error>>>,
}

/// Options with free ports, nothing encrypted, and every client of the server's user.
pub(crate) fn plain() -> ServerOptions {
    ServerOptions { local_users: Some(users(0)), ..strict() }
}

/// The same, with clients of a user that may not call.
pub(crate) fn strict() -> ServerOptions {
    let any = Some(([127, 0, 0, 1], 0).into());
    let options = ServerOptions { http: any, grpc: any, http_tls: false, ..ServerOptions::default() };
    ServerOptions { local_users: Some(users(4242)), ..options }
}

/// The kernel says of every client that it is this user; user 0 may call.
fn users(user: u32) -> LocalUsers {
    LocalUsers { allowed: vec![0], find: Arc::new(move |_, _| Some(user)) }
}

impl Served {
    pub(crate) fn start(options: ServerOptions) -> Self {
        let mock = Arc::new(Mock::default());
        let rig = ServedRig::from_tester(Arc::clone(&mock) as _);
        Self::start_rig(options, rig, mock)
    }

    /// A server of this rig. `mock` is its tester, if it has one.
    pub(crate) fn start_rig(options: ServerOptions, rig: ServedRig, mock: Arc<Mock>) -> Self {
        let ((stop, stopped), (tell, told)) = (channel(), channel());
        let thread = std::thread::spawn(move || {
            let bound = move |bound| tell.send(bound).expect("the test waits for it");
            // The test stops it, or has ended.
            packetrig_server::run_server(options, rig, bound, move || {
                stopped.recv().ok();
            })
        });
        let bound = told.recv().expect("the server starts");
        Self { mock, bound, stop: Some(stop), thread: Some(thread) }
    }

    /// Makes it stop.
    pub(crate) fn stop(&mut self) {
        self.stop.take();
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) {
        self.stop();
        let thread = self.thread.take().expect("taken only here");
        thread.join().expect("the server does not panic").expect("the server ends well");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
