//! Rewritten and tagged frames of a replay have right checksums.

use packetrig_testkit::Lab;
use packetrig_tests::program::Running;
use packetrig_tests::recording::{mixture, stored};
use packetrig_tests::{skip, tools};

#[test]
fn rewritten_frames_have_new_addresses_and_checksums() {
    if !skip::has_tool("tshark") {
        return;
    }
    for (vlan, ids) in [("push:77", ["77", "77,9"]), ("set:300", ["", "300"]), ("pop", ["", ""])] {
        let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
        let (_directory, file) = stored(&mixture(600, 100_000));
        let (tx, rx) = (lab.location(0), lab.location(1));
        let maps = "10.1.0.0/16=198.18.0.0/16,10.0.0.0/8=198.0.0.0/8,2000::/8=2100::/8";
        let macs = ["--rewrite-src-mac", "02:aa:00:00:00:01", "--rewrite-dst-mac", "02:bb:00:00:00:02"];
        let usual = ["--tx", &tx, "--rx", &rx, "--capture", "--map-ip", maps, "--vlan", vlan];
        let finished = Running::replay(&file, &[&usual[..], &macs].concat()).finish();
        finished.report().assert_clean();
        let fields = [
            "eth.src",
            "eth.dst",
            "vlan.id",
            "ip.src",
            "ip.dst",
            "ipv6.src",
            "ip.checksum.status",
            "udp.checksum.status",
            "tcp.checksum.status",
            "eth.fcs.status",
        ];
        let frames = tools::tshark(&finished.capture(), &fields);
        assert_eq!(frames.len(), 600);
        for (n, frame) in frames.iter().enumerate() {
            assert_eq!(frame[..2], ["02:aa:00:00:00:01", "02:bb:00:00:00:02"]);
            let is_v6 = n % 6 == 2;
            assert_eq!(frame[2], ids[usize::from(is_v6)], "{vlan} {n}");
            let addresses: &[&str] = match n % 6 {
                5 => &["", "", ""],
                _ if is_v6 => &["", "", "2100::1"],
                _ => &["198.18.2.3", "198.9.8.7", ""],
            };
            assert_eq!(frame[3..6], *addresses, "{vlan} {n}");
            let has = |wanted: bool| if wanted { "1" } else { "" };
            let is_v4 = n % 6 != 5 && !is_v6;
            let is_tcp = matches!(n % 6, 1 | 3);
            let is_udp = matches!(n % 6, 0 | 2 | 4);
            assert_eq!(frame[6..], [has(is_v4), has(is_udp), has(is_tcp), "1"], "{vlan} {n}");
        }
    }
}
