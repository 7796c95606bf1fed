//! The sandboxes of long-running commands that read data from other machines. [`needs`] lists the
//! rights of each command.

pub(crate) mod needs;

pub(crate) use packetrig_program::sandbox::{begin_sandbox, run_confined};

use crate::args::SandboxFlags;
use crate::error::Error;
use crate::output::print_remark;
use packetrig_sys::sandbox::{self, ProcessCapabilities};

/// Leaves an agent's supervisor only the capabilities that its worker starts with, unless the sandbox is off.
pub(crate) fn limit_supervisor_rights(flags: &SandboxFlags, has_namespaces: bool) -> Result<(), Error> {
    Ok(packetrig_program::sandbox::limit_rights(flags, needs::supervisor_capabilities(has_namespaces))?)
}

/// Leaves `fleet up` only these capabilities, and prints those that the kernel then reports.
pub(crate) fn limit_fleet_up_rights(kept: ProcessCapabilities) -> Result<(), Error> {
    sandbox::limit_rights(kept)?;
    // The rights are read from the kernel, for all threads: packetrig prints the rights that the kernel enforces.
    let status = sandbox::read_thread_statuses(std::process::id()).unwrap_or_default();
    let effective = status.iter().fold(0, |all, thread| all | thread.effective);
    print_remark(format_args!("fleet: sandbox: {}, no_new_privs", ProcessCapabilities::from_bits(effective)));
    Ok(())
}
