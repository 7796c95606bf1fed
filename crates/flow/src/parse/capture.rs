//! Link types of capture files: Ethernet and others.

use super::encapsulation::{self, LinkPayload};
use super::link::{self, Layer3, LinkHeaderType};
use super::span::FrameSpan;
use crate::{IgnoredReason, PacketInfo};

/// Link layer with which a frame begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    #[default]
    Ethernet,
    /// IP, of either version.
    Ip,
    /// The header that Linux makes up for a capture on all interfaces (`LINKTYPE_LINUX_SLL`).
    Cooked,
    /// The second version of that header (`LINKTYPE_LINUX_SLL2`).
    Cooked2,
    /// A header with an address family, as on loopback interfaces of BSD.
    Loopback,
    Ppp,
    Hdlc,
    /// A frame of IEEE 802.11.
    Wireless,
    /// A frame of IEEE 802.11 after a radiotap header.
    Radiotap,
    /// A PPI header, which states the type of the next one.
    Ppi,
    /// The netfilter log of Linux.
    Nflog,
}

impl LinkKind {
    /// Returns the link layer of a file's LINKTYPE number; `None` if such frames are not read.
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::Ethernet,
            // Raw IP is 101 in files, but some writers use their system's own number: 12, or 14 on OpenBSD.
            12 | 14 | 101 | 228 | 229 => Self::Ip,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            0 | 108 => Self::Loopback,
            9 | 50 => Self::Ppp,
            104 => Self::Hdlc,
            105 => Self::Wireless,
            127 => Self::Radiotap,
            192 => Self::Ppi,
            239 => Self::Nflog,
            _ => return None,
        })
    }

    /// Finds the payload of a frame after its link headers. `None` if they cannot be read, and always for the two
    /// cooked headers and the loopback header.
    pub fn find_payload(self, frame: &[u8]) -> Option<LinkPayload> {
        encapsulation::find_payload(self, frame)
    }

    /// Reads the link headers, and finds the first IP header.
    pub(super) fn find_ip_packet<'a>(
        self,
        bytes: FrameSpan<'a>,
        packet: &mut PacketInfo,
    ) -> Result<Layer3<'a>, IgnoredReason> {
        match self {
            Self::Ethernet => link::read_ethernet_to_ip(bytes, packet),
            Self::Ip => link::read_ip_version(bytes),
            Self::Cooked => {
                let mut rest = bytes;
                let head = rest.read_array::<16>().ok_or(IgnoredReason::ShortLink)?;
                let [.., l0, l1, s0, s1, s2, s3, s4, s5, _, _, k0, k1] = *head;
                // Only an address of six bytes is a MAC address.
                if [l0, l1] == [0, 6] {
                    packet.source_mac = [s0, s1, s2, s3, s4, s5];
                }
                link::read_headers_to_ip(LinkHeaderType::Type(u16::from_be_bytes([k0, k1])), rest, packet)
            }
            Self::Cooked2 => {
                let mut rest = bytes;
                let head = rest.read_array::<20>().ok_or(IgnoredReason::ShortLink)?;
                let [k0, k1, .., len, s0, s1, s2, s3, s4, s5, _, _] = *head;
                if len == 6 {
                    packet.source_mac = [s0, s1, s2, s3, s4, s5];
                }
                link::read_headers_to_ip(LinkHeaderType::Type(u16::from_be_bytes([k0, k1])), rest, packet)
            }
            // The address family uses the byte order and the numbers of the capturing system, which the file
            // does not name. IP states its version itself.
            Self::Loopback => link::read_ip_version(bytes.skip(4).ok_or(IgnoredReason::ShortLink)?),
            Self::Ppp | Self::Hdlc | Self::Wireless | Self::Radiotap | Self::Ppi | Self::Nflog => {
                let payload = self.find_payload(bytes.bytes).ok_or(IgnoredReason::NotIp)?;
                if let Some((source, destination)) = payload.addresses {
                    packet.source_mac = source;
                    packet.destination_mac = destination;
                }
                let rest = bytes.skip(payload.at).ok_or(IgnoredReason::ShortLink)?;
                link::read_headers_to_ip(LinkHeaderType::Type(payload.kind), rest, packet)
            }
        }
    }
}
