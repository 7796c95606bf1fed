//! Every example can be run unchanged: it is read without a warning, and its rates fit its links.

use packetrig_plan::{Plan, explain::explain_plan};
use packetrig_units::BitRate;
use std::fs;
use std::path::{Path, PathBuf};

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = fs::read_dir(folder).expect("the repository has a folder of examples");
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    // `ci` has scripts for build servers.
    files.retain(|file| file.is_file());
    files.sort();
    files
}

#[test]
fn examples_are_warning_free_gigabit_plans() {
    let files = examples();
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let name = file.display();
        let plan = Plan::from_text(&fs::read_to_string(&file).unwrap())
            .unwrap_or_else(|why| panic!("{name}\n{why}"));
        assert!(plan.warnings.is_empty(), "{name}: {:?}", plan.warnings);
        let speeds = vec![Some(BitRate::new(1_000_000_000)); plan.ports.len()];
        let bound = plan.bind_to_links(&speeds).unwrap_or_else(|why| panic!("{name}\n{why}"));
        let ends: Vec<_> = bound.streams.iter().map(|stream| stream.timeline.end_time()).collect();
        assert!(ends.iter().all(Option::is_some), "{name} must come to an end: {ends:?}");
        let explained = serde_json::to_value(explain_plan(&bound)).unwrap();
        assert_eq!(explained["streams"].as_array().unwrap().len(), bound.streams.len());
    }
}

#[test]
fn sixteen_streams_are_sixteen() {
    let file = examples().into_iter().find(|file| file.ends_with("16-mixed.yaml")).unwrap();
    assert_eq!(Plan::from_text(&fs::read_to_string(file).unwrap()).unwrap().streams.len(), 16);
}
