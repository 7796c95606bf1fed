//! Pages for people: a run or a test method as one HTML file that needs no network, and the drawings of it.
//!
//! Everything is text that is made from values: no sockets, no clock, no files except the styles and scripts that are compiled
//! in. All facts are in the HTML and the SVG; the script only adds sorting, searching, hovering and local times.
//!
//! Invariant: text that comes from outside goes through [`markup::Markup`], which escapes it.

#![forbid(unsafe_code)]

pub mod draw;
pub mod live;
pub mod markup;
pub mod quantity;
pub mod report;

/// Styles of all pages: colours as variables, for light and dark screens and for paper.
pub const STYLE: &str = include_str!("../assets/style.css");
