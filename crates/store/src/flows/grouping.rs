//! By what records are grouped: one column or several, or what is made of some.

use super::cells::ColumnCells;
use super::columns::{FlowColumn, columns, counterpart, find_column};
use super::scan::RowChunk;
use packetrig_flow::element::ElementKind;
use std::str::FromStr;

/// Parts of a grouping, at most.
const PARTS_MOST: usize = 8;
/// Bytes of a word that tell groups apart.
const WORD_MOST: usize = 255;

/// By what records are grouped. Of a grouping that tells source from destination, each direction of a record is counted for
/// itself, as if it were a record of its own; of any other, both are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowGrouping {
    parts: Vec<GroupPart>,
}

/// One thing by which records are grouped.
#[derive(Clone, Copy, Debug)]
pub enum GroupPart {
    /// The value of a column.
    Column(&'static FlowColumn),
    /// Two addresses, whoever sent.
    Pair,
    /// The lower of the two ports, which as a rule is the service's, and the protocol.
    Port,
    Exporter,
}

/// What a group has in one part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupValue {
    Number(u64),
    Address([u8; 16]),
    Mac([u8; 6]),
    Word(String),
    /// Two addresses, the lower first.
    Pair([u8; 16], [u8; 16]),
    /// A protocol and a port.
    Port(u8, u16),
    /// An exporter's address and its domain.
    Exporter([u8; 16], u32),
}

/// What is no grouping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGrouping {
    /// A word that names nothing.
    #[error(
        "records are not grouped by `{word}`; possible: pair, port, exporter, and columns: {}",
        short_names()
    )]
    Unknown { word: String },
    #[error("records are grouped by at most {PARTS_MOST} things")]
    TooMany,
    #[error("`{word}` is there twice")]
    Twice { word: String },
}

fn short_names() -> String {
    columns().iter().map(|column| column.short).collect::<Vec<_>>().join(", ")
}

impl PartialEq for GroupPart {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for GroupPart {}

impl FromStr for GroupPart {
    type Err = NoGrouping;

    fn from_str(word: &str) -> Result<Self, NoGrouping> {
        let column = |word: &str| find_column(word).map(Self::Column);
        let part = match word.to_ascii_lowercase().as_str() {
            "pair" => Some(Self::Pair),
            "port" => Some(Self::Port),
            "exporter" => Some(Self::Exporter),
            "source" => column("src-ip"),
            "destination" => column("dst-ip"),
            "proto" => column("protocol"),
            word => column(word),
        };
        part.ok_or_else(|| NoGrouping::Unknown { word: word.to_owned() })
    }
}

impl FromStr for FlowGrouping {
    type Err = NoGrouping;

    fn from_str(text: &str) -> Result<Self, NoGrouping> {
        let mut parts: Vec<GroupPart> = Vec::new();
        for word in text.split(',').map(str::trim) {
            let part = word.parse()?;
            if parts.contains(&part) {
                return Err(NoGrouping::Twice { word: word.to_owned() });
            }
            parts.push(part);
        }
        if parts.len() > PARTS_MOST {
            return Err(NoGrouping::TooMany);
        }
        Ok(Self { parts })
    }
}

impl GroupPart {
    /// What it is called.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Column(column) => column.short,
            Self::Pair => "pair",
            Self::Port => "port",
            Self::Exporter => "exporter",
        }
    }

    fn is_of_direction(&self) -> bool {
        matches!(self, Self::Column(column) if counterpart(column.name) != column.name)
    }

    fn columns(&self) -> Vec<&'static str> {
        match self {
            Self::Column(column) => vec![column.name, counterpart(column.name)],
            Self::Pair => vec!["sourceIPv6Address", "destinationIPv6Address"],
            Self::Port => vec!["protocolIdentifier", "sourceTransportPort", "destinationTransportPort"],
            Self::Exporter => vec!["exporterIPv6Address", "observationDomainId"],
        }
    }

    /// Where its values are in a chunk; of the way back, if that is asked for.
    fn cells<'a>(&self, chunk: &'a RowChunk, is_back: bool) -> GroupCells<'a> {
        let addresses = ["sourceIPv6Address", "destinationIPv6Address"];
        let ports = ["sourceTransportPort", "destinationTransportPort"];
        match self {
            Self::Column(column) => {
                let name = if is_back { counterpart(column.name) } else { column.name };
                GroupCells::Column(column.kind, chunk.column(name))
            }
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

    /// Reads its value from a key, and leaves the rest.
    fn read(&self, key: &mut &[u8]) -> Option<GroupValue> {
        Some(match self {
            Self::Column(column) => match column.kind {
                ElementKind::Address => GroupValue::Address(take(key)?),
                ElementKind::Mac => GroupValue::Mac(take(key)?),
                ElementKind::Word | ElementKind::Fields => {
                    let [length] = take(key)?;
                    let (word, rest) = key.split_at_checked(length.into())?;
                    *key = rest;
                    GroupValue::Word(String::from_utf8_lossy(word).into_owned())
                }
                ElementKind::Unsigned(_) | ElementKind::Time | ElementKind::Flag => {
                    GroupValue::Number(u64::from_be_bytes(take(key)?))
                }
            },
            Self::Pair => GroupValue::Pair(take(key)?, take(key)?),
            Self::Port => {
                let [protocol] = take(key)?;
                GroupValue::Port(protocol, u16::from_be_bytes(take(key)?))
            }
            Self::Exporter => GroupValue::Exporter(take(key)?, u32::from_be_bytes(take(key)?)),
        })
    }
}

