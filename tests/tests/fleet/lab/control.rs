//! The control network of a fleet.

use packetrig_testkit::Lab;
use std::process::Command;

/// The control network: a bridge in a namespace of its own, where the controller is.
pub(super) struct Control {
    pub(super) name: String,
}

impl Control {
    pub(super) fn lay(lab: &Lab) -> Self {
        let name = format!("{}-ctl", lab.ports()[0].namespace());
        let control = Self { name };
        let own = control.name.as_str();
        ip(&["netns", "add", own]);
        ip(&["-n", own, "link", "set", "lo", "up"]);
        ip(&["-n", own, "link", "add", "ctl", "type", "bridge"]);
        ip(&["-n", own, "addr", "add", "10.9.0.1/24", "dev", "ctl"]);
        ip(&["-n", own, "link", "set", "ctl", "up"]);
        for (number, port) in lab.ports().iter().enumerate() {
            let (cable, node) = (format!("c{number}"), port.namespace());
            let add =
                ["-n", own, "link", "add", &cable, "type", "veth", "peer", "name", "ctl0", "netns", node];
            ip(&add);
            ip(&["-n", own, "link", "set", &cable, "master", "ctl", "up"]);
            ip(&["-n", node, "addr", "add", &format!("10.9.0.{}/24", 11 + number), "dev", "ctl0"]);
            ip(&["-n", node, "link", "set", "ctl0", "up"]);
            ip(&["-n", node, "link", "set", "lo", "up"]);
        }
        control
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(Command::new("ip").args(["netns", "del", &self.name]).status());
    }
}

/// What `ip` printed.
pub(super) fn ip(arguments: &[&str]) -> String {
    output_of_ip(arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// The same, or why it failed.
pub(super) fn output_of_ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output().expect("ip runs");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        return Ok(out.into_owned());
    }
    // A program that was run in a namespace may have said on standard output why it failed.
    Err(format!("ip {arguments:?}: {error}{out}"))
}
