//! One-line flags make a document: the same OTG configuration a user would have written, so there is one way only.

use packetrig_units::{FrameRate, FrameSize, Nanos, Rate};
use serde_json::{Map, Value, json};

/// OTG's least bit rate.
const LEAST_BITS: u64 = 672;
/// The slot of a frame that is a burst of its own; the pause behind it makes up its period.
const SLOT: Nanos = Nanos::from_millis(1);

/// What flags can say.
#[derive(Clone, Debug)]
pub struct Quick {
    /// Where to send.
    pub tx: String,
    /// Where to receive.
    pub rx: Vec<String>,
    /// Frame sizes.
    pub size: QuickSize,
    /// Load, of all streams together.
    pub rate: Rate,
    /// How long.
    pub length: QuickLength,
    /// How many streams share the load; at least 1.
    pub streams: u32,
    /// VLAN to put the frames into.
    pub vlan: Option<u16>,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
}

/// Sizes by flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickSize {
    /// All the same.
    Fixed(FrameSize),
    /// Drawn from a range.
    Range(FrameSize, FrameSize),
    /// The usual mix.
    Imix,
}

/// Length by flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickLength {
    /// This long.
    Time(Nanos),
    /// This many frames per stream.
    Packets(u64),
    /// Until stopped.
    Continuous,
}

impl Quick {
    /// The document.
    pub fn document(&self) -> Value {
        let rx_names: Vec<String> = (1..=self.rx.len()).map(|n| self.rx_name(n)).collect();
        let ports = std::iter::once(json!({"name": "tx", "location": self.tx})).chain(
            self.rx.iter().zip(&rx_names).map(|(location, name)| json!({"name": name, "location": location})),
        );
        let flows: Vec<Value> = (0..self.streams.max(1)).map(|n| self.flow(n, &rx_names)).collect();
        json!({"ports": ports.collect::<Vec<_>>(), "flows": flows})
    }

    /// The document as YAML.
    pub fn yaml(&self) -> String {
        let mut out = String::new();
        yaml(&self.document(), 0, &mut out);
        out
    }

    fn rx_name(&self, n: usize) -> String {
        if self.rx.len() == 1 { "rx".into() } else { format!("rx{n}") }
    }

    fn flow(&self, n: u32, rx_names: &[String]) -> Value {
        let (rate, duration) = self.pace(n);
        let mut flow = json!({
            "name": if self.streams > 1 { format!("stream {}", n + 1) } else { "stream".to_owned() },
            "tx_rx": {"choice": "port", "port": {"tx_name": "tx", "rx_names": rx_names}},
            "packet": self.packet(n),
            "size": self.size(),
            "rate": rate,
            "duration": duration,
            "metrics": {"enable": true, "loss": true, "timestamps": true,
                        "latency": {"enable": true, "mode": "cut_through"}},
        });
        if rx_names.len() > 1 {
            // Every receiver should see every frame: what several receivers are for.
            flow["metrics"]["rx_tx_ratio"] = json!({"choice": "rx_count", "rx_count": {}});
        }
        flow
    }

    fn packet(&self, n: u32) -> Value {
        let value = |value: Value| json!({"choice": "value", "value": value});
        let mut packet = vec![json!({"choice": "ethernet", "ethernet": {
            "src": value("02:00:00:00:00:01".into()), "dst": value("02:00:00:00:00:02".into())}})];
        if let Some(id) = self.vlan {
            packet.push(json!({"choice": "vlan", "vlan": {"id": value(id.into())}}));
        }
        // Addresses set apart for benchmarking: RFC 2544 and RFC 5180.
        packet.push(if self.ipv6 {
            json!({"choice": "ipv6", "ipv6": {"src": value("2001:2::1".into()), "dst": value("2001:2:0:1::1".into())}})
        } else {
            json!({"choice": "ipv4", "ipv4": {"src": value("198.18.0.1".into()), "dst": value("198.19.0.1".into())}})
        });
        let src_port = 49_152 + n % 16_384;
        packet.push(json!({"choice": "udp", "udp": {"src_port": value(src_port.into()), "dst_port": value(7.into())}}));
        packet.into()
    }

    fn size(&self) -> Value {
        match self.size {
            QuickSize::Fixed(size) => json!({"choice": "fixed", "fixed": size.bytes()}),
            QuickSize::Range(min, max) => {
                json!({"choice": "random", "random": {"min": min.bytes(), "max": max.bytes()}})
            }
            QuickSize::Imix => {
                json!({"choice": "weight_pairs", "weight_pairs": {"choice": "predefined", "predefined": "imix"}})
            }
        }
    }

