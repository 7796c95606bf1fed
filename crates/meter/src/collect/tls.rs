//! What the collector shows to those who connect, and whom it asks for what.

use super::Error;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate chain of this collector.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities of exporters, who then must show a certificate of theirs.
    pub client_ca: Option<PathBuf>,
}

pub(super) fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, Error> {
    let unusable = |what, path: &Path, reason: String| Error::Tls { what, path: path.to_owned(), reason };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates("the certificate", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unusable("the private key", &files.key, error.to_string()))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("the certificate", &files.certificate, error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let refused = |reason: String| unusable("the authorities of exporters", path, reason);
            let mut roots = RootCertStore::empty();
            for authority in certificates("the authorities of exporters", path)? {
                roots.add(authority).map_err(|error| refused(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|error| refused(error.to_string()))?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    config.map(Arc::new).map_err(|error| unusable("the private key", &files.key, error.to_string()))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let refused = |reason: String| Error::Tls { what, path: path.to_owned(), reason };
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| refused(error.to_string()))?;
    if read.is_empty() { Err(refused("no certificate is in it".to_owned())) } else { Ok(read) }
}
