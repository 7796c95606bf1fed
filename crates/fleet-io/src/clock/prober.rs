//! Compares the clock of a node with the controller's during a run: sends clock probes and evaluates the answers.
//!
//! A quick series comes first, so that a run can be armed at once. Then a probe follows every quarter of a second;
//! these probes show the drift between the clocks. All addresses of the controller are tried, and the fastest one is
//! used. The timeout for an answer grows until an answer arrives, so that it also suits a distant controller.

use super::probe::{CLOCK_PROBE_BYTES, ClockProbe};
use crate::agent::now;
use crate::error::Error;
use packetrig_fleet::message::ClockServer;
use packetrig_stats::clock::ClockFit;
use packetrig_stats::exchange::{ClockComparison, ClockExchange};
use packetrig_units::{MonoTime, Nanos};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Number of probes in the first series.
const FIRST_SERIES_PROBES: u64 = 64;
/// Interval between two probes after the first series.
const CLOCK_PROBE_INTERVAL: Nanos = Nanos::from_millis(250);
/// Longest time that a series may take. With a distant controller, a series has fewer probes.
const MAX_FIRST_SERIES_TIME: Nanos = Nanos::from_millis(300);
/// First timeout for an answer.
const FIRST_TIMEOUT: Duration = Duration::from_millis(20);
/// Largest timeout for an answer.
const MAX_ANSWER_TIMEOUT: Duration = Duration::from_millis(640);