    /// Rate and duration of stream `n`. The streams' parts of the load add up to the whole.
    fn pace(&self, n: u32) -> (Value, Value) {
        let streams = u64::from(self.streams.max(1));
        let part = |whole: u64| whole / streams + u64::from(u64::from(n) < whole % streams);
        let pps = |pps: u64| json!({"choice": "pps", "pps": pps});
        let slow = match self.rate {
            Rate::Frames(rate) => {
                let whole = rate.frames_within(Nanos::from_secs(1));
                if FrameRate::per_second(whole) == Some(rate) && whole >= streams {
                    return (pps(part(whole)), self.duration());
                }
                Some(rate)
            }
            Rate::Bits(bits) if bits.bits_per_second() / streams >= LEAST_BITS => {
                let bps = part(bits.bits_per_second());
                return (json!({"choice": "bps", "bps": bps}), self.duration());
            }
            Rate::Bits(bits) => {
                let (bytes, frames) = self.mean_size();
                FrameRate::from_bits(bits, bytes, frames)
            }
            Rate::Share(share) => {
                // Seven decimals are exact, and a float has twice as many.
                let percentage = part(share.billionths()) as f64 / 1e7;
                return (json!({"choice": "percentage", "percentage": percentage}), self.duration());
            }
        };
        let period = slow.map_or(Nanos::MAX, |rate| rate.due(streams));
        if period > SLOT {
            return (pps(1_000_000_000 / SLOT.as_u64()), self.singles(period));
        }
        // Fast and not whole: the next whole rate is within a thousandth.
        (pps((1_000_000_000 / period.as_u64().max(1)).max(1)), self.duration())
    }

    /// One frame per period, for rates that OTG's whole numbers cannot say: bursts of one.
    fn singles(&self, period: Nanos) -> Value {
        let bursts = match self.length {
            QuickLength::Time(time) => time.as_u64().div_ceil(period.as_u64()).max(1),
            QuickLength::Packets(packets) => packets,
            QuickLength::Continuous => 0,
        };
        let pause = period.saturating_sub(SLOT).as_u64();
        json!({"choice": "burst", "burst": {"bursts": bursts, "packets": 1,
               "inter_burst_gap": {"choice": "nanoseconds", "nanoseconds": pause}}})
    }

    /// Bytes of how many frames: the mean size as a fraction.
    fn mean_size(&self) -> (u64, u64) {
        match self.size {
            QuickSize::Fixed(size) => (size.bytes().into(), 1),
            QuickSize::Range(min, max) => (u64::from(min.bytes()) + u64::from(max.bytes()), 2),
            QuickSize::Imix => (7 * 64 + 4 * 570 + 1518, 12),
        }
    }

    fn duration(&self) -> Value {
        match self.length {
            QuickLength::Time(time) => {
                json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": time.as_secs_f64()}})
            }
            QuickLength::Packets(packets) => {
                json!({"choice": "fixed_packets", "fixed_packets": {"packets": packets}})
            }
            QuickLength::Continuous => json!({"choice": "continuous", "continuous": {}}),
        }
    }
}

/// Writes a JSON value as block YAML. Strings are quoted as JSON, which YAML reads the same way.
pub(crate) fn yaml(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(members) if !members.is_empty() => yaml_object(members, indent, false, out),
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push_str("- ");
                match item {
                    Value::Object(members) if !members.is_empty() => {
                        yaml_object(members, indent + 2, true, out);
                    }
                    other => {
                        out.push_str(&other.to_string());
                        out.push('\n');
                    }
                }
            }
        }
        other => {
            out.push_str(&other.to_string());
            out.push('\n');
        }
    }
}

