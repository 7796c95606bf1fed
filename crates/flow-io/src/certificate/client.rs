//! Verifies the certificates of exporters for a collector.

use super::TrustedCertificates;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::path::Path;
use std::sync::Arc;

/// Accepts exporters whose certificate a trusted authority issued, and those whose own certificate the user has named.
#[derive(Debug)]
pub(crate) struct ExporterVerifier {
    usual: Arc<dyn ClientCertVerifier>,
    trusted: TrustedCertificates,
}

impl ExporterVerifier {
    /// `usual` is the verifier of rustls; it trusts the same certificates as `named`. Both were read from `file`.
    pub(crate) fn new(
        usual: Arc<dyn ClientCertVerifier>,
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

impl ClientCertVerifier for ExporterVerifier {
    fn offer_client_auth(&self) -> bool {
        self.usual.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.usual.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.usual.verify_client_cert(shown, others, now) {
            Err(objection) if self.trusted.is_named_authority(shown, &objection) => {
                // Equality with the named certificate is enough: the handshake's signature still proves that the peer
                // has its key.
                Ok(ClientCertVerified::assertion())
            }
            Err(objection) => Err(self.trusted.record_certificate_refusal(shown, objection)),
            verified => verified,
        }
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
