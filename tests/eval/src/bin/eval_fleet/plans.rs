//! Plans over the nodes of a rig: `n1` to `n3` face `n4` to `n6`, each by its `eth1`.

use super::rig::{NODES, facing};
use packetrig_tests::document::{Document, Flow, ethernet, ipv4, udp};

/// Frames of a stream: how large, how often, how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) size: u32,
    pub(crate) pps: u64,
    pub(crate) frames: u64,
}

/// A plan in which these nodes send, each to the one it faces.
pub(crate) fn from_each(senders: &[usize], load: Load) -> String {
    let mut nodes: Vec<usize> =
        (1..=NODES).filter(|node| senders.contains(node) || senders.contains(&facing(*node))).collect();
    nodes.sort_unstable();
    let locations: Vec<String> = nodes.iter().map(|node| format!("n{node}/eth1")).collect();
    let port = |node: usize| nodes.iter().position(|known| *known == node).unwrap_or_default();
    let flow = |(key, sender): (u16, &usize)| {
        Flow::new(format!("from-n{sender}"), key)
            .packet([ethernet(key), ipv4(), udp()])
            .between(port(*sender), &[port(facing(*sender))])
            .size(load.size)
            .pps(load.pps)
            .packets(load.frames)
    };
    Document::new(&locations).flows((1..).zip(senders).map(flow)).text()
}
