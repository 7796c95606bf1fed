//! IANA's information elements: their names and the kinds of their values (registry of 2024, in `iana.csv`).

use std::sync::LazyLock;

/// An element as the registry has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredElement {
    pub id: u16,
    pub name: &'static str,
    /// Kind of the element's values.
    pub kind: DataKind,
}

/// Kind of values. Kinds that are shown in the same way are not distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// Whole numbers, and times that are whole numbers.
    Unsigned,
    /// Whole numbers of either sign.
    Signed,
    Float,
    Boolean,
    Mac,
    Text,
    Ipv4,
    Ipv6,
    /// Bytes, lists, and times that are not whole numbers.
    Bytes,
}

/// The registry: each line has number, name and type of an element, in order of the numbers.
const IANA_REGISTRY_CSV: &str = include_str!("iana.csv");

static REGISTERED_ELEMENTS: LazyLock<Vec<RegisteredElement>> =
    LazyLock::new(|| IANA_REGISTRY_CSV.lines().filter_map(parse_line).collect());

fn parse_line(line: &'static str) -> Option<RegisteredElement> {
    let mut cells = line.split(',');
    let id = cells.next()?.parse().ok()?;
    let name = cells.next()?;
    Some(RegisteredElement { id, name, kind: data_kind(cells.next()?) })
}

fn data_kind(word: &str) -> DataKind {
    match word {
        // RFC 7011 sections 6.1.9 and 6.1.10: the finer times are in NTP format; its fraction is in units of 2^-32 s.
        "unsigned" | "dateTimeSeconds" | "dateTimeMilliseconds" => DataKind::Unsigned,
        "signed" => DataKind::Signed,
        "float" => DataKind::Float,
        "boolean" => DataKind::Boolean,
        "macAddress" => DataKind::Mac,
        "string" => DataKind::Text,
        "ipv4Address" => DataKind::Ipv4,
        "ipv6Address" => DataKind::Ipv6,
        _ => DataKind::Bytes,
    }
}

/// Finds an element by name, ignoring case.
pub fn element_named(name: &str) -> Option<&'static RegisteredElement> {
    REGISTERED_ELEMENTS.iter().find(|element| element.name.eq_ignore_ascii_case(name))
}

/// Finds an element by number.
pub fn element_by_id(id: u16) -> Option<&'static RegisteredElement> {
    REGISTERED_ELEMENTS
        .binary_search_by_key(&id, |element| element.id)
        .ok()
        .map(|at| &REGISTERED_ELEMENTS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iana_registry_parses_completely_in_order() {
        assert_eq!(REGISTERED_ELEMENTS.len(), IANA_REGISTRY_CSV.lines().count());
        assert!(REGISTERED_ELEMENTS.is_sorted_by_key(|element| element.id));
        assert_eq!(element_by_id(1).map(|element| element.name), Some("octetDeltaCount"));
        assert_eq!(element_by_id(95).map(|element| element.kind), Some(DataKind::Bytes));
        assert_eq!(element_by_id(0), None);
    }

    #[test]
    fn columns_have_the_names_of_the_registry() {
        for column in crate::element::FLOW_ELEMENTS.iter().filter(|column| column.id > 0 && !column.reverse) {
            assert_eq!(element_by_id(column.id).map(|element| element.name), Some(column.name));
        }
    }
}
