//! What ten questions a second for the metrics of 1024 flows cost the server: its processor time with them minus without.

use crate::grpc::Grpc;
use crate::http::Http;
use crate::server::{Server, pause};
use anyhow::ensure;
use packetrig_eval::output::{Output, Table};
use packetrig_eval::{Effort, median};
use packetrig_sys::clock;

const FLOWS: u16 = 1024;
const PER_SECOND: u64 = 10;
/// Of one processor, in percent.
const WANTED: f64 = 2.0;
/// Of each flow, while they run: 5120 frames per second in all.
const PPS: u64 = 5;

enum Client {
    None,
    Http(Http),
    Grpc(Grpc),
}

impl Client {
    fn ask(&mut self) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::None => Ok(Vec::new()),
            Self::Http(client) => client.flow_metrics(),
            Self::Grpc(client) => client.flow_metrics(),
        }
    }
}

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let (rounds, seconds) = if effort.quick { (1, 2) } else { (5, 4) };
    output.say(&format!(
        "## Polling\n\nMetrics of {FLOWS} flows {PER_SECOND} times a second, every member of every row. Processor time of the \
         server (`/proc/PID/stat`) in percent of one processor over {seconds} s, median of {rounds} rounds in turn; the cost \
         is that with polls minus that without in the same round.\n"
    ))?;
    let server = Server::start()?;
    let mut control = server.client()?;
    control.set_config(&server.config(FLOWS, PPS, 0))?;
    let mut table =
        Table::new(&["flows", "without polls", "transport", "with polls", "cost", "answer, ms", "answer, B"]);
    for running in [false, true] {
        if running {
            control.transmit("start")?;
        }
        pause(1500);
        let state = if running { "running" } else { "stopped" };
        let measured = measure(&server, rounds, seconds)?;
        for (transport, of) in ["http", "grpc"].into_iter().zip(&measured.polled) {
            let cost = median(&of.cost).unwrap_or_default();
            table.rows.push(vec![
                state.to_owned(),
                format!("{:.2} %", median(&measured.idle).unwrap_or_default()),
                transport.to_owned(),
                format!("{:.2} %", median(&of.load).unwrap_or_default()),
                format!("{cost:.2} %"),
                format!("{:.2}", median(&of.answered_ms).unwrap_or_default()),
                of.bytes.to_string(),
            ]);
            output.goal(
                &format!("polls_{transport}_{state}"),
                &format!("{cost:.2} % of one processor"),
                &format!("< {WANTED} %"),
                &(cost < WANTED).into(),
            );
        }
    }
    control.transmit("stop")?;
    ensure!(control.flows()?.len() == usize::from(FLOWS), "rows are missing");
    output.table("polls", &table)
}

#[derive(Default)]
struct Polled {
    load: Vec<f64>,
    cost: Vec<f64>,
    answered_ms: Vec<f64>,
    bytes: usize,
}

#[derive(Default)]
struct Measured {
    idle: Vec<f64>,
    /// Over HTTP, over gRPC.
    polled: [Polled; 2],
}

fn measure(server: &Server, rounds: u32, seconds: u64) -> anyhow::Result<Measured> {
    let mut measured = Measured::default();
    for _ in 0..rounds {
        let idle = load(server, &mut Client::None, seconds, &mut Polled::default())?;
        measured.idle.push(idle);
        let clients = [Client::Http(server.client()?), Client::Grpc(Grpc::connect(&server.grpc)?)];
        for (mut client, polled) in clients.into_iter().zip(&mut measured.polled) {
            // Not the first, in which a connection is set up.
            check(&client.ask()?)?;
            let load = load(server, &mut client, seconds, polled)?;
            polled.load.push(load);
            polled.cost.push(load - idle);
        }
    }
    Ok(measured)
}

/// Processor time of the server in percent while this client asks.
fn load(server: &Server, client: &mut Client, seconds: u64, polled: &mut Polled) -> anyhow::Result<f64> {
    let (before, start) = (server.processor_time()?, clock::monotonic_ns());
    for poll in 0..seconds * PER_SECOND {
        clock::sleep_until_ns(start + poll * 1_000_000_000 / PER_SECOND);
        let asked = clock::monotonic_ns();
        let answer = client.ask()?;
        polled.answered_ms.push((clock::monotonic_ns() - asked) as f64 / 1e6);
        polled.bytes = answer.len();
        if !answer.is_empty() {
            check(&answer)?;
        }
    }
    clock::sleep_until_ns(start + seconds * 1_000_000_000);
    let (after, end) = (server.processor_time()?, clock::monotonic_ns());
    Ok((after - before) * 1e11 / (end - start) as f64)
}

/// Whether an answer has a row of every flow, in either encoding.
fn check(answer: &[u8]) -> anyhow::Result<()> {
    let rows = answer.windows(5).filter(|bytes| *bytes == b"flow-").count();
    ensure!(rows == usize::from(FLOWS), "{rows} rows in {} B", answer.len());
    Ok(())
}
