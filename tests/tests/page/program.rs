//! The page from the command line: beside the files of a run, left out, made again, opened.

use packetrig_testkit::Lab;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

fn run(lab: &Lab, store: &Path, more: &[&str]) -> Finished {
    let document =
        Document::new(&[lab.location(0), lab.location(1)]).flow(Flow::new("only", 1).pps(200).packets(100));
    let arguments =
        [&["run", "{plan}", "--quiet", "--out", "{out}", "--store", store.to_str().unwrap()], more].concat();
    Running::start(&arguments, &document.text()).finish()
}

#[test]
fn run_page_is_optional_and_can_be_recreated() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let store = tempfile::tempdir().unwrap();
    let with = run(&lab, store.path(), &[]);
    let page = fs::read_to_string(with.out().join("report.html")).unwrap();
    let report = with.report();
    assert!(
        page.contains(&format!("data-value=\"{}\"", report.stream("only")["sent"]["frames"])),
        "the count is on the page"
    );
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(report.0["nodes"][0]["machine"]["kernel"], kernel.trim());
    assert!(page.contains(&format!(">{}</td>", kernel.trim())), "the kernel is on the page");
    let without = run(&lab, store.path(), &["--no-html"]);
    assert!(!without.out().join("report.html").exists() && without.out().join("report.json").exists());
    let file = store.path().join("again.html");
    let arguments = [
        "report",
        "html",
        "last",
        "--file",
        file.to_str().unwrap(),
        "--store",
        store.path().to_str().unwrap(),
    ];
    let made = Running::start(&arguments, "").finish();
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(fs::read_to_string(&file).unwrap().starts_with("<!DOCTYPE html>"));
}

#[test]
fn report_open_needs_a_desktop_opener() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let store = tempfile::tempdir().unwrap();
    run(&lab, store.path(), &[]);
    let desktop = tempfile::tempdir().unwrap();
    let opener = desktop.path().join("xdg-open");
    let told = desktop.path().join("told");
    fs::write(&opener, format!("#!/bin/sh\necho \"$1\" >{}\n", told.display())).unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    let report = format!(
        "{} report html last --open --store {}",
        packetrig_tests::program::binary().display(),
        store.path().display()
    );
    let with_path = |path: &str| {
        Running::start_program("sh", &["-c", &format!("PATH={path} exec {report}")], "").finish()
    };
    let refused = with_path("/nowhere");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("--open needs xdg-open"), "{}", refused.stderr);
    let opened = with_path(&format!("{}:/bin:/usr/bin", desktop.path().display()));
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    assert!(fs::read_to_string(&told).unwrap().trim().ends_with("report.html"));
}
