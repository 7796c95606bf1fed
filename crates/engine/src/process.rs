//! The `process` back end: another program, the *engine*, sends; AF_PACKET rings receive.
//!
//! ```text
//!  rig --- stdin ---> engine (trafgen, tcpreplay, the user's own) ---> interface
//!      <-- stdout ---
//! ```
//! The engine receives its part of the plan, with the frames as files, and reports what it has sent;
//! `docs/book/engines.md` describes the protocol. Unsupported settings are refused by name before anything is sent.
//! Frames carry numbers, but no send times, because they are made before the run: loss is measured, latency is not.
//!
//! A run with a lease is refused: nothing guarantees that an engine stops sending if packetrig itself stands still.
//!
//! Invariant: only the user who starts the run on this machine names an engine, never a plan or a message.

mod abilities;
mod child;
mod command;
mod fault;
mod lane;
mod lines;
mod messages;
mod render;
mod tx;

pub use command::{ENGINE_ADAPTERS, EngineAdapter, EngineCommand};
pub use messages::{ENGINE_PROTOCOL_VERSION, EngineAbilities, EngineHello};
pub use tx::ProcessTx;

use crate::Error;
use crate::device::PortInterfaceHandle;
use crate::packet::facts::InterfaceMeter;
use crate::packet::{self, OpenOptions, PortHold};
use crate::receiver::TestReceiver;
use crate::rig::{HeldPort, OpenPort};
use crate::send_doubts::SendDoubts;
use child::EngineProcess;
use fault::{EngineFault, to_terminal_safe_line};
use messages::EngineReply;
use packetrig_plan::Port;
use packetrig_stats::port::{BackEnd, PortInfo};
use packetrig_units::Nanos;

/// Time limit for the engine's hello: an interpreter on a busy machine starts slowly.
const HELLO_TIMEOUT: Nanos = Nanos::from_secs(20);

/// Interface that an engine sends from.
#[derive(Clone, Debug)]
struct EngineInterface {
    interface: String,
    link_bits_per_second: Option<u64>,
}

/// Opens a port that an engine sends from. Starts the engine, which sends nothing yet.
pub fn open_port(port: &Port, options: OpenOptions, command: &EngineCommand) -> Result<OpenPort, Error> {
    let opened = packet::open_port(port, options)?;
    let site = opened.hold.interface_site()?;
    // The engine starts after the port is open, so its interface is already checked and locked.
    let mut engine = EngineProcess::start(command, &site.netns)?;
    let hello = await_hello(&mut engine)
        .map_err(|fault| Error::Engine { engine: command.name(), reason: fault.to_string() })?;
    let meter = InterfaceMeter::start(&site.netns, site.index)?.exclude_frames(&site.aside);
    let doubts = SendDoubts::default();
    let version = if hello.version.is_empty() { String::new() } else { format!(" {}", hello.version) };
    let engine_site = EngineInterface {
        interface: port.location.interface.clone(),
        link_bits_per_second: opened.info.speed.map(packetrig_units::BitRate::bits_per_second),
    };
    Ok(OpenPort {
        info: PortInfo {
            back_end: BackEnd::Process,
            why: format!("requested: engine {}{version}", hello.name),
            ..opened.info
        },
        tx: Box::new(ProcessTx::new(engine, hello, engine_site, meter, doubts.clone())),
        rx: Box::new(TestReceiver::new(opened.rx)),
        hold: Box::new(EnginePortReservation { packet: opened.hold, doubts }),
    })
}

/// Waits for the engine's hello and checks its version.
fn await_hello(engine: &mut EngineProcess) -> Result<EngineHello, EngineFault> {
    match engine.await_reply("hello", HELLO_TIMEOUT)? {
        EngineReply::Hello(hello) if hello.protocol != ENGINE_PROTOCOL_VERSION => {
            Err(EngineFault::Version(hello.protocol))
        }
        EngineReply::Hello(hello) => {
            // Names come from another program: control characters must not reach the terminal.
            let [name, version] = [&hello.name, &hello.version].map(|text| to_terminal_safe_line(text));
            Ok(EngineHello { name, version, ..hello })
        }
        EngineReply::Failed { text } => Err(EngineFault::GaveUp(to_terminal_safe_line(&text))),
        other => Err(EngineFault::Unexpected(other.name())),
    }
}

/// Keeps the port of an engine open, and collects the doubts about the engine.
#[derive(Debug)]
struct EnginePortReservation {
    packet: PortHold,
    doubts: SendDoubts,
}

impl HeldPort for EnginePortReservation {
    fn await_ready(&mut self) -> Result<(), Error> {
        self.packet.await_carrier()
    }

    fn device_site(&self) -> Result<Option<PortInterfaceHandle>, Error> {
        self.packet.interface_site().map(Some)
    }

    fn caveats(&self) -> Vec<String> {
        self.packet.caveats().iter().cloned().chain(self.doubts.list_doubts()).collect()
    }

    fn switch_link(&mut self, up: bool) -> Result<(), Error> {
        self.packet.switch_link(up)
    }
}

#[cfg(test)]
mod tests;
