//! Finds the offsets of structure members in the running kernel, from the kernel's own type information (BTF).
//!
//! Reads only structures, unions and their members; it skips other types. Nothing is kept open.

use crate::{Error, UnsupportedFeature};

const KERNEL_BTF_FILE: &str = "/sys/kernel/btf/vmlinux";
const BTF_MAGIC: u16 = 0xeb9f;

// enum in linux/btf.h
const BTF_KIND_INT: u32 = 1;
const BTF_KIND_ARRAY: u32 = 3;
const BTF_KIND_STRUCT: u32 = 4;
const BTF_KIND_UNION: u32 = 5;
const BTF_KIND_ENUM: u32 = 6;
const BTF_KIND_FUNC_PROTO: u32 = 13;
const BTF_KIND_VAR: u32 = 14;
const BTF_KIND_DATASEC: u32 = 15;
const BTF_KIND_DECL_TAG: u32 = 17;
const BTF_KIND_ENUM64: u32 = 19;

/// Type information (BTF) of the running kernel.
#[derive(Debug)]
pub struct KernelTypes {
    bytes: Vec<u8>,
    /// Offset of each type in `bytes`. The numbers of types begin at 1, so entry 0 has no meaning.
    places: Vec<usize>,
    strings: usize,
}

impl KernelTypes {
    pub fn read_btf() -> Result<Self, Error> {
        let bytes = std::fs::read(KERNEL_BTF_FILE)
            .map_err(|error| Error::from_call("read", KERNEL_BTF_FILE, error))?;
        Self::parse_btf(bytes)
            .ok_or_else(|| unsupported_types("type information (BTF) in a known format").into())
    }

    fn parse_btf(bytes: Vec<u8>) -> Option<Self> {
        if u16::from_ne_bytes(*bytes.first_chunk()?) != BTF_MAGIC {
            return None;
        }
        // struct btf_header: length of the header at 4, then offset and length of the types, then those of
        // the strings. The offsets count from the end of the header.
        let header = word_at(&bytes, 4)? as usize;
        let types = header + word_at(&bytes, 8)? as usize;
        let end = types + word_at(&bytes, 12)? as usize;
        let strings = header + word_at(&bytes, 16)? as usize;
        let mut at = types;
        let mut places = vec![0];
        while at < end {
            places.push(at);
            let info = word_at(&bytes, at + 4)?;
            // struct btf_type has 12 bytes; how many follow depends on the kind and on the number of members.
            at += 12 + type_data_length(info >> 24 & 0x1f, info as usize & 0xffff);
        }
        Some(Self { bytes, places, strings })
    }

    /// Finds the offset of a member in a structure, in bytes. Members of nameless structures and unions inside
    /// it are found, too.
    pub fn member_offset(&self, structure: &str, member: &str) -> Result<u32, Error> {
        let mut places = self.places.iter().skip(1);
        let place = places.find(|at| self.is_structure(**at, structure));
        let found = place.and_then(|at| self.find_member(*at, member.as_bytes(), 0));
        found.ok_or_else(|| unsupported_types("type information (BTF) about network interfaces").into())
    }

    fn find_member(&self, at: usize, wanted: &[u8], depth: u32) -> Option<u32> {
        let info = self.read_word(at + 4)?;
        (0..info as usize & 0xffff).find_map(|index| {
            let entry = at + 12 + index * 12;
            // struct btf_member: name, type, offset in bits. The upper byte of the offset is the width of a
            // bit field; none of the wanted members is a bit field.
            let offset = (self.read_word(entry + 8)? & 0x00ff_ffff) / 8;
            match self.read_text(self.read_word(entry)? as usize)? {
                name if name == wanted => Some(offset),
                // The bound keeps malformed type information from recursing without end.
                [] if depth < 8 => {
                    let inner = *self.places.get(self.read_word(entry + 4)? as usize)?;
                    let is_made_of_others = matches!(self.kind_at(inner)?, BTF_KIND_STRUCT | BTF_KIND_UNION);
                    is_made_of_others
                        .then(|| self.find_member(inner, wanted, depth + 1))?
                        .map(|more| offset + more)
                }
                _ => None,
            }
        })
    }

    fn is_structure(&self, at: usize, name: &str) -> bool {
        self.kind_at(at) == Some(BTF_KIND_STRUCT) && self.name_at(at) == Some(name.as_bytes())
    }

    fn kind_at(&self, at: usize) -> Option<u32> {
        Some(self.read_word(at + 4)? >> 24 & 0x1f)
    }

    fn name_at(&self, at: usize) -> Option<&[u8]> {
        self.read_text(self.read_word(at)? as usize)
    }

    fn read_word(&self, at: usize) -> Option<u32> {
        word_at(&self.bytes, at)
    }

    fn read_text(&self, at: usize) -> Option<&[u8]> {
        let rest = self.bytes.get(self.strings + at..)?;
        Some(&rest[..rest.iter().position(|byte| *byte == 0)?])
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Number of bytes that follow the header of a type.
fn type_data_length(kind: u32, count: usize) -> usize {
    match kind {
        BTF_KIND_INT | BTF_KIND_VAR | BTF_KIND_DECL_TAG => 4,
        BTF_KIND_ARRAY => 12,
        BTF_KIND_STRUCT | BTF_KIND_UNION | BTF_KIND_DATASEC | BTF_KIND_ENUM64 => 12 * count,
        BTF_KIND_ENUM | BTF_KIND_FUNC_PROTO => 8 * count,
        _ => 0,
    }
}

fn unsupported_types(needs: &str) -> UnsupportedFeature {
    UnsupportedFeature {
        feature: "reading the kernel's structures",
        needs: needs.into(),
        found: crate::kernel::kernel_release_name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn btf_finds_interface_and_namespace_members() {
        let Ok(types) = KernelTypes::read_btf() else {
            assert!(!std::path::Path::new(KERNEL_BTF_FILE).exists(), "it is there and cannot be read");
            return;
        };
        assert!(types.member_offset("net_device", "ifindex").unwrap() > 0);
        assert!(types.member_offset("net_device", "nd_net").unwrap() > 0);
        types.member_offset("net", "ns").unwrap();
        types.member_offset("ns_common", "inum").unwrap();
        assert!(matches!(types.member_offset("net_device", "no_such_member"), Err(Error::Unsupported(_))));
        assert!(matches!(types.member_offset("no_such_structure", "ifindex"), Err(Error::Unsupported(_))));
    }

    #[test]
    fn invalid_btf_is_refused() {
        for bytes in [vec![], vec![0; 64], [&BTF_MAGIC.to_ne_bytes()[..], &[0xff; 40]].concat()] {
            assert!(KernelTypes::parse_btf(bytes).is_none());
        }
    }
}
