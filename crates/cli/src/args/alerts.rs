//! Arguments of the commands that check flow records against alert rules.

use clap::Args;
use packetrig_flow_store::alert::AlertDestination;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AlertArgs {
    /// Check the records against the alert rules in this file (TOML); see `packetrig docs flow-alerts`
    #[arg(long, value_name = "FILE")]
    pub(crate) alerts: Option<PathBuf>,
    /// Write each alert as a line of JSON to a file, to http://HOST:PORT/PATH, or to - (standard output); repeat
    /// for more [default: -]
    #[arg(long, value_name = "PLACE", requires = "alerts")]
    pub(crate) alert_to: Vec<AlertDestination>,
    /// Read names that the rules use from this file, as `packetrig flows --names` does; repeat for more
    #[arg(long, value_name = "FILE", requires = "alerts")]
    pub(crate) alert_names: Vec<PathBuf>,
}

impl AlertArgs {
    /// Returns the files that the program must read: the file with the rules, and the files with names.
    pub(crate) fn read_files(&self) -> impl Iterator<Item = PathBuf> {
        self.alerts.iter().chain(&self.alert_names).cloned()
    }

    /// Returns the files that alerts are written to.
    pub(crate) fn written_files(&self) -> impl Iterator<Item = PathBuf> {
        self.alert_to.iter().filter_map(|place| match place {
            AlertDestination::File(path) => Some(path.clone()),
            AlertDestination::StandardOutput | AlertDestination::Webhook { .. } => None,
        })
    }

    /// Returns true if alerts go over the network.
    pub(crate) fn has_webhook(&self) -> bool {
        self.alert_to.iter().any(|place| matches!(place, AlertDestination::Webhook { .. }))
    }
}
