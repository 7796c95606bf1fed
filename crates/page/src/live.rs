//! The files of the live page, which `packetrig serve` and `packetrig page` serve: unprocessed HTML,
//! styles and ES modules.

use crate::PAGE_STYLES;
use sha2::{Digest, Sha256};

/// A file of the live page.
#[derive(Debug)]
pub struct LiveFile {
    pub name: &'static str,
    /// Media type of the file.
    pub media: &'static str,
    pub body: &'static str,
}

impl LiveFile {
    /// An entity tag: a hash of the content, so that browsers load a changed file again.
    pub fn entity_tag(&self) -> String {
        // The tag is computed from the content and not from the version: a developer's builds have one
        // version and different files.
        let digest: [u8; 32] = Sha256::digest(self.body.as_bytes()).into();
        digest.map(|byte| format!("{byte:02x}")).concat()
    }
}

const HTML_CONTENT_TYPE: &str = "text/html; charset=utf-8";
const CSS_CONTENT_TYPE: &str = "text/css; charset=utf-8";
const SCRIPT_CONTENT_TYPE: &str = "text/javascript; charset=utf-8";

macro_rules! script {
    ($name:literal) => {
        LiveFile {
            name: $name,
            media: SCRIPT_CONTENT_TYPE,
            body: include_str!(concat!("../assets/live/", $name)),
        }
    };
}

/// All files of the live page.
pub const LIVE_FILES: &[LiveFile] = &[
    LiveFile {
        name: "index.html",
        media: HTML_CONTENT_TYPE,
        body: include_str!("../assets/live/index.html"),
    },
    LiveFile { name: "style.css", media: CSS_CONTENT_TYPE, body: PAGE_STYLES },
    LiveFile { name: "live.css", media: CSS_CONTENT_TYPE, body: include_str!("../assets/live/live.css") },
    script!("main.js"),
    script!("api.js"),
    script!("calibration.js"),
    script!("dom.js"),
    script!("flowform.js"),
    script!("flows.js"),
    script!("format.js"),
    script!("ledger.js"),
    script!("live.js"),
    script!("logs.js"),
    script!("meters.js"),
    script!("nodes.js"),
    script!("plot.js"),
    script!("poll.js"),
    script!("probepairs.js"),
    script!("probes.js"),
    script!("probetimes.js"),
    script!("probevalues.js"),
    script!("results.js"),
    script!("streams.js"),
    script!("taps.js"),
];
