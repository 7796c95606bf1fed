//! Appends big-endian numbers to a message. The memory of the message is reserved beforehand, so nothing is allocated.

pub(crate) trait ValueWriter {
    /// Appends bytes without a change.
    fn put_bytes(&mut self, bytes: &[u8]);

    fn put_u8(&mut self, value: u8) {
        self.put_bytes(&[value]);
    }
    fn put_u16(&mut self, value: u16) {
        self.put_bytes(&value.to_be_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.put_bytes(&value.to_be_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.put_bytes(&value.to_be_bytes());
    }
    /// Appends the four bytes of a mapped IPv4 address.
    fn put_ipv4(&mut self, address: &[u8; 16]) {
        self.put_bytes(&address[12..]);
    }
    /// Appends a time in nanoseconds since 1970 as milliseconds.
    fn put_millis(&mut self, ns: u64) {
        self.put_u64(ns / 1_000_000);
    }
    /// Appends a time in nanoseconds since 1970 as NTP time (RFC 7011, 6.1.10).
    fn put_ntp(&mut self, ns: u64) {
        self.put_u64(encode_ntp(ns));
    }
}

impl ValueWriter for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Seconds from 1900, where NTP begins, to 1970.
pub(crate) const NTP_EPOCH_OFFSET_S: u64 = 2_208_988_800;
const SECOND: u64 = 1_000_000_000;

/// Converts nanoseconds since 1970 to NTP time: seconds since 1900, and a fraction in units of 2^-32 s. Seconds count
/// modulo 2^32, as they do in NTP from 2036 on.
pub(crate) const fn encode_ntp(ns: u64) -> u64 {
    // The fraction is rounded up: a unit is 0.23 ns, so readers that truncate to whole nanoseconds get the original
    // number back. Rounded down, they would usually get one nanosecond less.
    let fraction = ((ns % SECOND) << 32).div_ceil(SECOND);
    (ns / SECOND + NTP_EPOCH_OFFSET_S) << 32 | fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_come_back_from_ntp_time() {
        for ns in [0, 1, 2, 3, 499_999_999, 500_000_000, 999_999_999, 1_700_000_000_123_456_789] {
            let time = encode_ntp(ns);
            let back = ((time >> 32) - NTP_EPOCH_OFFSET_S) * SECOND + (((time & 0xffff_ffff) * SECOND) >> 32);
            assert_eq!(back, ns);
        }
        assert_eq!(encode_ntp(500_000_000) & 0xffff_ffff, 0x8000_0000);
    }
}
