//! Parses conditions on names of countries, autonomous systems, prefixes, interfaces and services. The parser replaces
//! the names by the addresses or numbers that have them, so testing a record costs no more than testing a list.

use super::{FilterParser, FilterSubject, protocol_expression, single_condition};
use crate::filter::condition::{ConditionOperand, ValueTest};
use crate::filter::error::FilterError;
use crate::filter::expression::FilterExpression;
use crate::filter::ranges::{RangeSet, ValueRange};
use crate::names::{AddressTable, AutonomousSystem, NameKind, country_code};
use std::collections::BTreeMap;

const EXPORTER_COLUMN: &str = "exporterIPv6Address";
/// Maximum number of names that a message lists.
const MAX_LISTED_NAMES: usize = 8;

/// Texts that satisfy a condition, in lower case and sorted.
pub(super) struct WantedTexts {
    pub(super) texts: Vec<String>,
    /// True if all texts except `texts` satisfy the condition instead.
    pub(super) is_negated: bool,
}

impl WantedTexts {
    fn contains(&self, name: &str) -> bool {
        self.texts.binary_search(&name.to_ascii_lowercase()).is_ok()
    }
}

impl FilterParser<'_> {
    /// Reads the operand of a term that tests names, such as `country`, and makes the condition.
    pub(super) fn parse_named_condition(
        &mut self,
        subject: &FilterSubject,
        kind: NameKind,
    ) -> Result<FilterExpression, FilterError> {
        if !self.names.has_names_of_kind(kind) {
            let what = format!("`{}` needs {}", subject.phrase, kind.needed_file_description());
            return Err(self.error_at_subject(
                subject,
                what,
                "give it with `--names FILE`; for alerts with `--alert-names FILE`",
            ));
        }
        if kind == NameKind::AsNumber {
            let wanted = self.parse_wanted_values(subject)?;
            let systems = &self.names.systems;
            let is_wanted = |system: &AutonomousSystem| wanted.set.contains(system.number.into());
            // Addresses without an autonomous system have number 0, as in groups and columns. If 0 is wanted, the set
            // is the complement of all unwanted systems.
            let found = if wanted.set.contains(0) {
                RangeSet::new(systems.ranges_with_value(|system| !is_wanted(system))).complement()
            } else {
                RangeSet::new(systems.ranges_with_value(is_wanted))
            };
            return Ok(address_range_expression(subject, found, wanted.is_negated));
        }
        let first = self.next;
        let wanted = self.parse_wanted_texts(subject)?;
        let names = self.names;
        let found = match kind {
            NameKind::Country => {
                self.refuse_unknown_countries(first, &wanted)?;
                return Ok(named_address_expression(subject, &names.countries, &wanted, |code| code));
            }
            NameKind::AsName | NameKind::AsNumber => {
                return Ok(named_address_expression(subject, &names.systems, &wanted, |system| &system.name));
            }
            NameKind::Prefix => {
                self.refuse_unknown_names(first, &wanted, names.prefixes.values().iter())?;
                return Ok(named_address_expression(subject, &names.prefixes, &wanted, |name| name));
            }
            NameKind::Interface => {
                self.refuse_unknown_names(first, &wanted, names.interfaces.values())?;
                self.named_interface_expression(subject, &wanted)
            }
            NameKind::Service => {
                self.refuse_unknown_names(first, &wanted, names.services.values())?;
                self.named_service_expression(&wanted)
            }
        };
        Ok(if wanted.is_negated { found.to_negated() } else { found })
    }

    /// An error at the words of a subject that was just read.
    fn error_at_subject(&self, subject: &FilterSubject, what: String, help: &str) -> FilterError {
        let words = subject.phrase.split(' ').count();
        self.error_at(self.tokens[self.next.saturating_sub(words)], what, help)
    }

    fn refuse_unknown_countries(&self, first: usize, wanted: &WantedTexts) -> Result<(), FilterError> {
        match wanted.texts.iter().find(|text| country_code(text).is_none()) {
            Some(text) => {
                let what = format!("`{text}` is not a country code");
                Err(self.error_at(self.tokens[first], what, "write two letters: `DE`, `in [DE FR]`"))
            }
            None => Ok(()),
        }
    }

    /// Returns an error for a wanted name that no names file contains: it is probably misspelt, and
    /// would silently match nothing.
    fn refuse_unknown_names<'n>(
        &self,
        first: usize,
        wanted: &WantedTexts,
        known: impl Iterator<Item = &'n Box<str>> + Clone,
    ) -> Result<(), FilterError> {
        let is_known = |text: &String| known.clone().any(|name| name.to_ascii_lowercase() == *text);
        let Some(unknown) = wanted.texts.iter().find(|text| !is_known(text)) else { return Ok(()) };
        let mut shown: Vec<_> = known.map(|name| format!("`{name}`")).collect();
        shown.sort_unstable();
        shown.dedup();
        let more = if shown.len() > MAX_LISTED_NAMES { ", …" } else { "" };
        shown.truncate(MAX_LISTED_NAMES);
        let help = format!("the names files contain {}{more}", shown.join(", "));
        Err(self.error_at(self.tokens[first], format!("no names file contains the name `{unknown}`"), help))
    }

    /// Makes the expression for records with an interface that has a wanted name.
    fn named_interface_expression(&self, subject: &FilterSubject, wanted: &WantedTexts) -> FilterExpression {
        let mut numbers: BTreeMap<Option<[u8; 16]>, Vec<ValueRange>> = BTreeMap::new();
        let mut parts = Vec::new();
        for ((exporter, number), _) in self.names.interfaces.iter().filter(|(_, name)| wanted.contains(name))
        {
            let range = ValueRange::from_value((*number).into());
            // The name for all exporters does not apply to exporters that have their own name for this interface.
            let others: Vec<_> =
                self.names.interfaces.keys().filter(|(one, at)| at == number && one.is_some()).collect();
            if exporter.is_some() || others.is_empty() {
                numbers.entry(*exporter).or_default().push(range);
            } else {
                let own = others.iter().filter_map(|(one, _)| *one).map(address_range).collect();
                parts.push(FilterExpression::All(vec![
                    subject.expression_of_test(&ValueTest::Values(RangeSet::new(vec![range]))),
                    column_range_expression(EXPORTER_COLUMN, own).to_negated(),
                ]));
            }
        }
        // Exporters with the same interface numbers share one condition: `uplink` may be interface 1 of a thousand
        // routers.
        let mut alike: BTreeMap<Vec<ValueRange>, Vec<ValueRange>> = BTreeMap::new();
        for (exporter, ranges) in numbers {
            match exporter {
                Some(exporter) => alike.entry(ranges).or_default().push(address_range(exporter)),
                None => parts.push(subject.expression_of_test(&ValueTest::Values(RangeSet::new(ranges)))),
            }
        }
        for (ranges, exporters) in alike {
            let interface = subject.expression_of_test(&ValueTest::Values(RangeSet::new(ranges)));
            parts.push(FilterExpression::All(vec![
                column_range_expression(EXPORTER_COLUMN, exporters),
                interface,
            ]));
        }
        FilterExpression::Any(parts)
    }

    /// Makes the expression for records whose source or destination port belongs to a wanted service.
    fn named_service_expression(&self, wanted: &WantedTexts) -> FilterExpression {
        let mut ports: BTreeMap<u8, Vec<ValueRange>> = BTreeMap::new();
        for ((protocol, port), _) in self.names.services.iter().filter(|(_, name)| wanted.contains(name)) {
            ports.entry(*protocol).or_default().push(ValueRange::from_value((*port).into()));
        }
        let parts = ports.into_iter().map(|(protocol, ranges)| {
            let either = PORT_COLUMNS.map(|column| column_range_expression(column, ranges.clone())).to_vec();
            FilterExpression::All(vec![
                protocol_expression(&[protocol.into()]),
                FilterExpression::Any(either),
            ])
        });
        FilterExpression::Any(parts.collect())
    }
}

const PORT_COLUMNS: [&str; 2] = ["sourceTransportPort", "destinationTransportPort"];

fn address_range(address: [u8; 16]) -> ValueRange {
    ValueRange::from_value(u128::from_be_bytes(address))
}

fn column_range_expression(column: &'static str, ranges: Vec<ValueRange>) -> FilterExpression {
    single_condition(ConditionOperand::Column(column), ValueTest::Values(RangeSet::new(ranges)))
}

fn named_address_expression<T>(
    subject: &FilterSubject,
    table: &AddressTable<T>,
    wanted: &WantedTexts,
    name: impl Fn(&T) -> &str,
) -> FilterExpression {
    let found = RangeSet::new(table.ranges_with_value(|value| wanted.contains(name(value))));
    address_range_expression(subject, found, wanted.is_negated)
}

fn address_range_expression(
    subject: &FilterSubject,
    addresses: RangeSet,
    is_negated: bool,
) -> FilterExpression {
    let found = subject.expression_of_test(&ValueTest::Values(addresses));
    if is_negated { found.to_negated() } else { found }
}
