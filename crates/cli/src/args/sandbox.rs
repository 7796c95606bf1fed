//! `--sandbox` and `--user` as typed.

use clap::{Args, ValueEnum};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxFlags {
    /// Give up all rights that are not needed once everything is open; `off` is for containers and tools that forbid it
    #[arg(long, value_enum, value_name = "WHICH", default_value = "on")]
    pub(crate) sandbox: SandboxMode,
}

/// Of programs that need no right once everything is open.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct UserFlags {
    #[command(flatten)]
    pub(crate) sandbox: SandboxFlags,
    /// As root: become this user (name or number) once everything is open [default: nobody, or the owner of --directory]
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SandboxMode {
    /// Every wall that this kernel has.
    On,
    /// None.
    Off,
}
