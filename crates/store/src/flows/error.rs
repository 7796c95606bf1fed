//! What can go wrong with flow records at rest.

use std::path::PathBuf;

/// By whose fault: see each variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// World: a file or directory.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    /// User: a file that is no Parquet, or is damaged.
    #[error("{} cannot be read as Parquet: {source}", path.display())]
    Damaged { path: PathBuf, source: parquet::errors::ParquetError },
    /// User: Parquet, but no flow records.
    #[error("{} holds no flow records: {why}", path.display())]
    Foreign {
        path: PathBuf,
        /// What is missing or otherwise.
        why: String,
    },
    /// User: nothing to read.
    #[error("no flow records (*.parquet) in {}", path.display())]
    Nothing { path: PathBuf },
    /// World: a peer that cannot be reached, or stopped answering.
    #[error("{peer}: {source}")]
    Network { peer: String, source: std::io::Error },
    /// Peer: what it answered is a refusal, or makes no sense.
    #[error("{peer}: {said}")]
    Refused { peer: String, said: String },
    /// Peer: a Kafka broker that forgot which batches it has from us.
    #[error("{peer} lost count of our batches")]
    OutOfSequence { peer: String },
    /// User: what is no place for records.
    #[error("`{text}` is no place for flow records: {why}")]
    Target {
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Bug: records that cannot be written as Parquet.
    #[error("flow records cannot be encoded: {0}")]
    Encode(parquet::errors::ParquetError),
}

impl Error {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    pub(crate) fn network(peer: &str) -> impl FnOnce(std::io::Error) -> Self {
        let peer = peer.to_owned();
        move |source| Self::Network { peer, source }
    }

    pub(crate) fn damaged(path: impl Into<PathBuf>) -> impl FnOnce(parquet::errors::ParquetError) -> Self {
        let path = path.into();
        move |source| Self::Damaged { path, source }
    }
}
