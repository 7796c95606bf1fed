//! Options of the server: addresses, encryption, access, limits.

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

/// Options of both transports. By default, the server listens on loopback only, with HTTPS with a
/// self-signed certificate and with unencrypted gRPC. No client is admitted until the caller adds local
/// users, a token or a client CA.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address for HTTP; `None` if HTTP is not served. Port 0 means any free port.
    pub http: Option<SocketAddr>,
    /// Address for gRPC; `None` if gRPC is not served. Port 0 means any free port.
    pub grpc: Option<SocketAddr>,
    /// Encrypts HTTP connections with TLS.
    pub http_tls: bool,
    /// Encrypts gRPC connections with TLS.
    pub grpc_tls: bool,
    /// Certificate chain and private key; `None`: the server makes them at start.
    pub identity: Option<IdentityFiles>,
    /// PEM file of certificate authorities: every client must show a certificate that one of them has signed. Both
    /// transports must be encrypted then.
    pub client_ca: Option<PathBuf>,
    /// Users of this machine who need no token on loopback connections. `None`: they are treated like other clients.
    pub local_users: Option<LocalUsers>,
    /// The token that all clients except local users must send: as `Authorization: Bearer …`, or as the password
    /// of `Authorization: Basic …`.
    pub token: Option<String>,
    /// A second token, which only permits viewing: the page, its events and results, and the metrics.
    pub view_token: Option<String>,
    /// Admits every client that reaches the addresses.
    pub let_anyone_in: bool,
    /// Host names that clients without a token may use to call this server, besides IP addresses and `localhost`.
    pub host_names: Vec<String>,
    /// Maximum length of the body of a request, in bytes.
    pub most_request_bytes: usize,
    /// Maximum memory for the bodies of all requests in progress together, in bytes.
    pub most_request_memory: usize,
    /// Maximum number of connections at a time, on each transport. If all are taken, a new
    /// connection may displace an idle one.
    pub most_connections: usize,
    pub deadlines: ClientDeadlines,
    /// Receives the counts of refusals, soon after the first one and then at most once a minute.
    pub on_rejections: Option<RejectionObserver>,
    /// How long calls in progress may continue after the server was told to stop.
    pub grace: Duration,
}

/// PEM files of certificate and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The server's certificate, then the intermediate ones.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            http: Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), HTTP_PORT)),
            grpc: Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), GRPC_PORT)),
            http_tls: true,
            grpc_tls: false,
            identity: None,
            client_ca: None,
            local_users: None,
            token: None,
            view_token: None,
            let_anyone_in: false,
            host_names: Vec::new(),
            // Configurations of several MB are normal.
            most_request_bytes: 64 << 20,
            // Room for four of the largest requests at a time.
            most_request_memory: 256 << 20,
            most_connections: 256,
            deadlines: ClientDeadlines::default(),
            on_rejections: None,
            grace: Duration::from_secs(10),
        }
    }
}

/// Finds the uid of the user who owns the client's socket of a connection, by the addresses of the
/// client and the server.
pub type FindUser = Arc<dyn Fn(SocketAddr, SocketAddr) -> Option<u32> + Send + Sync>;

/// Users of this machine, and how to find the user of a connection.
#[derive(Clone)]
pub struct LocalUsers {
    pub allowed: Vec<u32>,
    /// Called once for each connection between loopback addresses.
    pub find: FindUser,
}

impl fmt::Debug for LocalUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalUsers").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

/// Receives how many requests and connections were refused so far, by cause.
#[derive(Clone)]
pub struct RejectionObserver(pub Arc<dyn Fn(&RejectionCounts) + Send + Sync>);

impl fmt::Debug for RejectionObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RejectionObserver")
    }
}

/// Deadlines of clients. A connection that misses one is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientDeadlines {
    /// Time for the TLS handshake, and then again for the first bytes of HTTP/2 or the whole head of an HTTP/1
    /// request. For a later request on the same connection, the time counts from the first byte of its head.
    pub first: Duration,
    /// Idle time after which a connection is closed if its client is trusted or has made an admitted request.
    pub idle: Duration,
    /// Idle time after which any other connection is closed.
    pub idle_stranger: Duration,
    /// Time for the body of a request, in addition to the time that [`Self::body_bytes_per_second`]
    /// allows for its bytes.
    pub body: Duration,
    /// Minimum rate at which the body of a request must arrive.
    pub body_bytes_per_second: u32,
    /// Time in which a client must read at least [`Self::response_bytes`] of a response.
    pub response: Duration,
    pub response_bytes: u64,
}

impl Default for ClientDeadlines {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(10),
            idle: Duration::from_mins(5),
            idle_stranger: Duration::from_secs(10),
            body: Duration::from_secs(10),
            // At this rate the largest body takes 68 minutes.
            body_bytes_per_second: 16 << 10,
            response: Duration::from_secs(30),
            response_bytes: 32 << 10,
        }
    }
}

/// The addresses that the transports are bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundAddresses {
    pub http: Option<SocketAddr>,
    pub grpc: Option<SocketAddr>,
}
