//! Commands to the server that keys make: start, stop, pause, resume, and new rates of streams.

use super::facts::make_printable;
use serde_json::{Value, json};

/// A change of the named streams; no names mean all streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamCommand {
    pub(super) change: OrderedChange,
    pub(super) streams: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OrderedChange {
    Start,
    Stop,
    Pause,
    Resume,
    /// Percent of the current rate.
    Percent(u64),
    /// A rate as the user has typed it.
    Rate(String),
}

impl StreamCommand {
    /// Path of the API call.
    pub(super) fn path(&self) -> &'static str {
        match self.change {
            // The API changes the rates and the states of streams through different calls.
            OrderedChange::Percent(_) | OrderedChange::Rate(_) => "/api/v1/rates",
            _ => "/api/v1/streams",
        }
    }

    pub(super) fn body(&self) -> Value {
        let mut body = json!({ "streams": self.streams });
        let (member, value): (_, Value) = match &self.change {
            OrderedChange::Start => ("change", "start".into()),
            OrderedChange::Stop => ("change", "stop".into()),
            OrderedChange::Pause => ("change", "pause".into()),
            OrderedChange::Resume => ("change", "resume".into()),
            OrderedChange::Percent(percent) => ("percent", (*percent).into()),
            OrderedChange::Rate(rate) => ("rate", rate.clone().into()),
        };
        // The server accepts exactly one of `change`, `percent` and `rate`.
        body[member] = value;
        body
    }

    /// Describes the command, for the line of messages.
    pub(super) fn description(&self) -> String {
        let streams = match self.streams.as_slice() {
            [] => "all streams".to_owned(),
            [one] => make_printable(one),
            several => format!("{} streams", several.len()),
        };
        match &self.change {
            OrderedChange::Start => format!("start {streams}"),
            OrderedChange::Stop => format!("stop {streams}"),
            OrderedChange::Pause => format!("pause {streams}"),
            OrderedChange::Resume => format!("resume {streams}"),
            OrderedChange::Percent(percent) => format!("change the rate of {streams} to {percent} %"),
            OrderedChange::Rate(rate) => format!("set the rate of {streams} to {}", make_printable(rate)),
        }
    }
}
