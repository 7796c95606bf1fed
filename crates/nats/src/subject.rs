//! The subjects of the fabric: which messages use which subject, and who may publish and subscribe.
//!
//! A node's name is a word of its subjects, so the server can hold nodes apart; the controller may use all of them.
//! Invariant: nothing that is not a plain word becomes part of a subject.

use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::{MessageBody, NodeName};

/// From the controller to every node.
pub const TO_ALL: &str = "cmd.all";
/// The stream that keeps results until they are confirmed.
pub const RESULTS: &str = "res";
/// The bucket of the records.
pub const RECORDS: &str = "fleet";
/// Longest name of a node.
const NAME_ROOM: usize = 32;
/// Longest id of a run.
const RUN_ROOM: usize = 100;

/// Whether it can be the name of a node: `[a-z0-9-]`, 1 to 32 of them.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_ROOM).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The name as a word of a subject.
pub(crate) fn word(name: &NodeName) -> Result<&str, Error> {
    if is_name(&name.0) { Ok(&name.0) } else { Err(Error::Unknown(name.clone())) }
}

/// Any text as a word of a subject; different texts may become the same word.
pub(crate) fn squeezed(text: &str) -> String {
    if text.is_empty() {
        return "_".to_owned();
    }
    text.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

/// Whether it can be the word of a run. The server takes subjects with other words, too, even those that stand for many.
pub(crate) fn is_run_word(word: &str) -> bool {
    word.len() <= RUN_ROOM && squeezed(word) == word
}

/// Where commands for a node go. Each of its letters is on it, so they keep their order.
pub fn to_node(name: &str) -> String {
    format!("cmd.node.{name}")
}

/// All controllers are one to the server: they have the same rights.
fn role(name: &str) -> &str {
    let controller = NodeName::controller_word();
    if name.strip_prefix(controller).is_some_and(|rest| rest.starts_with('-')) { controller } else { name }
}

/// Where a place asks whether a name is in use, and where a new place announces itself.
pub fn presence(name: &str) -> String {
    format!("join.{}", role(name))
}

/// Prefix of the subjects at which a place gets answers. Each has its own, or nodes would read each other's.
pub fn inbox(name: &str) -> String {
    format!("_INBOX_{}", role(name))
}

/// Where a node says `body` to the controller.
pub(crate) fn to_controller(from: &str, body: &MessageBody) -> String {
    match body {
        MessageBody::Telemetry(head, _) => format!("tm.{}.{from}", squeezed(&head.run.0)),
        MessageBody::Hello(_) => format!("hb.{from}"),
        MessageBody::Renew(..) => renewals_of(from),
        _ => letters_of(from),
    }
}

/// Where a node appends a segment of a run.
pub(crate) fn segment(run: &str, node: &str) -> String {
    format!("{RESULTS}.{}.{node}", squeezed(run))
}

/// Where a node appends segments of all its runs.
pub(crate) fn segments_of(node: &str) -> String {
    format!("{RESULTS}.*.{node}")
}

/// A subject that the server takes from a node although it is none, and that no wildcard stands for.
pub(crate) fn odd_segments_of(node: &str) -> String {
    format!("{RESULTS}.>.{node}")
}

/// Where `node` says what must arrive to its controller.
pub(crate) fn letters_of(node: &str) -> String {
    format!("rep.{node}")
}

/// Where `node` says what it counts, whatever the run.
pub(crate) fn telemetry_of(node: &str) -> String {
    format!("tm.*.{node}")
}

/// Letters that the only controller receives from all nodes.
pub(crate) const CONTROLLER_LETTERS: &str = "rep.*";
/// Messages that may be dropped, from all nodes.
pub(crate) const CONTROLLER_TELEMETRY: [&str; 2] = ["hb.*", "tm.*.*"];

/// Where `node` asks for the renewal of its lease; `*` stands for all nodes.
pub(crate) fn renewals_of(node: &str) -> String {
    format!("lease.{node}")
}

/// Where captures of `node` are asked for; `*` stands for all nodes.
pub(crate) fn captures_wanted_of(node: &str) -> String {
    format!("get.{node}")
}

/// Where `node` gives out captures; `*` stands for all nodes.
pub(crate) fn captures_of(node: &str) -> String {
    format!("cap.{node}")
}

/// Subjects that lead to `node`; `*` stands for all nodes.
pub(crate) fn reaching_node(node: &str) -> [String; 3] {
    [TO_ALL.to_owned(), to_node(node), captures_wanted_of(node)]
}

/// Subjects that end with the name of a node and lead from it to the controller.
const FROM_NODES: [&str; 7] = ["join.", "hb.", "lease.", "rep.", "cap.", "tm.*.", "res.*."];

/// Where `node` may publish towards the controller; `*` stands for all nodes.
pub(crate) fn from_node(node: &str) -> [String; 7] {
    FROM_NODES.map(|at| format!("{at}{node}"))
}

/// Subjects that a user of the server may use, as patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectPermissions {
    pub publish: Vec<String>,
    pub subscribe: Vec<String>,
}

