//! How many records a second are stored: from a file, and over UDP without a loss, beside nfdump's collector.

use crate::collector::{Collected, Collector, records_in};
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Goal, Output, Table};
use packetrig_eval::process::children_seconds;
use packetrig_sys::clock;
use packetrig_tests::exporters::{RECORDS, honest_message};
use packetrig_tests::nfcapd::Nfcapd;
use packetrig_tests::program::Running;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Records per second that are tried, one rate after the other.
const RATES: [u32; 5] = [125_000, 250_000, 500_000, 750_000, 1_000_000];
const WANTED_OVER_UDP: u32 = 500_000;
const WANTED_FROM_FILE: f64 = 1e6;
/// The sender waits after each of these.
const STEP_NS: u64 = 1_000_000;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    output.say(&format!(
        "## Rates\n\nOne exporter sends datagrams of {RECORDS} records, evenly, to packetrig and to nfcapd in turn. The sender, which takes a \
         part of the two processors, is the same. *CPU* is the collector's processor time.\n"
    ))?;
    from_file(effort, output)?;
    over_udp(effort, output)
}

fn from_file(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let messages = if effort.quick { 40_000 } else { 150_000 };
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let file = directory.path().join("offered.ipfix");
    std::fs::write(&file, (0..messages).flat_map(|n| honest_message(7, n * RECORDS)).collect::<Vec<u8>>())?;
    let mut rates = Vec::new();
    for round in 0..3 {
        let records = directory.path().join(format!("records{round}")).display().to_string();
        let file = file.display().to_string();
        let began_ns = clock::monotonic_ns();
        let words = ["collect", &file, "--json", "--quiet", "--directory", &records];
        let collected = Collected::of(&Running::start(&words, "").finish(), began_ns)?;
        anyhow::ensure!(collected.code == Some(0), "{}", collected.report);
        rates.push(f64::from(messages * RECORDS) / collected.seconds);
    }
    rates.sort_by(f64::total_cmp);
    let rate = rates[1];
    let measured = format!("{rate:.0} records/s from a file (the middle of three)");
    output.goal("rate_file", &measured, "at least 1 000 000", &(rate >= WANTED_FROM_FILE).into());
    Ok(())
}

/// What became of records that were sent at a rate.
struct Offered {
    sent: u64,
    stored: u64,
    processor_seconds: f64,
}

fn over_udp(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let seconds = if effort.quick { 2 } else { 10 };
    let mut table =
        Table::new(&["records/s", "collector", "sent", "stored", "lost", "CPU, us for each record"]);
    // The highest rate at which each of them lost nothing.
    let mut whole = [0; 2];
    for rate in RATES {
        let messages: Vec<_> =
            (0..rate / RECORDS * seconds).map(|n| honest_message(7, n * RECORDS)).collect();
        for (program, whole) in ["packetrig", "nfcapd"].into_iter().zip(&mut whole) {
            let directory = tempfile::tempdir_in("/var/tmp")?;
            let offered = match program {
                "nfcapd" => offer_to_nfcapd(directory.path(), &messages, rate)?,
                _ => offer_to_packetrig(directory.path(), &messages, rate)?,
            };
            let Offered { sent, stored, processor_seconds } = offered;
            if sent == stored {
                *whole = rate.max(*whole);
            }
            let each_us = processor_seconds * 1e6 / stored.max(1) as f64;
            let numbers = [u64::from(rate), sent, stored, sent - stored].map(|number| number.to_string());
            let [rate, sent, stored, lost] = numbers;
            table.rows.push(vec![rate, program.into(), sent, stored, lost, format!("{each_us:.2}")]);
        }
    }
    output.table("rates", &table)?;
    let [ours, theirs] = whole;
    let measured = format!("{ours} records/s without a loss (nfcapd: {theirs})");
    output.goal("rate_udp", &measured, "at least 500 000", &Goal::from(ours >= WANTED_OVER_UDP));
    Ok(())
}

fn offer_to_packetrig(directory: &Path, messages: &[Vec<u8>], rate: u32) -> anyhow::Result<Offered> {
    let before = children_seconds()?;
    let collector = Collector::start("udp://127.0.0.1:0", directory, &[])?;
    let exporter = UdpSocket::bind("127.0.0.1:0")?;
    exporter.connect(collector.address())?;
    send_at_rate(&exporter, messages, rate)?;
    collector.finish()?;
    let processor_seconds = children_seconds()? - before;
    Ok(Offered { sent: sent_records(messages), stored: records_in(directory)?, processor_seconds })
}

fn offer_to_nfcapd(directory: &Path, messages: &[Vec<u8>], rate: u32) -> anyhow::Result<Offered> {
    let before = children_seconds()?;
    let nfcapd = Nfcapd::start(directory)?;
    let exporter = UdpSocket::bind("127.0.0.1:0")?;
    exporter.connect(nfcapd.address())?;
    send_at_rate(&exporter, messages, rate)?;
    nfcapd.finish()?;
    let processor_seconds = children_seconds()? - before;
    let listed = Command::new("nfdump").arg("-R").arg(directory).arg("-I").output()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let flows = text.lines().find_map(|line| line.strip_prefix("Flows: "));
    let stored = flows.and_then(|count| count.trim().parse().ok()).with_context(|| text.clone())?;
    Ok(Offered { sent: sent_records(messages), stored, processor_seconds })
}

fn sent_records(messages: &[Vec<u8>]) -> u64 {
    messages.len() as u64 * u64::from(RECORDS)
}

/// Sends the messages evenly; a sender that was held up catches up.
fn send_at_rate(exporter: &UdpSocket, messages: &[Vec<u8>], rate: u32) -> anyhow::Result<()> {
    let began_ns = clock::monotonic_ns();
    let mut sent = 0;
    while sent < messages.len() {
        let elapsed_ns = clock::monotonic_ns() - began_ns;
        let due = u128::from(elapsed_ns) * u128::from(rate / RECORDS) / 1_000_000_000;
        let due = usize::try_from(due).unwrap_or(usize::MAX).min(messages.len());
        for message in &messages[sent..due] {
            exporter.send(message)?;
        }
        sent = due;
        std::thread::sleep(Duration::from_nanos(STEP_NS));
    }
    Ok(())
}
