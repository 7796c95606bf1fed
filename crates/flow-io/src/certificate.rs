//! Certificates of peers: rules for accepting them, and their names in messages.
//!
//! A peer is accepted if its certificate was issued by a trusted authority, as usual. The user may also trust the
//! peer's own certificate. `openssl req -x509` marks such a certificate as an authority, and a plain verifier refuses
//! it for that reason.
//!
//! Invariant: the text of the last refusal, with the name of the certificate, is stored until the caller takes it.

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

mod client;
mod server;

pub(crate) use client::ExporterVerifier;
pub(crate) use server::CollectorVerifier;

/// The objection of rustls to a certificate that is marked as an authority.
const AUTHORITY_CERTIFICATE_OBJECTION: &str = "CaUsedAsEndEntity";

/// The certificates that the user trusts, and the last one that was refused.
#[derive(Debug)]
struct TrustedCertificates {
    file: PathBuf,
    named: Vec<CertificateDer<'static>>,
    refused: Mutex<Option<String>>,
}

impl TrustedCertificates {
    fn new(file: &Path, named: &[CertificateDer<'static>]) -> Self {
        Self { file: file.to_owned(), named: named.to_vec(), refused: Mutex::default() }
    }

    /// Reports whether the only objection is the authority mark of a certificate that the user has named. The validity
    /// period needs no check here: rustls checks it before that mark.
    fn is_named_authority(&self, shown: &CertificateDer<'_>, objection: &Error) -> bool {
        let Error::InvalidCertificate(CertificateError::Other(other)) = objection else { return false };
        // rustls passes this objection of webpki through as text only, so it cannot be matched by its type.
        other.to_string() == AUTHORITY_CERTIFICATE_OBJECTION && self.named.iter().any(|named| named == shown)
    }

    /// Stores the text of a refusal until [`Self::take_refusal`] is called, and returns the objection.
    fn record_certificate_refusal(&self, shown: &CertificateDer<'_>, objection: Error) -> Error {
        let trusted = self.file.display();
        let text = format!(
            "the certificate {} is not accepted: {}; the trusted certificates are in {trusted}",
            describe_certificate(shown),
            describe_objection(&objection)
        );
        // rustls passes on only the error, so the text that names the certificate is stored here.
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        objection
    }

    fn take_refusal(&self) -> Option<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Describes why rustls refused a certificate, without its prefix `invalid peer certificate:`.
fn describe_objection(objection: &Error) -> String {
    match objection {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => "its issuer is not trusted".to_owned(),
        Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string() == AUTHORITY_CERTIFICATE_OBJECTION =>
        {
            "it is marked as a CA certificate (of a certificate authority), and it is not one of the trusted certificates"
                .to_owned()
        }
        Error::InvalidCertificate(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// Checks that a certificate that the user has named is valid for this server name.
fn verify_name(shown: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    rustls::client::verify_server_name(&ParsedCertificate::try_from(shown)?, name)
}

/// Names a certificate in messages: its common name, and the first 8 bytes of the fingerprint that
/// `openssl x509 -fingerprint -sha256` prints.
pub(crate) fn describe_certificate(certificate: &CertificateDer<'_>) -> String {
    let digest = Sha256::digest(certificate.as_ref());
    let print: Vec<String> = digest.iter().take(8).map(|byte| format!("{byte:02X}")).collect();
    let name = common_name(certificate.as_ref()).map(|name| format!("CN={name}, ")).unwrap_or_default();
    format!("({name}SHA-256 {}...)", print.join(":"))
}

/// Splits the first element off DER bytes: its tag, its content and the bytes that follow it.
fn split_der_element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        // At most five bytes of the length are read: the length of a certificate fits into four.
        let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f).min(5))?;
        (
            digits
                .iter()
                .try_fold(0_usize, |sum, digit| sum.checked_mul(256)?.checked_add((*digit).into()))?,
            rest,
        )
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// Reads the subject's common name (RFC 5280, section 4.1). It is only used in messages.
fn common_name(certificate: &[u8]) -> Option<String> {
    const VERSION: u8 = 0xa0;
    const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
    let (_, certificate, _) = split_der_element(certificate)?;
    let (_, mut rest, _) = split_der_element(certificate)?;
    let (tag, _, behind) = split_der_element(rest)?;
    // RFC 5280, section 4.1: the version is optional, so a certificate of version 1 begins with its serial number.
    rest = if tag == VERSION { behind } else { rest };
    // Serial number, signature algorithm, issuer and validity.
    for _ in 0..4 {
        rest = split_der_element(rest)?.2;
    }
    let mut names = split_der_element(rest)?.1;
    while !names.is_empty() {
        let (_, set, behind) = split_der_element(names)?;
        names = behind;
        let (_, attribute, _) = split_der_element(set)?;
        let (_, kind, value) = split_der_element(attribute)?;
        if kind == COMMON_NAME {
            // The peer chose this text: control characters could disturb a terminal, and a long name could fill a log.
            let text = String::from_utf8_lossy(split_der_element(value)?.1).into_owned();
            return Some(text.chars().filter(|c| !c.is_control()).take(64).collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_name_is_subject_or_none_when_damaged() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut wanted = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        wanted.distinguished_name = rcgen::DistinguishedName::new();
        wanted.distinguished_name.push(rcgen::DnType::OrganizationName, "lab");
        wanted.distinguished_name.push(rcgen::DnType::CommonName, "collector\u{7} 7");
        let made = wanted.self_signed(&key).unwrap();
        let name = describe_certificate(made.der());
        assert!(name.starts_with("(CN=collector 7, SHA-256 "), "{name}");
        for end in 0..made.der().len() {
            common_name(&made.der()[..end]);
        }
        assert_eq!(common_name(&[0x30, 0x84, 255, 255, 255, 255]), None);
    }
}
