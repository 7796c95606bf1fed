//! Files of names as users have them, and what becomes of damaged ones.

use super::mmdb::sample::{SampleDatabase, sample_value};
use super::*;
use crate::filter::FlowFilter;
use proptest::prelude::*;

fn address(text: &str) -> [u8; 16] {
    match text.parse().unwrap() {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(address) => address.octets(),
    }
}

fn names_from(contents: &[&[u8]]) -> FlowNames {
    let mut names = FlowNames::default();
    for content in contents {
        names.add_file_content(content).unwrap();
    }
    names
}

fn country<'a>(names: &'a FlowNames, text: &str) -> &'a str {
    names.countries.value_of(address(text)).map_or("", |code| code)
}

fn system<'a>(names: &'a FlowNames, text: &str) -> (u32, &'a str) {
    names.systems.value_of(address(text)).map_or((0, ""), |system| (system.number, &system.name))
}

const IPTOASN: &str = "198.18.0.0\t198.18.0.255\t64500\tDE\tEXAMPLE-ONE\n\
                       198.18.1.0\t198.18.1.255\t0\tNone\tNot routed\n\
                       2001:2::\t2001:2:0:ffff:ffff:ffff:ffff:ffff\t64501\tfr\tTwo, Inc.\n";

#[test]
fn iptoasn_names_countries_and_systems() {
    let names = names_from(&[IPTOASN.as_bytes()]);
    assert_eq!(
        (country(&names, "198.18.0.7"), system(&names, "198.18.0.7")),
        ("DE", (64_500, "EXAMPLE-ONE"))
    );
    assert_eq!((country(&names, "2001:2::1"), system(&names, "2001:2::1")), ("FR", (64_501, "Two, Inc.")));
    assert_eq!((country(&names, "198.18.1.1"), system(&names, "198.18.1.1")), ("", (0, "")));
    let short = names_from(&["3323068416\t3323068671\tAT\n".as_bytes()]);
    assert_eq!(country(&short, "198.18.0.1"), "AT");
}

#[test]
fn later_file_decides_where_both_name_an_address() {
    let names = names_from(&[IPTOASN.as_bytes(), b"198.18.0.0\t198.18.0.3\tCH\n"]);
    assert_eq!((country(&names, "198.18.0.3"), country(&names, "198.18.0.4")), ("CH", "DE"));
    assert_eq!(system(&names, "198.18.0.3").0, 64_500);
}

#[test]
fn later_service_file_decides_and_first_name_within_one() {
    let first = b"domain 53/udp\nhttps 443/tcp\nsecond 443/tcp\n";
    let names = names_from(&[first, b"mine 53/udp\n"]);
    let service = |protocol, port| names.services.get(&(protocol, port)).map(|name| &**name);
    assert_eq!((service(17, 53), service(6, 443)), (Some("mine"), Some("https")));
}

#[test]
fn prefix_list_takes_the_longest_prefix() {
    let text = "prefix,name\n198.18.0.0/15,all\n\"198.18.7.0/24\",\"customer a\"\n2001:2::/48,six\n198.18.7.9,host\n";
    let names = names_from(&[text.as_bytes()]);
    let name = |text: &str| names.prefixes.value_of(address(text)).map_or("", |name| &**name);
    let found = ["198.19.0.1", "198.18.7.1", "198.18.7.9", "2001:2::5", "203.0.113.1"].map(name);
    assert_eq!(found, ["all", "customer a", "host", "six", ""]);
    // Without a heading, too.
    assert!(!names_from(&[b"10.0.0.0/8,private\n"]).prefixes.is_empty());
}

#[test]
fn interface_list_has_names_for_all_exporters_too() {
    let names = names_from(&[b"exporter,ifindex,name\n198.18.0.1,3,uplink\n*,3,\"some, port\"\n*,4,lan\n"]);
    let known = address("198.18.0.1");
    let other = address("198.18.0.2");
    assert_eq!((names.interface_name(known, 3), names.interface_name(other, 3)), ("uplink", "some, port"));
    assert_eq!((names.interface_name(known, 4), names.interface_name(other, 5)), ("lan", ""));
}

#[test]
fn service_lists_are_those_of_iana_and_of_the_machine() {
    let iana = "Service Name,Port Number,Transport Protocol,Description,Assignee\nssh,22,tcp,\"of\n two lines\",x\n\
                ,23,tcp,Reserved,\nhttps,443,tcp,a,\nhttp3,443,udp,a,\nx11,6000-6063,tcp,X,\nalias,22,tcp,second,\nbig,1-65535,udp,,\n";
    let machine = "# comment\nssh\t\t22/tcp\t\t# The Secure Shell\ndomain 53/udp nameserver\nrtmp 1/ddp\n";
    for (text, port, name) in [(iana, 22, "ssh"), (iana, 6010, "x11"), (machine, 22, "ssh")] {
        let names = names_from(&[text.as_bytes()]);
        assert_eq!(names.service_name(6, [50_000, port]), name, "{text}");
    }
    let names = names_from(&[iana.as_bytes()]);
    // The lower port that has a name, of this protocol.
    assert_eq!((names.service_name(6, [443, 22]), names.service_name(6, [443, 23])), ("ssh", "https"));
    assert_eq!((names.service_name(17, [443, 22]), names.service_name(17, [7, 8])), ("http3", ""));
}

