//! Groupings of records: by columns, or by values made of several columns.

mod network;

use super::cells::ColumnCells;
use super::columns::{FlowColumn, counterpart_column, find_column, flow_columns};
use super::names::{
    FlowNames, NAME_COLUMNS, NameColumn, NameColumnValues, NameKind, NameValue, find_name_column,
};
use super::scan::RowChunk;
pub use network::{AddressNetwork, NetworkLengths};
use packetrig_flow::element::ElementKind;
use packetrig_units::{clamp_to_u8, clamp_to_u16, clamp_to_u32};
use std::str::FromStr;
use std::sync::Arc;

/// Maximum number of parts of a grouping.
const MAX_PARTS: usize = 8;
/// Maximum number of bytes of a word in a key. Longer words are cut, so longer words with the same
/// beginning become one group.
const MAX_GROUP_WORD_BYTES: usize = 255;

/// The values that records are grouped by. If the grouping distinguishes source from destination, each direction of a record
/// counts as a record of its own; otherwise both count together.
#[derive(Clone, Debug)]
pub struct FlowGrouping {
    parts: Vec<GroupPart>,
    names: Arc<FlowNames>,
}

/// Groupings are equal if they have the same parts.
impl PartialEq for FlowGrouping {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Eq for FlowGrouping {}

/// One property by which records are grouped.
#[derive(Clone, Copy, Debug)]
pub enum GroupPart {
    /// The value of a column.
    Column(&'static FlowColumn),
    /// The network of the address in a column.
    Network(&'static FlowColumn, NetworkLengths),
    /// The name of a column's value, for example the country of an address.
    Name(&'static NameColumn),
    /// Source and destination address as a pair, in either direction.
    Pair,
    /// The protocol, and the lower of the two ports, which normally is the port of the service.
    Port,
    Exporter,
}

/// The value that all records of a group have in one part of the grouping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupValue {
    Number(u64),
    Address([u8; 16]),
    Network(AddressNetwork),
    Mac([u8; 6]),
    Word(String),
    /// Two addresses, the lower first.
    Pair([u8; 16], [u8; 16]),
    /// A protocol and a port.
    Port(u8, u16),
    /// An exporter's address and observation domain.
    Exporter([u8; 16], u32),
}

/// Reason why a text is not a valid grouping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGrouping {
    #[error(
        "cannot group records by `{word}`; possible: pair, port, exporter, networks such as src-ip/24, names ({}), and columns: {}",
        name_column_names(),
        short_names()
    )]
    Unknown { word: String },
    #[error("`{word}` needs {wanted}; give it with --names FILE, for alerts with --alert-names FILE")]
    NoNames { word: &'static str, wanted: &'static str },
    #[error("cannot group records by more than {MAX_PARTS} values")]
    TooMany,
    #[error("cannot group records by `{word}` twice")]
    Twice { word: String },
}

fn short_names() -> String {
    flow_columns().iter().map(|column| column.short).collect::<Vec<_>>().join(", ")
}

fn name_column_names() -> String {
    NAME_COLUMNS.iter().map(|column| column.short).collect::<Vec<_>>().join(", ")
}

impl PartialEq for GroupPart {
    fn eq(&self, other: &Self) -> bool {
        // Parts with one name are equal, so a grouping cannot have both `src-ip` and `src-ip/24`.
        self.name() == other.name()
    }
}

impl Eq for GroupPart {}

impl FromStr for GroupPart {
    type Err = InvalidGrouping;

    fn from_str(word: &str) -> Result<Self, InvalidGrouping> {
        let lower = word.to_ascii_lowercase();
        if let Some((name, lengths)) = lower.split_once('/') {
            let column = find_grouping_column(name).filter(|column| column.kind == ElementKind::Address);
            let lengths = NetworkLengths::from_words(lengths.split('/'));
            let network = column.zip(lengths).map(|(column, lengths)| Self::Network(column, lengths));
            return network.ok_or_else(|| InvalidGrouping::Unknown { word: word.to_owned() });
        }
        let column = match lower.as_str() {
            "pair" => return Ok(Self::Pair),
            "port" => return Ok(Self::Port),
            "exporter" => return Ok(Self::Exporter),
            word => {
                if let Some(column) = find_name_column(word) {
                    return Ok(Self::Name(column));
                }
                find_grouping_column(word)
            }
        };
        column.map(Self::Column).ok_or_else(|| InvalidGrouping::Unknown { word: word.to_owned() })
    }
}

