//! Reads databases in MaxMind's format (MMDB 2.0): a binary tree of address bits, whose leaves point to values.
//!
//! The tree is walked once, and its leaves become ranges. Databases of MaxMind, DB-IP, IPinfo and IPLocate
//! use different names for the same values; this module knows the usual ones.
//!
//! Invariant: any content gives ranges or an error. The length of the content bounds the time and the memory.

#[cfg(test)]
pub(super) mod sample;
mod values;

use super::lists::country_code;
use super::{AutonomousSystem, InvalidNamesFile, RangeList};
use packetrig_flow::IPV4_MAPPED_PREFIX;
use std::collections::HashMap;
use values::{MAX_PARTS, MmdbValue, ValueReader};

/// Marker directly before the metadata.
const METADATA_MARKER: &[u8] = b"\xab\xcd\xefMaxMind.com";
/// The metadata begins at most this many bytes before the end of the file.
const MAX_METADATA_DISTANCE: usize = 128 * 1024;
/// Number of zero bytes between the tree and the values.
const TREE_SEPARATOR_BYTES: usize = 16;

/// The content of a database, split into its parts.
pub(super) struct MmdbDatabase<'a> {
    tree: &'a [u8],
    values: &'a [u8],
    node_count: usize,
    /// Bytes of a node: two records of 24, 28 or 32 bits.
    node_bytes: usize,
    is_v6: bool,
}

/// The address ranges of a database, with their countries and autonomous systems.
#[derive(Default)]
pub(super) struct MmdbRanges {
    pub(super) countries: RangeList<Box<str>>,
    pub(super) systems: RangeList<AutonomousSystem>,
}

/// What a record of a tree node points to. Each node has two records, one for each value of the next address bit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TreeRecordTarget {
    Node(usize),
    Nothing,
    /// Offset in the section of values.
    Value(usize),
}

/// A position in the tree: the addresses whose first `length` bits are those of `bits`.
#[derive(Clone, Copy)]
struct AddressPrefixNode {
    bits: u128,
    length: u32,
}

impl<'a> MmdbDatabase<'a> {
    /// Opens a database; `None` if the bytes are not an MMDB database.
    pub(super) fn open(content: &'a [u8]) -> Result<Option<Self>, InvalidNamesFile> {
        let tail = content.len().saturating_sub(MAX_METADATA_DISTANCE);
        // The last marker counts, because the same bytes may also occur in the values.
        let marker =
            content[tail..].windows(METADATA_MARKER.len()).rposition(|window| window == METADATA_MARKER);
        let Some(marker) = marker else { return Ok(None) };
        let metadata =
            ValueReader::new(&content[tail + marker + METADATA_MARKER.len()..], MAX_PARTS).read_value(0);
        let damaged = || InvalidNamesFile::new("the MMDB database is damaged: its metadata cannot be read");
        let metadata = metadata.ok_or_else(damaged)?;
        let number = |name: &str| metadata.member(name)?.number();
        let nodes = number("node_count").ok_or_else(damaged)?;
        let bits = number("record_size").ok_or_else(damaged)?;
        // Each node has two records.
        let node_bytes = match bits {
            24 => 6,
            28 => 7,
            32 => 8,
            bits => {
                return Err(InvalidNamesFile::new(format!(
                    "the MMDB database has records of {bits} bits; only 24, 28 and 32 bits are supported"
                )));
            }
        };
        let content = &content[..tail + marker];
        // The number of nodes is part of the file, so the product may overflow.
        let tree_bytes = usize::try_from(nodes).ok().and_then(|nodes| nodes.checked_mul(node_bytes));
        let parts = tree_bytes.and_then(|bytes| content.split_at_checked(bytes));
        let Some((tree, values)) = parts.filter(|(_, values)| values.len() >= TREE_SEPARATOR_BYTES) else {
            return Err(InvalidNamesFile::new(
                "the MMDB database is damaged: its tree is longer than the file",
            ));
        };
        let node_count = tree.len() / node_bytes;
        let is_v6 = match number("ip_version") {
            Some(4) => false,
            Some(6) => true,
            _ => return Err(damaged()),
        };
        Ok(Some(Self { tree, values: &values[TREE_SEPARATOR_BYTES..], node_count, node_bytes, is_v6 }))
    }

