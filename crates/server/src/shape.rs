//! Checks documents against the OTG model (its members and their types), and converts them between JSON and protobuf.
//!
//! Requests of both transports are normalised ([`normalise_json`], [`normalise_document`]). Normalised JSON has only
//! known members and no `null`; 64-bit integers are text; `choice` is present wherever a member implies it. What the
//! values mean is not checked here.

mod copy;
#[cfg(test)]
mod header_tests;
mod json;
mod model;
mod object;
mod path;
mod print;
mod scalar;
mod settle;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use copy::copy_config;
pub(crate) use json::normalise_json;
pub use model::OTG_DESCRIPTOR;
pub(crate) use model::{empty_descriptor, message_descriptor};
pub(crate) use path::DocumentProblems;
pub(crate) use print::{format_json, write_json_float, write_json_text};
pub(crate) use settle::{normalise_document, normalise_value};
pub(crate) use wire::{decode_member, decode_message, encode_message};
