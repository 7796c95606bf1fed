//! `packetrig run`: a document, or flags that make one, becomes a request to execute.

use super::execution::{self, Request};
use crate::args::Run as Arguments;
use crate::document::Document;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::Output;

pub(crate) fn perform(arguments: Arguments, output: &mut Output) -> Result<Exit, Error> {
    let document = match &arguments.plan {
        Some(file) => Document::read(file)?,
        None => super::quick::document(&arguments.flags, None)?,
    };
    if arguments.execution.print_plan {
        output.text(&document.text);
        return Ok(Exit::Ok);
    }
    let request = Request { seed: arguments.seed, ..Request::told(document, arguments.execution) };
    execution::execute(&request, output)
}
