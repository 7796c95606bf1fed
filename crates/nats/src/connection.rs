//! How the server is reached: addresses, certificate, and what becomes of a connection that has trouble.
//!
//! It knows neither messages nor results. Each part of the fabric has a connection of its own, so a long segment does
//! not delay a letter. Invariant: a lost connection is tried again for ever, with short waits.

use crate::seal::SealKeys;
use crate::{subject, user_key};
use async_nats::{Auth, AuthError, Client, ConnectErrorKind, ConnectOptions, Event, ServerError};
use packetrig_fleet::fabric::Error;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;

/// A dead server is noticed after two of these.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long a connection may take to come up.
const CONNECTING: Duration = Duration::from_secs(5);
/// Longest wait before the next attempt.
const PAUSE: Duration = Duration::from_millis(500);
/// Refusals of the user that are not believed: a server that reads its configuration again refuses everybody meanwhile.
const DISBELIEF: u32 = 2;
/// Messages of one subscription that wait for the task that reads it, which does nothing else.
const SUBSCRIPTION_ROOM: usize = 65_536;
/// Troubles that are kept until they are taken.
const TROUBLES_ROOM: usize = 256;

/// How to reach the server, and what to ask of it.
#[derive(Clone, Debug)]
pub struct ServerAccess {
    /// Addresses, tried in any order: `host:port`.
    pub servers: Vec<String>,
    /// Our identity. Without it the connection is not encrypted: only for tests on one machine.
    pub credentials: Option<FleetCredentials>,
    /// The address to connect from: it chooses the control network.
    pub from: Option<SocketAddr>,
    /// Servers that keep a copy of records and results: 1, or 3 of a cluster.
    pub replicas: usize,
    /// Bytes of results that may wait for the controller.
    pub results_room: u64,
    /// How long an append or a change of a record is tried before it counts as unanswered.
    pub patience: Duration,
    /// What is sealed or checked with; without them anybody is believed, which is for tests on one machine.
    pub keys: Option<SealKeys>,
    /// Where a node keeps the proof of the highest epoch that it has seen; without a file it forgets it when it ends.
    pub epoch_proof: Option<PathBuf>,
}

impl ServerAccess {
    /// One server, encrypted if there are credentials; room for 1 GiB of results.
    pub fn to(server: impl Into<String>, credentials: Option<FleetCredentials>) -> Self {
        Self {
            servers: vec![server.into()],
            credentials,
            from: None,
            replicas: 1,
            results_room: 1 << 30,
            patience: Duration::from_secs(10),
            keys: None,
            epoch_proof: None,
        }
    }
}

/// Certificate of a node or the controller, all in PEM.
#[derive(Clone)]
pub struct FleetCredentials {
    /// Certificate of the fleet's authority.
    pub authority: String,
    pub certificate: String,
    pub key: String,
    /// The user as which the server knows us; a server with accounts of its own goes by the certificate.
    pub user: Option<String>,
    /// What came later for the same key: connections that are opened from then on use it.
    pub renewed: Arc<RwLock<Option<RenewedCredentials>>>,
}

/// A newer certificate for the same key, and the claims that came with it.
#[derive(Clone, Debug)]
pub struct RenewedCredentials {
    pub certificate: String,
    pub user: Option<String>,
}

impl FleetCredentials {
    /// What a connection shows that is opened now.
    pub fn newest(&self) -> RenewedCredentials {
        let renewed = self.renewed.read().unwrap_or_else(PoisonError::into_inner);
        renewed.clone().unwrap_or_else(|| RenewedCredentials {
            certificate: self.certificate.clone(),
            user: self.user.clone(),
        })
    }

    /// Proof for the server that claims for the key of these credentials are our own: its nonce, signed.
    pub fn sign_nonce(&self, nonce: &[u8]) -> Result<Vec<u8>, Error> {
        let key = user_key::derive(&self.key).map_err(|_| unusable("key"))?;
        key.sign(nonce).map_err(|_| unusable("key"))
    }
}

impl std::fmt::Debug for FleetCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Troubles of a connection, until they are taken. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionTroubles {
    kept: Arc<Mutex<Vec<Error>>>,
    /// How often the connection was lost.
    losses: watch::Sender<u64>,
    /// How often the server refused something.
    refusals: watch::Sender<u64>,
}

