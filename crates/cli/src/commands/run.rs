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
        None => super::quick::document(&arguments.flags)?,
    };
    if arguments.print_plan {
        output.text(&document.text);
        return Ok(Exit::Ok);
    }
    execution::execute(&request(arguments, document), output)
}

fn request(arguments: Arguments, document: Document) -> Request {
    Request {
        document,
        name: arguments.name,
        out: arguments.out,
        store: arguments.store.directory,
        capture: arguments.capture,
        confirmed: arguments.confirm,
        back_end: arguments.back_end.map(Into::into),
        max_loss: arguments.max_loss.0,
        drain: arguments.drain,
        seed: arguments.seed,
        json: arguments.json,
        quiet: arguments.quiet,
    }
}
