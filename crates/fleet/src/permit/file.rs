//! Parses the owner's permit file (TOML). A missing key means the default. An unknown key is an error, because the
//! owner may have meant to forbid something with it.

use super::{LendingPermit, NetworkSet, PermittedMacs, PermittedPort};
use packetrig_plan::{LABEL_FORMAT, PortLocation, is_port_label};
use packetrig_stats::port::BackEnd;
use packetrig_units::{BitRate, Nanos, Network};
use serde::{Deserialize, Deserializer, de::Error};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;

/// Reason why the owner's permit file is invalid. With an invalid file the node may send nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the owner's permit file is invalid: {0}")]
pub struct FileError(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PermitFile {
    #[serde(default, deserialize_with = "deserialize_labels")]
    labels: Vec<String>,
    max_duration: Option<ParsedText<Nanos>>,
    max_capture: Option<ByteSize>,
    back_ends: Option<Vec<BackEnd>>,
    replays: Option<PathBuf>,
    #[serde(default)]
    destinations: PermitDestinations,
    port: Option<Vec<FilePort>>,
    /// Only the TOML syntax of this section is checked here; the crates for probes interpret it.
    probe: Option<toml::Table>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct PermitDestinations {
    ip: Option<Vec<ParsedText<Network>>>,
    mac: Option<PermitFileMacs>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PermitFileMacs {
    Word(String),
    List(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePort {
    interface: ParsedText<PortLocation>,
    #[serde(default, deserialize_with = "deserialize_labels")]
    labels: Vec<String>,
    #[serde(default)]
    confirmed: bool,
    max_rate: Option<ParsedText<BitRate>>,
    max_frames_per_second: Option<u64>,
    max_mtu: Option<u32>,
}

/// A value that the file contains as a string, for example `'1Gbit/s'`.
struct ParsedText<T>(T);

impl<'de, T: FromStr<Err: std::fmt::Display>> Deserialize<'de> for ParsedText<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A number of bytes, written as a number or with a unit: `100MB`.
struct ByteSize(u64);

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum ByteSizeText {
            Bytes(u64),
            Text(String),
        }
        let text = match ByteSizeText::deserialize(from)? {
            ByteSizeText::Bytes(bytes) => return Ok(Self(bytes)),
            ByteSizeText::Text(text) => text,
        };
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let factor = match text[digits.len()..].trim() {
            "" | "B" => Some(1),
            "kB" => Some(1_000),
            "MB" => Some(1_000_000),
            "GB" => Some(1_000_000_000),
            "TB" => Some(1_000_000_000_000),
            // Units such as `MiB` are not supported. The error shows the supported form.
            _ => None,
        };
        let bytes = factor.and_then(|factor: u64| digits.parse::<u64>().ok()?.checked_mul(factor));
        bytes
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not a size; write it like 500kB or 2GB")))
    }
}

fn deserialize_labels<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let labels = Vec::<String>::deserialize(from)?;
    match labels.iter().find(|label| !is_port_label(label)) {
        Some(label) => Err(D::Error::custom(format!("`{label}` is not a valid label; write {LABEL_FORMAT}"))),
        None => Ok(labels),
    }
}

pub(super) fn parse_permit(text: &str) -> Result<LendingPermit, FileError> {
    // The message of the TOML parser ends with a line break.
    let file: PermitFile =
        toml::from_str(text).map_err(|error| FileError(error.to_string().trim_end().to_owned()))?;
    // A missing key has the same default as a missing file, so it never allows everything.
    let usual = LendingPermit::default();

    let permit = LendingPermit {
        labels: file.labels,
        ports: file.port.map(|ports| ports.into_iter().map(convert_port).collect()),
        networks: file.destinations.ip.map_or(usual.networks, convert_networks),
        macs: file.destinations.mac.map_or(Ok(usual.macs), convert_macs)?,
        max_duration: file.max_duration.map_or(usual.max_duration, |ParsedText(length)| length),
        max_capture: file.max_capture.map(|ByteSize(bytes)| bytes),
        back_ends: file.back_ends,
        replays: file.replays,
        probes: file.probe.map(|section| section.to_string()),
    };
    if let Some(replays) = permit.replays.as_ref().filter(|replays| !replays.is_absolute()) {
        // A relative path would depend on the directory in which the agent was started.
        return Err(FileError(format!("`replays` must be an absolute path, not `{}`", replays.display())));
    }
    let ports = permit.ports.as_deref().unwrap_or_default();
    // Two entries for one interface could have different limits.
    let mut seen = BTreeSet::new();
    match ports.iter().find(|port| !seen.insert(&port.interface)) {
        Some(port) => Err(FileError(format!("port {} is listed twice", port.interface))),
        None => Ok(permit),
    }
}

fn convert_networks(list: Vec<ParsedText<Network>>) -> NetworkSet {
    NetworkSet::new(&list.into_iter().map(|ParsedText(network)| network).collect::<Vec<_>>())
}

fn convert_port(port: FilePort) -> PermittedPort {
    PermittedPort {
        interface: port.interface.0.to_string(),
        labels: port.labels,
        confirmed: port.confirmed,
        max_rate: port.max_rate.map(|ParsedText(rate)| rate),
        max_frames_per_second: port.max_frames_per_second,
        max_mtu: port.max_mtu,
    }
}

fn convert_macs(macs: PermitFileMacs) -> Result<PermittedMacs, FileError> {
    match macs {
        PermitFileMacs::Word(word) if word == "any" => Ok(PermittedMacs::Any),
        PermitFileMacs::Word(word) => {
            Err(FileError(format!("`mac` must be a list of addresses or \"any\", not \"{word}\"")))
        }
        PermitFileMacs::List(list) => {
            let list: Result<_, String> = list.iter().map(|text| PermittedMacs::parse_mac(text)).collect();
            list.map(PermittedMacs::List).map_err(FileError)
        }
    }
}
