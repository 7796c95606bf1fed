//! The headers that a frame can have, described by tables: their fields with positions, widths and defaults.
//!
//! The tables (`tables`) contain OTG's field names, so neither the plan reader nor the template compiler needs
//! code for each header. A header with *optional* fields (such as the checksum of GRE) has a table, too; its
//! length depends on the settings.
//!
//! Invariant: every setting of a [`PacketHeader`] belongs to a field of the header's kind.

mod tables;

use crate::pattern::FieldPattern;
use serde::{Deserialize, Serialize};

/// Defines the enum of the kinds and the list of all kinds, so that no kind can be missing in the list.
macro_rules! header_kinds {
    ($($kind:ident)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum HeaderKind {
            $($kind),+
        }

        impl HeaderKind {
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];
        }
    };
}

header_kinds! {
    Ethernet Vlan Ipv4 Ipv6 Tcp Udp Icmp Icmpv6 Arp Gre Vxlan Geneve Mpls EthernetPause PfcPause Custom
}

/// Headers that OTG has and packetrig does not.
pub const UNSUPPORTED_HEADERS: &[&str] =
    &["gtpv1", "gtpv2", "ppp", "igmpv1", "snmpv2c", "rsvp", "macsec", "lacp", "ipv6_extension_header", "cfm"];

/// The definition of a kind of header.
#[derive(Clone, Copy, Debug)]
struct HeaderDef {
    /// OTG's name of the header; for a header that OTG does not have, a name that begins with `x_`.
    name: &'static str,
    /// The numbers that announce the header in the field of the header before it: `ether_types` in an
    /// EtherType, `ip_protocols` in an IP protocol field. Templates write the first number of the list.
    ether_types: &'static [u16],
    ip_protocols: &'static [u16],
    fields: &'static [FieldDef],
}

/// The number space of a field that announces the next header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberSpace {
    EtherType,
    IpProtocol,
}

/// The role of an address in its frame. The permit of a machine's owner limits the destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRole {
    Source,
    Destination,
    /// A destination that is zero in a request that asks for this address (ARP).
    AskedDestination,
}

/// How the values of a field are written in a plan document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldNotation {
    Number,
    Mac(AddressRole),
    Ipv4(AddressRole),
    Ipv6(AddressRole),
    /// A checksum: computed correctly, made wrong on purpose, or given as a number.
    Checksum,
}

/// The values that packetrig computes for a field that is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputedField {
    /// The number of the next header.
    NextHeader {
        space: NumberSpace,
        /// The value if no header follows, or if the next header has no number in `space`.
        none: u16,
    },
    /// The length of this header in 32-bit words.
    HeaderWords,
    /// The length of the options after the fixed part, in 32-bit words.
    OptionWords,
    /// Number of bytes from the start of this header to the end of the frame.
    LengthFromHere,
    /// Number of bytes from the end of this header to the end of the frame.
    LengthBehind,
    /// 1 if no MPLS header follows.
    BottomOfStack,
    /// The checksum of IPv4, which covers only its own header.
    HeaderChecksum,
    /// A checksum over this header and everything after it, and over the pseudo-header of the preceding IP
    /// header, if there is one.
    Checksum {
        /// True if the checksum covers the pseudo-header.
        pseudo: bool,
        /// True if a computed 0 is sent as 0xffff, because 0 means that there is no checksum.
        never_zero: bool,
    },
}

/// The value of a field that the document does not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsentValue {
    Value(u128),
    Computed(ComputedField),
    /// The field has no default, because it shares its bits with another field.
    Nothing,
}

/// One field of a header.
#[derive(Clone, Copy, Debug)]
pub struct FieldDef {
    /// OTG's name of the field; a dot separates the names of nested objects.
    pub name: &'static str,
    /// Offset from the start of the header, in bits.
    pub at: u32,
    pub bits: u32,
    /// How the field's values are written in a plan document.
    pub form: FieldNotation,
    pub absent: AbsentValue,
    /// Pattern choices in addition to value, values, increment and decrement.
    pub extra: ExtraPatternChoice,
    /// True if an explanation of the plan shows the field, because people recognise a packet by it.
    pub shown: bool,
}

/// Pattern choices that only some fields have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraPatternChoice {
    None,
    /// `auto`.
    Auto,
    /// `random`.
    Random,
    /// `random`, and an `auto` whose value only a device can provide.
    RandomOrDevice,
    /// An `auto` whose value only a device can provide.
    Device,
}

/// The setting of a field in a plan document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldSetting {
    Pattern(FieldPattern),
    /// A checksum that is wrong in every frame.
    BadChecksum,
}

/// One header of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketHeader {
    kind: HeaderKind,
    /// (index of the field in the kind's table, setting).
    settings: Vec<(usize, FieldSetting)>,
    /// The bytes after the fixed part (such as IPv4 options), or all bytes of a custom header.
    bytes: Vec<u8>,
}

impl PacketHeader {
    /// Creates a header with default values in all fields.
    pub fn new(kind: HeaderKind) -> Self {
        Self { kind, settings: Vec::new(), bytes: Vec::new() }
    }

    /// Creates a custom header that consists of these bytes.
    pub fn custom(bytes: Vec<u8>) -> Self {
        Self { kind: HeaderKind::Custom, settings: Vec::new(), bytes }
    }

    /// Sets a field by name. A name that the header does not have is a bug in the caller: see [`Self::set_field`].
    #[must_use]
    pub fn with_field(mut self, name: &str, pattern: impl Into<FieldPattern>) -> Self {
        self.set_field(name, FieldSetting::Pattern(pattern.into()));
        self
    }