fn find_grouping_column(word: &str) -> Option<&'static FlowColumn> {
    find_column(match word {
        "source" => "src-ip",
        "destination" => "dst-ip",
        "proto" => "protocol",
        word => word,
    })
}

impl FromStr for FlowGrouping {
    type Err = InvalidGrouping;

    fn from_str(text: &str) -> Result<Self, InvalidGrouping> {
        let mut parts: Vec<GroupPart> = Vec::new();
        for word in text.split(',').map(str::trim) {
            let part = word.parse()?;
            if parts.contains(&part) {
                return Err(InvalidGrouping::Twice { word: word.to_owned() });
            }
            parts.push(part);
        }
        // The limit bounds the bytes of a key, and so the memory of the table of groups.
        if parts.len() > MAX_PARTS {
            return Err(InvalidGrouping::TooMany);
        }
        Ok(Self { parts, names: Arc::default() })
    }
}

impl GroupPart {
    /// Name of the part on the command line.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Column(column) | Self::Network(column, _) => column.short,
            Self::Name(column) => column.short,
            Self::Pair => "pair",
            Self::Port => "port",
            Self::Exporter => "exporter",
        }
    }

    fn distinguishes_direction(&self) -> bool {
        match self {
            Self::Column(column) | Self::Network(column, _) => counterpart_column(column.name) != column.name,
            Self::Name(column) => column.distinguishes_direction(),
            Self::Pair | Self::Port | Self::Exporter => false,
        }
    }

    fn needed_columns(&self) -> Vec<&'static str> {
        match self {
            // Both columns are read, because the key of the reverse direction uses the counterpart.
            Self::Column(column) | Self::Network(column, _) => {
                vec![column.name, counterpart_column(column.name)]
            }
            Self::Name(column) => column.needed_columns(),
            Self::Pair => vec!["sourceIPv6Address", "destinationIPv6Address"],
            Self::Port => vec!["protocolIdentifier", "sourceTransportPort", "destinationTransportPort"],
            Self::Exporter => vec!["exporterIPv6Address", "observationDomainId"],
        }
    }

    /// Finds the part's columns in a chunk, or the columns of the reverse direction.
    fn find_group_columns<'a>(
        &self,
        names: &'a FlowNames,
        chunk: &'a RowChunk,
        is_back: bool,
    ) -> GroupCells<'a> {
        let addresses = ["sourceIPv6Address", "destinationIPv6Address"];
        let ports = ["sourceTransportPort", "destinationTransportPort"];
        match self {
            Self::Column(column) => {
                let name = if is_back { counterpart_column(column.name) } else { column.name };
                GroupCells::Column(column.kind, chunk.column(name))
            }
            Self::Network(column, lengths) => {
                let name = if is_back { counterpart_column(column.name) } else { column.name };
                GroupCells::Network(*lengths, chunk.column(name))
            }
            Self::Name(column) => GroupCells::Name(column.find_name_values(names, chunk, is_back)),
            Self::Pair => GroupCells::Pair(addresses.map(|name| chunk.column(name))),
            Self::Port => {
                let protocol = chunk.column("protocolIdentifier");
                GroupCells::Port { protocol, ports: ports.map(|name| chunk.column(name)) }
            }
            Self::Exporter => GroupCells::Exporter {
                address: chunk.column("exporterIPv6Address"),
                domain: chunk.column("observationDomainId"),
            },
        }
    }

    /// Reads the part's value from the start of `key`, and advances `key` past it.
    fn read_value(&self, key: &mut &[u8]) -> Option<GroupValue> {
        Some(match self {
            Self::Column(column) => match column.kind {
                ElementKind::Address => GroupValue::Address(read_bytes(key)?),
                ElementKind::Mac => GroupValue::Mac(read_bytes(key)?),
                ElementKind::Word | ElementKind::Fields => GroupValue::Word(read_word(key)?),
                ElementKind::Unsigned(_) | ElementKind::Time | ElementKind::Flag => {
                    GroupValue::Number(u64::from_be_bytes(read_bytes(key)?))
                }
            },
            Self::Network(_, lengths) => GroupValue::Network(lengths.network_of(read_bytes(key)?)),
            Self::Name(column) if column.kind == NameKind::AsNumber => {
                GroupValue::Number(u64::from_be_bytes(read_bytes(key)?))
            }
            Self::Name(_) => GroupValue::Word(read_word(key)?),
            Self::Pair => GroupValue::Pair(read_bytes(key)?, read_bytes(key)?),
            Self::Port => {
                let [protocol] = read_bytes(key)?;
                GroupValue::Port(protocol, u16::from_be_bytes(read_bytes(key)?))
            }
            Self::Exporter => GroupValue::Exporter(read_bytes(key)?, u32::from_be_bytes(read_bytes(key)?)),
        })
    }
}

