//! The owner's file of labs in which probes may do more than the usual limits, which are for networks of others.

/// Every address of labs, and as much as labs bear.
pub const OWNERS: &str = "about = \"https://lab.example/probes\"\n[[target]]\nnetwork = \"198.18.0.0/15\"\n\
    probes_per_s = 100000\nbits_per_s = \"1Gbps\"\nburst = 200\nloss_percent = 100\n";
