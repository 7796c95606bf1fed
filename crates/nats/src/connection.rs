//! Connections to the server: addresses, certificate, and recovery from failures.
//!
//! Endpoints, records, results and captures each open their own connections here, so a long result segment does
//! not delay a letter.
//!
//! Invariant: a lost connection is retried forever, with short pauses.

mod troubles;

pub(crate) use troubles::ConnectionFailures;

use crate::seal::SealKeys;
use crate::{subject, user_key};
use async_nats::{Auth, AuthError, Client, ClientError, ConnectErrorKind, ConnectOptions, Event};
use packetrig_fleet::fabric::Error;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Interval of pings: a dead server is noticed after two missed pings.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time within which a connection must be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest pause before the next attempt to connect.
const MAX_RECONNECT_PAUSE: Duration = Duration::from_millis(500);
/// Number of refused log-ins that are retried: a server refuses all users while it reloads its configuration.
const MAX_REFUSED_LOGINS: u32 = 2;
/// Maximum number of messages of one subscription that wait for the task that reads it.
const MAX_WAITING_MESSAGES: usize = 65_536;

/// Parameters for reaching the server and for its stores.
#[derive(Clone, Debug)]
pub struct ServerAccess {
    /// Addresses (`host:port`), tried in any order.
    pub servers: Vec<String>,
    /// Certificate and key of this process. Without them the connection is not encrypted, which is only for
    /// tests on one machine.
    pub credentials: Option<FleetCredentials>,
    /// Local address of connections; it selects the network for control traffic.
    pub from: Option<SocketAddr>,
    /// Number of servers that keep a copy of records and results: 1, or 3 of a cluster.
    pub replicas: usize,
    /// Size limit in bytes of results that wait for the controller.
    pub results_room: u64,
    /// Time after which an appended segment, or a read or change of records, counts as unanswered.
    pub timeout: Duration,
    /// Keys that seal messages. Without them every message counts as genuine, which is only for tests on one machine.
    pub keys: Option<SealKeys>,
    /// File in which a node keeps the proof of the highest epoch that it has seen; without it, the proof is lost
    /// when the node ends.
    pub epoch_proof: Option<PathBuf>,
    /// Number of reconnections that the server has refused since it last accepted a connection. A refused first
    /// connection is an error and not counted. Clones share the number.
    pub refused_log_ins: Arc<AtomicU32>,
}

impl ServerAccess {
    /// Access to one server, encrypted if there are credentials, with space for 1 GiB of results.
    pub fn for_server(server: impl Into<String>, credentials: Option<FleetCredentials>) -> Self {
        Self {
            servers: vec![server.into()],
            credentials,
            from: None,
            replicas: 1,
            results_room: 1 << 30,
            timeout: Duration::from_secs(10),
            keys: None,
            epoch_proof: None,
            refused_log_ins: Arc::default(),
        }
    }
}

/// Certificate and key of a node or the controller, in PEM, and its claims.
#[derive(Clone)]
pub struct FleetCredentials {
    /// Certificate of the fleet's authority.
    pub authority: String,
    pub certificate: String,
    pub key: String,
    /// Claims (JWT) that are shown to the server; `None` for a server that identifies users by their certificates.
    pub user: Option<String>,
    /// Renewed certificate and claims for the same key, which new connections use; `None` before the first renewal.
    pub renewed: Arc<RwLock<Option<RenewedCredentials>>>,
}

/// A newer certificate for the same key, and the claims that came with it.
#[derive(Clone, Debug)]
pub struct RenewedCredentials {
    pub certificate: String,
    pub user: Option<String>,
}

impl FleetCredentials {
    /// Returns the certificate and claims that a new connection must show.
    pub fn newest_credentials(&self) -> RenewedCredentials {
        let renewed = self.renewed.read().unwrap_or_else(PoisonError::into_inner);
        renewed.clone().unwrap_or_else(|| RenewedCredentials {
            certificate: self.certificate.clone(),
            user: self.user.clone(),
        })
    }

