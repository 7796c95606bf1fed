//! Checks probes against the owner's permit: addresses, rates and durations.
//!
//! The program part that sends the probes also checks them, against the section `probe` of the permit.

use super::{LendingPermit, OwnPlanPort, RequestedLoad};
use packetrig_plan::Plan;
use packetrig_plan::probes::ProbePlan;
use packetrig_units::{BitRate, FrameSize};
use std::collections::BTreeSet;
use std::net::IpAddr;

impl LendingPermit {
    /// Adds a refusal for each address that is not allowed, and for a duration that is too long.
    pub(super) fn check_permitted_probes(&self, plan: &Plan, own: &OwnPlanPort, refusals: &mut Vec<String>) {
        let Some(probes) = &plan.probes else { return };
        let targets = probes.list_lines_sent_by(own.port).filter_map(|(_, line)| probes.target_address(line));
        // A reflector also sends: its answers go to the ports that probe it.
        let askers =
            probes.list_ports_probing(own.port).filter_map(|asker| probes.addresses.get(&asker).copied());
        let all: BTreeSet<IpAddr> = targets.map(|target| target.ip()).chain(askers).collect();
        let strangers = all.into_iter().filter(|address| !self.networks.contains(*address));
        refusals
            .extend(strangers.map(|address| {
                own.refusal_text(format_args!("probes to or from {address} are not allowed"))
            }));
        let sends = probes.count_lines_sent_by(own.port) > 0;
        if sends && probes.total_duration() > self.max_duration {
            let most = self.max_duration;
            refusals.push(own.refusal_text(format_args!(
                "the probes last {}; at most {most} is allowed",
                probes.total_duration()
            )));
        }
    }
}

impl RequestedLoad {
    /// Adds the probes that a port sends, and the answers of its reflector.
    pub(super) fn add_probes(&mut self, plan: &Plan, port: usize) {
        let Some(probes) = &plan.probes else { return };
        // A reflector sends one answer to each probe of another port, so each port that probes it counts like a line (a
        // pair of ports) for which this port sends.
        let lines =
            u64::from(probes.count_lines_sent_by(port)) + probes.list_ports_probing(port).count() as u64;
        // With a method that needs an exclusive turn, only one line is active at a time.
        let lines = if probes.method.needs_exclusive_turn() { lines.min(1) } else { lines };
        let in_1000_s = lines.saturating_mul(probes.probes_in_1000_s());
        self.frames_milli += u128::from(in_1000_s);
        let bits = bits_per_frame(probes).saturating_mul(in_1000_s) / 1000;
        self.rate = BitRate::new(self.rate.bits_per_second().saturating_add(bits));
    }
}

fn bits_per_frame(probes: &ProbePlan) -> u64 {
    // Ethernet pads shorter frames to 64 bytes, and the owner's limit applies to the link (layer 1).
    u64::from(probes.size.bytes().max(FrameSize::MIN.bytes()) + FrameSize::LAYER1_OVERHEAD_BYTES) * 8
}

#[cfg(test)]
mod tests {
    use super::super::{PermitRequest, PermittedPort};
    use super::*;
    use packetrig_plan::PlanParseOptions;
    use packetrig_stats::terms::SharedRunOptions;
    use packetrig_units::Nanos;

    fn refusals(permit: &LendingPermit, probes: &str) -> Vec<String> {
        let text = format!(
            "{{ports: [{{name: a, location: n1/eth0}}, {{name: b, location: n2/eth0}}], x_probes: {{{probes}, \
            addresses: [{{port: a, address: 198.18.0.1}}, {{port: b, address: 10.0.0.2}}]}}}}"
        );
        let plan =
            Plan::from_text_with(&text, PlanParseOptions { fleet: true, ..PlanParseOptions::default() })
                .unwrap();
        let bound = plan.bind_to_links(&[None, None]).unwrap();
        let own = OwnPlanPort { port: 0, interface: "eth0".into(), link_speed: None, back_end: None };
        let terms = SharedRunOptions::default();
        permit.check_plan(&bound, &[own], PermitRequest { terms: &terms, replays: &[] })
    }

    #[test]
    fn probes_and_answers_need_permitted_addresses() {
        let permit = LendingPermit::default();
        for probes in ["method: oneway, from: [a], to: [b]", "method: oneway, from: [b], to: [a]"] {
            let found = refusals(&permit, probes);
            assert_eq!(found, ["port eth0: probes to or from 10.0.0.2 are not allowed"], "{probes}");
        }
        assert!(refusals(&permit, "method: ping, from: [a], targets: [198.19.0.9]").is_empty());
        assert!(
            refusals(&permit, "method: ping, from: [b], to: [a]").is_empty(),
            "the kernel answers, not this program"
        );
    }

    #[test]
    fn the_owners_rates_and_duration_hold_for_probes() {
        let port = PermittedPort { max_frames_per_second: Some(20), ..PermittedPort::default() };
        let port = PermittedPort { interface: "eth0".into(), max_rate: Some(BitRate::new(50_000)), ..port };
        let short = Nanos::from_secs(60);
        let permit =
            LendingPermit { ports: Some(vec![port]), max_duration: short, ..LendingPermit::default() };
        let ping = |more: &str| {
            refusals(&permit, &format!("method: ping, from: [a], targets: [198.18.0.9, 198.18.0.8], {more}"))
        };
        assert_eq!(ping("interval: 100ms, count: 600"), Vec::<String>::new());
        assert!(
            ping("interval: 90ms")[0].contains("22 frames/s; at most 20"),
            "{:?}",
            ping("interval: 90ms")
        );
        assert!(ping("interval: 100ms, size: 1000")[0].contains("at most 50"), "{:?}", ping("size: 1000"));
        assert!(ping("interval: 100ms, count: 601")[0].contains("last 60.1"), "{:?}", ping("count: 601"));
    }

    #[test]
    fn probe_permit_section_is_preserved() {
        let permit =
            LendingPermit::from_toml("[probe]\nabout = \"x\"\n[[probe.target]]\nnetwork = \"10.0.0.0/8\"\n")
                .unwrap();
        let section = permit.probes.unwrap();
        assert!(section.contains("about = \"x\"") && section.contains("[[target]]"), "{section}");
        assert_eq!(LendingPermit::from_toml("").unwrap().probes, None);
    }
}
