//! Addresses of a record while its fields are read.

use crate::packet::ipv4_mapped;

/// Sets an IPv4 or IPv6 address. Exporters with template fields for both versions send zeros for the unused version.
fn set_ipv4_or_ipv6_address(place: &mut [u8; 16], bytes: &[u8]) {
    // An address of zeros replaces only zeros: such exporters send one real address and zeros for the other
    // version, in any order.
    if let Some(address) = read_address(bytes)
        && (*place == [0; 16] || !is_unspecified(address))
    {
        *place = address;
    }
}

/// Sets an IPv4 or IPv6 address, unless the exporter sent zeros because it does not know the address.
pub(super) fn set_known_address(place: &mut [u8; 16], bytes: &[u8]) {
    if let Some(address) = read_address(bytes)
        && !is_unspecified(address)
    {
        *place = address;
    }
}

fn read_address(bytes: &[u8]) -> Option<[u8; 16]> {
    match bytes.len() {
        4 => bytes.try_into().ok().map(ipv4_mapped),
        16 => bytes.try_into().ok(),
        // RFC 7011 section 6.2 allows only numbers to be shortened: an address has all of its bytes or is not valid.
        _ => None,
    }
}

/// Returns whether an IPv4 or IPv6 address is all zero.
fn is_unspecified(address: [u8; 16]) -> bool {
    address == [0; 16] || address == ipv4_mapped([0; 4])
}

/// Sets an address of one end of a flow. A record with two different addresses of one end describes a tunnelled packet:
/// RFC 7011 (section 8) has them in the order of the headers, so the outer one comes first.
pub(super) fn set_endpoint_address(inner: &mut [u8; 16], outer: &mut [u8; 16], bytes: &[u8]) {
    let before = *inner;
    set_ipv4_or_ipv6_address(inner, bytes);
    // The later address stays in the key, because the key of a flow describes the innermost packet.
    if before != *inner && !is_unspecified(before) && *outer == [0; 16] {
        *outer = before;
    }
}

pub(super) fn set_ipv6_address(place: &mut [u8; 16], bytes: &[u8]) {
    if let Ok(address) = <[u8; 16]>::try_from(bytes)
        && address != [0; 16]
    {
        *place = address;
    }
}

pub(super) fn set_mac_address(place: &mut [u8; 6], bytes: &[u8]) {
    if let Ok(address) = bytes.try_into() {
        *place = address;
    }
}
