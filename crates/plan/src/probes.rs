//! Probes of a plan: which ports send probes, to which ports or addresses, and when.
//!
//! A plan has either flows or probes. Each pair of a sending port and a destination is a *probe line*; its number is
//! its position in [`ProbePlan::lines`], on every node and in the report.
//!
//! Invariant: no line goes from a port to itself, and no two lines have the same ends.

use packetrig_units::{FrameSize, Nanos, clamp_to_u32};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// What the probes of a plan measure, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedProbeMethod {
    /// One-way delay and loss, by STAMP sessions whose probes also compare the clocks of the nodes.
    OneWay,
    /// Delay and loss of each direction, by STAMP sessions.
    Stamp,
    /// Round trips, by echo requests.
    Ping,
    /// Trains of datagrams that get no answer.
    Send,
    /// The rate of the narrowest link on the forward path, by packet pairs to STAMP reflectors.
    Capacity,
}

impl PlannedProbeMethod {
    /// All methods with their names in documents.
    pub const ALL: [(&'static str, Self); 5] = [
        ("oneway", Self::OneWay),
        ("stamp", Self::Stamp),
        ("ping", Self::Ping),
        ("send", Self::Send),
        ("capacity", Self::Capacity),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }

    /// True if the ports that receive probes answer them with a STAMP reflector.
    pub const fn has_reflectors(self) -> bool {
        matches!(self, Self::OneWay | Self::Stamp | Self::Capacity)
    }

    /// True if neither end of a line may send or receive other probes while the line is active.
    pub const fn needs_exclusive_turn(self) -> bool {
        matches!(self, Self::Capacity)
    }
}

/// Destination of the probes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeLineDestination {
    /// A port of the plan.
    Port(usize),
    /// A host that belongs to no node. The UDP port is used only by methods that need one.
    Host(SocketAddr),
}

/// One probe line: the probes from a port to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlannedProbeLine {
    /// Index of the sending port.
    pub from: usize,
    pub to: ProbeLineDestination,
    /// Position of the line among the lines of its port, which send in this order within each interval. With a method
    /// that needs exclusive turns, it is the number of the line's time slot instead; lines without common ends can
    /// have the same slot.
    pub turn: u32,
}

/// All probes of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    pub method: PlannedProbeMethod,
    pub lines: Vec<PlannedProbeLine>,
    /// The IP address that each port probes from and is probed at.
    pub addresses: BTreeMap<usize, IpAddr>,
    /// UDP port at which the ports of the plan receive probes.
    pub port: u16,
    /// Number of probes, or trains, of each line. For `capacity` it is the greatest number of packet pairs; the
    /// trains before them are not included.
    pub count: u32,
    /// Time from one probe or train of a line to the next; for `capacity` the shortest time.
    pub interval: Nanos,
    /// True if intervals are drawn at random, with `interval` as their mean.
    pub poisson: bool,
    pub size: FrameSize,
    /// Probes of a train; for `capacity`, of the longest train.
    pub train: u32,
    /// Time from one probe of a train to the next.
    pub gap: Nanos,
    /// Time within which an answer must arrive.
    pub wait: Nanos,
    /// Length of a time slot, for a method that needs exclusive turns.
    pub slot: Nanos,
    /// The release mechanism, if the document names one.
    pub mechanism: Option<String>,
}

impl ProbePlan {
    /// Address and UDP port that the probes of a line are sent to; `None` if the destination is a
    /// port without an address.
    pub fn target_address(&self, line: &PlannedProbeLine) -> Option<SocketAddr> {
        match line.to {
            ProbeLineDestination::Host(target) => Some(target),
            ProbeLineDestination::Port(port) => {
                self.addresses.get(&port).map(|address| SocketAddr::new(*address, self.port))
            }
        }
    }

    /// The lines that a port sends, with their numbers.
    pub fn list_lines_sent_by(&self, port: usize) -> impl Iterator<Item = (usize, &PlannedProbeLine)> {
        self.lines.iter().enumerate().filter(move |(_, line)| line.from == port)
    }

    /// The ports that send probes which the reflector of this port answers; none for a method without reflectors.
    pub fn list_ports_probing(&self, port: usize) -> impl Iterator<Item = usize> {
        let lines = self.lines.iter().filter(move |line| line.to == ProbeLineDestination::Port(port));
        lines.map(|line| line.from).filter(|_| self.method.has_reflectors())
    }

    /// Number of lines that a port sends.
    pub fn count_lines_sent_by(&self, port: usize) -> u32 {
        clamp_to_u32(self.list_lines_sent_by(port).count() as u64)
    }

    /// Number of probes that a line sends in 1000 s, if it sends that long. `capacity` may send fewer; with random
    /// intervals it is the mean.
    pub fn probes_in_1000_s(&self) -> u64 {
        // The reader refuses an interval of 0. The 1 only avoids a division by 0 in other callers.
        let rounds = 1_000_000_000_000 / self.interval.as_u64().max(1);
        rounds.saturating_mul(self.train.into())
    }

