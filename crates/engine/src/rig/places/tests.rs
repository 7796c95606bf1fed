use super::*;
use crate::gate::SendGate;
use packetrig_plan::Port;
use std::collections::BTreeSet;

/// Records the questions of the permit, and objects to one interface.
#[derive(Debug)]
struct NotingOpener(&'static str);

impl OwnerPermit for NotingOpener {
    fn list_objections(&self, question: &PermitQuestion<'_>) -> Vec<String> {
        let refused = question.ports.iter().filter(|port| port.interface.to_string() == self.0);
        refused.map(|port| format!("port {} is not lent", port.interface)).collect()
    }
    fn allows_address(&self, _: IpAddr) -> bool {
        true
    }
}

fn plan(ports: &[&str]) -> Plan {
    let port = |name: &&str| Port {
        name: (*name).into(),
        site: packetrig_plan::PortHost::Here,
        location: name.parse().unwrap(),
        speed: None,
        mtu: None,
        promiscuous: true,
    };
    Plan { ports: ports.iter().map(port).collect(), ..Plan::default() }
}

fn options(site: PlanPortLocations) -> RigOptions {
    RigOptions {
        engine: None,
        terms: SharedRunOptions { tag_key: 1, ..SharedRunOptions::default() },
        confirmed: BTreeSet::new(),
        capture_dir: None,
        site,
        gate: SendGate::without_lease(),
        run: String::new(),
    }
}

fn part(places: &[Option<&str>]) -> RigOptions {
    let place = |place: Option<&str>| place.map(|text| text.parse().unwrap());
    let permit = Arc::new(NotingOpener("secret"));
    options(PlanPortLocations::PartOfFleet { places: places.iter().copied().map(place).collect(), permit })
}

#[test]
fn local_plan_keeps_its_port_locations() {
    let mut plan = plan(&["a", "b"]);
    let places = PortAssignment::from_options(&plan, &options(PlanPortLocations::EveryPortHere)).unwrap();
    places.write_local_locations_into_plan(&mut plan);
    assert!(places.is_local_port(0) && places.is_local_port(1));
    assert_eq!(plan.ports[1].location.interface, "b");
}

#[test]
fn port_is_here_only_if_placed() {
    let mut plan = plan(&["a", "b"]);
    let places = PortAssignment::from_options(&plan, &part(&[None, Some("ns/eth7")])).unwrap();
    places.write_local_locations_into_plan(&mut plan);
    assert!(!places.is_local_port(0) && places.is_local_port(1) && !places.is_local_port(2));
    assert_eq!(plan.ports[0].location.to_string(), "a");
    assert_eq!(plan.ports[1].location.to_string(), "ns/eth7");
}

#[test]
fn shared_interface_and_missing_place_are_refused() {
    let places = part(&[Some("eth0"), None, Some("eth0")]);
    let error = PortAssignment::from_options(&plan(&["a", "b", "c"]), &places).unwrap_err().to_string();
    assert!(error.contains("ports[2].location") && error.contains("port `a` already"), "{error}");
    for too_few in [&[][..], &[None]] {
        assert!(matches!(
            PortAssignment::from_options(&plan(&["a", "b"]), &part(too_few)),
            Err(Error::NotPermitted(_))
        ));
    }
}

#[test]
fn permit_judges_exactly_the_opened_interfaces() {
    let mut plan = plan(&["a", "secret"]);
    let places = PortAssignment::from_options(&plan, &part(&[Some("eth7"), None])).unwrap();
    places.write_local_locations_into_plan(&mut plan);
    places.check_permit_before_open(&plan).unwrap();
    // The permit judges the interface that is opened, not the name in the plan.
    let mut plan = self::plan(&["a", "b"]);
    let places = PortAssignment::from_options(&plan, &part(&[Some("secret"), None])).unwrap();
    places.write_local_locations_into_plan(&mut plan);
    let error = places.check_permit_before_open(&plan).unwrap_err();
    assert!(matches!(&error, Error::NotPermitted(said) if said == &["port secret is not lent"]), "{error}");
}
