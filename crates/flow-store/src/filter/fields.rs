//! Conditions on fields without a column: their values are read from the text of `otherFields`.

use super::AddressPrefix;
use super::condition::mac_number;
use super::ranges::{RangeSet, ValueRange};
use super::values;
use crate::scan::RowChunk;
use packetrig_flow::collect::{FieldPlace, field_place};
use packetrig_flow::iana::{self, DataKind};
use packetrig_flow::{REVERSE_ENTERPRISE, field_kind, field_name};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use serde_json::{Map, Value};

/// The column with all fields that have no separate column.
pub(super) const OTHER_FIELDS: &str = "otherFields";

/// A field of records for conditions such as `field natEvent`, under its name in `otherFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldName {
    pub(super) name: String,
    /// Where records store the field. A [`FieldCondition`] is only made for fields in `otherFields`.
    pub(super) place: FieldPlace,
    kind: DataKind,
}

/// The test that a field has to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldTest {
    Present,
    /// The field must have one of these numbers, see [`FieldName::value_number`].
    Values(RangeSet),
    /// The field must have one of these texts, which are in lower case and sorted.
    Texts(Vec<String>),
}

/// A field and the test that it has to pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldCondition {
    pub(super) field: FieldName,
    pub(super) test: FieldTest,
    /// True if the condition holds for records that do not pass the test, including records without the field.
    pub(super) is_negated: bool,
}

impl FieldCondition {
    pub(super) fn to_negated(&self) -> Self {
        Self { is_negated: !self.is_negated, ..self.clone() }
    }

    /// Removes the rows for which the condition does not hold.
    pub(super) fn retain_rows(&self, chunk: &RowChunk, rows: &mut Vec<usize>) {
        let fields = chunk.column(OTHER_FIELDS);
        rows.retain(|&row| self.field.passes_test(fields.word_at(row), &self.test) != self.is_negated);
    }

    /// Returns whether the condition may hold for a row of a row group. A condition that is not negated cannot hold if
    /// `otherFields` is empty in all rows of the group.
    pub(super) fn may_match_group(&self, group: &RowGroupMetaData) -> bool {
        let column = group.columns().iter().find(|column| column.column_path().parts() == [OTHER_FIELDS]);
        let greatest = column.map(|column| column.statistics().and_then(Statistics::max_bytes_opt));
        self.is_negated || !matches!(greatest, None | Some(Some([])))
    }
}

impl FieldName {
    /// Finds a field by its IANA name, the name of a reverse element (RFC 5103), or `enterprise/number`.
    pub(super) fn find_field(word: &str) -> Option<Self> {
        // No IANA name contains a slash.
        if let Some((enterprise, id)) = word.split_once('/') {
            return Some(Self::from_element(enterprise.parse().ok()?, id.parse().ok()?));
        }
        if let Some(element) = iana::element_named(word) {
            return Some(Self::from_element(0, element.id));
        }
        // RFC 5103: a reverse element has the name of the forward one with "reverse" before it.
        let straight =
            word.get(..7).filter(|head| head.eq_ignore_ascii_case("reverse")).and_then(|_| word.get(7..))?;
        Some(Self::from_element(REVERSE_ENTERPRISE, iana::element_named(straight)?.id))
    }

    fn from_element(enterprise: u32, id: u16) -> Self {
        Self {
            name: field_name(enterprise, id),
            place: field_place(enterprise, id),
            kind: field_kind(enterprise, id),
        }
    }

    /// Returns whether values are compared as texts.
    pub(super) const fn is_text_field(&self) -> bool {
        matches!(self.kind, DataKind::Text | DataKind::Bytes)
    }

