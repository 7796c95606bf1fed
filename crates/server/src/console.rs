//! The tester behind the API: it opens a run for each configuration, passes changes to the run, and makes rows from the
//! events of the run.
//!
//! It opens no ports itself: its creator passes a [`RunSource`] that opens them. Clients get times of the
//! run as wall-clock times.
//!
//! Invariant: once a change is answered, every read shows it. If a configuration is refused, the previous one stays
//! in force. The exception: if the ports of the new one cannot be opened, there is no configuration afterwards.

mod capture_file;
mod change;
mod document;
mod history;
mod live;
mod live_state;
mod names;
mod refusals;
mod rows;
mod slice;
#[cfg(test)]
mod tests;
mod watched;

use crate::tester::{
    CaptureFile, CaptureRange, FlowChange, FlowRow, IpFamily, NeighbourRow, PingResult, PingTask, PortRow,
    RequestedState, Tester, TesterRefusal,
};
pub use document::replace_aliases;
use live::LiveCounts;
use names::ConfigurationNames;
use packetrig_fleet::served::{RunSource, SteeredRun};
use packetrig_plan::{Plan, PlanChange};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
pub use watched::WatchedRun;

// State that clients read. Its lock is held only briefly and never while the run performs a change, so that reads
// are answered during a change.
struct ClientView {
    config: Arc<str>,
    /// Shared with viewers, which read it without the lock.
    names: Arc<ConfigurationNames>,
    /// Number of the configuration; see [`LiveState::configuration`](crate::viewing::LiveState::configuration).
    number: u64,
    /// The plan of the run, as it was after the last change.
    plan: Option<Arc<Plan>>,
    live: Arc<Mutex<LiveCounts>>,
}

/// State that only changes use. A change holds its lock from reading the current configuration until the run has
/// accepted the new one, so no other change can alter the configuration in between. Lock order: this lock is taken
/// before the lock of the view.
#[derive(Default)]
struct ChangeState {
    run: Option<Box<dyn SteeredRun>>,
    /// True once traffic was started: only then is the result of the run stored.
    sent: bool,
}

pub struct TestConsole<R> {
    rigs: R,
    aliases: BTreeMap<String, String>,
    changes: Mutex<ChangeState>,
    view: Mutex<ClientView>,
    /// Number of the next echo request, from 1.
    pinged: AtomicU64,
    /// Number of configurations since the start of the server.
    configured: AtomicU64,
}

/// Interval between two checks for the results of echo requests. After [`MAX_ECHO_RESULT_CHECKS`] checks, 5 s have
/// passed, which is longer than a run waits for an answer.
const ECHO_RESULT_CHECK_INTERVAL: Duration = Duration::from_millis(20);
const MAX_ECHO_RESULT_CHECKS: u32 = 250;

impl<R> std::fmt::Debug for TestConsole<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestConsole").field("aliases", &self.aliases).finish_non_exhaustive()
    }
}

impl<R: RunSource> TestConsole<R> {
    /// Creates a console without a configuration. `aliases` maps each name that documents may use as a port location
    /// to the real location.
    pub fn new(rigs: R, aliases: BTreeMap<String, String>) -> Self {
        let view = Mutex::new(ClientView::without_config());
        Self {
            rigs,
            aliases,
            changes: Mutex::default(),
            view,
            pinged: AtomicU64::new(1),
            configured: AtomicU64::new(0),
        }
    }

    /// Ends the open run, if there is one, and waits until its result is stored. Without traffic, no result is stored.
    pub fn shut_down(&self) {
        let mut changes = self.lock_changes();
        self.end_run(&mut changes);
        // The result of the last run may still be on its way to the disk.
        self.rigs.wait_for_results();
    }

