//! Which ports of the plan are on this node, and where.
//!
//! Pure. A port keeps its index of the plan on whatever node it is, in tags, accounts and results; a rig opens, holds and
//! accounts its own ports only.

use crate::Error;
use packetrig_plan::device::Mac;
use packetrig_plan::{Location, Plan, Problem, Problems};
use std::net::IpAddr;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Vec<Option<Location>>);

impl Places {
    /// Empty: all ports are here, where the plan says. Otherwise one for each port of the plan; `None` is another node.
    pub(super) fn of(plan: &Plan, places: &[Option<Location>]) -> Result<Self, Error> {
        if !places.is_empty() && places.len() != plan.ports.len() {
            return Err(Error::Bug("not every port of the plan was given a place"));
        }
        let mut problems = Vec::new();
        for (port, place) in places.iter().enumerate() {
            let Some(location) = place else { continue };
            if let Some(other) = places[..port].iter().position(|other| other.as_ref() == Some(location)) {
                let message = format!("`{location}` is port `{}` already", plan.ports[other].name);
                problems.push(Problem::error(format!("ports[{port}].location"), message));
            }
        }
        if problems.is_empty() { Ok(Self(places.to_vec())) } else { Err(Error::Plan(Problems(problems))) }
    }

    /// Whether the plan is that of a fleet.
    pub(super) const fn are_given(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn is_here(&self, port: usize) -> bool {
        self.0.is_empty() || self.0.get(port).is_some_and(Option::is_some)
    }

    /// Writes the places of the ports that are here into the plan.
    pub(super) fn settle(&self, plan: &mut Plan) {
        for (port, place) in plan.ports.iter_mut().zip(&self.0) {
            if let Some(location) = place {
                port.location.clone_from(location);
            }
        }
    }
}

/// The MAC address of the plan's own interface with this address, if there is one such.
pub(super) fn mac_of(plan: &Plan, ip: IpAddr) -> Option<Mac> {
    let mut owners = plan.interfaces.iter().filter(|of| of.addresses.iter().any(|address| address.ip == ip));
    let owner = owners.next()?;
    owners.next().is_none().then_some(owner.mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_plan::Port;

    fn plan(ports: &[&str]) -> Plan {
        let port = |name: &&str| Port {
            name: (*name).into(),
            site: packetrig_plan::Site::Here,
            location: name.parse().unwrap(),
            speed: None,
            mtu: None,
            promiscuous: true,
        };
        Plan { ports: ports.iter().map(port).collect(), ..Plan::default() }
    }

    #[test]
    fn without_places_every_port_is_here_where_the_plan_says() {
        let mut plan = plan(&["a", "b"]);
        let places = Places::of(&plan, &[]).unwrap();
        places.settle(&mut plan);
        assert!(places.is_here(0) && places.is_here(1));
        assert_eq!(plan.ports[1].location.interface, "b");
    }

    #[test]
    fn only_ports_with_a_place_are_here_and_there() {
        let mut plan = plan(&["a", "b"]);
        let places = Places::of(&plan, &[None, Some("ns/eth7".parse().unwrap())]).unwrap();
        places.settle(&mut plan);
        assert!(!places.is_here(0) && places.is_here(1) && !places.is_here(2));
        assert_eq!(plan.ports[0].location.to_string(), "a");
        assert_eq!(plan.ports[1].location.to_string(), "ns/eth7");
    }

    #[test]
    fn one_interface_is_not_two_ports_and_no_port_is_forgotten() {
        let eth0 = || Some("eth0".parse().unwrap());
        let error = Places::of(&plan(&["a", "b", "c"]), &[eth0(), None, eth0()]).unwrap_err().to_string();
        assert!(error.contains("ports[2].location") && error.contains("port `a` already"), "{error}");
        assert!(matches!(Places::of(&plan(&["a", "b"]), &[None]), Err(Error::Bug(_))));
    }
}
