use super::*;

const FILE: &str = r#"
    about = "https://lab.example/probes"
    never = ["10.1.0.0/16"]
    [[target]]
    network = "10.0.0.0/8"
    probes_per_s = 5000
    bits_per_s = "100Mbps"
    [[target]]
    network = "203.0.113.0/24"
    until = "2026-12-31"
"#;

fn limits(permit: &ProbePermit, ip: &str) -> Result<TargetLimits, PermitRefusal> {
    permit.limits_for(ip.parse().unwrap(), "2026-11-22")
}

#[test]
fn nobody_is_probed_unasked() {
    let mut permit = ProbePermit::default();
    let one: IpAddr = "192.0.2.1".parse().unwrap();
    assert_eq!(limits(&permit, "192.0.2.1"), Err(PermitRefusal::NotAllowed(one)));
    assert_eq!(limits(&permit, "127.0.0.1"), Ok(TargetLimits::DEFAULT_LIMITS));
    permit.allow_network("192.0.2.0/24".parse().unwrap());
    assert_eq!(limits(&permit, "192.0.2.1"), Ok(TargetLimits::DEFAULT_LIMITS));
    assert!(limits(&permit, "192.0.3.1").is_err());
    permit.allow_network("0.0.0.0/0".parse().unwrap());
    assert!(matches!(limits(&permit, "255.255.255.255"), Err(PermitRefusal::NotOne(_))));
    assert!(matches!(limits(&permit, "224.0.0.1"), Err(PermitRefusal::NotOne(_))));
}

#[test]
fn least_limits_never_exceed_any_permitted_target() {
    assert_eq!(ProbePermit::default().least_limits(), TargetLimits::DEFAULT_LIMITS);
    let one = "[[target]]\nnetwork = \"10.0.0.0/8\"\nprobes_per_s = 5000\nmost = 7";
    let mut permit = ProbePermit::from_text(one).unwrap();
    assert_eq!(permit.least_limits(), limits(&permit, "10.0.0.1").unwrap());
    permit.allow_network("192.0.2.0/24".parse().unwrap());
    assert_eq!(permit.least_limits(), TargetLimits { most: 7, ..TargetLimits::DEFAULT_LIMITS });
    let below = permit
        .limited_by_owner(ProbePermit::from_text("[[target]]\nnetwork = \"10.0.0.0/8\"\nburst = 3").unwrap());
    for ip in ["10.0.0.1", "192.0.2.1"] {
        let found = limits(&below, ip).unwrap();
        assert_eq!(below.least_limits().narrowed_by_limits(found), below.least_limits(), "{ip}");
    }
}

#[test]
fn the_owner_allows_more_and_forbids() {
    let mut permit = ProbePermit::from_text(FILE).unwrap();
    permit.allow_network("0.0.0.0/0".parse().unwrap());
    permit.allow_network("10.0.0.0/8".parse().unwrap());
    let more = TargetLimits { probes_per_s: 5_000, bits_per_s: 100_000_000, ..TargetLimits::DEFAULT_LIMITS };
    assert_eq!(limits(&permit, "10.9.9.9"), Ok(more));
    assert!(matches!(limits(&permit, "10.1.9.9"), Err(PermitRefusal::Forbidden(_))));
    assert!(matches!(limits(&permit, "::ffff:10.1.9.9"), Err(PermitRefusal::Forbidden(_))));
    assert_eq!(limits(&permit, "198.51.100.1"), Ok(TargetLimits::DEFAULT_LIMITS));
}

#[test]
fn command_line_target_keeps_permit_file_limits() {
    let text = "[[target]]\nnetwork = \"10.0.0.0/8\"\nprobes_per_s = 5\n[[target]]\nnetwork = \"10.2.0.0/16\"\nburst = 900";
    let mut permit = ProbePermit::from_text(text).unwrap();
    permit.allow_network("10.9.9.9/32".parse().unwrap());
    permit.allow_network("10.2.9.9/32".parse().unwrap());
    assert_eq!(
        limits(&permit, "10.9.9.9"),
        Ok(TargetLimits { probes_per_s: 5, ..TargetLimits::DEFAULT_LIMITS })
    );
    assert_eq!(
        limits(&permit, "10.2.9.9"),
        Ok(TargetLimits { burst: 900, ..TargetLimits::DEFAULT_LIMITS }),
        "the narrowest"
    );
}

#[test]
fn another_file_only_narrows_what_the_owner_says() {
    let owner = "about = \"o\"\nnever = [\"10.1.0.0/16\"]\n[[target]]\nnetwork = \"10.0.0.0/8\"\nprobes_per_s = 500\n\
        [[target]]\nnetwork = \"203.0.113.0/24\"\nuntil = \"2026-01-01\"";
    let other = "[[target]]\nnetwork = \"0.0.0.0/0\"\nprobes_per_s = 900\nburst = 7\nmost = 1000000000";
    let owner = ProbePermit::from_text(owner).unwrap();
    let permit = ProbePermit::from_text(other).unwrap().limited_by_owner(owner);
    assert_eq!(permit.about.as_deref(), Some("o"));
    assert!(matches!(limits(&permit, "10.1.9.9"), Err(PermitRefusal::Forbidden(_))));
    assert!(matches!(limits(&permit, "203.0.113.9"), Err(PermitRefusal::Ended(..))));
    let both = TargetLimits { probes_per_s: 500, burst: 7, ..TargetLimits::DEFAULT_LIMITS };
    assert_eq!(limits(&permit, "10.9.9.9"), Ok(both));
    // The owner does not name other networks: they count as typed ones.
    assert_eq!(limits(&permit, "192.0.2.1"), Ok(TargetLimits { burst: 7, ..TargetLimits::DEFAULT_LIMITS }));
    assert_eq!(limits(&permit, "127.0.0.1"), Ok(TargetLimits { burst: 7, ..TargetLimits::DEFAULT_LIMITS }));
}

