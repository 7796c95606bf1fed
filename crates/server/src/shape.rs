//! The shape of the OTG model: its members and their types, in JSON and in protobuf.
//!
//! [`settle`] checks every request, from either transport. Its result is JSON in one form: known members only, no `null`,
//! 64-bit integers as text, `choice` present wherever a member implies it. This module does not know the meaning of values.

mod json;
mod model;
mod path;
mod print;
mod settle;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use json::parse;
pub use model::DESCRIPTOR;
pub(crate) use model::{empty, message};
pub(crate) use path::ShapeComplaints;
pub(crate) use print::{float as print_float, print, text as print_text};
pub(crate) use settle::settle;
pub(crate) use wire::{decode, decode_member, encode};
