//! The frames that are sent and found again: UDP to a station that nobody is, a mark, and whose, which train and which one it is.
//!
//! Invariant: what [`read`] reads is what [`frame`] wrote; everything else is `None`.

use packetrig_sys::pcap::ClassicInsn;

/// IPv4 and UDP, from and to addresses of the test network, to a port of nobody.
pub(crate) const TO_PORT: u16 = 7001;
const MARK: [u8; 4] = *b"pevl";
/// Length of a frame without FCS unless said otherwise.
pub(crate) const SIZE: usize = 200;
const HEADER: usize = 42;

/// Which frame it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Of which sender.
    pub(crate) whose: u16,
    pub(crate) train: u32,
    pub(crate) number: u16,
}

/// A frame from and to stations that nobody is: no stack answers it.
pub(crate) fn frame(key: Key, size: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 0xfe, 2, 0, 0, 0, 0, 0xfd, 8, 0];
    let length = |from: usize| u16::try_from(size.saturating_sub(from)).unwrap_or(u16::MAX).to_be_bytes();
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 19, 0, 1, 198, 19, 0, 2];
    ip[2..4].copy_from_slice(&length(14));
    let sum = !packetrig_wire::checksum::ones_complement_sum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend(TO_PORT.to_be_bytes());
    frame.extend(TO_PORT.to_be_bytes());
    frame.extend(length(34));
    frame.extend([0, 0]);
    frame.extend(MARK);
    frame.extend(key.whose.to_be_bytes());
    frame.extend(key.train.to_be_bytes());
    frame.extend(key.number.to_be_bytes());
    frame.resize(size, 0);
    frame
}

/// What is written in a frame of ours.
pub(crate) fn read(frame: &[u8]) -> Option<Key> {
    let rest = frame.get(HEADER..)?.strip_prefix(&MARK)?;
    let (whose, rest) = rest.split_first_chunk()?;
    let (train, rest) = rest.split_first_chunk()?;
    let (number, _) = rest.split_first_chunk()?;
    let (whose, train) = (u16::from_be_bytes(*whose), u32::from_be_bytes(*train));
    Some(Key { whose, train, number: u16::from_be_bytes(*number) })
}

/// Lets only frames of ours pass: what else is on the cable does not take room in a ring.
pub(crate) fn filter() -> Vec<ClassicInsn> {
    let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
    let port = u32::from(TO_PORT);
    vec![
        // Without options in front: the port of what is UDP over IPv4.
        insn(0x28, 0, 0, 12),
        insn(0x15, 0, 5, 0x0800),
        insn(0x30, 0, 0, 23),
        insn(0x15, 0, 3, 17),
        insn(0x28, 0, 0, 36),
        insn(0x15, 0, 1, port),
        insn(0x06, 0, 0, 0xffff),
        insn(0x06, 0, 0, 0),
    ]
}

/// Lets only ICMP echo requests over IPv4 without options pass.
pub(crate) fn echo_request_filter() -> Vec<ClassicInsn> {
    let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
    vec![
        insn(0x28, 0, 0, 12),
        insn(0x15, 0, 5, 0x0800),
        insn(0x30, 0, 0, 23),
        insn(0x15, 0, 3, 1),
        insn(0x30, 0, 0, 34),
        insn(0x15, 0, 1, 8),
        insn(0x06, 0, 0, 0xffff),
        insn(0x06, 0, 0, 0),
    ]
}
