//! The directory of a fleet: its keys, and the addresses of its message server and enrolment server.
//!
//! ```text
//! DIR/authority/…    keys and certificates
//! DIR/broker/…       configuration and store of the message server
//! DIR/fleet.json     addresses at which nodes reach the two servers
//! DIR/health.json    state of the message server at the last check of `fleet up`
//! DIR/nodes.json     the last hello of each node to a controller
//! DIR/presence.json  the last hello of each node to `fleet up`
//! DIR/history/…      events of each node
//! ```
//! Everybody who can read this directory can control the fleet, so only its owner can read it.

use crate::args;
use crate::error::Error;
use crate::output::print_warning;
use packetrig_fleet::history::{NodeEntry, NodeEvent, NodeRun};
use packetrig_fleet::members::MemberRow;
use packetrig_fleet_io::fleet::{FleetRoster, KnownNodes};
use packetrig_nats::authority::FleetAuthority;
use packetrig_nats::broker::BrokerHealth;
use packetrig_nats::{NatsFabric, ServerAccess};
use packetrig_report::{NodeName, RunReport};
use packetrig_store::NodeHistory;
use packetrig_sys::clock::{self, state};
use packetrig_sys::private_files;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Interval between two checks whether the controller's certificate expires soon.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_hours(1);
/// Environment variable with the directory for commands without `--fleet`.
const FLEET_DIRECTORY_VARIABLE: &str = "PACKETRIG_FLEET";

/// Returns true if the command line or the environment gives the directory of the fleet.
pub(crate) fn is_directory_given(arguments: &args::FleetPlace) -> bool {
    arguments.fleet_directory.is_some() || std::env::var_os(FLEET_DIRECTORY_VARIABLE).is_some()
}

#[derive(Clone, Debug)]
pub(crate) struct FleetPlace(PathBuf);

/// Addresses of a fleet, as nodes reach them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetAddresses {
    /// Addresses of the message server, or of each server of a cluster.
    pub(crate) servers: Vec<String>,
    /// Address of the enrolment server.
    pub(crate) enrol: String,
}

/// A snapshot of the state of all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetPresence {
    /// Time of this state, in nanoseconds since 1970 (UTC).
    pub(crate) heard_until: u64,
    /// The time of this state on CLOCK_BOOTTIME. Nobody can set this clock, but it starts again at every boot.
    boot_time: u64,
    boot_id: String,
    /// One row for each node that ever sent a hello.
    pub(crate) nodes: Vec<MemberRow>,
}

impl FleetPresence {
    pub(crate) fn take_snapshot(nodes: Vec<MemberRow>) -> Self {
        Self {
            heard_until: clock::wall_clock_ns(),
            // CLOCK_BOOTTIME continues while the machine sleeps, so the age includes the sleep.
            boot_time: clock::boottime_ns(),
            // If the boot id is unknown, it never matches later, so the age comes from the wall clock.
            boot_id: state::boot_id().unwrap_or_default(),
            nodes,
        }
    }

    /// Age of this state. After a reboot it comes from the wall clock, which may have been set since then.
    pub(crate) fn age(&self) -> Nanos {
        let is_same_boot = state::boot_id().is_ok_and(|boot_id| boot_id == self.boot_id);
        Nanos::new(if is_same_boot {
            clock::boottime_ns().saturating_sub(self.boot_time)
        } else {
            clock::wall_clock_ns().saturating_sub(self.heard_until)
        })
    }

    /// Returns the rows with their ages now: the age of this state is added to the age of each last hello.
    pub(crate) fn with_current_ages(self) -> Vec<MemberRow> {
        let age = self.age();
        self.nodes.into_iter().map(|row| row.with_added_age(age)).collect()
    }
}

impl FleetPlace {
    /// The directory of `--fleet`, otherwise of `$PACKETRIG_FLEET`, otherwise the default one.
    pub(crate) fn from_arguments(arguments: &args::FleetPlace) -> Result<Self, Error> {
        let named = arguments
            .fleet_directory
            .clone()
            .or_else(|| std::env::var_os(FLEET_DIRECTORY_VARIABLE).map(PathBuf::from));
        Ok(Self(match named {
            Some(named) => named,
            None => packetrig_store::default_store_directory()?.join("fleet"),
        }))
    }

