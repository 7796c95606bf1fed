//! Finds all MAC and IP addresses that the frames of a stream can have as destinations.
//!
//! It does not decide whether a destination is allowed; the node permit of a machine's owner does.
//! [`PlanDestinations::open`] lists reasons why a frame could go to other addresses: for example an EtherType that
//! announces a missing IP header, headers given as bytes, or frames from a file.
//!
//! Invariant: every destination of a frame is in [`PlanDestinations::targets`], or `open` has a reason why it is not.

use crate::recording::FrameOrigin;
use crate::{Plan, Stream};
use packetrig_wire::header::{
    AbsentValue, AddressRole, ComputedField, FieldDef, FieldNotation, FieldSetting, HeaderKind, NumberSpace,
    PacketHeader,
};
use packetrig_wire::pattern::FieldPattern;
use std::net::IpAddr;

/// Maximum number of values in a list; more values become a range.
const MAX_VALUES: u64 = 65_536;
/// EtherTypes of PPPoE. packetrig has no PPPoE header, but the payload of PPPoE can have addresses.
const PPPOE_ETHERTYPES: [u16; 2] = [0x8863, 0x8864];

/// The reason in [`PlanDestinations::open`] for a stream whose destination MAC address is not known yet.
pub const UNKNOWN_MAC_REASON: &str = "its MAC address is resolved when the run starts";

