//! Facts that a driver reports about an interface, and its offloads (the `SIOCETHTOOL` calls).
//!
//! An [`EthtoolCalls`] owns one datagram socket, which is only used to select its network namespace. A change stays in
//! force until it is undone, also after the end of the process.

use crate::{Error, UnsupportedFeature, netns::NetNs};
use rustix::net::{AddressFamily, SocketType};
use std::os::fd::{AsRawFd, OwnedFd};

// Commands of linux/ethtool.h.
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const GET_TS_INFO: u32 = 0x41;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;

/// Sends ethtool requests to the drivers of the interfaces in one network namespace.
#[derive(Debug)]
pub struct EthtoolCalls {
    socket: OwnedFd,
}

/// Work that the stack or the card does on frames before user space sees them, or after it sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// Generic receive offload: the stack merges packets on receive.
    Gro,
    /// Large receive offload: the card merges packets on receive.
    Lro,
    Gso,
    Tso,
    RxCsum,
    TxCsum,
    /// The card removes the VLAN tags of received frames, and reports them separately.
    RxVlan,
    /// The card inserts the VLAN tags of sent frames.
    TxVlan,
}

impl Offload {
    pub const ALL: [Self; 8] =
        [Self::Gro, Self::Lro, Self::Gso, Self::Tso, Self::RxCsum, Self::TxCsum, Self::RxVlan, Self::TxVlan];

    /// Name of the offload on the command line of ethtool.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gro => "gro",
            Self::Lro => "lro",
            Self::Gso => "gso",
            Self::Tso => "tso",
            Self::RxCsum => "rx",
            Self::TxCsum => "tx",
            Self::RxVlan => "rxvlan",
            Self::TxVlan => "txvlan",
        }
    }

    fn access_method(self) -> OffloadAccess {
        match self {
            Self::RxCsum => OffloadAccess::Value { get: 0x14, set: 0x15 },
            Self::TxCsum => OffloadAccess::Value { get: 0x16, set: 0x17 },
            Self::Tso => OffloadAccess::Value { get: 0x1e, set: 0x1f },
            Self::Gso => OffloadAccess::Value { get: 0x23, set: 0x24 },
            Self::Gro => OffloadAccess::Value { get: 0x2b, set: 0x2c },
            Self::TxVlan => OffloadAccess::Flag(1 << 7),
            Self::RxVlan => OffloadAccess::Flag(1 << 8),
            Self::Lro => OffloadAccess::Flag(1 << 15),
        }
    }
}

/// How an offload is read and set: with a pair of commands of its own, or as a bit of the device's flags.
#[derive(Clone, Copy)]
enum OffloadAccess {
    Value { get: u32, set: u32 },
    Flag(u32),
}

/// The driver of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct DriverName {
    /// Name of the driver.
    pub name: String,
    /// Version of the driver. Drivers that are part of the kernel sources report the version of the kernel.
    pub version: String,
    /// Version of the card's firmware.
    pub firmware: String,
    /// Location of the card, for example its PCI address.
    pub bus: String,
}

/// Speed and duplex of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkSpeed {
    pub mbits: u32,
    /// Full duplex; `None` if the driver does not say.
    pub full_duplex: Option<bool>,
}

/// Queues of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct QueueCounts {
    /// Receive queues in use.
    pub rx: u32,
    /// Transmit queues in use.
    pub tx: u32,
}

/// Points at which frames can be timestamped: in the kernel (software), or in the card (hardware).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "four independent abilities, as the kernel lists them")]
pub struct StampAbilities {
    /// Software stamps on departure.
    pub tx_software: bool,
    /// Software stamps on arrival.
    pub rx_software: bool,
    /// Stamps of the card on departure.
    pub tx_hardware: bool,
    /// Stamps of the card on arrival.
    pub rx_hardware: bool,
    /// Number N of the card's clock (`/dev/ptpN`).
    pub clock: Option<u32>,
}

/// Stamping mode of a card (struct hwtstamp_config).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HwStamping {
    /// The card stamps sent frames for sockets that request it.
    pub departures: bool,
    /// Which received frames the card stamps, as the kernel's filter number (`HWTSTAMP_FILTER_…`): 0 is none, 1 is all.
    pub arrivals: u32,
}

const SIOCSHWTSTAMP: libc::Ioctl = 0x89b0;
const SIOCGHWTSTAMP: libc::Ioctl = 0x89b1;

