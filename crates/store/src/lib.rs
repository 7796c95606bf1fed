//! To be written by its owner.
#![forbid(unsafe_code)]
