//! The shape of the OTG model: which members there are and of what kind, in JSON and in protobuf.
//!
//! [`settle`] is the one judge of a request, whichever way it came. Everything behind it is JSON in one form: known
//! members only, no `null`, 64-bit integers as text, `choice` given wherever a member tells it. What the values mean is
//! not known here.

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
