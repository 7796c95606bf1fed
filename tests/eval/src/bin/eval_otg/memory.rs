//! Whether a server that gets one configuration after the other keeps anything of those before.

use crate::http::Http;
use crate::server::{Holds, Server, pause};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};

const FLOWS: u16 = 64;
const WARM_UP: u16 = 10;
const WANTED: f64 = 2.0;

pub(crate) fn evaluate(_: Effort, output: &mut Output) -> anyhow::Result<()> {
    let last = 100;
    output.say(&format!(
        "## Memory\n\nThe server's process after so many configurations of {FLOWS} flows, each set, started, asked for its \
         metrics and stopped.\n"
    ))?;
    let server = Server::start()?;
    let mut client = server.client()?;
    let mut table = Table::new(&["configurations", "resident, KiB", "descriptors", "threads"]);
    let mut warm = None;
    let mut end = None;
    for number in 1..=last {
        configure(&server, &mut client, number)?;
        if number == WARM_UP || number % 25 == 0 {
            // What is ended with a configuration has ended.
            pause(200);
            let holds = server.holds()?;
            table.rows.push(vec![
                number.to_string(),
                holds.resident_kib.to_string(),
                holds.descriptors.to_string(),
                holds.threads.to_string(),
            ]);
            warm = warm.or(Some(holds));
            end = Some(holds);
        }
    }
    output.table("memory", &table)?;
    if let (Some(warm), Some(end)) = (warm, end) {
        goals(output, warm, end);
    }
    Ok(())
}

fn configure(server: &Server, client: &mut Http, mark: u16) -> anyhow::Result<()> {
    client.set_config(&server.config(FLOWS, 100, mark))?;
    client.transmit("start")?;
    client.flow_metrics()?;
    client.transmit("stop")
}

fn goals(output: &mut Output, warm: Holds, end: Holds) {
    let growth = (end.resident_kib as f64 / warm.resident_kib as f64 - 1.0) * 100.0;
    output.goal(
        "memory",
        &format!("{growth:+.2} % from configuration 10 to 100"),
        &format!("< {WANTED} %"),
        &(growth < WANTED).into(),
    );
    let same = (warm.descriptors, warm.threads) == (end.descriptors, end.threads);
    let figures = |holds: Holds| format!("{} and {}", holds.descriptors, holds.threads);
    output.goal(
        "descriptors_and_threads",
        &format!("{} after 10, {} after 100", figures(warm), figures(end)),
        "equal",
        &same.into(),
    );
}
