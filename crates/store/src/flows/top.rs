//! Who has most: records grouped by one thing, in bounded memory.
//!
//! A record has two halves. Grouped by source, each half counts for the end that sent it, grouped by destination for the end
//! that received it, so that one-way and two-way records of the same traffic give the same answer; grouped by anything else both
//! halves count for one group.
//!
//! Invariant: at most [`GROUPS_MOST`] groups are held. When there are more, the smaller half is let go into the rest, and no
//! group is shown as having less than it has by more than [`Top::doubt`].

use super::Error;
use super::filter::{FILTER_COLUMNS, Filter};
use super::scan::{Chunk, scan};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Groups held at once.
pub const GROUPS_MOST: usize = 1 << 19;

/// By what records are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The address that sent.
    Source,
    /// The address that received.
    Destination,
    /// Two addresses, whoever sent.
    Pair,
    /// The protocol.
    Protocol,
    /// The lower of the two ports, which as a rule is the service's, and the protocol.
    Port,
    /// Who exported.
    Exporter,
}

/// By what groups are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Bytes of IP.
    Bytes,
    /// Packets.
    Packets,
    /// Flows.
    Flows,
}

/// What a group is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// One address.
    Address([u8; 16]),
    /// Two, the lower first.
    Pair([u8; 16], [u8; 16]),
    /// A protocol.
    Protocol(u8),
    /// A port of a protocol.
    Port(u8, u16),
    /// An exporter and its domain.
    Exporter([u8; 16], u32),
}

/// What a group has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Flows: their first parts. A group by source or destination counts one for each direction.
    pub flows: u64,
    /// Packets.
    pub packets: u64,
    /// Bytes of IP.
    pub bytes: u64,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Top {
    /// The largest groups, largest first.
    pub groups: Vec<(Group, Sum)>,
    /// All of them together.
    pub total: Sum,
    /// How many groups there are; at most, if some were let go: those that came back are counted again.
    pub groups_seen: u64,
    /// By how much a group may have more than is shown, in what it is ordered by.
    pub doubt: u64,
}

const COLUMNS: [&str; 7] = [
    "packetDeltaCount",
    "octetDeltaCount",
    "reversePacketDeltaCount",
    "reverseOctetDeltaCount",
    "flowPart",
    "exporterIPv6Address",
    "observationDomainId",
];

/// The `most` largest groups of the records that a filter keeps.
pub fn top(files: &[PathBuf], filter: &Filter, by: By, order: Order, most: usize) -> Result<Top, Error> {
    top_within(files, filter, by, order, most, GROUPS_MOST)
}

fn top_within(
    files: &[PathBuf],
    filter: &Filter,
    by: By,
    order: Order,
    most: usize,
    bound: usize,
) -> Result<Top, Error> {
    let wanted = [&FILTER_COLUMNS[..], &COLUMNS[..]].concat();
    let mut groups =
        Groups { by, order, bound, sums: HashMap::new(), total: Sum::default(), gone: 0, doubt: 0 };
    scan(files, &wanted, filter.span, &mut |chunk| {
        for row in (0..chunk.rows).filter(|&row| filter.keeps(chunk, row)) {
            groups.count(chunk, row);
        }
        ControlFlow::Continue(())
    })?;
    Ok(groups.finish(most))
}

struct Groups {
    by: By,
    order: Order,
    bound: usize,
    sums: HashMap<Group, Sum>,
    total: Sum,
    gone: u64,
    doubt: u64,
}

