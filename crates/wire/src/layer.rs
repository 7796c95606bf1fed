//! The headers a frame can have, each with the fields OTG names. List order is wire order.
//!
//! Every field is a [`Field`]; a field that OTG computes when absent is `Auto` here. Widths are those of the
//! standard. `Default` is the OTG default of every field.

use crate::pattern::Field;
use serde::{Deserialize, Serialize};

/// A checksum field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Checksum {
    /// Right.
    #[default]
    Good,
    /// Deliberately wrong in every frame.
    Bad,
    /// As given.
    Custom(Field),
}

/// One header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it; the standards define them")]
pub enum Layer {
    Ethernet(Ethernet),
    Vlan(Vlan),
    Ipv4(Box<Ipv4>),
    Ipv6(Box<Ipv6>),
    Tcp(Box<Tcp>),
    Udp(Udp),
    Icmp(Icmp),
    Icmpv6(Icmp),
    Arp(Box<Arp>),
    Gre(Gre),
    Vxlan(Vxlan),
    Mpls(Mpls),
    EthernetPause(Pause),
    PfcPause(Box<PfcPause>),
    Custom(Vec<u8>),
}

/// IEEE 802.3. `ether_type` auto: from the next header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "field names of the standard")]
pub struct Ethernet {
    pub dst: Field,
    pub src: Field,
    pub ether_type: Field,
}

/// IEEE 802.1Q. `tpid` is the two bytes *after* the TCI (OTG's use of the word); auto from the next header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "field names of the standard")]
pub struct Vlan {
    pub priority: Field,
    pub cfi: Field,
    pub id: Field,
    pub tpid: Field,
}

// The other headers follow the same form; their owner writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv4;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv6;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tcp;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Udp;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Icmp;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arp;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gre;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vxlan;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mpls;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause;
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PfcPause;
