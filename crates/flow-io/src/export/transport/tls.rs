//! The client's side of TLS: trusted certificates, and the exporter's own certificate.

use super::super::target::HostPort;
use super::super::{Error, TlsFiles};
use crate::certificate::{CollectorVerifier, describe_certificate};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// TLS configuration for new connections to a collector.
#[derive(Clone, Debug)]
pub(super) struct CollectorEncryption {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
    verifier: Arc<CollectorVerifier>,
    /// File and name of the exporter's own certificate, if it presents one.
    pub(super) own: Option<String>,
}

impl CollectorEncryption {
    pub(super) fn new(place: &HostPort, files: &TlsFiles) -> Result<Self, Error> {
        let host = files.server_name.as_ref().unwrap_or(&place.host);
        let name = ServerName::try_from(host.clone()).map_err(|_| {
            Error::Tls(format!(
                "`{host}` is not a valid server name for a certificate; give one with --tls-name"
            ))
        })?;
        // Only the given authorities are trusted, not the system's: a collector is usually private.
        let trusted = read_certificates(&files.authorities)?;
        let mut roots = RootCertStore::empty();
        for authority in &trusted {
            roots.add(authority.clone()).map_err(|error| tls_file_error(&files.authorities, &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| tls_file_error(&files.authorities, &error))?;
        let verifier = Arc::new(CollectorVerifier::new(usual, &files.authorities, &trusted));
        let builder = ClientConfig::builder_with_provider(provider);
        let builder =
            builder.with_safe_default_protocol_versions().map_err(|error| Error::Tls(error.to_string()))?;
        let builder =
            builder.dangerous().with_custom_certificate_verifier(Arc::<CollectorVerifier>::clone(&verifier));
        let mut own = None;
        let config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let read = PrivateKeyDer::from_pem_file(key).map_err(|error| tls_file_error(key, &error))?;
                let chain = read_certificates(certificate)?;
                own = chain
                    .first()
                    .map(|first| format!("{} {}", certificate.display(), describe_certificate(first)));
                // Fails if the key does not belong to the certificate.
                builder.with_client_auth_cert(chain, read).map_err(|error| tls_file_error(key, &error))?
            }
        };
        Ok(Self { config: Arc::new(config), name, verifier, own })
    }

    /// Returns the text of the last refusal of the collector's certificate, and forgets it.
    pub(super) fn take_refusal(&self) -> Option<String> {
        self.verifier.take_refusal()
    }
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(tls_file_error(path, &"the file contains no certificate")),
        Ok(read) => Ok(read),
        Err(error) => Err(tls_file_error(path, &error)),
    }
}

fn tls_file_error(path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::Tls(format!("{}: {reason}", path.display()))
}
