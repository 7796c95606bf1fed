//! Who has most: records grouped by one thing or several, in bounded memory.
//!
//! A record has two halves. Of a grouping that tells source from destination, each half counts for itself, and the filter is asked
//! of each half, so that one-way and two-way records of the same traffic give the same answer; of any other grouping both
//! halves count for one group.
//!
//! Invariant: at most [`GROUPS_MOST`] groups are held. When there are more, the smaller half is let go into the rest, and no
//! group is shown as having less than it has by more than [`TopAnswer::doubt`].

use super::Error;
use super::filter::{FlowFilter, per_second};
use super::grouping::{FlowGrouping, GroupValue};
use super::key_hash::KeyHashes;
use super::scan::{RowChunk, scan};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Groups held at once.
pub const GROUPS_MOST: usize = 1 << 19;

#[derive(Clone, Debug)]
pub struct TopQuestion {
    /// By what records are grouped.
    pub grouping: FlowGrouping,
    /// By what groups are ordered.
    pub order: TopOrder,
    /// Groups shown, at most.
    pub most: usize,
    /// Groups with fewer packets are not shown.
    pub least_packets: u64,
    /// Groups with fewer bytes are not shown.
    pub least_bytes: u64,
}

impl TopQuestion {
    /// The largest groups, whatever their size.
    pub const fn new(grouping: FlowGrouping, order: TopOrder, most: usize) -> Self {
        Self { grouping, order, most, least_packets: 0, least_bytes: 0 }
    }
}

/// By what groups are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopOrder {
    Bytes,
    Packets,
    Flows,
    /// Packets by the time from the first to the last.
    PacketRate,
    /// Bits by that time.
    BitRate,
    /// Bytes of a packet on average.
    PacketSize,
    /// The time from the first to the last packet.
    Duration,
}

/// What a group has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupTotals {
    /// Flows: their first parts. A group that tells source from destination counts one for each direction.
    pub flows: u64,
    pub packets: u64,
    pub bytes: u64,
}

/// What a group has, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSum {
    /// Its flows, packets and bytes.
    pub sum: GroupTotals,
    /// First packet, nanoseconds since 1970.
    pub first_ns: u64,
    pub last_ns: u64,
}

/// A group and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopGroup {
    /// What it is: a value for each part of the grouping.
    pub values: Vec<GroupValue>,
    pub has: GroupSum,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopAnswer {
    /// The largest groups, largest first.
    pub groups: Vec<TopGroup>,
    /// All of them together, also those that are too small to be shown.
    pub total: GroupSum,
    /// How many groups there are; at most, if some were let go: those that came back are counted again.
    pub groups_seen: u64,
    /// By how much a group may have more than is shown, in what [`TopOrder::counted`] says.
    pub doubt: u64,
}

const COLUMNS: [&str; 7] = [
    "flowStartNanoseconds",
    "flowEndNanoseconds",
    "packetDeltaCount",
    "octetDeltaCount",
    "reversePacketDeltaCount",
    "reverseOctetDeltaCount",
    "flowPart",
];

/// The largest groups of the records that a filter keeps.
pub fn top(files: &[PathBuf], filter: &FlowFilter, question: &TopQuestion) -> Result<TopAnswer, Error> {
    top_within(files, filter, question, GROUPS_MOST)
}

fn top_within(
    files: &[PathBuf],
    filter: &FlowFilter,
    question: &TopQuestion,
    bound: usize,
) -> Result<TopAnswer, Error> {
    let wanted = [&question.grouping.columns()[..], &COLUMNS[..]].concat();
    let mut groups = TopGroups::new(question, bound);
    if question.grouping.is_of_direction() {
        let way_back = filter.of_way_back();
        scan(files, &filter.or(&way_back), &wanted, &mut |chunk, rows| {
            groups.count(chunk, &filter.rows_among(chunk, rows.to_vec()), FlowDirection::There);
            groups.count(chunk, &way_back.rows_among(chunk, rows.to_vec()), FlowDirection::Back);
            ControlFlow::Continue(())
        })?;
    } else {
        scan(files, filter, &wanted, &mut |chunk, rows| {
            groups.count(chunk, rows, FlowDirection::Both);
            ControlFlow::Continue(())
        })?;
    }
    Ok(groups.finish())
}

/// The half of a record that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlowDirection {
    There,
    Back,
    Both,
}

struct TopGroups<'a> {
    question: &'a TopQuestion,
    bound: usize,
    sums: HashMap<Box<[u8]>, GroupSum, KeyHashes>,
    total: GroupSum,
    gone: u64,
    doubt: u64,
}

impl<'a> TopGroups<'a> {
    fn new(question: &'a TopQuestion, bound: usize) -> Self {
        Self { question, bound, sums: HashMap::default(), total: GroupSum::default(), gone: 0, doubt: 0 }
    }

