//! Arguments of `packetrig page`.

use super::quantities::{parse_host_name, parse_socket_address, parse_user_id};
use super::{FleetPlace, RecordDirectoryArgs, StoreArgs};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Show past results, flows, logs, taps and the nodes of a fleet as a web page. Nothing can be
/// started or changed there.
#[derive(Args, Debug)]
#[command(
    after_help = "The server's own user and root need no token over the loopback interface; other clients need one.\n\
Addresses other than loopback are served over HTTPS.\n\n\
Examples:\n  \
    packetrig page\n  \
    packetrig page --store results --listen 127.0.0.1:9000\n  \
    packetrig page --flows /var/flows --log /var/log/link\n  \
    packetrig page --listen 0.0.0.0:8480 --cert rig.pem --key rig.key --token-file token"
)]
pub(crate) struct PageArgs {
    /// Address to serve the page on
    // The default is loopback: an address that other machines reach needs HTTPS and a token.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8480", value_parser = parse_socket_address)]
    pub(crate) listen: SocketAddr,
    /// Certificate chain of this server (PEM) [default: self-signed, made at start]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of the server's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Admit clients that send the token in this file as `Authorization: Bearer …`; the page asks for it. The
    /// file is created if missing [default: only users of this machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Admit this local user (number) over the loopback interface without the token, like root and
    /// the server's own user
    #[arg(long, value_name = "UID,…", value_parser = parse_user_id, value_delimiter = ',')]
    pub(crate) allow_user: Vec<u32>,
    /// Host name that clients may use, besides the server's addresses and `localhost`
    #[arg(long = "host-name", value_name = "NAME,…", value_delimiter = ',', value_parser = parse_host_name)]
    pub(crate) host_names: Vec<String>,
    #[command(flatten)]
    pub(crate) measured: RecordDirectoryArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) fleet: FleetPlace,
    #[command(flatten)]
    pub(crate) sandbox: super::SandboxFlags,
}
