//! Turns command-line flags into a document: the OTG configuration that a user would have written. So all runs
//! start from a document.

mod headers;
mod hosts;
#[cfg(test)]
mod tests;
mod yaml;

pub use hosts::{HostAddress, HostRequest, QuickHosts};

pub(crate) use yaml::write_yaml;

use crate::model::MeanSize;
use packetrig_units::{FrameRate, FrameSize, Nanos, Rate, clamp_to_u32};
use packetrig_wire::tag::TagForm;
use serde_json::{Value, json};

/// OTG's lowest bit rate, in bit/s: one smallest frame per second, at layer 1.
const MIN_BIT_RATE: u64 = 672;
/// Time slot of the frame in a burst of one frame. The pause after the slot lasts until the next frame is due.
const SINGLE_FRAME_SLOT: Nanos = Nanos::from_millis(1);

/// The traffic that the command-line flags describe.
#[derive(Clone, Debug)]
pub struct QuickPlan {
    /// Locations of the senders; at least one.
    pub tx: Vec<String>,
    pub rx: Vec<String>,
    pub pattern: QuickPattern,
    pub size: QuickSize,
    /// Load of each sender, all its streams together.
    pub rate: Rate,
    pub length: QuickLength,
    /// Number of streams from a sender to each of its sets of receivers; at least 1. All streams of a sender share its
    /// load.
    pub streams: u32,
    /// VLAN of the frames.
    pub vlan: Option<u16>,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Emulated hosts on the only sender and the only receiver.
    pub hosts: Option<QuickHosts>,
}

/// Which senders send to which receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuickPattern {
    /// Each sender sends every frame to all receivers.
    #[default]
    ToAll,
    /// The first sender sends to the first receiver, the second sender to the second receiver, …
    NToN,
    /// All senders send to a single receiver.
    NToOne,
    /// Each sender sends to each receiver, in separate streams.
    Mesh,
}

impl QuickPattern {
    pub const fn name(self) -> &'static str {
        match self {
            Self::ToAll => "to-all",
            Self::NToN => "n-to-n",
            Self::NToOne => "n-to-one",
            Self::Mesh => "mesh",
        }
    }

    /// The reason why the pattern does not allow these numbers of senders and receivers; `None` if it does.
    pub fn explain_mismatch(self, tx: usize, rx: usize) -> Option<String> {
        match self {
            Self::NToN if tx != rx => {
                Some(format!("n-to-n needs as many receivers ({rx} given) as senders ({tx} given)"))
            }
            Self::NToOne if rx != 1 => Some(format!("n-to-one needs one receiver, not {rx}")),
            Self::Mesh if rx == 0 => Some("mesh needs receivers (--rx)".to_owned()),
            _ => None,
        }
    }

    /// The sets of receivers that sender `tx` sends to, each set in streams of its own.
    fn receiver_sets(self, tx: usize, rx: usize) -> Vec<Vec<usize>> {
        match self {
            Self::ToAll | Self::NToOne => vec![(0..rx).collect()],
            Self::NToN => vec![vec![tx]],
            Self::Mesh => (0..rx).map(|receiver| vec![receiver]).collect(),
        }
    }
}

