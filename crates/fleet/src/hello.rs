//! The hello: a node's description of itself, sent on request and once a second.
//!
//! It has all facts that a controller needs to choose nodes, or to refuse them with a reason. A hello is valid only
//! for one *incarnation* of the node: until its agent is started again.

use crate::bounded::{deserialize_bounded_line, deserialize_bounded_lines, deserialize_first_elements};
use crate::message::{MessageHead, Nonce, RunId};
use packetrig_stats::port::BackEnd;
use packetrig_units::{BitRate, Nanos};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Version of the messages between controller and nodes. A controller accepts nodes with the same major version, and
/// with the same or the previous minor version.
pub const FLEET_PROTOCOL_VERSION: ProtocolVersion = ProtocolVersion { major: 3, minor: 1 };

/// Version of the message format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProtocolVersion {
    pub major: u16,
    pub minor: u16,
}

/// Maximum number of bytes of a hello as it is sent. A longer hello is not read.
pub const MAX_HELLO_BYTES: usize = 64 << 10;
/// Maximum number of bytes of the JSON in a compressed hello.
pub const MAX_HELLO_JSON_BYTES: u64 = 512 << 10;
/// Maximum number of ports of a node.
pub const MAX_PORTS: usize = 512;
/// Maximum number of runs with waiting results that a hello lists. Further runs follow when these have been collected.
pub const MAX_SPOOLED: usize = 1024;
/// Longest text in a hello, in characters.
pub const MAX_TEXT_CHARACTERS: usize = 300;
/// Maximum number of entries in each of the other lists of a hello: troubles, labels, features, back ends, addresses.
pub const MAX_HELLO_LIST_ENTRIES: usize = 32;

/// Invariant: a deserialized hello has bounded lists, and each of its texts is one line of bounded length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHello {
    /// Identifies this start of the agent. A changed number means that the agent was restarted, even if
    /// no hello is missing.
    pub incarnation: u64,
    /// Highest epoch that the node has seen.
    pub epoch: u64,
    /// Version of its messages.
    pub protocol: ProtocolVersion,
    #[serde(deserialize_with = "deserialize_bounded_line")]
    pub version: String,
    /// Names of capabilities beyond the protocol; a plan that requires one is refused on nodes without it.
    #[serde(deserialize_with = "deserialize_bounded_lines")]
    pub features: Vec<String>,
    /// Labels that the node's owner has set. A plan chooses ports by them (`any-LABEL`).
    #[serde(deserialize_with = "deserialize_bounded_lines")]
    pub labels: Vec<String>,
    /// Ports that the node's owner offers.
    #[serde(deserialize_with = "deserialize_first_elements::<MAX_PORTS, _, _>")]
    pub ports: Vec<OfferedPort>,
    pub clock: ClockFacts,
    /// Free bytes on the disk of the spool.
    pub disk_free: u64,
    /// The run that the node takes part in, if any.
    pub busy: Option<MessageHead>,
    /// Results that wait to be collected: (run, attempt, segments).
    #[serde(deserialize_with = "deserialize_first_elements::<MAX_SPOOLED, _, _>")]
    pub spooled: Vec<(RunId, u32, u64)>,
    /// Problems that hinder the node's work, as sentences.
    #[serde(default, deserialize_with = "deserialize_bounded_lines")]
    pub troubles: Vec<String>,
    /// Nonce of the roll call that this hello answers; absent in the hellos that the node sends once a second.
    #[serde(default)]
    pub answers: Option<Nonce>,
    /// Time for which the node's agent has waited for a processor, summed over the last
    /// one to two [`STARVATION_WINDOW`]s.
    #[serde(default)]
    pub starved: Nanos,
}

/// Window over which an agent adds up how long it has waited for a processor. A sum covers one to two windows.
pub const STARVATION_WINDOW: Nanos = Nanos::from_secs(10);
/// A machine counts as overloaded if its agent waited this long for a processor within [`STARVATION_WINDOW`].
pub const OVERLOAD_WAIT_THRESHOLD: Nanos = Nanos::from_secs(1);

/// Describes the overload of a machine whose agent waited this long for a processor; `None` if it is not overloaded.
pub(crate) fn describe_starvation(starved: Nanos) -> Option<String> {
    (starved >= OVERLOAD_WAIT_THRESHOLD).then(|| {
        // The time is cut to milliseconds, to keep the text short.
        let starved = Nanos::from_millis(starved.as_u64() / 1_000_000);
        format!("its machine is overloaded: the agent waited {starved} for a processor")
    })
}

impl NodeHello {
    /// Describes the overload of the node's machine; `None` if the machine is not overloaded.
    pub fn describe_overload(&self) -> Option<String> {
        describe_starvation(self.starved)
    }

    /// Cuts ports, spooled runs, troubles, labels and features to the numbers that readers store.
    #[must_use]
    pub fn truncated_to_limits(mut self) -> Self {
        // Readers cut the same lists. The node cuts them, too, so that readers accept the length of the hello.
        self.ports.truncate(MAX_PORTS);
        self.spooled.truncate(MAX_SPOOLED);
        for texts in [&mut self.troubles, &mut self.labels, &mut self.features] {
            texts.truncate(MAX_HELLO_LIST_ENTRIES);
        }
        self
    }
}

