//! UDP at full speed: what is not stored is counted, at the place where it was lost.

use crate::collector::{Collector, records_in};
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_tests::exporters::{RECORDS, honest_message};
use std::net::UdpSocket;

/// Room of the socket: little, so that it is too little.
const ROOM: &str = "1MiB";

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let messages: u32 = if effort.quick { 45_000 } else { 300_000 };
    output.say(&format!(
        "## What cannot wait\n\nTwo exporters send {messages} datagrams of {RECORDS} records in all, as fast as one thread does, into a socket with room for \
         {ROOM}. Records that are lost in the socket are those of the datagrams that it dropped.\n"
    ))?;
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let collector = Collector::start("udp://127.0.0.1:0", directory.path(), &["--receive-buffer", ROOM])?;
    let exporters = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    for exporter in &exporters {
        exporter.connect(collector.address())?;
    }
    for n in 0..messages / 2 {
        for (domain, exporter) in (1..).zip(&exporters) {
            exporter.send(&honest_message(domain, n * RECORDS))?;
        }
    }
    let collected = collector.finish()?;
    let offered = u64::from(messages / 2 * 2) * u64::from(RECORDS);
    let stored = records_in(directory.path())?;
    let dropped = collected.number("/intake/0/dropped")? + collected.number("/intake/0/unread")?;
    let in_socket = dropped * u64::from(RECORDS);
    let in_queue = collected.number("/sinks/0/queue_dropped/records")?;
    let given_up = collected.number("/sinks/0/lost/records")? - in_queue;
    let unaccounted = offered.cast_signed() - (stored + in_socket + in_queue + given_up).cast_signed();
    let by_numbers = collected.number("/total/lost")?;
    let mut table = Table::new(&[
        "offered",
        "stored",
        "dropped by the socket",
        "dropped by the sink's queue",
        "given up by the sink",
        "unaccounted",
        "lost by the exporters' numbers",
        "exit code",
    ]);
    let numbers = [offered, stored, in_socket, in_queue, given_up].map(|number| number.to_string());
    let rest = [unaccounted.to_string(), by_numbers.to_string(), format!("{:?}", collected.code)];
    table.rows.push(numbers.into_iter().chain(rest).collect());
    output.table("datagrams", &table)?;
    let is_whole = offered == stored;
    let says_so = collected.code == Some(if is_whole { 0 } else { 7 });
    let met = unaccounted == 0 && says_so && collected.imbalances() == 0;
    let measured = format!("{unaccounted} unaccounted of {offered}, exit code says so: {says_so}");
    output.goal("datagrams", &measured, "0 unaccounted, loss is never exit code 0", &met.into());
    Ok(())
}
