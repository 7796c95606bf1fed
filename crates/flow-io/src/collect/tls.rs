//! The server's side of TLS: the collector's certificate, and the check of the exporters' certificates.

use super::Error;
use crate::certificate::{ExporterVerifier, describe_certificate};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CLIENT_AUTHORITIES: &str = "the certificate authorities of exporters";

#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain of this collector.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Certificate authorities of exporters. If this is set, every exporter must present a certificate that one of them
    /// signed, or that is itself in this file.
    pub client_ca: Option<PathBuf>,
}

/// TLS configuration that the encrypted connections of a listener share.
#[derive(Clone, Debug)]
pub(super) struct ListenerEncryption {
    pub(super) config: Arc<ServerConfig>,
    /// File and name of this collector's own certificate.
    own: String,
    verifier: Option<Arc<ExporterVerifier>>,
}

impl ListenerEncryption {
    pub(super) fn new(files: &TlsFiles) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = read_certificates("the certificate", &files.certificate)?;
        let name = chain.first().map(describe_certificate).unwrap_or_default();
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| unusable_file("the private key", &files.key, error))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable_file("the certificate", &files.certificate, error))?;
        let verifier = files.client_ca.as_ref().map(|path| build_verifier(path, provider)).transpose()?;
        let builder = match &verifier {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(Arc::<ExporterVerifier>::clone(verifier)),
        };
        let config = builder.with_single_cert(chain, key);
        // Fails if the key does not belong to the certificate.
        let config = config.map_err(|error| unusable_file("the private key", &files.key, error))?;
        let own = format!("{} {name}", files.certificate.display());
        Ok(Self { config: Arc::new(config), own, verifier })
    }

    /// Describes why a handshake failed, if one of the two sides objected. `None` if the peer
    /// only closed the connection.
    pub(super) fn describe_handshake_failure(&self, error: &io::Error) -> Option<String> {
        // The stored refusal is removed in any case, so that it is not reported for a later handshake.
        let of_exporter = self.verifier.as_ref().and_then(|verifier| verifier.take_refusal());
        let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(match error {
            // An alert comes from the other side, so our own verifier has no reason to report.
            rustls::Error::AlertReceived(_) => {
                format!(
                    "the exporter refused the handshake; this collector presented the certificate {}: {error}",
                    self.own
                )
            }
            _ => of_exporter.unwrap_or_else(|| error.to_string()),
        })
    }
}

/// Builds a verifier that accepts only exporters with a trusted certificate.
fn build_verifier(path: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<ExporterVerifier>, Error> {
    let trusted = read_certificates(CLIENT_AUTHORITIES, path)?;
    let mut roots = RootCertStore::empty();
    for authority in &trusted {
        roots.add(authority.clone()).map_err(|error| unusable_file(CLIENT_AUTHORITIES, path, error))?;
    }
    // Without `allow_unauthenticated` this verifier refuses clients without a certificate.
    let usual = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| unusable_file(CLIENT_AUTHORITIES, path, error))?;
    Ok(Arc::new(ExporterVerifier::new(usual, path, &trusted)))
}

fn unusable_file(what: &'static str, path: &Path, reason: impl ToString) -> Error {
    Error::Tls { what, path: path.to_owned(), reason: reason.to_string() }
}

fn read_certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| unusable_file(what, path, error))?;
    if read.is_empty() {
        Err(unusable_file(what, path, "the file contains no certificate"))
    } else {
        Ok(read)
    }
}
