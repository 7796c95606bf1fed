//! Chooses the back end of a tap, and gives the reason: the kernel if both interfaces and all mirrors can do
//! it, else this process.

use super::{TapRefusal, TapSpec};
use crate::Error;
use packetrig_sys::link::Link;
use packetrig_sys::netdev::{XdpFeatures, read_xdp_features};
use packetrig_sys::netns::NetNs;
use packetrig_sys::xdp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TapMethod {
    /// BPF programs in the kernel.
    Xdp,
    /// Threads of this process, on AF_PACKET rings.
    Packet,
}

impl std::fmt::Display for TapMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Xdp => "xdp",
            Self::Packet => "packet",
        })
    }
}

/// A back end, and the reason for its choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TapBackEndChoice {
    pub(super) way: TapMethod,
    /// True if the drivers forward; false for the kernel's generic path.
    pub(super) native: bool,
    pub(super) why: String,
}

impl TapBackEndChoice {
    pub(super) fn choose_packet_back_end(why: String) -> Self {
        Self { way: TapMethod::Packet, native: false, why }
    }

    fn choose_xdp_back_end(native: bool, why: String) -> Self {
        Self { way: TapMethod::Xdp, native, why }
    }
}

/// Facts about the kernel and the interfaces that decide which back ends can run the tap.
#[derive(Clone, Debug)]
pub(super) struct TapBackEndFacts {
    /// Reason why no program can be loaded, if there is one.
    pub(super) obstacle: Option<String>,
    /// XDP features by interface name: the sides first, then the mirrors.
    pub(super) features: Vec<(String, XdpFeatures)>,
    /// True if impairments change or delay frames, which only threads of this process can do.
    pub(super) is_treated: bool,
    /// Name of a side that is a veth: the host at its other end leaves checksums to a network card that does not exist,
    /// and the kernel's programs cannot compute them.
    pub(super) cable: Option<String>,
}

impl TapBackEndFacts {
    pub(super) fn query_interfaces(netns: &NetNs, links: &[&Link], is_treated: bool) -> Self {
        let features = links.iter().map(|link| {
            // If the kernel does not answer, it counts as a kernel without the feature: kernels before 6.3
            // report no features, and the packet back end works everywhere.
            let features = read_xdp_features(netns, link.index).unwrap_or_default();
            (link.name.clone(), features)
        });
        let features = features.collect();
        let mut sides = links.iter().take(2);
        let cable = sides.find(|link| link.kind.as_deref() == Some("veth")).map(|link| link.name.clone());
        Self { cable, obstacle: xdp::bpf_obstacle().map(|error| error.to_string()), features, is_treated }
    }
}

impl TapBackEndFacts {
    fn veth_checksum_warning(&self) -> String {
        self.cable.as_ref().map_or_else(String::new, |name| {
            format!(
                "; {name} is a virtual cable (veth): the host at its other end must compute checksums itself \
                    (`ethtool -K IF tx off txvlan off` there), or use --back-end packet"
            )
        })
    }
}

pub(super) fn choose_tap_back_end(
    spec: &TapSpec,
    abilities: &TapBackEndFacts,
) -> Result<TapBackEndChoice, Error> {
    match (spec.way, choose_kernel_back_end(spec, abilities)) {
        (Some(TapMethod::Packet), _) => {
            Ok(TapBackEndChoice::choose_packet_back_end("requested by the user".into()))
        }
        (Some(TapMethod::Xdp), Ok(choice)) => Ok(TapBackEndChoice {
            why: format!("requested by the user; {}{}", choice.why, abilities.veth_checksum_warning()),
            ..choice
        }),
        (None, Ok(choice)) => Ok(TapBackEndChoice {
            why: format!("{}{}", choice.why, abilities.veth_checksum_warning()),
            ..choice
        }),
        (Some(TapMethod::Xdp), Err(reason)) => Err(TapRefusal::Way { way: TapMethod::Xdp, reason }.into()),
        (None, Err(reason)) => Ok(TapBackEndChoice::choose_packet_back_end(reason)),
    }
}