    /// Sets a field by name. If there is no such field, a debug build panics, and a release build returns false.
    pub fn set_field(&mut self, name: &str, setting: FieldSetting) -> bool {
        let Some(index) = self.kind.fields().iter().position(|field| field.name == name) else {
            // The names come from this program's own tables, so a wrong name is a bug in the caller.
            debug_assert!(false, "{:?} has no field {name}", self.kind);
            return false;
        };
        // The last setting applies, so a later call can replace an earlier one.
        self.settings.retain(|(set, _)| *set != index);
        self.settings.push((index, setting));
        true
    }

    /// Removes the setting of a field.
    pub fn unset_field(&mut self, name: &str) {
        let kind = self.kind;
        self.settings.retain(|(set, _)| kind.fields()[*set].name != name);
    }

    /// Appends options to the fixed part, and pads them with zeros to whole 32-bit words.
    pub fn append_options(&mut self, options: &[u8]) {
        self.bytes.extend_from_slice(options);
        // RFC 791: the header must end at a 32-bit boundary, because its length field counts words.
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns the kind of header.
    pub fn kind(&self) -> HeaderKind {
        self.kind
    }

    /// Returns the document's setting of a field, if there is one.
    pub fn field_setting(&self, name: &str) -> Option<&FieldSetting> {
        let index = self.kind.fields().iter().position(|field| field.name == name)?;
        self.settings.iter().find(|(set, _)| *set == index).map(|(_, setting)| setting)
    }

    /// Iterates over the fields that the document sets, with their settings.
    pub fn field_settings(&self) -> impl Iterator<Item = (&'static FieldDef, &FieldSetting)> {
        self.settings.iter().map(|(index, setting)| (&self.kind.fields()[*index], setting))
    }

    /// Returns the length of this header in bytes.
    pub fn len(&self) -> usize {
        let fixed = match self.kind {
            // RFC 2784: the fields checksum and reserved1 exist only if the C bit is set.
            HeaderKind::Gre if !self.has_gre_checksum() => 4,
            kind => kind.fixed_len(),
        };
        fixed + self.bytes.len()
    }

    /// Returns whether the header has no bytes at all, which is possible for a custom header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes after the fixed part, or all bytes of a custom header.
    pub(crate) fn trailing_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn has_gre_checksum(&self) -> bool {
        matches!(self.field_setting("checksum_present"), Some(FieldSetting::Pattern(FieldPattern::Value(1))))
    }
}

impl HeaderKind {
    /// OTG's name of the header; for a header that OTG does not have, a name that begins with `x_`.
    pub fn name(self) -> &'static str {
        tables::header_definition(self).name
    }

    /// Returns the fields of the header. Where fields share bits, the setting of the later one applies.
    pub fn fields(self) -> &'static [FieldDef] {
        tables::header_definition(self).fields
    }

    /// Returns the length of the fixed part in bytes.
    pub(crate) fn fixed_len(self) -> usize {
        // The largest end counts and not the sum of the widths, because overlay fields share bits with other
        // fields.
        let bits = self.fields().iter().map(|field| field.at + field.bits).max().unwrap_or(0);
        (bits as usize).div_ceil(8)
    }
}

impl NumberSpace {
    /// Returns the numbers in this space that announce a kind of header; empty if there are none. Templates
    /// write the first number.
    pub fn numbers_of(self, kind: HeaderKind) -> &'static [u16] {
        let header = tables::header_definition(kind);
        match self {
            Self::EtherType => header.ether_types,
            Self::IpProtocol => header.ip_protocols,
        }
    }

    /// Returns the number with which a template announces a kind of header; `None` if the space has no number for it.
    pub(crate) fn written_number(self, kind: HeaderKind) -> Option<u16> {
        self.numbers_of(kind).first().copied()
    }
}

impl FieldNotation {
    /// Returns the role of the address; `None` for a field that is not an address.
    pub fn address_role(self) -> Option<AddressRole> {
        match self {
            Self::Mac(role) | Self::Ipv4(role) | Self::Ipv6(role) => Some(role),
            Self::Number | Self::Checksum => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_has_the_length_its_standard_gives() {
        let lengths = HeaderKind::ALL.map(|kind| PacketHeader::new(kind).len());
        assert_eq!(lengths, [14, 4, 20, 40, 20, 8, 8, 8, 28, 4, 8, 8, 4, 18, 34, 0]);
        assert_eq!(PacketHeader::new(HeaderKind::Gre).with_field("checksum_present", 1).len(), 8);
    }

    #[test]
    fn fields_are_whole_and_defaults_fit() {
        for kind in HeaderKind::ALL {
            for field in kind.fields() {
                assert!(field.bits <= 128 && field.bits > 0, "{kind:?}.{}", field.name);
                if let AbsentValue::Value(value) = field.absent {
                    assert_eq!(value & !crate::pattern::low_mask(field.bits), 0, "{kind:?}.{}", field.name);
                }
            }
        }
    }

    #[test]
    fn announced_numbers_fit_their_fields() {
        for field in HeaderKind::ALL.iter().flat_map(|kind| kind.fields()) {
            let AbsentValue::Computed(ComputedField::NextHeader { space, none }) = field.absent else {
                continue;
            };
            let numbers = HeaderKind::ALL.iter().flat_map(|kind| space.numbers_of(*kind)).chain([&none]);
            for number in numbers {
                let mask = crate::pattern::low_mask(field.bits);
                assert_eq!(u128::from(*number) & !mask, 0, "{number} in {}", field.name);
            }
        }
    }

    #[test]
    fn options_are_padded_to_words() {
        let mut header = PacketHeader::new(HeaderKind::Ipv4);
        header.append_options(&[0x94, 4, 0, 0, 1]);
        assert_eq!(header.len(), 28);
    }
}
