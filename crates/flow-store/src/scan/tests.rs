//! Files that others wrote.

use super::*;
use crate::columns::flow_columns;
use crate::sample::{THIRTEEN, address};
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{Type, TypePtr};
use std::sync::Arc;

const NAMES: [&str; 6] = [
    "flowStartNanoseconds",
    "packetDeltaCount",
    "sourceIPv6Address",
    "sourceMacAddress",
    "tunnelKind",
    "observedLoss",
];

fn column(name: &str, physical: Physical, logical: Option<LogicalType>, repetition: Repetition) -> TypePtr {
    let builder = Type::primitive_type_builder(name, physical).with_logical_type(logical);
    Arc::new(builder.with_repetition(repetition).build().unwrap())
}

/// The columns as DuckDB and polars write them: each may be null, addresses are bytes of any number.
fn nullable() -> Vec<TypePtr> {
    let kinds = [
        (Physical::INT64, Some(LogicalType::timestamp(false, TimeUnit::NANOS))),
        (Physical::INT32, None),
        (Physical::BYTE_ARRAY, None),
        (Physical::BYTE_ARRAY, None),
        (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        (Physical::BOOLEAN, None),
    ];
    let columns = NAMES.iter().zip(kinds);
    columns.map(|(name, (physical, logical))| column(name, physical, logical, Repetition::OPTIONAL)).collect()
}

/// Writes the values of the column with this number.
type ColumnFill = dyn Fn(usize, &mut SerializedColumnWriter<'_>);

/// A file with one row group for each `fill`.
fn file(path: &Path, columns: Vec<TypePtr>, fills: &[&ColumnFill]) {
    let schema = Type::group_type_builder("records").with_fields(columns).build().unwrap();
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), Arc::new(schema), Arc::default()).unwrap();
    for fill in fills {
        let mut group = file.next_row_group().unwrap();
        let mut index = 0;
        while let Some(mut column) = group.next_column().unwrap() {
            fill(index, &mut column);
            column.close().unwrap();
            index += 1;
        }
        group.close().unwrap();
    }
    file.close().unwrap();
}

/// Three rows; the middle one is null in every column. The start is null in it only on request.
fn holed(start_is_null: bool) -> impl Fn(usize, &mut SerializedColumnWriter<'_>) {
    move |index, column| {
        let bytes = |values: [&[u8]; 2]| values.map(|value| ByteArray::from(value.to_vec()));
        let holes = Some(&[1, 0, 1][..]);
        let start = i64::try_from(THIRTEEN).unwrap();
        let written = match index {
            0 if start_is_null => column.typed::<Int64Type>().write_batch(&[start, start + 9], holes, None),
            0 => column.typed::<Int64Type>().write_batch(&[start, start + 5, start + 9], Some(&[1; 3]), None),
            1 => column.typed::<Int32Type>().write_batch(&[7, -1], holes, None),
            2 => column.typed::<ByteArrayType>().write_batch(&bytes([&address(1), &address(2)]), holes, None),
            3 => column.typed::<ByteArrayType>().write_batch(&bytes([&[1; 6], &[2; 6]]), holes, None),
            4 => column.typed::<ByteArrayType>().write_batch(&bytes([b"gre", b"ip"]), holes, None),
            _ => column.typed::<BoolType>().write_batch(&[true, true], holes, None),
        };
        written.unwrap();
    }
}

fn read(path: &Path, span: TimeSpan) -> Result<Vec<RowChunk>, Error> {
    let mut chunks = Vec::new();
    scan_records(&[path.to_owned()], &FlowFilter::started_in(span), &NAMES, &mut |chunk, _| {
        chunks.push(chunk.clone());
        ControlFlow::Continue(())
    })?;
    Ok(chunks)
}

