//! Decides which certificates of a server a client accepts.

use super::{ApiAddress, ClientError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which certificates of a server the client accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateTrust {
    /// Accepts any certificate of a server on this machine that gets no token: no data leaves the machine, and none
    /// is secret. Refuses to call any other server.
    ThisMachine,
    /// Accepts a certificate that this file (PEM) contains, or that an authority in this file has signed.
    Authorities(PathBuf),
    /// Accepts any certificate, also of another machine (`--insecure`).
    Anything,
}

impl CertificateTrust {
    pub(super) fn build_config(
        &self,
        address: &ApiAddress,
        has_token: bool,
    ) -> Result<Arc<ClientConfig>, ClientError> {
        // The provider is named here, because the program need not have installed a default one.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| ClientError::Options(error.to_string()))?;
        let config = match self {
            Self::Authorities(file) => {
                builder.with_root_certificates(read_authorities(file)?).with_no_client_auth()
            }
            Self::ThisMachine if !address.is_loopback() || has_token => {
                return Err(ClientError::Options(format!(
                    "no option says how to verify the certificate of {address}{}; give the certificate or \
                     its authority with --ca FILE, or connect anyway with --insecure",
                    if has_token { ", and the token must not be sent to a wrong server" } else { "" }
                )));
            }
            Self::ThisMachine | Self::Anything => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
                .with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }
}

fn read_authorities(file: &Path) -> Result<RootCertStore, ClientError> {
    let unreadable = |source| ClientError::File { path: file.display().to_string(), source };
    let invalid = |reason: String| unreadable(io::Error::new(io::ErrorKind::InvalidData, reason));
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| match error {
        rustls::pki_types::pem::Error::Io(source) => unreadable(source),
        other => invalid(other.to_string()),
    })?;
    // The system's authorities are not added: only authorities in the named file are trusted.
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
    }
    if roots.is_empty() {
        Err(invalid("this file contains no certificate in PEM format".to_owned()))
    } else {
        Ok(roots)
    }
}

/// Accepts every certificate, but checks that the server has the private key of the certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The certificate itself is not checked. The signatures below still prove that the server has its private key.
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_or_remote_address_requires_known_certificate() {
        let configure = |trust: CertificateTrust, address: &str, has_token| {
            trust
                .build_config(&address.parse().expect("an address"), has_token)
                .map_err(|error| error.to_string())
        };
        let local = "127.0.0.1:8443";
        assert!(configure(CertificateTrust::ThisMachine, local, false).is_ok());
        for (address, has_token) in [(local, true), ("198.18.0.1:1", false)] {
            let refused = configure(CertificateTrust::ThisMachine, address, has_token).expect_err("refused");
            assert!(refused.contains("--ca FILE") && refused.contains(address), "{refused}");
            assert!(configure(CertificateTrust::Anything, address, has_token).is_ok());
        }
        let missing = CertificateTrust::Authorities("/no/such/file".into());
        assert!(configure(missing, local, false).expect_err("refused").contains("/no/such/file"));
    }
}
