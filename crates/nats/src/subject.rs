//! The subjects of the fabric: the subject of each message, and the rights to publish and subscribe.
//!
//! A node's name is one word of its subjects, so the server can permit each node its own subjects only. The controller
//! may use the subjects of all nodes.
//!
//! Invariant: a node name or a run ID is exactly one word of a subject: it contains no dot, and no wildcard.

use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::{MessageBody, NodeName};

/// Subject of letters from the controller to all nodes.
pub const ALL_NODES_SUBJECT: &str = "cmd.all";
/// The stream that keeps results until they are confirmed.
pub const RESULTS_STREAM: &str = "res";
/// Name of the JetStream key-value bucket with the records of the fleet.
pub const RECORDS_BUCKET: &str = "fleet";
/// Longest name of a node.
const MAX_NODE_NAME_BYTES: usize = 32;
/// Longest id of a run.
const MAX_RUN_ID_BYTES: usize = 100;

/// True for a valid name of a node: 1 to 32 of `[a-z0-9-]`.
pub fn is_node_name(name: &str) -> bool {
    (1..=MAX_NODE_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Checks a node's name and returns it as a word of a subject.
pub(crate) fn node_subject_token(name: &NodeName) -> Result<&str, Error> {
    if is_node_name(&name.0) { Ok(&name.0) } else { Err(Error::Unknown(name.clone())) }
}

/// Converts any text to a word of a subject; different texts may become the same word.
pub(crate) fn to_subject_word(text: &str) -> String {
    if text.is_empty() {
        return "_".to_owned();
    }
    // A dot would begin another word, and `*` and `>` are wildcards.
    text.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

/// True if [`to_subject_word`] can have made this word from the ID of a run. The server does not check this: it also
/// accepts subjects with other words, even with wildcards.
pub(crate) fn is_run_word(word: &str) -> bool {
    word.len() <= MAX_RUN_ID_BYTES && to_subject_word(word) == word
}

/// Subject of commands for a node. All letters to the node use it, so they keep their order.
pub fn command_subject(name: &str) -> String {
    format!("cmd.node.{name}")
}

/// Returns the name of a member in subjects. All controllers share one name there, because they have the same rights.
fn name_in_subjects(name: &str) -> &str {
    let controller = NodeName::controller_name_prefix();
    if name.strip_prefix(controller).is_some_and(|rest| rest.starts_with('-')) { controller } else { name }
}

/// Subject on which endpoints claim this name and announce themselves.
pub fn presence_subject(name: &str) -> String {
    format!("join.{}", name_in_subjects(name))
}

/// Prefix of the subjects at which an endpoint receives answers. Each node has its own prefix, and all controllers
/// share one, so that no node reads the answers to another member.
pub fn inbox_prefix(name: &str) -> String {
    format!("_INBOX_{}", name_in_subjects(name))
}

/// Subject at which a node sends `body` to the controller.
pub(crate) fn subject_to_controller(from: &str, body: &MessageBody) -> String {
    match body {
        MessageBody::Telemetry(head, _) => format!("tm.{}.{from}", to_subject_word(&head.run.0)),
        MessageBody::Hello(_) => format!("hb.{from}"),
        MessageBody::Renew(..) => renewal_subject(from),
        _ => letter_subject(from),
    }
}

/// Subject at which a node appends a segment of a run.
pub(crate) fn segment_subject(run: &str, node: &str) -> String {
    format!("{RESULTS_STREAM}.{}.{node}", to_subject_word(run))
}

/// Subjects at which a node appends segments of all its runs.
pub(crate) fn all_segment_subjects(node: &str) -> String {
    format!("{RESULTS_STREAM}.*.{node}")
}

/// A subject with the wildcard `>` in place of the run. It is invalid, but the server accepts it from a node. A purge
/// with the pattern of [`all_segment_subjects`] does not match it.
pub(crate) fn malformed_segment_subject(node: &str) -> String {
    format!("{RESULTS_STREAM}.>.{node}")
}

/// Subject of the letters of `node` to its controller, such as replies.
pub(crate) fn letter_subject(node: &str) -> String {
    format!("rep.{node}")
}

/// Subjects of the telemetry of `node`, whatever the run.
pub(crate) fn telemetry_subjects(node: &str) -> String {
    format!("tm.*.{node}")
}

/// Subject of the letters of all nodes, for a fleet's only controller.
pub(crate) const CONTROLLER_LETTER_SUBJECT: &str = "rep.*";
/// Subjects of messages that may be dropped, from all nodes.
pub(crate) const CONTROLLER_TELEMETRY_SUBJECTS: [&str; 2] = ["hb.*", "tm.*.*"];

/// Subject of the lease renewals of `node`; `*` means all nodes.
pub(crate) fn renewal_subject(node: &str) -> String {
    format!("lease.{node}")
}

/// Subject of questions for captures of `node`; `*` means all nodes.
pub(crate) fn capture_question_subject(node: &str) -> String {
    format!("get.{node}")
}

/// Subject of the answers of `node` to questions for captures; `*` means all nodes.
pub(crate) fn capture_answer_subject(node: &str) -> String {
    format!("cap.{node}")
}

/// Subjects on which `node` receives messages of the controller; `*` means all nodes.
pub(crate) fn subjects_to_node(node: &str) -> [String; 3] {
    [ALL_NODES_SUBJECT.to_owned(), command_subject(node), capture_question_subject(node)]
}

/// Subjects of messages from a node to the controller, without the name of the node at the end.
const NODE_SUBJECT_PREFIXES: [&str; 7] = ["join.", "hb.", "lease.", "rep.", "cap.", "tm.*.", "res.*."];

/// Subjects at which `node` may publish to the controller; `*` means all nodes.
pub(crate) fn subjects_from_node(node: &str) -> [String; 7] {
    NODE_SUBJECT_PREFIXES.map(|at| format!("{at}{node}"))
}

/// Subjects that a user of the server may use, as patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPermissions {
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
}

/// Rights of a node; the server denies everything else.
pub fn node_permissions(node: &str) -> SubjectPermissions {
    // `allow_responses` is not set: with it, a node could send itself a question with any reply subject, and then
    // publish to that subject.
    let own_inbox = format!("{}.>", inbox_prefix(node));
    let mut publish = subjects_from_node(node).to_vec();
    publish.push(own_inbox.clone());
    let mut subscribe = subjects_to_node(node).to_vec();
    subscribe.extend([presence_subject(node), own_inbox]);
    SubjectPermissions { publish, subscribe }
}

/// Rights of the controller: commands, its own inbox, and the server's API for its stream and its bucket. It may
/// remove results, because a confirmation removes them, too. It may neither delete a stream, nor empty the bucket, nor
/// publish as a node.
pub(crate) fn controller_permissions() -> SubjectPermissions {
    let name = NodeName::controller().0;
    let own_inbox = format!("{}.>", inbox_prefix(&name));
    let bucket = format!("KV_{RECORDS_BUCKET}");
    let mut publish = vec![
        ALL_NODES_SUBJECT.to_owned(),
        command_subject("*"),
        capture_question_subject("*"),
        presence_subject(&name),
        own_inbox.clone(),
        format!("$KV.{RECORDS_BUCKET}.>"),
        format!("$JS.API.DIRECT.GET.{bucket}.>"),
        format!("$JS.API.STREAM.MSG.GET.{bucket}"),
        "$JS.API.INFO".to_owned(),
        format!("$JS.API.CONSUMER.NAMES.{RESULTS_STREAM}"),
        // The purge is for `discard_runs`, and for segments that no controller can read.
        format!("$JS.API.STREAM.PURGE.{RESULTS_STREAM}"),
        format!("$JS.ACK.{RESULTS_STREAM}.>"),
        "$JS.FC.>".to_owned(),
    ];
    for stream in [RESULTS_STREAM, &bucket] {
        publish.extend(["INFO", "CREATE", "UPDATE"].map(|order| format!("$JS.API.STREAM.{order}.{stream}")));
        publish.extend(
            ["INFO", "CREATE", "DELETE", "DURABLE.CREATE", "MSG.NEXT"]
                .map(|order| format!("$JS.API.CONSUMER.{order}.{stream}.>")),
        );
        // On this subject, a consumer without a name is created.
        publish.push(format!("$JS.API.CONSUMER.CREATE.{stream}"));
    }
    let mut subscribe = vec![
        own_inbox,
        presence_subject("*"),
        CONTROLLER_LETTER_SUBJECT.to_owned(),
        renewal_subject("*"),
        capture_answer_subject("*"),
    ];
    subscribe.extend(CONTROLLER_TELEMETRY_SUBJECTS.map(str::to_owned));
    SubjectPermissions { publish, subscribe }
}

/// Subject of the hellos of all nodes.
pub(crate) const fn all_hello_subjects() -> &'static str {
    CONTROLLER_TELEMETRY_SUBJECTS[0]
}

/// True for a subject of hellos.
pub(crate) fn is_hello_subject(subject: &str) -> bool {
    subject.starts_with("hb.")
}

/// Returns the node that published on `subject`: its last word, which the server has checked. `None` if the last word
/// is not a valid node name.
pub(crate) fn publishing_node(subject: &str) -> Option<NodeName> {
    let name = subject.rsplit('.').next()?;
    is_node_name(name).then(|| NodeName(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_name_rejects_wildcards_and_separators() {
        for name in ["", "a.b", "*", ">", "a b", "A", "node_1", &"x".repeat(33)] {
            assert!(!is_node_name(name), "{name}");
            assert!(node_subject_token(&NodeName(name.into())).is_err());
        }
        assert!(is_node_name("pi-4b") && is_node_name(&"x".repeat(32)));
    }

    #[test]
    fn controllers_share_subjects_but_nodes_do_not() {
        let of = |name: &str| [presence_subject(name), inbox_prefix(name)];
        assert_eq!(of("controller-1f"), of("controller"));
        assert_eq!(of("controllers"), ["join.controllers", "_INBOX_controllers"]);
    }

    #[test]
    fn run_subject_is_always_one_word() {
        assert_eq!(segment_subject("20261121-1.x>*", "a"), "res.20261121-1_x__.a");
        assert_eq!(segment_subject("", "a"), "res._.a");
        for word in ["", "x:y", "*", ">", "a*", "a/b", &"x".repeat(101)] {
            assert!(!is_run_word(word), "{word}");
        }
        assert!(is_run_word("20261121-1_a") && is_run_word(&"x".repeat(100)));
    }
}
