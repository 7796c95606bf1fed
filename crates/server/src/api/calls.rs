//! The eleven calls of the OTG API: names, paths and messages, and the code that performs each call.

use super::flow_rows::FlowRows;
use super::{control, metrics, states};
use crate::shape::{self, DocumentProblems};
use crate::tester::{CaptureFile, RefusalKind, Tester, TesterRefusal};
use prost_reflect::MessageDescriptor;
use serde_json::{Value, json};
use tracing::{info, trace, warn};

/// One of the calls of the OTG API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiCall {
    SetConfig,
    GetConfig,
    UpdateConfig,
    AppendConfig,
    DeleteConfig,
    SetControlState,
    SetControlAction,
    GetMetrics,
    GetStates,
    GetCapture,
    GetVersion,
}

impl ApiCall {
    pub(crate) const ALL: [Self; 11] = [
        Self::SetConfig,
        Self::GetConfig,
        Self::UpdateConfig,
        Self::AppendConfig,
        Self::DeleteConfig,
        Self::SetControlState,
        Self::SetControlAction,
        Self::GetMetrics,
        Self::GetStates,
        Self::GetCapture,
        Self::GetVersion,
    ];

    /// Name of the call in gRPC.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SetConfig => "SetConfig",
            Self::GetConfig => "GetConfig",
            Self::UpdateConfig => "UpdateConfig",
            Self::AppendConfig => "AppendConfig",
            Self::DeleteConfig => "DeleteConfig",
            Self::SetControlState => "SetControlState",
            Self::SetControlAction => "SetControlAction",
            Self::GetMetrics => "GetMetrics",
            Self::GetStates => "GetStates",
            Self::GetCapture => "GetCapture",
            Self::GetVersion => "GetVersion",
        }
    }

    /// Method of the call in HTTP.
    pub(crate) const fn method(self) -> &'static str {
        match self {
            Self::GetConfig | Self::GetVersion => "GET",
            Self::UpdateConfig | Self::AppendConfig | Self::DeleteConfig => "PATCH",
            _ => "POST",
        }
    }

    /// Path of the call in HTTP.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::SetConfig | Self::GetConfig | Self::UpdateConfig => "/config",
            Self::AppendConfig => "/config/append",
            Self::DeleteConfig => "/config/delete",
            Self::SetControlState => "/control/state",
            Self::SetControlAction => "/control/action",
            Self::GetMetrics => "/monitor/metrics",
            Self::GetStates => "/monitor/states",
            Self::GetCapture => "/monitor/capture",
            Self::GetVersion => "/capabilities/version",
        }
    }

    /// Protobuf message of the request; `None` if the call has no input.
    pub(crate) fn request_message(self) -> Option<MessageDescriptor> {
        let name = match self {
            Self::SetConfig => "Config",
            Self::UpdateConfig => "ConfigUpdate",
            Self::AppendConfig => "ConfigAppend",
            Self::DeleteConfig => "ConfigDelete",
            Self::SetControlState => "ControlState",
            Self::SetControlAction => "ControlAction",
            Self::GetMetrics => "MetricsRequest",
            Self::GetStates => "StatesRequest",
            Self::GetCapture => "CaptureRequest",
            Self::GetConfig | Self::GetVersion => return None,
        };
        Some(shape::message_descriptor(name))
    }

    /// Protobuf message of the answer. It also defines the members of the answer in JSON.
    pub(crate) fn response_message(self) -> MessageDescriptor {
        shape::message_descriptor(match self {
            Self::GetConfig => "Config",
            Self::SetControlAction => "ControlActionResponse",
            Self::GetMetrics => "MetricsResponse",
            Self::GetStates => "StatesResponse",
            // Over HTTP the answer is the capture file itself; over gRPC this message contains the bytes of the file.
            Self::GetCapture => "GetCaptureResponse",
            Self::GetVersion => "Version",
            _ => "Warning",
        })
    }

    /// Returns true if the call changes the state of the tester. Such calls are performed one after the other.
    pub(crate) const fn changes_state(self) -> bool {
        // `GetCapture` stops the capture, and a ping is an order to the run, so both are changes.
        !matches!(self, Self::GetConfig | Self::GetMetrics | Self::GetStates | Self::GetVersion)
    }
}

/// A request as it arrived over HTTP or gRPC, not yet decoded.
pub(crate) trait RequestSource {
    /// Decodes and normalises the request, and lists all members and values that do not match the OTG model.
    fn normalise_request(&self) -> NormalisedRequest;

    /// The document as the client wrote it, as JSON that is not normalised; `None` if it cannot be read.
    fn original_document(&self) -> Option<String>;
}

/// A decoded request: its normalised document, and all members and values that do not match the OTG model.
#[derive(Debug)]
pub(crate) struct NormalisedRequest {
    pub(crate) document: String,
    pub(crate) complaints: DocumentProblems,
    /// True if the client accepts members of newer model versions in the answer without requesting them (gRPC).
    pub(crate) knows_new_members: bool,
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) enum ApiReply {
    Document(Value),
    /// Rows of flows. Clients poll them, and there may be thousands, so they are written without building [`Value`]s.
    Flows(FlowRows),
    File(CaptureFile),
}

