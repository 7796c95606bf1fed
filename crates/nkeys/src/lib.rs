//! Keys in the format of nats-server ("nkeys"): Ed25519 keys as text, whose first letter is the kind of the key.
//!
//! async-nats signs with the public crate `nkeys`, which would bring 22 crates and a second implementation of most of
//! `ring`. This crate replaces it under the same name, with only the functions that async-nats calls (decision 0003).
#![forbid(unsafe_code)]

mod text;

use ring::signature::{Ed25519KeyPair, KeyPair as _};
use text::KeyText;

/// Reason why a key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no key, or its checksum is wrong.
    #[error("the text is not a NATS key (nkey), or its checksum is wrong")]
    Text,
    /// The seed does not have 32 bytes, or is of a kind that this crate does not support.
    #[error("the text is not the seed (secret part) of an operator, account or user key")]
    Seed,
}

/// Kind of a key; the value is the first byte of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPairType {
    // Base32 encodes five bits in each letter. The first letter is the upper five bits: 14 is O, 0 is A, 20 is U.
    /// Signs accounts. The text begins with `O`.
    Operator = 14 << 3,
    /// Signs users. The text begins with `A`.
    Account = 0,
    /// Logs in to the server. The text begins with `U`.
    User = 20 << 3,
}

/// A key pair, with its public key as text.
pub struct KeyPair {
    pair: Ed25519KeyPair,
    public: String,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair").field("public", &self.public).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// Creates a key pair of this kind from 32 secret bytes.
    pub fn new_from_raw(kind: KeyPairType, seed: [u8; 32]) -> Result<Self, Error> {
        // The seed comes without a public key to check it against.
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| Error::Seed)?;
        let public = KeyText { prefix: kind as u8, key: pair.public_key().as_ref() }.to_text();
        Ok(Self { pair, public })
    }

    /// Creates a key pair from the text of a seed (the secret key), which begins with `S`.
    pub fn from_seed(seed: &str) -> Result<Self, Error> {
        let (kind, seed) = text::read_seed(seed)?;
        Self::new_from_raw(kind, seed)
    }

    /// Returns the public key as text.
    pub fn public_key(&self) -> String {
        self.public.clone()
    }

    pub fn sign(&self, input: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.pair.sign(input).as_ref().to_vec())
    }
}

/// Returns true if this is the text of a public key of that kind.
pub fn is_public_key(text: &str, kind: KeyPairType) -> bool {
    text::parse_public_key_kind(text).is_ok_and(|prefix| prefix == kind as u8)
}
