//! The server's side of TLS: the collector's certificate, and whether exporters need one.

use super::Error;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const CLIENT_AUTHORITIES: &str = "the certificate authorities of exporters";

#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain of this collector.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Certificate authorities of exporters. If given, every exporter must present a certificate signed by one of them.
    pub client_ca: Option<PathBuf>,
}

pub(super) fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates("the certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unusable("the private key", &files.key, error))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("the certificate", &files.certificate, error))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(CLIENT_AUTHORITIES, path)? {
                roots.add(authority).map_err(|error| unusable(CLIENT_AUTHORITIES, path, error))?;
            }
            // Without `allow_unauthenticated` this verifier refuses clients that present no certificate.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| unusable(CLIENT_AUTHORITIES, path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(chain, key);
    // Fails if the key does not belong to the certificate.
    config.map(Arc::new).map_err(|error| unusable("the private key", &files.key, error))
}

fn unusable(what: &'static str, path: &Path, reason: impl ToString) -> Error {
    Error::Tls { what, path: path.to_owned(), reason: reason.to_string() }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| unusable(what, path, error))?;
    if read.is_empty() { Err(unusable(what, path, "the file contains no certificate")) } else { Ok(read) }
}
