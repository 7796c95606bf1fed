//! Drawings as SVG text, with classes instead of colours: the page's style decides how they look.
//!
//! A drawing is a picture of numbers that are also on the page as text. It never shows a value that was not measured.

use std::fmt::{self, Write as _};

pub mod chart;
pub mod columns;
pub mod ledger;
mod ledger_picture;
pub mod ranges;
pub mod scale;

/// Text that is put together from formatted parts, such as the data of a path.
#[derive(Debug, Default)]
pub(crate) struct FormattedText(String);

impl FormattedText {
    pub(crate) fn add_part(&mut self, part: fmt::Arguments<'_>) {
        self.0.write_fmt(part).expect("a string takes any text");
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Formats a coordinate with one decimal.
pub(crate) fn format_coordinate(value: f64) -> String {
    // More decimals would be invisible and would only make the page larger.
    crate::quantity::format_decimals(value, 1)
}
