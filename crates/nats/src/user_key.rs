//! The key with which a member of the fleet logs in to the message server, derived from the private
//! key of its certificate.
//!
//! So only the owner of that private key can use the member's claims, and no second secret has to be stored.

use nkeys::{KeyPair, KeyPairType};
use ring::hmac;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

const USER_KEY_PURPOSE: &[u8] = b"packetrig user of the message server 1";

/// Derives the user key from `private_key` (PEM).
pub(crate) fn derive_user_key(private_key: &str) -> Result<KeyPair, String> {
    let private = PrivateKeyDer::from_pem_slice(private_key.as_bytes())
        .map_err(|_| "the private key cannot be used")?;
    let seed = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, private.secret_der()), USER_KEY_PURPOSE);
    // HMAC-SHA-256 gives 32 bytes, the length of the seed of an Ed25519 key.
    let seed = seed.as_ref().try_into().map_err(|_| "the hash has an unexpected length")?;
    KeyPair::new_from_raw(KeyPairType::User, seed).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_key_belongs_to_one_private_key() {
        let keys = [(); 2].map(|()| rcgen::KeyPair::generate().expect("a key").serialize_pem());
        let derived = |key: &str| derive_user_key(key).expect("derived").public_key();
        assert_eq!(derived(&keys[0]), derived(&keys[0]));
        assert_ne!(derived(&keys[0]), derived(&keys[1]));
        assert!(derive_user_key("no key").is_err());
    }
}
