//! Names from files, as groups, columns and filters of `packetrig flows`.

use super::made::Made;
use super::{packetrig, store};
use packetrig_tests::program;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The clients of `Made` are 198.19.0.0 to 198.19.3.231, and one server.
const CUSTOMERS: &str = "prefix,name\n198.19.0.0/24,\"customer, a\"\n198.19.1.0/24,b\n198.19.0.9,one host\n";
const RANGES: &str =
    "198.19.0.0\t198.19.0.255\t64500\tDE\tFIRST\n198.19.1.0\t198.19.3.255\t64501\tFR\tSECOND\n";

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Bytes by a grouping, whose only part is `by`.
fn bytes_by(by: &str, filter: &str, names: &[&Path], records: &Path) -> Vec<(Value, u64)> {
    let mut arguments = vec!["top", "--json", "--by", by, "-n", "2000", "--filter", filter];
    for path in names {
        arguments.extend(["--names", path.to_str().unwrap()]);
    }
    let lines = packetrig(&arguments, records);
    let groups = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    groups.map(|group| (group[by].clone(), group["bytes"].as_u64().unwrap())).collect()
}

/// The bytes of the addresses for which `is_of` holds, by the same question without names.
fn bytes_of(addresses: &[(Value, u64)], is_of: impl Fn([u8; 4]) -> bool) -> u64 {
    let octets = |value: &Value| value.as_str().unwrap().parse::<std::net::Ipv4Addr>().unwrap().octets();
    addresses.iter().filter(|(address, _)| is_of(octets(address))).map(|(_, bytes)| bytes).sum()
}

#[test]
fn names_group_and_select_as_their_addresses_do() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &Made::new(6000));
    let files = tempfile::tempdir().unwrap();
    let customers = write(files.path(), "customers.csv", CUSTOMERS);
    let ranges = write(files.path(), "ranges.tsv", RANGES);
    let both: &[&Path] = &[&customers, &ranges];
    let addresses = bytes_by("src-ip", "any", &[], directory.path());
    let is_host = |[a, b, c, d]: [u8; 4]| [a, b, c, d] == [198, 19, 0, 9];
    let found = bytes_by("src-name", "any", both, directory.path());
    let expected = [
        ("customer, a", bytes_of(&addresses, |at| at[..3] == [198, 19, 0] && !is_host(at))),
        ("b", bytes_of(&addresses, |at| at[..3] == [198, 19, 1])),
        ("one host", bytes_of(&addresses, is_host)),
        ("", bytes_of(&addresses, |at| !(at[..2] == [198, 19] && at[2] < 2))),
    ];
    let mut expected = expected.map(|(name, bytes)| (Value::from(name), bytes)).to_vec();
    expected.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    assert_eq!(found, expected);
    let of_de = bytes_by("src-country", "src country de", both, directory.path());
    assert_eq!(of_de, [(Value::from("DE"), bytes_of(&addresses, |at| at[..3] == [198, 19, 0]))]);
    let of_system = bytes_by("src-asn", "src asn 64501 and src as name second", both, directory.path());
    let second = bytes_of(&addresses, |at| at[..2] == [198, 19] && (1..4).contains(&at[2]));
    assert_eq!(of_system, [(Value::from(64_501), second)]);
    // Addresses without a system have number 0, in filters as in groups.
    let first = write(files.path(), "first.tsv", RANGES.lines().next().unwrap());
    let some: &[&Path] = &[&first];
    let all = bytes_by("src-asn", "any", some, directory.path());
    let of_none: Vec<_> = all.iter().filter(|(number, _)| *number == 0).cloned().collect();
    assert_eq!(of_none.len(), 1);
    assert_eq!(bytes_by("src-asn", "src asn 0", some, directory.path()), of_none);
    assert_eq!(bytes_by("src-asn", "src asn > 0", some, directory.path()).len(), all.len() - 1);
    let by_name = bytes_by("src-ip", "src name in [b 'one host']", both, directory.path());
    assert_eq!(
        by_name.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        expected_sum(&expected, &["b", "one host"])
    );
}

fn expected_sum(groups: &[(Value, u64)], names: &[&str]) -> u64 {
    groups.iter().filter(|(name, _)| names.contains(&name.as_str().unwrap())).map(|(_, bytes)| bytes).sum()
}

#[test]
fn names_are_columns_of_shown_records() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &Made::new(500));
    let files = tempfile::tempdir().unwrap();
    let customers = write(files.path(), "customers.csv", CUSTOMERS);
    let interfaces = write(files.path(), "interfaces.csv", "*,0,\"uplink\"\n");
    let services = write(files.path(), "services", "https 443/tcp\nhttps 443/udp\n");
    let names = ["--names", customers.to_str().unwrap(), "--names", interfaces.to_str().unwrap(), "--names"];
    let columns = ["show", "--columns", "src-ip,src-name,in-if-name,service,dst-port,protocol"];
    let asked = [&columns[..], &names[..], &[services.to_str().unwrap(), "--json"]].concat();
    let shown = packetrig(&asked, directory.path());
    let records: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 500);
    for record in &records {
        let address = record["sourceIPv6Address"].as_str().unwrap();
        let name = match address.strip_prefix("::ffff:198.19.") {
            Some("0.9") => "one host",
            Some(rest) if rest.starts_with("0.") => "customer, a",
            Some(rest) if rest.starts_with("1.") => "b",
            _ => "",
        };
        assert_eq!(
            (&record["src-name"], &record["in-if-name"]),
            (&name.into(), &"uplink".into()),
            "{record}"
        );
        let is_https = record["destinationTransportPort"] == 443
            && [6, 17].map(Value::from).contains(&record["protocolIdentifier"]);
        assert_eq!(record["service"], if is_https { "https" } else { "" }, "{record}");
    }
    let csv = [
        &columns[..],
        &names[..],
        &[services.to_str().unwrap(), "--csv", "--filter", "src name 'customer, a'"],
    ];
    let csv = packetrig(&csv.concat(), directory.path());
    assert!(csv.lines().skip(1).all(|line| line.contains(",\"customer, a\",uplink,")), "{csv}");
}

#[test]
fn question_about_names_without_their_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    store(directory.path(), &Made::new(10));
    for asked in [
        &["top", "--by", "src-country"][..],
        &["show", "--columns", "src-name"],
        &["show", "--filter", "src country DE"],
    ] {
        let mut command = Command::new(program::binary());
        let output = command.arg("flows").args(asked).arg(directory.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("needs a") && said.contains("--names FILE"), "{said}");
    }
    let wrong = write(directory.path(), "wrong.csv", "hello\n");
    let mut command = Command::new(program::binary());
    let output =
        command.args(["flows", "top", "--names"]).arg(&wrong).arg(directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && said.contains("wrong.csv is not a valid names file"),
        "{said}"
    );
}
