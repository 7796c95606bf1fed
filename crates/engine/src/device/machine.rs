//! Behaviour of a port's emulated interfaces: which frames they send, on which received frame or at which time. Pure:
//! the time is an argument.

use super::frames::{self, BROADCAST_MAC, DeviceFrame, DeviceMessage, EchoHeader, Endpoints};
use crate::rig::OwnerPermit;
use packetrig_plan::device::{DeviceInterface, DeviceNeighbour, Mac};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::tag::{self, TagForm, TagKey};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Shortest and longest pause between two requests for the same address.
const MIN_REQUEST_PAUSE: Nanos = Nanos::from_millis(250);
const MAX_REQUEST_PAUSE: Nanos = Nanos::from_millis(4_000);
/// Interval between two requests to a known neighbour.
const NEIGHBOUR_REFRESH_INTERVAL: Nanos = Nanos::from_millis(30_000);
/// Interval between two echo requests of a ping.
const PING_RETRY_INTERVAL: Nanos = Nanos::from_millis(500);
/// Maximum number of answers per second. No regular neighbour sends more requests.
const MAX_ANSWERS: u32 = 2_000;
const SECOND: Nanos = Nanos::from_millis(1_000);
const PING_PAYLOAD: &[u8; 32] = b"packetrig ping 0123456789abcdef.";

/// State of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingState {
    Waiting,
    Succeeded,
    /// Not answered in time, or the address is unreachable.
    Failed,
}

#[derive(Clone, Debug)]
struct FoundNeighbour {
    mac: Option<Mac>,
    /// Time of the next request, and the pause after it.
    ask_at: MonoTime,
    pause: Nanos,
}

#[derive(Clone, Debug)]
struct PendingPing {
    to: IpAddr,
    route: PingRoute,
    id: u16,
    sequence: u16,
    send_at: MonoTime,
    give_up: MonoTime,
    state: PingState,
}

#[derive(Clone, Copy, Debug)]
enum NextHop {
    Asked(DeviceNeighbour),
    Given(usize, Mac),
}

#[derive(Clone, Copy, Debug)]
struct PingRoute {
    from: IpAddr,
    via: NextHop,
}

#[derive(Debug)]
pub struct DeviceMachine {
    key: TagKey,
    interfaces: BTreeMap<usize, DeviceInterface>,
    found: BTreeMap<DeviceNeighbour, FoundNeighbour>,
    pings: BTreeMap<u64, PendingPing>,
    next_ping: u64,
    on: bool,
    /// Start of the second in which answers are counted, and the number of answers in it.
    answers: (MonoTime, u32),
    /// Permit that decides which addresses are answered; with `None` all are.
    permit: Option<Arc<dyn OwnerPermit>>,
}

impl PendingPing {
    fn echo_request(&self, interface: &DeviceInterface, mac: Mac) -> Option<Vec<u8>> {
        let ends = Endpoints { from: self.route.from, to: self.to };
        let echo = EchoHeader { reply: false, id: self.id, sequence: self.sequence };
        frames::build_echo_frame(interface, mac, ends, echo, PING_PAYLOAD)
    }

    /// Returns whether a reply from one address to another answers this ping.
    fn is_answered_by(&self, id: u16, from: IpAddr, to: IpAddr) -> bool {
        self.state == PingState::Waiting && self.id == id && self.to == from && self.route.from == to
    }
}

impl DeviceMachine {
    /// Creates a machine for these interfaces, by their index in the plan; switched off. Frames with a long tag of
    /// `key` are ignored.
    pub fn new(key: TagKey, interfaces: BTreeMap<usize, DeviceInterface>) -> Self {
        let mut machine = Self {
            key,
            interfaces,
            found: BTreeMap::new(),
            pings: BTreeMap::new(),
            next_ping: 0,
            on: false,
            answers: (MonoTime::default(), 0),
            permit: None,
        };
        // Gateways are always resolved: pings and streams to other networks need them.
        let gateways: Vec<DeviceNeighbour> =
            machine.interfaces.iter().flat_map(|(i, of)| gateways_to_resolve(*i, of)).collect();
        for neighbour in gateways {
            machine.request_neighbour(neighbour, MonoTime::default());
        }
        machine
    }

    /// With a permit, answers only requests from addresses that the owner of the node allows, and from link-local and
    /// unspecified addresses, which never leave the link.
    #[must_use]
    pub(crate) fn with_permit(self, permit: Option<Arc<dyn OwnerPermit>>) -> Self {
        Self { permit, ..self }
    }

