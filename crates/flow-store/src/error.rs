//! Errors of stored flow records.

use packetrig_units::Blame;
use std::path::PathBuf;

/// An error of stored flow records; [`Error::blame`] names the party at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or directory that cannot be used.
    #[error("cannot {what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    /// The file is not Parquet, or is damaged.
    #[error("{} is not a Parquet file, or it is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    /// A Parquet file that is not a file of flow records.
    #[error("{} is not a file of flow records: {why}", path.display())]
    Foreign { path: PathBuf, why: String },
    #[error("no flow records (*.parquet) in {}", path.display())]
    Nothing { path: PathBuf },
    /// The caller has cancelled the query.
    #[error("the query was cancelled")]
    GivenUp,
    /// A server that cannot be reached or stopped answering, or standard output that cannot be written.
    #[error("{peer}: {source}")]
    Network { peer: String, source: std::io::Error },
    /// A server that refused a request, or gave an invalid answer.
    #[error("{peer}: {said}")]
    Refused { peer: String, said: String },
    /// A Kafka broker that does not accept this producer's sequence numbers.
    #[error("{peer} no longer accepts the sequence numbers of the batches; it may have restarted")]
    OutOfSequence { peer: String },
    /// A text that is not a valid target for flow records.
    #[error("`{text}` is not a valid target for flow records: {why}")]
    Target { text: String, why: &'static str },
    /// A names file that is not valid.
    #[error("{} is not a valid names file: {why}", path.display())]
    Names { path: PathBuf, why: String },
    /// Events of alerts that could not be delivered; an event counts once for each destination.
    #[error("alert events were not delivered; number of events: {count}")]
    UndeliveredAlerts { count: u64 },
    /// Records that cannot be written as Parquet.
    #[error("cannot encode flow records as Parquet: {0}; this is a bug in packetrig")]
    Encode(parquet::errors::ParquetError),
}

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            // The user has given the path, so a missing file means a wrong path and is not a fault of the system.
            Self::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Blame::Usage,
            Self::File { source, .. } => Blame::from_io(source),
            Self::Damaged { .. }
            | Self::Foreign { .. }
            | Self::Nothing { .. }
            | Self::GivenUp
            | Self::Names { .. }
            | Self::Target { .. } => Blame::Usage,
            Self::Network { .. } | Self::UndeliveredAlerts { .. } => Blame::World,
            Self::Refused { .. } | Self::OutOfSequence { .. } => Blame::Peer,
            Self::Encode(_) => Blame::Bug,
        }
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    pub(crate) fn network(peer: &str) -> impl FnOnce(std::io::Error) -> Self {
        let peer = peer.to_owned();
        move |source| Self::Network { peer, source }
    }

    pub(crate) fn damaged_file(
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(parquet::errors::ParquetError) -> Self {
        let path = path.into();
        move |source| Self::Damaged { path, why: parquet_error_text(&source) }
    }
}

/// The library's message without the words "Parquet error: ", which begin most of its messages.
fn parquet_error_text(error: &parquet::errors::ParquetError) -> String {
    let words = error.to_string();
    words.strip_prefix("Parquet error: ").unwrap_or(&words).to_owned()
}
