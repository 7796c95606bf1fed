//! `doctor --bundle`: a file for bug reports. It contains facts, findings and the outcomes of recent runs, but no IP
//! or MAC addresses and no payloads.

use super::MachineExamination;
use crate::archive::CatalogueArchive;
use crate::error::Error;
use packetrig_plan::recording::parse_mac;
use packetrig_server::{ResultArchive, ResultQuery};
use packetrig_sys::{kernel, private_files};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

/// Largest number of runs whose outcomes are in the file.
const MAX_BUNDLED_RUNS: usize = 20;

/// Writes the file; only its owner may read it.
pub(super) fn write_bundle(path: &Path, examination: &MachineExamination) -> Result<(), Error> {
    let mut bundle = json!({
        "schema_version": 1,
        "packetrig": env!("CARGO_PKG_VERSION"),
        "architecture": kernel::architecture(),
        "processor": kernel::read_processor_model(),
        "examination": examination,
        "runs": recent_runs(),
    });
    // One mask for the whole file: an address gets the same replacement name everywhere.
    AddressMask::default().mask_value(&mut bundle);
    let text = format!("{bundle:#}\n");
    private_files::write_file(path, text.as_bytes())
        .map_err(|source| Error::Write { what: path.display().to_string(), source })
}

/// Outcomes of the latest runs; empty if the catalogue is missing or damaged.
fn recent_runs() -> Vec<Value> {
    let query = ResultQuery { most: MAX_BUNDLED_RUNS, ..ResultQuery::default() };
    // A bug report must not fail because a catalogue is damaged or missing: that may be the bug.
    let page = CatalogueArchive::new(None).list_results(&query);
    let results = page.map(|page| page.results).unwrap_or_default();
    results.iter().map(|result| serde_json::to_value(result).unwrap_or_default()).collect()
}

/// Replaces each address by a numbered name. Equal addresses get the same name, so a reader still sees
/// that they are equal.
#[derive(Default)]
struct AddressMask {
    names: BTreeMap<String, String>,
}

impl AddressMask {
    fn mask_value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.mask_text(text),
            Value::Array(values) => {
                // A list of six numbers below 256 counts as an address even if it is none: masking too much
                // is the safer error.
                if let Some(mac) = format_mac_bytes(values) {
                    *value = self.mask_address(&mac, "mac").into();
                } else {
                    for value in values {
                        self.mask_value(value);
                    }
                }
            }
            Value::Object(members) => members.values_mut().for_each(|value| self.mask_value(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn mask_text(&mut self, text: &str) -> String {
        let is_of_address = |c: char| c.is_ascii_alphanumeric() || c == ':' || c == '.';
        let mut masked = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let word = &rest[..rest.find(|c| !is_of_address(c)).unwrap_or(rest.len())];
            if word.is_empty() {
                let other = &rest[..rest.find(is_of_address).unwrap_or(rest.len())];
                masked.push_str(other);
                rest = &rest[other.len()..];
            } else {
                masked.push_str(&self.mask_word(word));
                rest = &rest[word.len()..];
            }
        }
        masked
    }

    /// Masks the address in a word of letters, digits, colons and dots. The word may also contain another word and a
    /// colon before the address, and punctuation after it. As an IPv6 address may itself begin or end with colons, the
    /// longest part of the word that is an address is masked.
    fn mask_word(&mut self, word: &str) -> String {
        let after = word.trim_end_matches(['.', ':']).len();
        let starts = word.match_indices(':').map(|(colon, _)| colon + 1);
        for start in std::iter::once(0).chain(starts).filter(|&start| start < after) {
            for end in (after..=word.len()).rev() {
                let Some((address, kind)) = parse_whole_address(&word[start..end]) else { continue };
                let masked = self.mask_address(address, kind);
                return [&word[..start], &masked, &word[start + address.len()..]].concat();
            }
        }
        word.to_owned()
    }

    fn mask_address(&mut self, address: &str, kind: &str) -> String {
        // Masks are numbered in order of appearance, so their numbers do not show the order of the addresses.
        let next = self.names.len() + 1;
        self.names.entry(address.to_owned()).or_insert_with(|| format!("{kind}-{next}")).clone()
    }
}

/// Parses a text that is one address, or an IPv4 address with a port. Returns the address without port, and its kind.
fn parse_whole_address(text: &str) -> Option<(&str, &'static str)> {
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => Some((text, "ipv4")),
        Ok(IpAddr::V6(_)) => Some((text, "ipv6")),
        Err(_) if parse_mac(text).is_some() => Some((text, "mac")),
        Err(_) => {
            let (host, port) = text.rsplit_once(':')?;
            let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            (is_port && host.parse::<std::net::Ipv4Addr>().is_ok()).then_some((host, "ipv4"))
        }
    }
}

/// Formats a list of six bytes as a hardware address; `None` if the list is anything else.
fn format_mac_bytes(values: &[Value]) -> Option<String> {
    let bytes: Vec<u8> = values.iter().map(|value| value.as_u64()?.try_into().ok()).collect::<Option<_>>()?;
    (bytes.len() == 6).then(|| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_names_addresses_by_number() {
        let mut value = json!({
            "text": "no answer from 192.0.2.1, 2001:db8::7 and 192.0.2.1:4739. By 02:00:00:00:00:01.",
            "kernel": "6.18.44-fc-v657",
            "mac": [2, 0, 0, 0, 0, 1],
            "version": [6, 18],
            "took": "12.5 ms at 10:15:00",
        });
        AddressMask::default().mask_value(&mut value);
        assert_eq!(
            value,
            json!({
                "text": "no answer from ipv4-2, ipv6-3 and ipv4-2:4739. By mac-1.",
                "kernel": "6.18.44-fc-v657",
                "mac": "mac-1",
                "version": [6, 18],
                "took": "12.5 ms at 10:15:00",
            })
        );
    }

    #[test]
    fn address_beside_punctuation_is_masked() {
        let mut masks = AddressMask::default();
        for (text, masked) in [
            ("route 2001:db8::/32 is gone", "route ipv6-1/32 is gone"),
            ("peer:192.0.2.1 left", "peer:ipv4-2 left"),
            ("peer:192.0.2.1:53:", "peer:ipv4-2:53:"),
            ("to ::ffff:1.2.3.4...", "to ipv6-3..."),
            ("mac:02:00:00:00:00:01.", "mac:mac-4."),
            ("2001:db8::: no route", "ipv6-1: no route"),
            ("a::b fe80::", "ipv6-5 ipv6-6"),
            ("at 10:15:00.5: version 1.2.3", "at 10:15:00.5: version 1.2.3"),
        ] {
            assert_eq!(masks.mask_text(text), masked);
        }
    }
}