    /// Returns true if the directory has a fleet.
    pub(crate) fn exists(&self) -> bool {
        // `fleet up` writes this file after the message server has answered.
        self.addresses_file().exists()
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    fn addresses_file(&self) -> PathBuf {
        self.0.join("fleet.json")
    }

    pub(crate) fn broker_directory(&self) -> PathBuf {
        self.0.join("broker")
    }

    fn health_file(&self) -> PathBuf {
        self.0.join("health.json")
    }

    /// Saves the state of the message server.
    pub(crate) fn write_broker_health(&self, health: &BrokerHealth) {
        let text = serde_json::to_string(health).unwrap_or_default();
        // A failed write is no error here: usually the disk is full, and `fleet status` then shows the age of the file.
        drop(private_files::replace_file(&self.health_file(), text));
    }

    /// Reads the saved state of the message server; `None` if `fleet up` has saved none, or if the file is damaged.
    pub(crate) fn read_broker_health(&self) -> Option<BrokerHealth> {
        // A damaged file counts as a missing one: the next check of `fleet up` replaces it.
        serde_json::from_str(&fs::read_to_string(self.health_file()).ok()?).ok()
    }

    fn presence_file(&self) -> PathBuf {
        self.0.join("presence.json")
    }

    /// Saves the state of the nodes.
    pub(crate) fn write_presence(&self, presence: &FleetPresence) -> io::Result<()> {
        let text = serde_json::to_vec(presence).unwrap_or_default();
        // The file is replaced as a whole, so `fleet status` never reads half a file.
        private_files::replace_file(&self.presence_file(), text)
    }

    /// Reads the saved state of the nodes; `None` if `fleet up` has saved none, or if the file is damaged.
    pub(crate) fn read_presence(&self) -> Option<FleetPresence> {
        serde_json::from_slice(&fs::read(self.presence_file()).ok()?).ok()
    }

    /// Returns access to the history of the nodes, which is in files of this directory.
    pub(crate) fn node_history(&self) -> NodeHistory {
        NodeHistory::in_fleet_directory(&self.0)
    }

    /// Adds events to the history of nodes. No run needs the history, so a failure is only printed.
    pub(crate) fn record_history(&self, events: Vec<(NodeName, NodeEvent)>) {
        let at = clock::wall_clock_ns();
        let history = self.node_history();
        let added = events
            .into_iter()
            .try_for_each(|(node, event)| history.add_entries(&node, &[NodeEntry { at, event }]));
        if let Err(error) = added {
            print_warning("fleet", format_args!("cannot write the history of the nodes: {error}"));
        }
    }

    /// Adds the end of a run to the history of its nodes.
    pub(crate) fn record_run_end(&self, report: &RunReport) {
        let of_nodes = NodeRun::runs_from_report(report).into_iter();
        self.record_history(of_nodes.map(|(node, run)| (node, NodeEvent::Run(run))).collect());
    }

    pub(crate) fn open_authority(&self) -> Result<FleetAuthority, Error> {
        Ok(FleetAuthority::open_or_create(&self.0.join("authority"))?)
    }

    pub(crate) fn read_addresses(&self) -> Result<FleetAddresses, Error> {
        let file = self.addresses_file();
        let name = file.display().to_string();
        let text =
            fs::read_to_string(&file).map_err(|source| Error::ReadFile { name: name.clone(), source })?;
        serde_json::from_str(&text).map_err(|error| Error::Usage(format!("{name} is damaged: {error}")))
    }

    /// Reads the nodes of the fleet with their last hellos. If the file of hellos cannot be read, the roster has none,
    /// and controllers learn them again.
    pub(crate) fn read_roster(&self) -> Result<FleetRoster, Error> {
        let file = self.0.join("nodes.json");
        // Without this file only the last hellos are missing: the authority has the list of the fleet's nodes.
        let known = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let keep = Box::new(move |known: &KnownNodes| {
            let text = serde_json::to_vec(known).unwrap_or_default();
            if let Err(error) = private_files::replace_file(&file, &text) {
                print_warning("fleet", format_args!("cannot write {}: {error}", file.display()));
            }
        });
        let all = self.open_authority()?.read_enrolled_nodes()?;
        let enrolled = all.keys().cloned().collect();
        let labels = all.into_iter().map(|(node, known)| (node, known.labels)).collect();
        Ok(FleetRoster { enrolled, labels, known: known.unwrap_or_default(), keep })
    }

    pub(crate) fn write_addresses(&self, addresses: &FleetAddresses) -> Result<(), Error> {
        // The value has only strings, which JSON can always represent.
        let text = serde_json::to_string_pretty(addresses).unwrap_or_default();
        let file = self.addresses_file();
        private_files::replace_file(&file, text).map_err(|source| Error::unwritable_file(&file, source))
    }

    /// Returns an error if the directory has no fleet.
    pub(crate) fn require_existing(self) -> Result<Self, Error> {
        if self.exists() {
            return Ok(self);
        }
        let place = self.0.display();
        Err(Error::Usage(format!("there is no fleet in {place}; `packetrig fleet up` creates one")))
    }

    /// Returns access to the fleet's message servers (NATS), with the rights of a controller.
    pub(crate) fn make_controller_fabric(&self) -> Result<NatsFabric, Error> {
        self.make_controller_fabric_for_servers(self.read_addresses()?.servers)
    }

    /// Returns access to the message servers (NATS) at these addresses, with the rights of a controller.
    pub(crate) fn make_controller_fabric_for_servers(
        &self,
        servers: Vec<String>,
    ) -> Result<NatsFabric, Error> {
        let (credentials, keys) = self.open_authority()?.load_controller_credentials()?;
        let mut access = ServerAccess::for_server(String::new(), Some(credentials));
        access.servers = servers;
        access.keys = Some(keys);
        Ok(NatsFabric::new(access).map_err(packetrig_fleet_io::Error::from)?)
    }

    /// Starts a thread that renews the certificate of this controller before it expires. Open connections remain; later
    /// connections use the new certificate.
    pub(crate) fn start_certificate_renewal(&self, fabric: NatsFabric) -> Result<(), Error> {
        let place = self.clone();
        let thread = std::thread::Builder::new().name("renewal".to_owned());
        let started = thread.spawn(move || place.renew_credentials_for_ever(&fabric));
        started.map(drop).map_err(|error| packetrig_fleet_io::Error::Thread(error).into())
    }

    fn renew_credentials_for_ever(&self, fabric: &NatsFabric) -> ! {
        loop {
            // The loop sleeps first, because `fabric` has just been made with valid credentials.
            std::thread::sleep(CERTIFICATE_CHECK_INTERVAL);
            // The authority makes a new certificate itself if the present one expires soon.
            match self.open_authority().and_then(|authority| Ok(authority.load_controller_credentials()?)) {
                Ok((credentials, _)) => fabric.renew_credentials(credentials.newest_credentials()),
                Err(error) => {
                    let why = error.full_message();
                    print_warning(
                        "fleet",
                        format_args!(
                            "cannot renew the certificate of this controller: {why}; trying again in an hour"
                        ),
                    );
                }
            }
        }
    }
}