/// Chooses how the kernel forwards, or returns the reason why it cannot.
fn choose_kernel_back_end(spec: &TapSpec, abilities: &TapBackEndFacts) -> Result<TapBackEndChoice, String> {
    if abilities.is_treated {
        return Err("impairments run in this process; the kernel programs cannot apply them".into());
    }
    if let Some(obstacle) = &abilities.obstacle {
        return Err(obstacle.clone());
    }
    // The list has the two sides first, then the mirrors. Mirrors need not receive frames.
    let sides = &abilities.features[..2];
    // In the generic path, all clones of a frame share its bytes. A trailer or a new address for one copy
    // would also change the other copies and the forwarded frame (decision 0013).
    let not_native = sides.iter().find(|(_, features)| !(features.native && features.redirect));
    let takes_none = abilities.features.iter().find(|(_, features)| !features.transmit);
    match not_native {
        None => match takes_none {
            None => Ok(TapBackEndChoice::choose_xdp_back_end(
                true,
                "the drivers of all interfaces can forward with XDP".into(),
            )),
            // A mirror that accepts no redirected frames would get no copies at all.
            Some((name, _)) => Err(format!(
                "{name} does not accept redirected frames (a veth accepts them if its other end has GRO on or \
                    runs an XDP program)"
            )),
        },
        // Without copies, no two frames share bytes.
        Some((name, _)) if spec.mirrors.is_empty() => {
            let why = format!(
                "the driver of {name} cannot forward with XDP, so the kernel's generic path forwards"
            );
            Ok(TapBackEndChoice::choose_xdp_back_end(false, why))
        }
        Some((name, _)) => Err(format!(
            "the driver of {name} cannot forward with XDP, and the kernel's generic path cannot make copies"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tap::MirrorSpec;

    fn spec(way: Option<TapMethod>, mirrors: usize) -> TapSpec {
        let at = |name: &str| name.parse().unwrap();
        TapSpec {
            name: "t".into(),
            sides: [at("a"), at("b")],
            mirrors: (0..mirrors).map(|n| MirrorSpec { at: at(&format!("m{n}")), to: None }).collect(),
            filter: None,
            snap_len: None,
            trailer: false,
            capture: None,
            way,
            fail_closed: false,
            link_state: true,
            confirmed: Vec::new(),
        }
    }

    const ALL: XdpFeatures =
        XdpFeatures { native: true, redirect: true, transmit: true, zero_copy: false, fragments: true };

    fn abilities(features: &[XdpFeatures]) -> TapBackEndFacts {
        let names = ["a", "b", "m0", "m1"];
        let features = names.iter().map(|n| (*n).to_owned()).zip(features.iter().copied()).collect();
        TapBackEndFacts { obstacle: None, features, is_treated: false, cable: None }
    }

    fn chosen(
        way: Option<TapMethod>,
        mirrors: usize,
        abilities: &TapBackEndFacts,
    ) -> Result<(TapMethod, bool), String> {
        let choice = choose_tap_back_end(&spec(way, mirrors), abilities);
        choice.map(|choice| (choice.way, choice.native)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_kernel_forwards_where_all_can() {
        assert_eq!(chosen(None, 1, &abilities(&[ALL, ALL, ALL])), Ok((TapMethod::Xdp, true)));
        assert_eq!(
            chosen(Some(TapMethod::Packet), 1, &abilities(&[ALL, ALL, ALL])),
            Ok((TapMethod::Packet, false))
        );
    }

    #[test]
    fn tap_method_choice_names_missing_feature() {
        let none = XdpFeatures::default();
        let deaf = XdpFeatures { transmit: false, ..ALL };
        assert_eq!(chosen(None, 1, &abilities(&[ALL, ALL, deaf])), Ok((TapMethod::Packet, false)));
        assert!(chosen(Some(TapMethod::Xdp), 1, &abilities(&[ALL, ALL, deaf])).unwrap_err().contains("m0"));
        assert_eq!(chosen(None, 0, &abilities(&[ALL, none])), Ok((TapMethod::Xdp, false)), "generic");
        assert_eq!(chosen(None, 1, &abilities(&[ALL, none, ALL])), Ok((TapMethod::Packet, false)));
        let forbidden = TapBackEndFacts { obstacle: Some("no rights".into()), ..abilities(&[ALL, ALL]) };
        assert_eq!(chosen(None, 0, &forbidden), Ok((TapMethod::Packet, false)));
        assert!(chosen(Some(TapMethod::Xdp), 0, &forbidden).unwrap_err().contains("no rights"));
        let treated = TapBackEndFacts { is_treated: true, ..abilities(&[ALL, ALL]) };
        assert_eq!(chosen(None, 0, &treated), Ok((TapMethod::Packet, false)));
    }
}
