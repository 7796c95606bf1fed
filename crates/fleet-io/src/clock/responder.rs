//! Answers clock probes on the controller. Each answer has two times of the controller's clock: when the probe arrived
//! and when it was answered.

use super::probe::{ClockProbe, derive_numbered_key, key_number, parse_key_number};
use crate::agent::now;
use crate::error::Error;
use packetrig_fleet::message::{ClockKey, ClockServer};
use packetrig_report::NodeName;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_units::MonoTime;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Answers clock probes until this value is dropped.
#[derive(Debug)]
pub struct ClockResponder {
    server: ClockServer,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ClockResponder {
    /// Starts to answer probes at a free port of every address of this machine. Probes must be sealed with a key that
    /// [`clock_server_with_node_key`] derived from `key`. `identity` names this machine's clock.
    pub fn start_responding(key: ClockKey, identity: String) -> Result<Self, Error> {
        // A socket at `::` receives IPv4 as well, unless the sysctl `bindv6only` is
        // set. A kernel without IPv6 refuses it.
        let bound = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"));
        let socket = bound.map_err(Error::ClockSocket)?;
        // After each timeout the thread checks whether it should end.
        socket.set_read_timeout(Some(Duration::from_millis(50))).map_err(Error::ClockSocket)?;
        let port = socket.local_addr().map_err(Error::ClockSocket)?.port();
        let at = own_addresses()?
            .into_iter()
            .filter(is_usable_by_nodes)
            .map(|ip| SocketAddr::new(ip, port))
            .collect();
        let over = Arc::new(AtomicBool::new(false));
        let thread = {
            let over = Arc::clone(&over);
            Builder::new().name("clock".to_owned()).spawn(move || answer_probes(&socket, &key, &over))
        };
        let server = ClockServer { at, key, key_number: 0, identity };
        Ok(Self { server, over, thread: Some(thread.map_err(Error::Thread)?) })
    }

    /// Addresses of the responder, with the controller's own key. A node must never get this key: [`clock_server_with_node_key`]
    /// replaces it by the node's own key.
    pub fn server(&self) -> &ClockServer {
        &self.server
    }
}

/// Returns the description of the clock server for one node, with a key that only this node gets.
pub fn clock_server_with_node_key(server: &ClockServer, node: &NodeName) -> ClockServer {
    let key_number = key_number(node);
    ClockServer { key: derive_numbered_key(&server.key, key_number), key_number, ..server.clone() }
}

fn own_addresses() -> Result<Vec<IpAddr>, packetrig_engine::Error> {
    let mut links = NamespaceLinks::open_in(&NetNs::current()?)?;
    Ok(links.list_addresses()?.into_iter().map(|address| address.ip).collect())
}

/// Returns whether nodes can use an address. Link-local addresses are valid on one link only, which
/// the node cannot know.
fn is_usable_by_nodes(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

impl Drop for ClockResponder {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and its result is not needed.
            drop(thread.join());
        }
    }
}

fn answer_probes(socket: &UdpSocket, key: &ClockKey, over: &AtomicBool) {
    // Longer than a probe, so that a longer datagram is not cut to a valid length.
    let mut bytes = [0; 128];
    while !over.load(Ordering::Acquire) {
        let Ok((length, from)) = socket.recv_from(&mut bytes) else { continue };
        // The time is taken before the seal is checked: the check lies between `heard` and `answered`, so it
        // does not count as travel time.
        let heard: MonoTime = now();
        // The key is computed for each question, so the responder needs no list of nodes.
        let Some(key_number) = parse_key_number(&bytes[..length]) else { continue };
        let key = &derive_numbered_key(key, key_number);
        if let Some(ClockProbe::Question { number, .. }) =
            ClockProbe::from_sealed_bytes(&bytes[..length], key)
        {
            let answer = ClockProbe::Answer { number, heard, answered: now() };
            // If the answer cannot be sent, the probe is lost, as on the network.
            drop(socket.send_to(&answer.to_sealed_bytes(key), from));
        }
    }
}