/// Checks a request against the OTG model, performs the call and logs the outcome. A request that does not match the
/// model is refused, and the call is not performed.
pub(crate) fn perform_call(
    tester: &dyn Tester,
    call: ApiCall,
    source: impl RequestSource,
) -> Result<ApiReply, TesterRefusal> {
    let NormalisedRequest { document, complaints, knows_new_members } = source.normalise_request();
    let reply = if complaints.is_empty() {
        // The next steps need many times the memory of the request, so its bytes are freed now.
        drop(source);
        perform_normalised_call(tester, call, document, knows_new_members)
    } else {
        Err(build_shape_refusal(tester, call, complaints, &source))
    };
    match &reply {
        // The first error is enough for the log, because the client gets all of them.
        Err(refusal) => warn!(call = call.name(), why = refusal.errors.first(), "call refused"),
        Ok(_) if call.changes_state() => info!(call = call.name(), "call performed"),
        // Clients poll these calls, so their log level is lower than that of all other calls.
        Ok(_) => trace!(call = call.name(), "call answered"),
    }
    reply
}

/// Performs a call with a normalised document.
fn perform_normalised_call(
    tester: &dyn Tester,
    call: ApiCall,
    document: String,
    newest: bool,
) -> Result<ApiReply, TesterRefusal> {
    // A configuration may be long, so it is passed on as text. Other documents are parsed; a normalised
    // text is valid JSON.
    let value = || serde_json::from_str::<Value>(&document).unwrap_or_default();
    let reply = match call {
        // The tester's configuration is checked against the model, so that a bug in the tester cannot produce an
        // answer that clients fail to parse.
        ApiCall::GetConfig => return check_config_answer(call, tester.current_config()),
        ApiCall::SetConfig => build_warnings_json(tester.set_config(document)?),
        ApiCall::UpdateConfig => build_warnings_json(tester.update_config(value())?),
        ApiCall::AppendConfig => build_warnings_json(tester.append_config(value())?),
        ApiCall::DeleteConfig => build_warnings_json(tester.delete_config(value())?),
        ApiCall::SetControlState => {
            build_warnings_json(tester.set_state(control::read_control_state(&value())?)?)
        }
        ApiCall::SetControlAction => control::perform_action(tester, &value())?,
        ApiCall::GetMetrics => return metrics::answer_metrics(tester, &value(), newest),
        ApiCall::GetStates => states::answer_states(tester, &value())?,
        ApiCall::GetCapture => {
            let document = value();
            let wanted = states::read_capture_request(&document)?;
            return tester.open_capture(wanted.port, wanted.part).map(ApiReply::File);
        }
        ApiCall::GetVersion => build_version_json(),
    };
    Ok(ApiReply::Document(reply))
}

/// Builds the refusal of a request that does not match the OTG model. It lists all problems; for `SetConfig`, also
/// those that the tester finds.
fn build_shape_refusal(
    tester: &dyn Tester,
    call: ApiCall,
    complaints: DocumentProblems,
    source: &impl RequestSource,
) -> TesterRefusal {
    let paths: Vec<String> = complaints.iter().map(|complaint| complaint.path.clone()).collect();
    let mut errors = complaints.into_lines();
    // The tester checks the document as the client wrote it: normalising drops wrong members, and with them
    // the problems inside them.
    if call == ApiCall::SetConfig
        && let Some(original) = source.original_document()
    {
        let found = tester.config_problems(original);
        // `complaints` already names the wrong members at `paths`. The tester's errors about the
        // same members are dropped.
        errors.extend(
            found.into_iter().filter(|line| !paths.iter().any(|path| is_error_about_path(line, path))),
        );
    }
    TesterRefusal { kind: RefusalKind::Validation, errors }
}

/// Returns whether an error line (`PATH: MESSAGE`) is about this path. The empty path, the whole
/// document, matches no line.
fn is_error_about_path(line: &str, path: &str) -> bool {
    !path.is_empty() && line.strip_prefix(path).is_some_and(|rest| rest.starts_with(':'))
}

fn build_warnings_json(warnings: Vec<String>) -> Value {
    // The list `warnings` is always present, even if it is empty: snappi fails on the answer `{}`.
    json!({ "warnings": warnings })
}

/// Checks the configuration from the tester against the OTG model. A mismatch is an internal error, because
/// it is a bug.
fn check_config_answer(call: ApiCall, document: Value) -> Result<ApiReply, TesterRefusal> {
    let mut complaints = DocumentProblems::default();
    let settled = shape::normalise_document(document, &call.response_message(), &mut complaints);
    if complaints.is_empty() {
        return Ok(ApiReply::Document(settled));
    }
    Err(TesterRefusal { kind: RefusalKind::Internal, errors: complaints.into_lines() })
}

/// Builds the answer to `GetVersion`. A client checks that the version of its own model satisfies `api_spec_version`;
/// the Python and Go clients can both parse this form.
fn build_version_json() -> Value {
    json!({
        "api_spec_version": "^1.0.0",
        "sdk_version": env!("CARGO_PKG_VERSION"),
        "app_version": env!("CARGO_PKG_VERSION"),
    })
}
