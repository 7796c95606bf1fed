//! Frames per second into a program that drops them, at every size: ours with tag, two varying fields and schedule, peers
//! with constant frames, and a bare loop of live frames, which is the machine's limit.

use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::peers::{self, Tool};
use packetrig_eval::plot::{self, Titles};
use packetrig_eval::{Effort, median};
use packetrig_sys::bpf::BpfAttachment;
use packetrig_sys::xdp;
use packetrig_testkit::Lab;

const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
const TOOLS: [Tool; 5] = [
    Tool::OursVarying("xdp"),
    Tool::OursVarying("packet"),
    Tool::Trafgen,
    Tool::Tcpreplay,
    Tool::BareLiveFrames,
];
const NAMES: [&str; 5] = ["xdp", "packet", "trafgen", "tcpreplay", "bare live frames"];

/// Two ports; the second one's driver drops everything before the kernel's stack.
pub(crate) fn dropping_lab() -> anyhow::Result<(BpfAttachment, Lab)> {
    let lab = Lab::cabled_pair()?;
    let port = &lab.ports()[1];
    let attachment = xdp::attach_discard_program(port.netns(), port.link.index, &port.location())?;
    Ok((attachment, lab))
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, window) = if effort.quick { (1, 500_000_000) } else { (3, 800_000_000) };
    let sizes = if effort.quick { &SIZES[..1] } else { &SIZES[..] };
    output.say(&format!(
        "## Sending\n\nFrames per second by the peer interface's counter over {} ms, median of {rounds} rounds, in turn. \
         The peer runs an XDP program that drops everything. Ours send tag, two varying fields and checksums on a schedule.\n",
        window / 1_000_000
    ))?;
    let mut table = Table::new(&[
        "size",
        "xdp",
        "packet",
        "trafgen",
        "tcpreplay",
        "bare live frames",
        "to best peer",
        "to bare",
    ]);
    let mut groups = Vec::new();
    for size in sizes {
        let mut rates: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds {
            for (tool, rates) in TOOLS.into_iter().zip(&mut rates) {
                let (_drops, lab) = dropping_lab()?;
                rates.extend(peers::rate(tool, *size, &lab, window)?);
            }
        }
        let medians = rates.each_ref().map(|rates| median(rates));
        let [xdp, packet, trafgen, tcpreplay, bare] = medians.map(Option::unwrap_or_default);
        let (to_best, to_bare) = (xdp / packet.max(trafgen).max(tcpreplay).max(1.0), xdp / bare.max(1.0));
        if *size == 64 {
            judge(output, medians, to_best, to_bare);
        }
        let mut row = vec![size.to_string()];
        row.extend([xdp, packet, trafgen, tcpreplay, bare].map(|rate| format!("{rate:.0}")));
        row.extend([format!("{to_best:.2}"), format!("{to_bare:.2}")]);
        table.rows.push(row);
        groups.push((format!("{size} B"), vec![xdp, packet, trafgen, tcpreplay, bare]));
    }
    output.table("send", &table)?;
    output.say(
        "9000 B: live frames end at 3300 B, the size of the kernel's pages; larger frames go through back end packet.\n",
    )?;
    let titles =
        Titles { plot: "Sending on a virtual cable", x: "frame size with FCS", y: "frames per second" };
    output.plot("send", titles.plot, &plot::bars(titles, &NAMES, &groups))
}

fn judge(output: &mut Output, medians: [Option<f64>; 5], to_best: f64, to_bare: f64) {
    let peers = [medians[2], medians[3]].into_iter().flatten().count();
    let goal = if peers == 2 {
        (to_best >= 3.0).into()
    } else {
        Goal::Unsupported("trafgen and tcpreplay are not both installed: scripts/setup.sh eval".to_owned())
    };
    output.goal(
        "send_64_peers",
        &format!("{to_best:.2}x of the best of trafgen, tcpreplay, AF_PACKET ring"),
        ">= 3.0x",
        &goal,
    );
    output.goal(
        "send_64_limit",
        &format!("{to_bare:.2}x of bare live frames"),
        ">= 0.95x",
        &(to_bare >= 0.95).into(),
    );
}
