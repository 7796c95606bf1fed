//! How the API is offered: addresses, encryption, who may call, limits.

use crate::RejectionCounts;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// OTG's usual port for HTTPS.
pub const HTTP_PORT: u16 = 8443;
/// OTG's usual port for gRPC.
pub const GRPC_PORT: u16 = 40051;

/// Everything about the transports. The default: loopback only, HTTPS with a certificate of its own making, gRPC in the
/// clear, and nobody let in: the caller says who.
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
    /// Users of this machine who need no token on loopback connections. `None`: every client needs one.
    pub local_users: Option<LocalUsers>,
    /// What other clients must send as `Authorization: Bearer …`, or as the password of `Authorization: Basic …`.
    pub token: Option<String>,
    /// Whether clients need neither: whoever reaches the addresses is let in.
    pub let_anyone_in: bool,
    /// Names beside addresses and `localhost` under which clients may call this server without a token.
    pub host_names: Vec<String>,
    /// Largest request, in bytes.
    pub most_request_bytes: usize,
    /// Most bytes of all requests that are being read, together.
    pub most_request_memory: usize,
    /// Most connections at a time, on each transport. When all are taken, the oldest idle one is closed.
    pub most_connections: usize,
    /// How long clients may take for what.
    pub deadlines: ClientDeadlines,
    /// Told what was refused, soon after the first time and then at most once a minute.
    pub on_rejections: Option<RejectionObserver>,
    /// How long calls under way may take to end after the stop.
    pub grace: Duration,
}

/// Where certificate and key are, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The server's certificate, then those between it and the authority.
    pub certificate: PathBuf,
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
            local_users: None,
            token: None,
            let_anyone_in: false,
            host_names: Vec::new(),
            most_request_bytes: 64 << 20,
            most_request_memory: 256 << 20,
            most_connections: 256,
            deadlines: ClientDeadlines::default(),
            on_rejections: None,
            grace: Duration::from_secs(10),
        }
    }
}

/// Finds the user who holds the client's end of a connection: told the client's address and the server's.
pub type FindUser = Arc<dyn Fn(SocketAddr, SocketAddr) -> Option<u32> + Send + Sync>;

/// Users of this machine, and how the kernel is asked for the user of a connection.
#[derive(Clone)]
pub struct LocalUsers {
    pub allowed: Vec<u32>,
    /// Asked once for each connection between loopback addresses.
    pub find: FindUser,
}

impl fmt::Debug for LocalUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalUsers").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

/// Told how many requests and connections were refused so far, by cause.
#[derive(Clone)]
pub struct RejectionObserver(pub Arc<dyn Fn(&RejectionCounts) + Send + Sync>);

impl fmt::Debug for RejectionObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RejectionObserver")
    }
}

/// How long a client may take for what. A connection that takes longer is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientDeadlines {
    /// For encryption; then for the first bytes of HTTP/2, or a whole head of HTTP/1 once its first byte is there.
    pub first: Duration,
    pub idle: Duration,
    /// The same for a client that has made no request that it may make.
    pub idle_stranger: Duration,
    /// For the body of a request, beside the time that its bytes may take.
    pub body: Duration,
    /// Slowest rate of a body.
    pub body_bytes_per_second: u32,
    /// Time in which a client must take [`Self::response_bytes`] of a response that waits for it.
    pub response: Duration,
    /// See [`Self::response`].
    pub response_bytes: u64,
}

impl Default for ClientDeadlines {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(10),
            idle: Duration::from_mins(5),
            idle_stranger: Duration::from_secs(10),
            body: Duration::from_secs(10),
            body_bytes_per_second: 16 << 10,
            response: Duration::from_secs(30),
            response_bytes: 32 << 10,
        }
    }
}

/// Where the transports really are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundAddresses {
    pub http: Option<SocketAddr>,
    pub grpc: Option<SocketAddr>,
}
