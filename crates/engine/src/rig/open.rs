//! Opens ports: interfaces of this machine, on the back end that the user names or that [`super::choose`] chooses.
//! Tests provide their own opener.

use super::choose::{BackEndChoice, PortAbilities, PortNeeds, choose_back_end};
use super::{PlanPortLocations, RigOptions};
use crate::Error;
use crate::clock::RealClock;
use crate::device::PortInterfaceHandle;
use crate::packet::{self, OpenOptions, PortHold, ReusablePorts};
use crate::pktgen;
use crate::process::{self, EngineCommand};
use crate::receiver::TestReceiver;
use crate::sender::TestSender;
use crate::stream::{StreamRx, StreamTx};
use crate::xdp::{self, SendMethod};
use packetrig_plan::{Plan, Port, PortLocation};
use packetrig_stats::limit::RigLimit;
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_sys::ethtool::EthtoolCalls;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{netdev, sched};
use packetrig_units::{BitRate, FrameSize};
use std::collections::BTreeSet;

/// Reason shown for a back end that the user named.
const REQUESTED_BACK_END_REASON: &str = "requested";

/// An open port: its transmit half, its receive half, and the value that keeps it open.
pub struct OpenPort {
    /// Description of the opened port.
    pub info: PortInfo,
    pub tx: Box<dyn StreamTx>,
    pub rx: Box<dyn StreamRx>,
    /// Objects that must live as long as the port is used: its lock, its interface's former settings.
    pub hold: Box<dyn HeldPort>,
}

/// Keeps a port open. Dropping it restores the settings of the interface, unless the port stays open for the next run.
pub trait HeldPort: Send {
    /// Waits until the port can carry frames, for a limited time. Called when all ports are open: a cable between two
    /// ports has a carrier only then.
    fn await_ready(&mut self) -> Result<(), Error>;
    /// Corrects the description of the port if [`Self::await_ready`] has changed how the port sends.
    fn correct_port_info(&self, info: &mut PortInfo) {
        let _ = info;
    }
    /// Returns the interface on which emulated interfaces open their sockets; `None` if the port cannot have any.
    fn device_site(&self) -> Result<Option<PortInterfaceHandle>, Error> {
        Ok(None)
    }
    /// Returns texts for caveats of the report, such as a missing carrier or a setting that could not be changed.
    fn caveats(&self) -> Vec<String>;
    /// Switches the link up or down.
    fn switch_link(&mut self, up: bool) -> Result<(), Error>;
}

