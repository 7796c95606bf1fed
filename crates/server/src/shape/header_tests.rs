//! The header tables of `wire` and the OTG model agree: a header or a field cannot be added to only one of them.

use super::message_descriptor;
use super::model::{all_refused_members, descriptor_pool};
use packetrig_wire::header::{HeaderKind, UNSUPPORTED_HEADERS};
use prost_reflect::{Kind, MessageDescriptor};
use std::collections::BTreeSet;

/// Fields of the tables that OTG lacks. Without the urgent pointer, a TCP header would not be whole.
const NOT_IN_OTG: [&str; 1] = ["tcp.urgent_pointer"];
/// Patterns of OTG that are no field: the priority queue of a port is no part of a frame.
const NOT_IN_FRAMES: [&str; 1] = ["ethernet.pfc_queue"];

fn otg_headers() -> impl Iterator<Item = HeaderKind> {
    HeaderKind::ALL.into_iter().filter(|kind| !kind.name().starts_with("x_"))
}

/// Adds the names of all patterns in a message, with `path` before them.
fn add_patterns(message: &MessageDescriptor, path: &str, names: &mut BTreeSet<String>) {
    for member in message.fields() {
        let Kind::Message(inner) = member.kind() else { continue };
        let name = format!("{path}.{}", member.name());
        if inner.name().starts_with("PatternFlow") {
            names.insert(name);
        } else {
            add_patterns(&inner, &name, names);
        }
    }
}

#[test]
fn model_has_every_header_of_the_tables() {
    let tables: BTreeSet<String> = otg_headers().map(|kind| kind.name().to_owned()).collect();
    let model = message_descriptor("FlowHeader");
    let members = model.fields().filter(|member| matches!(member.kind(), Kind::Message(_)));
    assert_eq!(members.map(|member| member.name().to_owned()).collect::<BTreeSet<_>>(), tables);
    let choices = descriptor_pool().get_enum_by_name("otg.FlowHeader.Choice.Enum").expect("the model has it");
    let choices = choices.values().map(|value| value.name().to_owned());
    assert_eq!(choices.filter(|name| name != "unspecified").collect::<BTreeSet<_>>(), tables);
}

#[test]
fn model_has_every_field_of_the_tables() {
    let mut model = BTreeSet::new();
    let mut tables = BTreeSet::new();
    for kind in otg_headers() {
        let header = message_descriptor("FlowHeader").get_field_by_name(kind.name());
        if let Some(Kind::Message(message)) = header.map(|header| header.kind()) {
            add_patterns(&message, kind.name(), &mut model);
        }
        tables.extend(kind.fields().iter().map(|field| format!("{}.{}", kind.name(), field.name)));
    }
    assert_eq!(tables.difference(&model).collect::<Vec<_>>(), NOT_IN_OTG);
    assert_eq!(model.difference(&tables).collect::<Vec<_>>(), NOT_IN_FRAMES);
}

#[test]
fn both_readers_refuse_the_same_headers() {
    for owner in ["FlowHeader", "FlowHeader.Choice.Enum"] {
        let (_, refused) =
            all_refused_members().find(|(known, _)| *known == owner).expect("the table has it");
        let names: BTreeSet<&str> = refused.iter().map(|(_, name)| *name).collect();
        assert_eq!(names, UNSUPPORTED_HEADERS.iter().copied().collect::<BTreeSet<_>>(), "{owner}");
    }
}