#[test]
fn null_cells_read_as_zero() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    file(&path, nullable(), &[&holed(false), &holed(true)]);
    let chunks = read(&path, TimeSpan::default()).unwrap();
    let mut expected = [
        ColumnCells::Numbers(vec![THIRTEEN, THIRTEEN + 5, THIRTEEN + 9]),
        ColumnCells::Numbers(vec![7, 0, u64::from(u32::MAX)]),
        ColumnCells::Addresses(vec![address(1), [0; 16], address(2)].into()),
        ColumnCells::Macs(vec![[1; 6], [0; 6], [2; 6]].into()),
        ColumnCells::Words(vec!["gre".into(), "".into(), "ip".into()].into()),
        ColumnCells::Flags(vec![true, false, true]),
    ];
    assert_eq!((chunks.len(), chunks[0].rows), (2, 3));
    let values = |chunk: &RowChunk| NAMES.map(|name| chunk.column(name).clone());
    assert_eq!(values(&chunks[0]), expected);
    expected[0] = ColumnCells::Numbers(vec![THIRTEEN, 0, THIRTEEN + 9]);
    assert_eq!(values(&chunks[1]), expected);
}

#[test]
fn null_start_does_not_skip_its_row_group() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    file(&path, nullable(), &[&holed(false), &holed(true)]);
    let groups = |from_ns, to_ns| read(&path, TimeSpan { from_ns, to_ns }).unwrap().len();
    assert_eq!((groups(None, Some(THIRTEEN)), groups(Some(1), Some(THIRTEEN))), (1, 0));
    assert_eq!(read_flow_start_range(std::slice::from_ref(&path)).unwrap(), Some((THIRTEEN, THIRTEEN + 9)));
}

#[test]
fn column_of_wrong_type_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.parquet");
    let said = |place: usize, physical, logical, repetition| {
        let mut columns = nullable();
        columns[place] = column(NAMES[place], physical, logical, repetition);
        file(&path, columns, &[]);
        read(&path, TimeSpan::default()).unwrap_err().to_string()
    };
    let micros = Some(LogicalType::timestamp(false, TimeUnit::MICROS));
    for (place, physical, logical, repetition, why) in [
        (0, Physical::INT64, micros, Repetition::OPTIONAL, "has timestamps that are not in nanoseconds"),
        (1, Physical::DOUBLE, None, Repetition::OPTIONAL, "has a different type"),
        (2, Physical::BYTE_ARRAY, Some(LogicalType::String), Repetition::OPTIONAL, "has a different type"),
        (3, Physical::INT64, None, Repetition::OPTIONAL, "has a different type"),
        (4, Physical::BYTE_ARRAY, Some(LogicalType::String), Repetition::REPEATED, "is a repeated column"),
    ] {
        let text = said(place, physical, logical, repetition);
        assert!(text.contains(&format!("column {} {why}", NAMES[place])), "{text}");
    }
}

/// Records that an earlier version stored, before records had interfaces, networks, next hops, NAT and other fields.
#[test]
fn records_of_an_earlier_version_are_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scan/records-of-2026-11.parquet");
    let rows = |text: &str| {
        let mut count = 0;
        let wanted = flow_columns().iter().map(|column| column.name).collect::<Vec<_>>();
        scan_records(std::slice::from_ref(&path), &text.parse().unwrap(), &wanted, &mut |chunk, rows| {
            count += rows.len();
            for &row in rows {
                assert_eq!(chunk.column("egressInterface").number_at(row), 0);
                assert_eq!(chunk.column("otherFields").word_at(row), "");
                assert!(chunk.column("packetDeltaCount").number_at(row) > 0);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        count
    };
    // 40 flows: TCP, UDP, IPv6, ICMP in a VLAN and VXLAN in turn.
    assert_eq!((rows("any"), rows("proto tcp"), rows("inet6"), rows("icmp-type 8")), (40, 16, 8, 8));
    assert_eq!((rows("vlan 101"), rows("tunnel vxlan and tunip 198.18.9.1")), (2, 8));
    assert_eq!((rows("out if 0"), rows("out if > 0"), rows("next ip 198.18.0.1")), (40, 0, 0));
}
