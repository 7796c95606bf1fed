//! State that the threads of a service share: the queue, the clients, and the request to end.
//!
//! Invariant: the lock is held for moments only, never while a thread waits or sends.

use super::admission::{MAX_CLIENTS, max_clients_per_user};
use super::connection::ClientConnection;
use super::flows::SentFlows;
use super::paths::TargetPaths;
use super::ports::ClientPorts;
use super::report::PastClient;
use super::totals::ServiceTotals;
use super::{ServiceInterface, ServiceOptions};
use crate::{Error, now};
use packetrig_probe::PacketRefusal;
use packetrig_probe::service::{ClientId, DueTrain, QueuedTrain, ReleaseQueue, WorkAllowance};
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest time for which the sending thread sleeps without looking for work.
const MAX_WORK_WAIT: Duration = Duration::from_millis(20);
/// Maximum number of disconnected clients whose counts are kept for the result. Each user may have an equal
/// part of them, so that a user who connects again and again does not displace the counts of other users.
const MAX_PAST_CLIENTS: usize = 1024;

/// The state that the lock protects.
#[derive(Debug, Default)]
pub(super) struct SharedState {
    pub(super) queue: ReleaseQueue,
    clients: BTreeMap<ClientId, Arc<ClientConnection>>,
    past: Vec<PastClient>,
    /// Clients that have disconnected since the sending thread last took work.
    gone: Vec<ClientId>,
    error: Option<Error>,
}

pub(super) struct ServiceShared {
    pub(super) interface: ServiceInterface,
    pub(super) options: ServiceOptions,
    pub(super) paths: TargetPaths,
    pub(super) flows: SentFlows,
    pub(super) ports: ClientPorts,
    pub(super) totals: Arc<ServiceTotals>,
    /// Addresses of the interface at which a listener receives answers now; `None`: no listener is open.
    heard: Mutex<Option<BTreeSet<IpAddr>>>,
    state: Mutex<SharedState>,
    /// For each user who has connected, the allowance of work that all clients of the user share.
    allowances: Mutex<BTreeMap<u32, Arc<Mutex<WorkAllowance>>>>,
    /// Signalled when packets were queued or the service is to end.
    changed: Condvar,
    /// True if the service accepts no more packets.
    is_ending: AtomicBool,
    /// True if everything was reported, so that the threads of clients may end.
    has_ended: AtomicBool,
    last_id: AtomicU32,
}

/// Trains that are due, and clients that have disconnected.
pub(super) struct SendingWork {
    pub(super) trains: Vec<DueTrain>,
    pub(super) gone: Vec<ClientId>,
}

pub(super) enum NextSendingWork {
    Work(SendingWork),
    /// No packet became due and no client disconnected until the given time.
    Nothing,
    Ended,
}

impl ServiceShared {
    pub(super) fn new(
        interface: ServiceInterface,
        options: ServiceOptions,
        paths: TargetPaths,
        ports: ClientPorts,
    ) -> Self {
        Self {
            interface,
            options,
            paths,
            flows: SentFlows::default(),
            ports,
            totals: Arc::default(),
            heard: Mutex::default(),
            state: Mutex::default(),
            allowances: Mutex::default(),
            changed: Condvar::new(),
            is_ending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            last_id: AtomicU32::new(0),
        }
    }

