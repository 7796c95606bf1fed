//! Classes of failures by the party at fault. A command's exit code and a node's report to its controller
//! both follow from the class.

use serde::{Deserialize, Serialize};
use std::io;

/// The party at fault for a failure.
///
/// Every error type of the program has a method `blame` that returns a `Blame` for each variant. It has no default arm,
/// so a new variant does not compile without a decision. The exit code follows from the blame
/// (`docs/book/exit-codes.md`). A fault that a node reports to the controller contains the blame, so a command ends
/// with the same code wherever the fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    /// The command line, or a file, run or name that the user gave there.
    Usage,
    /// The plan, including requests that its ports cannot fulfil. Protocol 3.0 of the fleet called this `user`.
    #[serde(alias = "user")]
    Plan,
    /// The kernel, an interface, the disk, the network.
    World,
    /// The user lacks rights for a needed action.
    Rights,
    /// Another process or another run uses a needed resource.
    Busy,
    /// The owner or user has not allowed the use of this interface, node or target.
    Unconfirmed,
    /// Another node or program that was silent, late, or contradicted itself.
    Peer,
    /// A defect of packetrig.
    Bug,
}

impl Blame {
    /// Classifies a failed system call on a file, socket or process.
    pub fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Rights,
            io::ErrorKind::AddrInUse => Self::Busy,
            _ => Self::World,
        }
    }

    /// Classifies a failure on a file or directory that the user named: a name that does not exist is the user's error.
    pub fn from_named_file(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            // A path with a zero byte is `InvalidInput`, and a file that is no UTF-8 text is `InvalidData` to
            // `read_to_string`: in both cases the user named the wrong file.
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData => Self::Usage,
            _ => Self::from_io(error),
        }
    }
}

/// Returns the message of an error and its causes. A message that the text already contains is left out, because some
/// errors repeat the message of their cause.
pub fn message_with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_the_protocol_before_is_understood() {
        assert_eq!(serde_json::from_str::<Blame>("\"user\"").unwrap(), Blame::Plan);
        assert_eq!(serde_json::to_string(&Blame::Unconfirmed).unwrap(), "\"unconfirmed\"");
    }

    #[test]
    fn permission_and_busy_errors_get_own_blame() {
        let blame = |kind: io::ErrorKind| Blame::from_io(&kind.into());
        assert_eq!(blame(io::ErrorKind::PermissionDenied), Blame::Rights);
        assert_eq!(blame(io::ErrorKind::AddrInUse), Blame::Busy);
        assert_eq!(blame(io::ErrorKind::NotFound), Blame::World);
        let named = |kind: io::ErrorKind| Blame::from_named_file(&kind.into());
        assert_eq!(named(io::ErrorKind::NotFound), Blame::Usage);
        assert_eq!(named(io::ErrorKind::PermissionDenied), Blame::Rights);
        assert_eq!(named(io::ErrorKind::StorageFull), Blame::World);
    }
}
