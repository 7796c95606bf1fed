//! The directory of a fleet: its keys, and where its server and its nodes' door are.
//!
//! ```text
//! DIR/authority/…  keys and certificates     DIR/broker/…  the server's configuration and store
//! DIR/fleet.json   addresses, as nodes reach them        DIR/health.json  how the server is
//! DIR/nodes.json   what each node had when a controller heard it last
//! DIR/presence.json  how the nodes are, as `fleet up` hears them          DIR/history/…  what happened to them
//! ```
//! Whoever has the directory can be the fleet's controller: it is readable by its owner only.

use crate::args;
use crate::error::Error;
use crate::output::remark;
use packetrig_fleet::NodeName;
use packetrig_fleet::history::{NodeEntry, NodeEvent, NodeRun};
use packetrig_fleet::members::MemberRow;
use packetrig_fleet::report::RunReport;
use packetrig_nats::authority::FleetAuthority;
use packetrig_nats::broker::BrokerHealth;
use packetrig_nats::{NatsFabric, ServerAccess};
use packetrig_node::fleet::{FleetRoster, KnownNodes};
use packetrig_store::NodeHistory;
use packetrig_sys::clock::{self, state};
use packetrig_sys::private_files;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a certificate is looked at.
const RENEWAL: Duration = Duration::from_hours(1);
/// Names the directory for commands that are given none.
const VARIABLE: &str = "PACKETRIG_FLEET";

/// Whether one is named, by the command or the environment.
pub(crate) fn is_named(arguments: &args::FleetPlace) -> bool {
    arguments.fleet_directory.is_some() || std::env::var_os(VARIABLE).is_some()
}

#[derive(Clone, Debug)]
pub(crate) struct FleetPlace(PathBuf);

/// Addresses of a fleet, as nodes reach them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetAddresses {
    /// Of the server, or of each of a cluster.
    pub(crate) servers: Vec<String>,
    /// Where nodes are let in.
    pub(crate) enrol: String,
}

/// How the nodes were at an instant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetPresence {
    /// The instant, in nanoseconds since 1970 (UTC).
    pub(crate) heard_until: u64,
    /// The same by CLOCK_BOOTTIME, which nobody sets, of this kernel since it was started.
    boot_time: u64,
    boot_id: String,
    /// One row for each node that was ever heard.
    pub(crate) nodes: Vec<MemberRow>,
}

impl FleetPresence {
    pub(crate) fn taken_now(nodes: Vec<MemberRow>) -> Self {
        Self {
            heard_until: clock::wall_clock_ns(),
            boot_time: clock::boottime_ns(),
            boot_id: state::boot_id().unwrap_or_default(),
            nodes,
        }
    }

    /// How long ago that was.
    pub(crate) fn age(&self) -> Nanos {
        let is_same_boot = state::boot_id().is_ok_and(|boot_id| boot_id == self.boot_id);
        Nanos::new(if is_same_boot {
            clock::boottime_ns().saturating_sub(self.boot_time)
        } else {
            clock::wall_clock_ns().saturating_sub(self.heard_until)
        })
    }

    /// The rows as they are now, when nobody has listened since.
    pub(crate) fn aged_rows(self) -> Vec<MemberRow> {
        let age = self.age();
        self.nodes.into_iter().map(|row| row.aged(age)).collect()
    }
}

impl FleetPlace {
    /// The one that is named, or the usual one.
    pub(crate) fn of(arguments: &args::FleetPlace) -> Result<Self, Error> {
        let named =
            arguments.fleet_directory.clone().or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
        let usual = || Ok::<_, Error>(packetrig_store::default_place()?.join("fleet"));
        named.map_or_else(usual, Ok).map(Self)
    }