    /// The ranges of all addresses with a country or an autonomous system.
    pub(super) fn read_ranges(&self) -> Result<MmdbRanges, InvalidNamesFile> {
        let mut walk = TreeWalk {
            database: self,
            found: MmdbRanges::default(),
            entries: HashMap::new(),
            // In an intact database, the walk visits each node once. The limit is a little higher and ends a loop.
            visits_left: self.node_count + 128,
            // With real databases, about six parts are read for each byte, because leaves share values by pointers.
            parts_left: MAX_PARTS.saturating_add(self.values.len().saturating_mul(16)),
        };
        let root = if self.node_count == 0 { TreeRecordTarget::Nothing } else { TreeRecordTarget::Node(0) };
        let whole = AddressPrefixNode { bits: 0, length: 0 };
        let ipv4 = if self.is_v6 { self.ipv4_root(root) } else { root };
        if self.is_v6 {
            // Databases repeat the tree of IPv4 below prefixes such as 2002::/16. The walk leaves these copies out.
            walk.add_ranges_below(root, whole, Some(ipv4))?;
        }
        // The ranges have IPv4 addresses mapped into IPv6 (RFC 4291, section 2.5.5.2).
        let mut mapped = [0; 16];
        mapped[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
        walk.add_ranges_below(
            ipv4,
            AddressPrefixNode { bits: u128::from_be_bytes(mapped), length: 96 },
            None,
        )?;
        Ok(walk.found)
    }

    /// Returns the record for all IPv4 addresses. A version-6 database has them below 96 zero bits.
    fn ipv4_root(&self, root: TreeRecordTarget) -> TreeRecordTarget {
        (0..96).fold(root, |record, _| match record {
            TreeRecordTarget::Node(node) => self.child_record(node, 0),
            leaf => leaf,
        })
    }

    /// Returns the record of a node for the next address bit. `side` is the value of the bit.
    fn child_record(&self, node: usize, side: usize) -> TreeRecordTarget {
        let Some(bytes) = self.tree.get(node * self.node_bytes..(node + 1) * self.node_bytes) else {
            return TreeRecordTarget::Nothing;
        };
        let number = match (self.node_bytes, side) {
            (6, side) => parse_big_endian(&bytes[side * 3..side * 3 + 3]),
            // The middle byte has the highest four bits of both records.
            (7, 0) => usize::from(bytes[3] >> 4) << 24 | parse_big_endian(&bytes[..3]),
            (7, _) => usize::from(bytes[3] & 0xf) << 24 | parse_big_endian(&bytes[4..]),
            (_, side) => parse_big_endian(&bytes[side * 4..side * 4 + 4]),
        };
        match number.checked_sub(self.node_count) {
            None => TreeRecordTarget::Node(number),
            Some(0) => TreeRecordTarget::Nothing,
            Some(beyond) => beyond
                .checked_sub(TREE_SEPARATOR_BYTES)
                .map_or(TreeRecordTarget::Nothing, TreeRecordTarget::Value),
        }
    }
}

fn parse_big_endian(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte))
}

/// The entries in [`MmdbRanges`] for the country and the autonomous system of a leaf.
#[derive(Clone, Copy, Default)]
struct LeafEntries {
    country: Option<u32>,
    system: Option<u32>,
}

struct TreeWalk<'a> {
    database: &'a MmdbDatabase<'a>,
    found: MmdbRanges,
    /// Decoded values by their offset: thousands of leaves share one value.
    entries: HashMap<usize, LeafEntries>,
    visits_left: usize,
    parts_left: usize,
}