    fn is_answer_permitted(&self, address: IpAddr) -> bool {
        let of_link = match address {
            IpAddr::V4(four) => four.is_link_local() || four.is_unspecified(),
            IpAddr::V6(six) => six.is_unicast_link_local() || six.is_unspecified(),
        };
        of_link || self.permit.as_ref().is_none_or(|permit| permit.allows_address(address))
    }

    /// With `on`, the interfaces announce their addresses, answer, and send requests. Otherwise they are silent
    /// and forget learned addresses.
    pub fn set_interfaces_enabled(&mut self, on: bool, now: MonoTime, out: &mut Vec<Vec<u8>>) {
        if self.on == on {
            return;
        }
        self.on = on;
        for found in self.found.values_mut() {
            *found = FoundNeighbour { mac: None, ask_at: now, pause: MIN_REQUEST_PAUSE };
        }
        if on {
            self.interfaces.values().for_each(|interface| announce_addresses(interface, out));
            self.handle_timeouts(now, out);
        }
    }

    /// Sends requests for this neighbour from now on: often until its MAC address is known, then every 30 s.
    pub fn request_neighbour(&mut self, neighbour: DeviceNeighbour, now: MonoTime) {
        let new = FoundNeighbour { mac: None, ask_at: now, pause: MIN_REQUEST_PAUSE };
        self.found.entry(neighbour).or_insert(new);
    }

    /// Returns the requested neighbours; found neighbours have their MAC address.
    pub fn neighbours(&self) -> impl Iterator<Item = (DeviceNeighbour, Option<Mac>)> {
        self.found.iter().map(|(neighbour, found)| (*neighbour, found.mac))
    }

    /// Starts a ping from address number `address` of an interface to `to`. Returns the number of the ping, for
    /// [`Self::ping_state`]. A ping without a route has failed at once.
    pub fn start_ping(
        &mut self,
        interface: usize,
        address: usize,
        to: IpAddr,
        now: MonoTime,
        within: Nanos,
    ) -> u64 {
        let number = self.next_ping;
        self.next_ping += 1;
        let route = self.find_route(interface, address, to);
        if let Some(PingRoute { via: NextHop::Asked(neighbour), .. }) = route {
            self.request_neighbour(neighbour, now);
        }
        // A ping without a route is stored as failed, so that a query of its number finds a state.
        let state = if route.is_some() { PingState::Waiting } else { PingState::Failed };
        let route = route.unwrap_or(PingRoute { from: to, via: NextHop::Given(interface, [0; 6]) });
        // An id has 16 bits; the constant makes a clash with other programs' pings unlikely.
        let [.., high, low] = number.to_be_bytes();
        let id = u16::from_be_bytes([high, low]) ^ 0x7072;
        let ping = PendingPing { to, route, id, sequence: 0, send_at: now, give_up: now + within, state };
        self.pings.insert(number, ping);
        number
    }

    /// Finds the source address and the next hop of a ping; `None` if the address has no route to `to`.
    fn find_route(&self, interface: usize, address: usize, to: IpAddr) -> Option<PingRoute> {
        let source = self.interfaces.get(&interface)?.addresses.get(address)?;
        if source.ip.is_ipv4() != to.is_ipv4() {
            return None;
        }
        // With a gateway MAC address in the plan, every frame goes to that address, also to a neighbour on the link.
        let via = match source.gateway_mac {
            Some(mac) => NextHop::Given(interface, mac),
            None if source.is_on_link(to) => NextHop::Asked(DeviceNeighbour { interface, address, ip: to }),
            None => NextHop::Asked(DeviceNeighbour { interface, address, ip: source.gateway? }),
        };
        Some(PingRoute { from: source.ip, via })
    }

    /// Returns the state of a ping; `None` if none has this number.
    pub fn ping_state(&self, number: u64) -> Option<PingState> {
        self.pings.get(&number).map(|ping| ping.state)
    }

    pub fn remove_ping(&mut self, number: u64) {
        self.pings.remove(&number);
    }

    /// Returns the next time at which [`Self::handle_timeouts`] must run.
    pub fn next_deadline(&self) -> Option<MonoTime> {
        let asks = self.found.values().map(|found| found.ask_at).filter(|_| self.on);
        let waiting = self.pings.values().filter(|ping| ping.state == PingState::Waiting);
        asks.chain(waiting.map(|ping| ping.send_at.min(ping.give_up))).min()
    }

