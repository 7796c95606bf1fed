//! Arguments that limit the stored files. They mean the same in every command that has them.

use super::quantities::{BytesArg, parse_positive_time};
use clap::Args;
use packetrig_units::{Nanos, RetentionLimits};

#[derive(Args, Clone, Debug)]
pub(crate) struct FileRetentionArgs {
    /// Delete the oldest files so that all files together stay below this size [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub(crate) keep: Option<BytesArg>,
    /// Delete files that are older than this, such as 72h [default: delete none]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub(crate) keep_for: Option<Nanos>,
    /// Delete the oldest files so that this much of the disk stays free [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub(crate) keep_free: Option<BytesArg>,
}

impl FileRetentionArgs {
    pub(crate) fn to_limits(&self) -> RetentionLimits {
        RetentionLimits {
            bytes: self.keep.map(|size| size.0),
            age: self.keep_for,
            free: self.keep_free.map(|size| size.0),
        }
    }
}
