//! `packetrig watch` as typed.

use clap::Args;
use packetrig_server::client::ApiAddress;
use std::path::PathBuf;

/// Show the run in progress in the terminal: that of another command of this user on this machine, or that of
/// `packetrig serve`, whose streams keys start, stop and pause.
#[derive(Args, Debug)]
#[command(
    after_help = "Where the output is not a terminal, one line per second is printed, as with --lines.\n\n\
Examples:\n  \
    packetrig watch\n  \
    packetrig watch http://127.0.0.1:8080\n  \
    packetrig watch https://rig2:8443 --ca rig2.pem --token-file token\n  \
    packetrig watch --json > events.jsonl"
)]
pub(crate) struct WatchArgs {
    /// Address of the server, as it prints it. Without `http://`, HTTPS is used [default: the run in progress of
    /// this user, else https://127.0.0.1:8443]
    #[arg(value_name = "ADDRESS|URL")]
    pub(crate) server: Option<ApiAddress>,
    /// Send the token in this file [default: none, which suffices for the server's own user on its machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Connect only if the server's certificate, or that of its authority, is in this file (PEM) [default: any
    /// certificate of this machine, without a token]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Accept any certificate, also from another machine and with a token
    #[arg(long, conflicts_with = "ca")]
    pub(crate) insecure: bool,
    /// Print lines in place of a screen, at most one per second; for screen readers and logs
    #[arg(long)]
    pub(crate) lines: bool,
    /// Print the events of the server as JSON, one per line, at most one state per second
    #[arg(long, conflicts_with = "lines")]
    pub(crate) json: bool,
}
