//! Arguments of `packetrig watch`.

use super::ServerAccessArgs;
use clap::Args;
use packetrig_server::client::ApiAddress;

/// Show the run in progress in the terminal: the run of another command of this user on this machine, or the run of
/// `packetrig serve`, whose streams can be started, stopped and paused with keys.
#[derive(Args, Debug)]
#[command(
    after_help = "If the output is not a terminal, one line per second is printed, as with --lines.\n\n\
Examples:\n  \
    packetrig watch\n  \
    packetrig watch http://127.0.0.1:8080\n  \
    packetrig watch https://rig2:8443 --ca rig2.pem --token-file token\n  \
    packetrig watch --json > events.jsonl"
)]
pub(crate) struct WatchArgs {
    /// Address of the server, as the server prints it. Without `http://`, HTTPS is used [default: the run in progress
    /// of this user, else https://127.0.0.1:8443]
    #[arg(value_name = "ADDRESS|URL")]
    pub(crate) server: Option<ApiAddress>,
    #[command(flatten)]
    pub(crate) access: ServerAccessArgs,
    /// Print lines instead of a screen, at most one per second; for screen readers and logs
    #[arg(long)]
    pub(crate) lines: bool,
    /// Print the events of the server as JSON, one per line, at most one state per second
    #[arg(long, conflicts_with = "lines")]
    pub(crate) json: bool,
}
