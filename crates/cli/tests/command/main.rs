//! The binary from outside, as a shell sees it: help, errors, exit codes, closed pipes. Needs no rights and no network.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod golden;
mod report;
mod runner;

use runner::{Ended, packetrig, packetrig_at_home, packetrig_with_input};

const SMALL_PLAN: &str = include_str!("small.yaml");

fn plan(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn check(text: &[u8]) -> Ended {
    packetrig_with_input(&["plan", "check", "-"], text)
}

/// Name of the stored text, and the arguments that show the page.
const HELP_PAGES: [(&str, &[&str]); 77] = [
    ("help", &["--help"]),
    ("help-run", &["run", "--help"]),
    ("help-replay", &["replay", "--help"]),
    ("help-plan", &["plan", "--help"]),
    ("help-plan-check", &["plan", "check", "--help"]),
    ("help-plan-explain", &["plan", "explain", "--help"]),
    ("help-demo", &["demo", "--help"]),
    ("help-capture", &["capture", "--help"]),
    ("help-collect", &["collect", "--help"]),
    ("help-log", &["log", "--help"]),
    ("help-log-check", &["log", "check", "--help"]),
    ("help-merge", &["merge", "--help"]),
    ("help-tap", &["tap", "--help"]),
    ("help-tap-status", &["tap", "status", "--help"]),
    ("help-tap-stop", &["tap", "stop", "--help"]),
    ("help-meter", &["meter", "--help"]),
    ("help-probe", &["probe", "--help"]),
    ("help-probe-allowed", &["probe", "allowed", "--help"]),
    ("help-probe-oneprobe", &["probe", "oneprobe", "--help"]),
    ("help-probe-capacity", &["probe", "capacity", "--help"]),
    ("help-probe-available", &["probe", "available", "--help"]),
    ("help-probe-send", &["probe", "send", "--help"]),
    ("help-probe-serve", &["probe", "serve", "--help"]),
    ("help-probe-caps", &["probe", "caps", "--help"]),
    ("help-probe-calibrate", &["probe", "calibrate", "--help"]),
    ("help-probe-ping", &["probe", "ping", "--help"]),
    ("help-probe-stamp", &["probe", "stamp", "--help"]),
    ("help-probe-reflect", &["probe", "reflect", "--help"]),
    ("help-probe-oneway", &["probe", "oneway", "--help"]),
    ("help-flows", &["flows", "--help"]),
    ("help-flows-top", &["flows", "top", "--help"]),
    ("help-flows-show", &["flows", "show", "--help"]),
    ("help-flows-recover", &["flows", "recover", "--help"]),
    ("help-flows-prune", &["flows", "prune", "--help"]),
    ("help-flows-compact", &["flows", "compact", "--help"]),
    ("help-flows-replay", &["flows", "replay", "--help"]),
    ("help-flows-stats", &["flows", "stats", "--help"]),
    ("help-serve", &["serve", "--help"]),
    ("help-watch", &["watch", "--help"]),
    ("help-page", &["page", "--help"]),
    ("help-agent", &["agent", "--help"]),
    ("help-fleet", &["fleet", "--help"]),
    ("help-fleet-up", &["fleet", "up", "--help"]),
    ("help-fleet-status", &["fleet", "status", "--help"]),
    ("help-fleet-history", &["fleet", "history", "--help"]),
    ("help-fleet-label", &["fleet", "label", "--help"]),
    ("help-fleet-fetch", &["fleet", "fetch", "--help"]),
    ("help-fleet-invite", &["fleet", "invite", "--help"]),
    ("help-fleet-collect", &["fleet", "collect", "--help"]),
    ("help-fleet-remove", &["fleet", "remove", "--help"]),
    ("help-fleet-probe", &["fleet", "probe", "--help"]),
    ("help-fleet-probe-oneway", &["fleet", "probe", "oneway", "--help"]),
    ("help-fleet-probe-stamp", &["fleet", "probe", "stamp", "--help"]),
    ("help-fleet-probe-ping", &["fleet", "probe", "ping", "--help"]),
    ("help-fleet-probe-send", &["fleet", "probe", "send", "--help"]),
    ("help-test", &["test", "--help"]),
    ("help-test-rfc2544", &["test", "rfc2544", "--help"]),
    ("help-test-mlrsearch", &["test", "mlrsearch", "--help"]),
    ("help-test-bisect", &["test", "bisect", "--help"]),
    ("help-test-convergence", &["test", "convergence", "--help"]),
    ("help-test-compare", &["test", "compare", "--help"]),
    ("help-test-loss-share", &["test", "loss-share", "--help"]),
    ("help-test-resume", &["test", "resume", "--help"]),
    ("help-test-calibrate", &["test", "calibrate", "--help"]),
    ("help-doctor", &["doctor", "--help"]),
    ("help-report", &["report", "--help"]),
    ("help-report-list", &["report", "list", "--help"]),
    ("help-report-show", &["report", "show", "--help"]),
    ("help-report-unfinished", &["report", "unfinished", "--help"]),
    ("help-report-discard", &["report", "discard", "--help"]),
    ("help-report-late", &["report", "late", "--help"]),
    ("help-report-path", &["report", "path", "--help"]),
    ("help-report-diff", &["report", "diff", "--help"]),
    ("help-report-trend", &["report", "trend", "--help"]),
    ("help-report-prune", &["report", "prune", "--help"]),
    ("help-report-pin", &["report", "pin", "--help"]),
    ("help-report-unpin", &["report", "unpin", "--help"]),
];

#[test]
fn every_help_page_is_as_committed() {
    for (name, arguments) in HELP_PAGES {
        let ended = packetrig(arguments);
        assert_eq!(ended.code, 0, "{name}: {}", ended.remarks);
        golden::compare(name, &ended.results);
    }
}

#[test]
fn usage_error_is_reported_with_code_2() {
    let uses: [(&str, &[&str]); 21] = [
        ("usage-nothing", &[]),
        ("usage-unknown-command", &["rum"]),
        ("usage-run-without-plan", &["run"]),
        ("usage-run-plan-and-flags", &["run", "plan.yaml", "--tx", "eth1"]),
        ("usage-run-two-lengths", &["run", "--tx", "eth1", "--time", "1s", "--packets", "5"]),
        ("usage-run-bad-rate", &["run", "--tx", "eth1", "--rate", "fast"]),
        ("usage-run-bad-size", &["run", "--tx", "eth1", "--size", "1518..64"]),
        ("usage-demo-bad-faults", &["demo", "--faults", "burn=3"]),
        ("usage-capture-nowhere", &["capture", "lo"]),
        ("usage-capture-bad-size", &["capture", "lo", "-w", "x", "--ring-size", "big"]),
        ("usage-capture-ring-of-nothing", &["capture", "lo", "-w", "x", "--ring-files", "3"]),
        ("usage-log-nowhere", &["log", "lo"]),
        ("usage-log-check-nothing", &["log", "check", "/no/such/log"]),
        ("usage-tap-bad-impairment", &["tap", "a", "b", "--impair", "loss=1%,burn=2%"]),
        ("usage-flows-nowhere", &["flows", "top"]),
        ("usage-flows-bad-time", &["flows", "show", ".", "--from", "tomorrow"]),
        ("usage-flows-bad-address", &["flows", "stats", ".", "--address", "198.18.0.0/99"]),
        ("usage-flows-missing", &["flows", "stats", "/no/such/directory"]),
        ("usage-report-two-forms", &["report", "show", "x", "--json", "--csv"]),
        ("usage-report-bad-limit", &["report", "diff", "a", "b", "--max-worse", "5"]),
        ("usage-report-prune-everything", &["report", "prune", "--name", "nightly"]),
    ];
    for (name, arguments) in uses {
        let ended = packetrig(arguments);
        assert_eq!((ended.code, ended.results.as_str()), (2, ""), "{name}");
        golden::compare(name, &ended.remarks);
    }
}

#[test]
fn flow_key_must_come_from_private_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    let meter = |key: &str| {
        let ended = packetrig(&["meter", "lo", "--flow-id-key", key]);
        assert_eq!(ended.code, 2, "{}", ended.remarks);
        ended.remarks
    };
    let key = "0123456789abcdef00000000000000ff";
    let said = meter(key);
    assert!(said.contains("file of mode 600") && !said.contains(key), "{said}");
    std::fs::write(&file, key).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert!(meter(&file.display().to_string()).contains("chmod 600"));
    std::fs::write(&file, "short").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(meter(&file.display().to_string()).contains("32 hexadecimal digits"));
}

