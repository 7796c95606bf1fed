//! Queueing disciplines of an interface, as the kernel reports them.
//!
//! This module owns nothing and changes nothing. It reads the settings of other programs, because most
//! queueing disciplines ignore the release time of a frame.

use crate::netlink::NetlinkConversation;
use crate::{Error, netns::NetNs};
use netlink_packet_core::{NLM_F_DUMP, Nla};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use netlink_sys::protocols::NETLINK_ROUTE;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueingDiscipline {
    /// Kind of the qdisc: `fq`, `etf`, `noqueue` …
    pub kind: String,
    /// True if it is the root qdisc of its interface.
    pub root: bool,
    /// Settings of an `etf` qdisc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etf: Option<EtfSettings>,
    /// Settings of an `fq` qdisc.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fq: Option<FqSettings>,
}

/// Settings of an `etf` qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct EtfSettings {
    /// The qdisc takes a frame from its queue this long before its due time. Without offload the frame
    /// may leave that early.
    pub delta_ns: i32,
    /// Clock of the release times (`CLOCK_TAI` is 11).
    pub clock: i32,
    /// The network device releases the frames at their times.
    pub offload: bool,
}

/// Settings of an `fq` qdisc; settings that a kernel does not report are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FqSettings {
    /// Maximum number of queued frames of one socket.
    pub flow_limit: Option<u32>,
    /// Frames that are due later than this from now are dropped, or released at this limit.
    pub horizon_us: Option<u32>,
    /// Maximum time by which a release may be later than requested.
    pub slack_ns: Option<u32>,
}

// Options of linux/pkt_sched.h.
const ETF_PARMS: u16 = 1;
const ETF_OFFLOAD: u32 = 1 << 1;
const FQ_FLOW_PLIMIT: u16 = 2;
const FQ_TIMER_SLACK: u16 = 13;
const FQ_HORIZON: u16 = 14;

/// Reads the queueing disciplines of the interface with this number, the root first.
pub fn read_qdiscs(netns: &NetNs, index: u32, name: &str) -> Result<Vec<QueueingDiscipline>, Error> {
    let mut netlink = NetlinkConversation::open_in(netns, NETLINK_ROUTE)?;
    // The kernel's numbers of interfaces are positive numbers of 31 bits.
    let number = index.cast_signed();
    let mut found = Vec::new();
    let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::with_index(number));
    let asked = netlink.request_answers(request, NLM_F_DUMP, &mut |answer| {
        // A dump names the qdiscs of all interfaces, whatever index the request has.
        if let RouteNetlinkMessage::NewQueueDiscipline(message) = answer
            && message.header.index == number
        {
            found.push(qdisc_from_message(&message));
        }
    });
    asked.map_err(|error| Error::from_call("RTM_GETQDISC", name, error))?;
    found.sort_by_key(|qdisc| !qdisc.root);
    Ok(found)
}

fn qdisc_from_message(message: &TcMessage) -> QueueingDiscipline {
    let mut qdisc = QueueingDiscipline {
        kind: String::new(),
        root: message.header.parent == TcHandle::ROOT,
        etf: None,
        fq: None,
    };
    for attribute in &message.attributes {
        match attribute {
            TcAttribute::Kind(kind) => qdisc.kind.clone_from(kind),
            TcAttribute::Options(options) => read_options(&mut qdisc, options),
            _ => {}
        }
    }
    qdisc
}

/// An option of a qdisc as the kernel sends it.
struct QdiscAttribute {
    kind: u16,
    value: Vec<u8>,
}

/// Reads the number at offset `at` in the attribute of this kind.
fn number_at(attributes: &[QdiscAttribute], kind: u16, at: usize) -> Option<u32> {
    let attribute = attributes.iter().find(|attribute| attribute.kind == kind)?;
    Some(u32::from_ne_bytes(*attribute.value.get(at..)?.first_chunk()?))
}

