use super::report::kernel_report_from;
use super::*;
use crate::clock;
use std::net::UdpSocket;

const ALL: WantedStamps =
    WantedStamps { queued: true, sent: true, wire: false, arrival: true, arrival_by_device: false };

/// Until it is so, for a while.
fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    (0..2_000).find_map(|_| {
        let found = look();
        if found.is_none() {
            clock::sleep_until_ns(clock::monotonic_ns() + 1_000_000);
        }
        found
    })
}

#[test]
fn datagram_departure_and_arrival_stamps_are_ordered() {
    let (one, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    request_stamps(&one, ALL).unwrap();
    request_stamps(&other, ALL).unwrap();
    let mut departed = Vec::new();
    let mut arrived = Vec::new();
    for number in 0..20_u8 {
        let before = clock::wall_clock_ns();
        one.send_to(&[number; 40], other.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 20];
        let received = wait_for(|| receive_packet(&other, &mut buffer).unwrap()).unwrap();
        assert_eq!((received.length, received.from), (20, Some(one.local_addr().unwrap())));
        assert_eq!(buffer, [number; 20]);
        arrived.push((before, received.stamps.software_ns, clock::wall_clock_ns()));
        drain_reports(&one, &mut |report| departed.push(report)).unwrap();
    }
    assert_eq!(departed.len(), 40, "{departed:?}");
    for (number, (before, arrival, after)) in (0..20).zip(arrived) {
        let of = |wanted| {
            departed.iter().find_map(|report| match report {
                KernelReport::Departed { number: of, stage, stamps } if (*of, *stage) == (number, wanted) => {
                    stamps.software_ns
                }
                _ => None,
            })
        };
        let (queued, sent) = (of(PacketSendStage::Queued).unwrap(), of(PacketSendStage::Sent).unwrap());
        assert!(before <= queued && queued <= sent && sent <= after, "{number}");
        // Arrivals are stamped once the kernel has switched it on, a little after it was asked for.
        assert!(arrival.is_none_or(|arrival| sent <= arrival && arrival <= after), "{number}");
    }
}

#[test]
fn numbers_begin_anew_with_each_request() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    for _ in 0..2 {
        request_stamps(&socket, WantedStamps { sent: true, ..WantedStamps::default() }).unwrap();
        socket.send_to(&[1], to).unwrap();
        let mut numbers = Vec::new();
        drain_reports(&socket, &mut |report| {
            if let KernelReport::Departed { number, .. } = report {
                numbers.push(number);
            }
        })
        .unwrap();
        assert_eq!(numbers, [0]);
    }
    request_stamps(&socket, WantedStamps::default()).unwrap();
    socket.send_to(&[1], to).unwrap();
    assert_eq!(drain_reports(&socket, &mut |_| ()).unwrap(), 0);
}

/// A control message as the kernel lays it out.
fn control(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    let mut bytes = (data.len() + 16).to_ne_bytes().to_vec();
    bytes.extend(level.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn of_bytes(rest: &[u8]) -> Option<KernelReport> {
    kernel_report_from(ControlMessages { rest })
}

fn failure(origin: u8, code: u8, info: u32, data: u32) -> Vec<u8> {
    let mut bytes = 125_u32.to_ne_bytes().to_vec();
    bytes.extend([origin, 0, code, 0]);
    bytes.extend([info, data].iter().flat_map(|number| number.to_ne_bytes()));
    control(libc::SOL_PACKET, libc::PACKET_TX_TIMESTAMP, &bytes)
}

#[test]
fn drops_for_a_release_time_name_it() {
    let at_ns = 0x0123_4567_89ab_cdef_u64;
    let of = |code| of_bytes(&failure(6, code, 0x89ab_cdef, 0x0123_4567));
    assert_eq!(of(2), Some(KernelReport::Missed { at_ns }));
    assert_eq!(of(1), Some(KernelReport::Invalid { at_ns }));
    assert_eq!(of_bytes(&failure(2, 0, 0, 0)), Some(KernelReport::Other { errno: 125, origin: 2 }));
}

#[test]
fn hardware_stamp_is_third_timestamp() {
    let times: Vec<u8> = [0_i64, 0, 0, 0, 3, 500].iter().flat_map(|number| number.to_ne_bytes()).collect();
    let mut bytes = control(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &times);
    bytes.extend(failure(4, 0, 0, 7));
    let stamps = PacketStamps { software_ns: None, hardware_ns: Some(3_000_000_500) };
    let departed = KernelReport::Departed { number: 7, stage: PacketSendStage::Sent, stamps };
    assert_eq!(of_bytes(&bytes), Some(departed));
}

#[test]
fn truncated_kernel_message_is_no_report() {
    let whole = failure(4, 0, 0, 7);
    for length in 0..whole.len() {
        assert_eq!(of_bytes(&whole[..length]), None, "{length}");
    }
}
