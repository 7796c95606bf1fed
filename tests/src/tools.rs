//! Other programs' view of what we wrote.

use std::path::Path;
use std::process::Command;

/// The values of these fields in each frame of a capture file, by tshark, with checksums checked. Several values of one
/// field are joined by commas.
pub fn tshark(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-n", "-T", "fields", "-E", "separator=|"]);
    for preference in ["ip.check_checksum", "udp.check_checksum", "tcp.check_checksum", "eth.check_fcs"] {
        command.args(["-o", &format!("{preference}:TRUE")]);
    }
    command.args(["-o", "eth.fcs:Always", "-o", "tcp.analyze_sequence_numbers:FALSE"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark runs");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()
}

/// How many frames of a capture file tshark shows through a display filter.
pub fn tshark_shown(file: &Path, filter: &str) -> usize {
    let output = Command::new("tshark").arg("-r").arg(file).args(["-n", "-Y", filter]).output();
    let output = output.expect("tshark runs");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().count()
}

/// The frames of a pcap file, as their bytes: a header of 24 bytes, then records of 16 bytes and a frame.
pub fn frames_of(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).expect("the capture can be read");
    let mut rest = bytes.get(24..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk::<16>() {
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let (frame, next) = behind.split_at(length);
        frames.push(frame.to_vec());
        rest = next;
    }
    frames
}

/// How many frames tcpdump reads from a file.
pub fn tcpdump_count(file: &Path) -> usize {
    let output = tcpdump().args(["-nn", "-r"]).arg(file).output().expect("tcpdump runs");
    assert!(output.status.success(), "tcpdump: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().filter(|line| !line.starts_with([' ', '\t'])).count()
}

/// tcpdump, where it is root, becomes another user, which the root of an ordinary user's lab cannot: there it is nobody
/// special from the start.
fn tcpdump() -> Command {
    let setgroups = std::fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    if setgroups.trim() != "deny" {
        return Command::new("tcpdump");
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=1000", "--", "tcpdump"]);
    command
}

/// What a server answers to a document, by way of `curl`.
pub fn post(address: &str, body: &str) -> String {
    let mut command = Command::new("curl");
    command.args(["-s", "-X", "POST", "-H", "Content-Type: application/json", "-d", body, address]);
    String::from_utf8_lossy(&command.output().expect("there is a curl").stdout).into_owned()
}
