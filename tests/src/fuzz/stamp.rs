//! STAMP and TWAMP packets, at the reflector and at the sender.

use packetrig_probe::session::reflector::{ArrivedRequest, ReflectorSettings};
use packetrig_probe::session::{SessionKey, StampReflection, StampReflector, StampRequest, packet, tlv};
use packetrig_units::{MonoTime, Nanos};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Packets that one input is cut into at most.
const MAX_PACKETS: usize = 16_384;

/// Packets from addresses that anybody can write, the lengths and the last bytes of the addresses as the input says: each is
/// reflected or refused, no reflection is longer than its request, and in authenticated mode only sealed ones are answered.
pub fn stamp(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else { return };
    let key = (mode & 1 == 1).then(|| SessionKey::new(vec![7; 16])).flatten();
    let settings = ReflectorSettings {
        key: key.clone(),
        is_stateful: mode & 2 == 2,
        interval: Nanos::from_millis(1),
        burst: 2,
        synchronised_ns: None,
    };
    let mut reflector = StampReflector::new(settings);
    let (mut rest, mut out) = (rest, Vec::new());
    for number in 0..MAX_PACKETS {
        let [length, low, high, after @ ..] = rest else { break };
        let (bytes, next) = after.split_at(usize::from(*length).min(after.len()));
        rest = next;
        let at = MonoTime::from_nanos(number as u64 * 1_000);
        // Some inputs seal what they send, or nothing behind the seal would be looked at.
        let mut sealed = Vec::new();
        if let (Some(key), true) = (&key, mode & 4 == 4) {
            let asked = StampRequest::read_packet(bytes, None);
            asked.map(|asked| asked.write_packet(Some(key), &mut sealed)).unwrap_or_default();
            let from = sealed.len();
            sealed.extend(bytes.get(packet::base_length(None)..).unwrap_or_default());
            if sealed.len() > from {
                tlv::push_digest(&mut sealed, from, key);
            }
        }
        let bytes = if sealed.is_empty() { bytes } else { &sealed };
        reflect(&mut reflector, bytes, (*low, *high), at, &mut out);
        if let Some(reflection) = StampReflection::read_packet(bytes, key.as_ref()) {
            let mut written = Vec::new();
            reflection.write_packet(key.as_ref(), &mut written);
            assert_eq!(
                StampReflection::read_packet(&written, key.as_ref()),
                Some(reflection),
                "written as it was read"
            );
        }
        let read: usize = tlv::read_tlvs(bytes).count();
        assert!(read <= bytes.len(), "a TLV takes a byte at least");
    }
}

fn reflect(
    reflector: &mut StampReflector,
    bytes: &[u8],
    (low, high): (u8, u8),
    at: MonoTime,
    out: &mut Vec<u8>,
) {
    let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 18, high, low)), u16::from(low) + 1024);
    let arrived = ArrivedRequest {
        bytes,
        from,
        to_port: 862,
        at,
        realtime_ns: at.as_nanos(),
        bound_ns: 1,
        hops: Some(low),
        class: Some(high),
    };
    if let Ok(ready) = reflector.reflect_request(&arrived, out) {
        reflector.finish_reflection(&ready, at.as_nanos() + 1, out);
        assert!(out.len() <= bytes.len(), "{} of {}", out.len(), bytes.len());
        reflector.record_departure_stamp(&ready, at.as_nanos() + 2, 0);
    }
}