/// What a node may publish and subscribe; the server denies everything else.
pub fn permissions(node: &str) -> SubjectPermissions {
    // No `allow_responses`: a node could ask itself, with any reply subject, and so publish anywhere.
    let own_inbox = format!("{}.>", inbox(node));
    let mut publish = from_node(node).to_vec();
    publish.push(own_inbox.clone());
    let mut subscribe = reaching_node(node).to_vec();
    subscribe.extend([presence(node), own_inbox]);
    SubjectPermissions { publish, subscribe }
}

/// What the controller may publish and subscribe: commands, its own inbox, and the server's orders for the one stream and the
/// one bucket that it has. It may take results away, as it does when it confirms them; it may not delete a stream or empty the
/// bucket, and not speak for a node.
pub(crate) fn permissions_of_the_controller() -> SubjectPermissions {
    let name = NodeName::controller().0;
    let own_inbox = format!("{}.>", inbox(&name));
    let bucket = format!("KV_{RECORDS}");
    let mut publish = vec![
        TO_ALL.to_owned(),
        to_node("*"),
        captures_wanted_of("*"),
        presence(&name),
        own_inbox.clone(),
        format!("$KV.{RECORDS}.>"),
        format!("$JS.API.DIRECT.GET.{bucket}.>"),
        format!("$JS.API.STREAM.MSG.GET.{bucket}"),
        "$JS.API.INFO".to_owned(),
        format!("$JS.API.CONSUMER.NAMES.{RESULTS}"),
        // For `discard_runs`, and for segments that nobody can take.
        format!("$JS.API.STREAM.PURGE.{RESULTS}"),
        format!("$JS.ACK.{RESULTS}.>"),
        "$JS.FC.>".to_owned(),
    ];
    for stream in [RESULTS, &bucket] {
        publish.extend(["INFO", "CREATE", "UPDATE"].map(|order| format!("$JS.API.STREAM.{order}.{stream}")));
        publish.extend(
            ["INFO", "CREATE", "DELETE", "DURABLE.CREATE", "MSG.NEXT"]
                .map(|order| format!("$JS.API.CONSUMER.{order}.{stream}.>")),
        );
        // A consumer without a name is made here.
        publish.push(format!("$JS.API.CONSUMER.CREATE.{stream}"));
    }
    let mut subscribe =
        vec![own_inbox, presence("*"), CONTROLLER_LETTERS.to_owned(), renewals_of("*"), captures_of("*")];
    subscribe.extend(CONTROLLER_TELEMETRY.map(str::to_owned));
    SubjectPermissions { publish, subscribe }
}

/// The hellos of all nodes.
pub(crate) const fn presence_of_all() -> &'static str {
    CONTROLLER_TELEMETRY[0]
}

/// Whether nodes say hello there.
pub(crate) fn is_hello(subject: &str) -> bool {
    subject.starts_with("hb.")
}

/// Who published at `subject`: its last word, which the server vouches for.
pub(crate) fn speaker(subject: &str) -> Option<NodeName> {
    let name = subject.rsplit('.').next()?;
    is_name(name).then(|| NodeName(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_widen_a_subject_is_none() {
        for name in ["", "a.b", "*", ">", "a b", "A", "node_1", &"x".repeat(33)] {
            assert!(!is_name(name), "{name}");
            assert!(word(&NodeName(name.into())).is_err());
        }
        assert!(is_name("pi-4b") && is_name(&"x".repeat(32)));
    }

    #[test]
    fn controllers_share_the_subjects_of_one_and_a_node_has_its_own() {
        let of = |name: &str| [presence(name), inbox(name)];
        assert_eq!(of("controller-1f"), of("controller"));
        assert_eq!(of("controllers"), ["join.controllers", "_INBOX_controllers"]);
    }

    #[test]
    fn a_run_is_one_word_whatever_it_is_called() {
        assert_eq!(segment("20261121-1.x>*", "a"), "res.20261121-1_x__.a");
        assert_eq!(segment("", "a"), "res._.a");
        for word in ["", "x:y", "*", ">", "a*", "a/b", &"x".repeat(101)] {
            assert!(!is_run_word(word), "{word}");
        }
        assert!(is_run_word("20261121-1_a") && is_run_word(&"x".repeat(100)));
    }
}
