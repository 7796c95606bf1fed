//! Anonymises records: replaces their addresses, but keeps networks together. Two addresses that begin with the same
//! n bits begin with the same n bits afterwards, too.
//!
//! The method is Crypto-PAn (Xu, Fan, Ammar and Moon, ICNP 2002). With the same key, `nfanon` of nfdump gives the same
//! addresses.

use crate::hexadecimal::parse_hexadecimal;
use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use packetrig_flow::{FlowKey, FlowRecord, ForeignFields, IPV4_MAPPED_PREFIX, OtherFields};
use packetrig_units::clamp_to_u64;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Maximum number of addresses in the cache of replaced addresses. The cache saves the 128 encryptions that an IPv6
/// address costs. When it is full, all its entries are discarded.
const MAX_REMEMBERED: usize = 1 << 16;

/// The secret key: 64 hexadecimal digits as text.
#[derive(Clone, PartialEq, Eq)]
pub struct AnonymiserKey {
    cipher: [u8; 16],
    /// The second half of the key. The pad of Crypto-PAn is this block, encrypted with the first half.
    pad: [u8; 16],
}

impl fmt::Debug for AnonymiserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnonymiserKey(secret)")
    }
}

impl FromStr for AnonymiserKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse_hexadecimal(text.strip_prefix("0x").unwrap_or(text)).unwrap_or_default();
        let key = bytes
            .split_first_chunk()
            .and_then(|(cipher, pad)| Some(Self { cipher: *cipher, pad: pad.try_into().ok()? }));
        key.ok_or_else(|| "a key has 64 hexadecimal digits".to_owned())
    }
}

/// Anonymises records with one key.
pub struct RecordAnonymiser {
    cipher: Aes128,
    /// The encrypted pad. It fills the part of each cipher block that does not come from the address.
    pad: [u8; 16],
    known: HashMap<[u8; 16], [u8; 16]>,
}

impl fmt::Debug for RecordAnonymiser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordAnonymiser").field("known", &self.known.len()).finish_non_exhaustive()
    }
}

impl RecordAnonymiser {
    pub fn new(key: &AnonymiserKey) -> Self {
        let cipher = Aes128::new(&key.cipher.into());
        let mut anonymiser = Self { cipher, pad: key.pad, known: HashMap::new() };
        anonymiser.pad = anonymiser.encrypt_block(key.pad);
        anonymiser
    }

    fn encrypt_block(&self, block: [u8; 16]) -> [u8; 16] {
        let mut block = block.into();
        self.cipher.encrypt_block(&mut block);
        block.into()
    }

    /// Replaces the addresses and the flow number of a record. Removes its MAC addresses and its history. Also removes
    /// the fields without a column, because nobody knows whether they contain addresses.
    pub fn anonymise_record(&mut self, record: &mut FlowRecord) {
        let FlowRecord {
            key,
            flow_id,
            source_mac,
            destination_mac,
            outer_source,
            outer_destination,
            foreign,
            history,
            ..
        } = record;
        let FlowKey { source, destination, .. } = key;
        for address in [source, destination, outer_source, outer_destination] {
            *address = self.anonymise_address(*address);
        }
        for mac in [source_mac, destination_mac] {
            *mac = [0; 6];
        }
        // A flow number is a keyed hash of the addresses: anyone who knows the meter's key could try all addresses.
        *flow_id = self.anonymise_flow_number(*flow_id);
        *history = None;
        if let Some(fields) = foreign {
            *foreign = Some(Arc::new(self.anonymise_fields(fields)));
        }
    }

    fn anonymise_fields(&mut self, fields: &ForeignFields) -> ForeignFields {
        let mut fields = ForeignFields { others: OtherFields::default(), ..fields.clone() };
        let ForeignFields { next_hop, bgp_next_hop, nat_source, nat_destination, .. } = &mut fields;
        for address in [next_hop, bgp_next_hop, nat_source, nat_destination] {
            *address = self.anonymise_address(*address);
        }
        fields
    }

    /// Replaces a flow number. The number 0 stays 0: it means that the exporter gave no number.
    fn anonymise_flow_number(&self, number: u64) -> u64 {
        if number == 0 {
            return number;
        }
        let mut block = self.pad;
        for (byte, of_number) in block.iter_mut().zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        // The upper half of the encrypted block.
        clamp_to_u64(u128::from_be_bytes(self.encrypt_block(block)) >> 64)
    }

    /// Replaces an IPv6 address, or the last four bytes of an IPv4-mapped one. The zero address stays zero:
    /// it means that there is no address.
    fn anonymise_address(&mut self, address: [u8; 16]) -> [u8; 16] {
        if address == [0; 16] {
            return address;
        }
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let mut replaced = address;
        if address.starts_with(&IPV4_MAPPED_PREFIX) {
            self.replace_bytes(&mut replaced[IPV4_MAPPED_PREFIX.len()..]);
        } else {
            self.replace_bytes(&mut replaced);
        }
        if self.known.len() >= MAX_REMEMBERED {
            self.known.clear();
        }
        self.known.insert(address, replaced);
        replaced
    }

