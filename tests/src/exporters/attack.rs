//! What a hostile sender puts into datagrams so that a collector works hard or remembers much for few bytes.

use super::{Bytes, SENT_S, ipfix};

/// Bytes of a message, as many as a frame of Ethernet carries.
const LENGTH: usize = 1400;

/// A kind of hostile messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// Sets without content, of a template that never comes.
    EmptySets,
    /// Sets of one byte, of many templates that never come.
    WaitingSets,
    /// Sets of one byte, and now and then the template that releases all that wait.
    ReleasedSets,
    /// Records of one byte, each with hundreds of fields that have none.
    EmptyFields,
    /// Many short templates.
    Templates,
    /// Templates of fields that nobody knows.
    UnknownFields,
    /// Every message is of another observation domain.
    Domains,
    /// Records of one byte.
    TinyRecords,
    /// Ledgers of SIM, one behind the other.
    Ledgers,
    /// Packets of SIM, each of another flow.
    Flows,
    /// NetFlow 9 of an exporter that begins anew with every message, and repeats its templates.
    Restarts,
    /// Samples of sFlow, each of another sampler, of a packet that is only headers.
    Samples,
    /// Counters of sFlow, each of another interface.
    Counters,
    /// Nothing of the kind.
    Noise,
}

impl Attack {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::EmptySets,
        Self::WaitingSets,
        Self::ReleasedSets,
        Self::EmptyFields,
        Self::Templates,
        Self::UnknownFields,
        Self::Domains,
        Self::TinyRecords,
        Self::Ledgers,
        Self::Flows,
        Self::Restarts,
        Self::Samples,
        Self::Counters,
        Self::Noise,
    ];

    /// The `n`th message.
    pub fn message(self, n: u32) -> Vec<u8> {
        self.message_of(n, LENGTH)
    }

    /// The same, of about so many bytes.
    pub fn message_of(self, n: u32, length: usize) -> Vec<u8> {
        let low = u16::try_from(n % 0xf000).unwrap_or(0);
        let one_byte = |id: u16| Bytes::default().template(id, &[(4, 1)]);
        let fill = |mut bytes: Bytes, mut add: Box<dyn FnMut(Bytes) -> Bytes>| {
            while bytes.0.len() < length - 80 {
                bytes = add(bytes);
            }
            bytes
        };
        let sets = match self {
            Self::EmptySets => fill(Bytes::default(), Box::new(|sets| sets.set(256, &[]))),
            Self::WaitingSets => {
                let mut id = low;
                let next = move |sets: Bytes| {
                    id = id.wrapping_add(1).max(256);
                    sets.set(id, &[1])
                };
                fill(Bytes::default(), Box::new(next))
            }
            // Long ones hold as much in fewer messages.
            Self::ReleasedSets if n % if length > 10_000 { 4 } else { 64 } == 3 => {
                Bytes::default().set(2, &one_byte(256).0)
            }
            Self::ReleasedSets => fill(Bytes::default(), Box::new(|sets| sets.set(256, &[1]))),
            Self::EmptyFields => {
                // No template with more is kept.
                let count = ((length - 200) / 5).min(4000);
                let mut fields = vec![(4, 0); count];
                fields.push((4, 1));
                let template = Bytes::default().template(256, &fields);
                Bytes::default().set(2, &template.0).set(256, &vec![6; length - 200 - 4 * count])
            }
            Self::Templates => {
                let mut id = low;
                let next = move |templates: Bytes| {
                    id = id.wrapping_add(1).max(256);
                    templates.all(&one_byte(id).0)
                };
                Bytes::default().set(2, &fill(Bytes::default(), Box::new(next)).0)
            }
            Self::UnknownFields => {
                let count = u16::try_from((length - 80) / 8).unwrap_or(0);
                let head = Bytes::default().u16(256 + low % 1024).u16(count);
                let field = |all: Bytes, id: u16| all.u16(0x8000 | id).u16(1).u32(70_000 + n);
                Bytes::default().set(2, &(0..count).fold(head, field).0)
            }
            Self::Domains => Bytes::default().set(2, &one_byte(256).0).set(256, &[6; 64]),
            Self::TinyRecords => Bytes::default().set(2, &one_byte(256).0).set(256, &vec![6; length - 80]),
            Self::Ledgers => return sim(n, length, &|bytes, _| bytes.u8(5).u8(0).u16(0).u32(0).u64(1)),
            Self::Flows => return sim(n, length, &|bytes, id| bytes.u32(0x0100_0064).u32(1).u64(id)),
            Self::Restarts => return restarting(n, length),
            Self::Samples => return sflow(n, length, &sampled_headers),
            Self::Counters => return sflow(n, length, &interface_counters),
            Self::Noise => return noise(n, length),
        };
        let domain = if self == Self::Domains { n } else { 1 };
        ipfix(domain, 0, &sets)
    }
}

/// A datagram of SIM, whose items have sixteen bytes and a number.
fn sim(n: u32, length: usize, item: &dyn Fn(Bytes, u64) -> Bytes) -> Vec<u8> {
    let items = u16::try_from((length - 32) / 16).unwrap_or(0);
    let length = 32 + 16 * items;
    let head = Bytes::default().all(b"SIM\x01").u16(length).u16(items).u32(1).u32(n);
    let first = u64::from(n) * u64::from(items);
    let head = head.u64(first).u64(u64::from(SENT_S) * 1_000_000_000);
    (first..first + u64::from(items)).fold(head, item).0
}

/// A datagram of sFlow with as many samples as fit, each of another number.
fn sflow(n: u32, length: usize, sample: &dyn Fn(u32) -> Bytes) -> Vec<u8> {
    let count = u32::try_from((length - 28) / sample(0).0.len()).unwrap_or(0);
    let head = Bytes::default().u32(5).u32(1).u32(0xc612_0001).u32(1).u32(n).u32(n).u32(count);
    (0..count).fold(head, |all, at| all.all(&sample(n.wrapping_mul(count).wrapping_add(at)).0)).0
}

/// A flow sample of 88 bytes: a header with VLAN tags up to its end.
fn sampled_headers(number: u32) -> Bytes {
    let head = Bytes::default().u32(1).u32(80).u32(number).u32(number & 0xff_ffff).u32(1).u32(0).u32(0);
    let raw = head.u32(1).u32(2).u32(1).u32(1).u32(40).u32(1).u32(64).u32(4).u32(24);
    raw.all(&[0; 12]).all(&[0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1])
}

fn interface_counters(number: u32) -> Bytes {
    let head = Bytes::default().u32(2).u32(108).u32(number).u32(number & 0xff_ffff).u32(1).u32(1).u32(88);
    (0..21).fold(head.u32(number), |all, _| all.u32(u32::MAX))
}

fn restarting(n: u32, length: usize) -> Vec<u8> {
    let templates = (256..256 + u16::try_from((length - 80) / 8).unwrap_or(0))
        .fold(Bytes::default(), |all, id| all.template(id, &[(4, 1)]));
    // The clock goes on, the uptime goes back.
    let head = Bytes::default().u16(9).u16(1).u32(u32::MAX / 2 - n).u32(SENT_S + n * 10);
    head.u32(n).u32(1).set(0, &templates.0).0
}

fn noise(n: u32, length: usize) -> Vec<u8> {
    let mut state = u64::from(n) + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(next).collect()
}
