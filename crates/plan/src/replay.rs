//! Turns the command-line flags of a replay into a document: OTG with one flow whose frames come
//! from a file (`x_replay`).

use crate::device::format_mac;
use crate::quick::{QuickHosts, write_yaml};
use crate::recording::{PlannedRecording, ReplayTiming};
use packetrig_units::{FrameRate, Nanos, Rate};
use packetrig_wire::foreign::{FrameRewrite, VlanEdit};
use serde_json::{Value, json};

/// The values of the flags of a replay.
#[derive(Clone, Debug)]
pub struct ReplayRequest {
    pub tx: String,
    pub rx: Vec<String>,
    pub recording: PlannedRecording,
    /// Load; used only if the timing is even.
    pub rate: Option<Rate>,
    /// Emulated hosts on the sender and the only receiver.
    pub hosts: Option<QuickHosts>,
}

/// A rate that a document cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rate of {0} cannot be written in a plan; use a whole number of frames per second")]
pub struct UnrepresentableRate(FrameRate);

impl ReplayRequest {
    pub fn to_document(&self) -> Result<Value, UnrepresentableRate> {
        let names: Vec<String> = match self.rx.len() {
            1 => vec!["rx".to_owned()],
            many => (1..=many).map(|n| format!("rx{n}")).collect(),
        };
        let receivers = names.iter().zip(&self.rx);
        let ports: Vec<Value> = std::iter::once(json!({"name": "tx", "location": self.tx}))
            .chain(receivers.map(|(name, location)| json!({"name": name, "location": location})))
            .collect();
        let between_ports = json!({"choice": "port", "port": {"tx_name": "tx", "rx_names": names}});
        let ends = self.hosts.as_ref().map_or(between_ports, QuickHosts::device_endpoints_value);
        let mut flow = json!({
            "name": "replay",
            "tx_rx": ends,
            "x_replay": self.recording.to_document(),
            "metrics": {"enable": self.recording.tagged, "loss": true, "timestamps": true,
                        "latency": {"enable": true, "mode": "cut_through"}},
        });
        // The reader refuses `rate` together with any other timing.
        if let Some(rate) = self.rate.filter(|_| self.recording.timing == ReplayTiming::Even) {
            flow["rate"] = replay_rate_to_json(rate)?;
        }
        // Each receiver is expected to get every frame.
        if names.len() > 1 {
            flow["metrics"]["rx_tx_ratio"] = json!({"choice": "rx_count", "rx_count": {}});
        }
        let mut document = json!({"ports": ports, "flows": [flow]});
        if let Some(hosts) = &self.hosts {
            // The frames leave with this tag, so the hosts must ask and answer in the same VLAN.
            let vlan = match self.recording.rewrite.vlan {
                Some(VlanEdit::Push(id) | VlanEdit::Set(id)) => Some(id),
                Some(VlanEdit::Pop) | None => None,
            };
            document["devices"] = hosts.build_devices_json(vlan);
        }
        Ok(document)
    }

    /// The document as YAML.
    pub fn to_yaml(&self) -> Result<String, UnrepresentableRate> {
        let mut out = String::new();
        write_yaml(&self.to_document()?, 0, &mut out);
        Ok(out)
    }
}

impl PlannedRecording {
    /// The value of `x_replay` for this recording.
    fn to_document(&self) -> Value {
        let facts = &self.facts;
        let mut replay = json!({
            "file": self.file.display().to_string(),
            "loops": self.loops,
            "facts": {"file_size": facts.file_size, "frames": facts.frames, "bytes": facts.bytes,
                      "largest": facts.largest.bytes(), "largest_untagged": facts.largest_untagged.bytes(),
                      "span_ns": facts.span.as_u64(), "has_fcs": facts.has_fcs},
        });
        match self.timing {
            ReplayTiming::Recorded(speed) => replay["speed"] = speed.to_string().into(),
            ReplayTiming::Even => replay["timing"] = "even".into(),
            ReplayTiming::Fastest => replay["timing"] = "fastest".into(),
        }
        if !self.rewrite.is_empty() {
            replay["rewrite"] = rewrite_to_json(&self.rewrite);
        }
        replay
    }
}

fn rewrite_to_json(rewrite: &FrameRewrite) -> Value {
    let mut out = json!({});
    if let Some(address) = rewrite.src_mac {
        out["src_mac"] = format_mac(address).into();
    }
    if let Some(address) = rewrite.dst_mac {
        out["dst_mac"] = format_mac(address).into();
    }
    if !rewrite.addresses.is_empty() {
        out["map_ip"] = rewrite.addresses.iter().map(ToString::to_string).collect();
    }
    if let Some(edit) = rewrite.vlan {
        out["vlan"] = edit.to_string().into();
    }
    out
}

