//! Columns that are not stored in files of records: names for the values of stored columns.

use super::{FlowNames, NameKind};
use crate::cells::{CodedCells, ColumnCells};
use crate::columns::{counterpart_column, without_dashes};
use crate::scan::RowChunk;

/// A column of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameColumn {
    /// Name on the command line and in JSON.
    pub short: &'static str,
    pub kind: NameKind,
    pub meaning: &'static str,
    pub(crate) source: NameSource,
}

/// The columns of a record whose values are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameSource {
    Address(&'static str),
    /// A column with the number of an interface.
    Interface(&'static str),
    /// The lower of the two ports, or the higher one if only that has a name.
    Service,
}

/// A value of a column of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameValue<'a> {
    /// The number of an autonomous system; 0 if it is not known.
    Number(u32),
    /// A name; empty if it is not known.
    Word(&'a str),
}

const SOURCE_NAME: NameSource = NameSource::Address("sourceIPv6Address");
const DESTINATION_NAME: NameSource = NameSource::Address("destinationIPv6Address");
const EXPORTER_COLUMN: &str = "exporterIPv6Address";
const SERVICE_COLUMNS: [&str; 3] = ["protocolIdentifier", "sourceTransportPort", "destinationTransportPort"];

macro_rules! name_columns {
    ($($short:literal $kind:ident $source:expr, $meaning:literal;)*) => {
        &[$(NameColumn { short: $short, kind: NameKind::$kind, meaning: $meaning, source: $source }),*]
    };
}

pub const NAME_COLUMNS: &[NameColumn] = name_columns! {
    "src-country" Country SOURCE_NAME, "country of the source, two letters";
    "dst-country" Country DESTINATION_NAME, "country of the destination";
    "src-asn" AsNumber SOURCE_NAME, "autonomous system of the source by its address; `src-as` has the \
    exporter's value";
    "dst-asn" AsNumber DESTINATION_NAME, "autonomous system of the destination by its address";
    "src-as-name" AsName SOURCE_NAME, "name of the autonomous system of the source";
    "dst-as-name" AsName DESTINATION_NAME, "name of the autonomous system of the destination";
    "src-name" Prefix SOURCE_NAME, "name of the longest of your prefixes that contains the source";
    "dst-name" Prefix DESTINATION_NAME, "name of the longest of your prefixes that contains the destination";
    "in-if-name" Interface NameSource::Interface("ingressInterface"), "interface where the flow came in";
    "out-if-name" Interface NameSource::Interface("egressInterface"), "interface where the flow left the exporter";
    "service" Service NameSource::Service, "service of the lower port, or of the higher port if only that one has a name";
};

/// Finds the column of names with this short name, which may be written without dashes; `None` if there is none.
pub fn find_name_column(word: &str) -> Option<&'static NameColumn> {
    let word = without_dashes(word);
    NAME_COLUMNS.iter().find(|column| without_dashes(column.short) == word)
}

impl NameColumn {
    /// Returns whether the name differs between the two directions of a record.
    pub(crate) fn distinguishes_direction(&self) -> bool {
        matches!(self.source, NameSource::Address(column) if counterpart_column(column) != column)
    }

