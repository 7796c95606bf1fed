//! Sets of capabilities, and giving them up. Only the calling thread is changed; threads that it starts
//! later inherit its capabilities.

use crate::Error;
use crate::error::ignore_failure;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};
use std::fmt;

/// Names by number, `CAP_` left out (`linux/capability.h`).
const CAPABILITY_NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Every second securebit is the lock of the bit below it.
const SECUREBITS_LOCKS: u32 = 0xaaaa_aaaa;

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessCapabilities(u64);

impl ProcessCapabilities {
    pub const NONE: Self = Self(0);
    pub const NET_RAW: Self = Self(CapabilitySet::NET_RAW.bits());
    /// Interfaces, and sizes of socket buffers beyond the limit.
    pub const NET_ADMIN: Self = Self(CapabilitySet::NET_ADMIN.bits());
    /// Listening at ports below 1024.
    pub const NET_BIND_SERVICE: Self = Self(CapabilitySet::NET_BIND_SERVICE.bits());
    /// BPF programs and maps.
    pub const BPF: Self = Self(CapabilitySet::BPF.bits());
    /// BPF programs that the verifier trusts with pointers.
    pub const PERFMON: Self = Self(CapabilitySet::PERFMON.bits());
    /// Locked memory beyond the limit.
    pub const IPC_LOCK: Self = Self(CapabilitySet::IPC_LOCK.bits());
    /// Real-time classes and negative niceness.
    pub const SYS_NICE: Self = Self(CapabilitySet::SYS_NICE.bits());
    /// Entering namespaces, among much else.
    pub const SYS_ADMIN: Self = Self(CapabilitySet::SYS_ADMIN.bits());
    pub const SWITCH_USER: Self = Self(CapabilitySet::SETUID.bits() | CapabilitySet::SETGID.bits());
    /// Reading, writing and changing owner and mode of files of other users.
    pub const FILES: Self =
        Self(CapabilitySet::DAC_OVERRIDE.bits() | CapabilitySet::CHOWN.bits() | CapabilitySet::FOWNER.bits());
    /// Giving files to another user, and still using them afterwards.
    pub const GIVE_FILES: Self = Self(CapabilitySet::DAC_OVERRIDE.bits() | CapabilitySet::CHOWN.bits());
    /// Reading and writing files of other users.
    pub const OTHERS_FILES: Self = Self(CapabilitySet::DAC_OVERRIDE.bits());
    /// Dropping capabilities from the bounding set: for a process that starts another process which does this.
    pub const SETPCAP: Self = Self(CapabilitySet::SETPCAP.bits());

    /// Union of both sets of capabilities.
    #[must_use]
    pub const fn union_with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Intersection of both sets of capabilities.
    #[must_use]
    pub const fn intersect_with(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Creates a set from the kernel's mask.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns true if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Reads the permitted capabilities of the calling thread.
    pub fn read_permitted() -> Result<Self, Error> {
        let sets = rustix::thread::capabilities(None);
        let sets = sets.map_err(|errno| Error::from_call("capget", "this thread", errno))?;
        Ok(Self(sets.permitted.bits()))
    }
}

impl fmt::Display for ProcessCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no capability");
        }
        f.write_str(&capability_names(self.0).join(" "))
    }
}

/// Names of the capabilities in the kernel's mask; a number for each capability without a name here.
pub fn capability_names(bits: u64) -> Vec<String> {
    (0..64).filter(|number| bits >> number & 1 == 1).map(capability_name).collect()
}

fn capability_name(number: usize) -> String {
    CAPABILITY_NAMES.get(number).map_or_else(|| number.to_string(), |name| format!("CAP_{name}"))
}

/// Makes sure that the thread can no longer gain a capability outside `most`. Without CAP_SETPCAP the bounding set
/// stays as it is, and only `no_new_privs` prevents the gain.
pub(super) fn block_privilege_gain(most: ProcessCapabilities, starts_programs: bool) -> Result<(), Error> {
    // A kernel before 4.3 has no ambient set and refuses the call: then there is nothing to clear.
    ignore_failure(rustix::thread::clear_ambient_capability_set());
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| Error::from_call("prctl PR_SET_NO_NEW_PRIVS", "this process", errno))?;
    if ProcessCapabilities::read_permitted()?.0 & CapabilitySet::SETPCAP.bits() == 0 {
        return Ok(());
    }
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if most.0 & capability.bits() == 0 && !drop_from_bounding(capability)? {
            // The kernel assigns numbers in order: after one that it does not know there are no more.
            break;
        }
    }
    // With the securebits below, a program that root starts would get no capabilities (capabilities(7)).
    if starts_programs {
        return Ok(());
    }
    let bits = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    let now = rustix::thread::capabilities_secure_bits()
        .map_err(|errno| Error::from_call("prctl PR_GET_SECUREBITS", "this process", errno))?;
    rustix::thread::set_capabilities_secure_bits(merge_with_locked(bits, now))
        .map_err(|errno| Error::from_call("prctl PR_SET_SECUREBITS", "this process", errno))
}

/// Combines the wanted bits with the present values of locked bits: if one locked bit changed, the kernel
/// would refuse all changes.
fn merge_with_locked(wanted: CapabilitiesSecureBits, now: CapabilitiesSecureBits) -> CapabilitiesSecureBits {
    let locks = now.bits() & SECUREBITS_LOCKS;
    // The lock of a bit is the next higher bit.
    let fixed = locks >> 1;
    CapabilitiesSecureBits::from_bits_retain(wanted.bits() & !fixed | now.bits() & fixed | locks)
}

/// Drops a capability from the bounding set. Returns false if the kernel does not know it.
fn drop_from_bounding(capability: CapabilitySet) -> Result<bool, Error> {
    match rustix::thread::remove_capability_from_bounding_set(capability) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::INVAL) => Ok(false),
        Err(errno) => Err(Error::from_call("prctl PR_CAPBSET_DROP", "this process", errno)),
    }
}

/// Reduces the capabilities of the calling thread to `kept`; an error if the thread lacks one of these.
pub(super) fn reduce_capabilities_to(kept: ProcessCapabilities) -> Result<(), Error> {
    let kept = CapabilitySet::from_bits_retain(kept.0);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
        .map_err(|errno| Error::from_call("capset", "this thread", errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_securebits_stay_as_they_are() {
        use CapabilitiesSecureBits as Bits;
        let wanted = Bits::NO_ROOT | Bits::NO_ROOT_LOCKED | Bits::KEEP_CAPS_LOCKED;
        assert_eq!(merge_with_locked(wanted, Bits::empty()), wanted);
        let now = Bits::NO_ROOT_LOCKED | Bits::NO_SETUID_FIXUP | Bits::NO_SETUID_FIXUP_LOCKED;
        assert_eq!(merge_with_locked(wanted, now), now | Bits::KEEP_CAPS_LOCKED);
    }

    #[test]
    fn capabilities_have_the_names_of_the_kernel() {
        let some = ProcessCapabilities::NET_RAW.union_with(ProcessCapabilities::BPF);
        assert_eq!(some.to_string(), "CAP_NET_RAW CAP_BPF");
        assert_eq!(ProcessCapabilities::NONE.to_string(), "no capability");
        assert_eq!(ProcessCapabilities::SYS_ADMIN.to_string(), "CAP_SYS_ADMIN");
        assert_eq!(capability_names(1 << 60), ["60"]);
    }
}
