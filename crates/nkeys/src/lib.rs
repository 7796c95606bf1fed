//! Keys in the format of nats-server ("nkeys"): Ed25519, with a text that includes the kind of the key.
//!
//! async-nats signs with the crate `nkeys`, which would bring 22 crates and a second implementation of most of `ring`.
//! This crate has the part of it that async-nats uses, under its name (decision 0003).
#![forbid(unsafe_code)]

mod text;

use ring::signature::{Ed25519KeyPair, KeyPair as _};
use text::KeyText;

/// Reason why a key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no key, or its checksum is wrong.
    #[error("not the text of a key")]
    Text,
    /// The seed does not have 32 bytes, or is of a kind that this crate does not support.
    #[error("not a seed")]
    Seed,
}

/// Kind of a key; the value is the first byte of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPairType {
    // Base32 takes five bits for a letter. The upper five of this byte are the first one: 14 is O, 0 is A, 20 is U.
    /// Signs accounts: text begins with `O`.
    Operator = 14 << 3,
    /// Signs users: `A`.
    Account = 0,
    /// Logs in to the server: `U`.
    User = 20 << 3,
}

/// A key pair and its public text.
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
    /// Creates the key pair of this kind from these 32 secret bytes.
    pub fn new_from_raw(kind: KeyPairType, seed: [u8; 32]) -> Result<Self, Error> {
        // The seed comes without a public key to check it against.
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| Error::Seed)?;
        let public = KeyText { prefix: kind as u8, key: pair.public_key().as_ref() }.to_text();
        Ok(Self { pair, public })
    }

    /// Creates the pair of a seed as text, which begins with `S`.
    pub fn from_seed(seed: &str) -> Result<Self, Error> {
        let (kind, seed) = text::read_seed(seed)?;
        Self::new_from_raw(kind, seed)
    }

    /// The public key as text.
    pub fn public_key(&self) -> String {
        self.public.clone()
    }

    pub fn sign(&self, input: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.pair.sign(input).as_ref().to_vec())
    }
}

/// True if this is the text of a public key of that kind.
pub fn is_public_key(text: &str, kind: KeyPairType) -> bool {
    text::parse_public_key_kind(text).is_ok_and(|prefix| prefix == kind as u8)
}
