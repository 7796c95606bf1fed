//! Small databases in MaxMind's format, for tests.

use crate::filter::AddressPrefix;

/// A database to which tests add prefixes.
pub(in crate::names) struct SampleDatabase {
    version: u8,
    nodes: Vec<[SampleRecord; 2]>,
    values: Vec<u8>,
}

#[derive(Clone, Copy)]
enum SampleRecord {
    Nothing,
    Node(usize),
    Value(usize),
}

/// Encodes a value with a country, an autonomous system, and a member that the reader skips.
pub(in crate::names) fn sample_value(country: &str, number: u32, name: &str) -> Vec<u8> {
    let mut value = vec![0xe4];
    append_text("country", &mut value);
    value.push(0xe1);
    append_text("iso_code", &mut value);
    append_text(country, &mut value);
    append_text("autonomous_system_number", &mut value);
    value.push(0xc4);
    value.extend(number.to_be_bytes());
    append_text("autonomous_system_organization", &mut value);
    append_text(name, &mut value);
    append_text("others", &mut value);
    // An array of a double, a boolean and a map without members.
    value.extend([0x03, 0x04, 0x68, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x07, 0xe0]);
    value
}

fn append_text(text: &str, value: &mut Vec<u8>) {
    match u8::try_from(text.len()).unwrap() {
        length @ 0..29 => value.push(0x40 | length),
        length => value.extend([0x5d, length - 29]),
    }
    value.extend(text.bytes());
}

impl SampleDatabase {
    pub(in crate::names) fn new(version: u8) -> Self {
        Self { version, nodes: vec![[SampleRecord::Nothing; 2]], values: Vec::new() }
    }

    /// Adds a prefix with a value. Longer prefixes must be added after shorter ones.
    pub(in crate::names) fn add_prefix(&mut self, prefix: &str, value: &[u8]) {
        let is_v4 = !prefix.contains(':');
        let range = prefix.parse::<AddressPrefix>().unwrap().address_range();
        let length = 128 - (range.greatest - range.least).count_ones();
        let (bits, length) = match (is_v4, self.version) {
            (true, 4) => (range.least << 96, length - 96),
            // A file of version 6 has an IPv4 address behind 96 zero bits. The prefix here is mapped, so these bits are cleared.
            (true, _) => (range.least & u128::from(u32::MAX), length),
            _ => (range.least, length),
        };
        let at = self.values.len();
        self.values.extend(value);
        let mut node = 0;
        for depth in 0..length {
            let side = usize::from(bits >> (127 - depth) & 1 == 1);
            if depth == length - 1 {
                self.nodes[node][side] = SampleRecord::Value(at);
                break;
            }
            node = match self.nodes[node][side] {
                SampleRecord::Node(next) => next,
                // Below a shorter prefix, the other addresses keep its value.
                old => {
                    self.nodes.push([old; 2]);
                    self.nodes[node][side] = SampleRecord::Node(self.nodes.len() - 1);
                    self.nodes.len() - 1
                }
            };
        }
    }

    pub(in crate::names) fn encode_database(&self, record_bits: u8) -> Vec<u8> {
        let count = self.nodes.len();
        let mut bytes = Vec::new();
        for records in &self.nodes {
            let [left, right] = records.map(|record| {
                let number = match record {
                    SampleRecord::Nothing => count,
                    SampleRecord::Node(node) => node,
                    SampleRecord::Value(at) => count + 16 + at,
                };
                u32::try_from(number).unwrap()
            });
            let [l, r] = [left.to_be_bytes(), right.to_be_bytes()];
            match record_bits {
                24 => bytes.extend([l[1], l[2], l[3], r[1], r[2], r[3]]),
                28 => bytes.extend([l[1], l[2], l[3], l[0] << 4 | r[0], r[1], r[2], r[3]]),
                _ => bytes.extend([l, r].concat()),
            }
        }
        bytes.extend([0; 16]);
        bytes.extend(&self.values);
        bytes.extend(super::METADATA_MARKER);
        bytes.push(0xe3);
        for (name, number) in [
            ("node_count", u32::try_from(count).unwrap()),
            ("record_size", record_bits.into()),
            ("ip_version", self.version.into()),
        ] {
            append_text(name, &mut bytes);
            bytes.push(0xc4);
            bytes.extend(number.to_be_bytes());
        }
        bytes
    }
}
