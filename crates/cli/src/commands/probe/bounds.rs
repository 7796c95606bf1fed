//! Whom a command may probe: the owner's file, widened by what was typed.

use crate::args::{BoundsArgs, ProbeTarget};
use crate::error::Error;
use crate::identity;
use crate::output::remark;
use packetrig_probe::{PermittedTarget, ProbePermit};
use packetrig_sys::clock;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

/// Where the owner of a machine says what may be probed from it.
const OWNERS_FILE: &str = "/etc/packetrig/probe.toml";

/// What the owner and the user allow together.
pub(super) fn permit(bounds: &BoundsArgs) -> Result<ProbePermit, Error> {
    let owner = read(Path::new(OWNERS_FILE))?;
    let mut permit = match (&bounds.permit, owner) {
        (None, owner) => owner.unwrap_or_default(),
        (Some(file), owner) => {
            let missing =
                || Error::ReadFile { name: file.display().to_string(), source: ErrorKind::NotFound.into() };
            let named = read(file)?.ok_or_else(missing)?;
            // What the owner says holds whatever file is named.
            match owner {
                Some(owner) => named.under(owner),
                None => named,
            }
        }
    };
    for network in &bounds.allow {
        permit.allow(*network);
    }
    Ok(permit)
}

/// What a file allows; `None` if there is none.
fn read(file: &Path) -> Result<Option<ProbePermit>, Error> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(ProbePermit::from_text(&text)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::ReadFile { name: file.display().to_string(), source }),
    }
}

/// Refuses a target that is named twice: the limits are those of a target, not of a name.
pub(super) fn distinct(targets: &[ProbeTarget]) -> Result<(), Error> {
    let is_before = |nth: usize, target: &ProbeTarget| {
        targets[..nth].iter().any(|before| before.address == target.address)
    };
    let twice = targets.iter().enumerate().find(|(nth, target)| is_before(*nth, target));
    twice.map_or(Ok(()), |(_, target)| Err(Error::Usage(format!("{target} is given twice; limits are per target, so name each target once"))))
}

/// Tells the user which addresses the system's resolver gave for names: limits are for addresses, and so are results.
pub(super) fn tell_addresses<'a>(targets: impl IntoIterator<Item = &'a ProbeTarget>) {
    for target in targets {
        if let Some(name) = &target.name {
            remark(format_args!("probe: {name} is {}", target.address));
        }
    }
}

/// The proof that an address may be probed now.
pub(super) fn permitted(permit: &ProbePermit, target: IpAddr) -> Result<PermittedTarget, Error> {
    let now = identity::date(clock::wall_clock_ns());
    let today = now.split(' ').next().unwrap_or_default();
    Ok(permit.permitted(target, today).map_err(packetrig_prober::Error::from)?)
}