    /// Number of turns: lines in different turns send one after the other.
    pub fn turn_count(&self) -> u32 {
        self.lines.iter().map(|line| line.turn.saturating_add(1)).max().unwrap_or(0)
    }

    /// Planned duration of all lines, without the wait for the last answers. With random intervals it is the mean. With
    /// a method that needs exclusive turns, it is the length of all time slots, waits included.
    pub fn total_duration(&self) -> Nanos {
        if self.method.needs_exclusive_turn() {
            return Nanos::new(self.slot.as_u64().saturating_mul(self.turn_count().into()));
        }
        let rounds = self.interval.as_u64().saturating_mul(self.count.into());
        Nanos::new(rounds.saturating_add(self.train_duration().as_u64()))
    }

    /// Time from the first to the last probe of a train.
    pub fn train_duration(&self) -> Nanos {
        Nanos::new(self.gap.as_u64().saturating_mul(self.train.saturating_sub(1).into()))
    }
}

/// Makes the lines from each port in `from` to each destination in `to`, but not from a port to itself.
///
/// Each port begins with the port after itself in `to`. So if all ports send at the same time, each port receives one
/// probe at a time.
pub(crate) fn make_probe_lines(from: &[usize], to: &[ProbeLineDestination]) -> Vec<PlannedProbeLine> {
    let mut lines = Vec::new();
    let mut seen = BTreeSet::new();
    for port in from {
        let own = to.iter().position(|end| *end == ProbeLineDestination::Port(*port));
        let (before, after) = to.split_at(own.map_or(0, |own| own + 1));
        let others = after.iter().chain(before).filter(|end| **end != ProbeLineDestination::Port(*port));
        // A port that a list names twice still has one line to each end.
        let new = others.filter(|end| seen.insert((*port, **end)));
        lines.extend((0..).zip(new).map(|(turn, to)| PlannedProbeLine { from: *port, to: *to, turn }));
    }
    lines
}

/// Sets the turn of each line to the first one in which no earlier line uses one of its ends.
pub(crate) fn assign_probe_line_turns(lines: &mut [PlannedProbeLine]) {
    let mut busy: BTreeSet<(ProbeLineDestination, u32)> = BTreeSet::new();
    for line in lines {
        let ends = [ProbeLineDestination::Port(line.from), line.to];
        line.turn =
            // Each earlier line blocks at most one turn, so a free turn is found long before the end of the range.
            (0..u32::MAX).find(|turn| ends.iter().all(|end| !busy.contains(&(*end, *turn)))).unwrap_or(0);
        busy.extend(ends.map(|end| (end, line.turn)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_probe_turns_use_each_port_once() {
        let ports: Vec<usize> = (0..8).collect();
        let ends: Vec<ProbeLineDestination> = ports.iter().copied().map(ProbeLineDestination::Port).collect();
        let mut lines = make_probe_lines(&ports, &ends);
        assign_probe_line_turns(&mut lines);
        let last = lines.iter().map(|line| line.turn).max().unwrap();
        assert!(last < 2 * 2 * 7, "{last}: each line meets at most 26 others");
        for turn in 0..=last {
            let of_turn = lines.iter().filter(|line| line.turn == turn);
            let ends: Vec<ProbeLineDestination> =
                of_turn.flat_map(|line| [ProbeLineDestination::Port(line.from), line.to]).collect();
            assert_eq!(ends.iter().collect::<BTreeSet<_>>().len(), ends.len(), "turn {turn}: {ends:?}");
        }
    }

    #[test]
    fn mesh_turn_sends_each_port_one_probe() {
        let ports: Vec<usize> = (0..7).collect();
        let ends: Vec<ProbeLineDestination> = ports.iter().copied().map(ProbeLineDestination::Port).collect();
        let lines = make_probe_lines(&ports, &ends);
        assert_eq!(lines.len(), 42);
        for turn in 0..6 {
            let receivers: BTreeSet<ProbeLineDestination> =
                lines.iter().filter(|line| line.turn == turn).map(|line| line.to).collect();
            assert_eq!(receivers.len(), 7, "turn {turn}");
        }
        assert!(lines.iter().all(|line| line.to != ProbeLineDestination::Port(line.from)));
    }

    #[test]
    fn repeated_probe_pair_is_one_line() {
        let host = ProbeLineDestination::Host("192.0.2.1:862".parse().unwrap());
        let found = make_probe_lines(
            &[3, 3],
            &[host, host, ProbeLineDestination::Port(3), ProbeLineDestination::Port(4)],
        );
        assert_eq!(
            found.iter().map(|line| line.to).collect::<Vec<_>>(),
            [ProbeLineDestination::Port(4), host]
        );
    }
}
