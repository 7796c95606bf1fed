//! Parses names files that are texts: the ranges of IPtoASN, prefixes, interfaces and services.

use super::csv::{CsvRecord, csv_records};
use super::{AutonomousSystem, FlowNames, InvalidNamesFile, RangeList};
use crate::filter::AddressPrefix;
use crate::protocols::parse_protocol_number;
use std::collections::BTreeMap;
use std::net::{AddrParseError, IpAddr, Ipv4Addr};

const SUPPORTED_LISTS_TEXT: &str = "the file is none of these: an MMDB database, the TSV of IPtoASN (start, end, AS, country, \
    name), CSV of `prefix,name` or \
                     `exporter,ifindex,name`, IANA's list of services, /etc/services";
/// Maximum number of ports in the port range of a service.
const MAX_PORTS: u16 = 1024;
/// Maximum number of bytes of a service name. The name of a port range is stored once for each port.
const MAX_SERVICE_NAME: usize = 255;

/// Adds the names of a text. Its first line decides the kind of list.
pub(super) fn add_names_text(names: &mut FlowNames, text: &str) -> Result<(), InvalidNamesFile> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    let Some(first) = lines.find(|line| !line.is_empty()) else {
        return Err(InvalidNamesFile::new("the file is empty, or has only comments"));
    };
    if first.split('\t').take(2).filter(|word| read_address(word).is_some()).count() == 2 {
        return add_ranges(names, text);
    }
    if first.to_ascii_lowercase().starts_with("service name,port number,transport protocol") {
        return add_service_table(names, text);
    }
    if service_line(first).is_some() {
        return add_service_lines(names, text);
    }
    match csv_records(text).next().as_ref().and_then(name_list_kind) {
        Some(ListKind::Prefixes) => add_prefixes(names, text),
        Some(ListKind::Interfaces) => add_interfaces(names, text),
        None => Err(InvalidNamesFile::new(SUPPORTED_LISTS_TEXT)),
    }
}

enum ListKind {
    Prefixes,
    Interfaces,
}

/// Finds the kind of a list from its first record, which may be its heading.
fn name_list_kind(record: &CsvRecord) -> Option<ListKind> {
    let fields: Vec<_> = record.fields.iter().map(|field| field.to_ascii_lowercase()).collect();
    match &fields.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["prefix", "name", ..] => Some(ListKind::Prefixes),
        ["exporter", "ifindex", "name", ..] => Some(ListKind::Interfaces),
        [exporter, number, _, ..]
            if parse_exporter_address(exporter).is_ok() && number.parse::<u32>().is_ok() =>
        {
            Some(ListKind::Interfaces)
        }
        [prefix, _, ..] if prefix.parse::<AddressPrefix>().is_ok() => Some(ListKind::Prefixes),
        _ => None,
    }
}

/// Reads an address: as text, or an IPv4 address as a number.
fn read_address(word: &str) -> Option<IpAddr> {
    let word = word.trim();
    word.parse().ok().or_else(|| word.parse::<u32>().ok().map(|bits| Ipv4Addr::from_bits(bits).into()))
}

fn address_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Adds the ranges of an IPtoASN file. The fields of a line are separated by tabs: start, end, AS, country, name;
/// or start, end, country.
fn add_ranges(names: &mut FlowNames, text: &str) -> Result<(), InvalidNamesFile> {
    let mut countries = RangeList::default();
    let mut systems = RangeList::default();
    for (line, row) in (1..).zip(text.lines()).filter(|(_, row)| !row.is_empty() && !row.starts_with('#')) {
        let fields: Vec<_> = row.split('\t').map(str::trim).collect();
        let (start, end, system, country) = match fields[..] {
            [start, end, number, country, name, ..] => (start, end, Some((number, name)), country),
            [start, end, country] => (start, end, None, country),
            _ => {
                return Err(InvalidNamesFile::at_line(
                    line,
                    "the line has neither three nor five fields separated by tabs",
                ));
            }
        };
        let (first, last) = read_range(start, end).ok_or_else(|| {
            InvalidNamesFile::at_line(line, format!("`{start}` to `{end}` is not a range of addresses"))
        })?;
        if let Some(code) = country_code(country) {
            countries.add_range(first, last, code);
        }
        if let Some((number, name)) = system {
            let number = number.parse().map_err(|_| {
                InvalidNamesFile::at_line(
                    line,
                    format!("`{number}` is not the number of an autonomous system"),
                )
            })?;
            // Number 0 means addresses that are not announced.
            if number > 0 {
                systems.add_range(first, last, AutonomousSystem { number, name: name.into() });
            }
        }
    }
    names.add_ranges(
        countries,
        systems,
        InvalidNamesFile::new("no line has a country or an autonomous system"),
    )
}

fn read_range(start: &str, end: &str) -> Option<(u128, u128)> {
    let start = read_address(start)?;
    let end = read_address(end)?;
    let first = address_number(start);
    let last = address_number(end);
    (start.is_ipv4() == end.is_ipv4() && first <= last).then_some((first, last))
}

/// Returns a country code of two letters in upper case; `None` if the text is not two letters.
pub(crate) fn country_code(text: &str) -> Option<Box<str>> {
    let is_code = text.len() == 2 && text.bytes().all(|letter| letter.is_ascii_alphabetic());
    is_code.then(|| text.to_ascii_uppercase().into())
}