    /// Sends requests and pings that are due, and fails pings that have timed out.
    pub fn handle_timeouts(&mut self, now: MonoTime, out: &mut Vec<Vec<u8>>) {
        if self.on {
            for (neighbour, found) in &mut self.found {
                if found.ask_at <= now {
                    found.ask_at = now + found.pause;
                    // Doubled each time, so that thousands of interfaces without a neighbour do not flood the link.
                    found.pause = Nanos::new(found.pause.as_u64() * 2).min(MAX_REQUEST_PAUSE);
                    out.extend(
                        self.interfaces
                            .get(&neighbour.interface)
                            .and_then(|of| build_neighbour_request(of, *neighbour)),
                    );
                }
            }
        }
        for ping in self.pings.values_mut().filter(|ping| ping.state == PingState::Waiting) {
            if ping.give_up <= now {
                ping.state = PingState::Failed;
            } else if ping.send_at <= now {
                let mac = match ping.route.via {
                    NextHop::Given(_, mac) => Some(mac),
                    NextHop::Asked(neighbour) => self.found.get(&neighbour).and_then(|found| found.mac),
                };
                let interface = match ping.route.via {
                    NextHop::Given(interface, _) => self.interfaces.get(&interface),
                    NextHop::Asked(neighbour) => self.interfaces.get(&neighbour.interface),
                };
                // The ping is retried soon while the neighbour is being resolved.
                ping.send_at = now + if mac.is_some() { PING_RETRY_INTERVAL } else { Nanos::from_millis(10) };
                if let (Some(mac), Some(interface), true) = (mac, interface, self.on) {
                    ping.sequence += 1;
                    out.extend(ping.echo_request(interface, mac));
                }
            }
        }
    }

    /// Handles a frame that arrived at the port.
    pub fn on_frame(&mut self, bytes: &[u8], now: MonoTime, out: &mut Vec<Vec<u8>>) {
        // Only the long tag counts. The short one has a mark of 16 bits and nothing else to check, so one in 65 536
        // foreign frames would pass for a test frame and stay unanswered.
        if !self.on || tag::tag_candidates(bytes, self.key).any(|found| found.tag.form == TagForm::Full) {
            return;
        }
        let Some(frame) = DeviceFrame::parse_frame(bytes) else { return };
        let Some(message) = frame.parse_message() else { return };
        match &message {
            DeviceMessage::Asks { sender, mac, target } => {
                // As in RFC 826, a request updates a known neighbour whatever address it asks for.
                if let Some(mac) = mac {
                    self.learn_neighbour(&frame, *sender, *mac, now);
                }
                let Some(interface) = self
                    .find_interface_with_address(&frame, *target)
                    .filter(|_| self.is_answer_permitted(*sender))
                else {
                    return;
                };
                let answer = build_neighbour_answer(interface, *target, *sender, mac.unwrap_or(frame.from));
                self.push_answer_within_limit(now, answer, out);
            }
            DeviceMessage::Tells { target, mac } => self.learn_neighbour(&frame, *target, *mac, now),
            DeviceMessage::Echo { reply: true, from, to, id, .. } => {
                let is_ours = self.find_interface_with_address(&frame, *to).is_some();
                let mut pings = self.pings.values_mut();
                // Several pings may have the same target; id and addresses select one.
                if let Some(ping) = pings.find(|ping| is_ours && ping.is_answered_by(*id, *from, *to)) {
                    ping.state = PingState::Succeeded;
                }
            }
            DeviceMessage::Echo { reply: false, from, to, id, sequence, data } => {
                let Some(interface) = self.find_interface_with_address(&frame, *to) else { return };
                if interface.mac != frame.to || !self.is_answer_permitted(*from) {
                    return;
                }
                let ends = Endpoints { from: *to, to: *from };
                let echo = EchoHeader { reply: true, id: *id, sequence: *sequence };
                let answer = frames::build_echo_frame(interface, frame.from, ends, echo, data);
                self.push_answer_within_limit(now, answer, out);
            }
        }
    }

    /// Finds the interface on the frame's VLAN that has the address `ip`. `None` unless the frame was sent to the MAC
    /// address of this interface or to a group address.
    fn find_interface_with_address(&self, frame: &DeviceFrame<'_>, ip: IpAddr) -> Option<&DeviceInterface> {
        // A frame of this interface may come back through the device under test. It is not answered.
        self.interfaces.values().find(|interface| {
            is_on_vlan(interface, frame)
                && interface.mac != frame.from
                && is_frame_to_interface_or_group(interface, frame)
                && interface_has_address(interface, ip)
        })
    }

