//! Exporters of flow records: well-behaved ones, hostile ones, and datagrams that say they come from anywhere.
//!
//! Messages are made by hand, byte by byte, and link nothing of the product.

mod attack;
mod spoof;

pub use attack::Attack;
pub use spoof::Spoofer;

/// When messages say that they were sent: 2026-09-21 10:00:00 UTC.
const SENT_S: u32 = 1_789_984_800;
/// Number of the template of well-behaved exporters.
const TEMPLATE: u16 = 300;
/// Records in a message of theirs.
pub const RECORDS: u32 = 24;

/// Bytes in network order.
#[derive(Clone, Debug, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn all(mut self, value: &[u8]) -> Self {
        self.0.extend(value);
        self
    }

    /// A set: number, length, content.
    fn set(self, id: u16, content: &[u8]) -> Self {
        let length = u16::try_from(content.len() + 4).unwrap_or(u16::MAX);
        self.u16(id).u16(length).all(content)
    }

    /// A template of these fields and lengths.
    fn template(self, id: u16, fields: &[(u16, u16)]) -> Self {
        let head = self.u16(id).u16(u16::try_from(fields.len()).unwrap_or(u16::MAX));
        fields.iter().fold(head, |bytes, (field, length)| bytes.u16(*field).u16(*length))
    }
}

fn ipfix(domain: u32, number: u32, sets: &Bytes) -> Vec<u8> {
    let length = u16::try_from(sets.0.len() + 16).unwrap_or(u16::MAX);
    Bytes::default().u16(10).u16(length).u32(SENT_S).u32(number).u32(domain).all(&sets.0).0
}

/// The message of a well-behaved exporter that sent `number` records before: [`RECORDS`] flows of a packet each, every
/// hundredth time with its template.
pub fn honest_message(domain: u32, number: u32) -> Vec<u8> {
    let fields = [(8, 4), (12, 4), (7, 2), (11, 2), (4, 1), (6, 1), (2, 8), (1, 8), (152, 8), (153, 8)];
    let record = |bytes: Bytes, n: u32| {
        let addresses = bytes.u32(0xc612_0000 + n).u32(0xc613_0000 + n).u16(2000).u16(53).u8(17).u8(0);
        let times = u64::from(SENT_S) * 1000;
        addresses.u64(1).u64(100).u64(times).u64(times + 1)
    };
    let data = (number..number + RECORDS).fold(Bytes::default(), record);
    let is_repeated = number.is_multiple_of(100 * RECORDS);
    let template = Bytes::default().template(TEMPLATE, &fields);
    let head = if is_repeated { Bytes::default().set(2, &template.0) } else { Bytes::default() };
    ipfix(domain, number, &head.set(TEMPLATE, &data.0))
}
