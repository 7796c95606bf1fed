//! The same records at nfcapd and at our collector, and the same questions to nfdump and to `packetrig flows`: every answer is the same.
//!
//! What Debian's nfdump 1.7.1 does in its own way, and is not asked here: AS numbers need a database of countries; a list in which a
//! network holds another entry finds too little; `net` of IPv4 also finds IPv6 addresses with the same last bits.

use packetrig_tests::drawn_flows::{Draw, give_to_both};
use packetrig_tests::{program, skip};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const RECORDS: u32 = 3000;
const SEED: u64 = 20_261_123;

/// A condition of one term.
fn term(draw: &mut Draw) -> String {
    let side = draw.of(&["", "src ", "dst "]);
    let comparison = draw.of(&["", "= ", "== ", "> ", "< ", ">= ", "<= ", "gt ", "lt ", "ge ", "le ", "eq "]);
    let (low, small, net) = (draw.below(9), draw.below(4), draw.below(3));
    let host = draw.of(&["10.1.2.", "198.18.0.", "198.18.1.", "2001:db8:1::"]);
    let networks = ["10.0.0.0/8", "198.18.0.0/16", "198.18.1.0/24", "198.18.0.4/30", "2001:db8:1::/48"];
    let network = draw.of(&networks);
    let letters = draw.of(&["S", "SA", "A", "F", "R", "AFRPU", "X", "PU"]);
    let count = draw.of(&["0", "1", "10", "100", "1k", "2500", "10k", "100k", "1m"]);
    let port = draw.of(&["0", "53", "80", "443", "1024", "2048", "40000"]);
    match draw.below(24) {
        0 => draw.of(&["any", "inet", "ipv4", "inet6", "ipv6"]).to_owned(),
        1 => format!("proto {}", draw.of(&["tcp", "udp", "icmp", "icmp6", "gre", "6", "47", "99"])),
        2 => format!("{side}{} {host}{low}", draw.of(&["ip", "host"])),
        3 => format!("{side}ip in [ {host}{low} 198.19.0.0/16 2001:db8:{net}::{small} ]"),
        4 => format!("{side}net {network}"),
        5 => format!("{side}net 198.18.{small}.0 255.255.255.0"),
        6 | 7 => format!("{side}port {comparison}{port}"),
        8 => format!("{side}port in [ 53 {port} 1025 ]"),
        9 => format!("icmp-type {}", draw.of(&["0", "3", "8", "128"])),
        10 => format!("icmp-code {small}"),
        11 => format!("{}if {low}", draw.of(&["", "in ", "out "])),
        12 => format!("{side}vlan {}", draw.of(&["0", "100", "101", "200"])),
        13 | 14 => format!("flags {letters}"),
        15 => format!("flags = {}", draw.of(&["2", "18", "63"])),
        16 => format!("{side}tos {comparison}{}", draw.of(&["0", "8", "16", "184"])),
        17 => format!("{}packets {comparison}{count}", draw.of(&["", "in ", "out "])),
        18 => format!("bytes {comparison}{}", draw.of(&["100500", "101k", "102999"])),
        19 => format!("duration {comparison}{}", draw.of(&["0", "1", "999", "1000", "5000", "50000"])),
        20 => format!("{} {comparison}{count}", draw.of(&["pps", "bps", "bpp"])),
        21 => format!("{} ip {host}{low}", draw.of(&["next", "bgpnext"])),
        22 => {
            format!("{} 02:00:00:00:0{}:0{small}", draw.of(&["mac", "in src mac", "in dst mac"]), small % 2)
        }
        _ => format!("{side}{} 203.0.113.{small}", draw.of(&["xip", "nip"])),
    }
}

fn expression(draw: &mut Draw, depth: u32) -> String {
    match draw.below(if depth == 0 { 1 } else { 6 }) {
        0 | 1 => term(draw),
        2 => format!("not {}", term(draw)),
        3 => format!("not ({})", expression(draw, depth - 1)),
        4 => format!("{} and {}", expression(draw, depth - 1), expression(draw, depth - 1)),
        _ => format!("({}) or ({})", expression(draw, depth - 1), expression(draw, depth - 1)),
    }
}