    /// Examples of what may follow the field, for error messages.
    pub(super) const fn example_values(&self) -> &'static str {
        match self.kind {
            DataKind::Unsigned => "`5`, `> 10k`, `in [3 5]`",
            DataKind::Signed => "`-5`, `> -5`, `in [-1 1]`",
            DataKind::Float => "`> 0.5`",
            DataKind::Boolean => "`true`, `false`",
            DataKind::Mac => "`02:00:00:00:00:01`",
            DataKind::Text => "`dns`, `= \"two words\"`, `in [dns http]`",
            DataKind::Ipv4 | DataKind::Ipv6 => "`198.18.0.1`, `10.0.0.0/8`, `in [198.18.0.1 10.0.0.0/8]`",
            DataKind::Bytes => "`0x646e73`, `in [0x00 0x01]`",
        }
    }

    /// Returns whether the values can be compared with `<` and `>`.
    pub(super) const fn has_ordered_values(&self) -> bool {
        matches!(self.kind, DataKind::Unsigned | DataKind::Signed | DataKind::Float)
    }

    /// Converts a word of a filter to a range of numbers, which have the same order as the field's values. Returns
    /// `None` if the word is not a value of the field's kind.
    pub(super) fn parse_value(&self, word: &str) -> Option<ValueRange> {
        match self.kind {
            DataKind::Unsigned => {
                values::parse_count(word).map(|number| ValueRange::from_value(number.into()))
            }
            DataKind::Signed => {
                word.parse().ok().map(|number| ValueRange::from_value(ordered_from_signed(number)))
            }
            DataKind::Float => {
                let number = word.parse().ok().filter(|number: &f64| !number.is_nan())?;
                Some(ValueRange::from_value(ordered_from_float(number)))
            }
            DataKind::Boolean => match word.to_ascii_lowercase().as_str() {
                "true" | "yes" | "1" => Some(ValueRange::from_value(1)),
                "false" | "no" | "0" => Some(ValueRange::from_value(0)),
                _ => None,
            },
            DataKind::Mac => {
                values::parse_mac(word).map(|mac| ValueRange::from_value(mac_number(mac).into()))
            }
            DataKind::Ipv4 | DataKind::Ipv6 => {
                word.parse::<AddressPrefix>().ok().map(|prefix| prefix.address_range())
            }
            DataKind::Text | DataKind::Bytes => None,
        }
    }

    /// Returns whether a record passes a test. `fields` is the text of its column `otherFields`. If the field occurs
    /// several times, one of its values has to pass.
    pub(super) fn passes_test(&self, fields: &str, test: &FieldTest) -> bool {
        // Most records do not have the field, and a search for its name is faster than parsing the text.
        if !fields.contains(&self.name) {
            return false;
        }
        // Another program's file may have any text in this column.
        let Ok(fields) = serde_json::from_str::<Map<String, Value>>(fields) else { return false };
        fields.iter().filter(|(name, _)| self.has_field_name(name)).any(|(_, value)| match test {
            FieldTest::Present => true,
            FieldTest::Values(set) => self.value_number(value).is_some_and(|number| set.contains(number)),
            FieldTest::Texts(texts) => {
                // The parser has sorted the texts and made them lower case.
                value.as_str().is_some_and(|found| texts.binary_search(&found.to_ascii_lowercase()).is_ok())
            }
        })
    }

    /// Returns whether a member of `otherFields` is this field. A repeated field has `#2`, `#3` and so on after its name.
    fn has_field_name(&self, name: &str) -> bool {
        name.strip_prefix(&self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
    }

    /// Converts a stored value to a number, with the same order as the field's values; `None` if it has another kind.
    fn value_number(&self, value: &Value) -> Option<u128> {
        match self.kind {
            DataKind::Unsigned => value.as_u64().map(u128::from),
            DataKind::Signed => value.as_i64().map(ordered_from_signed),
            DataKind::Float => value.as_f64().map(ordered_from_float),
            DataKind::Boolean => value.as_bool().map(u128::from),
            DataKind::Mac | DataKind::Ipv4 | DataKind::Ipv6 => Some(self.parse_value(value.as_str()?)?.least),
            DataKind::Text | DataKind::Bytes => None,
        }
    }
}

// With the sign bit inverted, two's complement numbers are in the order of unsigned ones.
const fn ordered_from_signed(number: i64) -> u128 {
    (number.cast_unsigned() ^ 1 << 63) as u128
}

/// Converts a float to an unsigned number with the same order.
fn ordered_from_float(number: f64) -> u128 {
    // IEEE 754: the bits of positive numbers are in their order, and those of negative ones in the opposite order. Zero has two
    // encodings, which must be equal here.
    let bits = if number == 0.0 { 0 } else { number.to_bits() };
    u128::from(if bits >> 63 == 1 { !bits } else { bits | 1 << 63 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(name: &str, fields: &str, test: &FieldTest) -> bool {
        FieldName::find_field(name).unwrap().passes_test(fields, test)
    }

    #[test]
    fn fields_have_names_or_numbers() {
        let found = |word: &str| FieldName::find_field(word).map(|field| (field.name, field.kind));
        assert_eq!(found("INGRESSvrfid"), Some(("ingressVRFID".to_owned(), DataKind::Unsigned)));
        assert_eq!(found("0/234"), found("ingressVRFID"));
        assert_eq!(
            found("reverseFlowDirection"),
            Some(("reverseFlowDirection".to_owned(), DataKind::Unsigned))
        );
        assert_eq!(found("29305/61"), found("reverseflowdirection"));
        assert_eq!(found("9/8232"), Some(("9/8232".to_owned(), DataKind::Bytes)));
        for wrong in ["", "colour", "9/", "/9", "9/70000", "reverse", "r\u{e9}verse"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn field_test_covers_repeats_but_not_longer_names() {
        let one = FieldTest::Values(RangeSet::new(vec![ValueRange::from_value(1)]));
        assert!(passes("flowDirection", r#"{"flowDirection":0,"flowDirection#2":1}"#, &one));
        assert!(!passes("flowDirection", r#"{"flowDirection":0,"flowDirectionX":1}"#, &one));
        assert!(!passes("flowDirection", r#"{"flowDirection":"0x0001"}"#, &one), "its length was wrong");
        assert!(!passes("flowDirection", "{\"flowDirection\":1", &one));
        assert!(!passes("flowDirection", "", &FieldTest::Present));
    }

    #[test]
    fn numbers_of_every_kind_have_their_order() {
        let signed = [i64::MIN, -5, -1, 0, 1, i64::MAX];
        assert!(signed.is_sorted_by_key(|&number| ordered_from_signed(number)));
        let floats = [f64::NEG_INFINITY, -1e300, -1.5, -1e-300, 0.0, 1e-300, 1.5, 1e300, f64::INFINITY];
        assert!(floats.is_sorted_by(|&one, &other| ordered_from_float(one) < ordered_from_float(other)));
        assert_eq!(ordered_from_float(-0.0), ordered_from_float(0.0));
    }
}
