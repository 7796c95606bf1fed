//! Hands over a pair of datagrams, 50 us apart, and prints when they left: `pair SOURCE TARGET` (IPv4).
#![expect(clippy::print_stdout, reason = "an example prints")]
use packetrig_release::{PacketToRelease, ReleaseClient, ReleaseEvent, release_socket_path};
use std::{env::args, error::Error, net::Ipv4Addr, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let address =
        |n| args().nth(n).ok_or("pair SOURCE TARGET")?.parse::<Ipv4Addr>().map_err(Box::<dyn Error>::from);
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend([address(1)?.octets(), address(2)?.octets()].concat());
    let sum: u32 = packet.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum();
    packet[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16))).to_be_bytes()[2..]);
    packet.extend([0x9c, 0x40, 0, 9, 0, 8, 0, 0]); // UDP from port 40000 to 9, without a checksum
    let mut client = ReleaseClient::connect(&release_socket_path(), "pair", 0)?;
    let due = packetrig_sys::clock::monotonic_ns() + 20_000_000;
    let probe =
        |n| PacketToRelease { train: 1, ..PacketToRelease::ip_packet(n, due + n * 50_000, packet.clone()) };
    client.submit_packets(vec![probe(0), probe(1)])?;
    if let Some(ReleaseEvent::Reports(reports)) = client.next_event(Duration::from_secs(5))? {
        for report in reports {
            println!("{}: {} {:?}", report.cookie, report.outcome.name(), report.departed_at());
        }
    }
    Ok(())
}
