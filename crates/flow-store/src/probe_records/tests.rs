use super::*;
use ::parquet::file::reader::FileReader;
use ::parquet::file::serialized_reader::SerializedFileReader;
use ::parquet::record::RowAccessor;
use packetrig_probe::fixture::{sample_header, sample_records};

#[test]
fn parquet_reads_back_with_its_header() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b");
    std::fs::write(&path, encode_parquet(&sample_header(), &sample_records()).unwrap()).unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let kept = metadata.iter().find(|pair| pair.key == PROBE_HEADER_METADATA_KEY).unwrap();
    let kept: ProbeHeader = serde_json::from_str(kept.value.as_ref().unwrap()).unwrap();
    assert_eq!(kept, sample_header());
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let column = |name: &str| schema.columns().iter().position(|c| c.name() == name).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].get_ulong(column("driver_lo_ns")).unwrap(), 5_100);
    assert_eq!(rows[0].get_ulong(column("released_hi_ns")).unwrap(), 5_120);
    assert_eq!(rows[0].get_string(column("flags")).unwrap(), "first,stolen");
    assert_eq!(rows[1].get_string(column("kind")).unwrap(), "pair");
    assert!(rows[1].get_ulong(column("driver_lo_ns")).is_err(), "what is not known is absent");
}
