//! Arguments for the directories with flow records and logs that the web page shows.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RecordDirectoryArgs {
    /// Show the flow records in this directory (of `packetrig collect` or `meter`); repeat for more
    #[arg(long, value_name = "DIR")]
    pub(crate) flows: Vec<PathBuf>,
    /// Show the log in this directory (of `packetrig log`); repeat for more
    #[arg(long = "log", value_name = "DIR")]
    pub(crate) logs: Vec<PathBuf>,
}
