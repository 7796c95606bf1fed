//! Many exporters: each message finds the session it belongs to.
//!
//! Invariant: there are never more sessions than the options allow, and what a session that had to go has counted is kept
//! in the sum.

use super::counts::SessionCounts;
use super::options::Reported;
use super::received::{Received, SessionOptions};
use super::session::Session;
use super::{Malformed, ipfix, netflow5, netflow9};
use crate::sim;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// How messages come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A connection.
    Tcp,
    /// An encrypted connection.
    Tls,
    /// A file.
    File,
}

/// Where messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Source {
    /// The exporter's address.
    pub address: IpAddr,
    /// Its port; of a file, the number of the file.
    pub port: u16,
    /// How they come.
    pub transport: Transport,
}

/// What messages are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// IPFIX.
    Ipfix,
    /// NetFlow version 9.
    NetFlow9,
    /// NetFlow version 5.
    NetFlow5,
    /// SIM.
    Sim,
}

/// Who exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Exporter {
    /// Where its messages come from.
    #[serde(flatten)]
    pub source: Source,
    /// What they are written in.
    pub protocol: Protocol,
    /// Observation domain, source id, or engine type and number.
    pub domain: u32,
}

/// Bounds of a collector.
#[derive(Clone, Copy, Debug)]
pub struct CollectorOptions {
    /// Exporters known at one time, at most.
    pub exporters: usize,
    /// An exporter that was silent so long may be forgotten when another needs its room.
    pub silence: Nanos,
    /// Bounds of each.
    pub session: SessionOptions,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self { exporters: 1024, silence: Nanos::from_secs(60), session: SessionOptions::default() }
    }
}

#[derive(Clone, Debug)]
struct Known {
    session: Session,
    heard_ns: u64,
}

/// All exporters.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    options: CollectorOptions,
    known: BTreeMap<Exporter, Known>,
    /// Those that were heard and are gone, without their ports: who comes again comes from another one.
    ended: BTreeMap<Exporter, (SessionCounts, Option<Reported>)>,
    /// Of those gone for whom there was no room.
    gone: SessionCounts,
    /// See [`Self::refused`].
    refused: u64,
}

impl Protocol {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipfix => "ipfix",
            Self::NetFlow9 => "netflow9",
            Self::NetFlow5 => "netflow5",
            Self::Sim => "sim",
        }
    }
}

impl Transport {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::File => "file",
        }
    }
}

/// What a message is written in, and its domain.
fn head(message: &[u8]) -> Result<(Protocol, u32), Malformed> {
    let found = message.len();
    let short = |needed| Malformed::Short { found, needed };
    let word = |at: usize, needed: usize| {
        let bytes = message.get(at..at + 4).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map(|bytes| u32::from_be_bytes(*bytes)).ok_or_else(|| short(needed))
    };
    if message.starts_with(&sim::MAGIC) {
        return Ok((Protocol::Sim, word(8, sim::HEADER)?));
    }
    let version = message.first_chunk::<2>().ok_or_else(|| short(2))?;
    match u16::from_be_bytes(*version) {
        5 => Ok((Protocol::NetFlow5, word(20, netflow5::HEADER)? >> 16)),
        9 => Ok((Protocol::NetFlow9, word(16, netflow9::HEADER)?)),
        10 => Ok((Protocol::Ipfix, word(12, ipfix::HEADER)?)),
        version => Err(Malformed::Version(version)),
    }
}

/// How long the message is that a stream goes on with; `None` until its first bytes are there. Only IPFIX and SIM say so.
pub fn message_length(stream: &[u8]) -> Result<Option<usize>, Malformed> {
    let Some(start) = stream.first_chunk::<6>() else { return Ok(None) };
    let word = |at: usize| u16::from_be_bytes([start[at], start[at + 1]]);
    let (found, needed) = if start.starts_with(&sim::MAGIC) {
        (word(4), sim::HEADER)
    } else if word(0) == 10 {
        (word(2), ipfix::HEADER)
    } else {
        return Err(Malformed::Version(word(0)));
    };
    let found = usize::from(found);
    if found < needed { Err(Malformed::Short { found, needed }) } else { Ok(Some(found)) }
}

