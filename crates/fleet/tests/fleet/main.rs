//! A fleet in virtual time: leases, epochs, spools and two controllers, over a network that loses, delays, repeats and
//! is cut, with nodes that freeze, die and start again, and clocks that run wrong. Each run is one seed.

mod checks;
mod fleet;
mod node;
mod nodes;
mod trouble;
mod world;

use fleet::{Ended, Fleet};
use packetrig_fleet::controller::{LostNodePolicy, RunPolicies, StartPolicy};
use packetrig_report::outcome::{RunOutcome, RunState};
use std::ops::Range;
use world::{Random, World};

fn run(world: World) -> Ended {
    Fleet::new(world).run()
}

fn reasons(ended: &Ended, controller: usize) -> &[String] {
    let RunOutcome::Partial { reasons, .. } = &ended.outcomes[controller] else {
        panic!("must be partial: {:?}", ended.outcomes)
    };
    reasons
}

const DONE: RunOutcome = RunOutcome::Complete { stopped: false };

/// Many worlds, in five tests so that they run side by side.
fn run_always_ends_with_true_outcome(seeds: Range<u64>) {
    let (mut complete, mut refused, mut redelivered) = (0, 0, 0);
    let worlds = seeds.end - seeds.start;
    for seed in seeds {
        let ended = run(World::wild(seed));
        complete += u64::from(ended.outcomes.contains(&DONE));
        refused += ended.fleet.refused;
        redelivered += ended.fleet.redelivered;
    }
    // The worlds are not so wild that nothing is shown.
    assert!(complete * 100 > worlds * 6 && complete * 100 < worlds * 94, "{complete} complete");
    assert!(refused > 20, "{refused} refused");
    assert!(redelivered > 20, "{redelivered} redelivered");
}

#[test]
fn wild_worlds_1() {
    run_always_ends_with_true_outcome(0..1000);
}

#[test]
fn wild_worlds_2() {
    run_always_ends_with_true_outcome(1000..2000);
}

#[test]
fn wild_worlds_3() {
    run_always_ends_with_true_outcome(2000..3000);
}

#[test]
fn wild_worlds_4() {
    run_always_ends_with_true_outcome(3000..4000);
}

#[test]
fn wild_worlds_5() {
    run_always_ends_with_true_outcome(4000..5000);
}

#[test]
fn whatever_the_world_does_to_hundreds_of_nodes() {
    for seed in 10_000..10_020 {
        run(World::wild_with(Random(seed), seed, 100 + usize::try_from(seed % 200).expect("small")));
    }
}

#[test]
fn calm_fleet_passes_every_run_state() {
    let wanted = [
        RunState::Preparing,
        RunState::Armed,
        RunState::Committed,
        RunState::Confirmed,
        RunState::Running,
        RunState::Draining,
        RunState::Collecting,
        RunState::Complete,
    ];
    let ended = run(World::calm(1, 300));
    assert_eq!(ended.states, wanted);
    assert_eq!(ended.outcomes, [DONE]);
}

#[test]
fn cut_link_stops_senders_and_delays_result() {
    let world = World { cuts: vec![(1, 1500, 9000, true, true)], length: 20_000, ..World::calm(2, 4) };
    let ended = run(world);
    assert_eq!(reasons(&ended, 0), ["node node001: silent for 3s"]);
    let results = ended.fleet.results();
    assert_eq!(results, 4, "nothing is lost");
}

#[test]
fn frozen_node_is_abandoned_and_stays_silent() {
    let world = World { freezes: vec![(0, 1500, 30_000)], length: 20_000, ..World::calm(3, 3) };
    let ended = run(world);
    assert_eq!(reasons(&ended, 0), ["node node000: silent for 3s"]);
    assert!(ended.fleet.nodes[0].last_frame.is_some_and(|last| last <= 1500 * world::MS));
}

#[test]
fn restarted_node_loses_its_part() {
    let world = World { crashes: vec![(2, 2000, Some(300))], ..World::calm(4, 3) };
    assert_eq!(reasons(&run(world), 0), ["node node002: its agent was started again"]);
}

#[test]
fn remaining_nodes_continue_if_policy_allows() {
    let policies = RunPolicies { on_loss: LostNodePolicy::Continue, ..RunPolicies::default() };
    let world = World { crashes: vec![(2, 2000, Some(300))], policies, ..World::calm(4, 3) };
    let ended = run(world);
    assert_eq!(reasons(&ended, 0), ["node node002: its agent was started again"]);
    assert!(ended.fleet.nodes[..2].iter().all(|node| node.ended_by_plan));
}

#[test]
fn later_controller_collects_abandoned_run() {
    for back in [2200, 5000, 20_000, 60_000] {
        let world = World { controller_dies: Some((2000, back)), length: 10_000, ..World::calm(5, 3) };
        let ended = run(world);
        assert_eq!(reasons(&ended, 0), ["the controller of this run was lost"], "{back}");
        assert_eq!(ended.fleet.results(), 3, "{back}");
    }
}

#[test]
fn absent_controller_yields_to_successor() {
    let world = World { controller_frozen: Some((2000, 18_000)), length: 60_000, ..World::calm(6, 3) };
    let ended = run(world);
    assert_eq!(reasons(&ended, 0), ["another controller has taken over this run"]);
    assert_eq!(reasons(&ended, 1), ["the controller of this run was lost"]);
    assert_eq!(ended.fleet.results(), 3);
}

#[test]
fn epoch_survives_agent_restart() {
    // The node gets messages of the second controller only, is restarted, and then the first one comes back.
    let world = World {
        cuts: vec![(1, 0, 15_200, true, true)],
        controller_frozen: Some((100, 18_000)),
        crashes: vec![(1, 17_000, Some(200))],
        ..World::calm(8, 2)
    };
    assert!(run(world).fleet.refused > 0);
}

#[test]
fn stragglers_are_left_out_only_by_quorum() {
    let frozen = |start| {
        let policies = RunPolicies { start, ..RunPolicies::default() };
        run(World { freezes: vec![(1, 0, 100_000)], policies, ..World::calm(7, 4) })
    };
    assert!(matches!(frozen(StartPolicy::All).outcomes[0], RunOutcome::Failed { .. }));
    assert!(matches!(frozen(StartPolicy::Quorum(4)).outcomes[0], RunOutcome::Failed { .. }));
    let ended = frozen(StartPolicy::Quorum(3));
    assert_eq!(reasons(&ended, 0), ["node node001 was left out: did not get ready within 30s"]);
}

#[test]
fn lost_confirmation_splits_and_stops_start() {
    let mut seen = 0;
    for seed in 0..300 {
        // The way to one node, or from it, is cut somewhere between arming and T. In the second case it may be sending.
        let (from, to_it) = (5 + seed / 3, seed % 2 == 0);
        let cuts = vec![(0, from, 30_000, to_it, !to_it)];
        let ended = run(World { cuts, length: 20_000, ..World::calm(seed, 3) });
        if let RunOutcome::Partial { reasons, .. } = &ended.outcomes[0] {
            seen += usize::from(reasons.iter().any(|reason| reason.contains("split_start")));
        }
    }
    assert!(seen > 0, "no start was split");
}