    /// Signs the server's nonce with the key of these credentials. This proves that the claims belong to this process.
    pub fn sign_nonce(&self, nonce: &[u8]) -> Result<Vec<u8>, Error> {
        let key = user_key::derive_user_key(&self.key).map_err(|_| unusable_credential_error("key"))?;
        key.sign(nonce).map_err(|_| unusable_credential_error("key"))
    }
}

impl std::fmt::Debug for FleetCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetCredentials").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Converts an error of the client library to [`Error::Down`].
pub(crate) fn to_down_error(error: impl std::fmt::Display) -> Error {
    Error::Down(error.to_string())
}

/// Error for a server that does not answer in time.
pub(crate) fn no_answer_error() -> Error {
    Error::Down("the server does not answer".to_owned())
}

/// Connects as `name`. Later failures of the connection are added to `troubles`.
pub(crate) async fn open_client(
    access: ServerAccess,
    name: String,
    troubles: ConnectionFailures,
) -> Result<Client, Error> {
    let scheme = if access.credentials.is_some() { "tls" } else { "nats" };
    let servers: Vec<String> = access.servers.iter().map(|at| format!("{scheme}://{at}")).collect();
    let refused = Arc::clone(&access.refused_log_ins);
    let mut options = build_log_in_options(access.credentials.as_ref())
        .name(&name)
        // Each endpoint has its own inbox prefix: with a shared one, every node could read the answers to other nodes.
        .custom_inbox_prefix(subject::inbox_prefix(&name))
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        // async-nats drops messages beyond this number and reports that only by an event.
        .subscription_capacity(MAX_WAITING_MESSAGES)
        // The pauses are short, because a lease lasts for two seconds only.
        .reconnect_delay_callback(|attempts| {
            MAX_RECONNECT_PAUSE.min(Duration::from_millis(50 * attempts as u64))
        })
        .event_callback(move |event| {
            let (troubles, refused) = (troubles.clone(), Arc::clone(&refused));
            async move {
                count_refusals(&refused, &event);
                troubles.on_event(&event);
            }
        });
    if let Some(address) = access.from {
        options = options.local_address(address);
    }
    if let Some(credentials) = &access.credentials {
        // With credentials, a connection without TLS is refused, whatever the server offers.
        options = options.require_tls(true).tls_client_config(tls_config(credentials)?);
    }
    // A first connection is not retried by async-nats, so refusals are retried here.
    let mut refusals = 0;
    loop {
        match options.clone().connect(servers.clone()).await {
            // nats-server refuses users that log in while it reads its configuration again (decision 0003).
            Err(error) if is_log_in_refusal(&error) && refusals < MAX_REFUSED_LOGINS => {
                refusals += 1;
                tokio::time::sleep(MAX_RECONNECT_PAUSE).await;
            }
            outcome => return outcome.map_err(|error| convert_connect_error(&error, &access.servers)),
        }
    }
}

fn is_log_in_refusal(error: &async_nats::ConnectError) -> bool {
    matches!(error.kind(), ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation)
}

/// Returns options that log in with the claims of the credentials; without claims, options that do not log in.
fn build_log_in_options(credentials: Option<&FleetCredentials>) -> ConnectOptions {
    let Some(credentials) = credentials.filter(|credentials| credentials.user.is_some()) else {
        return ConnectOptions::new();
    };
    let credentials = credentials.clone();
    ConnectOptions::with_auth_callback(move |nonce| {
        let credentials = credentials.clone();
        async move {
            let mut auth = Auth::new();
            // The claims are read at each log-in, so that a reconnection shows renewed claims.
            auth.jwt = credentials.newest_credentials().user;
            auth.signature = Some(credentials.sign_nonce(&nonce).map_err(AuthError::new)?);
            Ok(auth)
        }
    })
}

