//! Values and trees that the format allows, and others.

use super::*;

fn value(bytes: &[u8]) -> Option<MmdbValue<'_>> {
    ValueReader::new(bytes, MAX_PARTS).read_value(0)
}

#[test]
fn value_reader_follows_pointers_and_refuses_circles() {
    // Maps with a member `a` whose value is behind a pointer of each length.
    let long = {
        let mut section = vec![0xe1, 0x41, b'a', 0x30, 0, 0, 0];
        section.resize(526_336, 0);
        section.extend([0xa1, 7]);
        section
    };
    assert_eq!(value(&long).unwrap().member("a").unwrap().number(), Some(7));
    assert_eq!(value(&[0xe1, 0x41, b'a', 0x20, 5, 0xa1, 9]).unwrap().member("a").unwrap().number(), Some(9));
    assert_eq!(
        value(&[0xe1, 0x41, b'a', 0x38, 0, 0, 0, 8, 0xa1, 9]).unwrap().member("a").unwrap().number(),
        Some(9)
    );
    assert_eq!(value(&[0x20, 0]), None, "a pointer to itself");
    assert_eq!(value(&[0xe1, 0x41, b'a', 0x20, 0]), None, "a map in itself");
    assert_eq!(value(&[0x5d]), None, "a size that is not there");
    assert_eq!(value(&[0xff, 0xff, 0xff, 0xff]), None, "a map of 16 million members");
}

#[test]
fn tree_with_a_loop_is_refused() {
    // One node whose right side is itself.
    let mut bytes = vec![0, 0, 1, 0, 0, 0];
    bytes.extend([0; 16]);
    bytes.extend(METADATA_MARKER);
    bytes.push(0xe3);
    for (name, number) in [("node_count", 1_u8), ("record_size", 24), ("ip_version", 4)] {
        bytes.push(0x40 | u8::try_from(name.len()).unwrap());
        bytes.extend(name.bytes());
        bytes.extend([0xa1, number]);
    }
    let database = MmdbDatabase::open(&bytes).unwrap().unwrap();
    assert!(database.read_ranges().is_err_and(|fault| fault.to_string().contains("loop")));
}
