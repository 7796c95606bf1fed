//! tshark. It knows all our formats and elements, and would show a gap in sequence numbers or a missing template as an expert
//! item. It shows a cut record as padding without any, so records are counted, too.

use super::{DAY, Line, PROFILES, Profile, datagrams, export, wanted, write_pcap};
use packetrig_flow::export::ExportFormat;
use packetrig_tests::{skip, tools};
use std::path::Path;
use std::process::Command;

/// What tshark prints of a file.
fn printed(file: &Path) -> String {
    let output = Command::new("tshark").arg("-r").arg(file).args(["-n", "-V"]).output().unwrap();
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The flow records in it, in order; options records are left out.
fn lines(text: &str) -> Vec<Line> {
    let mut reader = Reader::default();
    text.lines().for_each(|line| reader.take(line.trim()));
    reader.end();
    reader.lines
}

#[derive(Default)]
struct Reader {
    lines: Vec<Line>,
    open: Option<Line>,
    is_flows: bool,
    /// Of NetFlow 5: the clock, and the time since the exporter began, milliseconds.
    now_ms: u64,
    up_ms: u64,
    is_millis: bool,
}

impl Reader {
    fn end(&mut self) {
        self.lines.extend(self.open.take());
    }

    fn take(&mut self, text: &str) {
        let is_pdu = text.starts_with("pdu ");
        if let Some((_, id)) = text.split_once(" [id=") {
            self.end();
            let id: u16 = id.split(']').next().unwrap().parse().unwrap_or(0);
            self.is_flows = (256..268).contains(&id);
        }
        if is_pdu || text.starts_with("Frame ") || (text.starts_with("Flow ") && !text.contains(':')) {
            self.end();
            self.open = (is_pdu || (self.is_flows && text.starts_with("Flow "))).then(Line::default);
        }
        let Some((name, value)) = text.split_once(": ") else { return };
        match name {
            "CurrentSecs" => self.now_ms = value.parse::<u64>().unwrap() * 1000,
            "CurrentNSecs" => self.now_ms += value.parse::<u64>().unwrap() / 1_000_000,
            "SysUptime" => self.up_ms = seconds_ns(value) / 1_000_000,
            "[Duration" => self.is_millis = !value.contains("nanoseconds"),
            _ => {}
        }
        let (now_ms, up_ms, is_millis) = (self.now_ms, self.up_ms, self.is_millis);
        let time = |value: &str| match value.strip_prefix("Sep 21, 2026 ") {
            Some(clock) => clock_ns(clock),
            None => (now_ms - up_ms) * 1_000_000 + seconds_ns(value),
        };
        if let Some(line) = &mut self.open {
            field(line, name, value, is_millis, &time);
        }
    }
}

fn field(line: &mut Line, name: &str, value: &str, is_millis: bool, time: &dyn Fn(&str) -> u64) {
    let number = || value.split([' ', ',']).next().unwrap().parse::<u64>().unwrap();
    let small = || u16::try_from(number()).unwrap();
    let reverse = value.contains("(Reverse");
    match name {
        "SrcAddr" => value.clone_into(&mut line.source),
        "DstAddr" => value.clone_into(&mut line.destination),
        "SrcPort" => line.ports.0 = small(),
        "DstPort" => line.ports.1 = small(),
        "Protocol" => {
            line.protocol = value.rsplit_once('(').unwrap().1.trim_end_matches(')').parse().unwrap();
        }
        "Packets" if reverse => line.back.0 = number(),
        "Octets" if reverse => line.back.1 = number(),
        "Packets" => line.packets = number(),
        "Octets" => line.bytes = number(),
        "TCP Flags" if !reverse => line.flags = u16::from_str_radix(&value[2..4], 16).unwrap(),
        "Vlan Id" => line.vlan = small(),
        // The forward direction's stand last. Nanoseconds say the same, to the nanosecond.
        "StartTime" if is_millis => line.times.0 = time(value) / 1_000_000,
        "EndTime" if is_millis => line.times.1 = time(value) / 1_000_000,
        "StartTime" => assert_eq!(line.times.0, time(value) / 1_000_000, "{line:?}"),
        "EndTime" => assert_eq!(line.times.1, time(value) / 1_000_000, "{line:?}"),
        _ => {}
    }
}

/// `3600.000000000 seconds`.
fn seconds_ns(text: &str) -> u64 {
    let (whole, fraction) = text.trim_end_matches(" seconds").split_once('.').unwrap();
    whole.parse::<u64>().unwrap() * 1_000_000_000 + fraction.parse::<u64>().unwrap()
}

/// `14:13:15.123000000 UTC` of the only day there is.
fn clock_ns(text: &str) -> u64 {
    let parts: Vec<&str> = text.trim_end_matches(" UTC").split(':').collect();
    let number = |at: usize| parts[at].parse::<u64>().unwrap();
    (DAY + number(0) * 3600 + number(1) * 60) * 1_000_000_000 + seconds_ns(parts[2])
}

/// As tshark shows them: ICMP stands where ports do in NetFlow 5, elsewhere in words of its own.
fn shown(profile: Profile) -> Vec<Line> {
    let mut lines = wanted(profile);
    for line in &mut lines {
        if profile.format == ExportFormat::NetFlow5 {
            line.ports.1 |= line.icmp;
        }
        line.icmp = 0;
    }
    lines
}

#[test]
fn tshark_shows_every_flow_of_every_format() {
    if !skip::has_tool("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for profile in PROFILES {
        let file = directory.path().join("export.pcap");
        let port = if profile.format == ExportFormat::Ipfix { 4739 } else { 2055 };
        write_pcap(&file, port, &datagrams(profile));
        let text = printed(&file);
        assert_eq!(lines(&text), shown(profile), "{profile:?}");
        assert_eq!(tools::tshark_shown(&file, "_ws.expert || _ws.malformed"), 0, "{profile:?}");
        assert!(!text.contains("o template found"), "{profile:?}");
    }
}

#[test]
fn tshark_opens_our_files() {
    if !skip::has_tool("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for profile in PROFILES.into_iter().filter(|profile| profile.format == ExportFormat::Ipfix) {
        let file = directory.path().join("export.ipfix");
        export(profile, file.to_str().unwrap());
        assert_eq!(lines(&printed(&file)), shown(profile), "{profile:?}");
        assert_eq!(tools::tshark_shown(&file, "_ws.expert"), 0, "{profile:?}");
    }
}

#[test]
fn tshark_shows_names_and_the_ledger() {
    if !skip::has_tool("tshark") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for profile in PROFILES.into_iter().filter(|profile| profile.format != ExportFormat::NetFlow5) {
        let file = directory.path().join("export.pcap");
        write_pcap(
            &file,
            if profile.format == ExportFormat::Ipfix { 4739 } else { 2055 },
            &datagrams(profile),
        );
        let text = printed(&file);
        // The last record says what was sent before it; both directions of a flow are one record of ours.
        for part in ["IfName: eth1", "IfDescr: to the lab", "FlowsExp: 120", "Not Sent Flows: 0"] {
            assert!(text.contains(part), "no `{part}` of {profile:?} in {text}");
        }
    }
}
