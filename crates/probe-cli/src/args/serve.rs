//! The arguments of `packetrig probe serve`.

use super::{PermittedTargetArgs, ReleaseFlags};
use clap::Args;
use packetrig_plan::PortLocation;
use packetrig_program::quantities::{ListenArg, parse_positive_number, parse_positive_time};
use packetrig_units::Nanos;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    packetrig probe serve eth1 --allow 192.0.2.0/24\n  \
    packetrig probe serve eth1 --permit lab.toml --socket /run/release/sock --allow-user 1000:3")]
pub struct ServeProbes {
    /// Interface that sends the packets: IF or NAMESPACE/IF
    #[arg(value_name = "IF")]
    pub interface: PortLocation,
    /// Path of the socket that programs connect to [default: release.sock in /run/packetrig, or in the
    /// runtime directory of an ordinary user; also PACKETRIG_RELEASE_SOCKET]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Also allow the user with this number to hand over packets, with a priority of at most PRIORITY (0 to
    /// 7) [default: only root and the user of this command; priority 0]
    #[arg(long, value_name = "UID[:PRIORITY]", num_args = 1, requires = "socket")]
    pub allow_user: Vec<UserGrant>,
    /// Maximum number of packets that one program may have in the queue
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = parse_positive_number::<u32>)]
    pub quota: u32,
    /// Refuse packets that are due more than this time in the future
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_positive_time)]
    pub horizon: Nanos,
    /// Stop after this time; a number alone is seconds [default: when interrupted]
    #[arg(long, value_name = "TIME", value_parser = parse_positive_time)]
    pub time: Option<Nanos>,
    /// Serve the counters to Prometheus at /metrics on ADDRESS:PORT; a PORT alone listens on 127.0.0.1
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<ListenArg>,
    #[command(flatten)]
    pub release: ReleaseFlags,
    #[command(flatten)]
    pub bounds: PermittedTargetArgs,
    /// Print the result as JSON
    #[arg(long, help_heading = "Results")]
    pub json: bool,
    #[command(flatten)]
    pub sandbox: packetrig_program::sandbox::SandboxFlags,
}

/// A user who may hand over packets, and the highest priority that the user may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserGrant {
    pub user: u32,
    pub priority: u8,
}

/// Highest priority of a packet.
// The priority field of HELLO has values from 0 to 7 (docs/book/release-protocol.md).
const MAX_PRIORITY: u8 = 7;

impl FromStr for UserGrant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, priority) = text.split_once(':').unwrap_or((text, "0"));
        let user = user
            .parse()
            .map_err(|_| format!("`{user}` is not a user ID; `id -u NAME` prints the ID of a user"))?;
        let priority = priority.parse().ok().filter(|priority| *priority <= MAX_PRIORITY);
        let priority = priority
            .ok_or_else(|| format!("the priority of `{text}` is not a number from 0 to {MAX_PRIORITY}"))?;
        Ok(Self { user, priority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_have_a_priority() {
        assert_eq!("1000".parse(), Ok(UserGrant { user: 1_000, priority: 0 }));
        assert_eq!("1000:7".parse(), Ok(UserGrant { user: 1_000, priority: 7 }));
        for wrong in ["me", "1000:8", "1000:", ":3", "-1"] {
            assert!(wrong.parse::<UserGrant>().is_err(), "{wrong}");
        }
    }
}
