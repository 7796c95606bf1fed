use super::prepare::{PermittedAsker, select_permitted_peers};
use super::*;
use packetrig_plan::PlanParseOptions;
use packetrig_probe::ProbePermit;

fn probes(text: &str) -> ProbePlan {
    let text = format!(
        "{{ports: [{{name: a, location: n1/eth0}}, {{name: b, location: n2/eth0}}], x_probes: {{{text}, \
        addresses: [{{port: a, address: 198.18.0.1}}, {{port: b, address: 198.18.0.2}}]}}}}"
    );
    let plan = Plan::from_text_with(&text, PlanParseOptions { fleet: true, ..PlanParseOptions::default() });
    plan.unwrap().probes.unwrap()
}

fn loan(permit: &str) -> ProbePolicy {
    let permit = ProbePermit::from_text(permit).unwrap();
    ProbePolicy { permit, today: DateReader(|| "2026-11-25".to_owned()), ..ProbePolicy::default() }
}

fn refusals(probes: &ProbePlan, port: usize, permit: &str) -> Vec<String> {
    let mut refusals = Vec::new();
    select_permitted_peers(probes, port, &loan(permit), &mut refusals);
    refusals
}

#[test]
fn probe_permit_covers_targets_and_askers() {
    let mesh = probes("method: oneway, from: [a, b], to: [a, b]");
    let both = refusals(&mesh, 0, "");
    let not_allowed = |what: &str| format!("{what} 198.18.0.2 is not allowed by the permit for probes");
    assert_eq!(both, [not_allowed("probing"), not_allowed("answering probes from")]);
    let network = "[[target]]\nnetwork = \"198.18.0.0/24\"\n";
    assert_eq!(refusals(&mesh, 0, network), Vec::<String>::new());
    assert_eq!(
        refusals(&mesh, 0, &format!("{network}until = \"2026-11-24\""))[0],
        "probing 198.18.0.2 is no longer allowed: the permission expired on 2026-11-24"
    );
    let never = format!("never = [\"198.18.0.2/32\"]\n{network}");
    assert_eq!(
        refusals(&mesh, 0, &never),
        [
            "probing 198.18.0.2 is forbidden by the permit",
            "answering probes from 198.18.0.2 is forbidden by the permit"
        ]
    );
    assert_eq!(refusals(&mesh, 1, &never), Vec::<String>::new());
    // A ping is answered by the kernel, which answers every host anyway.
    let ping = probes("method: ping, from: [b], to: [a]");
    assert_eq!(refusals(&ping, 0, ""), Vec::<String>::new());
}

#[test]
fn node_answers_only_ports_named_in_plan() {
    let one_way = probes("method: oneway, from: [a], to: [b]");
    let (lines, askers) =
        select_permitted_peers(&one_way, 1, &loan("[[target]]\nnetwork = \"0.0.0.0/0\"\n"), &mut Vec::new());
    assert!(lines.is_empty());
    assert!(matches!(askers[..], [PermittedAsker { port: 0, .. }]), "{askers:?}");
    let (lines, askers) =
        select_permitted_peers(&one_way, 0, &loan("[[target]]\nnetwork = \"0.0.0.0/0\"\n"), &mut Vec::new());
    assert_eq!((lines.len(), askers.len()), (1, 0));
}

#[test]
fn permission_with_end_date_needs_current_date() {
    let permit =
        ProbePermit::from_text("[[target]]\nnetwork = \"198.18.0.0/24\"\nuntil = \"2999-12-31\"").unwrap();
    let loan = ProbePolicy { permit, ..ProbePolicy::default() };
    let mut refusals = Vec::new();
    select_permitted_peers(&probes("method: ping, from: [a], to: [b]"), 0, &loan, &mut refusals);
    assert_eq!(refusals, ["probing 198.18.0.2 is no longer allowed: the permission expired on 2999-12-31"]);
}
