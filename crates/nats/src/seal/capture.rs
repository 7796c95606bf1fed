//! Seals for fetching captures: a question carries the fleet's signature, an answer the MAC of its node.

use super::node::{derive_key, encode_with_length_prefixes};
use super::{BASE64, MAC_KEY_BYTES, signing_key};
use base64::Engine as _;
use packetrig_fleet::fabric::Error;
use ring::hmac;
use ring::signature::{ED25519, UnparsedPublicKey};

/// Prefix of the bytes that are signed. With it, nothing else that is signed with the key can pass as a question.
const CAPTURE_QUESTION_PREFIX: &[u8] = b"packetrig capture question 1\0";
const CAPTURE_ANSWER_PURPOSE: &str = "packetrig captures 1";

fn signed_payload(subject: &str, about: &str) -> Vec<u8> {
    // The subject names the node, so a question to one node is not valid for another.
    [CAPTURE_QUESTION_PREFIX, &encode_with_length_prefixes(subject, about, &[])].concat()
}

pub(crate) fn seal_question(signing: &[u8], subject: &str, about: &str) -> Result<String, Error> {
    Ok(BASE64.encode(signing_key(signing)?.sign(&signed_payload(subject, about))))
}

pub(crate) fn is_question_genuine(controller: &[u8], subject: &str, about: &str, seal: &str) -> bool {
    let Ok(seal) = BASE64.decode(seal) else { return false };
    UnparsedPublicKey::new(&ED25519, controller).verify(&signed_payload(subject, about), &seal).is_ok()
}

pub(crate) fn seal_capture(key: &[u8; MAC_KEY_BYTES], subject: &str, about: &str, bytes: &[u8]) -> String {
    let sealed = encode_with_length_prefixes(subject, about, bytes);
    BASE64.encode(hmac::sign(&derive_key(key, CAPTURE_ANSWER_PURPOSE), &sealed))
}

pub(crate) fn is_capture_genuine(
    key: &[u8; MAC_KEY_BYTES],
    subject: &str,
    about: &str,
    bytes: &[u8],
    seal: &str,
) -> bool {
    let Ok(seal) = BASE64.decode(seal) else { return false };
    let sealed = encode_with_length_prefixes(subject, about, bytes);
    hmac::verify(&derive_key(key, CAPTURE_ANSWER_PURPOSE), &sealed, &seal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};

    #[test]
    fn capture_seals_bind_addressee_and_bytes() {
        let signing = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(signing.as_ref()).expect("it is good");
        let public = pair.public_key().as_ref();
        let seal = seal_question(signing.as_ref(), "get.a", "{}").expect("sealed");
        assert!(is_question_genuine(public, "get.a", "{}", &seal));
        assert!(
            !is_question_genuine(public, "get.b", "{}", &seal)
                && !is_question_genuine(public, "get.a", "{ }", &seal)
        );
        let key = [7; MAC_KEY_BYTES];
        let seal = seal_capture(&key, "cap.a", "{}", b"bytes");
        assert!(is_capture_genuine(&key, "cap.a", "{}", b"bytes", &seal));
        assert!(!is_capture_genuine(&key, "cap.a", "{}", b"other", &seal));
        assert!(!is_capture_genuine(&[8; MAC_KEY_BYTES], "cap.a", "{}", b"bytes", &seal));
    }
}