impl EthtoolCalls {
    /// Opens the socket in `netns`.
    pub fn open_in(netns: &NetNs) -> Result<Self, Error> {
        let opened =
            netns.run_in_namespace(|| rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None))?;
        let socket = opened.map_err(|errno| Error::from_call("socket", netns.label(), errno))?;
        Ok(Self { socket })
    }

    /// Reads the name and version of the interface's driver, the firmware version and the bus address.
    pub fn read_driver_name(&self, name: &str) -> Result<DriverName, Error> {
        // struct ethtool_drvinfo: command, then six texts and five numbers.
        let mut info = [0u32; 49];
        info[0] = ETHTOOL_GDRVINFO;
        self.call_driver(name, &mut info).map_err(|errno| ethtool_error("ETHTOOL_GDRVINFO", name, errno))?;
        let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(DriverName {
            name: read_text_field(&bytes, 4),
            version: read_text_field(&bytes, 36),
            firmware: read_text_field(&bytes, 68),
            bus: read_text_field(&bytes, 100),
        })
    }

    /// Reads speed and duplex; `None` while there is no link or the driver does not know.
    pub fn read_link_speed(&self, name: &str) -> Result<Option<LinkSpeed>, Error> {
        // struct ethtool_cmd: command, supported, advertising, then speed (u16), duplex (u8) and further
        // fields; the high half of the speed is the u16 at byte 28.
        let mut command = [0u32; 11];
        command[0] = ETHTOOL_GSET;
        match self.call_driver(name, &mut command) {
            Ok(()) => Ok(link_speed_from_command(&command)),
            Err(rustix::io::Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(ethtool_error("ETHTOOL_GSET", name, errno)),
        }
    }

    pub fn read_queue_counts(&self, name: &str) -> Result<QueueCounts, Error> {
        // struct ethtool_channels: command, maxima of rx, tx, other, combined, then the counts in the same order.
        let mut channels = [0u32; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        self.call_driver(name, &mut channels)
            .map_err(|errno| ethtool_error("ETHTOOL_GCHANNELS", name, errno))?;
        // A combined queue receives and sends.
        let [_, _, _, _, _, rx, tx, _, combined] = channels;
        Ok(QueueCounts { rx: rx + combined, tx: tx + combined })
    }

    /// Reads where time stamps can be taken on the interface.
    pub fn read_stamp_abilities(&self, name: &str) -> Result<StampAbilities, Error> {
        // struct ethtool_ts_info: command, abilities, clock index, then transmit types and receive filters.
        let mut info = [0u32; 11];
        info[0] = GET_TS_INFO;
        self.call_driver(name, &mut info)
            .map_err(|errno| ethtool_error("ETHTOOL_GET_TS_INFO", name, errno))?;
        let abilities = info[1];
        let has_card_clock = abilities & libc::SOF_TIMESTAMPING_RAW_HARDWARE != 0;
        // Without SOF_TIMESTAMPING_RAW_HARDWARE the stamps of the card cannot be read.
        Ok(StampAbilities {
            tx_software: abilities & libc::SOF_TIMESTAMPING_TX_SOFTWARE != 0,
            rx_software: abilities & libc::SOF_TIMESTAMPING_RX_SOFTWARE != 0,
            tx_hardware: has_card_clock && abilities & libc::SOF_TIMESTAMPING_TX_HARDWARE != 0,
            rx_hardware: has_card_clock && abilities & libc::SOF_TIMESTAMPING_RX_HARDWARE != 0,
            clock: (info[2] != u32::MAX).then_some(info[2]),
        })
    }

    /// Reads the card's present stamping mode.
    pub fn read_card_stamping(&self, name: &str) -> Result<HwStamping, Error> {
        let mut config = [0u32; 3];
        let got = self.send_ioctl(name, SIOCGHWTSTAMP, &mut config);
        got.map_err(|errno| ethtool_error("SIOCGHWTSTAMP", name, errno))?;
        Ok(HwStamping { departures: config[1] != 0, arrivals: config[2] })
    }

    /// Sets which frames the card stamps; needs CAP_NET_ADMIN.
    pub(crate) fn set_card_stamping(&self, name: &str, wanted: HwStamping) -> Result<(), Error> {
        let mut config = [0, u32::from(wanted.departures), wanted.arrivals];
        let set = self.send_ioctl(name, SIOCSHWTSTAMP, &mut config);
        set.map_err(|errno| {
            ethtool_error("SIOCSHWTSTAMP", name, errno).with_rights("needs CAP_NET_ADMIN: run as root")
        })
    }

    /// Returns true if an offload is on.
    pub fn is_offload_on(&self, name: &str, offload: Offload) -> Result<bool, Error> {
        match offload.access_method() {
            OffloadAccess::Value { get, .. } => Ok(self.read_word(name, get)? != 0),
            OffloadAccess::Flag(flag) => Ok(self.read_word(name, ETHTOOL_GFLAGS)? & flag != 0),
        }
    }

    /// Sends a command that reads one number, and returns the number.
    fn read_word(&self, name: &str, command: u32) -> Result<u32, Error> {
        let mut request = [command, 0];
        self.call_driver(name, &mut request)
            .map_err(|errno| ethtool_error("reading an offload", name, errno))?;
        Ok(request[1])
    }

    /// Switches an offload on or off; returns whether this has changed anything. Fails if the driver has fixed the
    /// offload at the other value.
    pub fn set_offload(&self, name: &str, offload: Offload, on: bool) -> Result<bool, Error> {
        // An offload that the driver has fixed at this value needs neither a call nor rights.
        if self.is_offload_on(name, offload)? == on {
            return Ok(false);
        }
        let mut request = match offload.access_method() {
            OffloadAccess::Value { set, .. } => [set, u32::from(on)],
            OffloadAccess::Flag(flag) => {
                let flags = self.read_word(name, ETHTOOL_GFLAGS)?;
                [ETHTOOL_SFLAGS, if on { flags | flag } else { flags & !flag }]
            }
        };
        let set = self.call_driver(name, &mut request);
        // The kernel may accept a setting and not change it, if another setting requires the old value
        // (netdev_fix_features).
        if set.is_ok() && self.is_offload_on(name, offload)? == on {
            return Ok(true);
        }
        Err(match set {
            Err(errno) if errno != rustix::io::Errno::OPNOTSUPP && errno != rustix::io::Errno::INVAL => {
                ethtool_error("setting an offload", name, errno)
                    .with_rights("needs CAP_NET_ADMIN: run as root")
            }
            _ => UnsupportedFeature {
                feature: "switching an offload",
                needs: format!(
                    "a driver that can switch {} {}",
                    offload.name(),
                    if on { "on" } else { "off" }
                ),
                found: format!("{name}, whose driver does not allow this change"),
            }
            .into(),
        })
    }

    /// Calls the driver with a command structure of 32-bit words; the first word is the command.
    fn call_driver<const WORDS: usize>(
        &self,
        name: &str,
        command: &mut [u32; WORDS],
    ) -> rustix::io::Result<()> {
        self.send_ioctl(name, libc::SIOCETHTOOL as libc::Ioctl, command)
    }

    /// Sends an ioctl to the interface's driver, with a structure made of 32-bit words.
    fn send_ioctl<const WORDS: usize>(
        &self,
        name: &str,
        number: libc::Ioctl,
        command: &mut [u32; WORDS],
    ) -> rustix::io::Result<()> {
        if name.is_empty() || name.len() >= libc::IFNAMSIZ {
            // `ifr_name` must hold the name and a zero byte.
            return Err(rustix::io::Errno::NODEV);
        }
        // SAFETY: ifreq is plain data for which all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
        // SAFETY: the request and the command to which it points are live; each command above is as long as its
        // structure in linux/ethtool.h or linux/net_tstamp.h, and the kernel writes at most that many bytes.
        let done = unsafe { libc::ioctl(self.socket.as_raw_fd(), number, &raw mut request) };
        if done == 0 {
            return Ok(());
        }
        Err(rustix::io::Errno::from_io_error(&std::io::Error::last_os_error())
            .unwrap_or(rustix::io::Errno::IO))
    }
}

/// Reads a text field of 32 bytes that is padded with zeros.
fn read_text_field(bytes: &[u8], from: usize) -> String {
    let field = &bytes[from..from + 32];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn link_speed_from_command(command: &[u32; 11]) -> Option<LinkSpeed> {
    let low = command[3].to_ne_bytes();
    let high = command[7].to_ne_bytes();
    let mbits = u32::from(u16::from_ne_bytes([low[0], low[1]]))
        | u32::from(u16::from_ne_bytes([high[0], high[1]])) << 16;
    let full_duplex = match low[2] {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    // All ones (in 16 or 32 bits) means unknown.
    (mbits != 0 && mbits != u32::MAX && mbits != 0xffff).then_some(LinkSpeed { mbits, full_duplex })
}

fn ethtool_error(call: &'static str, name: &str, errno: rustix::io::Errno) -> Error {
    match errno {
        rustix::io::Errno::OPNOTSUPP => UnsupportedFeature {
            feature: call,
            needs: "a driver that supports it".into(),
            found: format!("{name}, whose driver does not support it"),
        }
        .into(),
        rustix::io::Errno::NODEV => Error::Missing {
            what: "interface",
            name: name.to_owned(),
            remedy: "`ip link` lists the interfaces",
        },
        errno => Error::from_call(call, name, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{NamespaceLinks, VethEnd};

    #[test]
    fn high_and_unknown_link_speeds_are_decoded() {
        let command = |low: u16, duplex: u8, high: u16| {
            let mut command = [0u32; 11];
            let [a, b] = low.to_ne_bytes();
            command[3] = u32::from_ne_bytes([a, b, duplex, 0]);
            let [a, b] = high.to_ne_bytes();
            command[7] = u32::from_ne_bytes([a, b, 0, 0]);
            link_speed_from_command(&command)
        };
        assert_eq!(command(10_000, 1, 0), Some(LinkSpeed { mbits: 10_000, full_duplex: Some(true) }));
        assert_eq!(command(0x86a0, 1, 1), Some(LinkSpeed { mbits: 100_000, full_duplex: Some(true) }));
        assert_eq!(command(100, 0, 0), Some(LinkSpeed { mbits: 100, full_duplex: Some(false) }));
        assert_eq!(command(0xffff, 0xff, 0xffff), None);
        assert_eq!(command(0xffff, 0xff, 0), None);
    }

    #[test]
    fn a_missing_interface_is_missing() {
        let ethtool = EthtoolCalls::open_in(&NetNs::current().unwrap()).unwrap();
        for name in ["nosuchlink0", "", "a-name-much-too-long-for-an-interface"] {
            assert!(matches!(ethtool.read_driver_name(name), Err(Error::Missing { .. })), "{name}");
        }
    }

    #[test]
    fn veth_reports_driver_speed_queues_and_stamps() {
        let Some((_netns, ethtool)) = cable() else { return };
        assert_eq!(ethtool.read_driver_name("a").unwrap().name, "veth");
        assert_eq!(
            ethtool.read_link_speed("a").unwrap(),
            Some(LinkSpeed { mbits: 10_000, full_duplex: Some(true) })
        );
        assert!(ethtool.read_queue_counts("a").unwrap().tx >= 1);
        assert!(ethtool.read_stamp_abilities("a").unwrap().rx_software);
        assert_eq!(ethtool.read_stamp_abilities("a").unwrap().clock, None);
    }

    #[test]
    fn an_offload_is_switched_and_switched_back() {
        let Some((_netns, ethtool)) = cable() else { return };
        for offload in [Offload::Gro, Offload::Gso, Offload::RxVlan, Offload::TxVlan, Offload::Tso] {
            let before = ethtool.is_offload_on("a", offload).unwrap();
            assert!(ethtool.set_offload("a", offload, !before).unwrap(), "{offload:?}");
            assert!(!ethtool.set_offload("a", offload, !before).unwrap(), "{offload:?} was changed already");
            assert_eq!(ethtool.is_offload_on("a", offload).unwrap(), !before);
            assert!(ethtool.set_offload("a", offload, before).unwrap());
        }
    }

    #[test]
    fn driver_fixed_offload_is_unsupported() {
        let Some((_netns, ethtool)) = cable() else { return };
        let error = ethtool.set_offload("a", Offload::Lro, true).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
    }

    fn cable() -> Option<(NetNs, EthtoolCalls)> {
        let netns = match NetNs::create_unnamed_namespace() {
            Ok(netns) => netns,
            Err(error) => {
                assert!(error.is_permission_error(), "{error}");
                return None;
            }
        };
        let end = |name| VethEnd { name, netns: None, mac: None };
        let mut links = NamespaceLinks::open_in(&netns).unwrap();
        links.create_veth(end("a"), end("b")).unwrap();
        // A cable has a speed only while both ends are up.
        for name in ["a", "b"] {
            let index = links.find_link_by_name(name).unwrap().index;
            links.switch_interface(index, true).unwrap();
        }
        let ethtool = EthtoolCalls::open_in(&netns).unwrap();
        Some((netns, ethtool))
    }
}
