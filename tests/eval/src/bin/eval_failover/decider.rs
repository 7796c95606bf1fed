//! Who decides which meter exports: the meters, keepalived or ucarp, one instance beside each meter.

use anyhow::{Context, bail};
use packetrig_eval::process;
use packetrig_sys::private_files;
use packetrig_testkit::Lab;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decider {
    /// The meters, with this interval in milliseconds and three misses.
    Meters(u64),
    /// VRRPv3, with this interval in hundredths of a second.
    Keepalived(u64),
    /// CARP, one advertisement a second.
    Ucarp,
}

impl Decider {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Meters(ms) => format!("packetrig, 3 × {ms} ms"),
            Self::Keepalived(hundredths) => format!("keepalived (VRRPv3), {} ms", hundredths * 10),
            Self::Ucarp => "ucarp (CARP), 1 s".to_owned(),
        }
    }

    /// The program, if it is another one.
    pub(crate) const fn program(self) -> Option<&'static str> {
        match self {
            Self::Meters(_) => None,
            Self::Keepalived(_) => Some("keepalived"),
            Self::Ucarp => Some("ucarp"),
        }
    }

    /// Milliseconds between two advertisements of the meters.
    pub(crate) const fn advertise_ms(self) -> u64 {
        match self {
            Self::Meters(ms) => ms,
            Self::Keepalived(_) | Self::Ucarp => 100,
        }
    }
}

/// The link over which instances of another program hear each other, and where they tell the roles.
pub(crate) struct DeciderRig {
    decider: Decider,
    lab: Option<Lab>,
    directory: PathBuf,
}

/// Ended with everything that it has started.
pub(crate) struct DecidingProcess(Child);

impl Drop for DecidingProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl DecidingProcess {
    /// As if its machine were switched off.
    pub(crate) fn kill(&mut self) {
        // Its process group: keepalived has a child.
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process_group(group, Signal::KILL).unwrap_or(());
        }
        drop(self.0.wait());
    }
}

impl DeciderRig {
    pub(crate) fn new(decider: Decider, directory: &Path) -> anyhow::Result<Self> {
        let directory = directory.to_owned();
        let Some(program) = decider.program() else { return Ok(Self { decider, lab: None, directory }) };
        if !Command::new("which").arg(program).stdout(Stdio::null()).status()?.success() {
            bail!("{program} is not installed");
        }
        let lab = Lab::with_bridge(2)?;
        for (port, number) in lab.ports().iter().zip(1..) {
            let address = format!("198.18.1.{number}/24");
            for arguments in [["addr", "add", &address, "dev"], ["link", "set", "up", "dev"]] {
                let command =
                    ["-n", port.namespace()].into_iter().chain(arguments).chain([port.link.name.as_str()]);
                if !Command::new("ip").args(command).status()?.success() {
                    bail!("ip failed");
                }
            }
        }
        Ok(Self { decider, lab: Some(lab), directory })
    }

    /// What the meter needs to hear its instance.
    pub(crate) fn flags(&self, meter: usize) -> Vec<String> {
        let place = self.place(meter);
        let source = match self.decider {
            Decider::Meters(_) => return Vec::new(),
            Decider::Keepalived(_) => format!("keepalived:{}", place.join("notify").display()),
            Decider::Ucarp => format!("file:{}", place.join("role").display()),
        };
        vec!["--role-from".to_owned(), source]
    }

    fn place(&self, meter: usize) -> PathBuf {
        self.directory.join(format!("decider{meter}"))
    }

    /// Before the meter is started.
    pub(crate) fn prepare(&self, meter: usize) -> anyhow::Result<()> {
        let place = self.place(meter);
        std::fs::create_dir_all(&place)?;
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755))?;
        private_files::write_file(&place.join("role"), "standby\n")?;
        std::fs::set_permissions(place.join("role"), std::fs::Permissions::from_mode(0o644))?;
        for (name, role) in [("up", "active"), ("down", "standby")] {
            let file = place.join(format!("{name}.sh"));
            let [role_file, new] = ["role", "role.new"].map(|name| place.join(name).display().to_string());
            private_files::write_file(
                &file,
                format!("#!/bin/sh\necho {role} >{new}\nchmod 644 {new}\nmv {new} {role_file}\n"),
            )?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }

    /// Starts the instance of a meter; the first one's is to be master.
    pub(crate) fn start(&self, meter: usize) -> anyhow::Result<Option<DecidingProcess>> {
        use std::os::unix::process::CommandExt;
        let Some(lab) = &self.lab else { return Ok(None) };
        let port = lab.ports().get(meter - 1).context("a port")?;
        let mut command = Command::new("ip");
        // `ip` becomes the program, so that its process group is the child's.
        command.args(["netns", "exec", port.namespace()]);
        match self.decider {
            Decider::Meters(_) => return Ok(None),
            Decider::Keepalived(hundredths) => {
                let file = self.place(meter).join("keepalived.conf");
                private_files::write_file(
                    &file,
                    self.keepalived(meter, hundredths, port.link.name.as_str()),
                )?;
                let pid = |name: &str| self.place(meter).join(name).display().to_string();
                command.args(["keepalived", "-n", "-l", "-P", "-f"]).arg(&file);
                command.args(["-p", &pid("pid"), "-r", &pid("vrrp.pid")]);
            }
            Decider::Ucarp => {
                let script = |name: &str| self.place(meter).join(format!("{name}.sh")).display().to_string();
                // Of two, the one with the smaller skew (`-k`) becomes master.
                let source = format!("198.18.1.{meter}");
                command.args([
                    "ucarp",
                    "-i",
                    port.link.name.as_str(),
                    "-s",
                    &source,
                    "-v",
                    "42",
                    "-p",
                    "link",
                ]);
                command.args(["-a", "198.18.1.100", "-u", &script("up"), "-d", &script("down"), "-b", "1"]);
                command.args(["-k", &(10 * (meter - 1)).to_string()]);
            }
        }
        let log = std::fs::File::create(self.place(meter).join("log"))?;
        let child =
            command.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        process::pause(1);
        Ok(Some(DecidingProcess(child)))
    }

    fn keepalived(&self, meter: usize, hundredths: u64, interface: &str) -> String {
        let notify = self.place(meter).join("notify").display().to_string();
        let (priority, seconds) = (110 - 10 * meter, hundredths as f64 / 100.0);
        format!(
            "global_defs {{\n script_user root\n vrrp_version 3\n vrrp_notify_fifo {notify}\n}}\n\
             vrrp_instance link {{\n state BACKUP\n nopreempt\n interface {interface}\n virtual_router_id 42\n \
             priority {priority}\n advert_int {seconds}\n virtual_ipaddress {{ 198.18.1.100 }}\n}}\n"
        )
    }
}
