//! HTML pages: a run or a test method as one file that needs no network, and its drawings.
//!
//! All output is text made from values: this crate uses no sockets, no clock, and no files except the
//! compiled-in styles and scripts. All facts are in the HTML and the SVG; the script only adds sorting,
//! searching, hovering and local times.
//!
//! Invariant: text from outside goes through [`markup::Markup`], which escapes it.

#![forbid(unsafe_code)]

pub mod book;
pub mod draw;
pub mod live;
pub mod markup;
pub mod quantity;
pub mod report;

/// Styles of all pages: colours as variables, for light and dark screens and for paper.
pub const PAGE_STYLES: &str = include_str!("../assets/style.css");