#[test]
fn expired_permit_entry_refuses_target() {
    let permit = ProbePermit::from_text(FILE).unwrap();
    assert!(limits(&permit, "203.0.113.9").is_ok());
    let ip = "203.0.113.9".parse().unwrap();
    assert_eq!(permit.limits_for(ip, "2027-01-01"), Err(PermitRefusal::Ended(ip, "2026-12-31".into())));
}

#[test]
fn a_file_that_is_not_understood_allows_nothing() {
    for bad in [
        "nevr = []",
        "[[target]]\nnetwork = \"10.0.0.1/8\"",
        "[[target]]\nnetwork = \"10.0.0.0/8\"\nuntil = \"soon\"",
    ] {
        assert!(ProbePermit::from_text(bad).is_err(), "{bad}");
    }
}

/// Result of an entry of a file for a network on the day of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    Absent,
    Current,
    Ended,
}

const ENTRIES: [Entry; 3] = [Entry::Absent, Entry::Current, Entry::Ended];

fn entry(network: &str, entry: Entry) -> String {
    let until = match entry {
        Entry::Absent => return String::new(),
        Entry::Current => "2026-11-22",
        Entry::Ended => "2026-11-21",
    };
    format!("[[target]]\nnetwork = \"{network}\"\nuntil = \"{until}\"\n")
}

/// A permit with a `never` list, an entry for a wide and one for a narrow network, and a typed one.
fn combined(never: Option<&str>, wide: Entry, narrow: Entry, typed: Option<&str>) -> ProbePermit {
    let never = never.map(|network| format!("\"{network}\"")).unwrap_or_default();
    let text =
        format!("never = [{never}]\n{}{}", entry("10.0.0.0/8", wide), entry("::ffff:10.1.0.0/112", narrow));
    let mut permit = ProbePermit::from_text(&text).unwrap();
    permit.typed.extend(typed.map(|network| network.parse::<Network>().unwrap()));
    permit
}

/// Answer of a permit for 10.1.2.3, in words.
fn may_be_sent(never: bool, wide: Entry, narrow: Entry, is_typed: bool) -> bool {
    let has = |what| wide == what || narrow == what;
    !never && (has(Entry::Current) || !has(Entry::Ended) && is_typed)
}

#[test]
fn permit_rule_combinations_decide_consistently() {
    let address = "10.1.2.3";
    let mapped = "::ffff:10.1.2.3";
    let nevers = [None, Some("10.1.0.0/16"), Some("::ffff:10.1.2.3/128"), Some("192.0.2.0/24")];
    let typeds =
        [None, Some("10.1.2.3/32"), Some("0.0.0.0/0"), Some("::ffff:10.0.0.0/104"), Some("192.0.2.0/24")];
    let covers = |network: Option<&str>| network.is_some_and(|network| !network.starts_with("192"));
    let mut allowed = 0;
    let mut all = Vec::new();
    for never in nevers {
        for typed in typeds {
            for (wide, narrow) in ENTRIES.iter().flat_map(|wide| ENTRIES.map(|narrow| (*wide, narrow))) {
                let permit = combined(never, wide, narrow, typed);
                let expected = may_be_sent(covers(never), wide, narrow, covers(typed));
                for ip in [address, mapped] {
                    let found = limits(&permit, ip);
                    assert_eq!(
                        found.is_ok(),
                        expected,
                        "{never:?} {wide:?} {narrow:?} {typed:?} {ip}: {found:?}"
                    );
                }
                allowed += u32::from(expected);
                all.push((permit, expected));
            }
        }
    }
    assert!(allowed > 20 && allowed < 160, "{allowed}");
    // Below an owner: what the owner says nothing of is as good as typed; else both must allow it.
    for (owner, owner_allows) in &all {
        let is_named = !matches!(limits(owner, address), Err(PermitRefusal::NotAllowed(_)));
        for (own, own_allows) in &all {
            let below = own.clone().limited_by_owner(owner.clone());
            let expected = *own_allows && (!is_named || *owner_allows);
            for ip in [address, mapped] {
                assert_eq!(limits(&below, ip).is_ok(), expected, "{own:?} below {owner:?}: {ip}");
            }
        }
    }
}

#[test]
fn command_line_target_cannot_extend_expired_permit() {
    let mut permit = ProbePermit::from_text(FILE).unwrap();
    permit.allow_network("203.0.113.0/24".parse().unwrap());
    let ip = "203.0.113.9".parse().unwrap();
    assert!(permit.limits_for(ip, "2026-12-31").is_ok());
    assert_eq!(permit.limits_for(ip, "2027-01-01"), Err(PermitRefusal::Ended(ip, "2026-12-31".into())));
}
