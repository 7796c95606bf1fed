//! Certificates: the server's own, which is read or made at start, and the authorities of its clients.

use crate::{Error, IdentityFiles, ServerOptions};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The server's certificate chain and key.
pub(crate) struct ServerIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ServerIdentity {
    /// Reads the identity from files if the options name some, else makes one for the addresses that are served.
    pub(crate) fn new(options: &ServerOptions) -> Result<Self, Error> {
        match &options.identity {
            Some(files) => Self::read_files(files),
            None => Self::create_self_signed(&[options.http, options.grpc]),
        }
    }

    fn read_files(files: &IdentityFiles) -> Result<Self, Error> {
        let chain = read_certificates(&files.certificate, "the certificate")?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| file_error("the private key", &files.key, error))?;
        Ok(Self { chain, key })
    }

    fn create_self_signed(addresses: &[Option<SocketAddr>]) -> Result<Self, Error> {
        // The names under which clients of this machine reach the server.
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let served = addresses.iter().flatten().map(SocketAddr::ip);
        // `0.0.0.0` and `::` stand for all addresses of this machine, so they are not the name of a server.
        names.extend(served.filter(|ip| !ip.is_unspecified() && !ip.is_loopback()).map(|ip| ip.to_string()));
        let made = rcgen::generate_simple_self_signed(names).map_err(tls_error)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self { chain: vec![made.cert.der().clone()], key: key.into() })
    }

    /// Builds the acceptor for connections of one protocol. `protocol`: its ALPN name.
    pub(crate) fn build_acceptor(
        &self,
        client_ca: Option<&Path>,
        protocol: &[u8],
    ) -> Result<TlsAcceptor, Error> {
        // The provider is named here, because the program need not have installed a default one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());

        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(tls_error)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in read_certificates(path, "the certificates of client authorities")? {
                    roots.add(authority).map_err(tls_error)?;
                }
                // This verifier refuses clients that show no certificate.
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(tls_error)?)
            }
        };
        let mut config =
            builder.with_single_cert(self.chain.clone(), self.key.clone_key()).map_err(tls_error)?;
        // Each transport has one protocol, so only its name is offered.
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn tls_error(error: impl std::fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

fn read_certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| file_error(what, path, error))?;
    // The PEM reader does not report an error for a file without certificates, so this is checked here.
    if read.is_empty() {
        return Err(file_error(what, path, pem::Error::NoItemsFound));
    }
    Ok(read)
}

/// Keeps the kind of the I/O error, because [`Error::blame`] depends on it.
fn file_error(what: &'static str, path: &Path, error: pem::Error) -> Error {
    let source = match error {
        pem::Error::Io(source) => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    };
    Error::File { what, path: path.to_owned(), source }
}
