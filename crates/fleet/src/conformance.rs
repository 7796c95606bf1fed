//! Checks that every fabric must pass. A failed check panics with a text that says what the fabric did wrong.
//!
//! The checks test only what the traits of [`crate::fabric`] promise; [`FabricTraits`] describes where fabrics may
//! differ. Messages are sent as in a fleet: from nodes to the controller, and from the controller to nodes.

mod faults;
mod messages;
mod results;

pub use faults::check_faults;

use crate::fabric::{Endpoint, Fabric, ResultReceiver as _, SegmentId};
use crate::message::{MessageBody, MessageHead, NodeCommand, NodeName, PlanHash, RunId};
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};

/// Time without a message after which a check assumes that no message will arrive.
const NO_MESSAGE_WAIT: Nanos = Nanos::from_millis(50);
/// A timeout that a correct fabric never reaches.
const NEVER_REACHED_TIMEOUT: Nanos = Nanos::from_secs(20);

/// Allowed differences between fabrics.
#[derive(Clone, Copy, Debug)]
pub struct FabricTraits {
    /// True if a post to a node that has left is an error. False if the message is lost silently.
    pub knows_who_left: bool,
    /// Capacity for results in bytes; [`check_fabric`] fills it.
    pub results_room: usize,
}

/// Checks messages, records and results. `make` is called for each check and must return an empty
/// fabric. [`check_faults`] is separate.
pub fn check_fabric<F: Fabric>(traits: FabricTraits, make: impl Fn() -> F) {
    messages::check_messages(traits, &make);
    results::check_records(&make);
    results::check_results(traits, &make);
}

fn test_head() -> MessageHead {
    MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") }
}

fn command_body(command: NodeCommand) -> MessageBody {
    MessageBody::Command(test_head(), command)
}

fn telemetry_body(at: u64) -> MessageBody {
    MessageBody::Telemetry(
        test_head(),
        Box::new(CountSample { at: MonoTime::from_nanos(at), ..CountSample::default() }),
    )
}

fn node_name(name: &str) -> NodeName {
    NodeName(name.into())
}

fn join_fabric_or_panic<F: Fabric>(fabric: &F, name: &NodeName) -> F::Endpoint {
    fabric.open_endpoint(name.clone()).unwrap_or_else(|error| panic!("{name} cannot join: {error}"))
}

fn join_fabric_as_controller<F: Fabric>(fabric: &F) -> F::Endpoint {
    join_fabric_or_panic(fabric, &NodeName::controller())
}

fn post_or_panic<E: Endpoint>(from: &mut E, to: &NodeName, body: MessageBody) {
    from.post_message(to, body).unwrap_or_else(|error| panic!("cannot post a message to {to}: {error}"));
}

fn test_run() -> RunId {
    RunId("20261121-1".into())
}

fn segment_id(of: &str, number: u64) -> SegmentId {
    SegmentId { run: test_run(), attempt: 1, node: node_name(of), number }
}

/// Opens a reader of the test run, in place of the readers named in `instead_of`.
fn open_reader<F: Fabric>(fabric: &F, name: &str, instead_of: &[&str]) -> F::Incoming {
    let mut incoming = fabric
        .open_result_inlet(name)
        .unwrap_or_else(|error| panic!("cannot open the results for {name}: {error}"));
    let others = instead_of.iter().map(|other| (*other).to_owned()).collect();
    incoming
        .read_run(&test_run(), &others)
        .unwrap_or_else(|error| panic!("cannot read the results for {name}: {error}"));
    incoming
}