impl TreeWalk<'_> {
    /// Adds the ranges below a record, except the ranges below `except`.
    fn add_ranges_below(
        &mut self,
        record: TreeRecordTarget,
        place: AddressPrefixNode,
        except: Option<TreeRecordTarget>,
    ) -> Result<(), InvalidNamesFile> {
        // A list instead of recursion, so that a deep tree needs no deep stack.
        let mut waiting = vec![(record, place)];
        while let Some((record, place)) = waiting.pop() {
            match record {
                TreeRecordTarget::Nothing => {}
                TreeRecordTarget::Value(at) => self.add_leaf(at, place)?,
                TreeRecordTarget::Node(_) if except == Some(record) => {}
                TreeRecordTarget::Node(node) => {
                    // An intact tree has each node once, and is at most 128 nodes deep: one for each bit of an address.
                    let next = self.visits_left.checked_sub(1).filter(|_| place.length < 128);
                    self.visits_left = next.ok_or_else(|| {
                        InvalidNamesFile::new(
                            "the MMDB database is damaged: its tree has a loop or is too deep",
                        )
                    })?;
                    let length = place.length + 1;
                    let one = AddressPrefixNode { bits: place.bits | 1 << (128 - length), length };
                    // The branch of bit one is pushed first, so the branch of bit zero is walked first. So the ranges
                    // are found nearly in order, and can be sorted quickly.
                    waiting.push((self.database.child_record(node, 1), one));
                    waiting
                        .push((self.database.child_record(node, 0), AddressPrefixNode { length, ..place }));
                }
            }
        }
        Ok(())
    }

    fn add_leaf(&mut self, at: usize, place: AddressPrefixNode) -> Result<(), InvalidNamesFile> {
        let entries = match self.entries.get(&at) {
            Some(known) => *known,
            None => self.read_leaf_entries(at)?,
        };
        // A shift by all 128 bits overflows; a prefix of that length is one address.
        let last = place.bits | u128::MAX.checked_shr(place.length).unwrap_or(0);
        if let Some(country) = entries.country {
            self.found.countries.add_entry(place.bits, last, country);
        }
        if let Some(system) = entries.system {
            self.found.systems.add_entry(place.bits, last, system);
        }
        Ok(())
    }

    fn read_leaf_entries(&mut self, at: usize) -> Result<LeafEntries, InvalidNamesFile> {
        let parts = MAX_PARTS.min(self.parts_left);
        let mut reader = ValueReader::new(self.database.values, parts);
        let value = reader.read_value(at);
        self.parts_left -= parts - reader.parts_left();
        let value = value.ok_or_else(|| {
            InvalidNamesFile::new(format!(
                "the MMDB database is damaged: the value at offset {at} cannot be read"
            ))
        })?;
        let entries = LeafEntries {
            country: country_of_leaf(&value).map(|code| self.found.countries.intern_value(code)),
            system: system_of_leaf(&value).map(|system| self.found.systems.intern_value(system)),
        };
        self.entries.insert(at, entries);
        Ok(entries)
    }
}

/// The country of a leaf: where its addresses are used, or if that is not known, the registered country of their owner.
fn country_of_leaf(leaf: &MmdbValue<'_>) -> Option<Box<str>> {
    let nested = ["country", "registered_country"]
        .iter()
        .find_map(|name| leaf.member(name)?.member("iso_code")?.text());
    let flat = ["country_code", "country"].iter().find_map(|name| leaf.member(name)?.text());
    country_code(nested.or(flat)?)
}

fn system_of_leaf(leaf: &MmdbValue<'_>) -> Option<AutonomousSystem> {
    let number = ["autonomous_system_number", "asn", "as_number"].iter().find_map(|name| {
        let value = leaf.member(name)?;
        // IPinfo writes `AS64500`.
        value.number().or_else(|| value.text()?.trim_start_matches("AS").parse().ok())
    })?;
    let names = ["autonomous_system_organization", "as_name", "as_organization", "organization", "name"];
    let name = names.iter().find_map(|name| leaf.member(name)?.text()).unwrap_or("");
    Some(AutonomousSystem {
        number: u32::try_from(number).ok().filter(|number| *number > 0)?,
        name: name.into(),
    })
}

#[cfg(test)]
mod tests;