fn add_prefixes(names: &mut FlowNames, text: &str) -> Result<(), InvalidNamesFile> {
    let mut prefixes = RangeList::default();
    for record in csv_records(text) {
        let [prefix, name, ..] = &record.fields[..] else {
            return Err(InvalidNamesFile::at_line(record.line, "the line must be `prefix,name`"));
        };
        // Only the first line may have no prefix: it may be a heading.
        let Ok(range) = prefix.parse::<AddressPrefix>().map(|prefix| prefix.address_range()) else {
            if prefixes.is_empty() && prefix.eq_ignore_ascii_case("prefix") {
                continue;
            }
            return Err(InvalidNamesFile::at_line(
                record.line,
                format!("`{prefix}` is neither an address nor a prefix"),
            ));
        };
        prefixes.add_range(range.least, range.greatest, name.as_str().into());
    }
    if prefixes.is_empty() {
        return Err(InvalidNamesFile::new("the file has a heading but no other line"));
    }
    names.prefixes.overlay_table(prefixes.into_table());
    Ok(())
}

/// Reads an exporter's address; `*` means every exporter and gives `None`.
fn parse_exporter_address(text: &str) -> Result<Option<[u8; 16]>, AddrParseError> {
    if text == "*" {
        return Ok(None);
    }
    text.parse().map(|address| Some(address_number(address).to_be_bytes()))
}

fn add_interfaces(names: &mut FlowNames, text: &str) -> Result<(), InvalidNamesFile> {
    let mut interfaces = BTreeMap::new();
    for record in csv_records(text) {
        let [exporter, number, name, ..] = &record.fields[..] else {
            return Err(InvalidNamesFile::at_line(record.line, "the line must be `exporter,ifindex,name`"));
        };
        if exporter.eq_ignore_ascii_case("exporter") {
            continue;
        }
        let exporter = parse_exporter_address(exporter).map_err(|_| {
            InvalidNamesFile::at_line(
                record.line,
                format!("`{exporter}` is neither the address of an exporter nor `*`"),
            )
        })?;
        let number = number.parse().map_err(|_| {
            InvalidNamesFile::at_line(record.line, format!("`{number}` is not the number of an interface"))
        })?;
        interfaces.insert((exporter, number), name.as_str().into());
    }
    if interfaces.is_empty() {
        return Err(InvalidNamesFile::new("the file has a heading but no other line"));
    }
    names.interfaces.extend(interfaces);
    Ok(())
}

/// Adds the services of IANA's list. The fields of a line: service name, port or port range, protocol, and more.
fn add_service_table(names: &mut FlowNames, text: &str) -> Result<(), InvalidNamesFile> {
    let mut services = ServiceNames::new();
    for record in csv_records(text).skip(1) {
        let [name, ports, protocol, ..] = &record.fields[..] else { continue };
        // The list also has reserved ports without a name, and services without a port.
        let Some(protocol) = parse_protocol_number(protocol).filter(|_| is_service_name(name)) else {
            continue;
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else { continue };
        if last.saturating_sub(first) < MAX_PORTS {
            for port in first..=last {
                // Some ports have several names: the first one is the preferred one.
                services.entry((protocol, port)).or_insert_with(|| name.as_str().into());
            }
        }
    }
    add_services(names, services)
}

/// Names of services by protocol and port.
type ServiceNames = BTreeMap<(u8, u16), Box<str>>;

fn is_service_name(name: &str) -> bool {
    (1..=MAX_SERVICE_NAME).contains(&name.len())
}

/// Adds the services of a file. They replace services of earlier files with the same protocol and port.
fn add_services(names: &mut FlowNames, services: ServiceNames) -> Result<(), InvalidNamesFile> {
    if services.is_empty() {
        return Err(InvalidNamesFile::new("no line has a service with a port and a known protocol"));
    }
    names.services.extend(services);
    Ok(())
}

/// Name, port and protocol of a line of /etc/services.
fn service_line(line: &str) -> Option<(&str, u16, u8)> {
    let mut words = line.split('#').next()?.split_whitespace();
    let name = words.next()?;
    let (port, protocol) = words.next()?.split_once('/')?;
    Some((name, port.parse().ok()?, parse_protocol_number(protocol)?))
}

fn add_service_lines(names: &mut FlowNames, text: &str) -> Result<(), InvalidNamesFile> {
    let mut services = ServiceNames::new();
    for (line, row) in (1..).zip(text.lines()) {
        let content = row.split('#').next().unwrap_or("").trim();
        if content.is_empty() {
            continue;
        }
        // Lines of protocols that packetrig does not know, such as `ddp`, are left out below.
        let is_service = content.split_whitespace().nth(1).is_some_and(|word| word.contains('/'));
        if !is_service {
            return Err(InvalidNamesFile::at_line(line, "the line must be `name port/protocol`"));
        }
        if let Some((name, port, protocol)) = service_line(content).filter(|(name, ..)| is_service_name(name))
        {
            services.entry((protocol, port)).or_insert_with(|| name.into());
        }
    }
    add_services(names, services)
}
