//! nfdump's collector at work.

use crate::own_place::own_place;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running nfcapd, killed when it is dropped.
#[derive(Debug)]
pub struct Nfcapd {
    child: Child,
    place: SocketAddr,
}

impl Drop for Nfcapd {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Nfcapd {
    /// Starts one that writes into a directory, and waits until it listens.
    pub fn start(directory: &Path) -> anyhow::Result<Self> {
        Self::start_program("nfcapd", directory)
    }

    /// The same for one of its relatives, such as sfcapd.
    pub fn start_program(program: &str, directory: &Path) -> anyhow::Result<Self> {
        let place = own_place();
        let (address, port) = (place.ip().to_string(), place.port().to_string());
        let child = Command::new(program)
            .args(["-4", "-b", &address, "-t", "3600", "-B", "4000000", "-p", &port, "-w"])
            .arg(directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut nfcapd = Self { child, place };
        nfcapd.await_queue(|queue| queue.is_some())?;
        Ok(nfcapd)
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.place
    }

    /// Waits for what the kernel says of its socket: how many bytes are in it.
    fn await_queue(&mut self, is_there: impl Fn(Option<u64>) -> bool) -> anyhow::Result<()> {
        while !is_there(queued(self.place)?) {
            anyhow::ensure!(self.child.try_wait()?.is_none(), "nfcapd has ended");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Sends it a message, once it has taken most of what it was sent before: nothing is lost.
    pub fn send(&mut self, socket: &UdpSocket, message: &[u8]) -> anyhow::Result<()> {
        self.await_queue(|queue| queue.is_some_and(|bytes| bytes < 1 << 16))?;
        socket.send_to(message, self.address())?;
        Ok(())
    }

    /// Lets it take what was sent, and ends it, which writes its file.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.await_queue(|queue| queue == Some(0))?;
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a child has a number")?;
        kill_process(pid, Signal::INT)?;
        anyhow::ensure!(self.child.wait()?.success(), "nfcapd failed");
        Ok(())
    }
}

/// Bytes in the queue of the UDP socket at a place, if there is one.
fn queued(place: SocketAddr) -> anyhow::Result<Option<u64>> {
    let IpAddr::V4(address) = place.ip() else { anyhow::bail!("{place} is not of IPv4") };
    // As the kernel writes it: the address as the number that it is in memory.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.octets()), place.port());
    let table = std::fs::read_to_string("/proc/net/udp")?;
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let mut found = rows.filter(|row| row[1] == local);
    let Some(row) = found.next() else { return Ok(None) };
    let bytes = row[4].split(':').nth(1).context("two numbers")?;
    Ok(Some(u64::from_str_radix(bytes, 16)?))
}