/// The values that a field has in all frames of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValues {
    List(Vec<u128>),
    /// Any value from the first to the last.
    Range(u128, u128),
}

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressFamily {
    Mac,
    Ipv4,
    Ipv6,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanTarget {
    /// Header and field, as in `ipv4.dst`.
    pub field: String,
    pub family: AddressFamily,
    pub values: FieldValues,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanDestinations {
    /// Destination addresses that the frames of the stream can have.
    pub targets: Vec<PlanTarget>,
    /// Reasons why frames could go elsewhere; each a fragment: `its frames are read from a file`.
    pub open: Vec<String>,
}

impl FieldValues {
    fn from_pattern(pattern: &FieldPattern, bits: u32) -> Self {
        // A shift by 128 bits would overflow.
        let mask = if bits >= 128 { u128::MAX } else { (1 << bits) - 1 };
        match pattern {
            // If both bounds fit into the field, all random values are between them.
            FieldPattern::Random { min, max, .. } if *max <= mask && min <= max => Self::Range(*min, *max),
            FieldPattern::Random { .. } => Self::Range(0, mask),
            _ if pattern.period() <= MAX_VALUES => {
                let mut list: Vec<u128> =
                    (0..pattern.period().max(1)).map(|n| pattern.value_at(n, bits)).collect();
                list.sort_unstable();
                list.dedup();
                Self::List(list)
            }
            FieldPattern::Step { start, step, count, down } => {
                let distance = step.checked_mul(u128::from(count - 1));
                let end = distance.and_then(|distance| {
                    // The values of a field wrap around at its width. Steps that wrap have no single end value.
                    if *down { start.checked_sub(distance) } else { start.checked_add(distance) }
                });
                // Steps that wrap around have values at both ends of the field's range.
                match end {
                    Some(end) if *start.max(&end) <= mask => Self::Range(*start.min(&end), *start.max(&end)),
                    _ => Self::Range(0, mask),
                }
            }
            // There are too many values for a list. The whole range is safe: it covers all values that may be sent.
            FieldPattern::Value(_) | FieldPattern::Values(_) => Self::Range(0, mask),
        }
    }

    fn contains_value(&self, value: u128) -> bool {
        match self {
            Self::List(list) => list.contains(&value),
            Self::Range(first, last) => (*first..=*last).contains(&value),
        }
    }
}

fn list_field_values(header: &PacketHeader, field: &FieldDef) -> Option<FieldValues> {
    match (header.field_setting(field.name), field.absent) {
        (Some(FieldSetting::Pattern(pattern)), _) => Some(FieldValues::from_pattern(pattern, field.bits)),
        (None, AbsentValue::Value(value)) => Some(FieldValues::List(vec![value])),
        _ => None,
    }
}

impl Stream {
    /// Finds all addresses that the frames of the stream can have as destinations.
    pub fn find_possible_destinations(&self) -> PlanDestinations {
        let mut reach = PlanDestinations::default();
        let template = match &self.frames {
            FrameOrigin::Made(template) => template,
            FrameOrigin::Recorded(_) => {
                reach.open.push("its frames are read from a file".to_owned());
                return reach;
            }
        };
        if self.awaits.is_some() {
            reach.open.push(UNKNOWN_MAC_REASON.to_owned());
        }
        // OTG: an empty `packet` list means one Ethernet header.
        let plain = [PacketHeader::new(HeaderKind::Ethernet)];
        let headers = &template.spec().headers;
        let headers = if headers.is_empty() { &plain[..] } else { headers.as_slice() };
        reach.add_headers(headers);
        if self.awaits.is_some() {
            // The document gives no destination MAC address, and no frame keeps the default (zeros) that is listed for
            // it. Only the outermost one is removed: inner Ethernet headers keep their addresses.
            if let Some(first) = reach.targets.iter().position(|target| target.family == AddressFamily::Mac) {
                reach.targets.remove(first);
            }
        }
        reach
    }
}

impl PlanDestinations {
    fn add_headers(&mut self, headers: &[PacketHeader]) {
        if !begins_with_destination_mac(headers[0].kind()) {
            self.open.push(format!("its frames begin with {}, not with Ethernet", headers[0].kind().name()));
        }
        // `below_ip` is set after the header itself was checked: an IP header has its own destinations.
        let mut below_ip = false;
        for (index, header) in headers.iter().enumerate() {
            self.add_header(header, headers.get(index + 1).map(PacketHeader::kind), below_ip);
            below_ip |= matches!(header.kind(), HeaderKind::Ipv4 | HeaderKind::Ipv6);
        }
    }

    fn add_header(&mut self, header: &PacketHeader, next: Option<HeaderKind>, below_ip: bool) {
        let kind = header.kind();
        // After an IP header, given bytes are payload: the IP header decides where the packet goes. Before an IP
        // header, they could be any header.
        if kind == HeaderKind::Custom && !below_ip {
            self.open.push("a header of its frames is given as bytes".to_owned());
        }
        for field in kind.fields() {
            // A field that the template computes is skipped: it describes the headers of this packet.
            let Some(values) = list_field_values(header, field) else { continue };
            let name = format!("{}.{}", kind.name(), field.name);
            if let Some(family) = address_family_if_destination(field.form, &values) {
                self.targets.push(PlanTarget { field: name, family, values });
            } else if let Some(space) = find_announced_number_space(field) {
                self.add_announcement(&name, &values, space, next);
            }
        }
    }

    /// Adds a reason to `open` if a type field can announce a header that does not follow. The bytes in its place could
    /// have any destination.
    fn add_announcement(
        &mut self,
        name: &str,
        values: &FieldValues,
        space: NumberSpace,
        next: Option<HeaderKind>,
    ) {
        // The number of the header that does follow is no reason, because the addresses of that header are listed.
        let own = next.map_or(&[][..], |next| space.numbers_of(next));
        let carriers = address_carrying_numbers(space).into_iter();
        let hidden = carriers.filter(|one| values.contains_value((*one).into()) && !own.contains(one)).min();
        if let Some(hidden) = hidden {
            self.open.push(format!(
                "its `{name}` can be {hidden:#06x}, which announces a header that does not follow"
            ));
        }
    }
}

fn begins_with_destination_mac(kind: HeaderKind) -> bool {
    let destination = FieldNotation::Mac(AddressRole::Destination);
    kind.fields().iter().any(|field| field.at == 0 && field.form == destination)
}

/// Family of the addresses in a field if frames go to them; `None` for a source address, for a target address that is 0
/// because the frame asks for it (ARP), and for a field that is no address.
fn address_family_if_destination(form: FieldNotation, values: &FieldValues) -> Option<AddressFamily> {
    match form.address_role()? {
        AddressRole::Source => return None,
        AddressRole::AskedDestination if *values == FieldValues::List(vec![0]) => return None,
        AddressRole::AskedDestination | AddressRole::Destination => {}
    }
    match form {
        FieldNotation::Mac(_) => Some(AddressFamily::Mac),
        FieldNotation::Ipv4(_) => Some(AddressFamily::Ipv4),
        FieldNotation::Ipv6(_) => Some(AddressFamily::Ipv6),
        FieldNotation::Number | FieldNotation::Checksum => None,
    }
}

/// The number space of a field that can announce a header with its own destination; `None` for any other field.
fn find_announced_number_space(field: &FieldDef) -> Option<NumberSpace> {
    match field.absent {
        // An IP packet goes to the destination of its header, and its content is payload.
        AbsentValue::Computed(ComputedField::NextHeader { space: NumberSpace::IpProtocol, .. }) => None,
        AbsentValue::Computed(ComputedField::NextHeader { space, .. }) => Some(space),
        _ => None,
    }
}

/// The numbers of all headers of a number space that can have addresses of their own. Some listed headers have no
/// addresses: this only makes the check stricter.
fn address_carrying_numbers(space: NumberSpace) -> Vec<u16> {
    let numbers = HeaderKind::ALL.into_iter().flat_map(|kind| space.numbers_of(kind)).copied();
    let others = if space == NumberSpace::EtherType { &PPPOE_ETHERTYPES[..] } else { &[] };
    numbers.chain(others.iter().copied()).collect()
}

/// Addresses that the emulated interfaces of a port answer for or resolve: their own addresses and those of their
/// gateways, each with the name of its interface.
pub fn list_interface_addresses(plan: &Plan, port: usize) -> Vec<(String, IpAddr)> {
    let own = plan.interfaces.iter().filter(|interface| interface.port == port);
    own.flat_map(|interface| {
        interface.addresses.iter().flat_map(|address| {
            [Some(address.ip), address.gateway].into_iter().flatten().map(|ip| (interface.name.clone(), ip))
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(packet: &str) -> PlanDestinations {
        let text = format!(
            "{{ports: [{{name: a, location: a}}, {{name: b, location: b}}], flows: [{{name: s, \
             tx_rx: {{choice: port, port: {{tx_name: a, rx_names: [b]}}}}, packet: [{packet}], size: {{fixed: 256}}, \
             rate: {{choice: pps, pps: 1}}}}]}}"
        );
        Plan::from_text(&text).unwrap_or_else(|problems| panic!("{problems}\n{text}")).streams[0]
            .find_possible_destinations()
    }

    fn ips(packet: &str) -> FieldValues {
        let reach = reach(packet);
        assert_eq!(reach.open, Vec::<String>::new());
        reach.targets.into_iter().find(|target| target.family == AddressFamily::Ipv4).unwrap().values
    }

    const ETHERNET: &str = "{choice: ethernet, ethernet: {dst: {choice: value, value: '02:00:00:00:00:02'}}}";

    fn ipv4(dst: &str) -> String {
        format!("{ETHERNET}, {{choice: ipv4, ipv4: {{dst: {dst}}}}}")
    }

    #[test]
    fn header_tables_name_every_destination_and_type() {
        let mut destinations = Vec::new();
        let mut types = Vec::new();
        for kind in HeaderKind::ALL {
            for field in kind.fields() {
                let name = format!("{}.{}", kind.name(), field.name);
                let is_source = field.name == "src" || field.name.starts_with("sender_");
                if let Some(role) = field.form.address_role() {
                    assert_eq!(role == AddressRole::Source, is_source, "{name}");
                }
                if address_family_if_destination(field.form, &FieldValues::Range(0, 1)).is_some() {
                    destinations.push(name);
                } else if find_announced_number_space(field).is_some() {
                    types.push(name);
                }
            }
        }
        // A newer header may add fields. These ones must stay, because permits depend on them.
        let known = [
            "ethernet.dst",
            "ipv4.dst",
            "ipv6.dst",
            "arp.target_hardware_addr",
            "arp.target_protocol_addr",
            "ethernetpause.dst",
            "pfcpause.dst",
        ];
        assert_eq!(known.map(str::to_owned).iter().find(|name| !destinations.contains(name)), None);
        let known = ["ethernet.ether_type", "vlan.tpid", "gre.protocol", "x_geneve.protocol_type"];
        assert_eq!(known.map(str::to_owned).iter().find(|name| !types.contains(name)), None);
        let known = [0x0800, 0x86dd, 0x8100, 0x88a8, 0x9100, 0x8847, 0x8848, 0x8863, 0x8864, 0x6558];
        let numbers = address_carrying_numbers(NumberSpace::EtherType);
        assert_eq!(known.iter().find(|number| !numbers.contains(number)), None);
    }

    #[test]
    fn every_value_of_a_pattern_is_found() {
        let at = |last: u128| 0xc612_0000 + last;
        assert_eq!(ips(&ipv4("{choice: value, value: 198.18.0.9}")), FieldValues::List(vec![at(9)]));
        let values = ips(&ipv4("{choice: values, values: [198.18.0.9, 198.18.0.1]}"));
        assert_eq!(values, FieldValues::List(vec![at(1), at(9)]));
        let step = |count: u64| {
            let pattern = format!("{{start: 198.18.0.9, step: 0.0.0.2, count: {count}}}");
            ips(&ipv4(&format!("{{choice: increment, increment: {pattern}}}")))
        };
        assert_eq!(step(3), FieldValues::List(vec![at(9), at(11), at(13)]));
        assert_eq!(step(100_000), FieldValues::Range(at(9), at(9 + 2 * 99_999)));
        assert_eq!(step(3_000_000_000), FieldValues::Range(0, 0xffff_ffff), "it wraps");
        let down = "{choice: decrement, decrement: {start: 0.2.0.0, step: 0.0.0.1, count: 100000}}";
        assert_eq!(ips(&ipv4(down)), FieldValues::Range(0x2_0000 - 99_999, 0x2_0000));
        assert_eq!(ips(&format!("{ETHERNET}, {{choice: ipv4, ipv4: {{}}}}")), FieldValues::List(vec![0]));
    }

    #[test]
    fn inner_headers_count_too() {
        let inner = ipv4("{choice: value, value: 198.18.0.9}");
        let outer = ipv4("{choice: value, value: 198.18.0.1}");
        let reach =
            reach(&format!("{outer}, {{choice: udp, udp: {{}}}}, {{choice: vxlan, vxlan: {{}}}}, {inner}"));
        let fields: Vec<&str> = reach.targets.iter().map(|target| target.field.as_str()).collect();
        assert_eq!(fields, ["ethernet.dst", "ipv4.dst", "ethernet.dst", "ipv4.dst"]);
        assert_eq!(reach.open, Vec::<String>::new());
    }

    #[test]
    fn possibly_hidden_address_makes_reach_open() {
        let bytes = "{choice: custom, custom: {bytes: '4500'}}";
        let open = |packet: &str| reach(packet).open;
        assert_eq!(open(&format!("{ETHERNET}, {bytes}")), ["a header of its frames is given as bytes"]);
        assert_eq!(
            open(&format!("{}, {bytes}", ipv4("{choice: value, value: 198.18.0.9}"))),
            Vec::<String>::new()
        );
        assert_eq!(open(bytes).len(), 2);
        let announced = "{choice: ethernet, ethernet: {ether_type: {choice: value, value: 2048}}}";
        assert!(open(announced)[0].contains("`ethernet.ether_type` can be 0x0800"));
        assert_eq!(open(&format!("{announced}, {{choice: ipv4, ipv4: {{}}}}")), Vec::<String>::new());
        let arp = "{choice: ethernet, ethernet: {ether_type: {choice: value, value: 2054}}}";
        assert!(open(arp)[0].contains("`ethernet.ether_type` can be 0x0806"));
        assert_eq!(open(&format!("{arp}, {{choice: arp, arp: {{}}}}")), Vec::<String>::new());
        assert_eq!(open(ETHERNET), Vec::<String>::new());
    }

    #[test]
    fn arp_is_for_the_one_it_asks_for() {
        let arp = "{choice: arp, arp: {target_protocol_addr: {choice: value, value: 198.18.0.9}}}";
        let reach = reach(&format!("{ETHERNET}, {arp}"));
        let fields: Vec<&str> = reach.targets.iter().map(|target| target.field.as_str()).collect();
        assert_eq!(fields, ["ethernet.dst", "arp.target_protocol_addr"]);
    }
}
