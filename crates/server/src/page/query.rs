//! Reads the query of a URL: `name=value&…`, percent-encoded. An unknown name or a wrong value is an error
//! that names the parameter.

use crate::viewing::ViewRefusal;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Longest query that is read, in bytes.
const MAX_QUERY_BYTES: usize = 8 << 10;

/// The parameters of a request that no call has read yet.
#[derive(Debug, Default)]
pub(super) struct QueryParameters(BTreeMap<String, String>);

impl QueryParameters {
    pub(super) fn parse_query(query: Option<&str>) -> Result<Self, ViewRefusal> {
        let query = query.unwrap_or_default();
        if query.len() > MAX_QUERY_BYTES {
            return Err(ViewRefusal::Invalid(format!("the query is longer than {MAX_QUERY_BYTES} bytes")));
        }
        let mut parameters = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            // A name without `=` has an empty value, which counts as absent below.
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode_percent(name)?, decode_percent(value)?);
            // A repeated parameter is refused, because one of its values would be ignored silently.
            if parameters.contains_key(&name) {
                return Err(ViewRefusal::Invalid(format!("{name}: this parameter is given twice")));
            }
            parameters.insert(name, value);
        }
        Ok(Self(parameters))
    }

    /// Removes a parameter and returns its value; an empty text if it is absent.
    pub(super) fn take_text_parameter(&mut self, name: &str) -> String {
        self.0.remove(name).unwrap_or_default()
    }

    /// Removes a parameter and returns its value; fails if it is absent or empty.
    pub(super) fn take_required_parameter(&mut self, name: &str) -> Result<String, ViewRefusal> {
        let text = self.take_text_parameter(name);
        if text.is_empty() { Err(ViewRefusal::Invalid(format!("{name}: required"))) } else { Ok(text) }
    }

    /// Removes a parameter and parses its value; `None` if it is absent or empty. `wanted` describes a
    /// valid value in errors.
    pub(super) fn take_parsed_parameter<T: FromStr>(
        &mut self,
        name: &str,
        wanted: &str,
    ) -> Result<Option<T>, ViewRefusal> {
        let text = self.take_text_parameter(name);
        if text.is_empty() {
            return Ok(None);
        }
        let read = text.parse().map(Some);
        read.map_err(|_| ViewRefusal::Invalid(format!("{name}: `{text}` is not {wanted}")))
    }

    pub(super) fn take_number_parameter(
        &mut self,
        name: &str,
        default: usize,
        most: usize,
    ) -> Result<usize, ViewRefusal> {
        let number = self.take_parsed_parameter(name, "a whole number")?.unwrap_or(default);
        if number > most {
            return Err(ViewRefusal::Invalid(format!("{name}: must be at most {most}")));
        }
        Ok(number)
    }

    /// Removes a time in ms since 1970, and returns it in ns.
    pub(super) fn take_time_parameter(&mut self, name: &str) -> Result<Option<u64>, ViewRefusal> {
        let ms: Option<u64> = self.take_parsed_parameter(name, "a time in milliseconds since 1970")?;
        Ok(ms.map(|ms| ms.saturating_mul(1_000_000)))
    }

    pub(super) fn take_flag_parameter(&mut self, name: &str) -> Result<bool, ViewRefusal> {
        Ok(self.take_parsed_parameter(name, "`true` or `false`")?.unwrap_or(false))
    }

    /// Refuses parameters that no call has read. Otherwise a misspelled filter would look like
    /// one that matches everything.
    pub(super) fn refuse_unknown_parameters(self) -> Result<(), ViewRefusal> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(ViewRefusal::Invalid(format!("{name}: there is no such parameter"))),
        }
    }
}

/// Percent-decodes a text as HTML forms encode it: `+` is a space.
fn decode_percent(text: &str) -> Result<String, ViewRefusal> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                // A missing digit at the end of the text reads as `?`, which is not a hexadecimal digit.
                let digits =
                    [rest.next(), rest.next()].map(|digit| (digit.unwrap_or(b'?') as char).to_digit(16));
                match digits {
                    [Some(high), Some(low)] => u8::try_from(high * 16 + low).unwrap_or(b'?'),
                    _ => {
                        return Err(ViewRefusal::Invalid(format!(
                            "`{text}` is not percent-encoded correctly"
                        )));
                    }
                }
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| ViewRefusal::Invalid(format!("`{text}` is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded_and_unknown_refused() {
        let mut query =
            QueryParameters::parse_query(Some("filter=a%20b%26c+d&from=7&anyway=true")).expect("reads");
        assert_eq!(query.take_text_parameter("filter"), "a b&c d");
        assert_eq!(query.take_number_parameter("from", 0, 10), Ok(7));
        assert_eq!(query.take_number_parameter("rows", 60, 100), Ok(60));
        assert_eq!(query.take_flag_parameter("anyway"), Ok(true));
        assert_eq!(query.refuse_unknown_parameters(), Ok(()));
        let mut query = QueryParameters::parse_query(Some("most=x&more=1")).expect("reads");
        assert_eq!(
            query.take_number_parameter("most", 1, 9),
            Err(ViewRefusal::Invalid("most: `x` is not a whole number".into()))
        );
        assert_eq!(
            query.refuse_unknown_parameters(),
            Err(ViewRefusal::Invalid("more: there is no such parameter".into()))
        );
        for wrong in ["a=%", "a=%f", "a=%zz", "a=%ff", "a=1&a=2"] {
            assert!(QueryParameters::parse_query(Some(wrong)).is_err(), "{wrong}");
        }
        assert!(QueryParameters::parse_query(Some(&"a".repeat(MAX_QUERY_BYTES + 1))).is_err());
    }
}