/// The columns of a part in a chunk.
enum GroupCells<'a> {
    Column(ElementKind, &'a ColumnCells),
    Network(NetworkLengths, &'a ColumnCells),
    Name(NameColumnValues<'a>),
    Pair([&'a ColumnCells; 2]),
    Port { protocol: &'a ColumnCells, ports: [&'a ColumnCells; 2] },
    Exporter { address: &'a ColumnCells, domain: &'a ColumnCells },
}

impl GroupCells<'_> {
    /// Appends the value in a row to a key. Equal values have equal keys. Keys sort like their values, except that a
    /// shorter word comes before a longer one.
    fn append_value(&self, row: usize, key: &mut Vec<u8>) {
        match self {
            Self::Column(kind, cells) => append_cell(*kind, cells, row, key),
            Self::Network(lengths, cells) => {
                key.extend_from_slice(&lengths.network_of(cells.address_at(row)).address);
            }
            Self::Name(cells) => match cells.value_at(row) {
                NameValue::Number(number) => key.extend_from_slice(&u64::from(number).to_be_bytes()),
                NameValue::Word(word) => append_key_text(word, key),
            },
            Self::Pair(ends) => {
                // The values are sorted, so that both directions have the same key.
                let mut ends = ends.map(|cells| cells.address_at(row));
                ends.sort_unstable();
                key.extend_from_slice(ends.as_flattened());
            }
            Self::Port { protocol, ports } => {
                let [one, other] = ports.map(|cells| cells.number_at(row));
                // Columns of other programs' files may be wider than a protocol or a port.
                key.push(clamp_to_u8(protocol.number_at(row)));
                key.extend_from_slice(&clamp_to_u16(one.min(other)).to_be_bytes());
            }
            Self::Exporter { address, domain } => {
                key.extend_from_slice(&address.address_at(row));
                key.extend_from_slice(&clamp_to_u32(domain.number_at(row)).to_be_bytes());
            }
        }
    }
}

/// Makes the group keys of the rows of a chunk.
pub(super) struct GroupKeyWriter<'a> {
    parts: Vec<GroupCells<'a>>,
}

impl GroupKeyWriter<'_> {
    /// If the key is the value of one column, and the column has a dictionary: for each row, the index of its value in
    /// the dictionary, and the length of the dictionary.
    pub(super) fn key_codes(&self) -> Option<(&[u32], usize)> {
        match &self.parts[..] {
            [GroupCells::Column(_, cells)] => cells.codes(),
            _ => None,
        }
    }

    /// Replaces the content of `key` by the key of a row.
    pub(super) fn write_group_key(&self, row: usize, key: &mut Vec<u8>) {
        key.clear();
        for part in &self.parts {
            part.append_value(row, key);
        }
    }
}

