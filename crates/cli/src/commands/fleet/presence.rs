//! Receives the hellos of nodes while `fleet up` runs, so that `fleet status` can answer at once. Also records the
//! history of each node.
//!
//! The listener sends nothing. It writes a file with the time of each node's last hello, so that readers of the file
//! see the age of the information.

use super::lead_reader::{CachedNodeLeads, LeadReader};
use crate::error::Error;
use crate::fleet_place::{FleetPlace, FleetPresence};
use crate::output::print_remark;
use packetrig_fleet::history::{NodeEvent, NodeWatcher};
use packetrig_fleet::members::{FleetMembers, MemberRow};
use packetrig_nats::{FleetObserver, ReceivedHello};
use packetrig_report::NodeName;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval between two writes of the presence file. It grows with every thousand nodes, so that the cost per
/// second stays the same.
const PRESENCE_WRITE_INTERVAL: Nanos = Nanos::from_secs(1);
const NODES_PER_WRITE_INTERVAL: usize = 1000;
/// Pause after a failed attempt to subscribe to the hellos.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval between two checks for received hellos and for the end.
const HELLO_POLL_INTERVAL: Nanos = Nanos::from_millis(100);

/// A thread that receives hellos until this value is dropped.
pub(super) struct PresenceWatch {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PresenceWatch {
    pub(super) fn start_thread(place: &FleetPlace) -> Result<Self, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let listener = PresenceListener::new(place.clone(), Arc::clone(&over));
        let thread = std::thread::Builder::new()
            .name("presence".to_owned())
            .spawn(|| listener.receive_hellos_until_stopped());
        Ok(Self { over, thread: Some(thread.map_err(packetrig_fleet_io::Error::Thread)?) })
    }
}

impl Drop for PresenceWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic was already printed by the panic hook, and `fleet up` is ending anyway.
            drop(thread.join());
        }
    }
}

struct PresenceListener {
    place: FleetPlace,
    over: Arc<AtomicBool>,
    members: FleetMembers,
    watcher: NodeWatcher,
    /// Nodes that have sent hellos to an earlier `fleet up` only. Their ages are those at the time `began`.
    remembered: Vec<MemberRow>,
    began: MonoTime,
    has_complained: bool,
    leads: CachedNodeLeads,
}

fn monotonic_now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

impl PresenceListener {
    fn new(place: FleetPlace, over: Arc<AtomicBool>) -> Self {
        let began = monotonic_now();
        let mut watcher = NodeWatcher::default();
        // A restart of `fleet up` must not add events to the history of nodes: without the remembered rows, every
        // node would seem to start now.
        let remembered = place.read_presence().map(FleetPresence::with_current_ages).unwrap_or_default();
        for row in &remembered {
            watcher.restore_node(&row.node, &row.hello, row.silent, began);
        }
        Self {
            place,
            over,
            members: FleetMembers::default(),
            watcher,
            remembered,
            began,
            has_complained: false,
            leads: CachedNodeLeads::default(),
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn receive_hellos_until_stopped(mut self) {
        while !self.is_over() {
            match self.place.make_controller_fabric().and_then(|fabric| {
                Ok(fabric.open_hello_observer().map_err(packetrig_fleet_io::Error::from)?)
            }) {
                Ok(observer) => self.receive_hellos_until_disconnected(&observer),
                // This is not reported here: `fleet up` itself reports faults of its server.
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Receives hellos until the watch ends or the connection is lost. The thread polls instead of waiting for each
    /// hello: otherwise a thousand nodes would wake it a thousand times per second.
    fn receive_hellos_until_disconnected(&mut self, observer: &FleetObserver) {
        // The first file comes after a whole interval: before it, few nodes have sent a hello, and readers
        // would see an empty fleet.
        let mut due = monotonic_now() + PRESENCE_WRITE_INTERVAL;
        while !self.is_over() && observer.is_open() {
            clock::sleep_until_ns((monotonic_now() + HELLO_POLL_INTERVAL).as_nanos());
            while !self.is_over()
                // A flood of hellos must not keep the file from being written.
                && monotonic_now() < due
                && let Some(ReceivedHello { node, hello, at }) = observer.next_hello(Nanos::ZERO)
            {
                let events = self.watcher.on_hello(&node, &hello, at);
                self.record_events(events.into_iter().map(|event| (node.clone(), event)).collect());
                // The hello names the run of the node. When it changes, the lead has probably changed, too.
                // The runs are compared before the new hello replaces the earlier one.
                let run_before = self.members.get(&node).and_then(|member| member.hello().busy.clone());
                if run_before != hello.busy {
                    self.leads.changed.insert(node.clone());
                }
                self.members.on_hello(&node, hello, at);
            }
            if monotonic_now() >= due {
                self.refresh_node_leads();
                self.write_presence();
                due = monotonic_now()
                    + Nanos::new(PRESENCE_WRITE_INTERVAL.as_u64() * self.write_interval_factor());
            }
        }
    }

    fn write_interval_factor(&self) -> u64 {
        let nodes = self.members.iter().count() + self.remembered.len();
        // The file has a row for each node, so its cost grows with their number.
        (nodes / NODES_PER_WRITE_INTERVAL) as u64 + 1
    }

    fn refresh_node_leads(&mut self) {
        let nodes = self.members.iter().map(|(node, _)| node);
        if self.leads.read_due_leads(nodes, monotonic_now(), || LeadReader::open_reader(&self.place)) {
            self.members.replace_leads(self.leads.known.clone());
        }
    }

    fn record_events(&self, events: Vec<(NodeName, NodeEvent)>) {
        for (node, event) in &events {
            tracing::info!(%node, ?event, "node event");
        }
        if !events.is_empty() {
            self.place.record_history(events);
        }
    }

    fn write_presence(&mut self) {
        // Lost nodes are detected here, because they send no hello.
        let lost = self.watcher.take_newly_lost_nodes(monotonic_now());
        self.record_events(lost.into_iter().map(|node| (node, NodeEvent::Lost)).collect());
        let here = monotonic_now();
        let mut nodes = self.members.member_rows(here);
        let heard: BTreeSet<NodeName> = nodes.iter().map(|row| row.node.clone()).collect();
        // Once a node has sent a hello to this process, its row from the earlier process is not needed any more.
        self.remembered.retain(|row| !heard.contains(&row.node));
        nodes.extend(self.remembered.iter().map(|row| row.clone().with_added_age(here.since(self.began))));
        let written = self.place.write_presence(&FleetPresence::take_snapshot(nodes));
        // Reported once, because the file is written every second.
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_complained, true)
        {
            print_remark(format_args!("cannot write the state of the nodes for `fleet status`: {error}"));
        }
    }
}
