//! What a node says of itself: when it is asked, and once a second.
//!
//! Everything a controller needs to choose nodes and to refuse them by name is in it; nothing of it is a promise that
//! outlives the node's *incarnation*.

use crate::message::{MessageHead, Nonce, RunId};
use packetrig_stats::port::BackEnd;
use packetrig_units::{BitRate, Nanos};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Form of the messages. Majors must be equal; a controller takes nodes of its own minor and of the one before.
pub const PROTOCOL: ProtocolVersion = ProtocolVersion { major: 3, minor: 1 };

/// Version of the messages' form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProtocolVersion {
    pub major: u16,
    pub minor: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHello {
    /// New at each start of the agent: a changed one is a restart, however quick.
    pub incarnation: u64,
    /// Highest epoch it has seen.
    pub epoch: u64,
    /// Form of its messages.
    pub protocol: ProtocolVersion,
    pub version: String,
    /// What it can do beyond the protocol, by name; a plan that requires one is refused where it is missing.
    pub features: Vec<String>,
    /// What its owner calls it, for groups (`any-LABEL`).
    pub labels: Vec<String>,
    /// What its owner offers.
    pub ports: Vec<OfferedPort>,
    pub clock: ClockFacts,
    /// Bytes free where it spools.
    pub disk_free: u64,
    /// The run it takes part in, if any.
    pub busy: Option<MessageHead>,
    /// Results that wait to be collected: (run, attempt, segments).
    pub spooled: Vec<(RunId, u32, u64)>,
    /// What stands in the way of its work, in words.
    #[serde(default)]
    pub troubles: Vec<String>,
    /// The roll call that this answers; absent in the hello of every second.
    #[serde(default)]
    pub answers: Option<Nonce>,
}

/// Troubles and labels that are taken from a hello, and characters of each text.
const MOST_TEXTS: usize = 32;
const LONGEST_TEXT: usize = 300;

impl NodeHello {
    /// Cuts what a node says in words to what people read: a node says it every second, and all of it is kept.
    pub fn limit_texts(&mut self) {
        for texts in [&mut self.troubles, &mut self.labels, &mut self.features] {
            texts.truncate(MOST_TEXTS);
            for text in texts {
                *text = text.chars().take(LONGEST_TEXT).collect();
            }
        }
        for port in &mut self.ports {
            port.addresses.truncate(MOST_TEXTS);
        }
        self.version = self.version.chars().take(LONGEST_TEXT).collect();
    }
}

/// An interface that may carry test traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedPort {
    /// As a location of that machine: `eth1` or `ns/eth1`.
    pub interface: String,
    /// Labels of its own, beside those of the node.
    pub labels: Vec<String>,
    pub driver: String,
    /// Link speed, if it says.
    pub speed: Option<BitRate>,
    /// Whether the link is up.
    pub up: bool,
    /// Ways to send and receive that can be asked for.
    pub back_ends: Vec<BackEnd>,
    /// IP addresses of the interface, at which probes can reach it.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

/// What disciplines a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClockSource {
    #[default]
    None,
    /// NTP; the kernel's own figures.
    Ntp,
    Ptp,
}

/// A node's clock as the node itself sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockFacts {
    pub source: ClockSource,
    /// Whether the kernel calls it synchronised.
    pub synchronised: bool,
    /// The kernel's bound of its error against true time; absent when it is not synchronised.
    pub max_error: Option<Nanos>,
    /// Names the clock itself: nodes with the same one (containers and namespaces of one machine) need no comparison.
    pub identity: String,
}