/// An interface that may carry test traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedPort {
    /// Location on the node's machine: `eth1` or `ns/eth1`.
    #[serde(deserialize_with = "deserialize_bounded_line")]
    pub interface: String,
    /// Labels of the port itself, in addition to the labels of the node.
    #[serde(deserialize_with = "deserialize_bounded_lines")]
    pub labels: Vec<String>,
    #[serde(deserialize_with = "deserialize_bounded_line")]
    pub driver: String,
    /// Link speed, if the driver reports it.
    pub speed: Option<BitRate>,
    /// True if the link is up.
    pub up: bool,
    /// Back ends that can send and receive on this port.
    #[serde(deserialize_with = "deserialize_first_elements::<MAX_HELLO_LIST_ENTRIES, _, _>")]
    pub back_ends: Vec<BackEnd>,
    /// IP addresses of the interface, at which probes can reach it.
    #[serde(default, deserialize_with = "deserialize_first_elements::<MAX_HELLO_LIST_ENTRIES, _, _>")]
    pub addresses: Vec<IpAddr>,
}

/// Protocol that synchronises a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockSource {
    #[default]
    None,
    /// NTP, according to the state of the kernel clock.
    Ntp,
    Ptp,
}

/// A node's clock, as the node itself sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFacts {
    pub source: ClockSource,
    /// True if the kernel reports the clock as synchronised.
    pub synchronised: bool,
    /// Maximum error against true time, as the kernel reports it; absent if the clock is not synchronised.
    pub max_error: Option<Nanos>,
    /// Identifies the clock. Nodes with the same clock (containers and namespaces of one machine) need no comparison.
    #[serde(deserialize_with = "deserialize_bounded_line")]
    pub identity: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed;
    use std::net::Ipv4Addr;

    fn read(text: &str) -> NodeHello {
        serde_json::from_str(text).expect("it is a hello")
    }

    #[test]
    fn hello_texts_and_lists_are_bounded() {
        let bad = "a\nb\u{1b}[31m".to_owned() + &"x".repeat(1000);
        let port = OfferedPort {
            interface: bad.clone(),
            labels: vec![bad.clone(); 99],
            driver: bad.clone(),
            speed: None,
            up: true,
            back_ends: vec![BackEnd::Packet; 99],
            addresses: vec![IpAddr::from([10, 0, 0, 1]); 99],
        };
        let clock = ClockFacts { identity: bad.clone(), ..ClockFacts::default() };
        let said = NodeHello {
            version: bad.clone(),
            features: vec![bad.clone(); 99],
            labels: vec![bad.clone(); 99],
            troubles: vec![bad.clone(); 99],
            ports: vec![port; MAX_PORTS + 1],
            spooled: vec![(RunId(bad), 1, 2); MAX_SPOOLED + 1],
            clock,
            ..NodeHello::default()
        };
        let hello = read(&serde_json::to_string(&said).expect("it is JSON"));
        assert_eq!((hello.ports.len(), hello.spooled.len()), (MAX_PORTS, MAX_SPOOLED));
        let port = &hello.ports[0];
        let lists = [&hello.features, &hello.labels, &hello.troubles, &port.labels];
        assert_eq!(
            (port.back_ends.len(), port.addresses.len()),
            (MAX_HELLO_LIST_ENTRIES, MAX_HELLO_LIST_ENTRIES)
        );
        assert!(lists.iter().all(|list| list.len() == MAX_HELLO_LIST_ENTRIES));
        let texts =
            [&hello.version, &port.interface, &port.driver, &hello.clock.identity, &hello.spooled[0].0.0];
        for text in lists.into_iter().flatten().chain(texts) {
            assert!(
                !text.contains(char::is_control) && text.chars().count() <= MAX_TEXT_CHARACTERS,
                "{text:?}"
            );
            assert!(text.starts_with("a\\u{a}b"), "{text}");
        }
        assert_eq!(
            read(&serde_json::to_string(&hello).expect("it is JSON")),
            hello,
            "read again it is the same"
        );
    }

    #[test]
    fn largest_honest_hello_fits_reader_limit() {
        let port = |number: usize| OfferedPort {
            interface: format!("namespace-{}/enp{number}s0f{}.{number}", number / 7, number % 4),
            labels: vec![format!("rack={}", number / 48), format!("port={number}")],
            driver: "mlx5_core".into(),
            speed: Some(BitRate::new(100_000_000_000)),
            up: true,
            back_ends: vec![BackEnd::Packet, BackEnd::Xdp, BackEnd::AfXdp],
            addresses: vec![Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number).unwrap_or(0)).into()],
        };
        let run = |number: usize| {
            RunId(format!("2026-11-27T18-{:02}-{:02}-{:06x}", number / 60, number % 60, number * 7919))
        };
        let hello = NodeHello {
            ports: (0..5000).map(port).collect(),
            spooled: (0..5000).map(|number| (run(number), 1, number as u64)).collect(),
            troubles: vec!["the disk of the spool is full".into(); 99],
            ..NodeHello::default()
        };
        let hello = hello.truncated_to_limits();
        let text = serde_json::to_vec(&hello).expect("it is JSON");
        let bytes = packed::pack_text(&text).expect("it is packed");
        assert!((text.len() as u64) < MAX_HELLO_JSON_BYTES / 2, "{}", text.len());
        assert!(bytes.len() < MAX_HELLO_BYTES / 2, "{}", bytes.len());
        assert_eq!(packed::unpack_value::<NodeHello>(&bytes).expect("it is read"), hello);
    }
}
