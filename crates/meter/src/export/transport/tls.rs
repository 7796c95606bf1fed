//! The client's side of TLS: whom it trusts, what it shows.

use super::super::target::HostPort;
use super::super::{Error, TlsFiles};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;

/// What every connection to a collector needs.
#[derive(Clone, Debug)]
pub(super) struct CollectorEncryption {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

impl CollectorEncryption {
    pub(super) fn new(place: &HostPort, files: &TlsFiles) -> Result<Self, Error> {
        let host = files.server_name.as_ref().unwrap_or(&place.host);
        let name = ServerName::try_from(host.clone())
            .map_err(|_| Error::Tls(format!("`{host}` is no name that a certificate can have")))?;
        let failed = |error: rustls::Error| Error::Tls(error.to_string());
        let mut roots = RootCertStore::empty();
        for authority in certificates(&files.authorities)? {
            roots.add(authority).map_err(failed)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
        let builder = builder.with_root_certificates(roots);
        let config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let read = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
                builder.with_client_auth_cert(certificates(certificate)?, read).map_err(failed)?
            }
        };
        Ok(Self { config: Arc::new(config), name })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(read) if read.is_empty() => Err(unreadable(path, &"no certificate is in it")),
        Ok(read) => Ok(read),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> Error {
    Error::Tls(format!("{}: {reason}", path.display()))
}