impl Groups {
    fn count(&mut self, chunk: &Chunk, row: usize) {
        let columns = &chunk.columns;
        let number = |column: usize| columns[column].number(row);
        let [source, destination] = [1, 2].map(|column| columns[column].address(row));
        let first_part = u64::from(number(10) == 0);
        let half = |packets: usize, bytes: usize| Sum {
            flows: if number(packets) > 0 { first_part } else { 0 },
            packets: number(packets),
            bytes: number(bytes),
        };
        let (forward, reverse) = (half(6, 7), half(8, 9));
        let both = Sum {
            flows: first_part,
            packets: forward.packets.saturating_add(reverse.packets),
            bytes: forward.bytes.saturating_add(reverse.bytes),
        };
        let protocol = u8::try_from(number(5)).unwrap_or(u8::MAX);
        let port = u16::try_from(number(3).min(number(4))).unwrap_or(u16::MAX);
        match self.by {
            By::Source => {
                self.add(Group::Address(source), forward);
                self.add(Group::Address(destination), reverse);
            }
            By::Destination => {
                self.add(Group::Address(destination), forward);
                self.add(Group::Address(source), reverse);
            }
            By::Pair => self.add(Group::Pair(source.min(destination), source.max(destination)), both),
            By::Protocol => self.add(Group::Protocol(protocol), both),
            By::Port => self.add(Group::Port(protocol, port), both),
            By::Exporter => {
                let domain = u32::try_from(number(12)).unwrap_or(u32::MAX);
                self.add(Group::Exporter(columns[11].address(row), domain), both);
            }
        }
    }

    fn add(&mut self, group: Group, sum: Sum) {
        if sum == Sum::default() {
            return;
        }
        self.total.add(sum);
        self.sums.entry(group).or_default().add(sum);
        if self.sums.len() > self.bound {
            self.let_go();
        }
    }

    /// Lets the smaller half go; of groups of one size, those that the answer would name last.
    fn let_go(&mut self) {
        let order = self.order;
        let rank = |group: &Group, sum: &Sum| (sum.of(order), Reverse(*group));
        let mut ranks: Vec<_> = self.sums.iter().map(|(group, sum)| rank(group, sum)).collect();
        let middle = (ranks.len() - 1) / 2;
        let (_, &mut limit, _) = ranks.select_nth_unstable(middle);
        self.sums.retain(|group, sum| rank(group, sum) > limit);
        self.gone += (ranks.len() - self.sums.len()) as u64;
        self.doubt = self.doubt.saturating_add(limit.0);
    }

    fn finish(self, most: usize) -> Top {
        let (order, groups_seen) = (self.order, self.sums.len() as u64 + self.gone);
        let mut groups: Vec<_> = self.sums.into_iter().collect();
        groups.sort_unstable_by_key(|&(group, sum)| (Reverse(sum.of(order)), group));
        groups.truncate(most);
        Top { groups, total: self.total, groups_seen, doubt: self.doubt }
    }
}

impl Sum {
    /// What it is ordered by.
    pub const fn of(&self, order: Order) -> u64 {
        match order {
            Order::Bytes => self.bytes,
            Order::Packets => self.packets,
            Order::Flows => self.flows,
        }
    }

