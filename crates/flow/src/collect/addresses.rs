//! Addresses of a record while its fields are read.

use crate::packet::mapped;

/// An address of either version. An exporter that fills templates for both versions sends zeros for the one that is not.
fn either_address(place: &mut [u8; 16], bytes: &[u8]) {
    // An address of zeros replaces only zeros: such exporters send one real address and zeros for the other version, in any
    // order.
    if let Some(address) = read_address(bytes)
        && (*place == [0; 16] || !is_nobody(address))
    {
        *place = address;
    }
}

/// An address of either version that is left zero where it is not known.
pub(super) fn known_address(place: &mut [u8; 16], bytes: &[u8]) {
    if let Some(address) = read_address(bytes)
        && !is_nobody(address)
    {
        *place = address;
    }
}

fn read_address(bytes: &[u8]) -> Option<[u8; 16]> {
    match bytes.len() {
        4 => bytes.try_into().ok().map(mapped),
        16 => bytes.try_into().ok(),
        _ => None,
    }
}

/// Returns whether an address of either version is all zero.
fn is_nobody(address: [u8; 16]) -> bool {
    address == [0; 16] || address == mapped([0; 4])
}

/// Sets an address of one end of a flow. A record with two different addresses of an end is of a tunnel: RFC 7011 (section 8)
/// has them in the order of the headers, so that the outer one comes first.
pub(super) fn end(inner: &mut [u8; 16], outer: &mut [u8; 16], bytes: &[u8]) {
    let before = *inner;
    either_address(inner, bytes);
    if before != *inner && !is_nobody(before) && *outer == [0; 16] {
        *outer = before;
    }
}

pub(super) fn address6(place: &mut [u8; 16], bytes: &[u8]) {
    if let Ok(address) = <[u8; 16]>::try_from(bytes)
        && address != [0; 16]
    {
        *place = address;
    }
}

pub(super) fn mac(place: &mut [u8; 6], bytes: &[u8]) {
    if let Ok(address) = bytes.try_into() {
        *place = address;
    }
}