    /// Whether a fleet was made there.
    pub(crate) fn exists(&self) -> bool {
        self.file().exists()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    fn file(&self) -> PathBuf {
        self.0.join("fleet.json")
    }

    pub(crate) fn broker_directory(&self) -> PathBuf {
        self.0.join("broker")
    }

    fn health_file(&self) -> PathBuf {
        self.0.join("health.json")
    }

    /// Writes down what `fleet up` finds of its server. Where it cannot, as on a full disk, the file shows its age.
    pub(crate) fn write_health(&self, health: &BrokerHealth) {
        let text = serde_json::to_string(health).unwrap_or_default();
        private_files::replace(&self.health_file(), text).unwrap_or(());
    }

    /// The same, if `fleet up` works here.
    pub(crate) fn health(&self) -> Option<BrokerHealth> {
        serde_json::from_str(&fs::read_to_string(self.health_file()).ok()?).ok()
    }

    fn presence_file(&self) -> PathBuf {
        self.0.join("presence.json")
    }

    /// Writes down how the nodes are.
    pub(crate) fn write_presence(&self, presence: &FleetPresence) -> io::Result<()> {
        let text = serde_json::to_vec(presence).unwrap_or_default();
        private_files::replace(&self.presence_file(), text)
    }

    /// The same as `fleet up` wrote it last, if it ever did.
    pub(crate) fn presence(&self) -> Option<FleetPresence> {
        serde_json::from_slice(&fs::read(self.presence_file()).ok()?).ok()
    }

    /// What happened to the nodes.
    pub(crate) fn history(&self) -> NodeHistory {
        NodeHistory::of_fleet(&self.0)
    }

    /// Notes something about nodes. It is not needed for anything that goes on now, so it may fail.
    pub(crate) fn note_history(&self, events: Vec<(NodeName, NodeEvent)>) {
        let (at, history) = (clock::wall_clock_ns(), self.history());
        let added =
            events.into_iter().try_for_each(|(node, event)| history.add(&node, &[NodeEntry { at, event }]));
        if let Err(error) = added {
            remark(format_args!("cannot write the history of the nodes: {error}"));
        }
    }

    /// Notes in the history of its nodes how a run ended.
    pub(crate) fn note_run(&self, report: &RunReport) {
        let of_nodes = NodeRun::of_report(report).into_iter();
        self.note_history(of_nodes.map(|(node, run)| (node, NodeEvent::Run(run))).collect());
    }

    pub(crate) fn authority(&self) -> Result<FleetAuthority, Error> {
        Ok(FleetAuthority::open(&self.0.join("authority"))?)
    }

    pub(crate) fn addresses(&self) -> Result<FleetAddresses, Error> {
        let file = self.file();
        let name = file.display().to_string();
        let text =
            fs::read_to_string(&file).map_err(|source| Error::ReadFile { name: name.clone(), source })?;
        serde_json::from_str(&text).map_err(|error| Error::Usage(format!("{name} is damaged: {error}")))
    }

    /// Who belongs to the fleet, with what is known of each. What cannot be read is learnt anew.
    pub(crate) fn roster(&self) -> Result<FleetRoster, Error> {
        let file = self.0.join("nodes.json");
        let known = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let keep = Box::new(move |known: &KnownNodes| {
            let text = serde_json::to_vec(known).unwrap_or_default();
            if let Err(error) = private_files::replace(&file, &text) {
                remark(format_args!("cannot write {}: {error}", file.display()));
            }
        });
        let all = self.authority()?.enrolled()?;
        let enrolled = all.keys().cloned().collect();
        let labels = all.into_iter().map(|(node, known)| (node, known.labels)).collect();
        Ok(FleetRoster { enrolled, labels, known: known.unwrap_or_default(), keep })
    }

    pub(crate) fn write(&self, addresses: &FleetAddresses) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(addresses).unwrap_or_default();
        let what = || self.file().display().to_string();
        private_files::replace(&self.file(), text).map_err(|source| Error::Write { what: what(), source })
    }

    /// Refuses to go on where no fleet was made.
    pub(crate) fn existing(self) -> Result<Self, Error> {
        if self.exists() {
            return Ok(self);
        }
        let place = self.0.display();
        Err(Error::Usage(format!("no fleet in {place}; `packetrig fleet up` makes one")))
    }

    /// The fabric, with the controller's rights.
    pub(crate) fn fabric(&self) -> Result<NatsFabric, Error> {
        let FleetAddresses { servers, .. } = self.addresses()?;
        let (credentials, keys) = self.authority()?.controller()?;
        let mut access = ServerAccess::to(String::new(), Some(credentials));
        (access.servers, access.keys) = (servers, Some(keys));
        Ok(NatsFabric::new(access).map_err(packetrig_node::Error::from)?)
    }

    /// Looks now and then whether the certificate of this controller has to be made anew, as long as this process works.
    /// Connections that are open stay; the next one uses the new.
    pub(crate) fn keep_certificate_valid(&self, fabric: NatsFabric) -> Result<(), Error> {
        let place = self.clone();
        let body = move || loop {
            std::thread::sleep(RENEWAL);
            match place.authority().and_then(|authority| Ok(authority.controller()?)) {
                Ok((credentials, _)) => fabric.renew(&credentials.certificate),
                Err(error) => {
                    remark(format_args!(
                        "cannot renew the certificate of this controller: {}",
                        error.chain()
                    ));
                }
            }
        };
        let started = std::thread::Builder::new().name("renewal".to_owned()).spawn(body);
        started.map(drop).map_err(|error| packetrig_node::Error::Thread(error).into())
    }
}
