//! What fills the bytes behind the headers (the test tag takes the last of them).

use serde::{Deserialize, Serialize};

/// OTG's payload kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// These bytes, once or repeated; zeros after a pattern that is not repeated. Never empty.
    Fixed {
        /// The bytes.
        pattern: Vec<u8>,
        /// Fill the whole payload with them.
        repeat: bool,
    },
    /// 0, 1, 2, … as bytes.
    IncrementByte,
    /// 255, 254, … as bytes.
    DecrementByte,
    /// 0, 1, 2, … as big-endian 16-bit words.
    IncrementWord,
    /// 65535, 65534, … as big-endian 16-bit words.
    DecrementWord,
}
