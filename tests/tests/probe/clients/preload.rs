//! Unmodified programs of others send on time: what they send is what they send without, and is answered.

use crate::handed_over::{Released, assert_numbered_once};
use crate::stations::FAR;
use packetrig_tests::skip;
use std::process::Output;

/// A program, its arguments before the target, what its output has if all was answered, and how many packets it sends.
type Case = (&'static str, &'static [&'static str], &'static str, usize);

const CASES: [Case; 5] = [
    ("nping", &["--icmp", "-c", "3", "--delay", "20ms"], "Lost: 0", 3),
    ("nping", &["--tcp", "-p", "9", "-c", "3", "--delay", "20ms", "--send-eth"], "Lost: 0", 3),
    ("scamper", &["-I"], "3 packets transmitted, 3 packets received", 3),
    ("fping", &["-q", "-c", "3", "-p", "20", "-t", "2000"], "= 3/3/0%", 3),
    ("python3", &["-c", PING_SOCKET], "answered", 1),
];

/// An echo request by a socket without rights: the kernel chooses its identifier. Who may open one is a setting of the namespace.
const PING_SOCKET: &str = "import socket, sys\n\
    open('/proc/sys/net/ipv4/ping_group_range', 'w').write('0 0')\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)\n\
    s.settimeout(5)\n\
    s.sendto(b'\\x08\\0\\0\\0\\0\\0\\0\\x01hello', (sys.argv[1], 0))\n\
    assert s.recv(100)[8:] == b'hello'\n\
    print('answered')\n";

#[test]
fn programs_of_others_are_answered() {
    for (program, words, wanted, packets) in CASES {
        if !skip::has_tool(program) {
            continue;
        }
        let Some(mut released) = Released::new() else { return };
        // scamper takes a command with its target as one word.
        let scamper = format!("ping -c 3 -i 1 {FAR}");
        let target = if program == "scamper" { scamper.as_str() } else { FAR };
        let words = [words, &[target]].concat();
        // nping stops to listen a tenth of a second after it has sent: the packets must leave soon.
        let schedule = [("PACKETRIG_SCHEDULE", "every=20ms,ahead=5ms")];
        let (output, reports) =
            released.send_in_time(packets, |released| released.preload(program, &words, &schedule));
        assert!(all(&output).contains(wanted), "{program}: {}", all(&output));
        assert_numbered_once(&reports);
    }
}

fn all(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
