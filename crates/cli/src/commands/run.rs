//! `packetrig run`: a document, or flags that make one, becomes a request to execute.

use super::execution::{self, Request};
use crate::args::Run as Arguments;
use crate::document::Document;
use crate::error::Error;
use crate::exit::Exit;
use crate::fleet_place::{FleetPlace, is_named};
use crate::output::Output;
use packetrig_fleet::places;

pub(crate) fn perform(arguments: Arguments, output: &mut Output) -> Result<Exit, Error> {
    let document = match &arguments.plan {
        Some(file) => Document::read(file)?,
        None => from_flags(&arguments)?,
    };
    if arguments.execution.print_plan {
        return execution::print_plan(&document, &arguments.execution.fleet, output);
    }
    let request = Request { seed: arguments.seed, ..Request::told(document, arguments.execution) };
    execution::execute(&request, output)
}

/// The document that flags mean; on a fleet, `any-LABEL*all` is as many ports as there are now.
fn from_flags(arguments: &Arguments) -> Result<Document, Error> {
    let fleet = &arguments.execution.fleet;
    let place = FleetPlace::of(fleet)?;
    let place = if is_named(fleet) { place.existing()? } else { place };
    if !place.exists() {
        return super::quick::document(&arguments.flags, None);
    }
    let how_many = |label: &str| {
        let (members, now) = super::fleet::who_is_there(&place).ok()?;
        Some(places::free(label.trim_start_matches("any-"), &members, now))
    };
    super::quick::document(&arguments.flags, Some(&how_many))
}
