//! Proof of an epoch: the controller's signature over the number of the epoch.
//!
//! A node reports the highest epoch that it has seen to every new controller, and the controller's own epoch must be
//! above it. If a node could report any number, it could report the largest one, and then no controller could lead. So
//! a node must report the epoch with its proof. Without a valid proof, the controller reads the epoch as 0.

use super::BASE64;
use base64::Engine as _;
use packetrig_sys::private_files;
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use std::fs;
use std::path::PathBuf;

fn signed_payload(epoch: u64) -> Vec<u8> {
    let mut bytes = b"packetrig epoch 1\0".to_vec();
    bytes.extend(epoch.to_be_bytes());
    bytes
}

/// Signs an epoch. Returns the proof in the form in which it is sent and stored.
pub(crate) fn sign_epoch(key: &Ed25519KeyPair, epoch: u64) -> String {
    format!("{epoch:x}.{}", BASE64.encode(key.sign(&signed_payload(epoch))))
}

/// Verifies `proof` and returns the epoch that the controller has signed in it.
pub(crate) fn verify_epoch_proof(controller: &[u8], proof: &str) -> Option<u64> {
    let (epoch, signature) = proof.split_once('.')?;
    let epoch = u64::from_str_radix(epoch, 16).ok()?;
    let signature = BASE64.decode(signature).ok()?;
    UnparsedPublicKey::new(&ED25519, controller).verify(&signed_payload(epoch), &signature).ok()?;
    Some(epoch)
}

/// The proof of the highest epoch that a node has seen. With a file, it survives a restart of the node.
pub(crate) struct EpochProofs {
    controller: Vec<u8>,
    file: Option<PathBuf>,
    highest: Option<(u64, String)>,
}

impl EpochProofs {
    /// Loads the proof from `file`. Without a file, or if the key `controller` did not sign it, starts without a proof.
    pub(crate) fn load_from(controller: Vec<u8>, file: Option<PathBuf>) -> Self {
        let kept = file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        let proof = kept.map(|text| text.trim().to_owned());
        let highest = proof.and_then(|proof| Some((verify_epoch_proof(&controller, &proof)?, proof)));
        Self { controller, file, highest }
    }

    /// Stores a proof that came with a letter of the controller, if it is valid and its epoch is higher than before.
    pub(crate) fn store_proof(&mut self, proof: &str) -> std::io::Result<()> {
        // All commands of an epoch carry the same proof, and comparing is cheaper than verifying a signature.
        if self.highest.as_ref().is_some_and(|(_, known)| known == proof) {
            return Ok(());
        }
        let Some(epoch) = verify_epoch_proof(&self.controller, proof) else { return Ok(()) };
        // A message of an earlier epoch may arrive late.
        if self.highest.as_ref().is_some_and(|(highest, _)| epoch <= *highest) {
            return Ok(());
        }
        // The proof is stored in memory before the file is written: it counts even if the write fails.
        self.highest = Some((epoch, proof.to_owned()));
        self.file.as_ref().map_or(Ok(()), |file| private_files::replace_file(file, format!("{proof}\n")))
    }

    pub(crate) fn highest_proof(&self) -> Option<&str> {
        self.highest.as_ref().map(|(_, proof)| proof.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::rand::SystemRandom;
    use ring::signature::KeyPair;

    fn key() -> Ed25519KeyPair {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("a key");
        Ed25519KeyPair::from_pkcs8(key.as_ref()).expect("it is good")
    }

    #[test]
    fn only_the_controller_proves_an_epoch() {
        let (own, other) = (key(), key());
        let public = own.public_key().as_ref();
        let proof = sign_epoch(&own, 7);
        assert_eq!(verify_epoch_proof(public, &proof), Some(7));
        assert_eq!(verify_epoch_proof(public, &proof.replacen('7', "8", 1)), None);
        assert_eq!(verify_epoch_proof(public, &sign_epoch(&other, 7)), None);
        assert_eq!(verify_epoch_proof(public, "fffffffffffffffe."), None);
        assert_eq!(verify_epoch_proof(public, ""), None);
    }

    #[test]
    fn the_highest_proof_is_kept_over_a_restart() {
        let (own, place) = (key(), tempfile::TempDir::new().expect("a place"));
        let (public, file) = (own.public_key().as_ref().to_vec(), place.path().join("proof"));
        let mut proofs = EpochProofs::load_from(public.clone(), Some(file.clone()));
        assert_eq!(proofs.highest_proof(), None);
        for epoch in [3, 9, 4] {
            proofs.store_proof(&sign_epoch(&own, epoch)).expect("written");
        }
        proofs.store_proof("ffff.").expect("ignored");
        let again = EpochProofs::load_from(public.clone(), Some(file.clone()));
        assert_eq!(again.highest_proof().and_then(|proof| verify_epoch_proof(&public, proof)), Some(9));
        fs::write(&file, "nonsense").expect("written");
        assert_eq!(EpochProofs::load_from(public, Some(file)).highest_proof(), None);
    }
}
