//! Permission to probe: which targets this machine may probe, and within which limits. Without permission from a user
//! or the owner, the machine may probe only itself.
//!
//! The command line can allow a target within [`TargetLimits::DEFAULT_LIMITS`]. Only the owner of the machine can allow
//! more than that, in a file on it:
//!
//! ```toml
//! about = "https://lab.example/probes"     # who probes and why; travels in every probe that has room (RFC 9511)
//! never = ["192.0.2.7/32"]                 # wins over everything
//!
//! [[target]]
//! network = "10.0.0.0/8"
//! owner = "the lab"                        # who agreed
//! until = "2027-01-01"                     # the last day
//! probes_per_s = 100000
//! bits_per_s = "100Mbps"
//! burst = 1000
//! loss_percent = 100                       # no loss ends a series
//! ```
//! Invariant: an address that is not loopback is allowed only if an entry or `--allow` names a network that contains
//! it, and no network under `never` contains it.

use packetrig_units::{BitRate, Network};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

/// Loss can end a series only after at least this many probes were answered or timed out.
const MIN_PROBES_FOR_LOSS: u64 = 50;

/// Limits for the probes to one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLimits {
    pub probes_per_s: u64,
    /// Bits of frames per second.
    pub bits_per_s: u64,
    /// Probes that may leave at once.
    pub burst: u32,
    /// Maximum number of probes in all.
    pub most: u64,
    /// A series ends if more than this percentage of its probes is lost.
    pub loss_percent: u8,
}

impl TargetLimits {
    /// No limits, for frames that reach no target: between two interfaces of this machine that are connected directly.
    pub const NONE: Self = Self {
        probes_per_s: u64::MAX,
        bits_per_s: u64::MAX,
        burst: u32::MAX,
        most: u64::MAX,
        loss_percent: 100,
    };
    /// Limits for targets that the permit file of the machine's owner does not name.
    // Decision 0015, 6: mild enough for targets whose owner has not agreed to more.
    pub const DEFAULT_LIMITS: Self =
        Self { probes_per_s: 20, bits_per_s: 1_000_000, burst: 50, most: 100_000, loss_percent: 15 };

    const fn narrowed_by_limits(self, other: Self) -> Self {
        // `u64::min` is a method of `Ord`, which is not const.
        const fn smaller_of(one: u64, other: u64) -> u64 {
            if one < other { one } else { other }
        }
        Self {
            probes_per_s: smaller_of(self.probes_per_s, other.probes_per_s),
            bits_per_s: smaller_of(self.bits_per_s, other.bits_per_s),
            burst: if self.burst < other.burst { self.burst } else { other.burst },
            most: smaller_of(self.most, other.most),
            loss_percent: if self.loss_percent < other.loss_percent {
                self.loss_percent
            } else {
                other.loss_percent
            },
        }
    }

    /// Returns whether a series must end because of its loss. The loss is counted among probes that can no
    /// longer be answered in time.
    pub const fn is_lossy(self, sent: u64, lost: u64) -> bool {
        // With few probes, a few lost ones would be a large share by chance.
        sent >= MIN_PROBES_FOR_LOSS && lost * 100 > sent * self.loss_percent as u64
    }
}

/// A target that may be probed. Only a [`ProbePermit`] can create one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermittedTarget {
    ip: IpAddr,
    limits: TargetLimits,
}

impl PermittedTarget {
    pub const fn ip(self) -> IpAddr {
        self.ip
    }

    pub const fn limits(self) -> TargetLimits {
        self.limits
    }
}

/// Reason why a target may not be probed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermitRefusal {
    #[error("probing {0} is not allowed; if its owner agrees, add --allow {0}/{bits}", bits = if .0.is_ipv4() { 32 } else { 128 })]
    NotAllowed(IpAddr),
    #[error("probing {0} is forbidden by `never` in a permit file")]
    Forbidden(IpAddr),
    #[error("cannot probe {0}: it is a multicast, broadcast or unspecified address, not that of one host")]
    NotOne(IpAddr),
    #[error("probing {0} is no longer allowed: the permission expired on {1}")]
    Ended(IpAddr, String),
}

/// Reason why a permit file is invalid. Nothing may be probed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid permit file: {0}")]
pub struct FileError(String);

/// A network that may be probed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetNetwork {
    #[serde(deserialize_with = "deserialize_parsed")]
    pub network: Network,
    pub owner: Option<String>,
    /// The last day on which the permission is valid, as `2027-01-01`; `None` if it does not expire.
    pub until: Option<String>,
    // A limit that is absent has the value of `TargetLimits::DEFAULT_LIMITS`.
    pub probes_per_s: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_optional_rate")]
    pub bits_per_s: Option<u64>,
    pub burst: Option<u32>,
    pub most: Option<u64>,
    pub loss_percent: Option<u8>,
}

impl TargetNetwork {
    fn limits(&self) -> TargetLimits {
        let usual = TargetLimits::DEFAULT_LIMITS;
        TargetLimits {
            probes_per_s: self.probes_per_s.unwrap_or(usual.probes_per_s),
            bits_per_s: self.bits_per_s.unwrap_or(usual.bits_per_s),
            burst: self.burst.unwrap_or(usual.burst),
            most: self.most.unwrap_or(usual.most),
            loss_percent: self.loss_percent.unwrap_or(usual.loss_percent),
        }
    }
}

/// The permissions of this machine. The default value is that of a machine without a permit file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbePermit {
    /// Contact for the probes and their purpose.
    pub about: Option<String>,
    #[serde(default, deserialize_with = "deserialize_parsed_list")]
    never: Vec<Network>,
    #[serde(default, rename = "target")]
    targets: Vec<TargetNetwork>,
    #[serde(skip)]
    typed: Vec<Network>,
    /// The owner's permit, which limits this one.
    #[serde(skip)]
    owner: Option<Box<Self>>,
}

