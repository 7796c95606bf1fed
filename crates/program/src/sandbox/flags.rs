//! The options `--sandbox` and `--user`.

use clap::{Args, ValueEnum};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxFlags {
    /// Drop all rights that are not needed after start; `off` is for containers and tools that forbid it
    #[arg(long, value_enum, value_name = "WHICH", default_value = "on")]
    pub sandbox: SandboxMode,
}

/// Options of programs that need no rights after their start, so that they can become another user.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sandbox")]
pub struct UserFlags {
    #[command(flatten)]
    pub sandbox: SandboxFlags,
    /// When started as root, become this user (name or number) after start [default: nobody, or the owner of
    /// the directory that records are written to]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxMode {
    /// Use every protection that this kernel offers
    On,
    /// Keep all rights of the user that starts the program
    Off,
}
