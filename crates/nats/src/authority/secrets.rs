//! Secrets that let nodes in: limited in time and number, kept as hashes, taken back by their label.

use super::{Error, FleetAuthority, hex, random};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const FILE: &str = "secrets.json";

/// What lets a node in. It is shown once and not kept.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinSecret(pub String);

impl std::fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a secret is good for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretAllowance {
    /// What it is called, to take it back.
    pub label: String,
    /// SHA-256 of the secret, hexadecimal.
    hash: String,
    /// How many nodes may still come; `None` is any number.
    pub uses: Option<u32>,
    /// Until when, in seconds since 1970; `None` is for ever.
    pub until: Option<u64>,
}

pub(super) fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

impl FleetAuthority {
    /// Secrets that are kept, valid or not.
    pub fn allowances(&self) -> Result<Vec<SecretAllowance>, Error> {
        if !self.files.has(FILE) {
            return Ok(Vec::new());
        }
        let text = self.files.read(FILE)?;
        serde_json::from_str(&text).map_err(|_| Error::Damaged(FILE.to_owned()))
    }

    fn keep(&self, allowances: &[SecretAllowance]) -> Result<(), Error> {
        let text = serde_json::to_string(allowances).map_err(|_| Error::Damaged(FILE.to_owned()))?;
        self.files.write(FILE, &text)
    }

    /// A new secret for `uses` nodes, until a time in seconds since 1970.
    pub fn allow(&self, label: &str, uses: Option<u32>, until: Option<u64>) -> Result<JoinSecret, Error> {
        // 128 random bits: a plain hash of them cannot be searched for.
        let secret = hex(&random::<16>()?);
        let _lock = self.lock()?;
        let mut allowances = self.allowances()?;
        allowances.push(SecretAllowance { label: label.to_owned(), hash: hash(&secret), uses, until });
        self.keep(&allowances)?;
        Ok(JoinSecret(secret))
    }

    /// Takes back the secrets of that label; says how many.
    pub fn revoke(&self, label: &str) -> Result<usize, Error> {
        let _lock = self.lock()?;
        let mut allowances = self.allowances()?;
        let before = allowances.len();
        allowances.retain(|it| it.label != label);
        self.keep(&allowances)?;
        Ok(before - allowances.len())
    }

    /// Whether one more node may come by `secret` at `now` (seconds since 1970).
    pub(super) fn check_secret(&self, secret: &str, now: u64) -> Result<(), Error> {
        let is_good = self.allowances()?.iter().any(|it| it.fits(secret, now));
        if is_good { Ok(()) } else { Err(Error::Secret) }
    }

    /// Uses `secret` up by one node at `now` (seconds since 1970). The caller holds the lock.
    pub(super) fn use_up(&self, secret: &str, now: u64) -> Result<(), Error> {
        let mut allowances = self.allowances()?;
        let found = allowances.iter_mut().find(|it| it.fits(secret, now)).ok_or(Error::Secret)?;
        found.uses = found.uses.map(|left| left.saturating_sub(1));
        self.keep(&allowances)
    }

    /// Undoes one use of `secret`. One that was taken back meanwhile stays so. The caller holds the lock.
    pub(super) fn give_back(&self, secret: &str) -> Result<(), Error> {
        let mut allowances = self.allowances()?;
        let used = hash(secret);
        for allowance in allowances.iter_mut().filter(|it| it.hash == used) {
            allowance.uses = allowance.uses.map(|left| left.saturating_add(1));
        }
        self.keep(&allowances)
    }
}

impl SecretAllowance {
    fn fits(&self, secret: &str, now: u64) -> bool {
        // Hashes are compared: how long it takes says nothing about the secret.
        self.hash == hash(secret) && self.uses != Some(0) && self.until.is_none_or(|until| now < until)
    }
}
