//! The stations are kernels: their stacks leave checksums and the division of streams to a card, and a virtual cable has none.

use crate::testbed::{Testbed, number, stop};
use packetrig_sys::link::NamespaceLinks;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

/// Many times what the stack hands over in one piece.
const STREAM: usize = 3 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];

/// A datagram there and back, and a stream to the second station: what it has got of it.
fn exchange(testbed: &Testbed) -> usize {
    let ports = testbed.lab().ports();
    for (port, address) in ports.iter().zip(ADDRESSES) {
        let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
        links.add_address(port.link.index, IpAddr::V4(address), 24).unwrap();
    }
    let bind = |n: usize| {
        ports[n].netns().run_in_namespace(|| UdpSocket::bind((ADDRESSES[n], 5000)).unwrap()).unwrap()
    };
    let datagrams = [bind(0), bind(1)];
    for (from, to) in [(0, 1), (1, 0)] {
        datagrams[to].set_read_timeout(Some(PATIENCE)).unwrap();
        datagrams[from].send_to(b"as on a wire", (ADDRESSES[to], 5000)).unwrap();
        let mut got = [0; 64];
        let length = datagrams[to].recv(&mut got).unwrap();
        assert_eq!(&got[..length], b"as on a wire");
    }
    let listener =
        ports[1].netns().run_in_namespace(|| TcpListener::bind((ADDRESSES[1], 5001)).unwrap()).unwrap();
    let receiver = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        got.len()
    });
    let mut sender =
        ports[0].netns().run_in_namespace(|| TcpStream::connect((ADDRESSES[1], 5001)).unwrap()).unwrap();
    sender.set_write_timeout(Some(PATIENCE)).unwrap();
    sender.write_all(&vec![0x5a; STREAM]).unwrap();
    drop(sender);
    receiver.join().unwrap()
}

fn tap_is_a_wire_for_kernels(flags: &[&str]) {
    let Some(testbed) = Testbed::new("packet", 2) else { return };
    let tap = testbed.tap("packet", flags);
    assert_eq!(exchange(&testbed), STREAM);
    let result = stop(tap);
    // In packets of the cable's size: none is longer than the interface can send.
    let least = (STREAM / usize::try_from(testbed.link(0).mtu).unwrap()) as u64;
    assert!(number(&result, "/accounts/directions/0/forwarded") >= least, "{result}");
    assert!(!result.to_string().contains("too-long"), "{result}");
}

#[test]
fn kernels_exchange_datagrams_and_streams_through_a_tap() {
    tap_is_a_wire_for_kernels(&[]);
}

#[test]
fn kernels_exchange_datagrams_and_streams_through_an_impaired_tap() {
    tap_is_a_wire_for_kernels(&["--impair", "delay=1ms"]);
}
