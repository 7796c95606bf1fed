//! Files, connections and encrypted connections at full speed: what can wait loses nothing.

use crate::collector::{Collected, Collector, records_in};
use anyhow::Context;
use packetrig_eval::Effort;
use packetrig_eval::output::{Output, Table};
use packetrig_sys::clock;
use packetrig_tests::exporters::{RECORDS, honest_message};
use packetrig_tests::program::Running;
use packetrig_tests::recording::{self, Recorded};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;

pub(crate) fn evaluate(effort: Effort, output: &mut Output) -> anyhow::Result<()> {
    let messages: u32 = if effort.quick { 45_000 } else { 150_000 };
    output.say(&format!(
        "## What can wait\n\nOne exporter offers {} records as fast as they are taken, one after the other; over TLS `packetrig meter` offers those of \
         a capture of one packet each. Stored is what another program run finds in the files.\n",
        u64::from(messages) * u64::from(RECORDS)
    ))?;
    let mut table = Table::new(&["source", "offered", "stored", "lost", "records/s", "exit code"]);
    let (mut lost, mut is_clean) = (0, true);
    for (source, offer) in [("file", offer_file as OfferedRecords), ("tcp", offer_tcp), ("tls", offer_tls)] {
        let directory = tempfile::tempdir_in("/var/tmp")?;
        let (offered, collected) = offer(directory.path(), messages)?;
        let stored = records_in(&directory.path().join("records"))?;
        lost += offered.abs_diff(stored);
        is_clean &= collected.code == Some(0) && collected.imbalances() == 0;
        table.rows.push(vec![
            source.to_owned(),
            offered.to_string(),
            stored.to_string(),
            (offered.cast_signed() - stored.cast_signed()).to_string(),
            format!("{:.0}", offered as f64 / collected.seconds),
            collected.code.map_or_else(|| "-".to_owned(), |code| code.to_string()),
        ]);
    }
    output.table("whole", &table)?;
    let measured = format!("{lost} records lost, exit code 0 and accounts balanced: {is_clean}");
    output.goal("whole", &measured, "0 lost over file, TCP and TLS", &(lost == 0 && is_clean).into());
    Ok(())
}

/// Offers records to a collector with its files in `records` below a directory; says how many they were.
type OfferedRecords = fn(&Path, u32) -> anyhow::Result<(u64, Collected)>;

fn offer_file(directory: &Path, messages: u32) -> anyhow::Result<(u64, Collected)> {
    let file = directory.join("offered.ipfix");
    let mut out = std::io::BufWriter::new(std::fs::File::create(&file)?);
    for n in 0..messages {
        out.write_all(&honest_message(7, n * RECORDS))?;
    }
    out.flush()?;
    let [file, records] = [file, directory.join("records")].map(|path| path.display().to_string());
    let began_ns = clock::monotonic_ns();
    let finished =
        Running::start(&["collect", &file, "--json", "--quiet", "--directory", &records], "").finish();
    Ok((u64::from(messages) * u64::from(RECORDS), Collected::of(&finished, began_ns)?))
}

fn offer_tcp(directory: &Path, messages: u32) -> anyhow::Result<(u64, Collected)> {
    let collector = Collector::start("tcp://127.0.0.1:0", &directory.join("records"), &[])?;
    let mut connection = TcpStream::connect(collector.address())?;
    for n in 0..messages {
        connection.write_all(&honest_message(7, n * RECORDS))?;
    }
    connection.shutdown(Shutdown::Write)?;
    // The collector closes it once it has read everything.
    connection.read(&mut [0]).context("its end of the connection")?;
    Ok((u64::from(messages) * u64::from(RECORDS), collector.finish()?))
}

/// A capture of flows of one packet each.
pub(crate) fn capture(file: &Path, flows: u32, step_ns: u64) {
    const BEGAN_NS: u64 = 1_789_984_800_000_000_000;
    let frame = |n: u32| {
        let mut bytes = recording::udp(1, 1, 20);
        bytes[26..30].copy_from_slice(&(0xc612_0000 + n).to_be_bytes());
        Recorded { at: BEGAN_NS + u64::from(n) * step_ns, bytes }
    };
    recording::write(file, &(0..flows).map(frame).collect::<Vec<_>>());
}

fn offer_tls(directory: &Path, messages: u32) -> anyhow::Result<(u64, Collected)> {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| directory.join(name));
    std::fs::write(&certificate, made.cert.pem())?;
    std::fs::write(&key, made.signing_key.serialize_pem())?;
    let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
    let more = ["--cert", &certificate, "--key", &key];
    let collector = Collector::start("tls://127.0.0.1:0", &directory.join("records"), &more)?;
    let file = directory.join("offered.pcap");
    let flows = messages * RECORDS;
    capture(&file, flows, 1000);
    let file = file.display().to_string();
    let meter = ["meter", &file, "--quiet", "--json", "--export", &collector.place, "--tls-ca", &certificate];
    let finished = Running::start(&meter, "").finish();
    anyhow::ensure!(finished.code == Some(0), "the meter said: {}{}", finished.stdout, finished.stderr);
    Ok((flows.into(), collector.finish()?))
}
