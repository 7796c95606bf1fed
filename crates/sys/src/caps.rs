//! Reads the rights of this process: its user, its capabilities and its user namespace.
//!
//! This module owns nothing and changes nothing.

use rustix::thread::CapabilitySet;

/// The capabilities that packetrig can make use of, with their names.
const PACKET_CAPABILITIES: [(CapabilitySet, &str); 6] = [
    (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK"),
];

/// Rights of the calling thread.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ThreadRights {
    pub user: u32,
    /// Names of the effective capabilities, only of those that packetrig can make use of.
    pub capabilities: Vec<&'static str>,
    /// True if the thread is in a user namespace: its capabilities are valid there and not on the whole machine.
    pub in_user_namespace: bool,
}

impl ThreadRights {
    /// Rights of the calling thread, now.
    pub fn current() -> Self {
        let effective =
            rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let capabilities = PACKET_CAPABILITIES
            .iter()
            .filter(|(set, _)| effective.contains(*set))
            .map(|(_, name)| *name)
            .collect();
        Self {
            user: rustix::process::geteuid().as_raw(),
            capabilities,
            in_user_namespace: !is_initial_user_namespace_map(
                &std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
            ),
        }
    }

    /// Returns true if `capability` is among [`Self::capabilities`].
    pub fn has_capability(&self, capability: &str) -> bool {
        self.capabilities.contains(&capability)
    }
}

/// Returns the number that the effective user has outside of the user namespace. In a private lab, this is the user
/// who entered the lab.
pub fn read_outer_user_id() -> u32 {
    let user = rustix::process::geteuid().as_raw();
    map_to_outer_user(&std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default(), user)
}

fn map_to_outer_user(map: &str, user: u32) -> u32 {
    let numbers: Vec<u32> = map.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    // Lines of a map: first number inside, first number outside, how many.
    let found = numbers.chunks(3).find_map(|line| match *line {
        [inside, outside, count] if user >= inside && user - inside < count => {
            Some(outside + (user - inside))
        }
        _ => None,
    });
    found.unwrap_or(user)
}

/// Returns true if a uid map is that of the machine's own user namespace (each user maps to itself), or is empty.
fn is_initial_user_namespace_map(map: &str) -> bool {
    let numbers: Vec<&str> = map.split_whitespace().collect();
    // A kernel without user namespaces has no map. The machine's own namespace has this one (user_namespaces(7)).
    numbers.is_empty() || numbers == ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_user_map_is_told_from_private_one() {
        assert!(is_initial_user_namespace_map("         0          0 4294967295\n"));
        assert!(!is_initial_user_namespace_map("         0       1000          1\n"));
    }

    #[test]
    fn namespaced_user_maps_to_outside_number() {
        assert_eq!(map_to_outer_user("         0          0 4294967295\n", 7), 7);
        assert_eq!(map_to_outer_user("0 1000 1\n", 0), 1000);
        assert_eq!(map_to_outer_user("0 1000 1\n1 100000 65536\n", 3), 100_002);
        assert_eq!(map_to_outer_user("", 5), 5);
    }

    #[test]
    fn rights_agree_with_proc() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("CapEff:")).unwrap();
        let bits = u64::from_str_radix(line[7..].trim(), 16).unwrap();
        let rights = ThreadRights::current();
        assert_eq!(rights.has_capability("CAP_NET_ADMIN"), bits >> 12 & 1 == 1);
        assert_eq!(rights.has_capability("CAP_NET_RAW"), bits >> 13 & 1 == 1);
        assert_eq!(rights.has_capability("CAP_SYS_ADMIN"), bits >> 21 & 1 == 1);
    }
}
