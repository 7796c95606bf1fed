//! Files of messages (RFC 5655): IPFIX or SIM, one message behind the other.

use super::intake::{Counters, Item, Messages, add};
use super::stream::cut;
use super::{Error, Shared};
use crossbeam_channel::Sender;
use packetrig_flow::collect::{Source, Transport};
use packetrig_sys::clock;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

const ROOM: usize = 2 * 65_536;

pub(super) fn start(
    path: &Path,
    number: usize,
    shared: &Arc<Shared>,
    counters: Arc<Counters>,
    queue: Sender<Item>,
) -> Result<JoinHandle<()>, Error> {
    let file = File::open(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    let address = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let source =
        Source { address, port: u16::try_from(number).unwrap_or(u16::MAX), transport: Transport::File };
    let shared = Arc::clone(shared);
    let work = move || {
        let is_whole = read(file, source, &shared, &counters, &queue);
        add(&counters.broken, u64::from(!is_whole));
        // Nobody may be there any more to hear of it.
        queue.send(Item::Closed(source)).unwrap_or(());
        shared.files.fetch_sub(1, Ordering::AcqRel);
    };
    std::thread::Builder::new().name("collect-file".into()).spawn(work).map_err(Error::Thread)
}

/// Says whether the file ended where a message does.
fn read(mut file: File, source: Source, shared: &Shared, counters: &Counters, queue: &Sender<Item>) -> bool {
    let mut room = vec![0; ROOM];
    let mut filled = 0;
    while !shared.is_over() {
        match file.read(&mut room[filled..]) {
            Ok(0) => return filled == 0,
            Ok(length) => filled += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return false,
        }
        let mut messages = Messages { at_ns: clock::wall_clock_ns(), ..Messages::default() };
        let used = cut(&room[..filled], |message| messages.push(source, message));
        add(&counters.messages, messages.parts.len() as u64);
        add(&counters.bytes, messages.bytes.len() as u64);
        let Some(used) = used.filter(|_| messages.send(queue)) else { return false };
        room.copy_within(used..filled, 0);
        filled -= used;
    }
    false
}
