//! Test methods on a fleet: each trial is a run of the fleet.

use crate::lab::{Fleet, FleetOptions};
use serde_json::Value;

#[test]
fn bisection_between_two_nodes_uses_fleet_runs() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.teach_the_bridge();
    let (code, printed, said) = fleet.ask(&[
        "test",
        "bisect",
        "--tx",
        "s1/eth0",
        "--rx",
        "r1/eth0",
        "--size",
        "128",
        "--max-rate",
        "1kpps",
        "--time",
        "200ms",
        "--resolution",
        "10%",
        "--json",
    ]);
    // On a busy machine the rig may not sustain a trial: then the search says so.
    assert!(matches!(code, Some(0 | 7)), "{code:?} {said}");
    let result: Value =
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}{said}"));
    assert_eq!(result["options"]["method"], "bisect");
    assert!(result["trials"].as_u64().unwrap() >= 1, "{printed}");
    if code == Some(0) {
        assert_eq!(result["result"]["lower_bound_frames_per_second"].as_f64(), Some(1_000.0), "{printed}");
    }
    let (code, listed, said) = fleet.ask(&["report", "list", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let runs: Value = serde_json::from_str(&listed).unwrap();
    assert!(runs.as_array().is_some_and(|runs| runs.iter().any(|run| run["name"] == "trial")), "{listed}");
}
