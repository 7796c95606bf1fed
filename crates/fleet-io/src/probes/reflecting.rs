//! The reflector of a port: a thread that answers probes from ports that the plan names, and no others.
//!
//! Invariant: the reflector answers only while the lease of the node is valid.

use super::prepare::OwnProbePort;
use super::ready::to_data_plane_error;
use packetrig_engine::Error;
use packetrig_engine::gate::SendGate;
use packetrig_plan::probes::ProbePlan;
use packetrig_probe::session::StampReflector;
use packetrig_probe::session::reflector::ReflectorSettings;
use packetrig_probe_io::reflect::{self, RequestCounts};
use packetrig_stats::probe::ReflectedRequests;
use packetrig_sys::netns::NetNs;
use packetrig_sys::udp::WatchedSocket;
use packetrig_units::Nanos;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Minimum permitted burst of answers to one address, because delayed probes arrive together.
const MIN_REFLECTION_BURST: u32 = 100;
/// Minimum interval between two answers to one asker, whatever the plan says.
const MIN_ANSWER_INTERVAL: Nanos = Nanos::from_micros(100);

#[derive(Debug)]
pub(super) struct RunningReflector {
    stop: Arc<AtomicBool>,
    /// `None` once the thread was joined.
    thread: Option<JoinHandle<Result<Vec<ReflectedRequests>, packetrig_probe_io::Error>>>,
}

impl RunningReflector {
    /// Starts the reflector of a port; `None` without askers.
    pub(super) fn start_reflecting(
        probes: &ProbePlan,
        port: &OwnProbePort,
        gate: &SendGate,
    ) -> Result<Option<Self>, Error> {
        let Some(address) = port.address.filter(|_| !port.askers.is_empty()) else { return Ok(None) };
        let netns = NetNs::open_named_or_current_namespace(port.location.namespace.as_deref())?;
        let mut socket = WatchedSocket::bind_in(&netns, SocketAddr::new(address, probes.port))?;
        let settings = ReflectorSettings {
            key: None,
            // A stateful reflector numbers its answers (RFC 8762, section 4), so losses of
            // probes can be told from losses of answers.
            is_stateful: true,
            // A delayed probe and the next one may arrive at half the interval.
            interval: Nanos::new(probes.interval.as_u64() / 2 / u64::from(probes.train.max(1)))
                .max(MIN_ANSWER_INTERVAL),
            burst: MIN_REFLECTION_BURST.max(probes.train.saturating_mul(2)),
            synchronised_ns: None,
        };
        let askers = port.askers.iter().map(|asker| (asker.address, asker.port)).collect();
        let mut requests =
            RequestsByAsker { at: port.port, gate: gate.clone(), askers, counts: RefCell::default() };
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = Builder::new().name("reflector".to_owned()).spawn(move || {
            let all = reflect::run_reflector(
                &mut socket,
                &mut StampReflector::new(settings),
                &|ip| requests.admit_request(ip),
                &|_: &RequestCounts| told.load(Ordering::Acquire),
            )?;
            Ok(requests.request_rows(&all))
        });
        let thread = thread.map_err(|source| Error::Thread { name: "reflector".to_owned(), source })?;
        Ok(Some(Self { stop, thread: Some(thread) }))
    }

    /// Stops the thread, and returns how many requests came from each port that may ask.
    pub(super) fn stop_and_join(mut self) -> Result<Vec<ReflectedRequests>, Error> {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return Ok(Vec::new()) };
        let ended = thread.join().map_err(|_| Error::Panicked("reflector".to_owned()))?;
        ended.map_err(to_data_plane_error)
    }
}

impl Drop for RunningReflector {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; its counts are not needed any more.
            drop(thread.join());
        }
    }
}

/// Decides which requests may be answered, and counts the requests of each asking port.
struct RequestsByAsker {
    /// The port that answers.
    at: usize,
    gate: SendGate,
    askers: BTreeMap<IpAddr, usize>,
    counts: RefCell<AskerRequestCounts>,
}

#[derive(Default)]
struct AskerRequestCounts {
    requests: BTreeMap<usize, u64>,
    /// Requests that arrived after the lease had ended.
    unanswered: u64,
}

impl RequestsByAsker {
    /// Counts a request. Returns whether it may be answered.
    fn admit_request(&self, from: IpAddr) -> bool {
        let Some(port) = self.askers.get(&from) else { return false };
        let mut counts = self.counts.borrow_mut();
        // The probe is counted before the lease is checked: the report row has the number that arrived, answered or
        // not.
        *counts.requests.entry(*port).or_default() += 1;
        let is_open = self.gate.remaining_time() != Some(Nanos::ZERO);
        counts.unanswered += u64::from(!is_open);
        is_open
    }

    /// Returns a row for each port that may ask, also if no request came from it.
    fn request_rows(&mut self, all: &RequestCounts) -> Vec<ReflectedRequests> {
        let AskerRequestCounts { requests, unanswered } = self.counts.take();
        // Refusals are counted for all askers together, so a single one cannot be assigned to an asker.
        let is_all_answered = all.refused.is_empty() && all.unsent == 0 && unanswered == 0;
        let rows = self.askers.values().map(|from| {
            let requests = requests.get(from).copied().unwrap_or(0);
            let reflected = is_all_answered.then_some(requests);
            ReflectedRequests { at: self.at, from: *from, requests, reflected }
        });
        rows.collect()
    }
}
