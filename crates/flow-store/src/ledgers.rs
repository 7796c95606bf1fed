//! Reads the ledgers (packet counts of meters) that are stored beside the records.

use super::columns::{LedgerRow, ledger_from_numbers};
use super::scan::{list_ledger_files, open_file_if_exists};
use super::{Error, RecordExporter};
use packetrig_flow::MeterLedger;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::FileReader;
use parquet::record::{Field, Row};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Maximum number of meters whose newest ledger is kept in memory. Ledgers of further meters are ignored.
const MAX_METERS: usize = 10_000;

/// Returns the newest ledger of each meter in these files and directories, with its time in nanoseconds since 1970, for
/// at most 10,000 meters.
pub fn newest_ledgers(places: &[PathBuf]) -> Result<BTreeMap<RecordExporter, (u64, MeterLedger)>, Error> {
    let mut newest = BTreeMap::new();
    let files = list_ledger_files(places)?;
    for path in files.iter() {
        let Some(file) = open_file_if_exists(path)? else { continue };
        for row in file.get_row_iter(None).map_err(Error::damaged_file(path))? {
            let LedgerRow { at_ns, source, ledger } =
                row.and_then(|row| read_ledger(&row, path)).map_err(Error::damaged_file(path))?;
            // Exporters choose their domains: a single one could otherwise fill the memory with ledgers.
            if newest.len() >= MAX_METERS && !newest.contains_key(&source) {
                continue;
            }
            let entry = newest.entry(source).or_insert((at_ns, ledger));
            // With equal times the later row counts, because rows are appended in order.
            if at_ns >= entry.0 {
                *entry = (at_ns, ledger);
            }
        }
    }
    Ok(newest)
}

fn read_ledger(row: &Row, path: &Path) -> ParquetResult<LedgerRow> {
    // Columns are found by name and not by position: files of earlier versions have fewer.
    let mut numbers = BTreeMap::new();
    let mut exporter = None;
    for (name, field) in row.get_column_iter() {
        let _before = match field {
            Field::ULong(number) => numbers.insert(name.as_str(), *number),
            Field::UInt(number) => numbers.insert(name.as_str(), u64::from(*number)),
            // Times are signed numbers in Parquet.
            Field::Long(number) => numbers.insert(name.as_str(), number.cast_unsigned()),
            Field::Bytes(bytes) if name == "exporterIPv6Address" => {
                exporter = bytes.data().try_into().ok();
                None
            }
            _ => None,
        };
    }
    let at_ns = numbers.get("observationTimeNanoseconds").copied();
    let Some((at_ns, exporter)) = at_ns.zip(exporter) else {
        return Err(ParquetError::General(format!("{} contains no ledgers", path.display())));
    };
    let domain = numbers.get("observationDomainId").and_then(|domain| u32::try_from(*domain).ok());
    Ok(LedgerRow {
        at_ns,
        source: RecordExporter { exporter, domain: domain.unwrap_or(0) },
        ledger: ledger_from_numbers(|name| numbers.get(name).copied()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{SECOND, THIRTEEN};
    use crate::{ParquetOptions, ParquetSink, RecordSink};

    #[test]
    fn the_newest_ledger_of_each_meter_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let mut sink = ParquetSink::new(ParquetOptions::new(directory.path())).unwrap();
        let here = RecordExporter::default();
        let there = RecordExporter { exporter: [7; 16], domain: u32::MAX };
        let ledger = |seen| {
            let mut ledger = MeterLedger::default();
            ledger.packets.seen = seen;
            ledger.capture.arrived = (seen > 5).then_some(seen);
            ledger
        };
        for (seen, source, at) in [(1, here, 5), (u64::MAX, there, 1), (7, here, 3700), (2, here, 6)] {
            sink.write_ledger(&ledger(seen), source, THIRTEEN + at * SECOND).unwrap();
        }
        sink.close_sink().1.unwrap();
        let found = newest_ledgers(&[directory.path().to_owned()]).unwrap();
        let expected =
            [(here, (THIRTEEN + 3700 * SECOND, ledger(7))), (there, (THIRTEEN + SECOND, ledger(u64::MAX)))];
        assert_eq!(found, BTreeMap::from(expected));
    }
}