/// The numbers that a program prints of records: their bytes, by which they are known.
fn numbers(command: &mut Command) -> BTreeSet<u64> {
    text(command).split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn text(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

fn nfdump(records: &Path) -> Command {
    let mut command = Command::new("nfdump");
    command.env("TZ", "UTC").args(["-C", "none", "-N", "-q", "-R"]).arg(records);
    command
}

fn packetrig(arguments: &[&str], records: &Path) -> Command {
    let mut command = Command::new(program::binary());
    command.arg("flows").args(arguments).arg(records);
    command
}

/// Every group, and what it has; what follows the flows in nfdump's lines.
type Groups = BTreeSet<Vec<String>>;

/// `-s`: the value is the fifth cell, then flows, packets, bytes, rates, each but the rates with its share.
fn nfdump_groups(records: &Path, by: &str) -> Groups {
    let said = text(nfdump(records).args(["-s", by, "-n", "0", "-o", "csv"]));
    let rows = said.lines().map(|line| line.split(',').map(str::trim).collect::<Vec<_>>());
    let rows = rows.filter(|cells| cells.len() == 14 && cells[0] != "ts");
    rows.map(|cells| [4, 5, 7, 9, 11, 12, 13].map(|at| cells[at].to_owned()).to_vec()).collect()
}

fn our_groups(records: &Path, by: &str, order: &str) -> Groups {
    let said = text(&mut packetrig(&["top", "--csv", "-n", "100000", "--by", by, "--order", order], records));
    let rows = said.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.map(|cells| [0, 1, 2, 3, 7, 8, 9].map(|at| whole_number(cells[at])).to_vec()).collect()
}

/// nfdump cuts rates and means to whole numbers, and has 0 where there is none.
fn whole_number(cell: &str) -> String {
    let whole = cell.parse::<f64>().map_or(cell, |_| cell.split('.').next().unwrap_or(cell));
    if whole.is_empty() { "0".to_owned() } else { whole.to_owned() }
}

#[test]
fn nfdump_and_we_give_the_same_answers() {
    if !skip::has_tool("nfcapd") || !skip::has_tool("nfdump") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    give_to_both(directory.path(), SEED, RECORDS).unwrap();
    let (nf, ours) = (directory.path().join("nf"), directory.path().join("ours"));
    let mut draw = Draw(SEED + 1);
    let terms: Vec<_> = (0..120).map(|_| term(&mut draw)).collect();
    let expressions: Vec<_> = (0..120).map(|_| expression(&mut draw, 3)).collect();
    let mut told_apart = 0;
    for question in terms.iter().chain(&expressions) {
        let theirs = numbers(nfdump(&nf).args(["-o", "fmt:%byt", question]));
        let show = ["show", "--csv", "--columns", "bytes", "--filter", question];
        assert_eq!(numbers(&mut packetrig(&show, &ours)), theirs, "{question}");
        told_apart += u32::from(!theirs.is_empty() && theirs.len() < usize::try_from(RECORDS).unwrap());
    }
    assert!(told_apart > 120, "most questions should keep some and not all: {told_apart}");
    for (by, order, theirs) in [
        ("src-ip", "bytes", "srcip/bytes"),
        ("dst-ip", "packets", "dstip/packets"),
        ("dst-port", "pps", "dstport/pps"),
        ("src-port", "flows", "srcport/flows"),
        ("in-if", "bps", "inif/bps"),
        ("out-if", "bpp", "outif/bpp"),
        ("vlan", "bytes", "srcvlan/bytes"),
    ] {
        let theirs = nfdump_groups(&nf, theirs);
        assert!(theirs.len() > 2, "{by}");
        assert_eq!(our_groups(&ours, by, order), theirs, "{by}");
    }
}

/// `-A`: several things together, here with a filter, and with small groups left out.
#[test]
fn groups_of_several_things_are_those_of_nfdump() {
    if !skip::has_tool("nfcapd") || !skip::has_tool("nfdump") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    give_to_both(directory.path(), SEED, RECORDS).unwrap();
    let words = |text: String| -> BTreeSet<Vec<String>> {
        let rows = text.lines().map(|line| line.split([',', ' ']).filter(|word| !word.is_empty()));
        let rows = rows.map(|words| words.map(str::to_owned).collect::<Vec<_>>());
        rows.filter(|words| words.len() > 4 && words[3].parse::<u64>().is_ok()).collect()
    };
    let mut theirs = nfdump(&directory.path().join("nf"));
    theirs.args([
        "-A",
        "srcip,dstport",
        "-O",
        "bytes",
        "-o",
        "fmt:%sa %dp %fl %pkt %byt",
        "inet and not flags X",
    ]);
    let theirs = words(text(&mut theirs));
    let by = ["top", "--csv", "--by", "srcip,dstport", "-n", "100000", "--filter", "inet and not flags X"];
    let ours = text(&mut packetrig(&by, &directory.path().join("ours")));
    let ours: BTreeSet<_> = words(ours).into_iter().map(|row| row[..5].to_vec()).collect();
    assert!(theirs.len() > 100, "{}", theirs.len());
    assert_eq!(ours, theirs);
}