fn replay_rate_to_json(rate: Rate) -> Result<Value, UnrepresentableRate> {
    Ok(match rate {
        Rate::Frames(rate) => {
            let whole = rate.frames_within(Nanos::from_secs(1));
            if FrameRate::per_second(whole) != Some(rate) {
                return Err(UnrepresentableRate(rate));
            }
            json!({"choice": "pps", "pps": whole})
        }
        Rate::Bits(bits) => json!({"choice": "bps", "bps": bits.bits_per_second()}),
        // A percentage of billionths has seven decimals; an `f64` has twice as many digits.
        Rate::Share(share) => json!({"choice": "percentage", "percentage": share.billionths() as f64 / 1e7}),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::quick::HostRequest;
    use crate::recording::RecordingFacts;
    use packetrig_units::{BitRate, FrameSize};

    fn replay(timing: ReplayTiming, rate: Option<&str>) -> ReplayRequest {
        let facts = RecordingFacts {
            file_size: 9_000,
            frames: 101,
            bytes: 10_100,
            largest: FrameSize::new(1522),
            largest_untagged: FrameSize::new(1518),
            span: Nanos::from_secs(1),
            has_fcs: true,
        };
        let rewrite = FrameRewrite {
            src_mac: Some([2, 0, 0, 0, 0, 10]),
            dst_mac: Some([2; 6]),
            addresses: vec!["10.0.0.0/8=198.18.0.0/8".parse().unwrap(), "::/0=2001::/0".parse().unwrap()],
            vlan: Some("push:7".parse().unwrap()),
        };
        ReplayRequest {
            tx: "a/eth0".into(),
            rx: vec!["b/eth0".into()],
            recording: PlannedRecording {
                file: "/tmp/a b: #.pcap".into(),
                timing,
                loops: 2,
                rewrite,
                tagged: true,
                facts,
            },
            rate: rate.map(|rate| rate.parse().unwrap()),
            hosts: None,
        }
    }

    #[test]
    fn replay_document_reads_back_unchanged() {
        for (timing, rate) in [
            (ReplayTiming::Recorded("0.25x".parse().unwrap()), None),
            (ReplayTiming::Even, Some("10kpps")),
            (ReplayTiming::Even, Some("1Mbit/s")),
            (ReplayTiming::Fastest, None),
        ] {
            let replay = replay(timing, rate);
            let plan = Plan::from_text(&replay.to_yaml().unwrap()).unwrap();
            assert_eq!(plan.streams[0].frames.recording(), Some(&replay.recording));
            let bound = plan.bind_to_links(&[Some(BitRate::new(1_000_000_000)), None]).unwrap();
            assert_eq!(bound.streams[0].timeline.total_frames(), Some(202));
        }
    }

    #[test]
    fn replay_between_hosts_asks_for_gateway() {
        let [sender, receiver] = [("10.0.0.2", "10.0.0.1"), ("10.0.1.2", "")].map(|(address, gateway)| {
            HostRequest { address: address.parse().ok(), gateway: gateway.parse().ok(), next_hop: None }
        });
        let mut replay = replay(ReplayTiming::Fastest, None);
        replay.hosts = QuickHosts::new(sender, receiver, false, false).ok();
        let stream =
            |replay: &ReplayRequest| Plan::from_text(&replay.to_yaml().unwrap()).unwrap().streams.remove(0);
        // A given MAC address needs no question.
        assert_eq!(stream(&replay).awaits, None);
        replay.recording.rewrite.dst_mac = None;
        replay.recording.rewrite.src_mac = None;
        let asking = stream(&replay);
        assert_eq!(asking.awaits.map(|neighbour| neighbour.ip.to_string()).as_deref(), Some("10.0.0.1"));
        let found = asking.frames_with_mac([2, 0, 0, 0, 0, 9]).unwrap();
        let rewrite = &found.recording().unwrap().rewrite;
        assert_eq!((rewrite.src_mac, rewrite.dst_mac), (Some([2, 0, 0, 0, 0, 1]), Some([2, 0, 0, 0, 0, 9])));
        assert_eq!((asking.tx, &asking.rx[..], asking.name.as_str()), (0, &[1][..], "replay"));
    }

    #[test]
    fn the_schedule_is_the_recorded_one_on_average() {
        let replay = replay(ReplayTiming::Recorded("2x".parse().unwrap()), None);
        let bound =
            Plan::from_text(&replay.to_yaml().unwrap()).unwrap().bind_to_links(&[None, None]).unwrap();
        assert_eq!(bound.streams[0].timeline.due_time(100), Nanos::from_millis(500));
    }

    #[test]
    fn replayed_file_count_is_limited() {
        let whole = replay(ReplayTiming::Fastest, None).to_document().unwrap();
        let plan = |flows: usize| {
            let named = |n| {
                let mut flow = whole["flows"][0].clone();
                flow["name"] = format!("replay {n}").into();
                flow
            };
            let flows: Vec<Value> = (0..flows).map(named).collect();
            Plan::from_text(&json!({"ports": whole["ports"], "flows": flows}).to_string())
        };
        assert!(plan(64).is_ok());
        assert!(plan(65).unwrap_err().to_string().contains("at most 64 files"));
    }

    #[test]
    fn replay_contradicting_its_file_is_refused() {
        let mut document = replay(ReplayTiming::Fastest, None).to_document().unwrap();
        document["flows"][0]["size"] = json!({"fixed": 64});
        document["flows"][0]["rate"] = json!({"pps": 64});
        document["flows"][0]["x_replay"]["rewrite"]["vlan"] = "drop".into();
        document["flows"][0]["x_replay"]["facts"]["frames"] = 0.into();
        document["flows"][0]["x_replay"]["more"] = 0.into();
        let problems = Plan::from_text(&document.to_string()).unwrap_err().0;
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        for path in ["size", "x_replay.rewrite.vlan", "x_replay.facts.frames", "x_replay.more"] {
            assert!(paths.contains(&format!("flows[0].{path}").as_str()), "{paths:?}");
        }
        assert!("0.5pps".parse().is_ok_and(|rate| replay_rate_to_json(rate).is_err()));
    }
}
