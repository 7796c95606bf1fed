//! Counts refused requests and closed connections by cause.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reason why a request was refused or a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionCause {
    /// A client that needs a token sent none or a wrong one, or its token does not permit the call.
    Token,
    /// The request names a host that is not this server. An attacker may have made that name point here.
    Host,
    /// A web page of another origin made the request.
    Origin,
    /// The API does not accept the content type.
    ContentType,
    /// The head of the request is longer than it may be.
    LongHead,
    /// The TLS handshake failed, or took too long.
    Handshake,
    /// The first bytes, or the remaining bytes of a head, did not arrive in time.
    Head,
    /// A body arrived more slowly than the minimum rate.
    SlowBody,
    /// The client read a response more slowly than the minimum rate.
    SlowReader,
    /// The requests in progress need more memory than all requests together may use.
    Memory,
    /// Too many refused requests on one connection.
    TooManyRefusals,
    /// The client has as many busy connections as one client may have.
    PeerLimit,
    /// All connections that this client could get are busy, or belong to clients with precedence.
    AllTaken,
    /// Closed to make room for a new connection: it was idle the longest.
    MadeRoom,
    /// Closed after it was idle too long. An ordinary end.
    Idle,
}

impl RejectionCause {
    /// All causes, in the order of reports.
    pub const ALL: [Self; 15] = [
        Self::Token,
        Self::Host,
        Self::Origin,
        Self::ContentType,
        Self::LongHead,
        Self::Handshake,
        Self::Head,
        Self::SlowBody,
        Self::SlowReader,
        Self::Memory,
        Self::TooManyRefusals,
        Self::PeerLimit,
        Self::AllTaken,
        Self::MadeRoom,
        Self::Idle,
    ];

    /// Name of the cause as the label of a metric.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Host => "host",
            Self::Origin => "origin",
            Self::ContentType => "content_type",
            Self::LongHead => "long_head",
            Self::Handshake => "handshake",
            Self::Head => "head",
            Self::SlowBody => "slow_body",
            Self::SlowReader => "slow_reader",
            Self::Memory => "memory",
            Self::TooManyRefusals => "too_many_refusals",
            Self::PeerLimit => "peer_limit",
            Self::AllTaken => "all_taken",
            Self::MadeRoom => "made_room",
            Self::Idle => "idle",
        }
    }

    /// Text of the cause in reports. It follows the number of refusals.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Token => "without the token",
            Self::Host => "for an unknown host name",
            Self::Origin => "from web pages of other origins",
            Self::ContentType => "with a wrong content type",
            Self::LongHead => "with a request head that is too long",
            Self::Handshake => "without a complete TLS handshake",
            Self::Head => "without a request in time",
            Self::SlowBody => "with a body that arrived too slowly",
            Self::SlowReader => "that read the response too slowly",
            Self::Memory => "because the memory for requests was full",
            Self::TooManyRefusals => "after too many refused requests",
            Self::PeerLimit => "beyond the connection limit of one client",
            Self::AllTaken => "while all connections were in use",
            Self::MadeRoom => "closed while idle to make room for new connections",
            Self::Idle => "closed after being idle",
        }
    }
}

/// The counters, which all connections share.
#[derive(Debug, Default)]
pub(crate) struct RejectionCounters([AtomicU64; RejectionCause::ALL.len()]);

impl RejectionCounters {
    pub(crate) fn count_rejection(&self, cause: RejectionCause) {
        // Relaxed: reports only need totals, not the order of refusals.
        self.0[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read_counts(&self) -> RejectionCounts {
        RejectionCounts(self.0.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// Number of refusals and closed connections since the start of the server, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectionCounts([u64; RejectionCause::ALL.len()]);

impl RejectionCounts {
    pub const fn count_of_cause(&self, cause: RejectionCause) -> u64 {
        self.0[cause as usize]
    }

    /// Returns the counts with that of [`RejectionCause::Idle`] set to 0, because it is an ordinary
    /// end of a connection.
    pub(crate) fn without_ordinary_causes(mut self) -> Self {
        self.0[RejectionCause::Idle as usize] = 0;
        self
    }
}

impl fmt::Display for RejectionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for cause in RejectionCause::ALL {
            let count = self.count_of_cause(cause);
            if count > 0 {
                write!(f, "{separator}{count} {}", cause.text())?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_counts_are_listed_by_cause() {
        let counters = RejectionCounters::default();
        assert_eq!(counters.read_counts().to_string(), "");
        for cause in [RejectionCause::Idle, RejectionCause::Token, RejectionCause::Token] {
            counters.count_rejection(cause);
        }
        assert_eq!(counters.read_counts().to_string(), "2 without the token, 1 closed after being idle");
        assert_eq!(counters.read_counts().without_ordinary_causes().to_string(), "2 without the token");
        for (at, cause) in RejectionCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at);
        }
    }
}