#[test]
fn key_of_anonymised_replay_is_not_repeated() {
    let key = "0123456789abcdef".repeat(4);
    let ended = packetrig(&["flows", "replay", ".", "--export", "udp://127.0.0.1:9", "--anonymise", &key]);
    assert_eq!(ended.code, 2, "{}", ended.remarks);
    assert!(ended.remarks.contains("file of mode 600") && !ended.remarks.contains(&key), "{}", ended.remarks);
}

#[test]
fn meter_of_group_with_shared_store_is_refused() {
    let group = ["meter", "lo", "--export", "udp://127.0.0.1:9", "--group", "core", "--member", "1"];
    for store in [["--kafka", "127.0.0.1:1/flows"], ["--clickhouse", "127.0.0.1:1/flows"]] {
        let ended = packetrig(&[&group[..], &store].concat());
        assert_eq!(ended.code, 2, "{}", ended.remarks);
        assert!(ended.remarks.contains("each meter would store the same records"), "{}", ended.remarks);
    }
}

#[test]
fn version_is_one_line() {
    assert_eq!(packetrig(&["--version"]).results, format!("packetrig {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn closed_pipe_ends_printing_without_error() {
    let ended = runner::packetrig_into_closed_pipe(&["doctor", "lo"]);
    assert_eq!((ended.code, ended.remarks.as_str()), (0, ""));
}

#[test]
fn full_disk_is_reported() {
    let ended = runner::packetrig_into_file(&["doctor", "lo"], "/dev/full");
    assert_eq!(ended.code, 4);
    assert!(ended.remarks.contains("cannot write results"), "{}", ended.remarks);
}

#[test]
fn doctor_without_rights_shows_facts() {
    let ended = packetrig(&["doctor", "lo", "--json"]);
    assert_eq!(ended.code, 0, "{}", ended.remarks);
    let json: serde_json::Value = serde_json::from_str(&ended.results).unwrap();
    assert_eq!(json["interfaces"][0]["location"], "lo");
    assert!(json["machine"]["kernel"].is_string());
}

#[test]
fn doctor_names_an_interface_that_is_not_there() {
    let ended = packetrig(&["doctor", "nosuch0"]);
    assert_eq!(ended.code, 4);
    golden::compare("error-doctor-missing", &ended.remarks);
}

#[test]
fn a_good_plan_passes_the_check() {
    let file = plan(SMALL_PLAN);
    let ended = packetrig(&["plan", "check", file.path().to_str().unwrap()]);
    assert_eq!(ended.code, 0, "{}{}", ended.results, ended.remarks);
    assert!(ended.results.contains("2 ports, 1 streams"), "{}", ended.results);
}

#[test]
fn a_plan_comes_through_standard_input_too() {
    assert_eq!(check(SMALL_PLAN.as_bytes()).code, 0);
}

#[test]
fn plan_check_lists_every_problem_with_path() {
    let text = SMALL_PLAN.replace("rx_names: [rx]", "rx_names: [nowhere]").replace("pps: 1000", "ppps: 1000");
    let ended = check(text.as_bytes());
    assert_eq!(ended.code, 3);
    for part in ["nowhere", "ppps", "flows[0]", "standard input:"] {
        assert!(ended.results.contains(part), "{part} in {}", ended.results);
    }
}

#[test]
fn plan_problems_are_printed_as_json() {
    let ended = packetrig_with_input(&["plan", "check", "-", "--json"], b"flows: 7\nflaws: 1\n");
    assert_eq!(ended.code, 3);
    let json: serde_json::Value = serde_json::from_str(&ended.results).unwrap();
    assert_eq!(json["can_run"], false);
    assert!(json["problems"].as_array().unwrap().len() >= 2, "{json}");
    assert!(json["problems"][0]["path"].is_string() && json["problems"][0]["position"].is_array(), "{json}");
}

#[test]
fn hostile_plan_input_is_refused_without_panic() {
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (last, this) in ('a'..'l').zip('b'..='l') {
        let ten = vec![format!("*{last}"); 10].join(",");
        bomb.extend([format!("{this}: &{this} [{ten}]\n")]);
    }
    let inputs: [(&str, Vec<u8>); 8] = [
        ("nothing", Vec::new()),
        ("not YAML", b"{[}: @ - :".to_vec()),
        ("not UTF-8", vec![0xff, 0xfe, 0, 1]),
        ("a list", b"- 1\n- 2\n".to_vec()),
        ("deep", vec![b'['; 100_000]),
        ("a YAML bomb", bomb.into_bytes()),
        ("10 MB of nonsense", b"9f\x1b,: {]".repeat(1_250_000)),
        ("10 MB in one line", vec![b'x'; 10_000_000]),
    ];
    for (name, input) in inputs {
        let ended = check(&input);
        assert_eq!(ended.code, 3, "{name}: {}", ended.remarks);
        assert!(!ended.remarks.contains("bug:"), "{name}: {}", ended.remarks);
        let said = ended.results.len() + ended.remarks.len();
        assert!((1..20_000).contains(&said), "{name}: {said} bytes");
    }
}

#[test]
fn explain_lists_frames_that_would_be_sent() {
    let file = plan(SMALL_PLAN);
    let ended = packetrig(&["plan", "explain", file.path().to_str().unwrap()]);
    assert_eq!((ended.code, ended.remarks.as_str()), (0, ""));
    golden::compare("explain-small", &ended.results);
}

#[test]
fn explain_names_the_speed_it_assumes() {
    let text = SMALL_PLAN.replace("{choice: pps, pps: 1000}", "{choice: percentage, percentage: 10}");
    let ended = packetrig_with_input(&["plan", "explain", "-"], text.as_bytes());
    assert_eq!(ended.code, 0, "{}", ended.remarks);
    assert!(
        ended.results.contains("port tx does not report its link speed: 10 Gbit/s is assumed"),
        "{}",
        ended.results
    );
}

#[test]
fn flags_make_a_plan_that_passes_the_check() {
    let flags = ["run", "--tx", "eth1", "--rx", "eth2,eth3", "--size", "imix", "--vlan", "7", "--print-plan"];
    let made = packetrig(&flags);
    assert_eq!(made.code, 0, "{}", made.remarks);
    golden::compare("print-plan", &made.results);
    assert_eq!(check(made.results.as_bytes()).code, 0);
}

/// `--keep` is the size of all files wherever there is one; the others say what they are called now.
#[test]
fn renamed_options_name_their_successor() {
    for (arguments, successor) in [
        (&["report", "prune", "--keep", "20"][..], "--newest 20"),
        (&["meter", "lo", "--keep", "1GiB"], "need --directory"),
        (&["collect", "--keep-for", "72h"], "need --directory"),
        (&["collect", "--directory", "/tmp/none", "--keep", "1MB"], "room for two files"),
    ] {
        let refused = packetrig(arguments);
        assert_eq!(refused.code, 2, "{}", refused.remarks);
        assert!(refused.remarks.contains(successor), "{}", refused.remarks);
    }
}

#[test]
fn run_on_missing_interface_stores_nothing() {
    let store = tempfile::tempdir().unwrap();
    let place = store.path().to_str().unwrap();
    let ended = packetrig(&["run", "--tx", "nosuch0", "--rx", "nosuch1", "--store", place, "--quiet"]);
    assert_eq!(ended.code, 4, "{}", ended.remarks);
    assert!(ended.remarks.contains("nosuch0"), "{}", ended.remarks);
    let listed = packetrig(&["report", "--store", place]);
    let none = format!("there are no runs in {place} yet; `packetrig demo` makes one\n");
    assert_eq!((listed.code, listed.results), (0, none));
    assert_eq!(std::fs::read_dir(store.path().join("runs")).unwrap().count(), 0);
}

/// A path at which not even root can create a directory.
const READ_ONLY_HOME: &str = "/proc";

#[test]
fn unwritable_home_error_names_store_flag() {
    let ended = packetrig_at_home(READ_ONLY_HOME, &["run", "--tx", "nosuch0", "--quiet"]);
    assert_eq!(ended.code, 4, "{}", ended.remarks);
    for part in ["cannot create /proc/packetrig", "--store"] {
        assert!(ended.remarks.contains(part), "{part} in {}", ended.remarks);
    }
}

#[test]
fn listing_past_runs_creates_no_files() {
    let home = tempfile::tempdir().unwrap();
    for home in [home.path().to_str().unwrap(), READ_ONLY_HOME] {
        let listed = packetrig_at_home(home, &["report"]);
        let says_none = listed.results.starts_with("there are no runs in ");
        assert!(listed.code == 0 && says_none, "{}", listed.results);
        for action in ["show", "path"] {
            let ended = packetrig_at_home(home, &["report", action, "last"]);
            assert_eq!(ended.code, 2, "{}", ended.remarks);
        }
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn invalid_plan_is_not_printed() {
    let file = plan(&SMALL_PLAN.replace("pps: 1000", "ppps: 1000"));
    // The user typed the one and wrote the other.
    let from_file = ["run", file.path().to_str().unwrap(), "--print-plan"];
    let small = ["run", "--tx", "eth1", "--size", "10", "--print-plan"];
    let large = ["run", "--tx", "eth1", "--size", "99999", "--print-plan"];
    let twice = ["run", "--tx", "eth1", "--rx", "eth1", "--print-plan"];
    let cases = [
        (&from_file[..], 3, "cannot be run"),
        (&small, 2, "--size"),
        (&large, 2, "--size"),
        (&twice, 2, "--rx"),
    ];
    for (arguments, code, said) in cases {
        let ended = packetrig(arguments);
        assert_eq!((ended.code, ended.results.as_str()), (code, ""), "{arguments:?}: {}", ended.remarks);
        assert!(ended.remarks.contains(said), "{}", ended.remarks);
    }
}

#[test]
fn probe_target_name_is_resolved_and_checked() {
    let allowed = packetrig(&["probe", "allowed", "localhost"]);
    assert_eq!(allowed.code, 0, "{}", allowed.remarks);
    let address = allowed.remarks.trim().strip_prefix("probe: localhost has the address ").unwrap();
    assert!(address.parse::<std::net::IpAddr>().unwrap().is_loopback());
    assert!(allowed.results.contains(&format!("localhost ({address}):")), "{}", allowed.results);
    let forbidden = plan("never = [\"127.0.0.0/8\", \"::1/128\"]\n");
    let permit = forbidden.path().to_str().unwrap();
    let refused = packetrig(&["probe", "allowed", "localhost", "--permit", permit]);
    assert_eq!(refused.code, 8, "{}", refused.remarks);
    assert!(refused.remarks.contains(address), "the address is what is judged: {}", refused.remarks);
}

#[test]
fn unresolvable_probe_target_is_usage_error() {
    for command in ["allowed", "ping", "stamp", "oneprobe", "capacity", "available"] {
        let ended = packetrig(&["probe", command, "nosuch.invalid"]);
        assert_eq!((ended.code, ended.results.as_str()), (2, ""), "{command}: {}", ended.remarks);
        let said = "cannot find the address of `nosuch.invalid`";
        assert!(ended.remarks.contains(said), "{command}: {}", ended.remarks);
    }
}

#[test]
fn fleet_locations_without_fleet_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().to_str().unwrap();
    let ended = packetrig_at_home(place, &["run", "--tx", "rack2/eth1", "--rx", "rack2/eth2", "--quiet"]);
    assert_eq!(ended.code, 4, "{}", ended.remarks);
    assert!(ended.remarks.contains("rack2 is neither a network namespace"), "{}", ended.remarks);
    let ended = packetrig_at_home(place, &["run", "--tx", "any-x", "--rx", "any-y", "--quiet"]);
    assert_eq!(ended.code, 2, "{}", ended.remarks);
    assert!(ended.remarks.contains("`any-x` means ports of a fleet"), "{}", ended.remarks);
}

#[test]
fn missing_catalogue_is_usage_error() {
    let store = tempfile::tempdir().unwrap();
    let place = store.path().to_str().unwrap();
    for action in [&["list"][..], &["unfinished"], &["late"], &["show", "last"], &["path", "20200101"]] {
        let ended = packetrig(&[&["report"], action, &["--store", place]].concat());
        assert_eq!((ended.code, ended.results.as_str()), (2, ""), "{action:?}");
        let said = format!("there is no catalogue of runs in {place}");
        assert!(ended.remarks.contains(&said), "{action:?}: {}", ended.remarks);
    }
}

#[test]
fn fleet_up_without_server_creates_no_fleet() {
    let fleet = tempfile::tempdir().unwrap();
    let place = fleet.path().to_str().unwrap();
    let flags = ["--address", "127.0.0.1", "--listen", "127.0.0.1:0", "--enrol", "127.0.0.1:0"];
    // Nobody listens on the port for discarding.
    let ended =
        packetrig(&[&["fleet", "up", "--fleet", place, "--cluster", "127.0.0.1:9"], &flags[..]].concat());
    assert_eq!(ended.code, 4, "{}", ended.remarks);
    assert!(ended.remarks.contains("cannot reach the message server of the fleet"), "{}", ended.remarks);
    assert!(!fleet.path().join("fleet.json").exists(), "later commands take it for a fleet that works");
}

#[test]
fn unknown_run_is_usage_error() {
    let home = tempfile::tempdir().unwrap();
    let place = home.path().to_str().unwrap();
    for action in ["show", "path"] {
        let ended = packetrig_at_home(place, &["report", action, "20200101"]);
        assert_eq!((ended.code, ended.results.as_str()), (2, ""));
        golden::compare("error-report-unknown", &ended.remarks);
    }
}

#[test]
fn kernel_bridge_refuses_faults() {
    let ended = packetrig(&["demo", "--faults", "drop=1"]);
    assert_eq!((ended.code, ended.results.as_str()), (2, ""));
    golden::compare("usage-demo-faults-of-bridge", &ended.remarks);
}

#[test]
fn missing_fleet_is_reported_by_every_command() {
    let run: &[&str] = &["run", "--tx", "one/eth1", "--rx", "two/eth1"];
    let fleet: [&[&str]; 4] =
        [&["fleet", "invite"], &["fleet", "status"], &["fleet", "history"], &["fleet", "collect"]];
    for arguments in fleet.into_iter().chain([run]) {
        let ended = packetrig(&[arguments, &["--fleet", "/nonexistent"]].concat());
        assert_eq!(ended.code, 2, "{arguments:?}: {}", ended.remarks);
        assert!(ended.remarks.contains("no fleet in /nonexistent"), "{arguments:?}: {}", ended.remarks);
    }
}

#[test]
fn watch_without_server_explains_how_to_start_one() {
    // Nobody listens on the port for discarding.
    for server in ["127.0.0.1:9", "http://127.0.0.1:9"] {
        let ended = packetrig(&["watch", server]);
        assert_eq!((ended.code, ended.results.as_str()), (4, ""), "{}", ended.remarks);
        assert!(ended.remarks.contains("start one with `packetrig serve`"), "{}", ended.remarks);
    }
    let elsewhere = packetrig(&["watch", "198.18.0.1:8443"]);
    assert!(elsewhere.code == 2 && elsewhere.remarks.contains("--ca FILE"), "{}", elsewhere.remarks);
    assert_eq!(packetrig(&["watch", "ftp://rig:1"]).code, 2);
}

#[test]
fn a_missing_plan_is_named() {
    let ended = packetrig(&["run", "/no/such/plan.yaml"]);
    assert_eq!(ended.code, 3);
    golden::compare("error-plan-missing", &ended.remarks);
}