    /// Encrypts an address bit by bit: the key and the bits before a bit decide whether that bit is flipped.
    fn replace_bytes(&self, address: &mut [u8]) {
        let original = address.to_vec();
        let mut block = self.pad;
        for (index, byte) in original.iter().enumerate() {
            for bit in 0..8 {
                // The bits before this one come from the address, this bit and the following bits come from the pad.
                let kept = !(0xff_u8 >> bit);
                block[index] = byte & kept | self.pad[index] & !kept;
                let flips = self.encrypt_block(block)[0] >> 7;
                address[index] ^= flips << (7 - bit);
            }
            block[index] = *byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::element::{ElementValue, FLOW_ELEMENTS};
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    /// The key and the first addresses of the sample trace that the authors published with Crypto-PAn.
    const KEY: &str = "1522178d33a4cf80130a5b1649907d10d8988f837979652762574c2d2a842202";
    const SAMPLES: [([u8; 4], [u8; 4]); 9] = [
        ([128, 11, 68, 132], [135, 242, 180, 132]),
        ([129, 118, 74, 4], [134, 136, 186, 123]),
        ([130, 132, 252, 244], [133, 68, 164, 234]),
        ([141, 223, 7, 43], [141, 167, 8, 160]),
        ([141, 233, 145, 108], [141, 129, 237, 235]),
        ([152, 163, 225, 39], [151, 140, 114, 167]),
        ([156, 29, 3, 236], [147, 225, 12, 42]),
        ([165, 247, 96, 84], [162, 9, 99, 234]),
        ([166, 107, 77, 190], [160, 132, 178, 185]),
    ];

    fn anonymiser() -> RecordAnonymiser {
        RecordAnonymiser::new(&KEY.parse().unwrap())
    }

    fn mapped(address: [u8; 4]) -> [u8; 16] {
        Ipv4Addr::from(address).to_ipv6_mapped().octets()
    }

    #[test]
    fn ipv4_addresses_are_replaced_as_published() {
        let mut anonymiser = anonymiser();
        for (address, wanted) in SAMPLES {
            assert_eq!(anonymiser.anonymise_address(mapped(address)), mapped(wanted), "{address:?}");
        }
    }

    /// The list of columns decides what an address is, so that a new one cannot be forgotten.
    #[test]
    fn no_address_column_keeps_its_value() {
        let (address, mac) = (mapped([128, 11, 68, 132]), [2; 6]);
        let foreign = ForeignFields {
            next_hop: address,
            bgp_next_hop: address,
            nat_source: address,
            nat_destination: address,
            ..ForeignFields::default()
        };
        let mut record = FlowRecord {
            source_mac: mac,
            destination_mac: mac,
            outer_source: address,
            outer_destination: address,
            foreign: Some(Arc::new(foreign)),
            ..FlowRecord::default()
        };
        (record.key.source, record.key.destination) = (address, address);
        let values = |record: &FlowRecord| -> Vec<(&str, [u8; 16])> {
            let columns = FLOW_ELEMENTS.iter().filter_map(|element| match (element.value)(record) {
                ElementValue::Address(address) => Some((element.name, address)),
                ElementValue::Mac(mac) => {
                    let mut padded = [0; 16];
                    padded[..6].copy_from_slice(&mac);
                    Some((element.name, padded))
                }
                _ => None,
            });
            columns.collect()
        };
        let before = values(&record);
        anonymiser().anonymise_record(&mut record);
        for ((name, before), (_, after)) in before.into_iter().zip(values(&record)) {
            assert!(before != [0; 16] && before != after, "{name}");
        }
        record.flow_id = 0;
        anonymiser().anonymise_record(&mut record);
        assert_eq!(record.flow_id, 0, "no number");
    }

    #[test]
    fn record_keeps_nothing_that_names_its_ends() {
        let mut record = FlowRecord { source_mac: [2; 6], flow_id: 7, ..FlowRecord::default() };
        record.key.source = mapped([128, 11, 68, 132]);
        let mut foreign =
            ForeignFields { nat_source: mapped([129, 118, 74, 4]), source_as: 5, ..Default::default() };
        foreign.others.add_field(0, 82, b"eth0");
        record.foreign = Some(Arc::new(foreign));
        anonymiser().anonymise_record(&mut record);
        let foreign = record.foreign.unwrap();
        assert_eq!(
            (record.key.source, foreign.nat_source),
            (mapped([135, 242, 180, 132]), mapped([134, 136, 186, 123]))
        );
        assert_eq!((record.source_mac, record.key.destination, foreign.source_as), ([0; 6], [0; 16], 5));
        assert!(record.flow_id != 7 && foreign.others.is_empty());
    }

    #[test]
    fn keys_of_other_lengths_are_refused() {
        assert!(format!("0x{KEY}").parse::<AnonymiserKey>().is_ok());
        for text in ["", "12", &KEY[1..], &KEY.replace('1', "g"), &format!("{KEY}00")] {
            assert!(text.parse::<AnonymiserKey>().is_err(), "{text}");
        }
    }

    fn common_bits(one: [u8; 16], other: [u8; 16]) -> u32 {
        (u128::from_be_bytes(one) ^ u128::from_be_bytes(other)).leading_zeros()
    }

    proptest! {
        #[test]
        fn common_prefixes_stay(one in any::<[u8; 16]>(), other in any::<[u8; 16]>(), same in 0..16_usize) {
            let mut near = other;
            near[..same].copy_from_slice(&one[..same]);
            let mut anonymiser = anonymiser();
            let replaced = [one, near].map(|address| anonymiser.anonymise_address(address));
            prop_assert_eq!(common_bits(replaced[0], replaced[1]), common_bits(one, near));
        }
    }
}
