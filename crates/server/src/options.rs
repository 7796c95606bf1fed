//! How the API is offered: addresses, encryption, who may call, limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// OTG's usual port for HTTPS.
pub const HTTP_PORT: u16 = 8443;
/// OTG's usual port for gRPC.
pub const GRPC_PORT: u16 = 40051;

/// Everything about the transports. The default: loopback only, HTTPS with a certificate of its own making, gRPC in the
/// clear, nobody asked who they are.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where HTTP is served; `None`: it is not. Port 0 takes any free one.
    pub http: Option<SocketAddr>,
    /// Where gRPC is served; `None`: it is not. Port 0 takes any free one.
    pub grpc: Option<SocketAddr>,
    /// Whether HTTP is encrypted.
    pub http_tls: bool,
    /// Whether gRPC is encrypted.
    pub grpc_tls: bool,
    /// Certificate chain and private key; without, they are made at start.
    pub identity: Option<IdentityFiles>,
    /// PEM file of the authorities whose certificates clients must show. Both transports must be encrypted then.
    pub client_ca: Option<PathBuf>,
    /// What clients must send as `Authorization: Bearer …`.
    pub token: Option<String>,
    /// Largest request, in bytes.
    pub most_request_bytes: usize,
    /// Most connections at a time, on each transport. Further ones wait.
    pub most_connections: usize,
    /// How long calls under way may take to end after the stop.
    pub grace: Duration,
}

/// Where certificate and key are, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The server's certificate, then those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let on = |port| Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        Self {
            http: on(HTTP_PORT),
            grpc: on(GRPC_PORT),
            http_tls: true,
            grpc_tls: false,
            identity: None,
            client_ca: None,
            token: None,
            most_request_bytes: 64 << 20,
            most_connections: 256,
            grace: Duration::from_secs(10),
        }
    }
}

/// Where the transports really are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// HTTP.
    pub http: Option<SocketAddr>,
    /// gRPC.
    pub grpc: Option<SocketAddr>,
}
