use super::*;
use parquet::basic::{Compression, Repetition, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArrayType};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

const ROWS: usize = 5000;

/// A file with a column of bytes in one row group. `length`: of each value; `None`: a column of words.
fn file(
    values: &[Option<Vec<u8>>],
    length: Option<i32>,
    optional: bool,
    properties: WriterProperties,
) -> bytes::Bytes {
    let physical = if length.is_some() { Physical::FIXED_LEN_BYTE_ARRAY } else { Physical::BYTE_ARRAY };
    let repetition = if optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let column = Type::primitive_type_builder("a", physical)
        .with_repetition(repetition)
        .with_length(length.unwrap_or(0));
    let column = Arc::new(column.build().unwrap());
    let schema = Type::group_type_builder("records").with_fields(vec![column]).build().unwrap();
    let mut file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let levels = optional.then_some(&levels[..]);
    let given: Vec<ByteArray> = values.iter().flatten().map(|value| ByteArray::from(value.clone())).collect();
    if length.is_some() {
        let given: Vec<_> = given.into_iter().map(Into::into).collect();
        column.typed::<FixedLenByteArrayType>().write_batch(&given, levels, None).unwrap();
    } else {
        column.typed::<ByteArrayType>().write_batch(&given, levels, None).unwrap();
    }
    column.close().unwrap();
    group.close().unwrap();
    file.into_inner().unwrap().into()
}

/// Reads the column in uneven pieces and skips some of them. Returns the rows that were read with their places.
fn read<T: ByteValue>(file: &bytes::Bytes) -> Vec<(usize, T)> {
    let file = SerializedFileReader::new(file.clone()).unwrap();
    let group = file.get_row_group(0).unwrap();
    assert!(is_column_readable(group.metadata().column(0)), "{:?}", group.metadata().column(0));
    let mut column =
        PagedColumn::<T>::new(group.get_column_page_reader(0).unwrap(), group.metadata().column(0));
    let (mut rows, mut at) = (Vec::new(), 0);
    for (turn, piece) in [1, 700, 40, 1500, 3, 9, 1200, 800].into_iter().enumerate() {
        if turn % 3 == 1 {
            column.skip_rows(piece).unwrap();
        } else {
            let cells = column.read_rows(piece).unwrap();
            rows.extend((at..).zip(cells.iter().cloned()));
        }
        at += piece;
    }
    assert!(column.read_rows(ROWS).is_err());
    rows
}

/// Every form in which writers store bytes: with a dictionary, without, with one that becomes too large, in pages of both versions,
/// with and without nulls.
fn for_each_form(mut check: impl FnMut(bool, WriterProperties)) {
    for optional in [false, true] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for (has_dictionary, dictionary_bytes) in [(true, 1 << 20), (true, 600), (false, 0)] {
                // The second version writes bytes without a dictionary as differences, which the library reads.
                if version == WriterVersion::PARQUET_2_0 && dictionary_bytes < 1 << 20 {
                    continue;
                }
                let properties = WriterProperties::builder()
                    .set_writer_version(version)
                    .set_compression(Compression::ZSTD(ZstdLevel::default()))
                    .set_dictionary_enabled(has_dictionary)
                    .set_dictionary_page_size_limit(dictionary_bytes)
                    .set_write_batch_size(64)
                    .set_data_page_row_count_limit(300);
                check(optional, properties.build());
            }
        }
    }
}

#[test]
fn columns_of_bytes_read_alike_in_all_forms() {
    for_each_form(|optional, properties| {
        let number = |row: usize| (row * row % 977 % 211).to_be_bytes();
        let is_null = |row: usize| optional && row % 7 == 2;
        let given: Vec<_> =
            (0..ROWS).map(|row| (!is_null(row)).then(|| [number(row), [7; 8]].concat())).collect();
        let rows = read::<[u8; 16]>(&file(&given, Some(16), optional, properties.clone()));
        assert_eq!(rows.len(), 1 + 40 + 1500 + 9 + 1200);
        for (row, value) in rows {
            assert_eq!(
                value.to_vec(),
                given[row].clone().unwrap_or_else(|| vec![0; 16]),
                "{row} {properties:?}"
            );
        }
        let words: Vec<_> =
            (0..ROWS).map(|row| (!is_null(row)).then(|| "word ".repeat(row % 97).into_bytes())).collect();
        for (row, value) in read::<Box<str>>(&file(&words, None, optional, properties.clone())) {
            assert_eq!(value.as_bytes(), words[row].clone().unwrap_or_default(), "{row} {properties:?}");
        }
    });
}

#[test]
fn bytes_that_are_no_text_or_address_are_refused() {
    let properties = WriterProperties::builder().build();
    let given: Vec<_> = (0..ROWS).map(|_| Some(vec![0xff; 5])).collect();
    let column = |file: bytes::Bytes| {
        let file = SerializedFileReader::new(file).unwrap();
        let group = file.get_row_group(0).unwrap();
        (group.get_column_page_reader(0).unwrap(), group.metadata().column(0).clone())
    };
    let (pages, chunk) = column(file(&given, None, false, properties));
    assert!(PagedColumn::<Box<str>>::new(pages, &chunk).read_rows(1).is_err());
    let (pages, chunk) = column(file(&given, Some(5), false, WriterProperties::builder().build()));
    assert!(PagedColumn::<[u8; 6]>::new(pages, &chunk).read_rows(1).is_err());
}