fn yaml_object(members: &Map<String, Value>, indent: usize, begun: bool, out: &mut String) {
    // Names and choices first: that is how people read a document.
    let rank = |key: &str| ["name", "choice"].iter().position(|first| *first == key).unwrap_or(2);
    let mut ordered: Vec<_> = members.iter().collect();
    ordered.sort_by_key(|(key, _)| rank(key));
    for (index, (key, value)) in ordered.into_iter().enumerate() {
        if index > 0 || !begun {
            out.push_str(&" ".repeat(indent));
        }
        out.push_str(key);
        let is_block = matches!(value, Value::Object(m) if !m.is_empty())
            || matches!(value, Value::Array(a) if !a.is_empty());
        out.push_str(if is_block { ":\n" } else { ": " });
        let deeper = if value.is_array() { indent } else { indent + 2 };
        yaml(value, deeper, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use packetrig_units::{BitRate, Share};
    use proptest::prelude::*;

    fn any_quick() -> impl Strategy<Value = Quick> {
        let size = prop_oneof![
            (70u32..1518).prop_map(|size| QuickSize::Fixed(FrameSize::new(size))),
            Just(QuickSize::Range(FrameSize::new(80), FrameSize::new(1518))),
            Just(QuickSize::Imix),
        ];
        let rate = prop_oneof![
            (1u64..1_000_000, 1u64..100)
                .prop_map(|(frames, seconds)| Rate::Frames(FrameRate::new(frames, seconds).unwrap())),
            (1u64..1_000_000).prop_map(|bps| Rate::Bits(BitRate::new(bps))),
            (1u64..100).prop_map(|percent| Rate::Share(Share::from_billionths(percent * 10_000_000))),
        ];
        let length = prop_oneof![
            (1u64..1_000_000).prop_map(|ms| QuickLength::Time(Nanos::from_millis(ms))),
            (1u64..1_000_000).prop_map(QuickLength::Packets),
            Just(QuickLength::Continuous),
        ];
        (size, rate, length, 1u32..5, prop::option::of(1u16..4095), 1usize..4, any::<bool>()).prop_map(
            |(size, rate, length, streams, vlan, receivers, ipv6)| Quick {
                tx: "tx/eth0".into(),
                rx: (0..receivers).map(|n| format!("rx/eth{n}")).collect(),
                size,
                rate,
                length,
                streams,
                vlan,
                // The mix has frames of 64 bytes, too small for IPv6 and UDP.
                ipv6: ipv6 && size != QuickSize::Imix,
            },
        )
    }

    proptest! {
        #[test]
        fn what_flags_make_is_a_plan(quick in any_quick()) {
            let plan = Plan::read(&quick.yaml()).map_err(|problems| TestCaseError::fail(format!("{problems}\n{}", quick.yaml())))?;
            prop_assert_eq!(plan.streams.len(), quick.streams as usize);
            // A VLAN tag or IPv6 leaves no room for the full test tag in the smallest frames; nothing else is worth a warning.
            prop_assert!(plan.warnings.is_empty() || quick.vlan.is_some() || quick.ipv6, "{:?}", plan.warnings);
            let json = Plan::read(&quick.document().to_string()).unwrap();
            prop_assert_eq!(plan.streams[0].frames.template().unwrap().spec(), json.streams[0].frames.template().unwrap().spec());
            prop_assert_eq!(plan.streams[0].rate, json.streams[0].rate);
        }
    }

    #[test]
    fn ipv6_in_a_vlan_reads_too() {
        let quick = Quick {
            tx: "eth1".into(),
            rx: vec!["eth2".into()],
            size: QuickSize::Fixed(FrameSize::new(128)),
            rate: "1Gbit/s".parse().unwrap(),
            length: QuickLength::Time(Nanos::from_secs(10)),
            streams: 1,
            vlan: Some(7),
            ipv6: true,
        };
        let plan = Plan::read(&quick.yaml()).unwrap();
        assert_eq!(plan.streams[0].frames.template().unwrap().header_len(), 14 + 4 + 40 + 8);
    }

    fn slow(rate: &str, streams: u32, length: QuickLength) -> Vec<crate::timeline::Timeline> {
        let quick = Quick {
            tx: "eth1".into(),
            rx: vec!["eth2".into()],
            size: QuickSize::Fixed(FrameSize::new(128)),
            rate: rate.parse().unwrap(),
            length,
            streams,
            vlan: None,
            ipv6: false,
        };
        let bound = Plan::read(&quick.yaml()).unwrap().bind(&[None, None]).unwrap();
        bound.streams.iter().map(|stream| stream.timeline).collect()
    }

    #[test]
    fn rates_below_a_frame_per_second_and_between_are_kept() {
        let one = slow("0.1pps", 1, QuickLength::Time(Nanos::from_secs(60)))[0];
        assert_eq!((one.total(), one.due(3)), (Some(6), Nanos::from_secs(30)));
        let one = slow("2.5pps", 1, QuickLength::Packets(7))[0];
        assert_eq!((one.total(), one.due(5)), (Some(7), Nanos::from_secs(2)));
        // 128 bytes are 1024 bits: one frame in two seconds.
        let one = slow("512bit/s", 1, QuickLength::Continuous)[0];
        assert_eq!((one.total(), one.due(4)), (None, Nanos::from_secs(8)));
        let each = slow("1pps", 4, QuickLength::Continuous);
        assert!(each.iter().all(|timeline| timeline.due(1) == Nanos::from_secs(4)), "{each:?}");
    }

    #[test]
    fn the_parts_of_a_load_add_up() {
        let each = slow("1000pps", 3, QuickLength::Time(Nanos::from_secs(1)));
        assert_eq!(each.iter().map(|timeline| timeline.total().unwrap()).sum::<u64>(), 1000);
        let uneven = slow("1500.5pps", 1, QuickLength::Time(Nanos::from_secs(100)))[0];
        assert!((150_000..=150_100).contains(&uneven.total().unwrap()), "{uneven:?}");
    }
}
