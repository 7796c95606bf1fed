//! The whole life of the programs with a sandbox, beside controllers that are at work, are killed and end. A sandbox ends a program for
//! a call that its list forbids: none of them makes one, with all that it can serve.

use crate::lab::{Fleet, FleetOptions, await_that, pid};
use crate::run::Judged;
use packetrig_tests::skip;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Child;

/// Address of the API over HTTPS.
const HTTPS: &str = "127.0.0.1:8443";

/// `serve --on-fleet` with TLS, tokens, gRPC, and results of others.
struct SecureService<'a> {
    fleet: &'a Fleet,
    child: Child,
}

impl<'a> SecureService<'a> {
    fn start(fleet: &'a Fleet) -> Self {
        let [token, view] = ["token", "view"].map(|name| fleet.place().join(name).display().to_string());
        let arguments = ["serve", "--on-fleet", "--http", HTTPS, "--grpc-tls", "--token-always"];
        let tokens = ["--token-file", &token, "--view-token-file", &view];
        let child = fleet.begin_command(&[&arguments[..], &tokens].concat(), "secure");
        await_that("the API is there", || fleet.said("secure").contains(HTTPS), || fleet.said("secure"));
        Self { fleet, child }
    }

    /// Asks with the token in this file, or tells something if there is a document.
    fn ask(&self, token: &str, path: &str, document: Option<&Value>) -> String {
        let token = fs::read_to_string(self.fleet.place().join(token)).expect("the service has made it");
        let mut client = self.fleet.beside_the_controller(Path::new("curl"));
        client.args(["--insecure", "--silent", "--show-error", "--fail-with-body", "--header"]);
        client.arg(format!("Authorization: Bearer {}", token.trim()));
        if let Some(document) = document {
            client.args(["--json", &document.to_string()]);
        }
        let output = client.arg(format!("https://{HTTPS}/{path}")).output().expect("curl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (answer, error) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "{path}: {error}{answer}; the service: {}",
            self.fleet.said("secure")
        );
        answer
    }

    fn tell(&self, path: &str, document: &Value) -> Value {
        serde_json::from_str(&self.ask("token", path, Some(document))).unwrap_or_default()
    }

    /// Sends a configuration's frames, and waits until all have arrived.
    fn run_traffic(&self) {
        let start =
            json!({ "choice": "flow_transmit", "flow_transmit": { "state": "start", "flow_names": ["f"] } });
        self.tell("control/state", &json!({ "choice": "traffic", "traffic": start }));
        let wanted = json!({ "choice": "flow", "flow": { "flow_names": ["f"] } });
        let metrics = || self.tell("monitor/metrics", &wanted)["flow_metrics"][0].clone();
        let is_received = || metrics()["frames_rx"].as_str() == Some(&*crate::served::FRAMES.to_string());
        await_that("all was received", is_received, || metrics().to_string());
    }

    /// Reads all that a viewer may read.
    fn view_all(&self) {
        for path in ["state", "runs", "unfinished", "nodes", "methods", "taps"] {
            self.ask("view", &format!("api/v1/{path}"), None);
        }
        assert!(self.ask("view", "metrics", None).contains("packetrig_"));
    }

    /// Asks it to end; its exit code.
    fn end(mut self) -> Option<i32> {
        kill_process(pid(self.child.id()), Signal::TERM).expect("a child may be sent a signal");
        self.child.wait().expect("a child can be waited for").code()
    }
}

/// Asserts that no sandbox has ended a program that has written this.
fn assert_none_ended(said: &str) {
    for word in ["the sandbox ends this process", "signal: 31", "SIGSYS"] {
        assert!(!said.contains(word), "{said}");
    }
}

#[test]
fn sandboxed_programs_live_beside_other_controllers() {
    if !skip::has_tool("curl") {
        return;
    }
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    fleet.teach_the_bridge();
    let mut killed = fleet.begin_between(["s1/eth0", "r1/eth0"], &["--packets", "60000"]);
    killed.await_frames();
    let mut beside = fleet.begin_between(["s2/eth0", "r2/eth0"], &["--packets", "60000"]);
    beside.await_frames();
    let service = SecureService::start(&fleet);
    drop(killed.kill());
    // On the nodes of the killed one, whose run it ends.
    service.tell("config", &crate::served::configuration());
    service.run_traffic();
    service.view_all();
    // While it leads nodes, another controller is killed, and others begin and end.
    drop(beside.kill());
    fleet
        .begin_between(["s3/eth0", "r3/eth0"], &["--packets", "300"])
        .finish()
        .report()
        .assert_nothing_lost();
    for command in [
        &["fleet", "collect"][..],
        &["fleet", "status", "--wait"],
        &["fleet", "status"],
        &["fleet", "history"],
    ] {
        let (code, _, said) = fleet.ask(command);
        assert_eq!(code, Some(0), "{command:?}: {said}");
    }
    service.view_all();
    service.tell("config", &json!({}));
    let (code, said) = (service.end(), fleet.said("secure"));
    assert_eq!(code, Some(0), "{said}");
    assert_none_ended(&(said + &fleet.everything()));
}
