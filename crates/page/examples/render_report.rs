//! Makes `report.html` of a `report.json`, the quick loop for work on the page:
//!
//! ```text
//! cargo run -p packetrig-page --example render_report -- runs/ID/report.json page.html
//! ```

use packetrig_page::report::{RunPage, render_run};
use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let report = arguments.next().ok_or("the first argument is a report.json")?;
    let page = arguments.next().ok_or("the second argument is the file to write")?;
    let parsed = serde_json::from_str(&fs::read_to_string(&report)?)?;
    let document = fs::read_to_string(Path::new(&report).with_file_name("plan.yaml")).unwrap_or_default();
    fs::write(page, render_run(RunPage { report: &parsed, document: &document }))?;
    Ok(())
}
