//! System tests: the built program in a lab, judged by what it prints and writes, as its user would.
//!
//! Nothing here links the product's planning, measuring or reporting code into the judgement: documents are made and
//! reports are read as JSON, the truth comes from the reference device, captured bytes are read by other programs.
//! Invariant: a test without the rights or the tools it needs says so by a typed skip; with rights, nothing is skipped.
#![forbid(unsafe_code)]

pub mod at_once;
pub mod browser;
pub mod document;
pub mod drawn_flows;
pub mod exporters;
pub mod full_disk;
pub mod fuzz;
pub mod hosts;
pub mod judge;
pub mod judged_run;
pub mod listening;
pub mod nfcapd;
pub mod own_place;
pub mod page_client;
pub mod permit;
pub mod private_files;
pub mod program;
pub mod recording;
pub mod relay;
pub mod rig_fault;
pub mod scraping;
pub mod served_lab;
pub mod skip;
pub mod small_disk;
pub mod station;
pub mod still_disk;
pub mod tools;
pub mod truth;
pub mod walls;
