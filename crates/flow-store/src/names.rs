//! Names for values that records have as numbers: countries and autonomous systems of addresses, prefixes,
//! interfaces and services. They come from files of the user; packetrig queries no network service.
//!
//! ```text
//!  MMDB, IPtoASN, prefixes   ranges of addresses -> AddressTable, laid over those of earlier files
//!  interfaces, services      numbers -> names
//! ```
//! Invariant: the memory that a file takes is bounded by its length, whatever its bytes are.

mod address_table;
mod columns;
mod csv;
mod lists;
mod mmdb;

use super::Error;
pub(super) use address_table::AddressTable;
use address_table::RangeList;
pub(super) use columns::NameColumnValues;
pub use columns::{NAME_COLUMNS, NameColumn, NameValue, find_name_column};
pub(super) use lists::country_code;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum number of bytes of a names file.
const MAX_NAMES_FILE_BYTES: u64 = 1 << 30;

/// Kinds of names in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    Country,
    AsNumber,
    AsName,
    Prefix,
    Interface,
    Service,
}

impl NameKind {
    /// Describes the files that have names of this kind, for error messages.
    pub const fn needed_file_description(self) -> &'static str {
        match self {
            Self::Country => "a file with countries of addresses (MMDB, or the TSV of IPtoASN)",
            Self::AsNumber | Self::AsName => {
                "a file with autonomous systems of addresses (MMDB, or the TSV of IPtoASN)"
            }
            Self::Prefix => "a CSV file of lines `prefix,name`",
            Self::Interface => "a CSV file of lines `exporter,ifindex,name`",
            Self::Service => "a list of services (IANA's CSV, or /etc/services)",
        }
    }
}

/// An autonomous system, with its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AutonomousSystem {
    pub(super) number: u32,
    pub(super) name: Box<str>,
}

/// An interface: its exporter (`None` means any exporter) and its number.
pub(super) type ExporterInterface = (Option<[u8; 16]>, u32);

/// Names from files of the user.
#[derive(Clone, Debug, Default)]
pub struct FlowNames {
    pub(super) countries: AddressTable<Box<str>>,
    pub(super) systems: AddressTable<AutonomousSystem>,
    pub(super) prefixes: AddressTable<Box<str>>,
    pub(super) interfaces: BTreeMap<ExporterInterface, Box<str>>,
    /// By protocol and port.
    pub(super) services: BTreeMap<(u8, u16), Box<str>>,
}

/// Reason why the content of a names file is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNamesFile {
    /// Line of the file, if it is a text.
    line: Option<usize>,
    why: String,
}

impl InvalidNamesFile {
    fn new(why: impl Into<String>) -> Self {
        Self { line: None, why: why.into() }
    }

    fn at_line(line: usize, why: impl Into<String>) -> Self {
        Self { line: Some(line), why: why.into() }
    }
}

impl fmt::Display for InvalidNamesFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.why)
    }
}

impl FlowNames {
    /// Reads names files. If several files name the same address, interface or service, the last file counts.
    pub fn read_files(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut names = Self::default();
        for path in paths {
            let content = read_bounded_file(path)?;
            names
                .add_file_content(&content)
                .map_err(|fault| Error::Names { path: path.clone(), why: fault.to_string() })?;
        }
        Ok(names)
    }

    /// Adds the names in the content of a file. The content shows which kind of file it is.
    pub fn add_file_content(&mut self, content: &[u8]) -> Result<(), InvalidNamesFile> {
        if content.starts_with(&[0x1f, 0x8b]) {
            return Err(InvalidNamesFile::new("the file is compressed; unpack it with gunzip"));
        }
        if let Some(database) = mmdb::MmdbDatabase::open(content)? {
            let found = database.read_ranges()?;
            return self.add_ranges(
                found.countries,
                found.systems,
                InvalidNamesFile::new("no address of the database has a country or an autonomous system"),
            );
        }
        let text = std::str::from_utf8(content)
            .map_err(|_| InvalidNamesFile::new("the file is neither an MMDB database nor UTF-8 text"))?;
        lists::add_names_text(self, text)
    }

    fn add_ranges(
        &mut self,
        countries: RangeList<Box<str>>,
        systems: RangeList<AutonomousSystem>,
        nothing: InvalidNamesFile,
    ) -> Result<(), InvalidNamesFile> {
        if countries.is_empty() && systems.is_empty() {
            return Err(nothing);
        }
        self.countries.overlay_table(countries.into_table());
        self.systems.overlay_table(systems.into_table());
        Ok(())
    }

    /// Returns whether a file has names of this kind.
    pub fn has_names_of_kind(&self, kind: NameKind) -> bool {
        match kind {
            NameKind::Country => !self.countries.is_empty(),
            NameKind::AsNumber | NameKind::AsName => !self.systems.is_empty(),
            NameKind::Prefix => !self.prefixes.is_empty(),
            NameKind::Interface => !self.interfaces.is_empty(),
            NameKind::Service => !self.services.is_empty(),
        }
    }

    /// The name of an interface; empty if it has none.
    pub(super) fn interface_name(&self, exporter: [u8; 16], number: u64) -> &str {
        let Ok(number) = u32::try_from(number) else { return "" };
        let own = self.interfaces.get(&(Some(exporter), number));
        own.or_else(|| self.interfaces.get(&(None, number))).map_or("", |name| name)
    }

    /// The service name of the lower port, or of the higher port if only that has a name; empty if neither has one.
    pub(super) fn service_name(&self, protocol: u64, ports: [u64; 2]) -> &str {
        let Ok(protocol) = u8::try_from(protocol) else { return "" };
        let [one, other] = ports;
        let mut names = [one.min(other), one.max(other)]
            .into_iter()
            .filter_map(|port| self.services.get(&(protocol, u16::try_from(port).ok()?)));
        names.next().map_or("", |name| name)
    }
}

fn read_bounded_file(path: &Path) -> Result<Vec<u8>, Error> {
    let file = std::fs::File::open(path).map_err(Error::file("read", path))?;
    let mut content = Vec::new();
    // One byte more shows that the file is too long.
    file.take(MAX_NAMES_FILE_BYTES + 1).read_to_end(&mut content).map_err(Error::file("read", path))?;
    if content.len() as u64 > MAX_NAMES_FILE_BYTES {
        let why = format!("the file has more than {MAX_NAMES_FILE_BYTES} bytes");
        return Err(Error::Names { path: path.to_owned(), why });
    }
    Ok(content)
}

#[cfg(test)]
mod tests;
