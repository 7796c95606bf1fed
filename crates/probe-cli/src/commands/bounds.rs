//! The targets that a command may probe: those in the owner's permit file, in the file of `--permit`, and those of
//! `--allow`.

use crate::args::{PermittedTargetArgs, ProbeTarget};
use crate::error::Error;
use packetrig_probe::{PermittedTarget, ProbePermit};
use packetrig_program::identity;
use packetrig_program::output::print_remark;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

/// The permit file of this machine's owner.
const OWNER_PERMIT_FILE: &str = "/etc/packetrig/probe.toml";

/// Reads the owner's permit file and the user's permit file, and combines them with the networks of `--allow`.
pub(super) fn read_permit(bounds: &PermittedTargetArgs) -> Result<ProbePermit, Error> {
    let owner = read_owner_permit()?;
    let mut permit = match (&bounds.permit, owner) {
        (None, owner) => owner.unwrap_or_default(),
        (Some(file), owner) => {
            let named = read_permit_file(file)?
                .ok_or_else(|| Error::Usage(format!("cannot read {}: no such file", file.display())))?;
            // A file that the user names cannot exceed the owner's limits. Targets that the owner does not name
            // get the default limits at most.
            match owner {
                Some(owner) => named.limited_by_owner(owner),
                None => named,
            }
        }
    };
    // `--allow` permits a network with small limits. It does not permit a network that the owner's file lists
    // under `never`.
    for network in &bounds.allow {
        permit.allow_network(*network);
    }
    Ok(permit)
}

/// Reads the permit file of this machine's owner; `None` if there is no such file.
pub fn read_owner_permit() -> Result<Option<ProbePermit>, Error> {
    read_permit_file(Path::new(OWNER_PERMIT_FILE))
}

/// Reads a permit file; `None` if it does not exist.
fn read_permit_file(file: &Path) -> Result<Option<ProbePermit>, Error> {
    match std::fs::read_to_string(file) {
        Ok(text) => match ProbePermit::from_text(&text) {
            Ok(permit) => Ok(Some(permit)),
            Err(error) => Err(Error::Permit { file: file.to_owned(), error }),
        },
        // Only a missing file counts as no permit file. If the owner's file exists but cannot be read, the
        // command must fail: the owner's limits must not be ignored.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::unreadable_file(file, source)),
    }
}

/// Refuses two targets with the same address: limits apply per address, and the two lines would each
/// use the full limits.
pub(super) fn refuse_repeated_addresses(targets: &[ProbeTarget]) -> Result<(), Error> {
    let mut addresses = BTreeSet::new();
    // Targets are compared by address, because two names can belong to the same host.
    let twice = targets.iter().find(|target| !addresses.insert(target.address));
    twice.map_or(Ok(()), |target| {
        Err(Error::Usage(format!(
            "the address of {target} is given twice; limits apply per address: give it once"
        )))
    })
}

/// Prints the address that the system's resolver gave for each host name: limits and results apply to the address.
pub(super) fn print_resolved_addresses<'a>(targets: impl IntoIterator<Item = &'a ProbeTarget>) {
    for target in targets {
        if let Some(name) = &target.name {
            print_remark(format_args!("probe: {name} has the address {}", target.address));
        }
    }
}

/// Checks that an address may be probed today, because a permission can have a last day. The result proves
/// the permission to the functions that send.
pub(super) fn permit_target(permit: &ProbePermit, target: IpAddr) -> Result<PermittedTarget, Error> {
    Ok(permit
        .permit_target(target, &identity::format_utc_today())
        .map_err(packetrig_probe_io::Error::from)?)
}
