//! The descriptor of the OTG model, and the names of the members that packetrig refuses.
//!
//! Both are compiled from `model/` and committed; `tests/descriptor.rs` compares them with their sources.

use prost_reflect::{DescriptorPool, EnumDescriptor, MessageDescriptor};
use std::collections::HashMap;
use std::sync::LazyLock;

/// The part of the OTG model that packetrig serves, as a serialised `FileDescriptorSet`.
pub const OTG_DESCRIPTOR: &[u8] = include_bytes!("../../model/compiled/otg.binpb");

static DESCRIPTOR_POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(OTG_DESCRIPTOR).expect("the committed descriptor is well formed")
});

/// Numbers and names of refused members, by full name of the message or enumeration without the package.
static REFUSED_MEMBERS: LazyLock<HashMap<&str, Vec<(u32, &str)>>> = LazyLock::new(|| {
    include_str!("../../model/compiled/refused.txt").lines().filter_map(parse_refused_row).collect()
});

/// Reads a line like `Device: 4 isis, 5 bgp`.
fn parse_refused_row(line: &'static str) -> Option<(&'static str, Vec<(u32, &'static str)>)> {
    let (owner, members) = line.split_once(": ").filter(|_| !line.starts_with('#'))?;
    Some((owner, members.split(", ").filter_map(parse_refused_member).collect()))
}

/// Reads a member like `5 bgp`.
fn parse_refused_member(text: &'static str) -> Option<(u32, &'static str)> {
    let (number, name) = text.split_once(' ')?;
    Some((number.parse().ok()?, name))
}

/// Returns the descriptor of the message `name` in package `otg`; panics if the model has no such message.
pub(crate) fn message_descriptor(name: &str) -> MessageDescriptor {
    DESCRIPTOR_POOL.get_message_by_name(&format!("otg.{name}")).expect("callers name messages of the model")
}

/// Returns the descriptor of `google.protobuf.Empty`, the input of calls without a request message.
pub(crate) fn empty_descriptor() -> MessageDescriptor {
    DESCRIPTOR_POOL.get_message_by_name("google.protobuf.Empty").expect("the service imports it")
}

fn refused_entries(owner: &str) -> &'static [(u32, &'static str)] {
    REFUSED_MEMBERS.get(owner.strip_prefix("otg.").unwrap_or(owner)).map_or(&[], Vec::as_slice)
}

/// Name of the refused member with this field number; `None` if the number is not that of a refused member.
pub(super) fn refused_member_name(of: &MessageDescriptor, number: u32) -> Option<&'static str> {
    refused_entries(of.full_name()).iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// Name of the refused enumeration value with this number; `None` if the number is not that of a refused value.
pub(super) fn refused_value_name(of: &EnumDescriptor, number: i32) -> Option<&'static str> {
    let number = u32::try_from(number).ok()?;
    refused_entries(of.full_name()).iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// Returns whether the OTG model has this member or enumeration value, but packetrig does not support it.
pub(super) fn is_member_refused(owner: &str, name: &str) -> bool {
    refused_entries(owner).iter().any(|(_, known)| *known == name)
}

#[cfg(test)]
pub(super) fn all_refused_members() -> impl Iterator<Item = (&'static str, &'static [(u32, &'static str)])> {
    REFUSED_MEMBERS.iter().map(|(owner, members)| (*owner, members.as_slice()))
}

#[cfg(test)]
pub(super) fn descriptor_pool() -> &'static DescriptorPool {
    &DESCRIPTOR_POOL
}
