//! Expressions are asked of stored records and of the records themselves, and have to agree.

use super::*;
use crate::sample::{SECOND, THIRTEEN, address as sample_address, foreign_record, record};
use crate::scan::{list_flow_files, open_parquet, scan_records};
use crate::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use packetrig_flow::collect::{FieldPlace, field_place};
use packetrig_flow::{FlowRecord, REVERSE_ENTERPRISE, TunnelKind, field_name, iana};
use parquet::file::reader::FileReader;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;

fn has(prefix: &str, text: &str) -> bool {
    let bytes = match text.parse().unwrap() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let ValueRange { least, greatest } = prefix.parse::<AddressPrefix>().unwrap().address_range();
    (least..=greatest).contains(&u128::from_be_bytes(bytes))
}

#[test]
fn filter_error_has_four_lines_without_control_characters() {
    for text in ["\"a\nb\x1b[2J\"", "proto \"t\ncp\"", "ip \"1\n2\" and", "field \"a\nb\" = \"c\nd\" e"] {
        let error = text.parse::<FlowFilter>().unwrap_err().to_string();
        assert_eq!(error.lines().count(), 4, "{error:?}");
        assert!(!error.contains(|c: char| c.is_control() && c != '\n'), "{error:?}");
    }
}

#[test]
fn prefixes_hold_what_they_name() {
    assert!(has("198.18.0.0/15", "198.19.255.255") && !has("198.18.0.0/15", "198.20.0.0"));
    assert!(has("198.18.0.1", "198.18.0.1") && !has("198.18.0.1", "198.18.0.2"));
    assert!(has("2001:2::/48", "2001:2::1") && !has("2001:2::/48", "2001:3::1"));
    assert!(has("0.0.0.0/0", "203.0.113.1") && !has("0.0.0.0/0", "2001:2::1"));
    assert!(has("::/0", "2001:2::1") && has("::/0", "198.18.0.1"));
    for wrong in ["", "198.18.0.0/33", "2001:2::/129", "host", "198.18.0.0/", "198.18.0.0/-1"] {
        assert!(wrong.parse::<AddressPrefix>().is_err(), "{wrong}");
    }
}

/// Files with several row groups.
fn stored(records: &[FlowRecord], exporter: [u8; 16]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    let mut options = ParquetOptions::new(directory.path());
    options.group_rows = 50;
    let mut sink = ParquetSink::new(options).unwrap();
    sink.write_records(records, RecordExporter { exporter, domain: 7 }).unwrap();
    sink.close_sink().1.unwrap();
    let files = list_flow_files(&[directory.path().to_owned()]).unwrap();
    (directory, files.to_vec())
}

/// Numbers of the flows that a filter keeps.
fn kept(files: &[PathBuf], filter: &FlowFilter) -> BTreeSet<u64> {
    let mut kept = BTreeSet::new();
    scan_records(files, filter, &["flowId"], &mut |chunk, rows| {
        kept.extend(rows.iter().map(|&row| chunk.column("flowId").number_at(row)));
        ControlFlow::Continue(())
    })
    .unwrap();
    kept
}

