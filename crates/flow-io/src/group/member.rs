//! The thread of a member: it receives the advertisements of the other members, runs the election, and sends
//! advertisements of its own.

use super::orders::RoleCommandSource;
use super::steady::{
    PeerClockOffsets, SteadyClockOffset, boottime_now, group_time_ns, shift_time, shift_times,
};
use super::transit::TransitDelays;
use super::{
    ADVERTISEMENT_BYTES, AdvertisementCodec, GroupError, GroupOptions, GroupRoleHandle, GroupStatus,
    PeerStatus, RoleSwitch,
};
use crossbeam_channel::bounded;
use packetrig_flow::group::{Advertisement, AdvertisementOutcome, GroupElection, MeterCoverage, RoleChange};
use packetrig_sys::udp::PeerSocket;
use packetrig_sys::{clock, sched};
use packetrig_units::{MonoTime, Nanos, clamp_to_u64};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::info;

/// Longest wait of the thread before it checks whether to end.
const END_CHECK_INTERVAL_NS: u64 = 50_000_000;
/// Interval at which the thread reads the state file, if a state file orders the role.
const ORDER_FILE_CHECK_INTERVAL_NS: u64 = 10_000_000;
/// Maximum number of datagrams that are received before the election continues: a flood of datagrams must not keep
/// the member from advertising.
const MAX_DATAGRAMS_PER_ROUND: usize = 256;
/// Interval of the published status. Changes of the role are published at once.
const STATUS_INTERVAL: Nanos = Nanos::from_millis(50);
/// A farewell is an advertisement that this member leaves. It is sent this many times: if a single one were lost, the
/// other members would wait for the detection time.
const FAREWELL_COUNT: usize = 3;

/// A running member. When it is dropped, it leaves the group with a farewell.
#[derive(Debug)]
pub struct GroupMember {
    role_handle: GroupRoleHandle,
    address: SocketAddr,
    flags: Arc<EndFlags>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct EndFlags {
    is_over: AtomicBool,
    is_silent: AtomicBool,
}

impl GroupMember {
    /// Joins the group as a standby.
    pub fn join_group(options: GroupOptions, coverage: MeterCoverage) -> Result<Self, GroupError> {
        options.check_consistency()?;
        let groups: Vec<IpAddr> =
            options.peers.iter().map(SocketAddr::ip).filter(IpAddr::is_multicast).collect();
        let socket = PeerSocket::bind_and_join(options.listen, &groups, options.interface.as_deref())?;
        let address = socket.address()?;
        let orders = RoleCommandSource::open_role_order_source(&options.orders)?;
        let now = boottime_now();
        // A random number marks this start. Without it, peers would take a restarted meter's advertisements for
        // repetitions of earlier ones.
        let boot = RandomState::new().hash_one((&options.name, address, now.as_nanos()));
        let election = GroupElection::new(options.election_options(), boot, coverage, now);
        let role_handle = GroupRoleHandle::new(initial_status(&options, coverage));
        let flags = Arc::<EndFlags>::default();
        let thread = MemberThread {
            codec: AdvertisementCodec::new(&options.name, options.key.clone(), options.clock_tolerance),
            options,
            socket,
            orders,
            election,
            role_handle: role_handle.clone(),
            flags: Arc::clone(&flags),
            addresses: BTreeMap::new(),
            clocks: PeerClockOffsets::default(),
            transits: TransitDelays::default(),
            wall: SteadyClockOffset::default(),
            active_heard_at: None,
            reported_at: now,
        };
        let builder = std::thread::Builder::new().name("group".into());
        let (started, has_started) = bounded(1);
        let spawned = builder.spawn(move || {
            // Both calls only make wake-ups more punctual. Without the rights for them, the detection time must be longer.
            drop(sched::raise_thread_priority());
            drop(clock::tighten_timer_slack());
            started.send(()).unwrap_or_default();
            thread.run_until_stopped();
        });
        let thread = spawned.map_err(GroupError::Thread)?;
        // Waits for the thread, because a sandbox that this process enters next may forbid these calls.
        has_started.recv().unwrap_or_default();
        Ok(Self { role_handle, address, flags, thread: Some(thread) })
    }

    pub const fn role_handle(&self) -> &GroupRoleHandle {
        &self.role_handle
    }

    /// Address on which the member listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Leaves the group with a farewell. The caller must set the final watermark before, because the
    /// successor replays from there.
    /// Returns `false` if the thread panicked.
    pub fn leave_group(mut self) -> bool {
        self.stop_thread()
    }

    /// Ends without a farewell, as a killed process would.
    pub fn stop_silently(mut self) -> bool {
        self.flags.is_silent.store(true, Ordering::Release);
        self.stop_thread()
    }

