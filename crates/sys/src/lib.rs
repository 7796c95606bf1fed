//! Safe access to the kernel: rings, netlink, ethtool, clocks, namespaces, signals. The only crate with `unsafe`.
//!
//! Its API is about descriptors, bytes, interfaces and nanoseconds; it does not know the concepts of the product.
//! Every `unsafe` block holds one operation and names its invariants. The head of each module names the owner of
//! each descriptor and mapping.
#![expect(unsafe_code, reason = "the kernel interface lives here and nowhere else")]

mod area;
mod blame;
pub mod bpf;
pub mod bulk;
pub mod caps;
pub mod child;
pub mod clock;
mod convert;
pub mod data_directory;
pub mod disk;
pub mod error;
pub mod ethtool;
pub mod facts;
pub mod fifo;
pub mod held_directory;
pub mod hold;
pub mod kernel;
mod layout;
pub mod link;
pub mod lock;
pub mod loopback;
pub mod machine_setting;
pub mod memory;
pub mod netdev;
mod netlink;
pub mod netns;
pub mod owner;
pub mod packet;
pub mod pcap;
pub mod pktgen;
pub mod ports;
pub mod private_files;
pub mod process;
pub mod qdisc;
pub mod resident;
pub mod runtime_directory;
pub mod sandbox;
pub mod sched;
pub mod scratch;
pub mod seqpacket;
pub mod signal;
pub mod stamping;
mod sync;
pub mod tcp;
pub mod terminal;
pub mod udp;
pub mod userns;
pub mod xdp;
pub mod xsk;

pub use error::{Error, UnsupportedFeature};