/// `struct tc_etf_qopt`: delta, clock, flags.
fn etf_settings(attributes: &[QdiscAttribute]) -> Option<EtfSettings> {
    Some(EtfSettings {
        delta_ns: number_at(attributes, ETF_PARMS, 0)?.cast_signed(),
        clock: number_at(attributes, ETF_PARMS, 4)?.cast_signed(),
        offload: number_at(attributes, ETF_PARMS, 8)? & ETF_OFFLOAD != 0,
    })
}

/// Parses the attributes in `piece`: length, type, value, padded to four bytes.
fn parse_attributes(mut piece: &[u8]) -> Vec<QdiscAttribute> {
    const HEADER: usize = 4;
    /// Bits above the type say how the value is to be read.
    const NLA_TYPE_MASK: u16 = 0x3fff;
    let mut parts = Vec::new();
    while let Some((&[a, b, c, d], _)) = piece.split_first_chunk::<HEADER>() {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let Some(value) = piece.get(HEADER..length) else { break };
        parts
            .push(QdiscAttribute { kind: u16::from_ne_bytes([c, d]) & NLA_TYPE_MASK, value: value.to_vec() });
        piece = piece.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    parts
}

fn read_options(qdisc: &mut QueueingDiscipline, options: &[TcOption]) {
    // The parser leaves the options of kinds that it does not know as one piece.
    let whole = options.iter().find_map(|option| match option {
        TcOption::Other(option) => {
            let mut value = vec![0; option.value_len()];
            option.emit_value(&mut value);
            Some(value)
        }
        _ => None,
    });
    let options = parse_attributes(whole.as_deref().unwrap_or_default());
    match qdisc.kind.as_str() {
        "etf" => qdisc.etf = etf_settings(&options),
        "fq" => {
            qdisc.fq = Some(FqSettings {
                flow_limit: number_at(&options, FQ_FLOW_PLIMIT, 0),
                horizon_us: number_at(&options, FQ_HORIZON, 0),
                slack_ns: number_at(&options, FQ_TIMER_SLACK, 0),
            });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{NamespaceLinks, VethEnd};
    use netlink_packet_core::DefaultNla;

    #[test]
    fn a_virtual_cable_has_no_queue() {
        let netns = match NetNs::create_unnamed_namespace() {
            Ok(netns) => netns,
            Err(error) => return assert!(error.is_permission_error(), "{error}"),
        };
        let end = |name| VethEnd { name, netns: None, mac: None };
        let mut links = NamespaceLinks::open_in(&netns).unwrap();
        links.create_veth(end("a"), end("b")).unwrap();
        let index = links.find_link_by_name("a").unwrap().index;
        links.switch_interface(index, true).unwrap();
        let found = read_qdiscs(&netns, index, "a").unwrap();
        assert_eq!(found, [QueueingDiscipline { kind: "noqueue".into(), root: true, etf: None, fq: None }]);
    }

    #[test]
    fn fq_and_etf_qdisc_options_are_parsed() {
        let message = |kind: &str, options: &[(u16, &[u32])]| {
            // Attributes as a kernel sends them: inside the attribute of the options.
            let attribute = |(kind, words): &(u16, &[u32])| {
                let length = u16::try_from(4 + words.len() * 4).unwrap();
                let head = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
                [head, words.iter().flat_map(|word| word.to_ne_bytes()).collect()].concat()
            };
            let value = options.iter().flat_map(attribute).collect();
            let mut message = TcMessage::with_index(1);
            message.attributes = vec![
                TcAttribute::Kind(kind.into()),
                TcAttribute::Options(vec![TcOption::Other(DefaultNla::new(2, value))]),
            ];
            message
        };
        let etf = qdisc_from_message(&message("etf", &[(1, &[300_000, 11, 2])])).etf;
        assert_eq!(etf, Some(EtfSettings { delta_ns: 300_000, clock: 11, offload: true }));
        let fq = qdisc_from_message(&message("fq", &[(2, &[100]), (14, &[10_000_000]), (13, &[10_000])])).fq;
        let told = FqSettings { flow_limit: Some(100), horizon_us: Some(10_000_000), slack_ns: Some(10_000) };
        assert_eq!(fq, Some(told));
        assert_eq!(qdisc_from_message(&message("tbf", &[])).fq, None);
    }
}