/// For simulated ports, which have nothing to keep open or to restore.
impl HeldPort for () {
    fn await_ready(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn caveats(&self) -> Vec<String> {
        Vec::new()
    }

    fn switch_link(&mut self, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

impl HeldPort for PortHold {
    fn await_ready(&mut self) -> Result<(), Error> {
        self.await_carrier()
    }

    fn device_site(&self) -> Result<Option<PortInterfaceHandle>, Error> {
        Self::interface_site(self).map(Some)
    }

    fn caveats(&self) -> Vec<String> {
        Self::caveats(self).to_vec()
    }

    fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        Self::switch_link(self, up)
    }
}

impl std::fmt::Debug for OpenPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenPort").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Opens the ports of a plan. Several threads call it at the same time.
pub trait PortOpener: Sync {
    /// Opens one port. `largest` is the largest frame that will be sent from it, or `None` if it sends nothing.
    fn open_port(&self, port: &Port, largest: Option<FrameSize>) -> Result<OpenPort, Error>;
}

/// Opens ports on interfaces of this machine, on the back end that the user named or that packetrig chooses.
#[derive(Clone, Debug)]
pub struct MachinePorts {
    /// Interfaces that the user confirmed although they look like a part of a real network.
    confirmed: BTreeSet<PortLocation>,
    /// Back end that the user named.
    back_end: Option<BackEnd>,
    /// Plan from which packetrig chooses a back end if the user names none.
    plan: Plan,
    limits: Vec<RigLimit>,
    /// Whether streams can be started, stopped and changed during the run.
    steered: bool,
    /// Whether a lease limits sending.
    leased: bool,
    /// Program that sends with back end `process`.
    engine: Option<EngineCommand>,
    /// Ports that stay open between runs: ports of earlier runs, and later the ports of this run. `None` if this run
    /// closes its ports at its end.
    kept: Option<ReusablePorts>,
}

impl PortOpener for MachinePorts {
    fn open_port(&self, port: &Port, largest: Option<FrameSize>) -> Result<OpenPort, Error> {
        // The thread enters the namespace once for everything that opening does there.
        NetNs::open_named_or_current_namespace(port.location.namespace.as_deref())?
            .run_in_namespace(|| self.open_local_port(port, largest))?
    }
}

impl MachinePorts {
    /// Creates an opener for the ports of `plan`.
    pub fn new(plan: &Plan, options: &RigOptions) -> Self {
        Self {
            confirmed: options.confirmed.clone(),
            back_end: options.terms.back_end,
            plan: plan.clone(),
            limits: options.terms.limits.clone(),
            steered: options.terms.steered,
            leased: options.gate.is_leased(),
            engine: options.engine.clone(),
            kept: None,
        }
    }

    /// Keeps ports on AF_PACKET rings open in `kept` after the run. Closes the ports in `kept` that this
    /// run does not use.
    #[must_use]
    pub fn with_kept_ports(self, kept: Option<ReusablePorts>, site: &PlanPortLocations) -> Self {
        if let Some(kept) = &kept {
            kept.close_all_except(&site.port_locations(&self.plan));
        }
        Self { kept, ..self }
    }

    fn open_local_port(&self, port: &Port, largest: Option<FrameSize>) -> Result<OpenPort, Error> {
        let confirmed = self.confirmed.contains(&port.location);
        // Emulated interfaces must receive their neighbours' messages.
        let has_devices = self.plan.interfaces.iter().any(|of| self.plan.ports[of.port].name == port.name);
        let options = OpenOptions { confirmed, largest, has_devices };
        // `largest` sizes the slots of a ring, which cannot change later. A steered run may send longer frames later,
        // and from any port.
        let of_rings = OpenOptions { largest: largest.filter(|_| !self.steered), ..options };
        let any = FrameSize::new(u32::MAX);
        let of_xdp = OpenOptions { largest: if self.steered { Some(any) } else { largest }, ..options };
        match self.back_end {
            Some(BackEnd::Xdp) => {
                self.open_xdp_port(port, of_xdp, self.send_method(port), REQUESTED_BACK_END_REASON.into())
            }
            Some(BackEnd::AfXdp) => {
                self.open_xdp_port(port, of_xdp, SendMethod::Socket(None), REQUESTED_BACK_END_REASON.into())
            }
            // These back ends continue by themselves once started, so a lease could not stop them.
            Some(back_end @ (BackEnd::Pktgen | BackEnd::Process)) if largest.is_some() && self.leased => {
                Err(Error::NoLease { port: port.name.clone(), back_end: back_end.name() })
            }
            // Only `--engine` names the program, because a plan must not choose a program that runs here.
            Some(BackEnd::Process) if largest.is_some() => match &self.engine {
                Some(engine) => {
                    self.close_kept_port(port);
                    process::open_port(port, options, engine)
                }
                None => Err(Error::NoEngine { port: port.name.clone() }),
            },
            // Pktgen only sends. A port that only receives uses AF_PACKET rings.
            Some(BackEnd::Pktgen) if largest.is_some() => {
                self.close_kept_port(port);
                pktgen::open_port(port, options)
            }
            Some(back_end) => {
                let why = if back_end == BackEnd::Packet {
                    format!("{REQUESTED_BACK_END_REASON}: AF_PACKET rings work with every kernel and card")
                } else {
                    format!("{} only sends, and this port only receives", back_end.name())
                };
                self.open_packet_port(port, of_rings, why)
            }
            None if self.steered => self.open_packet_port(
                port,
                of_rings,
                "streams are started, stopped and changed during the run, which AF_PACKET rings support"
                    .into(),
            ),
            None => self.open_chosen_port(port, options),
        }
    }

    /// Closes the port if an earlier run left it open: no other back end could open the locked interface.
    fn close_kept_port(&self, port: &Port) {
        if let Some(kept) = &self.kept {
            kept.close_port(&port.location);
        }
    }

    fn open_xdp_port(
        &self,
        port: &Port,
        options: OpenOptions,
        method: SendMethod,
        why: String,
    ) -> Result<OpenPort, Error> {
        self.close_kept_port(port);
        xdp::open_port(port, options, method, why)
    }

    fn port_needs(&self, port: &Port, speed: Option<BitRate>) -> PortNeeds {
        let index = self.plan.ports.iter().position(|of_plan| of_plan.name == port.name);
        let mut needs = index.map(|index| PortNeeds::from_plan(&self.plan, index, speed)).unwrap_or_default();
        if self.steered {
            needs.live_send_obstacle =
                Some("live frames cannot be started, stopped or changed during the run".into());
        }
        needs
    }

    /// Returns how back end `xdp` sends: live frames, or a socket and the reason why live frames are impossible.
    fn send_method(&self, port: &Port) -> SendMethod {
        self.port_needs(port, port.speed)
            .live_send_obstacle
            .map_or(SendMethod::Live, |reason| SendMethod::Socket(Some(reason)))
    }

    fn open_chosen_port(&self, port: &Port, options: OpenOptions) -> Result<OpenPort, Error> {
        let BackEndChoice { back_end, why } = self.choose_back_end(port)?;
        let opened = match back_end {
            BackEnd::Xdp => self.open_xdp_port(port, options, self.send_method(port), why.clone()),
            BackEnd::AfXdp => self.open_xdp_port(port, options, SendMethod::Socket(None), why.clone()),
            _ => return self.open_packet_port(port, options, why),
        };
        // A plan that works on rings must not fail because a faster back end does.
        opened.or_else(|error| {
            let why = format!("{why}; but back end {} does not work here: {error}", back_end.name());
            self.open_packet_port(port, options, why)
        })
    }

    /// Reads link speed, driver and XDP features of the interface, and chooses the back end from them.
    fn choose_back_end(&self, port: &Port) -> Result<BackEndChoice, Error> {
        let netns = NetNs::open_named_or_current_namespace(port.location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&port.location.interface)?;
        let ethtool = EthtoolCalls::open_in(&netns)?;
        let speed = port.speed.or_else(|| {
            let speed = ethtool.read_link_speed(&link.name).ok().flatten()?;
            Some(BitRate::new(u64::from(speed.mbits) * 1_000_000))
        });
        // If the kernel does not report XDP features, the driver counts as one without XDP: rings work everywhere.
        let features = netdev::read_xdp_features(&netns, link.index).unwrap_or_default();
        let abilities = PortAbilities {
            driver: ethtool.read_driver_name(&link.name).map(|driver| driver.name).unwrap_or_default(),
            processors: sched::read_allowed_cpus().map_or(1, |cpus| cpus.len()),
            no_bpf: packetrig_sys::xdp::bpf_obstacle().map(|error| error.to_string()),
            native: features.native,
        };
        Ok(choose_back_end(&self.port_needs(port, speed), &abilities, &self.limits))
    }

    fn open_packet_port(&self, port: &Port, options: OpenOptions, why: String) -> Result<OpenPort, Error> {
        if let Some(kept) = &self.kept {
            let lent = kept.reuse_or_open_port(port, options)?;
            return Ok(OpenPort {
                info: PortInfo { why, ..lent.info },
                tx: Box::new(TestSender::new(lent.tx, RealClock::new())),
                rx: Box::new(TestReceiver::new(lent.rx)),
                hold: Box::new(lent.hold),
            });
        }
        let opened = packet::open_port(port, options)?;
        Ok(OpenPort {
            info: PortInfo { why, ..opened.info },
            tx: Box::new(TestSender::new(opened.tx, RealClock::new())),
            rx: Box::new(TestReceiver::new(opened.rx)),
            hold: Box::new(opened.hold),
        })
    }
}
