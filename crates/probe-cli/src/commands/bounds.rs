//! Targets that a command may probe: targets of the owner's file, and targets that the user allows.

use crate::args::{BoundsArgs, ProbeTarget};
use crate::error::Error;
use packetrig_probe::{PermittedTarget, ProbePermit};
use packetrig_program::identity;
use packetrig_program::output::print_remark;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

/// The permit file of the machine's owner.
const OWNERS_FILE: &str = "/etc/packetrig/probe.toml";

/// Reads the permissions of the owner and the user together.
pub(super) fn read_permit(bounds: &BoundsArgs) -> Result<ProbePermit, Error> {
    let owner = read_owner_permit()?;
    let mut permit = match (&bounds.permit, owner) {
        (None, owner) => owner.unwrap_or_default(),
        (Some(file), owner) => {
            let named = read_permit_file(file)?
                .ok_or_else(|| Error::Usage(format!("cannot read {}: no such file", file.display())))?;
            // A file that the user names can only narrow the owner's permission: otherwise every user could
            // lift the owner's limits.
            match owner {
                Some(owner) => named.below_owner(owner),
                None => named,
            }
        }
    };
    // `--allow` opens small limits, and none for networks that the owner's file says `never` for.
    for network in &bounds.allow {
        permit.allow_network(*network);
    }
    Ok(permit)
}

/// Reads the permit of this machine's owner; `None` without a file.
pub fn read_owner_permit() -> Result<Option<ProbePermit>, Error> {
    read_permit_file(Path::new(OWNERS_FILE))
}

/// The permit in a file; `None` if there is no file.
fn read_permit_file(file: &Path) -> Result<Option<ProbePermit>, Error> {
    match std::fs::read_to_string(file) {
        Ok(text) => match ProbePermit::from_text(&text) {
            Ok(permit) => Ok(Some(permit)),
            Err(error) => Err(Error::Permit { file: file.to_owned(), error }),
        },
        // Only a missing file counts as no file. If the owner's file cannot be read, its limits must stay in force.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::unreadable_file(file, source)),
    }
}

/// Refuses two targets with one address: limits are per address, and two lines would share them without knowing.
pub(super) fn refuse_repeated_addresses(targets: &[ProbeTarget]) -> Result<(), Error> {
    let mut addresses = BTreeSet::new();
    // Targets are compared by address: two names can be one host.
    let twice = targets.iter().find(|target| !addresses.insert(target.address));
    twice.map_or(Ok(()), |target| {
        Err(Error::Usage(format!("{target} is given twice; limits are per target, so name each target once")))
    })
}

/// Prints the addresses that the system's resolver gave for names: limits and results are for addresses.
pub(super) fn print_addresses<'a>(targets: impl IntoIterator<Item = &'a ProbeTarget>) {
    for target in targets {
        if let Some(name) = &target.name {
            print_remark(format_args!("probe: {name} is {}", target.address));
        }
    }
}

/// The proof that an address may be probed now. A permission can have a last day.
pub(super) fn permit_target(permit: &ProbePermit, target: IpAddr) -> Result<PermittedTarget, Error> {
    Ok(permit
        .permit_target(target, &identity::format_utc_today())
        .map_err(packetrig_probe_io::Error::from)?)
}
