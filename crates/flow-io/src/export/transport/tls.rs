//! The client's side of TLS: trusted authorities, and the exporter's own certificate.

use super::super::target::HostPort;
use super::super::{Error, TlsFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// What each new connection to a collector needs.
#[derive(Clone, Debug)]
pub(super) struct CollectorEncryption {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

impl CollectorEncryption {
    pub(super) fn new(place: &HostPort, files: &TlsFiles) -> Result<Self, Error> {
        let host = files.server_name.as_ref().unwrap_or(&place.host);
        let name = ServerName::try_from(host.clone()).map_err(|_| {
            Error::Tls(format!(
                "`{host}` is not a valid server name for a certificate; give one with --tls-name"
            ))
        })?;
        // Only the given authorities, not the system's: a collector is usually private.
        let mut roots = RootCertStore::empty();
        for authority in certificates(&files.authorities)? {
            roots.add(authority).map_err(|error| unreadable(&files.authorities, &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder =
            builder.with_safe_default_protocol_versions().map_err(|error| Error::Tls(error.to_string()))?;
        let builder = builder.with_root_certificates(roots);
        let config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let read = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
                // Fails if the key does not belong to the certificate.
                builder
                    .with_client_auth_cert(certificates(certificate)?, read)
                    .map_err(|error| unreadable(key, &error))?
            }
        };
        Ok(Self { config: Arc::new(config), name })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(unreadable(path, &"the file contains no certificate")),
        Ok(read) => Ok(read),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::Tls(format!("{}: {reason}", path.display()))
}
