//! Secrets that admit nodes. Each can have an expiry time and a maximum number of uses. They are stored as hashes, and
//! revoked by their label.

use super::{Error, FleetAuthority, encode_hex, random_bytes};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

const SECRETS_FILE_NAME: &str = "secrets.json";

/// A secret that admits nodes. It is shown once; only its hash is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinSecret(pub String);

impl std::fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Stored record of a secret: its hash, and the conditions under which it is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretAllowance {
    /// The label that is used to revoke the secret.
    pub label: String,
    /// SHA-256 of the secret, hexadecimal.
    hash: String,
    /// Number of nodes that the secret still admits; `None`: any number.
    pub uses: Option<u32>,
    /// Time at which the secret expires, in seconds since 1970; `None`: never.
    pub until: Option<u64>,
}

pub(super) fn hash_secret(secret: &str) -> String {
    encode_hex(&Sha256::digest(secret.as_bytes()))
}

impl FleetAuthority {
    /// Reads the records of all secrets, valid or not.
    pub fn read_allowances(&self) -> Result<Vec<SecretAllowance>, Error> {
        if !self.files.has_file(SECRETS_FILE_NAME) {
            return Ok(Vec::new());
        }
        let text = self.files.read_file(SECRETS_FILE_NAME)?;
        serde_json::from_str(&text).map_err(|_| Error::Damaged(SECRETS_FILE_NAME.to_owned()))
    }

    fn write_allowances(&self, allowances: &[SecretAllowance]) -> Result<(), Error> {
        let text =
            serde_json::to_string(allowances).map_err(|_| Error::Damaged(SECRETS_FILE_NAME.to_owned()))?;
        self.files.write_file(SECRETS_FILE_NAME, &text)
    }

    /// Creates a secret that admits `uses` nodes until the time `until`, in seconds since 1970. `None` means no limit.
    pub fn create_secret(
        &self,
        label: &str,
        uses: Option<u32>,
        until: Option<u64>,
    ) -> Result<JoinSecret, Error> {
        // The secret has 128 random bits, so it cannot be found from its hash by trying secrets.
        let secret = encode_hex(&random_bytes::<16>()?);
        let _lock = self.lock_directory()?;
        let mut allowances = self.read_allowances()?;
        allowances.push(SecretAllowance { label: label.to_owned(), hash: hash_secret(&secret), uses, until });
        self.write_allowances(&allowances)?;
        Ok(JoinSecret(secret))
    }

    /// Revokes the secrets with that label; returns their number.
    pub fn revoke_secrets(&self, label: &str) -> Result<usize, Error> {
        let _lock = self.lock_directory()?;
        let mut allowances = self.read_allowances()?;
        let before = allowances.len();
        allowances.retain(|it| it.label != label);
        self.write_allowances(&allowances)?;
        Ok(before - allowances.len())
    }

    /// Checks that `secret` admits one more node at `now` (seconds since 1970).
    pub(super) fn check_secret(&self, secret: &str, now: u64) -> Result<(), Error> {
        let is_good = self.read_allowances()?.iter().any(|it| it.is_valid_for(secret, now));
        if is_good { Ok(()) } else { Err(Error::Secret) }
    }

    /// Counts one use of `secret` at `now` (seconds since 1970). The caller holds the lock.
    pub(super) fn use_secret_once(&self, secret: &str, now: u64) -> Result<(), Error> {
        let mut allowances = self.read_allowances()?;
        let found = allowances.iter_mut().find(|it| it.is_valid_for(secret, now)).ok_or(Error::Secret)?;
        found.uses = found.uses.map(|left| left.saturating_sub(1));
        self.write_allowances(&allowances)
    }

    /// Undoes one use of `secret`. A secret that was revoked meanwhile stays revoked. The caller holds the lock.
    pub(super) fn restore_secret_use(&self, secret: &str) -> Result<(), Error> {
        let mut allowances = self.read_allowances()?;
        let used = hash_secret(secret);
        for allowance in allowances.iter_mut().filter(|it| it.hash == used) {
            allowance.uses = allowance.uses.map(|left| left.saturating_add(1));
        }
        self.write_allowances(&allowances)
    }
}

impl SecretAllowance {
    fn is_valid_for(&self, secret: &str, now: u64) -> bool {
        // Only hashes are compared, so the duration of the comparison reveals nothing about the secret.
        self.hash == hash_secret(secret) && self.uses != Some(0) && self.until.is_none_or(|until| now < until)
    }
}