/// Where the values of a part are in a chunk.
enum GroupCells<'a> {
    Column(ElementKind, &'a ColumnCells),
    Pair([&'a ColumnCells; 2]),
    Port { protocol: &'a ColumnCells, ports: [&'a ColumnCells; 2] },
    Exporter { address: &'a ColumnCells, domain: &'a ColumnCells },
}

impl GroupCells<'_> {
    /// Appends the value in a row to a key. Keys of equal parts are equal, and in the order of the values.
    fn append(&self, row: usize, key: &mut Vec<u8>) {
        match self {
            Self::Column(kind, cells) => append_cell(*kind, cells, row, key),
            Self::Pair(ends) => {
                let mut ends = ends.map(|cells| cells.address(row));
                ends.sort_unstable();
                key.extend_from_slice(ends.as_flattened());
            }
            Self::Port { protocol, ports } => {
                let [one, other] = ports.map(|cells| cells.number(row));
                key.push(u8::try_from(protocol.number(row)).unwrap_or(u8::MAX));
                key.extend_from_slice(&u16::try_from(one.min(other)).unwrap_or(u16::MAX).to_be_bytes());
            }
            Self::Exporter { address, domain } => {
                key.extend_from_slice(&address.address(row));
                let domain = u32::try_from(domain.number(row)).unwrap_or(u32::MAX);
                key.extend_from_slice(&domain.to_be_bytes());
            }
        }
    }
}

/// Makes the keys of the rows of a chunk.
pub(super) struct GroupKeys<'a> {
    parts: Vec<GroupCells<'a>>,
}

impl GroupKeys<'_> {
    /// Makes the key of a row.
    pub(super) fn write(&self, row: usize, key: &mut Vec<u8>) {
        key.clear();
        for part in &self.parts {
            part.append(row, key);
        }
    }
}

fn append_cell(kind: ElementKind, cells: &ColumnCells, row: usize, key: &mut Vec<u8>) {
    match kind {
        ElementKind::Address => key.extend_from_slice(&cells.address(row)),
        ElementKind::Mac => key.extend_from_slice(&cells.mac(row)),
        ElementKind::Word | ElementKind::Fields => {
            let word = cells.word(row);
            let word = &word.as_bytes()[..word.floor_char_boundary(WORD_MOST)];
            key.push(u8::try_from(word.len()).unwrap_or(u8::MAX));
            key.extend_from_slice(word);
        }
        ElementKind::Unsigned(_) | ElementKind::Time | ElementKind::Flag => {
            key.extend_from_slice(&cells.number(row).to_be_bytes());
        }
    }
}

fn take<const N: usize>(key: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = key.split_first_chunk::<N>()?;
    *key = rest;
    Some(*first)
}

impl FlowGrouping {
    /// Its parts, in order.
    pub fn parts(&self) -> &[GroupPart] {
        &self.parts
    }

    /// Whether it tells source from destination.
    pub fn is_of_direction(&self) -> bool {
        self.parts.iter().any(GroupPart::is_of_direction)
    }

    pub(super) fn columns(&self) -> Vec<&'static str> {
        self.parts.iter().flat_map(GroupPart::columns).collect()
    }

    /// The keys of a chunk's rows; of their way back, if that is asked for.
    pub(super) fn keys<'a>(&self, chunk: &'a RowChunk, is_back: bool) -> GroupKeys<'a> {
        GroupKeys { parts: self.parts.iter().map(|part| part.cells(chunk, is_back)).collect() }
    }

    /// The values of a key.
    pub(super) fn values(&self, mut key: &[u8]) -> Vec<GroupValue> {
        self.parts.iter().filter_map(|part| part.read(&mut key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_columns_are_and_as_nfdump_has_them() {
        let names = |text: &str| {
            let grouping: FlowGrouping = text.parse().unwrap();
            grouping.parts().iter().map(GroupPart::name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names("src-ip, dst-port"), "src-ip dst-port");
        assert_eq!(names("srcip,DSTPORT,proto,bgpSourceAsNumber"), "src-ip dst-port protocol src-as");
        assert_eq!(names("source"), "src-ip");
        for wrong in
            ["", "src-ip,", "colour", "src-ip,source", "in-if,out-if,vlan,tos,part,loss,start,end,flags"]
        {
            assert!(wrong.parse::<FlowGrouping>().is_err(), "{wrong}");
        }
        assert!("colour".parse::<FlowGrouping>().unwrap_err().to_string().contains("next-hop"));
    }
}