#[derive(Debug)]
pub struct ClockProber {
    shared: Arc<ProberShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ProberShared {
    state: Mutex<ProberState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ProberState {
    probes: ClockComparison,
    /// True once the current series is over.
    is_settled: bool,
    /// Number of probes of a requested final series; 0 once the thread has begun that series.
    burst: u64,
    over: bool,
}

impl ProberShared {
    fn lock_prober_state(&self) -> MutexGuard<'_, ProberState> {
        // A panic cannot leave the value half changed: it is consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClockProber {
    /// Begins to compare this node's clock with that of `server`.
    pub fn start_probing(server: ClockServer) -> Result<Self, Error> {
        let shared = Arc::new(ProberShared::default());
        let state = Arc::clone(&shared);
        let thread = Builder::new()
            .name("clock".to_owned())
            .spawn(move || {
                ClockProbeLoop { shared: &state, server: &server, number: 0 }.probe_clock_until_over();
            })
            .map_err(Error::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits for the end of the current series, for at most `within`. Returns the fit of all probes so far; `None` if
    /// too few probes were answered.
    pub fn wait_for_fit(&self, within: Nanos) -> Option<ClockFit> {
        let changed = &self.shared.changed;
        let waited = changed
            .wait_timeout_while(self.shared.lock_prober_state(), within.to_std(), |state| !state.is_settled);
        waited.unwrap_or_else(PoisonError::into_inner).0.probes.fit_clock()
    }

    /// Requests a final quick series and waits for its end, for at most `within`. Returns the fit of all probes of the
    /// run; `None` if too few were answered.
    pub fn measure_final_fit(&self, within: Nanos) -> Option<ClockFit> {
        let mut state = self.shared.lock_prober_state();
        // The node's result waits for this series, so the series is short. It only adds to the probes of the whole run.
        state.burst = FIRST_SERIES_PROBES / 4;
        state.is_settled = false;
        drop(state);
        self.shared.changed.notify_all();
        self.wait_for_fit(within)
    }
}

impl Drop for ClockProber {
    fn drop(&mut self) {
        self.shared.lock_prober_state().over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The result is not needed any more.
            drop(thread.join());
        }
    }
}

struct ClockProbeLoop<'a> {
    shared: &'a ProberShared,
    server: &'a ClockServer,
    number: u64,
}

impl ClockProbeLoop<'_> {
    fn probe_clock_until_over(&mut self) {
        let Some(socket) = self.connect_to_fastest_address() else { return };
        let mut burst = FIRST_SERIES_PROBES;
        loop {
            let until = now() + MAX_FIRST_SERIES_TIME;
            for _ in 0..burst {
                self.probe_server_once(&socket);
                if now() >= until {
                    break;
                }
            }
            let mut state = self.shared.lock_prober_state();
            // A single probe after the quarter-second wait does not end a series.
            state.is_settled |= burst > 1;
            self.shared.changed.notify_all();
            let changed = &self.shared.changed;
            let waited = changed.wait_timeout_while(state, CLOCK_PROBE_INTERVAL.to_std(), |state| {
                !state.over && state.burst == 0
            });
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.over {
                return;
            }
            // If no series was requested, the wait took a quarter of a second, and one probe is due.
            burst = std::mem::take(&mut state.burst).max(1);
        }
    }

    /// Connects to all addresses of the controller and returns the socket of the one that answers fastest. Tries again
    /// until an address answers; `None` if the prober is stopped first.
    fn connect_to_fastest_address(&mut self) -> Option<UdpSocket> {
        // An address without a route from this machine fails at `connect` and is left out.
        let sockets: Vec<UdpSocket> = self.server.at.iter().filter_map(|to| connect_socket(*to)).collect();
        let mut timeout = FIRST_TIMEOUT;
        while !self.shared.lock_prober_state().over {
            let mut best: Option<(Nanos, usize)> = None;
            for (index, socket) in sockets.iter().enumerate() {
                // The faster one of two exchanges counts: the first also includes looking up route and neighbour.
                let took = self.exchange_probe(socket).map(|it| it.back.since(it.sent));
                let quickest = took
                    .into_iter()
                    .chain(self.exchange_probe(socket).map(|it| it.back.since(it.sent)))
                    .min();
                best = quickest.map(|took| (took, index)).into_iter().chain(best).min();
            }
            if let Some((_, index)) = best {
                return sockets.into_iter().nth(index);
            }
            // An address may report at once that no program listens (ECONNREFUSED); without a pause the loop
            // would not wait.
            std::thread::sleep(FIRST_TIMEOUT);
            timeout = (timeout * 2).min(MAX_ANSWER_TIMEOUT);
            for socket in &sockets {
                // The socket that is chosen keeps this timeout, because its later probes take the same path.
                socket.set_read_timeout(Some(timeout)).ok()?;
            }
        }
        None
    }

    fn probe_server_once(&mut self, socket: &UdpSocket) {
        if let Some(exchange) = self.exchange_probe(socket) {
            self.shared.lock_prober_state().probes.add_exchange(&exchange);
        }
    }

    /// Sends one probe and waits for its answer; `None` if no answer arrives in time.
    fn exchange_probe(&mut self, socket: &UdpSocket) -> Option<ClockExchange> {
        // No number is used twice, so a late answer cannot pass for the current one.
        self.number += 1;
        let number = self.number;
        let key_number = self.server.key_number;
        let question = ClockProbe::Question { number, key_number }.to_sealed_bytes(&self.server.key);
        // The question is sealed before the clock is read: the HMAC must not count as travel time.
        let sent = now();
        socket.send(&question).ok()?;
        // One byte more than a probe: a longer datagram is cut to a length that no probe has.
        let mut bytes = [0; CLOCK_PROBE_BYTES + 1];
        loop {
            let length = socket.recv(&mut bytes).ok()?;
            let back: MonoTime = now();
            match ClockProbe::from_sealed_bytes(&bytes[..length], &self.server.key) {
                Some(ClockProbe::Answer { number: of, heard, answered }) if of == number => {
                    return Some(ClockExchange { sent, heard, answered, back });
                }
                // A late answer to an earlier question, or a foreign datagram.
                _ if back.since(sent).to_std() > MAX_ANSWER_TIMEOUT => return None,
                _ => {}
            }
        }
    }
}

fn connect_socket(to: SocketAddr) -> Option<UdpSocket> {
    let from: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(from).ok()?;
    socket.connect(to).ok()?;
    socket.set_read_timeout(Some(FIRST_TIMEOUT)).ok()?;
    Some(socket)
}