/// Expands the location in a flag: the text itself or, if it ends with `*N` or `*all`, that many copies. `all` returns
/// how many ports match a location, if that can be known.
pub fn expand_copies(text: &str, all: impl Fn(&str) -> Option<usize>) -> Result<Vec<String>, String> {
    /// Maximum number of copies in one document.
    const MAX_COPIES: usize = 4096;
    // The text is split at the last star: a label with another star is a mistake, which is refused later.
    let Some((location, count)) = text.rsplit_once('*') else { return Ok(vec![text.to_owned()]) };
    // Copies of one interface would be the same port twice; copies of a label are different ports.
    if !location.starts_with("any-") {
        return Err(format!("`{text}`: only a location `any-LABEL` can be repeated with `*`"));
    }
    let count = match count {
        "all" => all(location)
            .ok_or_else(|| format!("`{text}` works only on a fleet, which knows how many ports match"))?,
        count => count.parse().map_err(|_| format!("`{text}`: write `{location}*3` or `{location}*all`"))?,
    };
    match count {
        1..=MAX_COPIES => Ok(vec![location.to_owned(); count]),
        0 => Err(format!("`{text}` stands for no port; at least one is needed")),
        _ => Err(format!("`{text}`: {count} ports are too many; at most {MAX_COPIES} are possible")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickSize {
    Fixed(FrameSize),
    /// Sizes drawn at random, from the first to the second.
    Range(FrameSize, FrameSize),
    Imix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuickLength {
    Time(Nanos),
    /// This many frames per stream.
    Packets(u64),
    Continuous,
}

/// Size of the smallest frames of the IMIX: 64 bytes, or more if the headers and the whole test tag need more.
pub fn least_imix_size(has_vlan: bool, is_ipv6: bool) -> FrameSize {
    /// Bytes of the Ethernet header, the UDP header and the FCS.
    const ETHERNET_AND_UDP_BYTES: u32 = 14 + 8 + 4;
    let vlan = if has_vlan { 4 } else { 0 };
    let ip = if is_ipv6 { 40 } else { 20 };
    let tag = clamp_to_u32(TagForm::Full.bytes() as u64);
    FrameSize::new(ETHERNET_AND_UDP_BYTES + vlan + ip + tag).max(FrameSize::MIN)
}

/// One stream of a sender.
struct SenderStream<'a> {
    /// Number of the stream among those of its sender, from 0.
    n: u32,
    /// Number of streams of the sender.
    of: u32,
    tx: usize,
    receivers: &'a [usize],
}

impl SenderStream<'_> {
    /// Returns the stream's share of `whole`, the sender's load. The shares of all streams of the sender
    /// add up to `whole`.
    fn share_of_load(&self, whole: u64) -> u64 {
        let streams = u64::from(self.of);
        // The first streams send one more, so that the shares add up to the whole.
        whole / streams + u64::from(u64::from(self.n) < whole % streams)
    }
}

/// OTG's rate and duration of a stream.
struct StreamRateAndDuration {
    rate: Value,
    duration: Value,
}

fn pps_rate_to_json(pps: u64) -> Value {
    json!({"choice": "pps", "pps": pps})
}

fn constant_pattern_to_json(value: impl Into<Value>) -> Value {
    let value: Value = value.into();
    json!({"choice": "value", "value": value})
}

/// The names of `count` senders (`side` is `tx`) or receivers (`rx`): `tx`, or `tx1`, `tx2`, … if there are several.
fn port_names(side: &str, count: usize) -> Vec<String> {
    match count {
        1 => vec![side.to_owned()],
        _ => (1..=count).map(|n| format!("{side}{n}")).collect(),
    }
}

impl QuickPlan {
    pub fn to_document(&self) -> Value {
        let tx_names = port_names("tx", self.tx.len());
        let rx_names = port_names("rx", self.rx.len());
        let locations = self.tx.iter().zip(&tx_names).chain(self.rx.iter().zip(&rx_names));
        let ports: Vec<Value> =
            locations.map(|(location, name)| json!({"name": name, "location": location})).collect();
        let mut flows = Vec::new();
        for (tx, tx_name) in tx_names.iter().enumerate() {
            let apart = self.pattern.receiver_sets(tx, rx_names.len());
            let of = clamp_to_u32(apart.len() as u64).saturating_mul(self.streams.max(1));
            // Stream n goes to set n modulo the number of sets; `flow_name` relies on that.
            for (n, receivers) in (0..of).zip(apart.iter().cycle()) {
                let stream = SenderStream { n, of, tx, receivers };
                let names: Vec<&str> =
                    receivers.iter().filter_map(|rx| Some(rx_names.get(*rx)?.as_str())).collect();
                flows.push(self.build_flow_json(&stream, tx_name, &names));
            }
        }
        let mut document = json!({"ports": ports, "flows": flows});
        if let Some(hosts) = &self.hosts {
            document["devices"] = hosts.build_devices_json(self.vlan);
        }
        document
    }

    /// The document as YAML.
    pub fn to_yaml(&self) -> String {
        let mut out = String::new();
        write_yaml(&self.to_document(), 0, &mut out);
        out
    }

    fn build_flow_json(&self, stream: &SenderStream<'_>, tx_name: &str, rx_names: &[&str]) -> Value {
        let pace = self.compute_stream_pace(stream);
        let ports = json!({"choice": "port", "port": {"tx_name": tx_name, "rx_names": rx_names}});
        let ends = self.hosts.as_ref().map_or(ports, QuickHosts::device_endpoints_value);
        let mut flow = json!({
            "name": self.flow_name(stream, tx_name, rx_names),
            "tx_rx": ends,
            "packet": self.build_packet_json(stream),
            "size": self.frame_size_to_json(),
            "rate": pace.rate,
            "duration": pace.duration,
            "metrics": {"enable": true, "loss": true, "timestamps": true,
                        "latency": {"enable": true, "mode": "cut_through"}},
        });
        if rx_names.len() > 1 {
            // With several receivers, each is expected to get every frame.
            flow["metrics"]["rx_tx_ratio"] = json!({"choice": "rx_count", "rx_count": {}});
        }
        flow
    }

    fn flow_name(&self, stream: &SenderStream<'_>, tx_name: &str, rx_names: &[&str]) -> String {
        let number = stream.n as usize / self.pattern.receiver_sets(stream.tx, self.rx.len()).len() + 1;
        let base = match (self.has_one_sender_and_receiver_set(), rx_names) {
            (true, _) => "stream".to_owned(),
            (false, [one]) => format!("{tx_name} to {one}"),
            (false, _) => format!("{tx_name} to all"),
        };
        if self.streams > 1 { format!("{base} {number}") } else { base }
    }

    /// True if there is one sender, and all its frames go to the same receivers.
    fn has_one_sender_and_receiver_set(&self) -> bool {
        self.tx.len() == 1 && (self.pattern != QuickPattern::Mesh || self.rx.len() == 1)
    }

    fn frame_size_to_json(&self) -> Value {
        match self.size {
            QuickSize::Fixed(size) => json!({"choice": "fixed", "fixed": size.bytes()}),
            QuickSize::Range(min, max) => {
                json!({"choice": "random", "random": {"min": min.bytes(), "max": max.bytes()}})
            }
            // The smallest frames of the predefined mix have 64 bytes. If headers and the whole tag need more,
            // the mix is written out with a larger size.
            QuickSize::Imix if self.least_imix_size() == FrameSize::MIN => {
                json!({"choice": "weight_pairs", "weight_pairs": {"choice": "predefined", "predefined": "imix"}})
            }
            QuickSize::Imix => {
                let pairs: Vec<Value> = self
                    .imix_sizes_and_weights()
                    .iter()
                    .map(|(size, weight)| json!({"size": size, "weight": weight}))
                    .collect();
                json!({"choice": "weight_pairs", "weight_pairs": {"choice": "custom", "custom": pairs}})
            }
        }
    }

    fn compute_stream_pace(&self, stream: &SenderStream<'_>) -> StreamRateAndDuration {
        let streams = u64::from(stream.of);
        // OTG's least `pps` is 1 and its least `bps` is 672: slower loads become bursts of one frame.
        let slow = match self.rate {
            Rate::Frames(rate) => {
                let whole = rate.frames_within(Nanos::from_secs(1));
                // Only whole numbers that give every stream at least 1 pps can be written as `pps`.
                if FrameRate::per_second(whole) == Some(rate) && whole >= streams {
                    return StreamRateAndDuration {
                        rate: pps_rate_to_json(stream.share_of_load(whole)),
                        duration: self.duration_value(),
                    };
                }
                Some(rate)
            }
            Rate::Bits(bits) if bits.bits_per_second() / streams >= MIN_BIT_RATE => {
                let bps = stream.share_of_load(bits.bits_per_second());
                return StreamRateAndDuration {
                    rate: json!({"choice": "bps", "bps": bps}),
                    duration: self.duration_value(),
                };
            }
            Rate::Bits(bits) => {
                let size = self.mean_size();
                FrameRate::from_bits(bits, size.bytes, size.frames)
            }
            Rate::Share(share) => {
                // A percentage of billionths has seven decimals; an `f64` has twice as many digits.
                let percentage = stream.share_of_load(share.billionths()) as f64 / 1e7;
                let rate = json!({"choice": "percentage", "percentage": percentage});
                return StreamRateAndDuration { rate, duration: self.duration_value() };
            }
        };
        // A rate that rounds to zero gets the longest possible period.
        let period = slow.map_or(Nanos::MAX, |rate| rate.due_time(streams));
        if period > SINGLE_FRAME_SLOT {
            return StreamRateAndDuration {
                rate: pps_rate_to_json(1_000_000_000 / SINGLE_FRAME_SLOT.as_u64()),
                duration: self.single_frame_bursts(period),
            };
        }
        // The rate is at least 1000/s and no whole number: the next whole rate differs by less than a thousandth.
        let rate = pps_rate_to_json((1_000_000_000 / period.as_u64().max(1)).max(1));
        StreamRateAndDuration { rate, duration: self.duration_value() }
    }

    /// The duration of a stream with one frame per period, as bursts of one frame: OTG's rates are
    /// whole numbers per second.
    fn single_frame_bursts(&self, period: Nanos) -> Value {
        let bursts = match self.length {
            // The number is rounded up, and is at least one: a run shorter than one period still
            // sends its first frame.
            QuickLength::Time(time) => time.as_u64().div_ceil(period.as_u64()).max(1),
            QuickLength::Packets(packets) => packets,
            // OTG: 0 bursts means until stopped.
            QuickLength::Continuous => 0,
        };
        // The frame has its own slot, so only the remaining period is a pause.
        let pause = period.saturating_sub(SINGLE_FRAME_SLOT).as_u64();
        json!({"choice": "burst", "burst": {"bursts": bursts, "packets": 1,
               "inter_burst_gap": {"choice": "nanoseconds", "nanoseconds": pause}}})
    }

    fn least_imix_size(&self) -> FrameSize {
        least_imix_size(self.vlan.is_some(), self.ipv6)
    }

    /// The sizes and weights of OTG's predefined `imix`; the smallest size is raised if headers and test
    /// tag need more room.
    fn imix_sizes_and_weights(&self) -> [(u32, u32); 3] {
        [(self.least_imix_size().bytes(), 7), (570, 4), (1518, 1)]
    }

    fn mean_size(&self) -> MeanSize {
        match self.size {
            QuickSize::Fixed(size) => MeanSize { bytes: size.bytes().into(), frames: 1 },
            QuickSize::Range(min, max) => {
                MeanSize { bytes: u64::from(min.bytes()) + u64::from(max.bytes()), frames: 2 }
            }
            QuickSize::Imix => {
                let pairs = self.imix_sizes_and_weights();
                let sum = |of: fn(&(u32, u32)) -> u32| pairs.iter().map(|pair| u64::from(of(pair))).sum();
                MeanSize { bytes: sum(|(size, weight)| size * weight), frames: sum(|(_, weight)| *weight) }
            }
        }
    }

    fn duration_value(&self) -> Value {
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