fn append_cell(kind: ElementKind, cells: &ColumnCells, row: usize, key: &mut Vec<u8>) {
    match kind {
        ElementKind::Address => key.extend_from_slice(&cells.address_at(row)),
        ElementKind::Mac => key.extend_from_slice(&cells.mac_at(row)),
        ElementKind::Word | ElementKind::Fields => append_key_text(cells.word_at(row), key),
        ElementKind::Unsigned(_) | ElementKind::Time | ElementKind::Flag => {
            // Big-endian, so that keys compare like numbers: groups of equal size are shown in this order.
            key.extend_from_slice(&cells.number_at(row).to_be_bytes());
        }
    }
}

fn append_key_text(word: &str, key: &mut Vec<u8>) {
    // The word is cut at a character, so that a truncated word is still valid text.
    let word = &word.as_bytes()[..word.floor_char_boundary(MAX_GROUP_WORD_BYTES)];
    // The length is at most MAX_GROUP_WORD_BYTES, so it fits into a byte. It comes first, so that the key
    // can be read back.
    key.push(clamp_to_u8(word.len() as u64));
    key.extend_from_slice(word);
}

fn read_word(key: &mut &[u8]) -> Option<String> {
    let [length] = read_bytes(key)?;
    let (word, rest) = key.split_at_checked(length.into())?;
    *key = rest;
    Some(String::from_utf8_lossy(word).into_owned())
}

fn read_bytes<const N: usize>(key: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = key.split_first_chunk::<N>()?;
    *key = rest;
    Some(*first)
}

impl FlowGrouping {
    /// The grouping of all records into one group.
    pub fn everything() -> Self {
        Self { parts: Vec::new(), names: Arc::default() }
    }

    /// Returns the grouping with names, which parts such as `src-country` need. Fails if `names` lacks needed names.
    pub fn with_names(self, names: &Arc<FlowNames>) -> Result<Self, InvalidGrouping> {
        let missing = self.parts.iter().find_map(|part| match part {
            GroupPart::Name(column) if !names.has_names_of_kind(column.kind) => Some(column),
            _ => None,
        });
        match missing {
            Some(column) => Err(InvalidGrouping::NoNames {
                word: column.short,
                wanted: column.kind.needed_file_description(),
            }),
            None => Ok(Self { names: Arc::clone(names), ..self }),
        }
    }

    /// The parts of the grouping, in order.
    pub fn parts(&self) -> &[GroupPart] {
        &self.parts
    }

    /// Returns whether the grouping distinguishes source from destination.
    pub fn distinguishes_direction(&self) -> bool {
        self.parts.iter().any(GroupPart::distinguishes_direction)
    }

    pub(super) fn needed_columns(&self) -> Vec<&'static str> {
        self.parts.iter().flat_map(GroupPart::needed_columns).collect()
    }

    /// Returns the keys of a chunk's rows; with `is_back`, the keys of their reverse direction.
    pub(super) fn group_keys_of_rows<'a>(&'a self, chunk: &'a RowChunk, is_back: bool) -> GroupKeyWriter<'a> {
        let parts = self.parts.iter().map(|part| part.find_group_columns(&self.names, chunk, is_back));
        GroupKeyWriter { parts: parts.collect() }
    }

    /// Reads the values of the parts from a key.
    pub(super) fn read_values(&self, mut key: &[u8]) -> Vec<GroupValue> {
        self.parts.iter().filter_map(|part| part.read_value(&mut key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouping_accepts_column_and_nfdump_names() {
        let names = |text: &str| {
            let grouping: FlowGrouping = text.parse().unwrap();
            grouping.parts().iter().map(GroupPart::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("src-ip, dst-port"), "src-ip dst-port");
        assert_eq!(names("srcip,DSTPORT,proto,bgpSourceAsNumber"), "src-ip dst-port protocol src-as");
        assert_eq!(names("source"), "src-ip");
        for wrong in [
            "src-ip/33/64",
            "src-ip/129",
            "src-ip/",
            "src-port/8",
            "pair/24",
            "",
            "src-ip,",
            "colour",
            "src-ip,source",
            "in-if,out-if,vlan,tos,part,loss,start,end,flags",
        ] {
            assert!(wrong.parse::<FlowGrouping>().is_err(), "{wrong}");
        }
        assert!("colour".parse::<FlowGrouping>().unwrap_err().to_string().contains("next-hop"));
    }
}
