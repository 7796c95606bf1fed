//! Arguments of `packetrig serve`.

use super::quantities::{parse_host_name, parse_socket_address, parse_user_id};
use super::{BackEndName, FleetPlace, RecordDirectoryArgs, StoreArgs};
use clap::Args;
use packetrig_plan::PortLocation;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Serve this machine's ports to scripts that speak the Open Traffic Generator API.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch the user may set, not a state")]
#[command(
    after_help = "The server's own user and root need no token over the loopback interface; other clients need one.\n\n\
Examples:\n  \
    packetrig serve --port eth1=localhost:5555 --port eth2=localhost:5556\n  \
    packetrig serve --plain-http --http 127.0.0.1:8080 --no-grpc --allow-user 1000\n  \
    packetrig serve --http 0.0.0.0:8443 --cert rig.pem --key rig.key --no-grpc --token-file token"
)]
pub(crate) struct ServeArgs {
    /// Interface for a location in scripts: `eth1=localhost:5555`, `NAMESPACE/eth1=port-a`. Without it,
    /// locations are interface names; repeat for more
    #[arg(long = "port", value_name = "IF=LOCATION")]
    pub(crate) ports: Vec<LocationAlias>,
    /// Address to serve HTTP on
    // The default is loopback: an address that other machines reach needs a
    // token and encryption (docs/decisions/0018-who-may-use-serve.md).
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8443", value_parser = parse_socket_address)]
    pub(crate) http: SocketAddr,
    /// Do not serve the API over HTTP
    #[arg(long, conflicts_with_all = ["http", "plain_http"])]
    pub(crate) no_http: bool,
    /// Serve HTTP without encryption instead of HTTPS
    #[arg(long)]
    pub(crate) plain_http: bool,
    /// Address to serve gRPC on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:40051", value_parser = parse_socket_address)]
    pub(crate) grpc: SocketAddr,
    /// Do not serve the API over gRPC
    // The server needs at least one of the two transports.
    #[arg(long, conflicts_with_all = ["no_http", "grpc", "grpc_tls"])]
    pub(crate) no_grpc: bool,
    /// Serve gRPC over TLS [default: without encryption, as clients of this API expect]
    #[arg(long)]
    pub(crate) grpc_tls: bool,
    /// Certificate chain of this server (PEM) [default: self-signed, made at start]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of the server's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Require client certificates from these authorities (PEM); needs --grpc-tls or --no-grpc
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Admit clients that send the token in this file as `Authorization: Bearer …`; the file is created if
    /// missing [default: only users of this machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Admit clients that send the token in this file to the live page, results and metrics, but not to anything
    /// that changes something; the file is created if missing
    #[arg(long, value_name = "FILE", conflicts_with = "let_anyone_in")]
    pub(crate) view_token_file: Option<PathBuf>,
    /// Admit this local user (number) over the loopback interface without the token, like root and
    /// the server's own user
    #[arg(long, value_name = "UID,…", value_parser = parse_user_id, value_delimiter = ',')]
    pub(crate) allow_user: Vec<u32>,
    /// Require the token from local users too, for example behind a local proxy
    // Without a token nobody could use the server, and `--allow-user` admits users without one.
    #[arg(long, requires = "token_file", conflicts_with = "allow_user")]
    pub(crate) token_always: bool,
    /// Admit everybody without a check. Anyone who reaches the addresses can then make this machine send
    // The conflicting options admit only some clients, so they would have no effect if everybody is admitted.
    #[arg(long, conflicts_with_all = ["token_file", "allow_user", "client_ca"])]
    pub(crate) let_anyone_in: bool,
    /// Host name that clients without the token may use, besides the server's addresses and `localhost`
    #[arg(long = "host-name", value_name = "NAME,…", value_delimiter = ',', value_parser = parse_host_name)]
    pub(crate) host_names: Vec<String>,
    /// Confirm that this interface may carry test traffic although it looks like part of a real network
    #[arg(long, value_name = "IF,…", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Serve the ports of a fleet; this machine is its controller meanwhile. Locations in scripts
    /// are `NODE/IF` or `any-LABEL`
    #[arg(long)]
    pub(crate) on_fleet: bool,
    #[command(flatten)]
    pub(crate) fleet: FleetPlace,
    #[command(flatten)]
    pub(crate) measured: RecordDirectoryArgs,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Use this back end [default: chosen by calibration, load and rights; the result says why]
    #[arg(long, value_name = "NAME")]
    pub(crate) back_end: Option<BackEndName>,
    /// Seed for the values that configurations leave random [default: a random seed]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) sandbox: super::SandboxFlags,
}

/// An interface and the location that stands for it in scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocationAlias {
    pub(crate) interface: PortLocation,
    pub(crate) location: String,
}

impl FromStr for LocationAlias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((interface, location)) if !location.is_empty() => {
                Ok(Self { interface: interface.parse()?, location: location.to_owned() })
            }
            _ => Err(format!("`{text}` is not an interface and a location; write `eth1=localhost:5555`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_maps_interface_to_any_text() {
        let alias: LocationAlias = "ns/eth1=10.0.0.1:5555;1".parse().expect("parses");
        assert_eq!(
            (alias.interface.to_string().as_str(), alias.location.as_str()),
            ("ns/eth1", "10.0.0.1:5555;1")
        );
        assert!(["eth1", "eth1=", "=x"].iter().all(|text| text.parse::<LocationAlias>().is_err()));
    }
}
