//! What frames of capture files begin with, where it is not Ethernet.

use super::link::{self, Layer3, Next};
use super::span::Span;
use crate::{Ignored, Packet};

/// What a frame begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header.
    #[default]
    Ethernet,
    /// IP, of either version.
    Ip,
    /// The header that Linux makes up for all interfaces at once.
    Cooked,
    /// Its second version.
    Cooked2,
    /// An address family, as loopback interfaces of BSD have it.
    Loopback,
}

impl Link {
    /// Of a file's LINKTYPE number; nothing if frames of that kind are not read.
    pub const fn of_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::Ip,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            0 | 108 => Self::Loopback,
            _ => return None,
        })
    }

    /// Down to the first IP header.
    pub(super) fn open<'a>(self, bytes: Span<'a>, packet: &mut Packet) -> Result<Layer3<'a>, Ignored> {
        match self {
            Self::Ethernet => link::ethernet(bytes, packet),
            Self::Ip => link::ip(bytes),
            Self::Cooked => {
                let (head, rest) = bytes.split::<16>().ok_or(Ignored::ShortLink)?;
                let [.., l0, l1, s0, s1, s2, s3, s4, s5, _, _, k0, k1] = *head;
                if [l0, l1] == [0, 6] {
                    packet.source_mac = [s0, s1, s2, s3, s4, s5];
                }
                link::walk(Next::Type(u16::from_be_bytes([k0, k1])), rest, packet)
            }
            Self::Cooked2 => {
                let (head, rest) = bytes.split::<20>().ok_or(Ignored::ShortLink)?;
                let [k0, k1, .., len, s0, s1, s2, s3, s4, s5, _, _] = *head;
                if len == 6 {
                    packet.source_mac = [s0, s1, s2, s3, s4, s5];
                }
                link::walk(Next::Type(u16::from_be_bytes([k0, k1])), rest, packet)
            }
            // The family is in an order of its own and a number of the system's own; IP says itself what it is.
            Self::Loopback => link::ip(bytes.split::<4>().ok_or(Ignored::ShortLink)?.1),
        }
    }
}