impl ProbePermit {
    /// Reads the text of a permit file.
    pub fn from_text(text: &str) -> Result<Self, FileError> {
        let permit: Self = toml::from_str(text).map_err(|error| FileError(error.to_string()))?;
        // Days are compared as text later, which is right only for this form.
        let days = permit.targets.iter().filter_map(|target| target.until.as_deref());
        match days.into_iter().find(|day| !is_date_text(day)) {
            Some(day) => Err(FileError(format!("`{day}` is not a date; write it like 2027-01-31"))),
            None => Ok(permit),
        }
    }

    /// Allows a network within the default limits, as `--allow` does. For an address that is in an entry of the
    /// permit file, only the entry counts.
    pub fn allow_network(&mut self, network: Network) {
        self.typed.push(network);
    }

    /// Limits this permit by that of the machine's owner. Targets that the owner forbids stay forbidden, and the
    /// owner's limits hold. Targets that the owner does not name are allowed within the default limits at most.
    #[must_use]
    pub fn limited_by_owner(self, owner: Self) -> Self {
        let about = self.about.clone().or_else(|| owner.about.clone());
        Self { about, owner: Some(Box::new(owner)), ..self }
    }

    /// Returns the target if it may be probed today, with its limits from [`Self::limits_for`].
    pub fn permit_target(&self, ip: IpAddr, today: &str) -> Result<PermittedTarget, PermitRefusal> {
        self.limits_for(ip, today).map(|limits| PermittedTarget { ip, limits })
    }

    /// Returns the limits for probing an address on the date `today` (`2026-11-22`). The narrowest network of the file that contains the
    /// address decides. An address that only `--allow` names, or of the loopback interface, has the default limits. `--allow` does not extend
    /// a permission that has expired. The owner's permit can narrow the limits or refuse the address, and never widens them.
    pub fn limits_for(&self, ip: IpAddr, today: &str) -> Result<TargetLimits, PermitRefusal> {
        let own = self.limits_without_owner(ip, today)?;
        // A refusal of the owner has precedence. If the owner does not name the target, the default limits
        // hold.
        match self.owner.as_ref().map(|owner| owner.limits_for(ip, today)) {
            None => Ok(own),
            Some(Ok(word)) => Ok(own.narrowed_by_limits(word)),
            Some(Err(PermitRefusal::NotAllowed(_))) => {
                Ok(own.narrowed_by_limits(TargetLimits::DEFAULT_LIMITS))
            }
            Some(Err(refusal)) => Err(refusal),
        }
    }

    /// The smallest value of each limit among the targets that an entry or `--allow` permits. Loopback addresses that
    /// no entry contains do not count.
    pub fn least_limits(&self) -> TargetLimits {
        let named = self.targets.iter().map(TargetNetwork::limits);
        let typed = (!self.typed.is_empty()).then_some(TargetLimits::DEFAULT_LIMITS);
        let own = named
            .chain(typed)
            .reduce(TargetLimits::narrowed_by_limits)
            .unwrap_or(TargetLimits::DEFAULT_LIMITS);
        // Targets that the owner does not name have the default limits.
        match &self.owner {
            Some(owner) => {
                own.narrowed_by_limits(owner.least_limits()).narrowed_by_limits(TargetLimits::DEFAULT_LIMITS)
            }
            None => own,
        }
    }

    fn limits_without_owner(&self, ip: IpAddr, today: &str) -> Result<TargetLimits, PermitRefusal> {
        // `::ffff:192.0.2.7` reaches the same host as `192.0.2.7`. Without this conversion, it would not
        // match `never`.
        let ip = ip.to_canonical();
        if self.never.iter().any(|network| network.contains(ip)) {
            return Err(PermitRefusal::Forbidden(ip));
        }
        let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
        if ip.is_multicast() || ip.is_unspecified() || is_broadcast {
            return Err(PermitRefusal::NotOne(ip));
        }
        let of = self.targets.iter().filter(|target| target.network.contains(ip));
        let (now, ended): (Vec<_>, Vec<_>) =
            // Dates of this form sort as text, so no calendar is needed. The last day itself is still valid.
            of.partition(|target| target.until.as_deref().is_none_or(|until| today <= until));
        // `max_by_key` returns the last of equal elements. The order is reversed, so that the first entry for
        // a network counts.
        if let Some(target) = now.iter().rev().max_by_key(|target| target.network.bits()) {
            return Ok(target.limits());
        }
        // The file has precedence over the command line: `--allow` does not extend a permission that has
        // expired in the file.
        if let Some(until) = ended.iter().filter_map(|target| target.until.as_deref()).max() {
            return Err(PermitRefusal::Ended(ip, until.to_owned()));
        }
        // An address that only the command line allows has the default limits, because only the owner can
        // grant more (see the module).
        let needs_none = ip.is_loopback() || self.typed.iter().any(|network| network.contains(ip));
        if needs_none { Ok(TargetLimits::DEFAULT_LIMITS) } else { Err(PermitRefusal::NotAllowed(ip)) }
    }
}

fn is_date_text(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00"
}

fn parse_value<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(text: &str) -> Result<T, D::Error> {
    text.parse().map_err(D::Error::custom)
}

fn deserialize_parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(from: D) -> Result<T, D::Error> {
    parse_value::<D, T>(&String::deserialize(from)?)
}

fn deserialize_parsed_list<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    Vec::<String>::deserialize(from)?.iter().map(|one| parse_value::<D, T>(one)).collect()
}

fn deserialize_optional_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    deserialize_parsed::<D, BitRate>(from).map(|rate| Some(rate.bits_per_second()))
}

#[cfg(test)]
mod tests;