    fn stop_thread(&mut self) -> bool {
        self.flags.is_over.store(true, Ordering::Release);
        let ended = self.thread.take().is_none_or(|thread| thread.join().is_ok());
        // A thread that has sent its farewell has done this already. A thread that panicked or was silenced has not.
        self.role_handle.end_membership();
        ended
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

fn initial_status(options: &GroupOptions, coverage: MeterCoverage) -> GroupStatus {
    GroupStatus {
        priority: options.election.priority,
        ..GroupStatus::new_standby(&options.name, options.election.meter, coverage)
    }
}

/// Converts the times of a change to the wall clock, for displays and collectors.
fn convert_to_wall_clock(change: RoleChange, offset: i64) -> RoleChange {
    match change {
        RoleChange::BecameActive { term, replay_from_ns } => {
            RoleChange::BecameActive { term, replay_from_ns: shift_time(replay_from_ns, offset) }
        }
        RoleChange::BecameStandby { active } => RoleChange::BecameStandby { active },
    }
}

struct MemberThread {
    options: GroupOptions,
    codec: AdvertisementCodec,
    socket: PeerSocket,
    orders: RoleCommandSource,
    election: GroupElection,
    role_handle: GroupRoleHandle,
    flags: Arc<EndFlags>,
    /// Sender address of each peer's last advertisement.
    addresses: BTreeMap<u32, SocketAddr>,
    clocks: PeerClockOffsets,
    transits: TransitDelays,
    /// Offset from the time of the group to the wall clock.
    wall: SteadyClockOffset,
    /// Time of the last advertisement of an active member; `None` if there was none since this member's start.
    active_heard_at: Option<MonoTime>,
    reported_at: MonoTime,
}

impl MemberThread {
    fn run_until_stopped(mut self) {
        info!(group = self.options.name, meter = self.options.election.meter, "meter starts as a standby");
        while !self.flags.is_over.load(Ordering::Acquire) {
            self.apply_inputs();
            self.apply_latest_order();
            self.receive_advertisements();
            self.advance_election();
            self.wait_for_input();
        }
        // The export sets its final watermark just before the end, and the farewell must have it.
        self.apply_inputs();
        if !self.flags.is_silent.load(Ordering::Acquire) {
            self.send_farewell();
        }
    }

    fn apply_inputs(&mut self) {
        let inputs = self.role_handle.inputs();
        // The coverage comes first: a loss of packets counts before the watermarks that follow it.
        self.election.set_coverage(inputs.coverage);
        self.election.set_can_export(inputs.can_export);
        self.election.set_ending(inputs.is_ending);
        self.election.set_seen_packets(inputs.seen);
        if let Some((term, ns)) = inputs.exported {
            self.election.set_watermark(term, ns);
        }
    }

    fn apply_latest_order(&mut self) {
        let order = self.orders.poll_ordered_role();
        // If no order can be read, the role stays: a fault of the other program must not stop the export.
        if let Ok(Some(role)) = &order {
            self.election.set_ordered_role(*role);
        }
        self.role_handle.update_status(|status| status.order_error = order.err());
    }

    fn receive_advertisements(&mut self) {
        // The buffer has one byte more than is valid, so that longer datagrams are not cut to valid ones.
        let mut buffer = [0; ADVERTISEMENT_BYTES + 1];
        for _ in 0..MAX_DATAGRAMS_PER_ROUND {
            // A broken socket receives nothing. Another member takes over, or this member does, and
            // no record is lost.
            let Ok(Some((length, from))) = self.socket.receive_datagram(&mut buffer) else { return };
            self.on_datagram(&buffer[..length], from);
        }
    }

    fn on_datagram(&mut self, bytes: &[u8], from: SocketAddr) {
        match self.codec.decode_advertisement(bytes, clock::wall_clock_ns()) {
            Ok((sent, sent_ns)) => {
                let tolerance = self.options.clock_tolerance;
                let mut advertisement =
                    self.clocks.convert_to_group_clock(&sent, sent_ns, group_time_ns(), tolerance);
                let now = boottime_now();
                // The datagram may have waited on its way, or in the socket. Until that delay is known, the packet
                // count of the advertisement proves no loss.
                let delay = self.transits.record_arrival_and_delay(sent.meter, sent_ns, now);
                advertisement.seen_all_ago += delay.unwrap_or(Nanos::MAX);
                let outcome = self.election.on_advertisement(&advertisement, now);
                if outcome == AdvertisementOutcome::Accepted {
                    // The report of a takeover needs this value: the time for which no active member had been heard.
                    if advertisement.role.is_active() {
                        self.active_heard_at = Some(boottime_now());
                    }
                    self.addresses.insert(advertisement.meter, from);
                }
                self.role_handle.update_status(|status| status.dropped.count_outcome(outcome));
            }
            Err(reason) => self.role_handle.update_status(|status| status.dropped.count_dropped(reason)),
        }
    }

    fn advance_election(&mut self) {
        // The time of sending is read before the time to which the ages of the advertisement refer: a pause in between
        // then counts as delay.
        let sent_ns = clock::wall_clock_ns();
        let now = boottime_now();
        let step = self.election.tick(now);
        // The role is published before the advertisement: when peers learn of a new role, this meter follows it
        // already.
        self.role_handle.publish_role(step.change, self.election.watermark(), self.election.export_until());
        if let Some(advertisement) = step.advertisement {
            self.send_advertisement(&advertisement, sent_ns);
        }
        match step.change {
            Some(RoleChange::BecameActive { term, .. }) => info!(?term, "meter is active: it exports"),
            Some(RoleChange::BecameStandby { active }) => info!(active, "meter is a standby"),
            None => {}
        }
        if step.change.is_some() || now >= self.reported_at + STATUS_INTERVAL {
            self.reported_at = now;
            let silent_for = self.active_heard_at.map(|at| now.since(at));
            let offset = self.update_wall_offset();
            let switch = |change| RoleSwitch {
                at_wall_ns: clock::wall_clock_ns(),
                silent_for,
                change: convert_to_wall_clock(change, offset),
            };
            self.publish_status(now, step.change.map(switch));
        }
    }

    fn update_wall_offset(&mut self) -> i64 {
        self.wall.update_offset(group_time_ns(), clock::wall_clock_ns(), self.options.clock_tolerance)
    }

    fn send_advertisement(&mut self, advertisement: &Advertisement, sent_ns: u64) {
        // On the wire, times are those of the wall clock, see `steady`.
        let advertisement = shift_times(advertisement, self.update_wall_offset());
        let bytes = self.codec.encode_advertisement(&advertisement, sent_ns);
        let failures = self
            .options
            .peers
            .iter()
            // An unreachable peer only raises a counter. The other peers still get their datagram.
            .filter(|peer| self.socket.send_datagram(&bytes, **peer).is_err())
            .count();
        self.role_handle.update_status(|status| {
            status.sent += 1;
            status.send_failures += clamp_to_u64(failures);
        });
    }

    fn publish_status(&mut self, now: MonoTime, switch: Option<RoleSwitch>) {
        let offset = self.update_wall_offset();
        let peers = self.election.peers().map(|peer| PeerStatus {
            meter: peer.advertisement.meter,
            address: self.addresses.get(&peer.advertisement.meter).copied(),
            role: peer.advertisement.role,
            is_alive: self.election.is_alive(peer, now),
            is_ready: peer.advertisement.is_ready,
            seen_packets: peer.advertisement.seen_packets,
            priority: peer.advertisement.priority,
            term: peer.advertisement.term,
            watermark_ns: shift_time(peer.advertisement.watermark_ns, offset),
            silent_for: now.since(peer.heard_at),
        });
        let peers: Vec<PeerStatus> = peers.collect();
        let inputs = self.role_handle.inputs();
        self.role_handle.update_status(|status| {
            status.role = self.election.role();
            status.is_ready = self.election.is_ready();
            status.is_blind = self.election.is_blind();
            status.copy_comparison = self.election.copy_comparison(now);
            status.can_export = inputs.can_export;
            status.seen_packets = inputs.seen.packets;
            status.coverage = inputs.coverage;
            status.watermark_ns = self.election.watermark().map(|ns| shift_time(ns, offset));
            status.active_peer = self.election.active_peer(now);
            status.peers = peers;
            if let Some(switch) = switch {
                status.record_switch(switch);
            }
        });
    }

    fn wait_for_input(&self) {
        let now = boottime_now();
        let look_ns =
            if self.orders.is_file() { ORDER_FILE_CHECK_INTERVAL_NS } else { END_CHECK_INTERVAL_NS };
        // `since` of a time that has passed is zero, so an overdue deadline does not wait.
        let left_ns = self.election.next_deadline(now).since(now).as_u64().min(look_ns);
        // An active member leaves received datagrams in the socket until its next advertisement is due, because
        // each wake-up costs as much as an advertisement. A standby wakes at once: it must know exactly when the
        // active member's advertisement arrived.
        let is_deaf = self.election.role().is_active() && self.orders.wait_descriptor().is_none();
        if is_deaf {
            std::thread::sleep(Duration::from_nanos(left_ns));
        } else if self.socket.wait_for_input(self.orders.wait_descriptor(), left_ns).is_err() {
            // Without a wait, this loop would use a whole processor.
            std::thread::sleep(Duration::from_nanos(ORDER_FILE_CHECK_INTERVAL_NS));
        }
    }

    fn send_farewell(mut self) {
        let farewell = self.election.clone().into_last_advertisement(boottime_now());
        // This meter stops exporting before it sends the farewell, because the successor may export at once.
        self.role_handle.end_membership();
        // Peers drop all farewells after the first one as repeated.
        for _ in 0..FAREWELL_COUNT {
            self.send_advertisement(&farewell, clock::wall_clock_ns());
        }
    }
}
