//! Options of commands that are clients of a server: the token that they send, and the certificates that they accept.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct ServerAccessArgs {
    /// Send the token in this file [default: none, which suffices for the server's own user and root on its machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Connect only if the server's certificate, or that of its authority, is in this file (PEM) [default: accept any
    /// certificate, but only from a server on this machine and without a token]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Accept any certificate, also from another machine and with a token
    #[arg(long, conflicts_with = "ca")]
    pub(crate) insecure: bool,
}