    /// The stored columns that are needed to find the names, for both directions.
    pub fn needed_columns(&self) -> Vec<&'static str> {
        match self.source {
            NameSource::Address(column) => vec![column, counterpart_column(column)],
            NameSource::Interface(column) => vec![column, EXPORTER_COLUMN],
            NameSource::Service => SERVICE_COLUMNS.to_vec(),
        }
    }

    /// Finds the column's values in a chunk, or those of the reverse direction.
    pub(crate) fn find_name_values<'a>(
        &self,
        names: &'a FlowNames,
        chunk: &'a RowChunk,
        is_back: bool,
    ) -> NameColumnValues<'a> {
        match self.source {
            NameSource::Address(column) => {
                let column = if is_back { counterpart_column(column) } else { column };
                let ColumnCells::Addresses(cells) = chunk.column(column) else {
                    return NameColumnValues::Unknown(unknown_value(self.kind));
                };
                // A large dictionary has many addresses that are not in the chunk, so it is not looked up as a whole.
                if cells.dictionary_length() > 2 * chunk.rows {
                    return NameColumnValues::Addresses { cells, names, kind: self.kind };
                }
                NameColumnValues::Named(cells.map_values(|address| address_value(names, self.kind, *address)))
            }
            NameSource::Interface(column) => NameColumnValues::Interfaces {
                names,
                exporter: chunk.column(EXPORTER_COLUMN),
                interface: chunk.column(column),
            },
            NameSource::Service => {
                let [protocol, one, other] = SERVICE_COLUMNS.map(|column| chunk.column(column));
                NameColumnValues::Services { names, protocol, ports: [one, other] }
            }
        }
    }

    /// The name in a row of a chunk.
    pub fn value_in_row<'a>(&self, names: &'a FlowNames, chunk: &RowChunk, row: usize) -> NameValue<'a> {
        let number = |column: &str| chunk.column(column).number_at(row);
        match self.source {
            NameSource::Address(column) => {
                address_value(names, self.kind, chunk.column(column).address_at(row))
            }
            NameSource::Interface(column) => NameValue::Word(
                names.interface_name(chunk.column(EXPORTER_COLUMN).address_at(row), number(column)),
            ),
            NameSource::Service => {
                let [protocol, one, other] = SERVICE_COLUMNS.map(number);
                NameValue::Word(names.service_name(protocol, [one, other]))
            }
        }
    }
}

const fn unknown_value(kind: NameKind) -> NameValue<'static> {
    if matches!(kind, NameKind::AsNumber) { NameValue::Number(0) } else { NameValue::Word("") }
}

fn address_value(names: &FlowNames, kind: NameKind, address: [u8; 16]) -> NameValue<'_> {
    let word = match kind {
        NameKind::AsNumber => {
            return NameValue::Number(names.systems.value_of(address).map_or(0, |system| system.number));
        }
        NameKind::AsName => names.systems.value_of(address).map(|system| &system.name),
        NameKind::Country => names.countries.value_of(address),
        NameKind::Prefix => names.prefixes.value_of(address),
        NameKind::Interface | NameKind::Service => None,
    };
    NameValue::Word(word.map_or("", |word| word))
}

/// The values of a column of names in a chunk.
pub(crate) enum NameColumnValues<'a> {
    /// The file has no column with the addresses, so the name is unknown in every row.
    Unknown(NameValue<'a>),
    /// Each address of the dictionary is looked up once.
    Named(CodedCells<NameValue<'a>>),
    Addresses {
        cells: &'a CodedCells<[u8; 16]>,
        names: &'a FlowNames,
        kind: NameKind,
    },
    Interfaces {
        names: &'a FlowNames,
        exporter: &'a ColumnCells,
        interface: &'a ColumnCells,
    },
    Services {
        names: &'a FlowNames,
        protocol: &'a ColumnCells,
        ports: [&'a ColumnCells; 2],
    },
}

impl<'a> NameColumnValues<'a> {
    pub(crate) fn value_at(&self, row: usize) -> NameValue<'a> {
        match self {
            Self::Unknown(value) => *value,
            Self::Named(cells) => cells.get(row).copied().unwrap_or(NameValue::Word("")),
            Self::Addresses { cells, names, kind } => {
                address_value(names, *kind, cells.get(row).copied().unwrap_or_default())
            }
            Self::Interfaces { names, exporter, interface } => {
                NameValue::Word(names.interface_name(exporter.address_at(row), interface.number_at(row)))
            }
            Self::Services { names, protocol, ports } => NameValue::Word(
                names.service_name(protocol.number_at(row), ports.map(|cells| cells.number_at(row))),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FlowFilter;

    /// The page's table is made of the list: on a difference, the right rows are in the message.
    #[test]
    fn page_lists_the_columns_of_names_and_their_terms() {
        let page = include_str!("../../../../docs/book/flow-questions.md");
        let term = |column: &NameColumn| column.short.replace('-', " ");
        let row = |column: &NameColumn| {
            format!("| `{}` | `{}` | {} |\n", column.short, term(column), column.meaning)
        };
        let rows: String = NAME_COLUMNS.iter().map(row).collect();
        assert!(page.contains(&rows), "the rows of the page should be:\n{rows}");
        for column in NAME_COLUMNS {
            let refused = format!("{} x", term(column)).parse::<FlowFilter>().unwrap_err().to_string();
            assert!(refused.contains(column.kind.needed_file_description()), "{refused}");
            assert_eq!(find_name_column(&column.short.replace('-', "")), Some(column));
        }
    }
}
