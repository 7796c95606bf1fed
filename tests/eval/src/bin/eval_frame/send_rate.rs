//! Frames per second beside trafgen and tcpreplay, at the smallest and the largest ordinary size.
//!
//! All send from the same interface of the same lab to a peer where nobody listens, in turn, several times; the kernel's
//! count at the peer says how many frames came, not what a tool claims. Medians are compared. Ours sends with tag,
//! checksums and schedule on.

use packetrig_eval::Effort;
use packetrig_eval::median;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::peers::{self, Tool};
use packetrig_eval::plot::{self, Titles};
use packetrig_testkit::Lab;

const SIZES: [u32; 2] = [64, 1518];
const TOOLS: [Tool; 3] = [Tool::Ours("packet"), Tool::Trafgen, Tool::Tcpreplay];
const NAMES: [&str; 3] = ["packetrig", "trafgen", "tcpreplay"];

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, window) = if effort.quick { (3, 700_000_000) } else { (7, 2_000_000_000) };
    output.say(&format!(
        "## Send rate\n\nFrames per second by the peer interface's counter over {} ms, median of {rounds} rounds, the tools in turn.\n",
        window / 1_000_000
    ))?;
    let mut table = Table::new(&[
        "size",
        "packetrig",
        "trafgen",
        "tcpreplay",
        "ratio to the best peer",
        "min..max of ours",
    ]);
    let mut groups = Vec::new();
    for size in SIZES {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..rounds {
            for (tool, rates) in TOOLS.into_iter().zip(&mut rates) {
                rates.extend(peers::rate(tool, size, &Lab::cabled_pair()?, window)?);
            }
        }
        let medians = rates.each_ref().map(|rates| median(rates));
        judge(output, size, medians);
        let (low, high) =
            rates[0].iter().fold((f64::MAX, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        let [ours, trafgen, tcpreplay] = medians.map(Option::unwrap_or_default);
        table.rows.push(vec![
            size.to_string(),
            format!("{ours:.0}"),
            format!("{trafgen:.0}"),
            format!("{tcpreplay:.0}"),
            format!("{:.2}", ours / trafgen.max(tcpreplay).max(1.0)),
            format!("{low:.0}..{high:.0}"),
        ]);
        groups.push((format!("{size} B"), vec![ours, trafgen, tcpreplay]));
    }
    output.table("send_rate", &table)?;
    let titles =
        Titles { plot: "Send rate on a virtual cable", x: "frame size with FCS", y: "frames per second" };
    output.plot("send_rate", titles.plot, &plot::bars(titles, &NAMES, &groups))
}

fn judge(output: &mut Output, size: u32, [ours, trafgen, tcpreplay]: [Option<f64>; 3]) {
    let what = format!("send_rate_{size}");
    let best = [trafgen, tcpreplay].into_iter().flatten().reduce(f64::max);
    let (Some(ours), Some(best)) = (ours, best) else {
        let goal =
            Goal::Unsupported("neither trafgen nor tcpreplay is installed: scripts/setup.sh eval".to_owned());
        return output.goal(&what, "nothing", ">= 1.0x", &goal);
    };
    let ratio = ours / best;
    output.goal(&what, &format!("{ratio:.2}x of the best peer"), ">= 1.0x", &(ratio >= 1.0).into());
}