#[test]
fn databases_of_every_record_size_are_read() {
    for bits in [24, 28, 32] {
        let mut database = SampleDatabase::new(6);
        database.add_prefix("198.18.0.0/15", &sample_value("DE", 64_500, "One"));
        database.add_prefix("198.18.8.0/24", &sample_value("FR", 64_501, "Two"));
        database.add_prefix("2001:2::/48", &sample_value("AT", 64_502, "Three"));
        let names = names_from(&[&database.encode_database(bits)]);
        let found = ["198.19.255.255", "198.18.8.1", "2001:2::1"]
            .map(|text| (country(&names, text), system(&names, text)));
        let expected = [("DE", (64_500, "One")), ("FR", (64_501, "Two")), ("AT", (64_502, "Three"))];
        assert_eq!(found, expected, "{bits} bits");
        assert_eq!((country(&names, "198.20.0.0"), country(&names, "2001:3::1")), ("", ""));
        let mut old = SampleDatabase::new(4);
        old.add_prefix("198.18.0.0/16", &sample_value("CH", 1, ""));
        assert_eq!(country(&names_from(&[&old.encode_database(bits)]), "198.18.3.4"), "CH");
    }
}

#[test]
fn file_that_gives_no_names_is_refused_with_its_line() {
    for (content, said) in [
        (&b""[..], "the file is empty"),
        (b"\x1f\x8b\x08", "gunzip"),
        (b"\xff\xfe\x00", "neither an MMDB database nor UTF-8 text"),
        (b"hello world", "the file is none of"),
        (b"198.18.0.0\t198.18.0.9\tDE\nx\n", "line 2: the line has neither three nor five fields"),
        (b"198.18.0.0\t198.18.0.9\tDE\n198.18.0.9\t198.18.0.0\tDE\n", "line 2: `198.18.0.9` to `198.18.0.0`"),
        (b"198.18.0.0\t198.18.0.9\tabc\n", "no line has a country"),
        (b"prefix,name\n198.18.0.0/33,a\n", "line 2: `198.18.0.0/33` is neither an address nor a prefix"),
        (b"prefix,name\n", "a heading but no other line"),
        (b"exporter,ifindex,name\n\"multi\nline\",3,a\n", "line 2: `multi\nline` is neither the address"),
        (b"*,3,a\n*,x,b\n", "line 2: `x` is not the number of an interface"),
    ] {
        let fault = FlowNames::default().add_file_content(content).unwrap_err().to_string();
        assert!(fault.contains(said), "{fault}");
    }
}

#[test]
fn name_filter_needs_its_file_and_known_names() {
    let names = names_from(&[b"198.18.0.0/16,Customer A\n203.0.113.0/24,b\n"]);
    let parse = |text: &str| FlowFilter::parse_with_names(text, &names);
    assert!(parse("src name 'customer a' or dst name in [B \"Customer A\"]").is_ok());
    for (text, said) in [
        ("src name customer", "no names file contains the name `customer`"),
        ("src name customer", "the names files contain `Customer A`, `b`"),
        ("country DE", "`country` needs a file with countries"),
        ("service ssh", "--names FILE"),
        ("src asn 5", "autonomous systems"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let countries = names_from(&[IPTOASN.as_bytes()]);
    let error = FlowFilter::parse_with_names("src country Germany", &countries).unwrap_err().to_string();
    assert!(error.contains("`germany` is not a country"), "{error}");
}

proptest! {
    #[test]
    fn damaged_databases_end_in_names_or_an_error(changes in prop::collection::vec((0_usize..4000, any::<u8>()), 0..12), cut in 0_usize..4000) {
        let mut database = SampleDatabase::new(6);
        for n in 0..20 {
            let value = sample_value("DE", n, "name");
            database.add_prefix(&format!("198.18.{n}.0/24"), &value);
            database.add_prefix(&format!("2001:2:{n:x}::/48"), &value);
        }
        let mut bytes = database.encode_database(28);
        for (at, byte) in changes {
            let place = at % bytes.len();
            bytes[place] = byte;
        }
        if cut < 1000 {
            bytes.drain(..cut.min(bytes.len()));
        }
        // It must end; what it finds is the file's affair.
        drop(FlowNames::default().add_file_content(&bytes));
    }

    #[test]
    fn texts_of_any_lines_end_in_names_or_an_error(text in "([0-9a-z:./\\*\",\t\n#-]{0,40}\n){0,8}") {
        drop(FlowNames::default().add_file_content(text.as_bytes()));
    }
}
