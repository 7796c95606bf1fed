//! `packetrig tap`: a link watched without being touched.

use crate::args::Tap as Arguments;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::Output;

pub(crate) fn perform(arguments: &Arguments, output: &mut Output) -> Result<Exit, Error> {
    let _ = (arguments, output);
    Err(Error::Usage("tap: not yet".into()))
}
