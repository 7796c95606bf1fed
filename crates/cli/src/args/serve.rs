//! `packetrig serve` as typed.

use super::{BackEndName, FleetPlace, Store};
use clap::Args;
use packetrig_plan::PortLocation;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Offer this machine's ports to scripts that speak the Open Traffic Generator API.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch the user may set, not a state")]
#[command(
    after_help = "The server's own user and root need no token over the loopback interface; other clients do.\n\n\
Examples:\n  \
    packetrig serve --port eth1=localhost:5555 --port eth2=localhost:5556\n  \
    packetrig serve --plain-http --http 127.0.0.1:8080 --no-grpc --allow-user 1000\n  \
    packetrig serve --http 0.0.0.0:8443 --cert rig.pem --key rig.key --no-grpc --token-file token"
)]
pub(crate) struct Serve {
    /// Interface that a location in scripts means: `eth1=localhost:5555`, `ns/eth1=port-a`. Other locations are interface names
    #[arg(long = "port", value_name = "IF=LOCATION")]
    pub(crate) ports: Vec<Alias>,
    /// Where HTTP is served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443")]
    pub(crate) http: SocketAddr,
    /// Serve no HTTP
    #[arg(long)]
    pub(crate) no_http: bool,
    /// Serve HTTP in the clear instead of HTTPS
    #[arg(long)]
    pub(crate) plain_http: bool,
    /// Where gRPC is served
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:40051")]
    pub(crate) grpc: SocketAddr,
    /// Serve no gRPC
    #[arg(long, conflicts_with = "no_http")]
    pub(crate) no_grpc: bool,
    /// Serve gRPC encrypted; without this it is in the clear, as clients of this API expect
    #[arg(long)]
    pub(crate) grpc_tls: bool,
    /// Certificate chain of this server (PEM) [default: self-signed, made at start]
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,
    /// Ask clients for certificates of these authorities (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Let in clients with the token in this file, sent as `Authorization: Bearer …`. It is made if there is no such file.
    /// Without this, only users of this machine are let in
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Let in this user of this machine, by number, over the loopback interface and without the token, as the server's own
    /// user and root are
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    pub(crate) allow_user: Vec<u32>,
    /// Ask users of this machine for the token as well, as behind a proxy that runs here
    #[arg(long, requires = "token_file", conflicts_with = "allow_user")]
    pub(crate) token_always: bool,
    /// Ask nobody who they are. Whoever reaches the addresses can then make this machine send
    #[arg(long, conflicts_with_all = ["token_file", "allow_user", "client_ca"])]
    pub(crate) let_anyone_in: bool,
    /// Name under which clients without the token call this server, beside its addresses and `localhost`
    #[arg(long = "host-name", value_name = "NAME", value_delimiter = ',')]
    pub(crate) host_names: Vec<String>,
    /// Yes, this interface may carry test traffic although it looks like part of a real network
    #[arg(long, value_name = "IF", value_delimiter = ',')]
    pub(crate) confirm: Vec<PortLocation>,
    /// Serve the ports of a fleet: locations in scripts are `NODE/IF` or `any-LABEL`. This machine is its controller meanwhile
    #[arg(long)]
    pub(crate) on_fleet: bool,
    #[command(flatten)]
    pub(crate) fleet: FleetPlace,
    #[command(flatten)]
    pub(crate) store: Store,
    /// Insist on a way to send and receive
    #[arg(long, value_name = "NAME")]
    pub(crate) back_end: Option<BackEndName>,
    /// Seed of what configurations leave to chance [default: drawn]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) sandbox: super::SandboxFlags,
}

/// An interface and the location that stands for it in scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    pub(crate) interface: PortLocation,
    pub(crate) location: String,
}

impl FromStr for Alias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((interface, location)) if !location.is_empty() => {
                Ok(Self { interface: interface.parse()?, location: location.to_owned() })
            }
            _ => Err(format!("`{text}` names no location; write `eth1=localhost:5555`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_is_an_interface_and_any_text() {
        let alias: Alias = "ns/eth1=10.0.0.1:5555;1".parse().expect("parses");
        assert_eq!(
            (alias.interface.to_string().as_str(), alias.location.as_str()),
            ("ns/eth1", "10.0.0.1:5555;1")
        );
        assert!(["eth1", "eth1=", "=x"].iter().all(|text| text.parse::<Alias>().is_err()));
    }
}