    pub(super) fn lock_state(&self) -> MutexGuard<'_, SharedState> {
        // A panic of another thread does not damage the queue: each call of the queue finishes before
        // the lock is released.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the allowance that all clients of a user share. There are few users, so no entry is removed.
    pub(super) fn work_allowance_of_user(&self, user: u32) -> Arc<Mutex<WorkAllowance>> {
        let mut all = self.allowances.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(user).or_insert_with(|| Arc::new(Mutex::new(WorkAllowance::for_user()))))
    }

    pub(super) fn new_client_id(&self) -> ClientId {
        ClientId(self.last_id.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn has_room_for(&self, user: u32) -> bool {
        let state = self.lock_state();
        let of_user = state.clients.values().filter(|client| client.peer.user == user).count();
        of_user < self.max_clients_of_user(user)
    }

    /// Maximum number of clients of a user that are served at a time.
    pub(super) fn max_clients_of_user(&self, user: u32) -> usize {
        if user == 0 { MAX_CLIENTS } else { max_clients_per_user(self.options.user_count()) }
    }

    pub(super) fn add_client(&self, client: &Arc<ClientConnection>) {
        self.lock_state().clients.insert(client.id, Arc::clone(client));
        self.totals.clients.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a client with its queued packets and reserved ports. Its counts are stored for the result,
    /// if there is room.
    pub(super) fn remove_client(&self, client: &ClientConnection) {
        // Removing the ports closes sockets, which takes time, so it is done before the lock is taken.
        self.ports.remove_client(client.id);
        self.totals.clients.fetch_sub(1, Ordering::Relaxed);
        let past = client.to_past_client();
        let mut state = self.lock_state();
        state.queue.remove_client(client.id);
        state.clients.remove(&client.id);
        // The sending thread itself removes its data of the client: only that thread uses the release calendar
        // and the shares of targets.
        state.gone.push(client.id);
        if has_room_for_past(&state.past, past.user, self.options.user_count()) {
            state.past.push(past);
        }
    }

    pub(super) fn find_client(&self, id: ClientId) -> Option<Arc<ClientConnection>> {
        self.lock_state().clients.get(&id).cloned()
    }

    pub(super) fn set_heard_addresses(&self, addresses: Option<BTreeSet<IpAddr>>) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    /// Returns whether a listener receives answers now.
    pub(super) fn receives_answers(&self) -> bool {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns whether a listener receives answers to an address of the interface now.
    pub(super) fn receives_answers_to(&self, address: IpAddr) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.as_ref().is_some_and(|addresses| addresses.contains(&address))
    }

    pub(super) fn client_count(&self) -> usize {
        self.lock_state().clients.len()
    }

    /// Queues a train and wakes the sending thread. Fails if the service is ending or the queue is full.
    pub(super) fn queue_train(&self, train: QueuedTrain) -> Result<(), PacketRefusal> {
        let mut state = self.lock_state();
        // The lock is held here, so the sending thread takes every train that was queued before the end.
        if self.is_ending() {
            return Err(PacketRefusal::Ended);
        }
        state.queue.push_train(train).map_err(|_| PacketRefusal::QueueFull)?;
        // The lock is released first; otherwise the sending thread would wake up only to wait for the lock.
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits until a train is due within `lead` or a client has disconnected, but not longer than until
    /// `until`. Takes the trains that are due within `lead + window`, at most `most`.
    pub(super) fn wait_for_due_trains(
        &self,
        lead: Nanos,
        window: Nanos,
        most: usize,
        until: Option<MonoTime>,
    ) -> NextSendingWork {
        let mut state = self.lock_state();
        while !self.is_ending() {
            let now = now();
            let due = state.queue.next_due_time();
            // For an overdue train the wait is zero, because `since` is never negative.
            let wait =
                due.map_or(MAX_WORK_WAIT, |due| Duration::from_nanos((due - lead).since(now).as_u64()));
            if due.is_some() && wait.is_zero() || !state.gone.is_empty() {
                // Overdue trains leave together with the trains that are due next.
                let trains = state.queue.take_due_trains(now + lead + window, most, now);
                return NextSendingWork::Work(SendingWork { trains, gone: std::mem::take(&mut state.gone) });
            }
            let left = until.map_or(MAX_WORK_WAIT, |until| Duration::from_nanos(until.since(now).as_u64()));
            if left.is_zero() {
                return NextSendingWork::Nothing;
            }
            let waited = self.changed.wait_timeout(state, wait.min(left).min(MAX_WORK_WAIT));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        NextSendingWork::Ended
    }

    /// Closes a target that has refused a packet of a user: for that user, and for all users if it has
    /// refused packets of several users.
    pub(super) fn close_target(&self, target: IpAddr, user: u32) {
        if self.paths.close_target(target, user) {
            // This refusal may close the target for all users, so each user is checked.
            let cancelled = self
                .lock_state()
                .queue
                .cancel_trains_to_target(target, |user| self.paths.is_closed(target, user));
            self.report_unsent_trains(&cancelled, PacketRefusal::NotPermitted);
        }
    }

    /// Reports to clients that their trains were not sent.
    pub(super) fn report_unsent_trains(&self, trains: &[QueuedTrain], why: PacketRefusal) {
        for train in trains {
            if let Some(client) = self.find_client(train.client) {
                client.report_refused(train, why);
            }
        }
    }

    /// Makes the service refuse all further packets, and wakes the sending thread.
    pub(super) fn stop_intake(&self) {
        let state = self.lock_state();
        // The flag is set under the lock, so that each train is either queued before the end or refused, and
        // none is lost.
        self.is_ending.store(true, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Lets the threads of clients end, after everything was reported.
    pub(super) fn end_clients(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Ends the service because of an error.
    pub(super) fn fail_service(&self, error: Error) {
        // The first error is the cause, later ones its consequences.
        self.lock_state().error.get_or_insert(error);
        self.stop_intake();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Takes the trains that still wait when the service ends.
    pub(super) fn take_waiting_trains(&self) -> Vec<QueuedTrain> {
        let due = self.lock_state().queue.take_due_trains(MonoTime::from_nanos(u64::MAX), usize::MAX, now());
        due.into_iter().map(|due| due.train).collect()
    }

    /// Takes the stored counts of the clients, after all threads have ended; fails if an error has ended the service.
    pub(super) fn take_past_clients(&self) -> Result<Vec<PastClient>, Error> {
        let mut state = self.lock_state();
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.past)),
        }
    }
}

/// Returns whether there is room for the counts of one more client of a user.
fn has_room_for_past(past: &[PastClient], user: u32, users: usize) -> bool {
    past.iter().filter(|client| client.user == user).count() < MAX_PAST_CLIENTS / users.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::PacketCounts;

    #[test]
    fn reconnecting_user_leaves_room_for_results_of_others() {
        let client = |user| PastClient {
            name: String::new(),
            user,
            process: 1,
            priority: 0,
            counts: PacketCounts::default(),
            release_error_ns: None,
        };
        let mut past = Vec::new();
        while has_room_for_past(&past, 1, 4) {
            past.push(client(1));
        }
        assert_eq!(past.len(), MAX_PAST_CLIENTS / 4);
        assert!(has_room_for_past(&past, 2, 4) && has_room_for_past(&past, 3, 4));
    }
}
