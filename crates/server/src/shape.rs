//! The shape of the OTG model: its members and their types, in JSON and in protobuf.
//!
//! [`settle_document`] checks every request, from either transport. Its result is JSON in one form: known members only, no `null`,
//! 64-bit integers as text, `choice` present wherever a member implies it. This module does not know the meaning of values.

mod json;
mod model;
mod path;
mod print;
mod settle;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use json::parse_document;
pub use model::DESCRIPTOR;
pub(crate) use model::{empty_descriptor, message_descriptor};
pub(crate) use path::ShapeComplaints;
pub(crate) use print::{print_float, print_json, print_text};
pub(crate) use settle::settle_document;
pub(crate) use wire::{decode_member, decode_message, encode_message};