    fn count(&mut self, chunk: &RowChunk, rows: &[usize], direction: FlowDirection) {
        let keys = self.question.grouping.keys(chunk, direction == FlowDirection::Back);
        let columns = COLUMNS.map(|name| chunk.column(name).numbers(chunk.rows));
        let columns = columns.each_ref().map(|numbers| &numbers[..]);
        let mut key = Vec::new();
        for &row in rows {
            let has = half(columns.map(|numbers| numbers.get(row).copied().unwrap_or(0)), direction);
            if has.sum != GroupTotals::default() {
                keys.write(row, &mut key);
                self.add(&key, has);
            }
        }
    }

    fn add(&mut self, key: &[u8], has: GroupSum) {
        self.total.add(has);
        if let Some(sum) = self.sums.get_mut(key) {
            sum.add(has);
            return;
        }
        self.sums.insert(key.into(), has);
        if self.sums.len() > self.bound {
            self.let_go();
        }
    }

    /// Lets the smaller half go; of groups of one size, those that the answer would name last.
    fn let_go(&mut self) {
        let order = self.question.order.counted();
        let mut ranks: Vec<_> = self.sums.iter().map(|(key, has)| (has.of(order), Reverse(key))).collect();
        let middle = (ranks.len() - 1) / 2;
        let (_, (limit, Reverse(last)), _) = ranks.select_nth_unstable(middle);
        let limit = *limit;
        let last = (**last).clone();
        let before = self.sums.len();
        self.sums.retain(|key, has| (has.of(order), Reverse(key)) > (limit, Reverse(&last)));
        self.gone += (before - self.sums.len()) as u64;
        self.doubt = self.doubt.saturating_add(limit);
    }

    fn finish(self) -> TopAnswer {
        let TopQuestion { grouping, order, most, least_packets, least_bytes } = self.question;
        let groups_seen = self.sums.len() as u64 + self.gone;
        let is_shown = |has: &GroupSum| has.sum.packets >= *least_packets && has.sum.bytes >= *least_bytes;
        let mut groups: Vec<_> = self.sums.into_iter().filter(|(_, has)| is_shown(has)).collect();
        groups.sort_unstable_by(|(one, has), (other, more)| {
            more.of(*order).cmp(&has.of(*order)).then_with(|| one.cmp(other))
        });
        groups.truncate(*most);
        let groups = groups.into_iter().map(|(key, has)| TopGroup { values: grouping.values(&key), has });
        TopAnswer { groups: groups.collect(), total: self.total, groups_seen, doubt: self.doubt }
    }
}

/// What a record has in a direction, from its values, which are in the order of [`COLUMNS`].
fn half(values: [u64; COLUMNS.len()], direction: FlowDirection) -> GroupSum {
    let [first_ns, last_ns, packets, bytes, packets_back, bytes_back, part] = values;
    let first_part = u64::from(part == 0);
    let sum = match direction {
        FlowDirection::There => {
            GroupTotals { flows: if packets > 0 { first_part } else { 0 }, packets, bytes }
        }
        FlowDirection::Back => GroupTotals {
            flows: if packets_back > 0 { first_part } else { 0 },
            packets: packets_back,
            bytes: bytes_back,
        },
        FlowDirection::Both => GroupTotals {
            flows: first_part,
            packets: packets.saturating_add(packets_back),
            bytes: bytes.saturating_add(bytes_back),
        },
    };
    GroupSum { sum, first_ns, last_ns }
}

impl TopOrder {
    /// The count by which groups are let go when there are too many: of a rate, what it is made of.
    #[must_use]
    pub const fn counted(self) -> Self {
        match self {
            Self::Bytes | Self::BitRate | Self::PacketSize | Self::Duration => Self::Bytes,
            Self::Packets | Self::PacketRate => Self::Packets,
            Self::Flows => Self::Flows,
        }
    }
}

impl GroupSum {
    /// What it is ordered by. Rates are whole numbers; without a time they are zero.
    pub fn of(&self, order: TopOrder) -> u64 {
        let duration_ns = self.last_ns.saturating_sub(self.first_ns);
        let GroupTotals { flows, packets, bytes } = self.sum;
        match order {
            TopOrder::Bytes => bytes,
            TopOrder::Packets => packets,
            TopOrder::Flows => flows,
            TopOrder::PacketRate => per_second(packets, 1, duration_ns),
            TopOrder::BitRate => per_second(bytes, 8, duration_ns),
            TopOrder::PacketSize => bytes.checked_div(packets).unwrap_or(0),
            TopOrder::Duration => duration_ns,
        }
    }

    /// Adds another's. One without anything has no time.
    fn add(&mut self, other: Self) {
        let is_first = self.sum == GroupTotals::default();
        self.first_ns = if is_first { other.first_ns } else { self.first_ns.min(other.first_ns) };
        self.last_ns = self.last_ns.max(other.last_ns);
        self.sum.add(other.sum);
    }
}

impl GroupTotals {
    pub fn add(&mut self, other: Self) {
        self.flows = self.flows.saturating_add(other.flows);
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

#[cfg(test)]
mod tests;