fn parsed(text: &str) -> FlowFilter {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// Half of the records as our meter makes them, half as a router exports them; one of IPv6, one of ICMP in each ten.
fn various() -> Vec<FlowRecord> {
    let mut records: Vec<_> =
        (0..400).map(|n| if n % 2 == 0 { record(n) } else { foreign_record(n) }).collect();
    for (n, record) in (0_u16..).zip(records.iter_mut().step_by(10)) {
        record.key.source = [0x20 + u8::try_from(n).unwrap(); 16];
        record.forward.tcp_flags = n | (n & 1) << 8;
    }
    for (n, record) in (0_u16..).zip(records.iter_mut().skip(5).step_by(10)) {
        record.key.protocol = if n % 2 == 0 { 1 } else { 58 };
        record.icmp = n << 8 | 3;
        record.key.destination_port = record.icmp;
    }
    for record in records.iter_mut().step_by(7) {
        record.ttl_min = 64;
    }
    for (n, record) in (0_u8..).zip(records.iter_mut().skip(3).step_by(10)) {
        let mut foreign = record.foreign.as_deref().cloned().unwrap();
        let fields: [(u32, u16, &[u8]); 6] = [
            (0, 234, &[0, 0, 0, n]),
            (0, 96, b"DNS query"),
            (9, 8232, &[0, n]),
            (0, 434, &(-i64::from(n)).to_be_bytes()),
            (0, 320, &(f64::from(n) * 1.5).to_be_bytes()),
            (0, 130, &[198, 18, 0, n]),
        ];
        for (enterprise, id, value) in fields {
            foreign.others.add_field(enterprise, id, value);
        }
        record.foreign = Some(std::sync::Arc::new(foreign));
    }
    records
}

/// The number that a record has in its other fields, if it has some.
fn other_number(record: &FlowRecord) -> Option<u64> {
    let number = u64::MAX - record.flow_id;
    (number % 10 == 3).then_some(number / 10)
}

type AgreesWith = fn(&FlowRecord) -> bool;

fn lasts_ms(record: &FlowRecord) -> u64 {
    (record.last_ns() - record.first_ns()) / 1_000_000
}

const QUESTIONS: &[(&str, AgreesWith)] = &[
    ("", |_| true),
    ("any", |_| true),
    ("inet", |record| record.key.is_ipv4()),
    ("IPV6", |record| !record.key.is_ipv4()),
    ("proto udp", |record| record.key.protocol == 17),
    ("proto in [tcp, icmp6]", |record| matches!(record.key.protocol, 6 | 58)),
    ("src ip 198.18.0.3", |record| record.key.source == sample_address(3)),
    ("dst host 198.18.39.15", |_| true),
    ("ip 198.18.0.3", |record| record.key.source == sample_address(3)),
    ("src net 198.18.0.0/25", |record| record.key.is_ipv4() && record.key.source[14..] < [0, 128][..]),
    ("net 198.18.0.0 255.255.255.128 and inet", |record| {
        record.key.is_ipv4() && record.key.source[14..] < [0, 128][..]
    }),
    ("src ip in [198.18.0.1 198.18.0.2,2121:2121::/32]", |record| {
        record.key.source == [0x21; 16] || [1, 2].map(sample_address).contains(&record.key.source)
    }),
    ("src ip != 198.18.0.3", |record| record.key.source != sample_address(3)),
    ("port 443", |record| record.key.destination_port == 443),
    ("port > 40100", |record| record.key.source_port > 40_100),
    ("src port <= 40100", |record| record.key.source_port <= 40_100),
    ("src port != 40003", |record| record.key.source_port != 40_003),
    ("port != 443", |record| record.key.destination_port != 443),
    ("src port in [40003 40005, 1]", |record| matches!(record.key.source_port, 40_003 | 40_005)),
    ("src port lt 40010 or src port GE 40390", |record| !(40_010..40_390).contains(&record.key.source_port)),
    ("icmp-type 4", |record| matches!(record.key.protocol, 1 | 58) && record.icmp >> 8 == 4),
    ("icmp-code 3", |record| matches!(record.key.protocol, 1 | 58)),
    ("icmp-type > 30", |record| matches!(record.key.protocol, 1 | 58) && record.icmp >> 8 > 30),
    ("flags S", |record| record.key.protocol == 6 && record.forward.tcp_flags & 2 != 0),
    ("flags sa", |record| record.key.protocol == 6 && record.forward.tcp_flags & 0x12 == 0x12),
    ("flags = 27", |record| record.key.protocol == 6 && record.forward.tcp_flags == 27),
    ("out flags S", |record| record.key.protocol == 6 && record.reverse.tcp_flags & 2 != 0),
    ("tos 0xb8", |_| true),
    ("dst tos 14", |record| record.foreign.is_some()),
    ("packets > 100", |record| record.forward.packets > 100),
    ("out packets > 100", |record| record.reverse.packets > 100),
    ("bytes <= 10k", |record| record.forward.bytes <= 10_000),
    ("out bytes >= 1m", |record| record.reverse.bytes >= 1_000_000),
    ("duration = 0", |record| lasts_ms(record) == 0),
    ("duration < 1s", |record| lasts_ms(record) < 1000),
    ("pps > 1g", |record| {
        let lasts = u128::from(record.last_ns() - record.first_ns());
        lasts > 0 && u128::from(record.forward.packets) * 1_000_000_000 / lasts > 1_000_000_000
    }),
    ("bpp 100", |_| true),
    ("bpp > 100", |_| false),
    ("if 3", |_| true),
    ("in if 3 and out if > 1100", |record| {
        record.foreign.as_ref().is_some_and(|foreign| foreign.output > 1100)
    }),
    ("vlan 100", |_| true),
    ("dst vlan 13", |record| record.foreign.is_some()),
    ("inner vlan 7", |_| true),
    ("src as 64500", |record| record.foreign.is_some()),
    ("dst as 4200000001", |record| {
        record.foreign.as_ref().is_some_and(|foreign| foreign.destination_as == 4_200_000_001)
    }),
    ("as in [1 64500]", |record| record.foreign.is_some()),
    ("next ip 198.18.0.7 and bgpnext ip 198.18.0.8", |record| record.foreign.is_some()),
    ("src xip 198.18.0.9 or dst nip 198.18.0.9", |record| record.foreign.is_some()),
    ("xnet 198.18.0.8/30 and src xport 11 and nport 12", |record| record.foreign.is_some()),
    ("router ip fd00::7 and observation domain id 7", |_| true),
    ("src tunip 198.18.0.1 and tunip 198.18.0.2", |_| true),
    ("tunnel vxlan", |record| record.key.tunnel == TunnelKind::Vxlan),
    ("tunnel != VXLAN", |record| record.key.tunnel != TunnelKind::Vxlan),
    ("tunnel id 16777214", |record| record.key.tunnel_id == 16_777_214),
    ("mac 02:00:00:00:00:02", |_| true),
    ("in src mac 02:00:00:00:00:02", |_| false),
    ("mpls label0 1048561", |record| record.mpls[0] >> 12 == 1_048_561),
    ("mpls any 1048561", |record| record.mpls[0] >> 12 == 1_048_561),
    ("mpls exp0 0 and mpls label1 0", |_| true),
    ("icmp type 4 and icmp code 3", |record| matches!(record.key.protocol, 1 | 58) && record.icmp >> 8 == 4),
    ("flags =S", |record| record.key.protocol == 6 && record.forward.tcp_flags == 2),
    ("flags = sf", |record| record.key.protocol == 6 && record.forward.tcp_flags == 3),
    ("flags != S", |record| record.key.protocol == 6 && record.forward.tcp_flags != 2),
    ("ttl 64 and max ttl > 63", |record| record.ttl_max == 64),
    ("min ttl < 64 and not ttl equal", |record| record.ttl_min < 64),
    ("ttl equal", |record| record.ttl_min == record.ttl_max),
    ("first seen >= 2026-11-21T13:01:40", |record| record.first_ns() >= THIRTEEN + 100 * SECOND),
    ("first seen 2026-11-21T13:01:40.000", |record| record.first_ns() == THIRTEEN + 100 * SECOND),
    ("first seen < 2026-11-21T14:01:40+01:00", |record| record.first_ns() < THIRTEEN + 100 * SECOND),
    ("last seen > 2026-11-21T13:01:40.0000005", |record| record.last_ns() > THIRTEEN + 100 * SECOND + 500),
    ("nat ip 198.18.0.9 and nat net 198.18.0.0 255.255.0.0", |record| record.foreign.is_some()),
    ("src nat ip 198.18.0.9 or dst nat ip 198.18.0.9", |record| record.foreign.is_some()),
    ("src nat port 11 and nat port in [12 13]", |record| record.foreign.is_some()),
    ("bgp next ip 198.18.0.8 and next net 198.18.0.0/24", |record| record.foreign.is_some()),
    ("exporter ip fd00::7 and exporter net fd00::/16", |_| true),
    ("src tun ip 198.18.0.1 and tun net 198.18.0.0/24", |_| true),
    ("in mac 02:00:00:00:00:02", |_| true),
    ("observedLoss = 1", |record| record.loss),
    ("flowpart 2", |record| record.part == 2),
    ("flowStartNanoseconds >= 1795266100000000000", |record| record.first_ns() >= THIRTEEN + 100 * SECOND),
    ("maximumTTL = 64 and (minimumTTL < 64 or port 1)", |record| record.ttl_min < 64),
    ("not proto tcp && !(port 443 and proto udp)", |record| !matches!(record.key.protocol, 6 | 17)),
    ("src port 40001 or src port 40002 and proto tcp", |record| {
        record.key.source_port == 40_001 || record.key.source_port == 40_002 && record.key.protocol == 6
    }),
    ("flags N", |record| record.key.protocol == 6 && record.forward.tcp_flags & 0x100 != 0),
    ("flags = 257", |record| record.key.protocol == 6 && record.forward.tcp_flags == 257),
    ("field ingressVRFID", |record| other_number(record).is_some()),
    ("field ingressVRFID = 5", |record| other_number(record) == Some(5)),
    ("field ingressvrfid in [5 7, 1k] or field 0/234 > 30", |record| {
        other_number(record).is_some_and(|n| matches!(n, 5 | 7) || n > 30)
    }),
    ("field ingressVRFID != 5", |record| other_number(record) != Some(5)),
    ("field 9/8232 = 0x000A", |record| other_number(record) == Some(10)),
    ("field 9/8232 in [0x0001 0x0002]", |record| matches!(other_number(record), Some(1 | 2))),
    ("field applicationName = \"dns query\" and field mibObjectValueInteger <= -30", |record| {
        other_number(record).is_some_and(|n| n >= 30)
    }),
    ("field absoluteError >= 4.5 and field absoluteError < 6", |record| other_number(record) == Some(3)),
    ("field exporterIPv4Address in [198.18.0.0/31 198.18.0.9]", |record| {
        matches!(other_number(record), Some(0 | 1 | 9))
    }),
    ("field flowDirection = 0", |record| record.foreign.is_some()),
    ("(field natEvent)", |_| false),
    ("# a comment\nproto tcp # another", |record| record.key.protocol == 6),
];

#[test]
fn expressions_keep_the_records_that_they_describe() {
    let records = various();
    let mut exporter = [0; 16];
    (exporter[0], exporter[15]) = (0xfd, 7);
    let (_directory, files) = stored(&records, exporter);
    let all: BTreeSet<_> = records.iter().map(|record| record.flow_id).collect();
    for (text, agrees) in QUESTIONS {
        let expected: BTreeSet<_> =
            records.iter().filter(|record| agrees(record)).map(|record| record.flow_id).collect();
        assert_eq!(kept(&files, &parsed(text)), expected, "{text}");
        if !text.is_empty() && !text.starts_with('#') {
            let others: BTreeSet<_> = all.difference(&expected).copied().collect();
            let is_of_letters = text.contains("flags s") || text.contains("flags S");
            if !is_of_letters {
                assert_eq!(kept(&files, &parsed(&format!("not ({text})"))), others, "not ({text})");
            }
            assert_eq!(kept(&files, &parsed(&format!("not not ({text})"))), expected, "not not ({text})");
        }
    }
}

/// nfdump's meaning: `flags S and not flags AFRPU` is a SYN and nothing else.
#[test]
fn no_flags_of_several_is_none_of_them() {
    let records = various();
    let (_directory, files) = stored(&records, [0; 16]);
    let expected: BTreeSet<_> = records
        .iter()
        .filter(|record| record.key.protocol == 6 && record.forward.tcp_flags == 2)
        .map(|record| record.flow_id)
        .collect();
    assert!(!expected.is_empty());
    assert_eq!(kept(&files, &parsed("flags S and not flags AFRPU")), expected);
}

/// Neither IPv4 nor IPv6: a flow below IP.
#[test]
fn record_without_addresses_is_of_no_version() {
    let mut bare = record(0);
    (bare.key.source, bare.key.destination) = ([0; 16], [0; 16]);
    let (_directory, files) = stored(&[bare, record(1)], [0; 16]);
    for (text, expected) in [("ipv4", 1), ("ipv6", 0), ("not ipv4 and not ipv6", 1)] {
        assert_eq!(kept(&files, &parsed(text)).len(), expected, "{text}");
    }
}

#[test]
fn row_groups_without_an_answer_are_not_read() {
    let (_directory, files) = stored(&various(), [0; 16]);
    let groups = |text: &str| {
        let filter = parsed(text);
        let kept = |path: &PathBuf| {
            open_parquet(path)
                .unwrap()
                .metadata()
                .row_groups()
                .iter()
                .filter(|group| filter.may_select_rows_of(group))
                .count()
        };
        files.iter().map(kept).sum::<usize>()
    };
    // Eight groups of 50 records.
    assert_eq!(groups("any"), 8);
    assert_eq!((groups("field natEvent"), groups("not field natEvent")), (8, 8));
    let (_directory, own) = stored(&(0..100).map(record).collect::<Vec<_>>(), [0; 16]);
    let filter = parsed("field natEvent");
    let none = |path: &PathBuf| {
        !open_parquet(path)
            .unwrap()
            .metadata()
            .row_groups()
            .iter()
            .any(|group| filter.may_select_rows_of(group))
    };
    assert!(own.iter().all(none), "no record of a group has other fields");
    for one in
        ["src port 40003", "flowId 18446744073709551605", "src port < 40002 and packets > 1", "bytes > 39900"]
    {
        assert_eq!(groups(one), 1, "{one}");
    }
    assert_eq!(groups("src port in [40003 40120 1] or src port 40121"), 2);
    assert_eq!(groups("not src port > 40099"), 2);
    assert_eq!(groups("next ip 203.0.113.1"), 0);
    assert_eq!(groups("flags = 1024"), 0);
    assert_eq!((groups("first seen < 2026-11-21T12:59"), groups("first seen < 2026-11-21T13:00:49")), (0, 1));
    assert_eq!((groups("src ip 10.0.0.1"), groups("src ip 203.0.113.1")), (0, 8));
}

/// The text, the first line of the message, the marked part, and a word of the help.
const FAULTS: &[(&str, &str, &str, &str)] = &[
    ("src ip 10.0.0.1 and port http", "`http` is not a value for `port`", "http", "`> 3`"),
    ("src", "`src` is not a complete condition", "src", "host, ip, mac"),
    ("colour red", "no condition begins with `colour`", "colour", "icmp-code"),
    ("port 80 port 90", "`and` or `or` is missing here", "port", "join"),
    ("(port 80", "this `(` is not closed", "(", "add `)`"),
    ("port 80)", "this `)` has no matching `(`", ")", "remove it"),
    ("port in [80 90", "this `[` is not closed", "[", "add `]`"),
    ("port in 80", "a list begins with `[`", "80", "in [3 5]"),
    ("port in []", "the list is empty", "]", "in [3 5]"),
    (
        "src ip > 10.0.0.1",
        "values of `src ip` have no order; compare them with `=` or `!=`",
        ">",
        "10.0.0.0/8",
    ),
    ("not", "a condition is missing here", "", "port > 1024"),
    ("port 80 and", "a condition is missing here", "", "port > 1024"),
    (
        "src geo CH",
        "`src geo` needs a file with countries of addresses (MMDB, or the TSV of IPtoASN)",
        "src",
        "--names FILE",
    ),
    ("mpls label7 3", "nfdump's `mpls label7` is not supported", "mpls", "three labels are stored"),
    ("src port in nat pblock", "nfdump's `in nat pblock` is not supported", "nat", "otherFields"),
    ("first seen yesterday", "`yesterday` is not a value for `first seen`", "yesterday", "2026-11-21T13:00"),
    ("src net 10.0.0.0 255.0.255.0", "this is not a valid netmask", "255.0.255.0", "ones first, then zeros"),
    ("packets >", "a value is missing after `packets >`", "", "10k"),
    ("port 80 or src port", "a value is missing after `src port`", "", "`> 3`"),
    ("dst port > 99999", "`99999` is too large for `dst port`", "99999", "the largest value is 65535"),
    ("flags SS", "`SS` is not a value for `flags`", "SS", "`SA`"),
    (
        "packets > 99999999999999999999",
        "`99999999999999999999` is not a value for `packets`",
        "99999999999999999999",
        "10k",
    ),
    (
        "field sourceIPv4Address = 10.0.0.1",
        "`sourceIPv4Address` has a column of its own",
        "sourceIPv4Address",
        "`sourceIPv6Address` without `field`",
    ),
    ("field 0/2 > 5", "`0/2` has a column of its own", "0/2", "`packetDeltaCount` without `field`"),
    ("field 29305/1", "`29305/1` has a column of its own", "29305/1", "`reverseOctetDeltaCount`"),
    (
        "field octetTotalCount",
        "`octetTotalCount` has a column of its own",
        "octetTotalCount",
        "`octetDeltaCount`",
    ),
    (
        "field exportedMessageTotalCount > 1",
        "no record has the field `exportedMessageTotalCount`",
        "exportedMessageTotalCount",
        "describes the exporter",
    ),
    ("otherFields x", "no condition begins with `otherFields`", "otherFields", "name of a column"),
];

#[test]
fn filter_error_marks_position_and_suggests_alternatives() {
    for (text, what, marked, help) in FAULTS {
        let said = text.parse::<FlowFilter>().expect_err(text).to_string();
        let lines: Vec<_> = said.lines().collect();
        assert_eq!((lines[0], lines.len()), (*what, 4), "{text}: {said}");
        let start = lines[2].find('^').unwrap();
        let under = lines[1].get(start..lines[2].len()).unwrap_or("");
        assert_eq!(under, *marked, "{text}: {said}");
        assert!(lines[3].contains(help), "{text}: {said}");
    }
}

/// Covers every element of the registry, in both directions, by its name and by its number.
#[test]
fn field_filter_accepts_only_stored_other_fields() {
    let mut asked = 0;
    for id in (0..=u16::MAX).filter(|id| iana::element_by_id(*id).is_some()) {
        for enterprise in [0, REVERSE_ENTERPRISE] {
            let place = field_place(enterprise, id);
            for name in [field_name(enterprise, id), format!("{enterprise}/{id}")] {
                let parsed = format!("field {name}").parse::<FlowFilter>();
                assert_eq!(parsed.is_ok(), place == FieldPlace::OtherFields, "{name}: {place:?} {parsed:?}");
                asked += u32::from(parsed.is_ok());
            }
        }
    }
    assert!(asked > 1000, "{asked}");
}

#[test]
fn filter_expression_cost_is_bounded() {
    let said = |text: String| text.parse::<FlowFilter>().unwrap_err().to_string();
    let nested = |depth: usize| format!("{}any{}", "(".repeat(depth), ")".repeat(depth));
    assert!(nested(64).parse::<FlowFilter>().is_ok());
    assert!(said(nested(65)).contains("nested more than 64 levels deep"));
    assert!(said("(".repeat(500_000)).contains("nested more than 64 levels deep"));
    assert!(format!("{}any", "not ".repeat(100_000)).parse::<FlowFilter>().is_ok());
    let many = |count: usize| vec!["port 1"; count].join(" or ");
    assert!(many(1024).parse::<FlowFilter>().is_ok());
    assert!(said(many(1025)).contains("more than 1024 conditions"));
    assert!(said(" ".repeat((1 << 20) + 1)).contains("the maximum is 1048576"));
    // A list is one condition, however long, and is asked by halves.
    let list: Vec<_> = (0..50_000).map(|n| format!("10.{}.{}.1", n / 250, n % 250)).collect();
    assert!(format!("ip in [{}]", list.join(" ")).parse::<FlowFilter>().is_ok());
}

#[test]
fn a_span_is_kept_and_asked() {
    let records = various();
    let (_directory, files) = stored(&records, [0; 16]);
    let span = TimeSpan { from_ns: Some(THIRTEEN + 10 * SECOND), to_ns: Some(THIRTEEN + 20 * SECOND) };
    let filter = parsed("proto tcp").and(FlowFilter::started_in(span));
    assert_eq!(filter.span, span);
    let is_in = |record: &&FlowRecord| record.key.protocol == 6 && span.contains(record.first_ns());
    let expected: BTreeSet<_> = records.iter().filter(is_in).map(|record| record.flow_id).collect();
    assert_eq!(kept(&files, &filter), expected);
    let never = TimeSpan { from_ns: Some(5), to_ns: Some(0) };
    assert_eq!(kept(&files, &FlowFilter::started_in(never)), BTreeSet::new());
}

/// Words, symbols and what belongs in no filter.
const PIECES: [&str; 31] = [
    "field",
    "ingressVRFID",
    "\"a b\"",
    "src",
    "ip",
    "port",
    "in",
    "[",
    "]",
    "(",
    ")",
    "and",
    "or",
    "not",
    ">",
    "!=",
    ",",
    "10.0.0.0/8",
    "53",
    "1k",
    "flags",
    "SA",
    "tcp",
    "proto",
    "net",
    "255.0.0.0",
    "\u{fc}",
    "#",
    "\n",
    "geo",
    "mpls label0",
];

proptest! {
    #[test]
    fn arbitrary_filter_text_parses_or_reports_position(pieces in prop::collection::vec(0..PIECES.len(), 0..24), glue in 0..2) {
        let words: Vec<_> = pieces.into_iter().map(|piece| PIECES[piece]).collect();
        let text = words.join(if glue == 0 { " " } else { "" });
        match text.parse::<FlowFilter>() {
            Ok(filter) => {
                // A filter that was parsed can be reversed, and its columns exist.
                let both = filter.or(&filter.to_reversed());
                prop_assert!(both.needed_columns().iter().all(|name| crate::columns::find_column(name).is_some()));
            }
            Err(error) => {
                let said = error.to_string();
                prop_assert!(said.lines().count() == 4 && said.contains('^'), "{}", said);
            }
        }
    }
}