    /// Adds another's.
    pub fn add(&mut self, other: Self) {
        self.flows = self.flows.saturating_add(other.flows);
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::sample::{address, record, records};
    use crate::flows::scan::flow_files;
    use crate::flows::{ParquetOptions, ParquetSink, RecordSink, Source};
    use packetrig_flow::FlowRecord;

    fn stored(records: &[FlowRecord]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let directory = tempfile::tempdir().unwrap();
        let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
        sink.write(records, Source::default()).unwrap();
        sink.close().1.unwrap();
        let files = flow_files(&[directory.path().to_owned()]).unwrap();
        (directory, files)
    }

    #[test]
    fn senders_and_receivers_count_their_own_half() {
        let (_directory, files) = stored(&[record(0), record(3), record(6)]);
        let top = |by| top(&files, &Filter::default(), by, Order::Packets, 10).unwrap();
        // Records 0, 3 and 6 have 1, 4 and 7 packets forward to one address, and 0, 6 and 12 back.
        let sum = |flows, packets| Sum { flows, packets, bytes: packets * 100 };
        let at = |number, flows, packets| (Group::Address(address(number)), sum(flows, packets));
        let by_source = top(By::Source);
        assert_eq!(by_source.groups, [at(9999, 2, 18), at(6, 1, 7), at(3, 1, 4), at(0, 1, 1)]);
        assert_eq!((by_source.total.packets, by_source.groups_seen, by_source.doubt), (30, 4, 0));
        assert_eq!(top(By::Destination).groups, [at(6, 1, 12), at(9999, 3, 12), at(3, 1, 6)]);
        let pair = (Group::Pair(address(6), address(9999)), sum(1, 19));
        assert_eq!(top(By::Pair).groups[0], pair);
        let protocols = [(Group::Protocol(6), sum(2, 20)), (Group::Protocol(17), sum(1, 10))];
        assert_eq!(top(By::Protocol).groups, protocols);
        assert_eq!(top(By::Port).groups[1], (Group::Port(17, 443), sum(1, 10)));
        assert_eq!(top(By::Exporter).groups, [(Group::Exporter([0; 16], 0), sum(3, 30))]);
    }

    #[test]
    fn one_way_and_two_way_records_have_the_same_talkers() {
        let two_way = records(300);
        let one_way: Vec<_> = two_way
            .iter()
            .flat_map(|record| {
                let (there, back) = record.split();
                [Some(there), back]
            })
            .flatten()
            .collect();
        let (_first, two_way) = stored(&two_way);
        let (_second, one_way) = stored(&one_way);
        for by in [By::Source, By::Destination] {
            let ask = |files| top(files, &Filter::default(), by, Order::Bytes, 1000).unwrap();
            assert_eq!(ask(&two_way), ask(&one_way));
        }
    }

    #[test]
    fn what_does_not_fit_is_a_bounded_doubt() {
        let mut given = records(2000);
        given.rotate_left(1000);
        let (_directory, files) = stored(&given);
        let exact = top(&files, &Filter::default(), By::Source, Order::Bytes, 2000).unwrap();
        let rough = top_within(&files, &Filter::default(), By::Source, Order::Bytes, 50, 100).unwrap();
        assert_eq!((rough.total, rough.groups.len()), (exact.total, 50));
        assert!(rough.doubt > 0 && rough.groups_seen >= 2000);
        let exactly: HashMap<_, _> = exact.groups.iter().copied().collect();
        for (group, sum) in &rough.groups {
            let truth = exactly[group].bytes;
            assert!(sum.bytes <= truth && truth - sum.bytes <= rough.doubt, "{group:?}: {sum:?} of {truth}");
        }
        assert_eq!(rough.groups[0].0, exact.groups[0].0);
    }

    /// Records of one packet each, with the sources asked for.
    fn equal(sources: impl IntoIterator<Item = u16>) -> Vec<FlowRecord> {
        let small = |source| {
            let mut record = record(0);
            record.key.source = address(source);
            record
        };
        sources.into_iter().map(small).collect()
    }

    #[test]
    fn of_groups_of_one_size_only_half_is_let_go() {
        let (_directory, files) = stored(&equal(0..101));
        let top = top_within(&files, &Filter::default(), By::Source, Order::Packets, 200, 100).unwrap();
        assert_eq!((top.groups_seen, top.doubt), (101, 1));
        let left: Vec<_> = top.groups.iter().map(|&(group, _)| group).collect();
        assert_eq!(left, (0..50).map(|number| Group::Address(address(number))).collect::<Vec<_>>());
    }

    #[test]
    fn no_more_groups_are_seen_than_said() {
        // Those that were let go come back.
        let (_directory, files) = stored(&equal((0..150).chain(0..150)));
        let top = top_within(&files, &Filter::default(), By::Source, Order::Packets, 200, 100).unwrap();
        assert!(top.groups_seen > 150, "{}", top.groups_seen);
        assert!(top.groups.len() >= 50);
    }

    #[test]
    fn filters_are_kept() {
        let (_directory, files) = stored(&records(1000));
        let packets =
            |filter: Filter| top(&files, &filter, By::Exporter, Order::Packets, 1).unwrap().total.flows;
        let of = |change: fn(&mut Filter)| {
            let mut filter = Filter::default();
            change(&mut filter);
            packets(filter)
        };
        // Every third record is a first part.
        assert_eq!(of(|_| {}), 334);
        assert_eq!(of(|filter| filter.addresses = vec!["198.18.0.3".parse().unwrap()]), 1);
        assert_eq!(of(|filter| filter.addresses = vec!["198.18.0.0/24".parse().unwrap()]), 86);
        assert_eq!(of(|filter| filter.ports = vec![443]), 334);
        assert_eq!(of(|filter| filter.ports = vec![40_003, 1]), 1);
        assert_eq!(of(|filter| filter.protocols = vec![17]), 84);
        assert_eq!(of(|filter| filter.protocols = vec![1]), 0);
    }
}
