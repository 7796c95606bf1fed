//! XDP abilities of an interface, asked of the kernel without loading a program (generic netlink family `netdev`).
//!
//! Each query opens a socket and closes it again.

use crate::netlink::NetlinkConversation;
use crate::{Error, UnsupportedFeature, kernel, netns::NetNs};
use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use netlink_sys::protocols::NETLINK_GENERIC;

/// Family number of the generic netlink controller, and its command that finds the number of another family.
const GENL_CONTROLLER_FAMILY: u16 = 16;
const CONTROLLER_GET_FAMILY: u8 = 3;
const CONTROLLER_FAMILY_ID: u16 = 1;
const CONTROLLER_FAMILY_NAME: u16 = 2;
// linux/netdev.h
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;

/// XDP abilities of an interface, as the kernel lists them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent abilities, as the kernel lists them")]
pub struct XdpFeatures {
    /// The driver runs programs itself (`XDP_PASS`, `XDP_DROP`, `XDP_TX`).
    pub native: bool,
    /// The driver can redirect received frames to other interfaces (`XDP_REDIRECT`).
    pub redirect: bool,
    /// Other interfaces can redirect frames to this interface.
    pub transmit: bool,
    /// AF_XDP sockets get frames without a copy.
    pub zero_copy: bool,
    /// Programs can receive frames that are in several buffers (jumbo frames).
    pub fragments: bool,
}

/// Reads the XDP abilities of the interface with this number; [`Error::Unsupported`] before Linux 6.3.
pub fn read_xdp_features(netns: &NetNs, index: u32) -> Result<XdpFeatures, Error> {
    let mut netlink = NetlinkConversation::open_in(netns, NETLINK_GENERIC)?;
    let family = find_netdev_family(&mut netlink)?;
    let mut bits = None;
    let request = GenericMessage::new(family, DEV_GET, DEV_IFINDEX, &index.to_ne_bytes());
    netlink
        .request_answers(request, 0, &mut |answer: GenericMessage| {
            bits = answer
                .find_attribute(DEV_XDP_FEATURES)
                .and_then(|value| value.first_chunk().copied())
                .or(bits);
        })
        .map_err(|error| Error::from_call("NETDEV_CMD_DEV_GET", format!("interface {index}"), error))?;
    Ok(xdp_features_from_bits(bits.map_or(0, u64::from_ne_bytes)))
}

fn find_netdev_family(netlink: &mut NetlinkConversation) -> Result<u16, Error> {
    let mut found = None;
    let request = GenericMessage::new(
        GENL_CONTROLLER_FAMILY,
        CONTROLLER_GET_FAMILY,
        CONTROLLER_FAMILY_NAME,
        b"netdev\0",
    );
    let asked = netlink.request_answers(request, 0, &mut |answer: GenericMessage| {
        found = answer
            .find_attribute(CONTROLLER_FAMILY_ID)
            .and_then(|value| value.first_chunk().copied())
            .or(found);
    });
    match (asked, found) {
        (Ok(_), Some(id)) => Ok(u16::from_ne_bytes(id)),
        // ENOENT: the kernel has no such family. Any other error is a real one.
        (Err(error), _) if error.raw_os_error() != Some(libc::ENOENT) => {
            Err(Error::from_call("CTRL_CMD_GETFAMILY", "netdev", error))
        }
        _ => Err(UnsupportedFeature {
            feature: "reading an interface's XDP features",
            needs: "Linux 6.3".into(),
            found: kernel::kernel_release_name(),
        }
        .into()),
    }
}

fn xdp_features_from_bits(bits: u64) -> XdpFeatures {
    XdpFeatures {
        native: bits & 1 != 0,
        redirect: bits & 1 << 1 != 0,
        transmit: bits & 1 << 2 != 0,
        zero_copy: bits & 1 << 3 != 0,
        fragments: bits & 1 << 5 != 0,
    }
}

/// A generic netlink message: command, version, attributes.
#[derive(Debug)]
struct GenericMessage {
    family: u16,
    bytes: Vec<u8>,
}

impl GenericMessage {
    /// Creates a request with one attribute.
    fn new(family: u16, command: u8, attribute: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).expect("attributes of ours are short");
        // `struct genlmsghdr`: command, version, two reserved bytes.
        let mut bytes = vec![command, 1, 0, 0];
        bytes.extend(length.to_ne_bytes());
        bytes.extend(attribute.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Self { family, bytes }
    }

    /// Finds the value of an attribute.
    fn find_attribute(&self, wanted: u16) -> Option<&[u8]> {
        let mut rest = self.bytes.get(4..)?;
        loop {
            // A length below four ends the search, because `get` refuses the range.
            let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
            let value = rest.get(4..length)?;
            // The upper two bits say how a value is to be read (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
            if kind & 0x3fff == wanted {
                return Some(value);
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
    }
}

impl NetlinkSerializable for GenericMessage {
    fn message_type(&self) -> u16 {
        self.family
    }
    fn buffer_len(&self) -> usize {
        self.bytes.len()
    }
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes);
    }
}

impl NetlinkDeserializable for GenericMessage {
    type Error = std::convert::Infallible;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, Self::Error> {
        Ok(Self { family: header.message_type, bytes: payload.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_attribute_is_found_and_garbage_ignored() {
        let mut message = GenericMessage::new(1, DEV_GET, DEV_IFINDEX, &[1, 2, 3, 4, 5]);
        message.bytes.extend([&8u16.to_ne_bytes()[..], &9u16.to_ne_bytes(), &[7; 4]].concat());
        assert_eq!(message.find_attribute(DEV_IFINDEX), Some(&[1, 2, 3, 4, 5][..]));
        assert_eq!(message.find_attribute(9), Some(&[7; 4][..]));
        assert_eq!(message.find_attribute(4), None);
        for bytes in [vec![], vec![1, 2, 3], vec![0; 8], vec![0xff; 12]] {
            assert_eq!(GenericMessage { family: 1, bytes }.find_attribute(1), None);
        }
    }

    #[test]
    fn bits_mean_what_the_kernel_says() {
        assert_eq!(xdp_features_from_bits(0), XdpFeatures::default());
        assert!(xdp_features_from_bits(0b1).native && !xdp_features_from_bits(0b1).zero_copy);
        assert!(xdp_features_from_bits(0b1000).zero_copy && xdp_features_from_bits(0b10_0000).fragments);
    }

    #[test]
    fn loopback_has_no_native_xdp() {
        match read_xdp_features(&NetNs::current().unwrap(), 1) {
            Ok(features) => assert!(!features.native),
            Err(error) => assert!(matches!(error, Error::Unsupported(_)), "{error}"),
        }
    }
}