impl Collector {
    /// A collector that has heard nobody.
    pub fn new(options: CollectorOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Reads one whole message, that came from `source` at `now_ns`.
    pub fn receive(
        &mut self,
        source: Source,
        message: &[u8],
        now_ns: u64,
        out: &mut impl FnMut(&Exporter, Received),
    ) -> Result<(), Malformed> {
        let (protocol, domain) = head(message).inspect_err(|_| self.refused += 1)?;
        let exporter = Exporter { source, protocol, domain };
        if !self.known.contains_key(&exporter) && !self.make_room(now_ns) {
            self.refused += 1;
            return Ok(());
        }
        let options = self.session_options(source.transport);
        let known = self
            .known
            .entry(exporter)
            .or_insert_with(|| Known { session: Session::new(protocol, options), heard_ns: now_ns });
        known.heard_ns = now_ns;
        known.session.decode(message, now_ns, &mut |received| out(&exporter, received))
    }

    /// Templates that come on a connection are good as long as it.
    const fn session_options(&self, transport: Transport) -> SessionOptions {
        let options = self.options.session;
        match transport {
            Transport::Udp => options,
            _ => SessionOptions { template_life: None, ..options },
        }
    }

    fn make_room(&mut self, now_ns: u64) -> bool {
        if self.known.len() < self.options.exporters {
            return true;
        }
        let silent = self.known.iter().min_by_key(|(_, known)| known.heard_ns);
        let Some((exporter, known)) = silent else { return false };
        if now_ns.saturating_sub(known.heard_ns) < self.options.silence.as_u64() {
            return false;
        }
        let exporter = *exporter;
        self.forget(&exporter);
        true
    }

    fn forget(&mut self, exporter: &Exporter) {
        let Some(mut known) = self.known.remove(exporter) else { return };
        known.session.end();
        let portless = Exporter { source: Source { port: 0, ..exporter.source }, ..*exporter };
        if self.ended.len() >= self.options.exporters && !self.ended.contains_key(&portless) {
            self.gone.add(known.session.counts());
            return;
        }
        let (counts, reported) = self.ended.entry(portless).or_default();
        counts.add(known.session.counts());
        if let Some(said) = known.session.reported() {
            reported.get_or_insert_default().update(said);
        }
    }

    /// A connection or file has ended: another from there is another session.
    pub fn closed(&mut self, source: Source) {
        let of_source = |exporter: &&Exporter| exporter.source == source;
        let ended: Vec<Exporter> = self.known.keys().filter(of_source).copied().collect();
        for exporter in ended {
            self.forget(&exporter);
        }
    }

    /// Forgets what is too old, of everyone.
    pub fn age(&mut self, now_ns: u64) {
        for known in self.known.values_mut() {
            known.session.age(now_ns);
        }
    }

    /// Everyone known now: counts, and what they said of their own losses.
    pub fn exporters(&self) -> impl Iterator<Item = (&Exporter, &SessionCounts, Option<&Reported>)> {
        self.known
            .iter()
            .map(|(exporter, known)| (exporter, known.session.counts(), known.session.reported()))
    }

    /// Everyone who is gone, in the same way; their ports are 0.
    pub fn ended(&self) -> impl Iterator<Item = (&Exporter, &SessionCounts, Option<&Reported>)> {
        self.ended.iter().map(|(exporter, (counts, reported))| (exporter, counts, reported.as_ref()))
    }

    /// Messages refused, since they were of no protocol or of one exporter too many.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The sum over everyone, those that are gone too.
    pub fn counts(&self) -> SessionCounts {
        let mut sum = self.gone.clone();
        for (_, counts, _) in self.exporters().chain(self.ended()) {
            sum.add(counts);
        }
        sum
    }
}