impl ConnectionTroubles {
    /// Does a request. It ends with the connection that carried it: nobody answers it on the next one.
    pub(crate) async fn unless_lost<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut losses = self.losses.subscribe();
        tokio::select! {
            answer = request => answer,
            Ok(()) = losses.changed() => Err(Error::Unanswered("the connection was lost".to_owned())),
        }
    }

    /// Does a request. It ends when the server refuses something on its connection: nobody answers what is refused.
    pub(crate) async fn unless_refused<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut refusals = self.refusals.subscribe();
        let refused = async {
            loop {
                if refusals.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                if let Some(error) = self.refused_any() {
                    return error;
                }
            }
        };
        tokio::select! {
            answer = request => answer,
            error = refused => Err(error),
        }
    }

    pub(crate) fn add(&self, error: Error) {
        let is_refusal = matches!(error, Error::NotPermitted(_));
        self.keep(error);
        if is_refusal {
            self.refusals.send_modify(|count| *count += 1);
        }
    }

    fn keep(&self, error: Error) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < TROUBLES_ROOM && kept.last() != Some(&error) {
            kept.push(error);
        }
    }

    pub(crate) fn take(&self) -> Vec<Error> {
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes away the refusal of a subject, if there was one.
    pub(crate) fn refused(&self, subject: &str) -> Option<Error> {
        self.take_one(|which| which == subject)
    }

    /// Takes away the first refusal, if there was one.
    pub(crate) fn refused_any(&self) -> Option<Error> {
        self.take_one(|_| true)
    }

    fn take_one(&self, wanted: impl Fn(&str) -> bool) -> Option<Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at =
            kept.iter().position(|error| matches!(error, Error::NotPermitted(which) if wanted(which)))?;
        Some(kept.remove(at))
    }
}

pub(crate) fn down(error: impl std::fmt::Display) -> Error {
    Error::Down(error.to_string())
}

/// The error if nothing comes in time.
pub(crate) fn silent() -> Error {
    Error::Down("the server does not answer".to_owned())
}

/// Connects as `name`; what goes wrong later is added to `troubles`.
pub(crate) async fn open(
    access: ServerAccess,
    name: String,
    troubles: ConnectionTroubles,
) -> Result<Client, Error> {
    let scheme = if access.credentials.is_some() { "tls" } else { "nats" };
    let servers: Vec<String> = access.servers.iter().map(|at| format!("{scheme}://{at}")).collect();
    let mut options = log_in(access.credentials.as_ref())
        .name(&name)
        // One for each: under a shared prefix every node could read the answers to all others.
        .custom_inbox_prefix(subject::inbox(&name))
        .ping_interval(PING_EVERY)
        .connection_timeout(CONNECTING)
        // async-nats drops what exceeds it, and only an event tells of that.
        .subscription_capacity(SUBSCRIPTION_ROOM)
        .reconnect_delay_callback(|attempts| PAUSE.min(Duration::from_millis(50 * attempts as u64)))
        .event_callback(move |event| {
            let troubles = troubles.clone();
            async move { note(&troubles, &event) }
        });
    if let Some(address) = access.from {
        options = options.local_address(address);
    }
    if let Some(credentials) = &access.credentials {
        options = options.require_tls(true).tls_client_config(tls(credentials)?);
    }
    let mut refusals = 0;
    loop {
        match options.clone().connect(servers.clone()).await {
            // nats-server refuses users that log in while it reads its configuration again (decision 0011).
            Err(error) if is_unknown_user(&error) && refusals < DISBELIEF => {
                refusals += 1;
                tokio::time::sleep(PAUSE).await;
            }
            outcome => return outcome.map_err(|error| why_not(&error, &access.servers)),
        }
    }
}

fn is_unknown_user(error: &async_nats::ConnectError) -> bool {
    matches!(error.kind(), ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation)
}

/// As the user that the credentials name, if they do.
fn log_in(credentials: Option<&FleetCredentials>) -> ConnectOptions {
    let Some(credentials) = credentials.filter(|credentials| credentials.user.is_some()) else {
        return ConnectOptions::new();
    };
    let credentials = credentials.clone();
    ConnectOptions::with_auth_callback(move |nonce| {
        let credentials = credentials.clone();
        async move {
            let mut auth = Auth::new();
            auth.jwt = credentials.newest().user;
            auth.signature = Some(credentials.sign_nonce(&nonce).map_err(AuthError::new)?);
            Ok(auth)
        }
    })
}

