//! Places of this machine at which only one test listens.

use std::net::{Ipv4Addr, SocketAddr};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that the kernel gives away, and not a port of another test.
const FIRST_PORT: u16 = 18_940;

/// An address and a port that nobody else takes, also while nothing listens there: the address has the number of this process, and the
/// kernel gives the port to nobody.
pub fn own_place() -> SocketAddr {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    // All of 127.0.0.0/8 is this machine. Numbers of processes have at most 22 bits.
    let address = Ipv4Addr::from_bits(0x7f00_0002 | ((process::id() & 0x3f_ffff) << 2));
    (address, FIRST_PORT + TAKEN.fetch_add(1, Ordering::Relaxed)).into()
}