    fn lock_changes(&self) -> MutexGuard<'_, ChangeState> {
        // A panic in one call must not end the server, so a poisoned lock is used nevertheless.
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_view(&self) -> MutexGuard<'_, ClientView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_run(&self, changes: &mut ChangeState) {
        // The view changes first, because reads must not show the old configuration while its ports are being closed.
        *self.lock_view() = ClientView::without_config();
        let ChangeState { run, sent } = std::mem::take(changes);
        if let Some(run) = run {
            run.close_run(sent);
        }
    }

    /// Waits until the results of all these echo requests are known, but for at most 5 s. Stops waiting if their run
    /// has ended or was replaced.
    fn wait_for_ping_answers(&self, live: &Arc<Mutex<LiveCounts>>, numbers: Range<u64>) {
        for _ in 0..MAX_ECHO_RESULT_CHECKS {
            // A new configuration has its own counts, so no more results come for these requests.
            let is_current = Arc::ptr_eq(live, &self.lock_view().live);
            let live = live.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_current
                || live.end_reason().is_some()
                || numbers.clone().all(|number| live.ping_result(number).is_some())
            {
                return;
            }
            // The events that bring the answers need this lock.
            drop(live);
            std::thread::sleep(ECHO_RESULT_CHECK_INTERVAL);
        }
    }

    /// Returns the indices of the named ports, or of all ports with a capture if no port is named. A named port without
    /// a capture is an error.
    fn ports_with_capture(&self, names: &[String]) -> Result<Vec<usize>, TesterRefusal> {
        let view = self.lock_view();
        let ports = view.names.port_indices(names)?;
        let captures = view.plan.iter().flat_map(|plan| &plan.captures);
        let captured: BTreeSet<usize> = captures.flat_map(|capture| capture.ports.iter().copied()).collect();
        // A port without a capture is an error only if the client has named ports.
        let bare = ports.iter().find(|port| !captured.contains(port)).filter(|_| !names.is_empty());
        if let Some(name) = bare.and_then(|port| Some(&view.plan.as_ref()?.ports[*port].name)) {
            return Err(TesterRefusal::validation(format!("captures: no capture includes port `{name}`")));
        }
        Ok(ports.into_iter().filter(|port| captured.contains(port)).collect())
    }

    fn change_traffic(
        &self,
        changes: &mut ChangeState,
        change: FlowChange,
        flows: &[String],
    ) -> Result<(), TesterRefusal> {
        let view = self.lock_view();
        let Some(plan) = &view.plan else { return answer_without_config::<()>(flows).map(drop) };
        // The counts are read before the change: frames that leave during the change belong to the new traffic.
        let before =
            (change == FlowChange::Start).then(|| view.lock_live().port_totals_if_idle(plan)).flatten();
        // Names are checked before the run gets the change, so an unknown name changes nothing.
        let streams = view.names.stream_indices(flows)?;
        // The run may take long to perform the change, and reads need this lock.
        drop(view);
        let of = streams.clone();
        let change_of_plan = match change {
            FlowChange::Start => PlanChange::Start(of),
            FlowChange::Stop => PlanChange::Stop(of),
            FlowChange::Pause => PlanChange::Pause(of),
            FlowChange::Resume => PlanChange::Resume(of),
        };
        // The view has a plan only while there is a run: both change under the lock of changes.
        if let Some(run) = &mut changes.run {
            run.make_change(change_of_plan)?;
        }
        if matches!(change, FlowChange::Start | FlowChange::Resume) {
            // Only a run that has sent frames has a result worth keeping.
            changes.sent = true;
            let view = self.lock_view();
            let mut live = view.lock_live();
            live.show_streams(&streams);
            if let Some(before) = before {
                live.set_counter_baseline(before);
            }
        }
        Ok(())
    }
}

impl ClientView {
    fn without_config() -> Self {
        Self { config: "{}".into(), names: Arc::default(), number: 0, plan: None, live: Arc::default() }
    }

    fn lock_live(&self) -> MutexGuard<'_, LiveCounts> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: RunSource> Tester for TestConsole<R> {
    fn set_config(&self, config: String) -> Result<Vec<String>, TesterRefusal> {
        let mut changes = self.lock_changes();
        let done = self.replace_config(&mut changes, config.into());
        // Memory is released also after a refused configuration: parsing needs many times the length of the document.
        self.rigs.release_memory();
        done
    }

    fn current_config(&self) -> Value {
        let text = Arc::clone(&self.lock_view().config);
        // The text was written from JSON values, so it is valid JSON.
        serde_json::from_str(&text).unwrap_or_default()
    }

    fn config_problems(&self, config: String) -> Vec<String> {
        let found = self.read_document(config.into()).err().map(|refusal| refusal.errors).unwrap_or_default();
        self.rigs.release_memory();
        found
    }

    fn update_config(&self, update: Value) -> Result<Vec<String>, TesterRefusal> {
        let mut changes = self.lock_changes();
        // The update holds the lock of changes: no other change comes between reading the
        // configuration and replacing it.
        let config = change::update_flows(self.current_config(), &update)?;
        self.apply_config_to_run(&mut changes, config.to_string().into())
    }

    fn append_config(&self, append: Value) -> Result<Vec<String>, TesterRefusal> {
        let mut changes = self.lock_changes();
        let config = change::append_flows(self.current_config(), append)?;
        self.apply_config_to_run(&mut changes, config.to_string().into())
    }

    fn delete_config(&self, delete: Value) -> Result<Vec<String>, TesterRefusal> {
        let mut changes = self.lock_changes();
        let config = change::delete_flows(self.current_config(), &delete)?;
        self.apply_config_to_run(&mut changes, config.to_string().into())
    }

    fn set_state(&self, state: RequestedState) -> Result<Vec<String>, TesterRefusal> {
        let mut changes = self.lock_changes();
        let change = match state {
            RequestedState::Traffic { change, flows } => {
                self.change_traffic(&mut changes, change, &flows)?;
                return Ok(Vec::new());
            }
            RequestedState::Capture { on, ports } => {
                PlanChange::Capture { ports: self.ports_with_capture(&ports)?, on }
            }
            RequestedState::Link { up, ports } => {
                PlanChange::Link { ports: self.lock_view().names.port_indices(&ports)?, up }
            }
            RequestedState::Protocols { on } => PlanChange::Protocols { on },
        };
        if let Some(run) = &mut changes.run {
            run.make_change(change)?;
        }
        Ok(Vec::new())
    }