    /// Records the MAC address of a neighbour that was requested.
    fn learn_neighbour(&mut self, frame: &DeviceFrame<'_>, ip: IpAddr, mac: Mac, now: MonoTime) {
        // No station has a group address or zeros; test traffic to such an address would be flooded to every port.
        if mac[0] & 1 == 1 || mac == [0; 6] {
            return;
        }
        let interfaces = &self.interfaces;
        let concerned = self.found.iter_mut().filter(|(neighbour, _)| {
            let of = interfaces.get(&neighbour.interface);
            neighbour.ip == ip
                && of.is_some_and(|of| is_on_vlan(of, frame) && is_frame_to_interface_or_group(of, frame))
        });
        for (_, found) in concerned {
            *found = FoundNeighbour {
                mac: Some(mac),
                ask_at: now + NEIGHBOUR_REFRESH_INTERVAL,
                pause: MIN_REQUEST_PAUSE,
            };
        }
    }

    fn push_answer_within_limit(&mut self, now: MonoTime, answer: Option<Vec<u8>>, out: &mut Vec<Vec<u8>>) {
        // Answers are counted per second: this is less exact than a token bucket, but two numbers are enough to
        // keep a storm of requests from filling the transmit ring.
        if now.since(self.answers.0) >= SECOND {
            self.answers = (now, 0);
        }
        self.answers.1 += 1;
        if self.answers.1 <= MAX_ANSWERS {
            out.extend(answer);
        }
    }
}

/// Returns the gateways of an interface for which the plan gives no MAC address.
pub(super) fn gateways_to_resolve(
    index: usize,
    interface: &DeviceInterface,
) -> impl Iterator<Item = DeviceNeighbour> {
    let addresses = interface.addresses.iter().enumerate();
    addresses
        .filter(|(_, of)| of.gateway_mac.is_none())
        .filter_map(move |(address, of)| Some(DeviceNeighbour { interface: index, address, ip: of.gateway? }))
}

/// Returns whether a frame was sent to the MAC address of this interface or to a group address.
fn is_frame_to_interface_or_group(interface: &DeviceInterface, frame: &DeviceFrame<'_>) -> bool {
    frame.to == interface.mac || frame.to[0] & 1 == 1
}

fn interface_has_address(interface: &DeviceInterface, ip: IpAddr) -> bool {
    interface.addresses.iter().any(|address| address.ip == ip)
        || own_link_local_address(interface).is_some_and(|local| IpAddr::V6(local) == ip)
}

/// Returns whether a frame is on the VLAN of this interface.
fn is_on_vlan(interface: &DeviceInterface, frame: &DeviceFrame<'_>) -> bool {
    interface.vlans.iter().map(|tag| (tag.tpid, tag.id)).eq(frame.tags.iter().copied())
}

/// Returns the link-local address of an interface; `None` if the interface has no IPv6 address.
fn own_link_local_address(interface: &DeviceInterface) -> Option<Ipv6Addr> {
    interface
        .addresses
        .iter()
        .any(|address| address.ip.is_ipv6())
        .then(|| frames::link_local_address(interface.mac))
}

fn announce_addresses(interface: &DeviceInterface, out: &mut Vec<Vec<u8>>) {
    for address in &interface.addresses {
        out.push(match address.ip {
            // A gratuitous ARP request (RFC 5227): sender and target are the same address.
            IpAddr::V4(ip) => frames::build_arp_frame(interface, 1, ip, BROADCAST_MAC, ip),
            IpAddr::V6(ip) => frames::build_neighbour_advertisement(interface, ip, None),
        });
    }
    out.extend(
        own_link_local_address(interface)
            .map(|ip| frames::build_neighbour_advertisement(interface, ip, None)),
    );
}

fn build_neighbour_request(interface: &DeviceInterface, neighbour: DeviceNeighbour) -> Option<Vec<u8>> {
    match (interface.addresses.get(neighbour.address)?.ip, neighbour.ip) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            Some(frames::build_arp_frame(interface, 1, from, BROADCAST_MAC, to))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // Source and target have the same scope (RFC 6724 section 5, rule 2).
            let from =
                if to.is_unicast_link_local() { frames::link_local_address(interface.mac) } else { from };
            Some(frames::build_neighbour_solicitation(interface, from, to))
        }
        _ => None,
    }
}

fn build_neighbour_answer(
    interface: &DeviceInterface,
    target: IpAddr,
    requester: IpAddr,
    mac: Mac,
) -> Option<Vec<u8>> {
    match (target, requester) {
        (IpAddr::V4(target), IpAddr::V4(requester)) => {
            Some(frames::build_arp_frame(interface, 2, target, mac, requester))
        }
        (IpAddr::V6(target), IpAddr::V6(requester)) => {
            // An unspecified source is duplicate address detection; the answer then goes to all nodes (RFC 4861 7.2.4).
            let requester = (!requester.is_unspecified()).then_some((mac, requester));
            Some(frames::build_neighbour_advertisement(interface, target, requester))
        }
        _ => None,
    }
}
