//! Reasons why a meter cannot join a group.

use packetrig_flow::group::ElectionOptionsError;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    #[error(transparent)]
    Options(#[from] ElectionOptionsError),
    #[error("the group has no name; give one that all its meters use")]
    NoName,
    #[error("the group `{0}` has no peers; name the addresses of the other meters, or a multicast group")]
    NoPeers(String),
    /// One socket cannot serve both families.
    #[error(
        "peer {peer} and the listen address {own} have different address families; use only IPv4 or only IPv6"
    )]
    Family { peer: std::net::SocketAddr, own: std::net::SocketAddr },
    #[error("cannot read the group's key file {}", path.display())]
    KeyFile { path: PathBuf, source: packetrig_sys::private_files::SecretFileError },
    #[error("the key file {} contains no valid key; write at least 16 bytes in hexadecimal", path.display())]
    Key { path: PathBuf },
    /// A system call for the socket, an interface or keepalived's pipe failed.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// The system refused to start another thread.
    #[error("cannot start the thread that exchanges advertisements with the group")]
    Thread(#[source] std::io::Error),
}