fn tls_config(credentials: &FleetCredentials) -> Result<rustls::ClientConfig, Error> {
    let mut roots = rustls::RootCertStore::empty();
    for root in parse_certificates(&credentials.authority) {
        roots.add(root).map_err(|_| unusable_credential_error("certificate of the authority"))?;
    }
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes())
        .map_err(|_| unusable_credential_error("key"))?;
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| unusable_credential_error("TLS version"))?
        // Only the fleet's authority can certify a server; certificates of public authorities are not accepted.
        .with_root_certificates(roots)
        .with_client_auth_cert(parse_certificates(&credentials.certificate), key.clone_key())
        .map_err(|_| unusable_credential_error("certificate"))
        // The builder has checked that certificate and key belong together. The resolver also shows a renewed
        // certificate, without a new client.
        .and_then(|mut config| {
            let key = rustls::crypto::ring::sign::any_supported_type(&key)
                .map_err(|_| unusable_credential_error("key"))?;
            config.client_auth_cert_resolver =
                Arc::new(NewestCertificateResolver { credentials: credentials.clone(), key });
            Ok(config)
        })
}

fn unusable_credential_error(what: &str) -> Error {
    Error::NotPermitted(format!("cannot use the {what} of the fleet credentials"))
}

/// Shows the server the newest certificate.
#[derive(Debug)]
struct NewestCertificateResolver {
    credentials: FleetCredentials,
    key: Arc<dyn SigningKey>,
}

impl ResolvesClientCert for NewestCertificateResolver {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let newest = self.credentials.newest_credentials();
        Some(Arc::new(CertifiedKey::new(parse_certificates(&newest.certificate), Arc::clone(&self.key))))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

pub(crate) fn parse_certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

fn count_refusals(refused: &AtomicU32, event: &Event) {
    match event {
        Event::Connected => refused.store(0, Ordering::Relaxed),
        // async-nats reports the error of a reconnection attempt only as text.
        Event::ClientError(ClientError::Other(text)) if is_refused_log_in(text) => {
            refused.fetch_add(1, Ordering::Relaxed);
        }
        _ => {}
    }
}

fn is_refused_log_in(text: &str) -> bool {
    [ConnectErrorKind::Authentication, ConnectErrorKind::AuthorizationViolation]
        .iter()
        .any(|kind| text.starts_with(&kind.to_string()))
}

/// Converts the error of a first connection attempt: to [`Error::NotPermitted`] if a certificate or the user was
/// refused, otherwise to [`Error::Down`].
fn convert_connect_error(error: &async_nats::ConnectError, servers: &[String]) -> Error {
    use std::error::Error as _;
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        words = format!("{words}: {inner}");
        cause = inner.source();
    }
    let words = remove_repeated_parts(&words);
    let refused = is_log_in_refusal(error) || matches!(error.kind(), ConnectErrorKind::Tls);
    // The server refuses a certificate by a TLS alert, which comes after the connection is established.
    let refused = refused || words.contains("fatal alert") || words.contains("ertificate");
    if refused {
        return Error::NotPermitted(words);
    }
    let servers = servers.join(", ");
    Error::Down(format!("{servers}: {words}; check that `packetrig fleet up` runs there"))
}

/// Removes repeated parts from a chain of causes, because errors of libraries repeat the texts of their causes.
fn remove_repeated_parts(chain: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in chain.split(": ") {
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_chain_drops_repeated_causes() {
        let chain = "DNS error: failed to look up: no such host: failed to look up: no such host";
        assert_eq!(remove_repeated_parts(chain), "DNS error: failed to look up: no such host");
    }

    #[test]
    fn refused_connections_are_counted_until_one_is_accepted() {
        let refused = AtomicU32::default();
        for kind in [ConnectErrorKind::AuthorizationViolation, ConnectErrorKind::Authentication] {
            let event = Event::ClientError(ClientError::Other(kind.to_string()));
            count_refusals(&refused, &event);
        }
        count_refusals(&refused, &Event::ClientError(ClientError::Other(ConnectErrorKind::Io.to_string())));
        count_refusals(&refused, &Event::Disconnected);
        assert_eq!(refused.load(Ordering::Relaxed), 2);
        count_refusals(&refused, &Event::Connected);
        assert_eq!(refused.load(Ordering::Relaxed), 0);
    }
}