    fn send_pings(&self, requests: Vec<PingTask>) -> Result<Vec<PingResult>, TesterRefusal> {
        let mut changes = self.lock_changes();
        // The numbers are assigned under the lock of changes, because the run requires increasing numbers.
        let first = self.pinged.fetch_add(requests.len() as u64, Ordering::Relaxed);
        let orders = (first..).zip(&requests).map(|(number, ping)| packetrig_plan::PingRequest {
            number,
            source: ping.source.clone(),
            to: ping.destination,
        });
        // The results appear in the counts of this run, even if the configuration changes before the answers arrive.
        let live = Arc::clone(&self.lock_view().live);
        if let Some(run) = &mut changes.run {
            run.make_change(PlanChange::Ping(orders.collect()))?;
        }
        // Answers may take seconds, and other changes must not wait for them.
        drop(changes);
        let numbers = first..first + requests.len() as u64;
        self.wait_for_ping_answers(&live, numbers);
        let live = live.lock().unwrap_or_else(PoisonError::into_inner);
        let results = (first..).zip(requests).map(|(number, ping)| PingResult {
            source: ping.source,
            destination: ping.destination,
            // An echo request without an answer in time has failed.
            succeeded: live.ping_result(number) == Some(true),
        });
        Ok(results.collect())
    }

    fn port_rows(&self, names: &[String]) -> Result<Vec<PortRow>, TesterRefusal> {
        let view = self.lock_view();
        let Some(plan) = &view.plan else { return answer_without_config(names) };
        let live = view.lock_live();
        refuse_if_ended(&live)?;
        let ports = view.names.port_indices(names)?;
        Ok(ports
            .into_iter()
            .map(|port| {
                rows::build_port_row(plan, &view.names, &live, port, &|at| self.rigs.to_wall_clock_ns(at))
            })
            .collect())
    }

    fn flow_rows(&self, names: &[String]) -> Result<Vec<FlowRow>, TesterRefusal> {
        let view = self.lock_view();
        let Some(plan) = &view.plan else { return answer_without_config(names) };
        let live = view.lock_live();
        refuse_if_ended(&live)?;
        let flows = view.names.measured_flows(names)?;
        Ok(flows
            .into_iter()
            .flat_map(|flow| rows::flow_rows(plan, flow, &live, &|at| self.rigs.to_wall_clock_ns(at)))
            .collect())
    }

    fn neighbour_rows(
        &self,
        family: IpFamily,
        ethernets: &[String],
    ) -> Result<Vec<NeighbourRow>, TesterRefusal> {
        let view = self.lock_view();
        let Some(plan) = &view.plan else { return answer_without_config(ethernets) };
        // A misspelled name must not look like an interface without neighbours.
        let strange: Vec<String> = ethernets
            .iter()
            .filter(|name| !plan.interfaces.iter().any(|interface| interface.name == **name))
            .cloned()
            .collect();
        if !strange.is_empty() {
            return Err(names::unknown_names_refusal(&strange));
        }
        let live = view.lock_live();
        // Neighbours are unknown before the first sample, so there are no rows until then.
        let states = live.latest_sample().map(|latest| latest.neighbours.as_slice()).unwrap_or_default();
        Ok(states
            .iter()
            .filter(|state| state.address.is_ipv4() == (family == IpFamily::V4))
            .filter(|state| ethernets.is_empty() || ethernets.contains(&state.interface))
            .map(rows::build_neighbour_row)
            .collect())
    }

    fn open_capture(&self, port: &str, part: CaptureRange) -> Result<CaptureFile, TesterRefusal> {
        let mut changes = self.lock_changes();
        let ports = self.ports_with_capture(&[port.to_owned()])?;
        // OTG: `get_capture` stops the capture. The capture file is complete only after the stop.
        if let Some(run) = &mut changes.run {
            run.make_change(PlanChange::Capture { ports: ports.clone(), on: false })?;
        }
        // The locks are released at the end of this block, because opening and slicing a file takes time.
        let file = {
            let view = self.lock_view();
            let live = view.lock_live();
            ports.first().and_then(|port| live.capture_file(*port)).map(str::to_owned)
        };
        let file = file.ok_or_else(|| {
            TesterRefusal::internal(format!("port `{port}` has no capture file yet; start a capture first"))
        })?;
        capture_file::open_capture(&file, part)
            .map_err(|error| TesterRefusal::internal(format!("cannot read the capture file {file}: {error}")))
    }
}

/// Fails if the run has ended by itself: otherwise a client would take the last counts of the run for current ones.
fn refuse_if_ended(live: &LiveCounts) -> Result<(), TesterRefusal> {
    match live.end_reason() {
        Some(why) => {
            Err(TesterRefusal::internal(format!("the run has ended: {why}; set the configuration again")))
        }
        None => Ok(()),
    }
}

/// Answers a request for rows when there is no configuration: no rows, or an error if the request names anything.
fn answer_without_config<T>(names: &[String]) -> Result<Vec<T>, TesterRefusal> {
    if names.is_empty() { Ok(Vec::new()) } else { Err(names::unknown_names_refusal(names)) }
}
