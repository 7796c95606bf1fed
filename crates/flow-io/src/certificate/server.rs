//! Verifies the certificates of collectors for a meter.

use super::{TrustedCertificates, verify_name};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// Accepts collectors whose certificate a trusted authority issued, and those whose own certificate the user has named.
#[derive(Debug)]
pub(crate) struct CollectorVerifier {
    usual: Arc<WebPkiServerVerifier>,
    trusted: TrustedCertificates,
}

impl CollectorVerifier {
    /// `usual` is the verifier of rustls; it trusts the same certificates as `named`. Both were read from `file`.
    pub(crate) fn new(
        usual: Arc<WebPkiServerVerifier>,
        file: &Path,
        named: &[CertificateDer<'static>],
    ) -> Self {
        Self { usual, trusted: TrustedCertificates::new(file, named) }
    }

    /// Returns the text of the last refusal and removes it; `None` if there was no refusal since the last call.
    pub(crate) fn take_refusal(&self) -> Option<String> {
        self.trusted.take_refusal()
    }
}

impl ServerCertVerifier for CollectorVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = match self.usual.verify_server_cert(shown, others, name, ocsp, now) {
            Err(objection) if self.trusted.is_named_authority(shown, &objection) => {
                // The name is still to be compared: webpki refuses the authority mark before that.
                verify_name(shown, name).map(|()| ServerCertVerified::assertion())
            }
            usual => usual,
        };
        verified.map_err(|objection| self.trusted.record_certificate_refusal(shown, objection))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, shown, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