fn tls(credentials: &FleetCredentials) -> Result<rustls::ClientConfig, Error> {
    let mut roots = rustls::RootCertStore::empty();
    for root in certificates(&credentials.authority) {
        roots.add(root).map_err(|_| unusable("certificate of the authority"))?;
    }
    let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).map_err(|_| unusable("key"))?;
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|_| unusable("version of TLS"))?
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(&credentials.certificate), key.clone_key())
        .map_err(|_| unusable("certificate"))
        // The builder has checked that certificate and key fit. The resolver then shows a renewed certificate
        // too, without a new client.
        .and_then(|mut config| {
            let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|_| unusable("key"))?;
            config.client_auth_cert_resolver =
                Arc::new(NewestCertificate { credentials: credentials.clone(), key });
            Ok(config)
        })
}

fn unusable(what: &str) -> Error {
    Error::NotPermitted(format!("unusable {what}"))
}

/// Shows the server the newest certificate there is.
#[derive(Debug)]
struct NewestCertificate {
    credentials: FleetCredentials,
    key: Arc<dyn SigningKey>,
}

impl ResolvesClientCert for NewestCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let newest = self.credentials.newest();
        Some(Arc::new(CertifiedKey::new(certificates(&newest.certificate), Arc::clone(&self.key))))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

pub(crate) fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

fn note(troubles: &ConnectionTroubles, event: &Event) {
    match event {
        Event::Connected => {}
        // The only sign of a refused subject: `publish` says Ok all the same, and a request just gets no
        // answer.
        Event::ServerError(ServerError::Other(text)) => troubles.add(violation(text)),
        Event::ServerError(ServerError::AuthorizationViolation) => {
            troubles.add(Error::NotPermitted("connection".to_owned()));
        }
        other => {
            if matches!(other, Event::Disconnected) {
                troubles.losses.send_modify(|losses| *losses += 1);
            }
            troubles.add(Error::Down(other.to_string()));
        }
    }
}

/// The server says `Permissions Violation for Publish to "subject"`.
fn violation(text: &str) -> Error {
    match text.split('"').nth(1) {
        Some(subject) if text.to_ascii_lowercase().contains("permissions violation") => {
            Error::NotPermitted(subject.to_owned())
        }
        _ => Error::Down(text.to_owned()),
    }
}

/// A refused certificate is a matter of rights, everything else of the world.
fn why_not(error: &async_nats::ConnectError, servers: &[String]) -> Error {
    use std::error::Error as _;
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        words = format!("{words}: {inner}");
        cause = inner.source();
    }
    let words = without_repetition(&words);
    let refused = is_unknown_user(error) || matches!(error.kind(), ConnectErrorKind::Tls);
    // The other side says which certificate it does not like by an alert of TLS, once the connection stands.
    let refused = refused || words.contains("fatal alert") || words.contains("ertificate");
    if refused {
        return Error::NotPermitted(words);
    }
    let servers = servers.join(", ");
    Error::Down(format!("{servers}: {words}; check that `packetrig fleet up` runs there"))
}

/// Each part of a chain of causes once: errors of libraries repeat the texts of their causes.
fn without_repetition(chain: &str) -> String {
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
    fn a_chain_of_causes_says_each_of_them_once() {
        let chain = "DNS error: failed to look up: no such host: failed to look up: no such host";
        assert_eq!(without_repetition(chain), "DNS error: failed to look up: no such host");
    }

    #[test]
    fn a_violation_becomes_the_subject() {
        let publish = violation("Permissions Violation for Publish to \"res.r.b\"");
        assert_eq!(publish, Error::NotPermitted("res.r.b".into()));
        let listen = violation("Permissions Violation for Subscription to \"cmd.node.b\" using queue \"q\"");
        assert_eq!(listen, Error::NotPermitted("cmd.node.b".into()));
        assert_eq!(violation("stale connection"), Error::Down("stale connection".into()));
    }

    #[test]
    fn a_request_ends_with_the_connection_that_carried_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let troubles = ConnectionTroubles::default();
        note(&troubles, &Event::Disconnected);
        assert_eq!(runtime.block_on(troubles.unless_lost(async { Ok(7) })), Ok(7), "an earlier loss");
        let answered = runtime.block_on(troubles.unless_lost(async {
            note(&troubles, &Event::Disconnected);
            std::future::pending::<Result<(), Error>>().await
        }));
        assert!(matches!(answered, Err(Error::Unanswered(_))), "{answered:?}");
    }

    #[test]
    fn troubles_are_kept_once_in_a_row_and_not_without_bound() {
        let troubles = ConnectionTroubles::default();
        for number in 0..1000 {
            troubles.add(Error::TooLarge(number));
            troubles.add(Error::TooLarge(number));
        }
        assert_eq!(troubles.take().len(), TROUBLES_ROOM);
        assert_eq!(troubles.take(), []);
    }
}
