//! `packetrig serve --on-fleet`: a controller that stays beside the runs of others.

use crate::fleet::Fleet;
use crate::network::{CONTROLLER, PORT, SENDERS, facing, node_name};
use anyhow::{Context, bail};
use packetrig_eval::process::pause;
use packetrig_sys::clock;
use packetrig_sys::netns::NetNs;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Within the controller's namespace.
const ADDRESS: &str = "127.0.0.1:8086";
/// An answer comes by then, or never.
const PATIENCE_NS: u64 = 40_000_000_000;

#[derive(Debug)]
pub(crate) struct ServeProcess {
    child: Child,
    log: PathBuf,
}

impl ServeProcess {
    pub(crate) fn start(fleet: &Fleet) -> anyhow::Result<Self> {
        let log = fleet.path("serve.log");
        let mut command = fleet.controller_command(&[
            "serve",
            "--on-fleet",
            "--plain-http",
            "--http",
            ADDRESS,
            "--no-grpc",
        ]);
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        Ok(Self { child: command.spawn()?, log })
    }

    /// Sets a configuration on nodes that were another controller's, takes it back, and ends.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let done = self.configure();
        let ended = self.child.try_wait()?;
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        match ended {
            Some(status) => bail!("it ended ({status}): {}", said.trim()),
            None => done.with_context(|| said.trim().to_owned()),
        }
    }

    fn configure(&mut self) -> anyhow::Result<()> {
        let deadline_ns = clock::monotonic_ns() + PATIENCE_NS;
        let location = |node| format!("{}/{PORT}", node_name(node));
        let ports = json!({ "ports": [
            { "name": "a", "location": location(SENDERS - 1) },
            { "name": "b", "location": location(facing(SENDERS - 1)) },
        ] });
        for configuration in [ports, json!({})] {
            loop {
                match post(&configuration) {
                    Ok(()) => break,
                    Err(error) if clock::monotonic_ns() > deadline_ns => return Err(error),
                    // The nodes may be another run's for a moment, and it may just begin to listen.
                    Err(error) if self.child.try_wait()?.is_some() => return Err(error),
                    Err(_) => pause(200),
                }
            }
        }
        Ok(())
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap_or(());
        drop(self.child.wait());
    }
}

fn post(configuration: &Value) -> anyhow::Result<()> {
    let body = configuration.to_string();
    let request = format!(
        "POST /config HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer =
        NetNs::open_named_namespace(CONTROLLER)?.run_in_namespace(|| -> std::io::Result<String> {
            let mut stream = TcpStream::connect(ADDRESS)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })??;
    if answer.starts_with("HTTP/1.1 200") {
        return Ok(());
    }
    bail!("{}", answer.lines().last().unwrap_or("no answer"))
}
