//! The promises of the fuzz targets, held by an ordinary test run: on the committed corpus and on seeded bytes.

use packetrig_tests::exporters::Attack;
use packetrig_tests::fuzz;
use std::path::Path;

#[expect(clippy::unwrap_used, reason = "a corpus that cannot be read fails the test")]
fn replay(target: &str, body: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let seeds: Vec<_> = std::fs::read_dir(&corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(seeds.len() >= 5, "the corpus of {target} is gone");
    for seed in &seeds {
        let bytes = std::fs::read(seed).unwrap();
        body(&bytes);
        // The seed with one byte changed, at every place.
        for at in 0..bytes.len().min(400) {
            let mut damaged = bytes.clone();
            damaged[at] = damaged[at].wrapping_mul(31).wrapping_add(7);
            body(&damaged);
        }
    }
    for n in 0..3_000 {
        body(&fuzz::seeded(1, n));
    }
}

#[test]
fn wire_renders_what_it_finds_again() {
    replay("wire", fuzz::wire);
}

#[test]
fn tags_are_sought_in_any_bytes() {
    replay("tag", fuzz::tag);
}

#[test]
fn capture_files_are_read_or_found_damaged() {
    replay("pcap", fuzz::pcap);
}

#[test]
fn plans_are_read_or_refused() {
    replay("plan", fuzz::plan);
}

#[test]
fn frame_corpus_is_parsed_or_ignored_with_cause() {
    replay("flow_parse", fuzz::flow_parse);
}

#[test]
fn filters_end_and_translate() {
    replay("filter", fuzz::filter);
}

#[test]
fn flow_files_are_read_or_refused() {
    replay("flow_file", fuzz::flow_file);
}

#[test]
fn names_are_read_or_refused() {
    replay("flow_names", fuzz::flow_names);
}

#[test]
fn ipfix_messages_are_decoded_or_refused() {
    replay("flow_ipfix", fuzz::flow_ipfix);
}

#[test]
fn netflow_packets_are_decoded_or_refused() {
    replay("flow_netflow", fuzz::flow_netflow);
}

#[test]
fn sflow_datagrams_are_decoded_or_refused() {
    replay("flow_sflow", fuzz::flow_sflow);
}

#[test]
fn sim_datagrams_are_decoded_or_refused() {
    replay("flow_sim", fuzz::flow_sim);
}

#[test]
fn requests_of_any_bytes_are_answered_or_refused() {
    replay("otg_http", fuzz::otg_http);
}

#[test]
fn documents_are_configurations_or_refused() {
    replay("otg_document", fuzz::otg_document);
}

#[test]
fn flow_filter_corpus_parses_or_names_position() {
    replay("flow_filter", fuzz::flow_filter);
}

#[test]
fn stamp_packets_are_reflected_or_refused() {
    replay("stamp", fuzz::stamp);
}

#[test]
fn release_message_corpus_parses_or_names_position() {
    replay("release", fuzz::release);
}

#[test]
fn fleet_messages_are_accepted_once_or_refused() {
    replay("letter", fuzz::letter);
}

#[test]
fn hellos_of_nodes_are_within_bounds_or_refused() {
    replay("hello", fuzz::hello);
}

#[test]
fn tap_state_corpus_is_read_or_refused() {
    replay("tap_state", fuzz::tap_state);
}

/// Hostile messages of a quarter of a megabyte, as one input: what each costs is proportional to its bytes.
fn assert_linear(body: fn(&[u8]), attacks: &[Attack]) {
    for attack in attacks {
        for length in [1400, 60_000] {
            let mut input = Vec::new();
            for n in 0.. {
                let message = attack.message_of(n, length);
                let said = u16::try_from(message.len()).expect("fits a datagram");
                input.extend(said.to_be_bytes());
                input.extend(message);
                if input.len() > 256 << 10 {
                    break;
                }
            }
            body(&input);
        }
    }
}

#[test]
fn hostile_messages_cost_what_their_bytes_are_worth() {
    let (netflow, others): (Vec<_>, Vec<_>) =
        Attack::ALL.iter().partition(|attack| **attack == Attack::Restarts);
    let (sflow, others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|attack| matches!(attack, Attack::Samples | Attack::Counters));
    let (sim, ipfix): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|attack| matches!(attack, Attack::Ledgers | Attack::Flows));
    assert_linear(fuzz::flow_netflow, &netflow);
    assert_linear(fuzz::flow_sflow, &sflow);
    assert_linear(fuzz::flow_sim, &sim);
    assert_linear(fuzz::flow_ipfix, &ipfix);
}
