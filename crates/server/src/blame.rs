//! Says for each error of this crate what caused it: wrong options, missing rights, another program or the machine.

use crate::Error;
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Listen { source, .. } => Blame::from_io(source),
            Self::File { source, .. } => Blame::from_named_file(source),
            Self::Tls(_) | Self::Options(_) => Blame::Usage,
            Self::Runtime(_) => Blame::World,
        }
    }
}
